"""Losses against hand-worked numbers, published formulas written again in numpy, and finite differences."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guiderail.algorithms.kl import kl_estimate
from guiderail.algorithms.losses import clipped_policy_loss, entropy_loss, token_weights


def t(*v):
    return torch.tensor(v, dtype=torch.float64)


@pytest.mark.parametrize(
    ("ratio", "adv", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.5, 1.0, -1.28, True),  # clipped at 1 + 0.28
        (1.5, -1.0, 1.5, False),  # a bad action made likelier is never clipped
        (0.5, -1.0, 0.8, True),  # clipped at 1 - 0.2
        (0.5, 1.0, -0.5, False),
        (1.25, 1.0, -1.25, False),  # inside the high side, outside a symmetric 0.2
    ],
)
def test_clip_by_hand(ratio, adv, loss, clipped):
    out, mark = clipped_policy_loss(t(math.log(ratio)), t(0.0), t(adv), 0.2, 0.28)
    assert out.item() == pytest.approx(loss, abs=1e-12) and mark.item() is clipped


def test_equals_verl_and_trl_in_numpy():
    """max(-A rho, -A clip(rho)) (verl compute_policy_loss) = -min(rho A, clip(rho) A) (TRL), aggregated as each names
    it."""
    rng = np.random.default_rng(1)
    lengths, adv = [5, 2, 7], rng.normal(size=3)
    rows = np.repeat(np.arange(3), lengths)
    new, old = rng.normal(size=14) * 0.4, rng.normal(size=14) * 0.4
    mask = np.zeros((3, 7))
    per_token = np.zeros((3, 7))
    at = 0
    for i, n in enumerate(lengths):
        rho = np.exp(new[at : at + n] - old[at : at + n])
        per_token[i, :n] = np.maximum(-adv[i] * rho, -adv[i] * np.clip(rho, 1 - 0.2, 1 + 0.3))
        mask[i, :n] = 1
        at += n
    loss, _ = clipped_policy_loss(torch.tensor(new), torch.tensor(old), torch.tensor(adv[rows]), 0.2, 0.3)
    index, trajectory = torch.tensor(rows), torch.tensor([0, 0, 1])

    def ours(mode):
        return float((loss * token_weights(mode, index, trajectory)).sum())

    assert ours("token_mean") == pytest.approx((per_token * mask).sum() / mask.sum(), rel=1e-6)
    assert ours("row_mean") == pytest.approx(((per_token * mask).sum(1) / mask.sum(1)).mean(), rel=1e-6)
    first = per_token[:2].sum() / 7  # rows 0 and 1 are one episode of 5 + 2 tokens
    assert ours("trajectory_mean") == pytest.approx((first + per_token[2].sum() / 7) / 2, rel=1e-6)


def test_weights_by_hand():
    rows, trajectories = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([9, 9, 4])
    assert token_weights("token_mean", rows, trajectories).tolist() == pytest.approx([1 / 6] * 6)
    assert token_weights("row_mean", rows, trajectories).tolist() == pytest.approx([1 / 9] * 3 + [1 / 3] + [1 / 6] * 2)
    assert token_weights("trajectory_mean", rows, trajectories).tolist() == pytest.approx([1 / 8] * 4 + [1 / 4] * 2)
    assert token_weights("token_mean", rows[:0], trajectories).shape == (0,)
    with pytest.raises(ValueError, match="aggregation 'mean'"):
        token_weights("mean", rows, trajectories)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=12))
def test_weights_sum_to_one_and_weigh_units_alike(shape):
    rows = torch.repeat_interleave(torch.arange(len(shape)), torch.tensor([n for n, _ in shape]))
    trajectory = torch.tensor([e for _, e in shape])
    for mode, unit in (
        ("token_mean", torch.arange(len(rows))),
        ("row_mean", rows),
        ("trajectory_mean", trajectory[rows]),
    ):
        weights = token_weights(mode, rows, trajectory)
        sums = [weights[unit == u].sum().item() for u in unit.unique()]
        assert sums == pytest.approx([1 / len(sums)] * len(sums), rel=1e-5)


def test_kl_by_hand_and_zero_at_step_zero():
    policy, reference = t(math.log(0.5)), t(math.log(0.25))  # d = -log 2
    assert kl_estimate(policy, reference, "k1").item() == pytest.approx(math.log(2))
    assert kl_estimate(policy, reference, "k2").item() == pytest.approx(math.log(2) ** 2 / 2)
    assert kl_estimate(policy, reference, "k3").item() == pytest.approx(0.5 + math.log(2) - 1)
    same = -torch.rand(100)
    for k in ("k1", "k2", "k3"):
        assert (kl_estimate(same, same.clone(), k) == 0).all()
    with pytest.raises(ValueError, match="k4"):
        kl_estimate(policy, reference, "k4")


def test_k1_and_k3_are_unbiased_in_expectation():
    """Sum over the vocabulary of p * estimate equals the closed-form KL for k1 and k3, and not for k2."""
    p, q = torch.softmax(t(0.3, -1.0, 2.0), 0), torch.softmax(t(1.0, 0.1, 0.4), 0)
    exact = float((p * (p / q).log()).sum())
    means = {k: float((p * kl_estimate(p.log(), q.log(), k)).sum()) for k in ("k1", "k2", "k3")}
    assert means["k1"] == pytest.approx(exact) and means["k3"] == pytest.approx(exact)
    assert abs(means["k2"] - exact) > 1e-3


def test_small_differences_are_not_lost():
    d = 1e-4
    assert kl_estimate(torch.tensor([-1.0 - d]), torch.tensor([-1.0]), "k3").item() == pytest.approx(d * d / 2, rel=0.1)


@pytest.mark.parametrize("mode", ["token_mean", "row_mean", "trajectory_mean"])
def test_gradient_equals_finite_differences(mode):
    torch.manual_seed(0)
    old = torch.randn(9, dtype=torch.float64) * 0.1 - 1
    reference = torch.randn(9, dtype=torch.float64) * 0.1 - 1
    advantage = t(1, 1, 1, -2, -2, 0.5, 0.5, 0.5, 0.5)
    rows, trajectory = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2]), torch.tensor([0, 1, 1])

    def loss(logp):
        token, _ = clipped_policy_loss(logp, old, advantage, 0.2, 0.28)
        return ((token + 0.3 * kl_estimate(logp, reference)) * token_weights(mode, rows, trajectory).double()).sum()

    logp = (old + torch.randn(9, dtype=torch.float64) * 0.05).requires_grad_()
    loss(logp).backward()
    for i in range(9):
        step = torch.zeros(9, dtype=torch.float64)
        step[i] = 1e-6
        with torch.no_grad():
            slope = (loss(logp + step) - loss(logp - step)) / 2e-6
        assert logp.grad[i].item() == pytest.approx(slope.item(), rel=1e-5, abs=1e-9)


def test_on_policy_gradient_is_minus_advantage():
    """At ratio 1 the gradient is REINFORCE's: -A per token; clipped tokens get none; constants get none."""
    logp = t(-1.0, -2.0, -0.5).requires_grad_()
    old, advantage = t(-1.0, -2.0, -1.5).requires_grad_(), t(2.0, -3.0, 1.0).requires_grad_()
    clipped_policy_loss(logp, old, advantage, 0.2, 0.2)[0].sum().backward()
    assert logp.grad.tolist() == [-2.0, 3.0, 0.0] and old.grad is None and advantage.grad is None


def test_entropy_is_a_bonus():
    assert entropy_loss(t(0.7), 0.1).item() == pytest.approx(-0.07)
