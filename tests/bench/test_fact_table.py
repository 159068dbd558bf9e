"""The table of told facts, against numbers worked by hand, and a judge beside it."""

import numpy as np
import pytest

from guiderail.bench.calibration import Judged, auroc_difference
from guiderail.bench.fact_table import beside, looked_up


def test_by_hand():
    """Five steps, two good: m = 0.4. a: (2 + 0.4) / (3 + 1), b: (0 + 0.4) / (2 + 1), c was never seen."""
    facts, good = ["a", "a", "a", "b", "b"], [True, True, False, False, False]
    p = looked_up(facts, good, ["b", "c", "a", "a"])
    assert p == pytest.approx([0.4 / 3, 0.4, 0.6, 0.6], abs=1e-15)
    with pytest.raises(ValueError, match="5 steps with facts and 4 answers"):
        looked_up(facts, good[:4], ["a"])
    with pytest.raises(ValueError, match="0 steps"):
        looked_up([], [], ["a"])


def judged(p, good, invalid=0.0):
    return [
        Judged(x, g, f"t{i % 2}", "policy", "act", f"e{i // 2}", invalid)
        for i, (x, g) in enumerate(zip(p, good, strict=True))
    ]


def test_beside_a_judge():
    """Good 0.9 and 0.2, bad 0.4 and 0.1: the judge wins 3 of 4 pairs. The table has the good ones at 0.6 and 0.6, the
    bad at 0.6 and 0.2: two ties and two wins, 3 of 4 as well."""
    good = [True, False, False, True]
    found = beside(judged([0.9, 0.4, 0.1, 0.2], good, 0.5), np.array([0.6, 0.6, 0.2, 0.6]), bins=2, draws=200,
                   confidence=0.95)  # fmt: skip
    assert found["facts"]["auroc"]["mean"] == 0.75 and found["facts"]["accuracy"] == 0.75 and found["facts"]["n"] == 4
    assert found["over_facts"]["mean"] == 0.0 and found["over_facts"]["lo"] <= 0.0 <= found["over_facts"]["hi"]
    assert found["facts"]["templates"]["t0"]["auroc"]["mean"] == 1.0  # 0.6 above 0.2
    assert found["facts"]["templates"]["t1"]["auroc"]["mean"] == 0.5  # 0.6 and 0.6
    better = beside(judged([0.9, 0.4, 0.1, 0.5], good), np.array([0.6, 0.6, 0.2, 0.6]), bins=2, draws=200,
                    confidence=0.95)  # fmt: skip
    assert better["over_facts"]["mean"] == 0.25


def test_the_difference_is_paired():
    """A judge against itself differs by exactly nothing, whatever is drawn; against its mirror image by 2 a - 1."""
    rng = np.random.default_rng(0)
    p, good = rng.random(60), rng.random(60) < 0.4
    episodes = [f"e{i // 3}" for i in range(60)]
    options = {"label": ("x",), "draws": 100, "confidence": 0.95}
    same = auroc_difference(p, p, good, episodes, **options)
    assert (same.mean, same.lo, same.hi, same.n) == (0.0, 0.0, 0.0, 60)
    mirrored = auroc_difference(p, -p, good, episodes, **options)
    won = np.mean([(a > b) + 0.5 * (a == b) for a in p[good] for b in p[~good]])
    assert mirrored.mean == pytest.approx(2 * won - 1) and mirrored.lo < mirrored.mean < mirrored.hi
    none = auroc_difference(p, p, np.ones(60, bool), episodes, **options)
    assert none.mean is None and none.reason == "good or bad steps only"


def test_steps_without_a_vote_are_in_the_tables_figures_alone():
    rows = judged([0.9, float("nan"), 0.1, 0.2], [True, True, False, False])
    found = beside(rows, np.array([0.6, 0.1, 0.2, 0.3]), bins=2, draws=100, confidence=0.95)
    assert found["facts"]["n"] == 4 and found["facts"]["auroc"]["mean"] == 0.5
    assert found["over_facts"]["n"] == 3 and found["over_facts"]["mean"] == 0.0
