"""Losses against hand-worked numbers, published formulas written again in numpy, and finite differences."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guiderail.algorithms.kl import kl_estimate
from guiderail.algorithms.losses import (
    clipped_policy_loss,
    clipped_surrogate,
    entropy_loss,
    importance_ratio,
    token_weights,
    truncated_importance,
)


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


@pytest.mark.parametrize(
    ("adv", "ratio", "loss", "clipped"),
    [(1, 1.5, -1.2, True), (1, 0.5, -0.5, False), (-1, 0.5, 0.8, True), (-1, 2, 2.0, False), (-1, 5, 3.0, True)],
)
def test_dual_clip_by_hand(adv, ratio, loss, clipped):
    """low = high = 0.2, c = 3; a bad action five times likelier costs 3, and its gradient is gone."""
    rho = t(ratio).requires_grad_()
    out, mark = clipped_surrogate(rho, t(adv), 0.2, 0.2, 3.0)
    out.sum().backward()
    assert out.item() == pytest.approx(loss) and mark.item() is clipped
    assert rho.grad.item() == (0.0 if clipped else -adv)
    if adv > 0:
        assert clipped_surrogate(rho, t(adv), 0.2, 0.2)[0].item() == out.item()


def test_dual_clip_must_exceed_one():
    with pytest.raises(ValueError, match="dual_clip"):
        clipped_surrogate(t(1.0), t(1.0), 0.2, 0.2, 0.9)


def test_sequence_ratio_by_hand():
    """Two completions: log-ratios 0.1, 0.3 (mean 0.2) and -0.5."""
    logp, old = t(-0.9, -0.7, -1.5).requires_grad_(), t(-1.0, -1.0, -1.0)
    rho = importance_ratio(logp, old, "sequence", torch.tensor([0, 0, 1]))
    assert rho.tolist() == pytest.approx([math.exp(0.2), math.exp(0.2), math.exp(-0.5)])
    (rho[:2].sum() / 2).backward()  # one completion's loss: its gradient is shared by its tokens
    assert logp.grad.tolist() == pytest.approx([math.exp(0.2) / 2, math.exp(0.2) / 2, 0.0])
    assert importance_ratio(logp, old).tolist() == pytest.approx([math.exp(0.1), math.exp(0.3), math.exp(-0.5)])
    with pytest.raises(ValueError, match="needs the sequence"):
        importance_ratio(logp, old, "sequence")
    with pytest.raises(ValueError, match="ratio 'row'"):
        importance_ratio(logp, old, "row")


def test_sequence_ratio_equals_gspo_in_numpy():
    """GSPO's objective: mean over completions of min(s A, clip(s) A), s = exp(mean log-ratio)."""
    rng = np.random.default_rng(5)
    lengths, adv = [3, 1, 6, 2], rng.normal(size=4)
    rows = np.repeat(np.arange(4), lengths)
    new, old = rng.normal(size=12), rng.normal(size=12)
    s = np.array([np.exp((new - old)[rows == i].mean()) for i in range(4)])
    wanted = -np.minimum(s * adv, np.clip(s, 1 - 3e-4, 1 + 4e-4) * adv).mean()
    index = torch.tensor(rows)
    rho = importance_ratio(torch.tensor(new), torch.tensor(old), "sequence", index)
    loss, _ = clipped_surrogate(rho, torch.tensor(adv[rows]), 3e-4, 4e-4)
    weights = token_weights("row_mean", index, torch.arange(4)).double()
    assert float((loss * weights).sum()) == pytest.approx(wanted, rel=1e-6)


def test_log_ratio_is_bounded():
    assert importance_ratio(t(0.0), t(-100.0)).item() == pytest.approx(math.exp(20))
    assert importance_ratio(t(-100.0), t(0.0)).item() == pytest.approx(math.exp(-20))


def test_truncated_importance_by_hand():
    proximal = t(-1.0, -1.0, -3.0).requires_grad_()
    got = truncated_importance(proximal, t(-1.0, -2.0, -1.0), 2.0)
    assert got.tolist() == pytest.approx([1.0, 2.0, math.exp(-2)]) and not got.requires_grad
    same = -torch.rand(50)
    assert (truncated_importance(same, same.clone(), 1.0) == 1).all()


def test_constant_weights_by_hand():
    """Dr. GRPO: every token 1 / (episodes * budget), however long its episode."""
    rows, trajectories = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([9, 9, 4])
    assert token_weights("constant", rows, trajectories, 10).tolist() == pytest.approx([1 / 20] * 6)
    with pytest.raises(ValueError, match="budget"):
        token_weights("constant", rows, trajectories)


@pytest.mark.parametrize(
    ("policy", "reference", "value"),
    [(-1.0, -1.5, 0.106531), (-2.0, -1.0, 0.718282), (-6.0, -1.0, 10.0), (-50.0, 0.0, 10.0)],
)
def test_clamped_k3_by_hand(policy, reference, value):
    assert kl_estimate(t(policy), t(reference), "k3", clamp=10.0).item() == pytest.approx(value, abs=1e-6)
    if value < 10:
        assert kl_estimate(t(policy), t(reference), "k3").item() == pytest.approx(value, abs=1e-6)


def test_clamps_of_the_other_estimators_and_their_gradients():
    assert kl_estimate(t(-6.0), t(-1.0)).item() == pytest.approx(142.41, abs=5e-3)  # unclamped
    assert kl_estimate(t(0.0), t(-30.0), "k1", clamp=25.0).item() == 20.0  # d is clamped first
    assert kl_estimate(t(-30.0), t(0.0), "k1", clamp=10.0).item() == -10.0
    assert kl_estimate(t(0.0), t(-3.0), "k2", clamp=4.0).item() == 4.0
    logp = t(-6.0, -1.0).requires_grad_()
    kl_estimate(logp, t(-1.0, -1.5), "k3", clamp=10.0).sum().backward()
    assert logp.grad[0].item() == 0.0 and logp.grad[1].item() == pytest.approx(1 - math.exp(-0.5))


def test_k2_has_the_gradient_of_the_kl_and_k1_none():
    """Expected over the vocabulary with the sampling policy held fixed, as a loss is."""
    logits = t(0.3, -1.0, 2.0).requires_grad_()
    q = torch.softmax(t(1.0, 0.1, 0.4), 0).log()
    logp = torch.log_softmax(logits, 0)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - q)).sum(), logits, retain_graph=True)
    grads = {
        k: torch.autograd.grad((logp.exp().detach() * kl_estimate(logp, q, k)).sum(), logits, retain_graph=True)[0]
        for k in ("k1", "k2", "k3")
    }
    assert grads["k2"].tolist() == pytest.approx(exact.tolist()) and grads["k1"].abs().max() < 1e-12
    assert (grads["k3"] - exact).abs().max() > 1e-3
