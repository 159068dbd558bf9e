"""Intervals against numbers worked by hand, published values, and their own promise: coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guiderail.bench.stats import (
    _weights,
    bootstrap_mean,
    generator,
    paired_difference,
    student_quantile,
    success,
    wilson,
)


def test_wilson_by_hand() -> None:
    # z = 1.959964: centre (0.8 + 3.8415/20) / (1 + 0.38415) = 0.71674
    # half = 1.959964/1.38415 * sqrt(0.016 + 0.0096036) = 0.22657
    w = wilson(8, 10)
    assert (w.mean, w.n) == (0.8, 10)
    assert (w.lo, w.hi) == (pytest.approx(0.49016, abs=1e-5), pytest.approx(0.94331, abs=1e-5))


@pytest.mark.parametrize(
    ("k", "n", "lo", "hi"),
    # Newcombe (1998), Statistics in Medicine 17:857, table I, method 3 (score)
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_published(k: int, n: int, lo: float, hi: float) -> None:
    w = wilson(k, n)
    assert (w.lo, w.hi) == (pytest.approx(lo, abs=5e-5), pytest.approx(hi, abs=5e-5))


def test_wilson_degenerate() -> None:
    assert wilson(0, 0).to_json() == {"mean": None, "lo": None, "hi": None, "n": 0, "reason": "no measured episode"}
    one = wilson(1, 1)
    assert one.hi == 1.0 and one.lo == pytest.approx(1 / (1 + 1.959964**2), abs=1e-6)
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)


@given(st.integers(1, 400), st.data())
def test_wilson_mirrors_and_contains(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    w, m = wilson(k, n), wilson(n - k, n)
    assert w.lo is not None and w.hi is not None and m.lo is not None and m.hi is not None and w.mean is not None
    assert 0 <= w.lo <= w.mean <= w.hi <= 1
    assert w.lo == pytest.approx(1 - m.hi, abs=1e-12)


def test_bootstrap_matches_the_stratified_standard_error() -> None:
    # template a: 16 of 20, b: 5 of 20. Stratified se^2 = sum (1/2)^2 * p(1-p)/(20-1) = 0.25*(0.16+0.1875)/19
    v = np.array([1] * 16 + [0] * 4 + [1] * 5 + [0] * 15, dtype=float)
    got = bootstrap_mean(v, ["a"] * 20 + ["b"] * 20, draws=20000)
    half = 1.959964 * math.sqrt(0.25 * (0.16 + 0.1875) / 19)
    assert got.mean == pytest.approx(21 / 40) and got.n == 40
    assert got.lo == pytest.approx(21 / 40 - half, abs=0.015) and got.hi == pytest.approx(21 / 40 + half, abs=0.015)


def test_templates_as_chance_are_wider() -> None:
    v = np.array([1] * 19 + [0] + [0] * 19 + [1] + [1] * 10 + [0] * 10, dtype=float)
    strata = ["a"] * 20 + ["b"] * 20 + ["c"] * 20
    inst, temp = bootstrap_mean(v, strata), bootstrap_mean(v, strata, over="templates")
    assert inst.mean == temp.mean
    assert (temp.hi or 0) - (temp.lo or 0) > 2 * ((inst.hi or 0) - (inst.lo or 0))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_constant_data_is_not_certainty(value: float) -> None:
    got = bootstrap_mean(np.full(10, value), ["a"] * 10)
    width = 1.959964**2 / (10 + 1.959964**2)  # Wilson's bound at 0 of 10
    assert got.mean == value
    assert (got.hi or 0) - (got.lo or 0) == pytest.approx(width, abs=1e-6)


def test_one_instance_per_template_still_shows_spread() -> None:
    got = bootstrap_mean(np.array([1.0, 0, 1, 0, 1, 0, 0, 0]), list("abcdefgh"))
    assert got.lo is not None and got.hi is not None and got.lo < 0.2 and got.hi > 0.6


def test_single_value() -> None:
    got = bootstrap_mean(np.array([1.0]), ["a"])
    assert (got.mean, got.n, got.hi) == (1.0, 1, 1.0) and got.lo == pytest.approx(0.2065, abs=1e-4)


def test_empty_gives_a_reason() -> None:
    assert success([], {}).reason == "no measured episode"
    assert bootstrap_mean(np.full((1, 3), np.nan), list("abc")).mean is None
    assert paired_difference([{"t": 1.0}], [{"u": 1.0}], {"t": "a", "u": "a"}).reason == "no instance measured in both"


def test_paired_difference_by_hand_and_narrower_than_unpaired() -> None:
    tasks = [f"t{i}" for i in range(40)]
    template = {t: "ab"[i % 2] for i, t in enumerate(tasks)}
    before = {t: float(i < 18) for i, t in enumerate(tasks)}
    after = {t: float(i < 24) for i, t in enumerate(tasks)}
    got = paired_difference([before], [after], template)
    assert got.mean == pytest.approx(6 / 40) and got.n == 40 and got.excludes_zero()
    assert (got.hi or 0) - (got.lo or 0) < 0.26  # unpaired: 2 * 1.96 * sqrt(2 * 0.25 / 40) = 0.44


def test_pairs_only_what_was_measured_twice() -> None:
    got = paired_difference([{"a": 0.0, "b": 0.0}], [{"b": 1.0, "c": 0.0}], dict.fromkeys("abc", "t"))
    assert (got.mean, got.n) == (1.0, 1)


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("over", ["instances", "templates"])
def test_the_other_way_round_is_the_exact_mirror(over: str, tie: bool) -> None:
    rng = np.random.default_rng(5)
    for draw in range(12):
        tasks = [f"t{i}" for i in range(30)]
        template = {t: "abc"[i % 3] for i, t in enumerate(tasks)}
        one = [{t: float(rng.random() < 0.5) for t in tasks[k:]} for k in range(2)]
        other = [{t: float(rng.random() < 0.4) for t in tasks} for _ in range(2)]
        if tie:  # as many won as lost: the mean says nothing about which to draw
            one, other = (
                [dict.fromkeys(tasks, 0.0)],
                [{t: (1.0, -1.0, 0.0)[(i + draw) % 3] for i, t in enumerate(tasks)}],
            )
            other[0] |= {tasks[0]: other[0][tasks[3]] if draw % 2 else other[0][tasks[0]]}
        there = paired_difference(one, other, template, over=over, draws=200)  # type: ignore[arg-type]
        back = paired_difference(other, one, template, over=over, draws=200)  # type: ignore[arg-type]
        assert (back.mean, back.lo, back.hi, back.n) == (-there.mean, -there.hi, -there.lo, there.n)  # type: ignore[operator]


def test_unpaired_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="pair them by training seed"):
        paired_difference([{"a": 0.0}], [], {"a": "t"})


def test_spread_between_seeds_widens() -> None:
    template = {f"t{i}": "a" for i in range(100)}
    lucky = {t: float(i < 80) for i, t in enumerate(template)}
    poor = {t: float(i < 40) for i, t in enumerate(template)}
    even = {t: float(i < 60) for i, t in enumerate(template)}
    wide, narrow = success([lucky, poor], template), success([even, even], template)
    assert wide.mean == pytest.approx(0.6) and narrow.mean == pytest.approx(0.6)
    assert (wide.hi or 0) - (wide.lo or 0) > 1.5 * ((narrow.hi or 0) - (narrow.lo or 0))


@pytest.mark.parametrize("over", ["instances", "templates"])
def test_equal_data_has_equal_intervals_whatever_it_is_called(over: str) -> None:
    rng = np.random.default_rng(3)
    v = (rng.random((2, 60)) < 0.4).astype(float)
    v[0, 5] = np.nan
    strata = ["a"] * 20 + ["b"] * 25 + ["c"] * 14 + ["d"]
    first = bootstrap_mean(v, strata, over=over, draws=200)  # type: ignore[arg-type]
    order = rng.permutation(60)
    names = {"a": "zebra", "b": "10", "c": "9", "d": "x"}
    again = bootstrap_mean(v[:, order], [names[strata[i]] for i in order], over=over, draws=200)  # type: ignore[arg-type]
    assert (again.lo, again.hi, again.n) == (first.lo, first.hi, first.n)
    v[1, 0] = 1 - v[1, 0]
    assert (first.lo, first.hi) != (lambda x: (x.lo, x.hi))(bootstrap_mean(v, strata, over=over, draws=200))  # type: ignore[arg-type]
    assert generator("a", 1).integers(1 << 30) == generator("a", 1).integers(1 << 30)


def test_drawn_weights_have_the_moments_of_their_definition() -> None:
    """Rao and Wu: mean 1, variance of a member n/(n-1) * (1 - 1/n) = 1, and the mean over members is 1 in each draw."""
    w = _weights(np.random.default_rng(0), 20_000, 8)
    assert w.mean(axis=1) == pytest.approx(np.ones(20_000))
    assert w.mean(axis=0) == pytest.approx(np.ones(8), abs=0.03) and w.var(axis=0) == pytest.approx(
        np.ones(8), abs=0.05
    )


@pytest.mark.parametrize("over", ["instances", "templates"])
def test_coverage(over: str) -> None:
    """A 95 % interval holds the truth about 95 % of the time, for each meaning of truth."""
    rng = np.random.default_rng(7)
    hits = 0
    for trial in range(250):
        p = rng.beta(1.5, 1.5, size=20)
        v = (rng.random((20, 16)) < p[:, None]).astype(float)
        strata = np.repeat(np.arange(20), 16).tolist()
        got = bootstrap_mean(v.ravel(), strata, over=over, draws=400)  # type: ignore[arg-type]
        truth = float(p.mean()) if over == "instances" else 0.5
        hits += (got.lo or 0) <= truth <= (got.hi or 0)
    assert 0.915 <= hits / 250 <= 0.985


def test_coverage_with_few_templates_and_few_seeds() -> None:
    """The hard cases: 6 held-out templates as chance; 3 training seeds with a real spread between them, and without."""
    rng = np.random.default_rng(11)
    few = seeds = agree = 0
    width = 0.0
    for trial in range(250):
        p = rng.beta(1.5, 1.5, size=6)
        v = (rng.random((6, 16)) < p[:, None]).astype(float).ravel()
        got = bootstrap_mean(v, np.repeat(np.arange(6), 16).tolist(), over="templates", draws=400)
        few += (got.lo or 0) <= 0.5 <= (got.hi or 0)
        q = np.clip(0.5 + 0.08 * rng.standard_normal(3), 0, 1)
        runs = (rng.random((3, 200)) < q[:, None]).astype(float)
        got = bootstrap_mean(runs, ["a"] * 200, draws=400)
        seeds += (got.lo or 0) <= 0.5 <= (got.hi or 0)
        got = bootstrap_mean((rng.random((3, 200)) < 0.5).astype(float), ["a"] * 200, draws=400)
        agree += (got.lo or 0) <= 0.5 <= (got.hi or 0)
        width += ((got.hi or 0) - (got.lo or 0)) / 250
    assert few / 250 >= 0.915 and seeds / 250 >= 0.915
    assert (
        agree / 250 >= 0.94 and width < 2 * 2 * 1.96 * (0.25 / 600) ** 0.5
    )  # runs that agree: less than twice as wide


@pytest.mark.parametrize(
    ("dof", "t"),  # printed t tables, p = 0.975
    [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_student_quantile(dof: int, t: float) -> None:
    assert student_quantile(0.975, dof) == pytest.approx(t, rel=0.01)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 1.0])), min_size=1, max_size=60))
def test_interval_holds_the_mean_and_stays_in_range(rows: list[tuple[str, float]]) -> None:
    got = bootstrap_mean(np.array([v for _, v in rows]), [s for s, _ in rows], draws=300)
    assert got.mean is not None and got.lo is not None and got.hi is not None
    assert 0 <= got.lo <= got.mean + 1e-9 and got.mean - 1e-9 <= got.hi <= 1
