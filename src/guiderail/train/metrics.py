"""Numbers of an RL iteration and of a whole run, from its episodes.

Guarantees: success and reward are means over measured episodes only; what was not measured is counted beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

import numpy as np

from guiderail.rollout.types import Episode
from guiderail.train.batch import Batch
from guiderail.train.steps import replay_metrics


class Log(Protocol):
    """Where curves go (`guiderail.tracking.Tracker`)."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """One row."""
        ...

    def rewind(self, step: int) -> None:
        """Forget rows at or after `step`."""
        ...


def rollout_metrics(episodes: Sequence[Episode], batch: Batch, seconds: float) -> dict[str, float]:
    """Curves of one iteration's rollouts; `seconds` is the wall time of collecting them.

    success, reward_mean, reward_std: over measured episodes. groups_dropped: groups of which nothing is trained on (no
    spread, too few measured). groups_flat: without spread of the outcome (semi_online: of its statistic);
    advantage_spread: mean population deviation of that. parse_failures: share of steps that no codec could read. infra_errors: attempts without a measured
    outcome; coverage: share of the episodes asked for that were measured in the end. success/<template>: per
    template.
    """
    measured = [e for e in episodes if e.outcome.reward is not None]
    steps = [s for e in episodes for s in e.steps]
    rewards = batch.rewards[~np.isnan(batch.rewards)]
    groups = batch.groups
    found = {
        "success": _mean([e.outcome.kind == "success" for e in measured]),
        "reward_mean": _mean(rewards),
        "reward_std": float(np.std(rewards)) if len(rewards) else float("nan"),
        "advantage_spread": groups.spread,
        "groups": float(groups.groups),
        "groups_dropped": float(groups.groups - len({episodes[i].group for i in batch.episode})),
        "groups_flat": float(groups.groups_flat),
        "rows_kept": float(len(batch.rows)),
        "parse_failures": _mean([bool(s.parse_error) for s in steps]),
        "infra_errors": float(len(episodes) - len(measured)),
        "coverage": len(measured) / max(1, len({(e.group, e.sibling) for e in episodes})),
        "episode_steps": _mean([len(e.steps) for e in measured]),
        "env_steps": float(len(steps)),
        "env_steps_per_s": len(steps) / max(seconds, 1e-9),
        "tokens": float(sum(len(s.completion.ids) for s in steps)),
        "tokens_per_s": sum(len(s.completion.ids) for s in steps) / max(seconds, 1e-9),
        "truncated": _mean([s.completion.finish_reason == "length" for s in steps]),
        "collect_s": seconds,
    }
    found |= batch.metrics | replay_metrics(episodes)
    for template in sorted({e.task.template for e in measured}):
        found[f"success/{template}"] = _mean(
            [e.outcome.kind == "success" for e in measured if e.task.template == template]
        )
    return found


def _mean(values: Any) -> float:
    """Mean, nan for nothing."""
    found = np.asarray(list(values), dtype=np.float64)
    return float(found.mean()) if len(found) else float("nan")


@dataclass
class Totals:
    """What a run has used so far; part of the resumable state. `trained_on`: ids of the tasks of finished
    iterations. `sampling`: counts of the DAPO filter (`algorithms.filters.Counts`), empty without one. `replay_steps`:
    those of `env_steps` that were taken along recordings."""

    iterations: int = 0
    episodes: int = 0
    env_steps: int = 0
    replay_steps: int = 0
    tokens: int = 0
    infra_errors: int = 0
    optimizer_steps: int = 0
    collect_s: float = 0.0
    train_s: float = 0.0
    first_success: float = float("nan")
    last_success: float = float("nan")
    trained_on: list[str] = field(default_factory=list)
    sampling: dict[str, int] = field(default_factory=dict)

    def add(self, metrics: dict[str, float], episodes: Sequence[Episode]) -> None:
        """Count one finished iteration."""
        self.iterations += 1
        self.episodes += len(episodes)
        self.env_steps += int(metrics["env_steps"])
        self.replay_steps += int(metrics.get("replay_steps", 0))
        self.tokens += int(metrics["tokens"])
        self.infra_errors += int(metrics["infra_errors"])
        self.optimizer_steps += int(metrics["optimizer_steps"])
        self.collect_s += metrics["collect_s"]
        self.train_s += metrics["train_s"]
        self.last_success = metrics["success"]
        if self.iterations == 1:
            self.first_success = metrics["success"]
        self.trained_on += sorted({e.task.id for e in episodes})

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def joined(phases: Sequence[Totals]) -> Totals:
    """Totals of a run of several phases: sums, the first phase's first and the last one's last success."""
    if len(phases) == 1:
        return phases[0]
    sums = {f.name: sum(getattr(t, f.name) for t in phases) for f in fields(Totals) if f.type in ("int", "float")}
    sums |= {"first_success": phases[0].first_success, "last_success": phases[-1].last_success}
    names = {k for t in phases for k in t.sampling}
    return Totals(
        **sums,
        trained_on=[i for t in phases for i in t.trained_on],
        sampling={k: sum(t.sampling.get(k, 0) for t in phases) for k in sorted(names)},
    )


@dataclass(frozen=True)
class Shifted:
    """A log whose steps begin at `first`: the curves of a later phase go on where the phase before ended."""

    log_to: Log
    first: int

    def log(self, metrics: dict[str, float], step: int) -> None:
        """One row."""
        self.log_to.log(metrics, self.first + step)

    def rewind(self, step: int) -> None:
        """Forget rows at or after `step` of this phase."""
        self.log_to.rewind(self.first + step)
