"""A world small enough to think through: one frame per task, one step, reward 1 when the first sampled byte is even.

Run as a script it trains in that world and can kill itself with SIGKILL: `python worlds.py <rl|sft> <work> <kill
after | -1>`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from guiderail.envs.types import Outcome
from guiderail.models.policy import Policy
from guiderail.models.rows import ChunkRow, Prompt
from guiderail.params_train import Rl, Sft
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.types import Episode, SamplingParams, StepRecord
from guiderail.seeds import derive_seed
from guiderail.tasks.types import TaskSpec
from guiderail.train import rl as rl_loop
from guiderail.train import sft as sft_loop
from guiderail.train.optim import Learner, select_trainable
from tinyvlm import NumberedFrames, make_model, make_processor, prompt_ids

PROCESSOR = make_processor()
RL = Rl(iterations=4, groups=4, group_size=4, batch=6, micro_batch=4, save_every=1, lr=1e-2, warmup=0.0)
SFT = Sft(epochs=2, batch=4, micro_batch=3, save_every=2, lr=1e-3)


class MemoryLog:
    """Curves in memory."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}

    def log(self, metrics, step) -> None:
        self.rows[step] = dict(metrics)

    def rewind(self, step) -> None:
        self.rows = {k: v for k, v in self.rows.items() if k < step}


def make_policy(seed: int = 0) -> Policy:
    return Policy(make_model(PROCESSOR, seed), PROCESSOR)


def make_learner(policy: Policy, optim, train_vision: bool = False) -> Learner:
    named = select_trainable(policy.model, optim.mode, lora=optim.lora, train_vision=train_vision, seed=0)
    return Learner(named, optim)


def digest(named) -> str:
    h = hashlib.sha256()
    for name, p in sorted(named.items()):
        h.update(name.encode() + p.detach().numpy().tobytes())
    return h.hexdigest()


def demo_rows(frames: NumberedFrames, n: int = 10, steps: int = 1) -> list[ChunkRow]:
    """Rows of `steps` answers each; the answer of row i spells i."""
    end = PROCESSOR.tokenizer.convert_tokens_to_ids("<|im_end|>")
    rows = []
    for i in range(n):
        ids, spans, shas = [], [], []
        for k in range(steps):
            ids += prompt_ids(PROCESSOR, f"task {i}" if k == 0 else "", (35,))
            shas.append(frames.paint(10 * i + k))
            answer = [*PROCESSOR.tokenizer.encode(f"Action: {'x' * (i % 3)}{i}"), end]
            spans.append((len(ids), len(ids) + len(answer)))
            ids += answer
        n_tokens = sum(e - s for s, e in spans)
        rows.append(
            ChunkRow(
                np.array(ids), tuple(shas), tuple(spans), np.full(n_tokens, np.nan, np.float32), tuple(range(steps))
            )
        )
    return rows


class World:
    """Deterministic rollouts of the real engine; `before(iteration)` runs first, for kills and signals."""

    def __init__(self, policy: Policy, rl: Rl, broken: set[int] = frozenset(), before=lambda iteration: None) -> None:
        self.policy, self.rl, self.broken, self.before = policy, rl, set(broken), before
        self.frames = NumberedFrames()
        self.engine = HfEngine(policy, self.frames)

    def tasks(self, iteration: int, round: int = 0) -> list[TaskSpec]:
        first = iteration * 100 + round * self.rl.groups
        return [TaskSpec("toy", f"t{k % 2}", first + k) for k in range(self.rl.groups)]

    def collect(self, tasks: list[TaskSpec], iteration: int, round: int = 0) -> tuple[list[Episode], NumberedFrames]:
        self.before(iteration)
        members = [(t, s) for t in tasks for s in range(self.rl.group_size)]
        prompts = [Prompt(prompt_ids(PROCESSOR, f"go {t.seed}"), (self.frames.paint(t.seed),)) for t, _ in members]
        sampling = [
            SamplingParams(temperature=self.rl.temperature, max_new_tokens=4, seed=derive_seed("toy", t.seed, s))
            for t, s in members
        ]
        out = self.engine.generate(prompts, sampling)
        episodes = []
        for i, ((task, sibling), prompt, completion) in enumerate(zip(members, prompts, out, strict=True)):
            ids = np.array([*prompt.ids, *completion.ids])
            row = ChunkRow(
                ids,
                prompt.frames,
                ((len(prompt.ids), len(ids)),),
                np.array(completion.logprobs, np.float32),
                (0,),
                self.rl.temperature,
            )
            good = completion.ids[0] % 2 == 0
            outcome = Outcome("success" if good else "failure", "env_done", float(good))
            if i in self.broken:
                outcome = Outcome("infra_error", "crash")
            step = StepRecord(
                0, prompt.frames[0], 0, len(prompt.ids), completion, sampling[i], "", "", "", iteration, 0.0, 0.0
            )
            episodes.append(Episode(f"{task.id}#{sibling}", task.id, sibling, 0, task, "go", outcome, (step,), (row,)))
        return episodes, self.frames


def run_rl(work: Path, rl: Rl = RL, before=lambda i: None, reference=None, broken=frozenset()):
    """(weights digest, log, totals, policy) of a run that resumes from `work`."""
    policy = make_policy()
    learner, log = make_learner(policy, rl), MemoryLog()
    world = World(policy, rl, broken, before)
    totals = rl_loop.train(policy, learner, world, rl, seed=0, work=work, log=log, reference=reference)
    return digest(learner.named), log, totals, policy


def run_sft(work: Path, sft: Sft = SFT, on_step=lambda i, m: None, rows=None):
    policy, frames = make_policy(), NumberedFrames()
    rows = rows or demo_rows(frames)
    for i in range(200):
        frames.paint(i)
    learner, log = make_learner(policy, sft), MemoryLog()
    names = [f"demo {i}" for i in range(len(rows))]
    totals = sft_loop.train(policy, learner, rows, names, frames, sft, seed=0, work=work, log=log, on_step=on_step)
    return digest(learner.named), log, totals, policy


def die_after(k: int):
    def hook(i, *_):
        if i == k:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, work, after = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    found = run_rl(work, before=die_after(after)) if kind == "rl" else run_sft(work, on_step=die_after(after))
    print(json.dumps({"digest": found[0]}))
