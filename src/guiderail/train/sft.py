"""Supervised warm-up: next-token loss on what the expert wrote (thought line, call, end of turn), nothing else.

Guarantees: only action spans are trained; every epoch sees every row once, in an order hashed from the seed; killed
and resumed it ends with the same bits on CPU as uninterrupted. Left out: validation, several processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from guiderail.algorithms.losses import token_weights
from guiderail.checkpoints.save import State, load_state, save_state
from guiderail.errors import InputError
from guiderail.models.features import Frames
from guiderail.models.policy import Policy
from guiderail.models.rows import ChunkRow
from guiderail.params_train import Tuning
from guiderail.seeds import derive_seed
from guiderail.train.batch import microbatches
from guiderail.train.gates import check_rows, feature_counter
from guiderail.train.metrics import Log
from guiderail.train.optim import Learner, learning_rate
from guiderail.train.seeds import shuffled
from guiderail.train.stop import Stop


@dataclass
class SftTotals:
    """What a run has used so far; part of the resumable state. trained_tokens: of answers, once per epoch. loss,
    token_accuracy: of the last step."""

    optimizer_steps: int = 0
    trained_tokens: int = 0
    train_s: float = 0.0
    loss: float = float("nan")
    token_accuracy: float = float("nan")


def steps_of(rows: int, sft: Tuning) -> int:
    """Optimiser steps of a whole run."""
    return sft.epochs * -(-rows // sft.batch)


def train(
    policy: Policy,
    learner: Learner,
    rows: Sequence[ChunkRow],
    names: Sequence[str],
    frames: Frames,
    sft: Tuning,
    *,
    seed: int,
    work: Path,
    log: Log,
    on_start: Callable[[int], None] = lambda done: None,
    on_step: Callable[[int, dict[str, float]], None] = lambda i, m: None,
) -> SftTotals:
    """Train on `rows` for `sft.epochs`, resuming from `work` when it holds a state. names: how to call the rows in
    errors.

    Loss: mean over the span tokens of a mini-batch of -log p. Raises InputError, GateError, NotFinite, Stopped.
    """
    if not rows:
        raise InputError("no demonstration rows: raise demos.per_template or check that the experts succeed")
    check_rows(rows, names, policy.image_token_id, feature_counter(policy, frames))
    state = load_state(work)
    totals = SftTotals(**state.meta) if state else SftTotals()
    if state:
        learner.load(state.tensors["weights"], state.tensors["optimizer"])
    log.rewind(totals.optimizer_steps)
    on_start(totals.optimizer_steps)
    per_epoch, total = -(-len(rows) // sft.batch), steps_of(len(rows), sft)

    def save() -> None:
        save_state(
            work,
            State(totals.optimizer_steps, {"weights": learner.weights(), "optimizer": learner.state()}, asdict(totals)),
        )

    with Stop() as stop:
        for step in range(totals.optimizer_steps, total):
            epoch, k = divmod(step, per_epoch)
            order = shuffled(range(len(rows)), "sft", seed, epoch)
            metrics = _step(
                policy, learner, rows, order[k * sft.batch : (k + 1) * sft.batch], frames, sft, seed, step, total
            )
            totals = SftTotals(
                step + 1,
                totals.trained_tokens + int(metrics["trained_tokens"]),
                totals.train_s + metrics["train_s"],
                metrics["loss"],
                metrics["token_accuracy"],
            )
            log.log(metrics | {"epoch": step / per_epoch}, step)
            on_step(step, metrics)
            if (
                totals.optimizer_steps % sft.save_every == 0
                or totals.optimizer_steps == total
                or stop.signum is not None
            ):
                save()
            stop.check()
    return totals


def _step(
    policy: Policy,
    learner: Learner,
    rows: Sequence[ChunkRow],
    index: Sequence[int],
    frames: Frames,
    sft: Tuning,
    seed: int,
    step: int,
    total: int,
) -> dict[str, float]:
    """One optimiser step, gradients accumulated over micro-batches."""
    started = time.perf_counter()
    if sft.mode == "lora" and sft.lora.dropout > 0:
        torch.manual_seed(derive_seed("sft-dropout", seed, step))
        policy.model.train()
    parts = microbatches(rows, index, sft.micro_batch, sft.layout)
    order = [i for part in parts for i in part]
    counts = torch.tensor([sum(e - s for s, e in rows[i].spans) for i in order])
    owner = torch.repeat_interleave(torch.arange(len(order)), counts)
    weights = token_weights("token_mean", owner, torch.arange(len(order)))
    total_loss, hits, at = 0.0, 0, 0
    for part in parts:
        out = policy.logprobs([rows[i] for i in part], frames, grad=True, layout=sft.layout)
        here = weights[at : at + len(out.logp)].to(out.logp.device)
        at += len(out.logp)
        loss = -(out.logp * here).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total_loss += float(loss.detach())
        hits += int(out.greedy.sum())
    policy.model.eval()
    lr = learning_rate(step, total, sft)
    norm = learner.step(lr)
    seconds = time.perf_counter() - started
    return {
        "loss": total_loss,
        "token_accuracy": hits / len(owner),
        "lr": lr,
        "grad_norm": norm,
        "trained_tokens": float(len(owner)),
        "tokens_per_s": sum(len(rows[i].ids) for i in order) / seconds,
        "train_s": seconds,
    }
