"""The token loss of each recipe against its objective written out, on rows with several completions."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from guiderail.algorithms.grpo import group_advantages
from guiderail.models.rows import ChunkRow
from guiderail.params import Params
from guiderail.params_train import Rl
from guiderail.train.batch import Batch
from guiderail.train.objective import Constants, sequences, token_loss

ROWS = [
    ChunkRow(np.arange(20), (), ((3, 5), (9, 12)), np.zeros(5, np.float32), (0, 1)),
    ChunkRow(np.arange(9), (), ((4, 8),), np.zeros(4, np.float32), (0,)),
]
SPANS = [(0, 2), (2, 5), (5, 9)]  # of the nine sampled tokens


def numbers(seed=0):
    g = torch.Generator().manual_seed(seed)
    behaviour, proximal, reference, move = (torch.randn(9, generator=g, dtype=torch.float64) * 0.3 for _ in range(4))
    advantage = torch.tensor([1.0] * 5 + [-2.0] * 4, dtype=torch.float64)
    return behaviour - 1, proximal - 1, reference - 1, move - 1, advantage


def test_completions_of_rows_with_several():
    assert sequences(ROWS).tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]


def test_every_token_has_the_advantage_of_its_row_or_its_step():
    groups = group_advantages([0, 1], [0, 0], [True, True])
    batch = Batch(ROWS, ["a", "b"], np.array([1.0, -2.0]), [0, 1], np.array([0.0, 1.0]), groups, [0, 0])
    assert batch.token_advantage([1, 0]).tolist() == [-2.0] * 4 + [1.0] * 5
    steps = dataclasses.replace(batch, by_step=[np.array([0.5, -0.5]), np.array([3.0])])
    assert steps.token_advantage([0, 1]).tolist() == [0.5] * 2 + [-0.5] * 3 + [3.0] * 4


def test_gspo_has_one_ratio_per_completion():
    behaviour, _, _, logp, advantage = numbers()
    rl = Params().rl_for("gspo")
    loss, _ = token_loss(logp, None, Constants(behaviour, None, None, advantage), ROWS, rl)
    for a, b in SPANS:
        s = math.exp(float((logp - behaviour)[a:b].mean()))
        one = -min(s * float(advantage[a]), min(max(s, 1 - 3e-4), 1 + 4e-4) * float(advantage[a]))
        assert loss[a:b].tolist() == pytest.approx([one] * (b - a), abs=1e-12)


def test_importance_weights_correct_the_rollout_and_the_clip_bounds_the_update():
    behaviour, proximal, _, logp, advantage = numbers(1)
    rl = Rl(importance_cap=1.1)
    loss, _ = token_loss(logp, None, Constants(behaviour, proximal, None, advantage), ROWS, rl)
    rho, w = (logp - proximal).exp(), (proximal - behaviour).exp().clamp(max=1.1)
    assert loss.tolist() == pytest.approx(
        (-w * torch.min(rho * advantage, rho.clamp(0.8, 1.28) * advantage)).tolist(), abs=1e-12
    )
    same, _ = token_loss(logp, None, Constants(behaviour, behaviour, None, advantage), ROWS, rl)
    plain, _ = token_loss(logp, None, Constants(behaviour, None, None, advantage), ROWS, Rl())
    assert torch.equal(same, plain)


@pytest.mark.parametrize(("estimator", "clamp"), [("k1", 0.0), ("k2", 0.0), ("k3", 0.05)])
def test_kl_and_entropy_are_added(estimator, clamp):
    behaviour, _, reference, logp, advantage = numbers(2)
    rl = Rl(kl_coef=0.3, kl_estimator=estimator, kl_clamp=clamp, entropy_coef=0.1)
    entropy, d = logp.abs(), reference - logp
    kl = {"k1": -d, "k2": d * d / 2, "k3": (d.exp() - d - 1).clamp(-0.05, 0.05)}[estimator]
    plain, _ = token_loss(logp, None, Constants(behaviour, None, None, advantage), ROWS, Rl())
    loss, _ = token_loss(logp, entropy, Constants(behaviour, None, reference, advantage), ROWS, rl)
    assert (loss - plain).tolist() == pytest.approx((0.3 * kl - 0.1 * entropy).tolist(), abs=1e-12)


def test_dual_clip_reaches_the_loss():
    behaviour, _, _, _, advantage = numbers(3)
    loss, clipped = token_loss(
        behaviour + 2, None, Constants(behaviour, None, None, advantage), ROWS, Rl(dual_clip=3.0)
    )
    assert loss[5:].tolist() == [6.0] * 4 and clipped[5:].all()  # 3 * 2, not e^2 * 2


def test_recipes_that_ship():
    recipes = {name: Params().rl_for(name) for name in Params().recipes}
    assert (recipes["rloo"].baseline, recipes["rloo"].scale) == ("leave_one_out", "none")
    assert (recipes["dr_grpo"].aggregation, recipes["dr_grpo"].scale) == ("constant", "none")
    assert recipes["gspo"].ratio == "sequence" and recipes["dapo"].filter_rounds > 0
    assert recipes["grpo"] == Params().rl
