"""What a stage is given: parameters, axes, places to write, a tracker, a progress display.

Guarantees: `out` is empty when the stage starts and is published as a whole when it returns; `work` survives kills and
is found again by the same command with the same parameters and inputs. Knows nothing of engines: a stage cannot tell
whether Snakemake, DVC or a person started it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guiderail.params import Params
from guiderail.progress import Progress, progress
from guiderail.tracking import Tracker


@dataclass(frozen=True)
class StageContext:
    """Everything a stage may use besides its inputs (see `guiderail.stages.paths`).

    `params`: checked parameters; reading a section that dvc.yaml does not list for this stage raises.
    `out`: temporary directory beside the final one; write outputs here and nowhere else.
    `final`: where `out` will be after success. `work`: attempt folder; put resumable state here.
    `env_pool_url`, `engine_url`: attach to a running environment pool or inference server instead of starting one.
    `yes`: costs are accepted. `remembered`: of the costs that metrics.json tells, what came from a cache.
    """

    params: Params
    stage: str
    axes: dict[str, str]
    out: Path
    final: Path
    work: Path
    tracker: Tracker
    env_pool_url: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    bill: dict[str, float] = field(default_factory=dict)
    remembered: dict[str, float] = field(default_factory=dict)
    yes: bool = False
    engine_url: str = ""

    @property
    def seed(self) -> int:
        """The run seed: axis `seed`, or 0 for stages without one."""
        return int(self.axes.get("seed", 0))

    @property
    def label(self) -> str:
        """Stage and axes in one word, e.g. `rl@grpo-0`."""
        return self.stage + ("@" + "-".join(self.axes.values()) if self.axes else "")

    def pool_costs(self, totals: Mapping[str, Any]) -> None:
        """Add a pool's bill to the run's costs (for `env_pool(..., costs=ctx.pool_costs)`)."""
        for name in ("machines", "failed_boots", "hours", "cost"):
            self.bill[name] = self.bill.get(name, 0.0) + float(totals[name])
        self.tracker.log_cost({f"pool.{k}": v for k, v in self.bill.items()})

    def remember(self, costs: Mapping[str, float]) -> None:
        """Say what of the costs in metrics.json was not spent now but came from a cache (provenance.json tells it)."""
        for name, value in costs.items():
            self.remembered[name] = self.remembered.get(name, 0) + value

    def progress(self, total: int, label: str | None = None, start: int = 0) -> AbstractContextManager[Progress]:
        """`with ctx.progress(n) as p: ... p.update(1, loss=0.3)`. label: what is counted, where it is not the stage's
        own steps; the stage's name stands before it, for several may run at once."""
        return progress(f"{self.label} {label}" if label else self.label, total, start)

    def begin(self, bar: Progress, done: int, total: int, unit: str) -> None:
        """Move `bar` to where the stage begins; when that is a checkpoint of an earlier attempt, say so."""
        if done:
            self.say(f"goes on from its checkpoint: {done} of {total} {unit} are done")
        bar.update(done)

    def say(self, message: str) -> None:
        """One plain line on stderr."""
        print(f"{self.label}: {message}", file=sys.stderr, flush=True)
