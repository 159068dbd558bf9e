"""The GRPO loop against kills, signals, infrastructure errors and independent arithmetic."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from worlds import RL, MemoryLog, World, digest, make_learner, make_policy, run_rl

from guiderail.algorithms.grpo import group_advantages
from guiderail.checkpoints.save import load_state
from guiderail.curves import Curves
from guiderail.train import rl as rl_loop
from guiderail.train.batch import make_batch, minibatches
from guiderail.train.gates import GateError
from guiderail.train.metrics import Shifted
from guiderail.train.stop import Stopped

TIMES = ("_s", "_per_s")


def timeless(log: MemoryLog):
    return {i: {k: v for k, v in row.items() if not k.endswith(TIMES)} for i, row in log.rows.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    return run_rl(tmp_path_factory.mktemp("whole"))


def test_learns_and_logs(whole):
    _, log, totals, _ = whole
    assert sorted(log.rows) == [0, 1, 2, 3]
    wanted = {
        "success", "reward_mean", "reward_std", "advantage_spread", "groups_dropped", "rows_kept", "parse_failures",
        "infra_errors", "entropy", "clip_fraction", "grad_norm", "logprob_gap_max", "logprob_gap_mean", "lr", "loss",
        "env_steps_per_s", "tokens_per_s", "collect_s", "train_s", "episode_steps", "success/t0", "success/t1",
    }  # fmt: skip
    assert wanted <= log.rows[0].keys() and "kl" not in log.rows[0]
    assert all(math.isfinite(v) for v in log.rows[0].values())
    assert (totals.iterations, totals.episodes, totals.env_steps) == (4, 64, 64)
    assert len(totals.trained_on) == 16


def test_success_climbs(tmp_path):
    """An even first byte is rewarded: from chance to well above it (0.56 -> 0.89 when written)."""
    up = {"iterations": 12, "group_size": 8, "mode": "full", "lr": 5e-3, "batch": 16, "micro_batch": 32, "epochs": 2}
    _, log, _, _ = run_rl(tmp_path, RL.model_copy(update=up))
    success = [r["success"] for r in log.rows.values()]
    assert np.mean(success[-3:]) > np.mean(success[:3]) + 0.15, success
    assert log.rows[0]["logprob_gap_max"] < 1e-4


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_killed_and_resumed_is_bitwise_the_same(tmp_path, mode):
    rl = RL.model_copy(update={"mode": mode, "save_every": 2, "epochs": 2})
    one, log, _, _ = run_rl(tmp_path / "a", rl)

    def fail(iteration):
        if iteration == 3:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        run_rl(tmp_path / "b", rl, before=fail)
    assert load_state(tmp_path / "b").step == 2
    two, rest, totals, _ = run_rl(tmp_path / "b", rl)
    assert two == one and totals.iterations == 4
    assert timeless(rest) == {i: timeless(log)[i] for i in (2, 3)}


def test_sigkill_in_a_process_of_its_own(tmp_path, whole):
    command = [sys.executable, str(Path(__file__).with_name("worlds.py")), "rl", str(tmp_path)]
    killed = subprocess.run([*command, "2"], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    again = subprocess.run([*command, "-1"], capture_output=True, text=True, check=True)
    assert json.loads(again.stdout.splitlines()[-1])["digest"] == whole[0]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_rollouts_stops_at_once_and_loses_nothing(tmp_path, whole, signum):
    rl = RL.model_copy(update={"save_every": 4})

    def stop(iteration):
        if iteration == 2:
            os.kill(os.getpid(), signum)
            raise AssertionError("went on collecting")

    before = signal.getsignal(signum)
    with pytest.raises(Stopped) as e:
        run_rl(tmp_path, rl, before=stop)
    assert e.value.code == 128 + signum and signal.getsignal(signum) is before
    assert load_state(tmp_path).step == 2
    assert run_rl(tmp_path, rl)[0] == whole[0]


def test_finished_run_is_not_trained_again(tmp_path, whole):
    run_rl(tmp_path)

    def refuse(iteration):
        raise AssertionError(f"collected iteration {iteration} of a finished run")

    assert run_rl(tmp_path, before=refuse)[0] == whole[0]


def test_the_curves_of_a_later_phase_outlive_a_kill(tmp_path):
    """A resumed stage walks through its finished phases again: nothing of theirs is to be written anew."""
    rl = RL.model_copy(update={"iterations": 2, "groups": 2, "epochs": 1})
    curves = Curves(tmp_path / "curves.jsonl")

    def phases(before=lambda i: None):
        for number in range(2):
            policy = make_policy()
            rl_loop.train(
                policy,
                make_learner(policy, rl),
                World(policy, rl, before=before if number else lambda i: None),
                rl,
                seed=0,
                work=tmp_path / f"phase{number}",
                log=Shifted(SimpleNamespace(log=curves.append, rewind=curves.rewind), 2 * number),
            )

    def fail(iteration):
        if iteration == 1:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        phases(fail)
    first = curves.rows()
    assert [r["step"] for r in first] == [0, 1, 2]
    phases()
    assert [r["step"] for r in curves.rows()] == [0, 1, 2, 3]
    assert curves.rows()[:2] == first[:2]


def test_infra_errors_are_counted_and_never_trained_on(tmp_path):
    policy = make_policy()
    world = World(policy, RL, broken={0, 1, 2, 5})  # group 0 keeps one member, group 1 three
    episodes, _ = world.collect(world.tasks(0), 0)
    batch = make_batch(episodes, RL)
    assert not {0, 1, 2, 3, 5} & set(batch.episode)
    assert np.isnan(batch.rewards[[0, 1, 2, 5]]).all()
    rewards = [e.outcome.reward or 0.0 for e in episodes]
    alone = group_advantages([rewards[i] for i in (4, 6, 7)], ["g"] * 3, [True] * 3)
    found = dict(zip(batch.episode, batch.advantage, strict=True))
    assert [found.get(i, 0.0) for i in (4, 6, 7)] == pytest.approx(alone.values.tolist())
    _, log, totals, _ = run_rl(tmp_path, broken={0, 1, 2, 5})
    assert log.rows[0]["infra_errors"] == 4 and totals.infra_errors == 16


def test_iteration_without_signal_takes_no_step_and_logs_no_zeros(tmp_path):
    """All siblings lost but one per group: nothing was measured twice, so no entropy, gap or loss is made up."""
    one, two = (run_rl(tmp_path / n, RL, broken={i for i in range(16) if i % 4}) for n in "ab")
    _, log, totals, _ = one
    assert totals.optimizer_steps == 0 and log.rows[0]["groups_dropped"] == 4 and log.rows[0]["coverage"] == 0.25
    assert not {"entropy", "logprob_gap_max", "loss", "kl"} & log.rows[0].keys()
    assert one[0] == two[0] == digest(make_learner(make_policy(), RL).named)


def test_kl_is_zero_at_step_zero_and_grows(tmp_path):
    rl = RL.model_copy(update={"kl_coef": 0.1})
    reference = make_policy()
    start = digest(dict(reference.model.named_parameters()))
    _, log, _, _ = run_rl(tmp_path, rl, reference=reference)
    assert log.rows[0]["kl"] == 0.0 and log.rows[3]["kl"] > 0.0
    assert digest(dict(reference.model.named_parameters())) == start


def test_kl_starting_from_an_adapter_is_zero_against_its_copy_not_against_the_base(tmp_path):
    """The reference is the starting adapter; the base with its adapter switched off would give a KL above zero
    (I-01)."""
    policy, twin, base = make_policy(), make_policy(), make_policy()
    for p in (policy, twin):
        named = make_learner(p, RL).named
        with torch.no_grad():
            for n, x in named.items():
                if "lora_B" in n:
                    x.copy_(torch.arange(x.numel()).view_as(x).sin() * 0.1)
    world = World(policy, RL)
    batch = make_batch(world.collect(world.tasks(0), 0)[0], RL)
    assert rl_loop.score(policy, batch, world.frames, RL, twin).kl == 0.0
    assert rl_loop.score(policy, batch, world.frames, RL, base).kl > 1e-4


def test_reference_and_kl_coef_go_together(tmp_path):
    with pytest.raises(ValueError, match="kl_coef"):
        run_rl(tmp_path, RL.model_copy(update={"kl_coef": 0.1}))
    with pytest.raises(ValueError, match="kl_coef"):
        run_rl(tmp_path, RL, reference=make_policy())


def test_rollouts_of_other_weights_are_refused(tmp_path):
    policy, other = make_policy(), make_policy(seed=1)
    learner, world = make_learner(policy, RL), World(other, RL)
    with pytest.raises(GateError, match=r"row toy/t\d/\d+/0#\d chunk 0: sampled token"):
        rl_loop.train(policy, learner, world, RL, seed=0, work=tmp_path, log=MemoryLog())


def test_wrong_temperature_is_refused(tmp_path):
    policy = make_policy()
    learner = make_learner(policy, RL)

    class Cold(World):
        def collect(self, tasks, iteration, round=0):
            episodes, frames = super().collect(tasks, iteration, round)
            cool = [tuple(dataclasses.replace(r, temperature=RL.temperature / 2) for r in e.rows) for e in episodes]
            return [dataclasses.replace(e, rows=r) for e, r in zip(episodes, cool, strict=True)], frames

    with pytest.raises(GateError, match="at rollout"):
        rl_loop.train(policy, learner, Cold(policy, RL), RL, seed=0, work=tmp_path, log=MemoryLog())


def test_update_equals_one_full_batch_gradient():
    """Micro-batches of 2 or all at once: the same gradient; and equal to autograd over a loss written out here
    (I-03)."""
    rl = RL.model_copy(update={"mode": "full", "entropy_coef": 0.01, "kl_coef": 0.2, "batch": 64})
    for aggregation in ("token_mean", "row_mean", "trajectory_mean"):
        grads = []
        for micro in (2, 64, 0):
            policy, reference = make_policy(), make_policy(seed=0)
            with torch.no_grad():
                reference.model.lm_head.weight.mul_(1.05)
            learner, world = make_learner(policy, rl), World(policy, rl)
            batch = make_batch(world.collect(world.tasks(0), 0)[0], rl)
            index, kept = list(range(len(batch.rows))), {}
            learner.step = lambda lr, named=learner.named, kept=kept: (
                kept.update({n: x.grad.clone() for n, x in named.items() if x.grad is not None}) or 0.0
            )
            r = rl.model_copy(update={"micro_batch": micro or 64, "aggregation": aggregation})
            scored = rl_loop.score(policy, batch, world.frames, r, reference)
            if micro:
                rl_loop.update(policy, learner, batch, index, scored, world.frames, r, 1e-3)
            else:
                by_hand(policy, batch, scored, world.frames, r).backward()
                learner.step(0.0)
            grads.append(kept)
        for other in grads[1:]:
            assert other.keys() == grads[0].keys()
            for n, g in grads[0].items():
                assert torch.allclose(g, other[n], rtol=1e-3, atol=1e-6), (aggregation, n, (g - other[n]).abs().max())


def by_hand(policy, batch, scored, frames, rl):
    """The objective row by row, straight from the formulas."""
    per_row = []
    for i, row in enumerate(batch.rows):
        out = policy.logprobs([row], frames, temperature=None, grad=True, entropy=True)
        old, ref, a = torch.from_numpy(row.logprobs), scored.reference[i], batch.advantage[i]
        rho = (out.logp - old).exp()
        pg = -torch.min(rho * a, torch.clip(rho, 1 - rl.clip_low, 1 + rl.clip_high) * a)
        kl = (ref - out.logp).exp() - (ref - out.logp) - 1
        per_row.append(pg + rl.kl_coef * kl - rl.entropy_coef * out.entropy)
    if rl.aggregation == "token_mean":
        return torch.cat(per_row).mean()
    return torch.stack([r.mean() for r in per_row]).mean()  # one row per episode here: row and trajectory agree


def test_packed_rows_take_the_same_step(tmp_path, whole):
    """Same rollouts, one optimiser step per iteration: loss and gradient of the packed layout are the padded one's."""
    up = {"batch": 1000, "micro_batch": 7, "iterations": 1, "kl_coef": 0.1, "entropy_coef": 0.01}
    logs = []
    for layout in ("padded", "packed"):
        rl = RL.model_copy(update={**up, "layout": layout})
        _, log, _, _ = run_rl(tmp_path / layout, rl, reference=make_policy())
        logs.append(log.rows[0])
    assert logs[1]["logprob_gap_max"] < 1e-4 and logs[0]["rows_kept"] > 8
    for key in ("loss", "grad_norm", "entropy", "kl"):
        assert logs[1][key] == pytest.approx(logs[0][key], rel=1e-4, abs=1e-6), key


def test_packed_mini_batches_keep_siblings_together(tmp_path):
    world = World(make_policy(), RL)
    episodes, _ = world.collect(world.tasks(0), 0)
    batch = make_batch(episodes, RL)
    assert batch.units("padded") is batch.episode
    assert [episodes[i].group for i in batch.episode] == [episodes[RL.group_size * g].group for g in batch.group]
    for index in minibatches(batch.units("packed"), 3, "t"):
        inside = {batch.group[i] for i in index}
        assert all(i in index for i in range(len(batch.rows)) if batch.group[i] in inside)
