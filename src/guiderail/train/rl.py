"""The RL loop: collect with the current policy, compare siblings (or their steps), update, again.

Guarantees: every iteration trains on episodes of fresh tasks sampled by exactly the weights being trained (checked by
the gates before the first update, refused otherwise), but for groups that the DAPO filter left over and for rollouts of
a producer, which are older by some updates and known to be; the KL reference is a frozen copy of the starting weights;
given the same rollouts a killed and resumed run ends with the same bits on CPU. Runs alike in one process and in each
of several (`team`). Left out: a critic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guiderail.algorithms.kl import kl_estimate
from guiderail.algorithms.losses import token_weights
from guiderail.models.features import Frames
from guiderail.models.policy import Policy
from guiderail.params_train import Rl
from guiderail.rollout.producer import Producer
from guiderail.train.batch import Batch, make_batch, minibatches
from guiderail.train.gates import LogprobGap, check_logprobs, check_rows
from guiderail.train.metrics import Log, Totals, rollout_metrics
from guiderail.train.objective import Constants, token_loss
from guiderail.train.optim import Learner, learning_rate
from guiderail.train.refill import Rollouts, forget_waiting, gather, load_waiting, save_waiting, start
from guiderail.train.stale import check_stale
from guiderail.train.stop import Stop, Stopped
from guiderail.train.team import Alone, Team
from guiderail.train.trace import trace_rows

ALONE = Alone()


def train(
    policy: Policy,
    learner: Learner,
    rollouts: Rollouts,
    rl: Rl,
    *,
    seed: int,
    work: Path,
    log: Log,
    producer: Producer | None = None,
    reference: Policy | None = None,
    on_start: Callable[[int], None] = lambda done: None,
    on_iteration: Callable[[int, dict[str, float]], None] = lambda i, m: None,
    on_scored: Callable[[int, list[dict[str, Any]]], None] | None = None,
    team: Team = ALONE,
) -> Totals:
    """Train for `rl.iterations`, resuming from `work` when it holds a state. Returns what the whole run used and
    reached.

    producer: makes `rollouts` meanwhile, and is told of every version of the weights. reference: frozen copy of the
    starting weights, needed exactly when `rl.kl_coef` > 0. on_scored: is told each iteration's advantages and log-probs
    (`trace.trace_rows`) before the first update. team: the processes that run this loop together, on the same episodes.
    Raises GateError, NotFinite, Stopped.
    """
    if (reference is None) != (rl.kl_coef == 0.0):
        raise ValueError(f"rl.kl_coef = {rl.kl_coef} and a reference policy go together")
    state = team.load(work, learner)
    totals = Totals(**state[1]) if state else Totals()
    if team.leads:
        forget_waiting(work, totals.iterations)
    refill = load_waiting(work, rl, state[0], totals.sampling) if state else start(rl)
    if totals.iterations < rl.iterations:  # a finished phase writes no row anew, and what follows is a later one's
        log.rewind(totals.iterations)
    on_start(totals.iterations)

    def save() -> None:
        if team.leads:
            save_waiting(work, refill, totals.iterations)
        team.save(work, totals.iterations, learner, totals.to_json())
        if producer is not None:
            producer.saved(totals.iterations)

    if producer is not None:
        producer.publish(totals.iterations, learner.weights())
    with Stop() as stop:
        try:
            for iteration in range(totals.iterations, rl.iterations):
                started = time.perf_counter()
                with stop.interruptible():
                    gathered = gather(rollouts, refill, rl, iteration)
                collected, frames = time.perf_counter(), gathered.frames

                sampled, batch = make_batch(gathered.fresh, rl), make_batch(gathered.used, rl)
                check_rows(batch.rows, batch.names, policy.image_token_id, team.counter(policy, frames))
                scored = score(policy, batch, frames, rl, reference, iteration, team)
                if producer is not None:
                    gap = check_stale(policy, learner, batch, frames, rl, iteration, producer.versions.get)
                    scored = replace(scored, gap=scored.gap or gap)
                if on_scored is not None:
                    on_scored(iteration, trace_rows(gathered.used, batch, scored.train, iteration))
                lr = learning_rate(iteration, rl.iterations, rl)
                steps = [
                    update(policy, learner, batch, index, scored, frames, rl, lr, team)
                    for epoch in range(rl.epochs)
                    for index in minibatches(batch.units(rl.layout), rl.batch, "rl", seed, iteration, epoch)
                ]

                metrics = rollout_metrics(gathered.fresh, sampled, collected - started) | gathered.metrics()
                metrics |= scored.metrics() | mean(steps) | {"lr": lr, "optimizer_steps": float(len(steps))}
                metrics |= {"rows_kept": float(len(batch.rows)), "train_s": time.perf_counter() - collected}
                totals.add(metrics, gathered.fresh)
                if producer is not None:
                    metrics |= producer.metrics(gathered.used, iteration)
                    producer.publish(iteration + 1, learner.weights())
                if gathered.refill:
                    refill, totals.sampling = gathered.refill, gathered.refill.counts.to_json()
                log.log(metrics, iteration)
                on_iteration(iteration, metrics)
                if totals.iterations % rl.save_every == 0 or totals.iterations == rl.iterations:
                    save()
                stop.check()
        except Stopped:
            save()  # the weights are those of the last finished iteration: a signal never lands inside an update
            raise
    return totals


@dataclass(frozen=True)
class Scored:
    """The rows of a batch before the first update, under the weights of this iteration.

    gap: over the rows that these weights sampled; None without such rows. entropy (nats per token), kl: over all rows'
    tokens. rows, stale: how many, and how many of them older weights sampled. train, proximal, reference: per row,
    float32 [tokens of the row]; proximal is empty without importance weights, reference without a reference policy.
    """

    gap: LogprobGap | None = None
    entropy: float = float("nan")
    kl: float = float("nan")
    rows: int = 0
    stale: int = 0
    train: list[Tensor] = field(default_factory=list)
    proximal: list[Tensor] = field(default_factory=list)
    reference: list[Tensor] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        """Curves; what was not measured (no rows, no reference) is absent, never 0."""
        found = {"rows_stale": float(self.stale)} if self.stale else {}
        if self.rows:
            found |= {"entropy": self.entropy} | ({"kl": self.kl} if self.reference else {})
        if self.gap:
            found |= {"logprob_gap_max": self.gap.max, "logprob_gap_mean": self.gap.mean}
        return found


@torch.no_grad()
def score(
    policy: Policy,
    batch: Batch,
    frames: Frames,
    rl: Rl,
    reference: Policy | None,
    version: int | None = None,
    team: Team = ALONE,
) -> Scored:
    """Score all rows with the weights of this iteration; refuse rows that they sampled but score otherwise (GateError).

    version: of these weights; rows of another are counted as stale and not refused. None: no row is stale.
    """
    if not batch.rows:
        return Scored()
    logp: dict[int, Tensor] = {}
    entropy: dict[int, Tensor] = {}
    refs: dict[int, Tensor] = {}
    for part, counts in team.mine(team.parts(batch.rows, range(len(batch.rows)), rl.micro_batch, rl.layout)):
        rows, sizes = [batch.rows[i] for i in part], batch.tokens(part).tolist()
        out = policy.logprobs(rows, frames, temperature=None, entropy=True, layout=rl.layout)
        ref = None
        if reference is not None:
            ref = reference.logprobs(rows, frames, temperature=None, layout=rl.layout).logp.cpu()
        if not counts:
            continue
        logp |= dict(zip(part, torch.split(out.logp.cpu(), sizes), strict=True))
        entropy |= dict(zip(part, torch.split(out.entropy.cpu(), sizes), strict=True))
        if ref is not None:
            refs |= dict(zip(part, torch.split(ref, sizes), strict=True))
    logp, entropy, refs = team.merged(logp), team.merged(entropy), team.merged(refs)
    order = range(len(batch.rows))
    fresh = [i for i in order if version is None or batch.version[i] == version]
    owner = torch.repeat_interleave(torch.tensor(fresh, dtype=torch.int64), batch.tokens(fresh))
    train = torch.cat([logp[i] for i in order])
    flat = torch.cat([refs[i] for i in order]) if refs else train
    return Scored(
        gap=check_logprobs(
            torch.cat([logp[i] for i in fresh]), batch.behaviour(fresh), owner, batch.names, rl.logprob_tolerance
        )
        if fresh
        else None,
        entropy=float(torch.cat([entropy[i] for i in order]).mean()),
        kl=float(kl_estimate(train, flat, rl.kl_estimator, rl.kl_clamp).mean()),
        rows=len(order),
        stale=len(order) - len(fresh),
        train=[logp[i] for i in order],
        proximal=[logp[i] for i in order] if rl.importance_cap else [],
        reference=[refs[i] for i in order] if refs else [],
    )


def update(
    policy: Policy,
    learner: Learner,
    batch: Batch,
    index: Sequence[int],
    scored: Scored,
    frames: Frames,
    rl: Rl,
    lr: float,
    team: Team = ALONE,
) -> dict[str, float]:
    """One optimiser step on the rows `index`, gradients accumulated over micro-batches and added up over `team`.
    Returns loss, clip fraction, gradient norm."""
    parts = team.parts(batch.rows, index, rl.micro_batch, rl.layout)
    order = [i for part in parts for i in part]
    owner = torch.repeat_interleave(torch.arange(len(order)), batch.tokens(order))
    episodes = torch.tensor([batch.episode[i] for i in order])
    weights = token_weights(rl.aggregation, owner, episodes, rl.aggregation_tokens)
    of_row = dict(zip(order, torch.split(weights, batch.tokens(order).tolist()), strict=True))
    total, clips = 0.0, 0.0
    for part, counts in team.mine(parts):
        rows, wants_entropy = [batch.rows[i] for i in part], rl.entropy_coef > 0
        out = policy.logprobs(rows, frames, temperature=None, grad=True, entropy=wants_entropy, layout=rl.layout)
        device = out.logp.device

        def of(per_row: list[Tensor], part: list[int] = part, device: torch.device = device) -> Tensor | None:
            return torch.cat([per_row[i] for i in part]).to(device) if per_row else None

        known = Constants(
            behaviour=batch.behaviour(part).to(device),
            proximal=of(scored.proximal),
            reference=of(scored.reference),
            advantage=batch.token_advantage(part).to(device),
        )
        token, clipped = token_loss(out.logp, out.entropy if wants_entropy else None, known, rows, rl)
        here = torch.cat([of_row[i] if counts else torch.zeros_like(of_row[i]) for i in part]).to(device)
        loss = (token * here).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
        clips += float((clipped * here).sum())
    total, clips = team.sums(total, clips)
    return {"loss": total, "clip_fraction": clips, "grad_norm": learner.step(lr)}


def mean(rows: Iterable[dict[str, float]]) -> dict[str, float]:
    """Mean of each key over the optimiser steps of an iteration; empty without steps."""
    found = list(rows)
    return {k: sum(r[k] for r in found) / len(found) for k in (found[0] if found else {})}
