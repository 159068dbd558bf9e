"""Two processes train as one: gradients, losses, and states that go from one number of processes to another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_run import SEEN, SMALL, drifted
from rank_run import run as run_here
from safetensors.torch import load_file
from worlds import World, make_learner, make_policy, run_rl

from guiderail.checkpoints.save import StateError
from guiderail.checkpoints.sharded import newest_sharded, sharded_weights
from guiderail.services import free_port
from guiderail.train import rl as loop
from guiderail.train.batch import make_batch

ALL = {"mode": "full", "kl_coef": 0.2, "entropy_coef": 0.01, "aggregation": "trajectory_mean", "grad_clip": 1e6}
GRADIENTS = {
    "lora": {"rl": {}},  # 8 rows in micro-batches of 2 over 2 processes; clipped at 1.0
    "full": {"rl": {**ALL, "micro_batch": 3}},
    "vision": {"rl": {**ALL, "micro_batch": 7}, "train_vision": True},
}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """(folder, what two processes saw). Before: one process began run "forth"; after: it ends run "back"."""
    work = tmp_path_factory.mktemp("two")
    port = str(free_port())
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("gloo")
    try:
        seen = {"forth-begun": run_here([["train", "forth", {"rl": {}, "end": 1}]], work)["forth"]}
        jobs = [["gradients", name, options] for name, options in GRADIENTS.items()]
        ends = {"whole": -1, "back": 1, "forth": -1}
        jobs += [["train", name, {"rl": {}, "end": end}] for name, end in ends.items()]
        script = Path(__file__).with_name("rank_run.py")
        asked = [[sys.executable, script, str(r), "2", str(free_port()), work, json.dumps(jobs)] for r in range(2)]
        asked[1][4] = asked[0][4]
        ranks = [subprocess.Popen(a, stdout=subprocess.PIPE, text=True) for a in asked]
        printed = [p.communicate(timeout=800)[0] for p in ranks]
        assert [p.returncode for p in ranks] == [0, 0]
        seen |= json.loads(printed[0].splitlines()[-1])
        seen["back-ended"] = run_here([["train", "back", {"rl": {}, "end": -1}]], work)["back"]
    finally:
        dist.destroy_process_group()
    return work, seen


def alone(rl, train_vision=False):
    """(gradients before clipping, what the update says, weights after) of one process without a group."""
    policy, world = make_policy(), World(make_policy(), rl)
    learner = make_learner(policy, rl, train_vision)
    batch = make_batch(world.collect(world.tasks(0), 0)[0], rl)
    reference, kept, clip = drifted(make_policy()) if rl.kl_coef else None, {}, learner.clip_gradients

    def keep():
        norm = clip()
        kept.update({n: x.grad.clone() for n, x in learner.named.items()})
        return norm

    learner.clip_gradients = keep
    scored = loop.score(policy, batch, world.frames, rl, reference)
    told = loop.update(policy, learner, batch, list(range(len(batch.rows))), scored, world.frames, rl, 1e-3)
    return kept, told, learner.weights()


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_two_processes_are_those_of_one(two, name):
    """Rows dealt to processes, each token weighted as in the whole mini-batch; a process without a row runs an empty
    one (rows are no multiple of micro-batches)."""
    work, seen = two
    options = GRADIENTS[name]
    kept, told, after = alone(SMALL.model_copy(update=options["rl"]), options.get("train_vision", False))
    found = load_file(work / name)
    assert {n.removeprefix("g.") for n in found if n.startswith("g.")} == kept.keys()
    for n, g in kept.items():
        assert torch.allclose(found[f"g.{n}"], g, rtol=2e-3, atol=2e-6), (n, (found[f"g.{n}"] - g).abs().max())
        assert torch.allclose(found[f"w.{n}"], after[n], rtol=1e-3, atol=2e-5), n
    assert seen[name] == pytest.approx(told, rel=1e-4, abs=1e-6)
    assert told["grad_norm"] > 0.1


def same(rows, other):
    assert rows.keys() == other.keys()
    for i in rows:
        assert rows[i] == pytest.approx(other[i], rel=2e-3, abs=1e-5), i


def test_losses_are_those_of_the_single_process_loop(two, tmp_path):
    _, log, totals, _ = run_rl(tmp_path, SMALL)
    assert totals.optimizer_steps > 3
    same(two[1]["whole"], {str(i): {k: row.get(k) for k in SEEN} for i, row in log.rows.items()})


def test_a_state_of_two_processes_goes_on_in_one_with_the_same_losses(two):
    _, seen = two
    assert list(seen["back"]) == ["0"] and list(seen["back-ended"]) == [1, 2]
    same(seen["back"] | {str(k): v for k, v in seen["back-ended"].items()}, seen["whole"])


def test_a_state_of_one_process_goes_on_in_two_with_the_same_losses(two):
    _, seen = two
    assert list(seen["forth-begun"]) == [0] and list(seen["forth"]) == ["1", "2"]
    same({str(k): v for k, v in seen["forth-begun"].items()} | seen["forth"], seen["whole"])


def test_states_have_a_manifest_and_the_weights_come_out_whole(two):
    work, _ = two
    folder, head = newest_sharded(work / "whole")
    assert folder.name == "state-00000003" and head["processes"] == 2 and head["meta"]["iterations"] == 3
    assert set(head["files"]) == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert [f.name for f in sorted(folder.parent.iterdir())] == ["state-00000002", "state-00000003"]
    named = make_learner(make_policy(), SMALL).named
    weights = sharded_weights(work / "whole")
    assert {n: w.shape for n, w in weights.items()} == {n: x.shape for n, x in named.items()}
    one = sharded_weights(work / "back")
    for n, w in weights.items():
        assert torch.allclose(w, one[n], atol=1e-3), n
    assert any(not torch.equal(w, named[n]) for n, w in weights.items())


def test_a_damaged_shard_is_refused_by_name(two, tmp_path):
    import shutil

    shutil.copytree(two[0] / "whole", tmp_path / "w")
    file = tmp_path / "w" / "state-00000003" / "__1_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(StateError, match=r"__1_0.distcp: damaged"):
        newest_sharded(tmp_path / "w")
