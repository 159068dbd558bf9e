"""The loop with rollouts from a server: it gets each version of the weights, and stale ones do not pass."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1] / "rollout"))

from vllm_stub import Stub, serving
from worlds import PROCESSOR, RL, MemoryLog, World, make_learner, make_policy, run_rl

from guiderail.models.frames import FrameStore
from guiderail.models.tiny import save
from guiderail.params import Model
from guiderail.params_collection import Collection
from guiderail.params_engine import Engine
from guiderail.rollout.producer import Producer
from guiderail.rollout.schedule import Schedule
from guiderail.rollout.versions import Versions
from guiderail.rollout.wave import Cost, Wave, shown
from guiderail.rollout.workers import ThreadWorker
from guiderail.train import rl as loop
from guiderail.train.gates import GateError
from guiderail.train.optim import inject_lora
from guiderail.train.sampler import HfSampler, open_sampler
from guiderail.train.start import Start

RUN = RL.model_copy(update={"iterations": 3})


class Served(Stub):
    """Samples with a policy of its own, whose adapter is the one loaded last (never, when `stuck`)."""

    def __init__(self, root: Path, frames, stuck: bool = False) -> None:
        policy = make_policy()
        inject_lora(policy.model, RUN.lora, 7)
        super().__init__(policy, frames, root)
        self.stuck = stuck

    def load(self, body):
        status = super().load(body)
        tensors = load_file(Path(body["lora_path"]) / "adapter_model.safetensors")
        with torch.no_grad():
            for name, p in self.policy.model.named_parameters():
                if ".lora_" in name and not self.stuck:
                    p.copy_(tensors[f"base_model.model.{name.removesuffix('.default.weight')}.weight"])
        return status


class ServedWorld(World):
    """The toy world with rollouts from a sampler."""

    def collect(self, tasks, iteration, round=0):
        with self.sampler.sampling(self.frames, iteration) as self.engine:
            return super().collect(tasks, iteration, round)


def ahead(world, versions, rl):
    """A worker's thread that asks the server for the version it is told, while another one is in training."""

    def play(order, check):
        twin = ServedWorld(world.policy, rl)
        twin.frames, twin.sampler = world.frames, replace(world.sampler, weights=versions.get(order.version))
        episodes, _ = twin.collect(twin.tasks(order.wave), order.version)
        frames = FrameStore(None)
        for sha in shown(episodes):
            frames.put(world.frames.get_png(sha))
        return Wave(order, episodes, frames, Cost())

    return lambda k: ThreadWorker(play)


def test_rollouts_ahead_are_of_the_version_they_say(tmp_path):
    rl = RUN.model_copy(update={"importance_cap": 2.0, "collection": Collection(mode="async")})
    save(make_policy().model, PROCESSOR, str(tmp_path / "base"))
    policy = make_policy()
    learner, log = make_learner(policy, rl), MemoryLog()
    world, versions = ServedWorld(policy, rl), Versions(tmp_path / "versions")
    opened = Start(policy, learner, tmp_path / "base", tmp_path / "base")
    limits = {"workers": 1, "slots": 4, "iterations": 3, "max_staleness": 1, "restarts": 0}
    with (
        serving(Served(tmp_path / "base", world.frames)) as stub,
        open_sampler(
            Engine(kind="vllm"), opened, rl, Model(), images=1, work=tmp_path / "work", url=stub.url
        ) as world.sampler,
        Producer(
            ahead(world, versions, rl), versions=versions, schedule=Schedule(tmp_path / "s", {"phase": 0}), **limits
        ) as made,
    ):
        loop.train(
            policy, learner, made, rl, seed=0, work=tmp_path / "state", log=log, producer=made,
            on_scored=lambda i, rows: time.sleep(0.1),
        )  # fmt: skip
    named = [b["new_version"] for p, b in stub.calls if p == "/update_weight_version"]
    taken = made.schedule.since(0)
    assert named == [str(v) for v in sorted({t.version for t in taken})]
    assert [log.rows[i]["logprob_gap_max"] < 1e-4 for i in range(3)] == [True] * 3
    assert taken[1].version == 0  # begun before the first update had ended


def train(tmp_path, stuck=False):
    save(make_policy().model, PROCESSOR, str(tmp_path / "base"))
    policy = make_policy()
    learner, log = make_learner(policy, RUN), MemoryLog()
    world = ServedWorld(policy, RUN)
    opened = Start(policy, learner, tmp_path / "base", tmp_path / "base")
    with (
        serving(Served(tmp_path / "base", world.frames, stuck)) as stub,
        open_sampler(
            Engine(kind="vllm"), opened, RUN, Model(), images=1, work=tmp_path / "work", url=stub.url
        ) as world.sampler,
    ):
        loop.train(policy, learner, world, RUN, seed=0, work=tmp_path / "state", log=log)
    return log, stub


def test_every_update_reaches_the_server(tmp_path):
    log, stub = train(tmp_path)
    assert [log.rows[i]["logprob_gap_max"] < 1e-4 for i in range(3)] == [True] * 3
    named = [b["new_version"] for p, b in stub.calls if p == "/update_weight_version"]
    assert named == ["0", "1", "2"]
    assert len(stub.models) == 2  # the base and the last adapter
    _, own, _, _ = run_rl(tmp_path / "hf", RUN)  # the stub draws as hf does, so training is the same but for rounding
    assert [log.rows[i]["success"] for i in range(3)] == [own.rows[i]["success"] for i in range(3)]
    assert log.rows[2]["entropy"] == pytest.approx(own.rows[2]["entropy"], abs=1e-2)


def test_a_server_stuck_on_old_weights_is_refused_by_the_gate(tmp_path):
    with pytest.raises(GateError, match="the trainer does not score what the policy sampled"):
        train(tmp_path, stuck=True)


def test_hf_is_the_default_and_starts_nothing(tmp_path):
    policy = make_policy()
    opened = Start(policy, make_learner(policy, RUN), tmp_path, tmp_path)
    with open_sampler(Engine(), opened, RUN, Model(), images=1, work=tmp_path) as found:
        assert isinstance(found, HfSampler) and not list(tmp_path.iterdir())
