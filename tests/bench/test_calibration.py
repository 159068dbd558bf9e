"""AUROC, ECE, reliability: against numbers worked by hand and a plain count of pairs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guiderail.bench.calibration import Judged, accuracy, auroc, brier, calibration, ece, reliability

# p, good. Pairs (good, bad): 0.9 beats 0.6, 0.4, 0.1 (3); 0.6 ties 0.6 (0.5), beats 0.4, 0.1 (2); 0.3 beats 0.1 (1):
# 6.5 of 9.
P = np.array([0.9, 0.6, 0.6, 0.4, 0.3, 0.1])
GOOD = np.array([True, True, False, False, True, False])


def test_by_hand():
    assert auroc(P, GOOD) == pytest.approx(6.5 / 9, abs=1e-12)
    assert accuracy(P, GOOD) == pytest.approx(4 / 6)  # 0.9 and the good 0.6, 0.4 and 0.1 are right
    assert brier(P, GOOD) == pytest.approx((0.01 + 0.16 + 0.36 + 0.16 + 0.49 + 0.01) / 6)
    # two bins: [0, 0.5) holds 0.4, 0.3, 0.1: mean 0.8/3, good 1/3; [0.5, 1] holds 0.9, 0.6, 0.6: mean 0.7, good 2/3
    assert ece(P, GOOD, 2) == pytest.approx((3 * abs(0.8 / 3 - 1 / 3) + 3 * abs(0.7 - 2 / 3)) / 6)
    low, high = reliability(P, GOOD, 2)
    assert (low["n"], high["n"]) == (3, 3) and high["p"] == pytest.approx(0.7) and low["good"] == pytest.approx(1 / 3)


def test_ten_bins_by_hand():
    """1.0 belongs to the last bin; 0.7 (a float just below) does not slip into bin 6."""
    p, good = np.array([1.0, 0.95, 0.7, 0.05]), np.array([True, False, True, False])
    bins = reliability(p, good)
    assert [b["n"] for b in bins] == [1, 0, 0, 0, 0, 0, 0, 1, 0, 2]
    assert bins[1]["p"] is None
    assert ece(p, good) == pytest.approx((0.05 + 0.3 + 2 * abs(0.975 - 0.5)) / 4)


def test_edges():
    assert auroc(np.array([0.1, 0.9]), np.array([False, True])) == 1.0
    assert auroc(np.array([0.9, 0.1]), np.array([False, True])) == 0.0
    assert auroc(np.full(7, 0.3), np.arange(7) < 3) == 0.5
    assert (
        math.isnan(auroc(P, np.ones(6, bool)))
        and math.isnan(ece(P[:0], GOOD[:0]))
        and math.isnan(accuracy(P[:0], GOOD[:0]))
    )


scores = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40)


@given(scores)
def test_auroc_is_the_share_of_pairs(pairs):
    p, good = np.array([s / 6 for s, _ in pairs]), np.array([g for _, g in pairs])
    won = [(a > b) + 0.5 * (a == b) for a in p[good] for b in p[~good]]
    got = auroc(p, good)
    assert math.isnan(got) if not won else got == pytest.approx(sum(won) / len(won), abs=1e-12)
    if won:  # order is all that counts
        assert auroc(p**3 / 2, good) == pytest.approx(got, abs=1e-12) and auroc(-p, good) == pytest.approx(1 - got)


@given(scores)
def test_ece_is_the_trapezoid_free_sum_of_gaps(pairs):
    """The usual formula written per bin: sum n_b / n |acc_b - conf_b|, from sets rather than index arithmetic."""
    p, good = np.array([(s + 0.5) / 7 for s, _ in pairs]), np.array([g for _, g in pairs])
    total = 0.0
    for b in range(10):
        inside = [(x, y) for x, y in zip(p, good, strict=True) if b / 10 <= x < (b + 1) / 10]
        if inside:
            total += abs(sum(x for x, _ in inside) - sum(y for _, y in inside))
    assert ece(p, good) == pytest.approx(total / len(p), abs=1e-12)


def rows(n=60):
    rng = np.random.default_rng(0)
    made = []
    for i in range(n):
        good = bool(rng.random() < 0.5)
        p = float(np.clip(0.5 + 0.25 * (1 if good else -1) + 0.2 * rng.standard_normal(), 0, 1))
        made.append(Judged(p, good, f"t{i % 2}", "expert" if i % 3 else "policy", "act", f"e{i // 3}"))
    return made


def test_report_counts_and_repeats():
    made = [*rows(), Judged(float("nan"), True, "t2", "policy", "wait", "e99", 1.0)]
    found = calibration(made, bins=10, draws=200, confidence=0.95)
    assert found == calibration(made[::-1][::-1], bins=10, draws=200, confidence=0.95)
    assert found["n"] == 60 and found["unread"] == 1 and found["invalid_votes"] == pytest.approx(1 / 61)
    assert {k: v["n"] for k, v in found["templates"].items()} == {"t0": 30, "t1": 30, "t2": 0}
    assert found["templates"]["t2"]["auroc"] == {
        "mean": None,
        "lo": None,
        "hi": None,
        "n": 0,
        "reason": "no judged step",
    }
    a = found["auroc"]
    assert a["lo"] < a["mean"] < a["hi"] <= 1 and a["mean"] > 0.8
    assert sum(b["n"] for b in found["bins"]) == 60
    assert found["majority"] == pytest.approx(max(found["good"], 60 - found["good"]) / 60)


def test_steps_of_one_episode_are_drawn_together():
    """Copies of a step add no knowledge: with every row five times in its episode the interval stays as wide."""
    few = rows(30)
    many = [r for r in few for _ in range(5)]
    one, five = (calibration(x, bins=10, draws=400, confidence=0.95)["auroc"] for x in (few, many))
    assert five["mean"] == pytest.approx(one["mean"]) and (five["lo"], five["hi"]) == pytest.approx(
        (one["lo"], one["hi"])
    )
