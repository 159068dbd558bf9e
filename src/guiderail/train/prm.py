"""The process reward model: rows from labelled steps, and the measure of a trained one on steps it never saw.

Guarantees: training is `train.sft`'s loop (resumable, same bits after a kill) on rows whose span is the graded answer;
calibration reads the very probability that votes are drawn from. Does not collect steps: see `prm_data`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from guiderail.bench.calibration import Judged, calibration
from guiderail.bench.fact_table import beside, looked_up
from guiderail.models.rows import ChunkRow
from guiderail.params_prm import Prm
from guiderail.rewards.prm_judge import PrmModel
from guiderail.train.prm_data import Labelled


@dataclass(frozen=True)
class JudgeRows:
    """Training rows with their names and the tasks they come from."""

    rows: list[ChunkRow]
    names: list[str]
    tasks: list[str]


def rows_of(model: PrmModel, steps: Sequence[Labelled]) -> JudgeRows:
    """Rows of labelled steps, in order."""
    return JudgeRows(
        [model.row(s.step, s.good) for s in steps],
        [f"step {s.step.key}" for s in steps],
        sorted({s.task.id for s in steps}),
    )


def against_facts(
    model: PrmModel, known: Sequence[Labelled], asked: Sequence[Labelled], judged: Sequence[Judged], prm: Prm
) -> dict[str, Any]:
    """What the told facts alone say (`bench.fact_table`): a table over the steps `known`, on the steps `asked` beside a
    judge's answers `judged` to them."""
    facts, good = [model.facts(s.step) for s in known], [s.good for s in known]
    p = looked_up(facts, good, [model.facts(s.step) for s in asked])
    return beside(judged, p, bins=prm.bins, draws=prm.bootstrap, confidence=prm.confidence)


def measure(model: PrmModel, steps: Sequence[Labelled], prm: Prm) -> tuple[dict[str, Any], list[Judged]]:
    """(calibration.json's figures, judged steps) of a trained judge on `steps`."""
    contexts = [s.step for s in steps]
    signs = model.signs(contexts)
    total = signs.sum(axis=1)
    p = signs[:, 0] / np.maximum(total, 1e-300)
    judged = [
        Judged(float(p[i]), s.good, s.task.template, s.source, s.step.kind, s.episode, float(max(0.0, 1 - total[i])))
        for i, s in enumerate(steps)
    ]
    return calibration(judged, bins=prm.bins, draws=prm.bootstrap, confidence=prm.confidence), judged
