"""Step-wise advantages against hand-worked numbers, plain loops, gui-rl's own rules, and properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guiderail.algorithms.step_wise import mean_votes, reference_step_wise, step_wise_advantages

NAN = math.nan
# one task: a success of two steps, both judged good; a failure of three, judged +1, -1, and without a valid vote
OUT = np.array([1.0, 1, -1, -1, -1])
P = np.array([1.0, 1, 1, -1, NAN])
T, K = np.array([0, 0, 1, 1, 1]), np.array([0, 1, 0, 1, 2])


def run(measured=None, **kw):
    ok = np.ones(len(OUT), dtype=bool) if measured is None else measured
    return step_wise_advantages(OUT, P, ["g"] * len(OUT), T, K, ok, **kw)


def test_mean_votes_by_hand():
    votes = np.array([[1, 1, -1], [-1, NAN, NAN], [NAN, NAN, NAN], [1, NAN, -1]])
    assert mean_votes(votes) == pytest.approx([1 / 3, -1, NAN, 0], nan_ok=True)
    with pytest.raises(ValueError, match="votes"):
        mean_votes(np.array([[0.5]]))


def test_bucket_by_hand():
    """Step 0: r = 2 and 0, mean 1, sample deviation sqrt 2; step 1: 2 and -2, mean 0, 2 sqrt 2; step 2: alone."""
    got = run(eps=0.0)
    assert got.rewards.tolist() == [2, 2, 0, -2, -1]
    assert got.values == pytest.approx([math.sqrt(0.5), math.sqrt(0.5), -math.sqrt(0.5), -math.sqrt(0.5), 0])
    assert (got.compared, got.small, got.flat, got.unvoted, got.unmeasured) == (3, 1, 0, 1, 0)
    assert got.kept.tolist() == [True, True, True, True, False]


def test_the_coefficient_counts_at_the_step():
    got = run(coef=0.5, ddof=0, eps=0.0)
    assert got.rewards.tolist() == [1.5, 1.5, -0.5, -1.5, -1.0] and got.values[:2].tolist() == [1.0, 1.0]


def test_return_to_go_by_hand():
    """gamma 0.5: G = [1/2 + 1 + 1/2, 1 + 1], [-1/4 + 1 - 1/2, -1/2 - 1, -1]: the outcome once, at the last step."""
    got = run(credit="return_to_go", gamma=0.5, ddof=0, eps=0.0)
    assert got.values == pytest.approx([1, 1, -1, -1, 0])
    scaled = step_wise_advantages(
        np.array([1.0, 1, -1, 0, 0]), P * 0, ["g"] * 5, [0, 0, 1, 2, 2], np.array([0, 1, 0, 0, 1]), [True] * 5,
        credit="return_to_go", gamma=0.5, ddof=0, eps=0.0,
    )  # fmt: skip
    x = np.array([0.5, -1.0, 0.0])  # the success pays half, one step before its end
    assert scaled.values[[0, 2, 3]] == pytest.approx((x - x.mean()) / x.std())


def test_outcome_anchored_by_hand():
    """Baselines: of the success the failure's -1 + mean(1, -1, 0) = -1; of the failure the success's 1 + 1 = 2."""
    got = run(credit="outcome_anchored")
    assert got.values.tolist() == [3, 3, -2, -4, -3]
    assert (got.compared, got.small, got.flat) == (1, 0, 0)


def test_a_long_sibling_has_one_vote():
    o = np.array([1.0, -1, -1, -1, -1, 0])
    got = step_wise_advantages(
        o, o * 0, [7] * 6, [0, 1, 1, 1, 1, 2], np.array([0, 0, 1, 2, 3, 0]), [True] * 6, credit="outcome_anchored"
    )
    assert got.values == pytest.approx([1.5, -1.5, -1.5, -1.5, -1.5, 0.0])


@pytest.mark.parametrize("credit", ["bucket", "return_to_go", "outcome_anchored"])
@pytest.mark.parametrize("value", [0.1, 1 / 3, -1.0])
def test_equal_rewards_in_float32_give_exactly_zero(credit, value):
    n = 7
    o, zeros = np.full(n, value, dtype=np.float32), np.zeros(n, dtype=int)
    got = step_wise_advantages(o, o, zeros, np.arange(n), zeros, np.ones(n, dtype=bool), credit=credit)
    assert got.values.tolist() == [0.0] * n and got.flat == 1 and not got.kept.any()


def test_the_reference_by_hand():
    zeros = np.zeros(3, dtype=int)
    three = reference_step_wise([1, 1, -1], [1, -1, -1], zeros, zeros, [False] * 3)
    assert three.values == pytest.approx([1.2247441, 0.0, -1.2247441], abs=1e-7)  # 2 / (sqrt(8/3) + 1e-6)
    lone = reference_step_wise([1, -1], [1, -1], [0, 0], [0, 1], [False] * 2)
    assert lone.values.tolist() == [2.0, -2.0] and not lone.removed.any()  # raw, twice the scale of the others
    half = reference_step_wise([1, 1, 1, -1], [0.5, 0.5, 0.5, -1], [0, 0, 1, 1], [0, 0, 0, 0], [False] * 4)
    assert half.removed.tolist() == [True, True, False, False]
    assert half.values == pytest.approx([0, 0, 1, -1], abs=1e-6)
    all_flat = reference_step_wise([1, 1, -1, -1], [0] * 4, [0, 0, 1, 1], [0] * 4, [False] * 4)
    assert all_flat.removed.tolist() == [False, False, True, True] and all_flat.values.tolist() == [0] * 4


def test_aborted_siblings_shift_the_reference_and_nobody_here():
    """Seven successes and an aborted episode: the reference counts it as 0, mean 1.75, deviation sqrt(0.4375)."""
    o, p, zeros = np.ones(8), np.ones(8), np.zeros(8, dtype=int)
    gone = np.arange(8) == 7
    theirs = reference_step_wise(o, p, zeros, zeros, gone)
    assert theirs.values[:7] == pytest.approx([0.25 / (math.sqrt(0.4375) + 1e-6)] * 7)
    assert theirs.values[7] == 0 and theirs.removed.tolist() == gone.tolist()
    ours = step_wise_advantages(np.where(gone, NAN, o), p, zeros, np.arange(8), zeros, ~gone)
    assert ours.values.tolist() == [0.0] * 8 and ours.unmeasured == 1


def test_equals_the_reference_where_it_is_right():
    """Population deviation, coefficient 1, no infra error, no singleton, no constant bucket: the same numbers."""
    rng = np.random.default_rng(3)
    group, t = np.repeat(np.arange(5), 12), np.arange(60) // 3
    step = np.tile(np.arange(3), 20)
    o = np.repeat(rng.choice([-1.0, 1.0], 20), 3)
    p = rng.uniform(-1, 1, 60)
    ours = step_wise_advantages(o, p, group, t, step, np.ones(60, dtype=bool), ddof=0)
    theirs = reference_step_wise(o, p, group, step, np.zeros(60, dtype=bool))
    assert ours.values == pytest.approx(theirs.values, abs=1e-12) and not theirs.removed.any()


def loops(rows, credit, coef, gamma):
    by = {}
    for i, (g, t, k, o, p) in enumerate(rows):
        by.setdefault((g, t), []).append((k, i, o, 0.0 if math.isnan(p) else p))
    x, score = [0.0] * len(rows), {}
    for key, steps in by.items():
        steps.sort()
        o = steps[0][2]
        score[key] = o + coef * sum(p for *_, p in steps) / len(steps)
        ahead = o
        for n, (_, i, _, p) in enumerate(reversed(steps)):
            ahead = coef * p + (o if n == 0 else gamma * ahead)
            x[i] = ahead if credit == "return_to_go" else o + coef * p
    out = []
    for i, (g, t, k, _, _) in enumerate(rows):
        same = [x[j] for j, row in enumerate(rows) if row[0] == g and (credit == "outcome_anchored" or row[2] == k)]
        others = [v for (h, u), v in score.items() if h == g and u != t]
        if max(same) - min(same) < 1e-9 or len(same) < 2 or (credit == "outcome_anchored" and not others):
            out.append(0.0)
        elif credit == "outcome_anchored":
            out.append(x[i] - sum(others) / len(others))
        else:
            out.append((x[i] - np.mean(same)) / (np.std(same, ddof=1) + 1e-6))
    return out


@st.composite
def batches(draw):
    rows = []
    for t in range(draw(st.integers(1, 6))):
        g, o = draw(st.integers(0, 2)), draw(st.sampled_from([-1.0, 1.0]))
        for k in range(draw(st.integers(1, 4))):
            rows.append((g, t, k, o, draw(st.sampled_from([-1.0, -0.5, 0.0, 1.0, NAN]))))
    return draw(st.permutations(rows))


CREDITS = st.sampled_from(["bucket", "return_to_go", "outcome_anchored"])


def advantages(rows, measured=None, **kw):
    g, t, k, o, p = (np.array(c) for c in zip(*rows, strict=True))
    ok = np.ones(len(rows), dtype=bool) if measured is None else measured
    return step_wise_advantages(o, p, g, t, k, ok, **kw).values


@given(batches(), CREDITS, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0]))
def test_equals_plain_loops(rows, credit, coef, gamma):
    assert advantages(rows, credit=credit, coef=coef, gamma=gamma) == pytest.approx(
        loops(rows, credit, coef, gamma), abs=1e-9
    )


@given(batches(), CREDITS, st.randoms())
def test_the_order_of_rows_changes_no_bit(rows, credit, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    assert np.array_equal(advantages([rows[i] for i in order], credit=credit), advantages(rows, credit=credit)[order])


@given(batches(), CREDITS, st.integers(0, 2), st.integers(1, 4))
def test_an_infra_error_changes_nobodys_advantage(rows, credit, group, steps):
    lost = [(group, 99, k, NAN, 1.0) for k in range(steps)]
    got = advantages([*rows, *lost], np.array([True] * len(rows) + [False] * steps), credit=credit)
    assert np.array_equal(got, np.concatenate([advantages(rows, credit=credit), np.zeros(steps)]))


@given(batches(), st.sampled_from([0.5, 2.0, 4.0]))
def test_scaling_rewards(rows, scale):
    """Anchored advantages scale with outcome and coefficient; bucket advantages do not move (eps 0)."""
    more = [(g, t, k, scale * o, p) for g, t, k, o, p in rows]
    assert advantages(more, coef=scale, credit="outcome_anchored") == pytest.approx(
        scale * advantages(rows, credit="outcome_anchored"), abs=1e-12
    )
    assert advantages(more, coef=scale, eps=0.0) == pytest.approx(advantages(rows, eps=0.0), abs=1e-9)


def test_bad_input_is_refused():
    one = ([1.0], [1.0], ["g"], ["t"], [0], [True])
    bad = {"credit": {"credit": "a"}, "ddof": {"ddof": 2}, "gamma": {"credit": "return_to_go", "gamma": 2}}
    for text, kw in bad.items():
        with pytest.raises(ValueError, match=text):
            step_wise_advantages(*one, **kw)
    with pytest.raises(ValueError, match="finite"):
        step_wise_advantages([NAN], *one[1:])
    with pytest.raises(ValueError, match="one length"):
        step_wise_advantages([1.0, 2.0], *one[1:])
    with pytest.raises(ValueError, match="differs within"):
        step_wise_advantages([1.0, 2.0], [0.0, 0.0], [0, 0], [0, 0], [0, 1], [True, True])
    assert step_wise_advantages([], [], [], [], [], []).values.shape == (0,)
