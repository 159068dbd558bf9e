"""guiderail's trainer on prompts that `trainer_vs_trl.py` wrote, timed step by step. Prints one JSON line.

    python run_grpo.py FOLDER

The same work as `run_trl.py`: sample a group per prompt, score, one optimiser step on all rows, with the parts that the
rl stage is made of (hf engine on folded adapters, gates, score, update).
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guiderail.envs.types import Outcome
from guiderail.models.frames import FrameStore
from guiderail.models.policy import Policy
from guiderail.models.rows import ChunkRow, Prompt
from guiderail.params import Model
from guiderail.params_train import Rl
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.types import Completion, Episode, SamplingParams, StepRecord
from guiderail.seeds import derive_seed
from guiderail.tasks.types import TaskSpec
from guiderail.train.batch import make_batch, minibatches
from guiderail.train.gates import check_rows, feature_counter
from guiderail.train.optim import folded
from guiderail.train.rl import score, update
from guiderail.train.start import open_start


def now() -> tuple[float, float]:
    """(wall, CPU) seconds."""
    return time.perf_counter(), time.process_time()


def since(at: tuple[float, float]) -> tuple[float, float]:
    """(wall, CPU) seconds since `at`."""
    wall, cpu = now()
    return wall - at[0], cpu - at[1]


def never_stop(policy: Policy) -> None:
    """Mask the stop tokens, so that every completion has its full length."""
    policy.suppressed_ids = (*policy.suppressed_ids, *policy.stop_ids)
    policy._masks.clear()


def prompts_of(policy: Policy, folder: Path, job: dict[str, Any], frames: FrameStore) -> list[Prompt]:
    """The ids that the processor's chat template gives, as in TRL."""
    found = []
    for p in job["prompts"]:
        content = [{"type": "image", "path": str(folder / p["frame"])}, {"type": "text", "text": p["text"]}]
        out = policy.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True
        )
        ids = np.asarray(out["input_ids"]).reshape(-1)
        found.append(Prompt(tuple(int(i) for i in ids), (frames.put((folder / p["frame"]).read_bytes()),)))
    return found


def episode(prompt: Prompt, number: int, sibling: int, done: Completion, sampling: SamplingParams) -> Episode:
    """A step that ends the episode, rewarded by a hash of what was sampled."""
    ids = np.array([*prompt.ids, *done.ids])
    logps = np.array(done.logprobs, np.float32)
    row = ChunkRow(ids, prompt.frames, ((len(prompt.ids), len(ids)),), logps, (0,), sampling.temperature)
    good = hashlib.sha256(repr(list(done.ids)).encode()).digest()[0] % 2
    outcome = Outcome("success" if good else "failure", "env_done", float(good))
    task = TaskSpec("toy", "hash", number)
    step = StepRecord(0, prompt.frames[0], 0, len(prompt.ids), done, sampling, "", "", "", 0, 0.0, 0.0)
    return Episode(f"{number}-{sibling}", str(number), sibling, 0, task, "go", outcome, (step,), (row,))


def main() -> None:
    """Train and report."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    rows = job["groups"] * job["group_size"]
    rl = Rl(
        lr=1e-5, schedule="constant", warmup=0.0, epochs=1, batch=rows, micro_batch=job["micro_batch"],
        groups=job["groups"], group_size=job["group_size"], temperature=job["temperature"], mode=job["mode"],
        layout=job["layout"],
    )  # fmt: skip
    opened = open_start(Path(job["model"]), Model(device="cpu"), rl, 0, Path("."))
    policy, learner, frames = opened.policy, opened.learner, FrameStore(None)
    torch.set_num_threads(1)
    never_stop(policy)
    prompts = prompts_of(policy, folder, job, frames)
    took, generating, tokens = [], [], 0
    for step in range(job["steps"] + 1):
        policy.features.clear()  # the same frames every step: a run would see new ones
        at = now()
        asked = [(k, s) for k in range(len(prompts)) for s in range(job["group_size"])]
        sampling = [SamplingParams(job["temperature"], 1.0, job["tokens"], derive_seed(step, k, s)) for k, s in asked]
        with folded(policy.model):
            out = HfEngine(policy, frames).generate([prompts[k] for k, _ in asked], sampling)
        generating.append(since(at))
        episodes = [episode(prompts[k], k, s, c, how) for (k, s), c, how in zip(asked, out, sampling, strict=True)]
        batch = make_batch(episodes, rl)
        check_rows(batch.rows, batch.names, policy.image_token_id, feature_counter(policy, frames))
        scored = score(policy, batch, frames, rl, None)
        for index in minibatches(batch.units(rl.layout), rl.batch, "rl", 0, step, 0):
            update(policy, learner, batch, index, scored, frames, rl, rl.lr)
        took.append(since(at))
        tokens = sum(len(e.rows[0].ids) for e in episodes)
    trained = sum(x.numel() for x in learner.named.values())
    print(json.dumps({"steps": took[1:], "generate": generating[1:], "trained": trained, "tokens": tokens}))


if __name__ == "__main__":
    main()
