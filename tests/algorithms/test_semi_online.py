"""Semi-online advantages against worked numbers, the formulas written again as plain loops, and properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guiderail.algorithms.patch import PatchState, Turn, patched_turn
from guiderail.algorithms.returns import returns_to_go, segment_returns
from guiderail.algorithms.semi_online import semi_online_advantages

ZEROS = np.zeros(5, dtype=int)
R5, M5 = np.array([1, 1, 0.55, 1, 0.19]), np.array([True, True, False, True, False])
# three rollouts of one task: all three steps matched; one matched, one missed; missed at once
R = np.array([1, 1, 1, 1, 0.55, 0.19])
M = np.array([True, True, True, True, False, False])
TRAJECTORY, STEP = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 1, 2, 0, 1, 0])
ALL = np.ones(6, dtype=bool)


def run(**kw):
    return semi_online_advantages(R, M, np.zeros(6, dtype=int), TRAJECTORY, STEP, ALL, **kw)


@pytest.mark.parametrize(
    ("rule", "gamma", "wanted"),
    [
        ("code", 0.5, [1.5, 1.0, 0.55, 1.0, 0.19]),
        ("paper", 0.5, [1.6375, 1.275, 0.55, 1.095, 0.19]),
        ("code", 1.0, [2.0, 1.0, 0.55, 1.0, 0.19]),
        ("paper", 1.0, [2.55, 1.55, 0.55, 1.19, 0.19]),
        ("code", 0.0, [1.0, 1.0, 0.55, 1.0, 0.19]),
        ("paper", 0.0, [1.0, 1.0, 0.55, 1.0, 0.19]),
    ],
)
def test_segment_returns_by_hand(rule, gamma, wanted):
    assert segment_returns(R5, M5, ZEROS, np.arange(5), gamma, rule) == pytest.approx(wanted, abs=1e-12)


def test_a_run_of_matches_ends_with_its_trajectory_under_both_rules():
    for rule in ("code", "paper"):
        assert segment_returns(R, M, TRAJECTORY, STEP, 0.5, rule)[:3] == pytest.approx([1.75, 1.5, 1.0])


def test_two_misses_in_a_row_do_not_add_up():
    got = segment_returns(np.ones(4), np.array([True, False, False, True]), ZEROS[:4], np.arange(4), 0.5, "paper")
    assert got.tolist() == [1.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("norm", "episode", "step"),
    [
        (
            "mean_std_norm",
            [0.609270, 0.609270, 0.609270, 0.609270, -0.696309, -1.740772],
            [0.986935, 0.707106, 0, 0.025635, -0.707106, -1.012570],
        ),
        ("mean_norm", [0.21, 0.21, 0.21, 0.21, -0.24, -0.60], [0.77, 0.475, 0, 0.02, -0.475, -0.79]),
    ],
)
def test_the_references_row_statistic(norm, episode, step):
    got = run(norm=norm, statistic="reference_row")
    assert got.returns == pytest.approx([1.75, 1.5, 1.0, 1.0, 0.55, 0.19])
    assert got.episode == pytest.approx(episode, abs=1e-6) and got.step == pytest.approx(step, abs=1e-6)
    assert got.values == pytest.approx(np.add(episode, step), abs=2e-6)


@pytest.mark.parametrize(
    ("statistic", "per_trajectory"),
    [
        ("sum", [1.010503, -0.021349, -0.989154]),
        ("first_return", [0.986935, 0.025635, -1.012570]),
        ("last_return", [1.034907, -0.073922, -0.960985]),
    ],
)
def test_true_trajectory_statistics(statistic, per_trajectory):
    got = run(statistic=statistic)
    assert got.episode == pytest.approx(np.repeat(per_trajectory, [3, 2, 1]), abs=1e-6)


def test_the_trajectory_sum_is_the_default_and_weights_scale():
    assert run().values == pytest.approx(run(statistic="sum").values, abs=0)
    weighed = run(episode_weight=0.5, step_weight=2.0)
    assert weighed.values == pytest.approx(0.5 * weighed.episode + 2.0 * weighed.step, abs=0)
    assert (weighed.groups, weighed.groups_small, weighed.buckets, weighed.buckets_small) == (1, 0, 3, 1)


@pytest.mark.parametrize(("norm", "reference"), [("mean_std_norm", 0.5499994500), ("mean_norm", 0.55)])
def test_a_lone_wrong_step_is_praised_by_the_reference_alone(norm, reference):
    one = (np.array([0.55]), np.array([False]), [0], [0], np.array([0]), np.array([True]))
    assert semi_online_advantages(*one, norm=norm, statistic="reference_row").values[0] == pytest.approx(reference)
    assert semi_online_advantages(*one, norm=norm).values.tolist() == [0.0]


@pytest.mark.parametrize(("value", "n"), [(0.19, 7), (0.55, 11), (1 / 3, 3)])
@pytest.mark.parametrize("statistic", ["sum", "first_return", "last_return", "reference_row"])
def test_equal_rewards_in_float32_give_exactly_zero(value, n, statistic):
    rewards = np.full(n, value, dtype=np.float32)
    zeros, ones = np.zeros(n, dtype=int), np.ones(n, dtype=bool)
    got = semi_online_advantages(rewards, ~ones, zeros, np.arange(n), zeros, ones, statistic=statistic)
    assert got.values.tolist() == [0.0] * n and got.groups_flat == got.buckets_flat == 1


def loops(rows, gamma, rule, norm):
    """The true-trajectory formulas as plain loops over dictionaries."""
    by = {}
    for i, (g, t, k, r, m) in enumerate(rows):
        by.setdefault((g, t), []).append((k, i, r, m))
    returns, sums = [0.0] * len(rows), {}
    for key, steps in by.items():
        steps.sort()
        sums[key] = sum(r for _, _, r, _ in steps)
        ahead = 0.0
        for _, i, r, m in reversed(steps):
            returns[i] = r + gamma * ahead if m else r
            ahead = returns[i] if m or rule == "paper" else 0.0

    def relative(x, xs):
        if len(xs) < 2 or max(xs) - min(xs) < 1e-9:
            return 0.0
        mean = sum(xs) / len(xs)
        std = math.sqrt(sum((v - mean) ** 2 for v in xs) / (len(xs) - 1))
        return (x - mean) / (std + 1e-6 if norm == "mean_std_norm" else 1.0)

    out = []
    for i, (g, t, k, _, _) in enumerate(rows):
        bucket = [returns[j] for j, row in enumerate(rows) if (row[0], row[2]) == (g, k)]
        group = [v for (h, _), v in sums.items() if h == g]
        out.append(relative(returns[i], bucket) + relative(sums[g, t], group))
    return out


@st.composite
def batches(draw):
    """Rows (group, trajectory, step, reward, matched) of a few rollouts, shuffled."""
    rows = []
    for t in range(draw(st.integers(1, 6))):
        g = draw(st.integers(0, 2))
        for k in range(draw(st.integers(1, 5))):
            rows.append((g, t, k, draw(st.sampled_from([0.0, 0.09, 0.19, 0.55, 1.0])), draw(st.booleans())))
    return draw(st.permutations(rows))


def advantages(rows, measured=None, scale=1.0, **kw):
    g, t, k, r, m = (np.array(c) for c in zip(*rows, strict=True))
    ok = np.ones(len(rows), dtype=bool) if measured is None else measured
    return semi_online_advantages(scale * r, m, g, t, k, ok, **kw).values


@given(
    batches(),
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    st.sampled_from(["code", "paper"]),
    st.sampled_from(["mean_norm", "mean_std_norm"]),
)
def test_equals_plain_loops(rows, gamma, rule, norm):
    assert advantages(rows, gamma=gamma, rule=rule, norm=norm) == pytest.approx(
        loops(rows, gamma, rule, norm), abs=1e-9
    )


STATISTICS = st.sampled_from(["sum", "first_return", "last_return", "reference_row"])


@given(batches(), STATISTICS, st.randoms())
def test_the_order_of_rows_changes_no_bit(rows, statistic, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    assert np.array_equal(
        advantages([rows[i] for i in order], statistic=statistic), advantages(rows, statistic=statistic)[order]
    )


@given(batches(), STATISTICS, st.integers(0, 2), st.integers(1, 4))
def test_an_infra_error_changes_nobodys_advantage(rows, statistic, group, steps):
    lost = [(group, 99, k, math.nan, True) for k in range(steps)]
    measured = np.array([True] * len(rows) + [False] * steps)
    got = advantages([*rows, *lost], measured, statistic=statistic)
    assert np.array_equal(got, np.concatenate([advantages(rows, statistic=statistic), np.zeros(steps)]))
    measured[-1:], measured[len(rows) : -1] = (
        False,
        True,
    )  # only its last row is marked: the trajectory is out as a whole
    finite = [*rows, *[(g, t, k, 0.5, m) for g, t, k, _, m in lost]]
    assert np.array_equal(advantages(finite, measured, statistic=statistic), got)


@given(batches(), STATISTICS, st.sampled_from([0.5, 2.0, 8.0]))
def test_scaling_rewards_scales_mean_norm_and_leaves_mean_std_norm(rows, statistic, scale):
    kw = {"statistic": statistic}
    assert advantages(rows, scale=scale, norm="mean_norm", **kw) == pytest.approx(
        scale * advantages(rows, norm="mean_norm", **kw), abs=1e-12
    )
    if statistic != "reference_row":  # its singletons keep their raw reward
        assert advantages(rows, scale=scale, eps=0.0, **kw) == pytest.approx(advantages(rows, eps=0.0, **kw), abs=1e-9)


@given(st.integers(1, 70), st.sampled_from([0.0, 0.3, 0.99, 1.0]))
def test_returns_to_go_of_long_trajectories(length, gamma):
    rewards = np.random.default_rng(length).normal(size=2 * length)
    trajectory, step = np.repeat(["a", "b"], length), np.tile(np.arange(length), 2)
    got = returns_to_go(rewards, trajectory, step, gamma)
    for at in (0, length):
        wanted = [sum(gamma**j * rewards[at + i + j] for j in range(length - i)) for i in range(length)]
        assert got[at : at + length] == pytest.approx(wanted, abs=1e-9)


def test_gaps_repeats_lengths_and_names_are_refused():
    for steps in ([0, 2], [0, 0]):
        with pytest.raises(ValueError, match="follow each other"):
            returns_to_go(np.ones(2), [0, 0], np.array(steps))
    with pytest.raises(ValueError, match="gamma"):
        returns_to_go(np.ones(1), [0], np.array([0]), 1.5)
    with pytest.raises(ValueError, match="rule"):
        segment_returns(np.ones(1), np.array([True]), [0], np.array([0]), 0.5, "book")
    for kw in ({"norm": "none"}, {"statistic": "mean"}):
        with pytest.raises(ValueError, match=next(iter(kw.values()))):
            run(**kw)
    with pytest.raises(ValueError, match="finite"):
        semi_online_advantages([math.nan], [True], [0], [0], [0], [True])
    assert semi_online_advantages([], [], [], [], [], []).values.shape == (0,)


def decisions(threshold, matches):
    state, found = PatchState(threshold), []
    for matched in matches:
        decision, state = state.after(matched)
        found.append(decision)
        if decision == "stop":
            break
    return found, state.used


def test_patches_by_hand():
    misses = [False, True, False, False, True]
    assert decisions(0, misses) == (["stop"], 0)
    assert decisions(1, misses) == (["patch", "accept", "stop"], 1)
    assert decisions(2, misses) == (["patch", "accept", "patch", "stop"], 2)
    assert decisions(-1, misses) == (["patch", "accept", "patch", "patch", "accept"], 3)
    with pytest.raises(ValueError, match="-1"):
        PatchState(-2)
    with pytest.raises(ValueError, match="ended"):
        PatchState(0, stopped=True).after(True)


def test_where_a_patchs_thought_comes_from():
    asked = []

    def think():
        asked.append(1)
        return "I see it"

    assert patched_turn("thought_free", "a*", annotated="x", think=think) == Turn("", "a*")
    assert patched_turn("off_policy", "a*", annotated="because", think=think) == Turn("because", "a*")
    assert not asked
    assert patched_turn("on_policy", "a*", annotated="x", think=think) == Turn("I see it", "a*")
    for kind, kw in [("off_policy", {}), ("off_policy", {"annotated": " "}), ("on_policy", {"annotated": "x"})]:
        with pytest.raises(ValueError, match=kind):
            patched_turn(kind, "a*", **kw)
    with pytest.raises(ValueError, match="must be thought_free"):
        patched_turn("free", "a*")
