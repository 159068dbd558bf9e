"""Advantages against hand-worked numbers, the published TRL and verl formulas, and properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guiderail.algorithms.grpo import group_advantages

TRUE4 = [True] * 4


@pytest.mark.parametrize(
    ("ddof", "low", "high"),
    [
        (0, -1 / math.sqrt(3), math.sqrt(3)),  # mean 1/4, population variance 3/16
        (1, -0.5, 1.5),  # sample variance 1/4
    ],
)
def test_one_success_of_four_by_hand(ddof, low, high):
    out = group_advantages([0, 0, 0, 1], ["g"] * 4, TRUE4, ddof=ddof, eps=0.0)
    assert out.values == pytest.approx([low, low, low, high], abs=1e-12)
    assert out.kept.all() and out.groups_kept == 1
    assert out.spread == pytest.approx(math.sqrt(3) / 4)


def test_pair_by_hand():
    assert group_advantages([1, 0], [7, 7], [True, True], ddof=0, eps=0).values.tolist() == [1.0, -1.0]


def test_unscaled_by_hand():
    assert group_advantages([0, 0, 0, 1], [0] * 4, TRUE4, scale="none").values.tolist() == [-0.25, -0.25, -0.25, 0.75]


def test_leave_one_out_by_hand():
    """RLOO: a success among three failures is 1 above its siblings, each failure 1/3 below."""
    kw = {"scale": "none", "baseline": "leave_one_out"}
    got = group_advantages([0, 0, 0, 1], ["g"] * 4, TRUE4, **kw).values
    assert got == pytest.approx([-1 / 3, -1 / 3, -1 / 3, 1], abs=1e-12)
    lost = group_advantages([0, 1, math.nan], [0] * 3, [True, True, False], **kw)
    assert lost.values.tolist() == [-1, 1, 0]
    rng = np.random.default_rng(2)
    r = rng.normal(size=24)
    wanted = [r[i] - np.mean([r[j] for j in range(24) if j % 3 == i % 3 and j != i]) for i in range(24)]
    assert group_advantages(r, np.arange(24) % 3, [True] * 24, **kw).values == pytest.approx(wanted, abs=1e-12)


def test_unknown_names_are_refused():
    for kw in ({"scale": "var"}, {"baseline": "median"}):
        with pytest.raises(ValueError, match=next(iter(kw.values()))):
            group_advantages([0, 1], [0, 0], [True, True], **kw)


@pytest.mark.parametrize("n", [3, 7, 11])
def test_equal_rewards_in_float32_give_exactly_zero(n):
    out = group_advantages(np.full(n, 0.19, np.float32), ["g"] * n, [True] * n, flat=0.0)
    assert out.values.tolist() == [0.0] * n and out.groups_flat == 1


def test_infra_error_is_excluded_before_the_baseline():
    """Seven successes and an aborted sibling: no variance was measured, so nothing is learned (the reference gives
    +0.354)."""
    out = group_advantages([1] * 7 + [float("nan")], ["g"] * 8, [True] * 7 + [False])
    assert out.values.tolist() == [0.0] * 8
    assert (out.groups_flat, out.groups_small, out.unmeasured) == (1, 0, 1)
    with_signal = group_advantages([0, 0, 0, 1, math.nan], ["g"] * 5, [*TRUE4, False], ddof=1, eps=0)
    assert with_signal.values.tolist() == [-0.5, -0.5, -0.5, 1.5, 0.0]
    assert with_signal.kept.tolist() == [True] * 4 + [False]


def test_singletons_and_flat_groups_are_zero_and_counted():
    out = group_advantages(
        [5.0, 1, 1, 0, 1, 9], ["lone", "flat", "flat", "ok", "ok", "lost"], [True] * 5 + [False], ddof=0, eps=0
    )
    assert out.values.tolist() == [0, 0, 0, -1, 1, 0]
    assert (out.groups, out.groups_small, out.groups_flat, out.groups_kept) == (4, 2, 1, 1)
    assert out.spread == pytest.approx(0.25)  # mean of 0 (flat) and 0.5 (ok)


def test_empty_batch():
    out = group_advantages([], [], [])
    assert out.values.shape == (0,) and out.groups == 0 and out.spread == 0.0


@pytest.mark.parametrize(
    ("rewards", "groups", "measured", "ddof", "text"),
    [
        ([1.0], ["a", "b"], [True], 1, "one length"),
        ([1.0, 2.0], ["a", "a"], [True, True], 2, "ddof = 2"),
        ([math.nan, 2.0], ["a", "a"], [True, True], 1, "finite"),
    ],
)
def test_bad_input_is_refused(rewards, groups, measured, ddof, text):
    with pytest.raises(ValueError, match=text):
        group_advantages(rewards, groups, measured, ddof=ddof)


def trl(rewards, n):
    """TRL's GRPOTrainer, scale_rewards "group": rewards.view(-1, n), torch std (ddof 1), eps 1e-4."""
    grouped = np.asarray(rewards, float).reshape(-1, n)
    return ((grouped - grouped.mean(1, keepdims=True)) / (grouped.std(1, ddof=1, keepdims=True) + 1e-4)).ravel()


def verl(rewards, index):
    """verl.compute_grpo_outcome_advantage: score per id, torch std (ddof 1), eps 1e-6."""
    by_id = {}
    for r, i in zip(rewards, index, strict=True):
        by_id.setdefault(i, []).append(r)
    return np.array(
        [(r - np.mean(by_id[i])) / (np.std(by_id[i], ddof=1) + 1e-6) for r, i in zip(rewards, index, strict=True)]
    )


def test_equals_trl_and_verl_on_groups_with_spread():
    rng = np.random.default_rng(0)
    rewards, index = rng.normal(size=48), np.repeat(np.arange(6), 8)
    assert group_advantages(rewards, index.tolist(), [True] * 48, eps=1e-4).values == pytest.approx(
        trl(rewards, 8), rel=1e-12
    )
    order = rng.permutation(48)
    ours = group_advantages(rewards[order], index[order].tolist(), [True] * 48, eps=1e-6)
    assert ours.values == pytest.approx(verl(rewards[order], index[order]), rel=1e-12)


batches = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-8, 8).map(lambda k: k / 4), st.booleans()), min_size=1, max_size=24
)
options = st.fixed_dictionaries(
    {
        "scale": st.sampled_from(["std", "none"]),
        "baseline": st.sampled_from(["mean", "leave_one_out"]),
        "ddof": st.sampled_from([0, 1]),
    }
)


def run(batch, **kw):
    return group_advantages([b[1] for b in batch], [b[0] for b in batch], [b[2] for b in batch], **kw)


@given(batches, options)
def test_sums_to_zero_in_every_group(batch, kw):
    values = run(batch, **kw).values
    for g in range(4):
        assert sum(v for v, b in zip(values, batch, strict=True) if b[0] == g) == pytest.approx(0, abs=1e-9)


@given(batches, options, st.integers(-5, 5))
def test_shift_invariant(batch, kw, shift):
    assert run([(g, r + shift, m) for g, r, m in batch], **kw).values == pytest.approx(
        run(batch, **kw).values, abs=1e-9
    )


@given(batches, options, st.randoms())
def test_permutation_equivariant(batch, kw, random):
    order = list(range(len(batch)))
    random.shuffle(order)
    assert np.array_equal(run([batch[i] for i in order], **kw).values, run(batch, **kw).values[order])  # to the bit


@given(batches, options)
def test_unmeasured_rewards_do_not_matter(batch, kw):
    assert np.array_equal(
        run(batch, **kw).values, run([(g, r if m else math.nan, m) for g, r, m in batch], **kw).values
    )
