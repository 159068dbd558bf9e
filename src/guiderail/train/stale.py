"""The log-prob gate for rows that older weights sampled: scored again by the weights that sampled them.

Guarantees: of every version in a batch a sample of rows, spread over it, is scored by exactly that version, and refused
(GateError) when it would not have said what they say; the weights in training are back afterwards, bit for bit. The
rows of the current version are `train.rl.score`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from guiderail.models.features import Frames
from guiderail.models.policy import Policy
from guiderail.params_train import Rl
from guiderail.train.batch import Batch
from guiderail.train.gates import LogprobGap, check_logprobs
from guiderail.train.optim import Learner


@contextmanager
def swapped(learner: Learner, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Within: the learner's parameters hold `weights` (by name)."""
    kept = {n: x.detach().clone() for n, x in learner.named.items()}
    try:
        with torch.no_grad():
            for n, x in learner.named.items():
                x.copy_(weights[n])
        yield
    finally:
        with torch.no_grad():
            for n, x in learner.named.items():
                x.copy_(kept[n])


def check_stale(
    policy: Policy,
    learner: Learner,
    batch: Batch,
    frames: Frames,
    rl: Rl,
    current: int,
    weights: Callable[[int], Mapping[str, Tensor]],
) -> LogprobGap | None:
    """The gap over one micro-batch of rows of each version but `current`; None without such rows. Raises GateError.

    weights: gives those of a version.
    """
    found: list[LogprobGap] = []
    for version in sorted(set(batch.version) - {current}):
        rows = [i for i, v in enumerate(batch.version) if v == version]
        some = rows[:: -(-len(rows) // rl.micro_batch)]
        with swapped(learner, weights(version)), torch.no_grad():
            out = policy.logprobs([batch.rows[i] for i in some], frames, temperature=None)
        owner = torch.repeat_interleave(torch.tensor(some, dtype=torch.int64), batch.tokens(some))
        found.append(check_logprobs(out.logp.cpu(), batch.behaviour(some), owner, batch.names, rl.logprob_tolerance))
    return LogprobGap(max(g.max for g in found), sum(g.mean for g in found) / len(found)) if found else None
