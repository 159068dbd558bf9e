"""Where training starts and what it leaves: open a checkpoint as a learner, write the trained one with its lineage.

Guarantees: the start is verified (files and parent by hash) before a weight is read; what is written is a full
Hugging Face folder (mode full) or a PEFT adapter (mode lora) whose manifest names parent, start, ancestors and all
tasks trained on, inherited ones too; its weights are in the dtype they were trained in. An adapter that is trained
further stays on the weights it was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guiderail.checkpoints import manifest as m
from guiderail.checkpoints.effective import source
from guiderail.checkpoints.merge import fold
from guiderail.checkpoints.save import publish
from guiderail.checkpoints.weights import save_adapter, save_full
from guiderail.models.folder import is_adapter
from guiderail.models.loading import load_policy
from guiderail.models.policy import Policy
from guiderail.params import Model
from guiderail.params_train import Rl, Tuning
from guiderail.train.optim import Learner, TrainableError, select_trainable


@dataclass(frozen=True)
class Start:
    """An opened start. `parent`: folder that holds the tensors training does not touch; `start`: the checkpoint
    itself."""

    policy: Policy
    learner: Learner
    start: Path
    parent: Path

    def trained(self) -> dict[str, Tensor]:
        """The trained tensors by name."""
        return self.learner.weights()


@dataclass(frozen=True)
class Finished:
    """A start whose training ran elsewhere: as `Start`, with what came of it."""

    weights: dict[str, Tensor]
    start: Path
    parent: Path

    def trained(self) -> dict[str, Tensor]:
        """The trained tensors by name."""
        return self.weights


def open_start(start: Path, model: Model, optim: Tuning | Rl, seed: int, work: Path) -> Start:
    """Load `start` ready to train. mode full from an adapter: it is folded into `work`/start first."""
    load, parent = prepared(start, model, optim, work)
    policy = load_policy(load, model)
    named = select_trainable(policy.model, optim.mode, lora=optim.lora, train_vision=model.train_vision, seed=seed)
    return Start(policy, Learner(named, optim), start, parent)


def prepared(start: Path, model: Model, optim: Tuning | Rl, work: Path) -> tuple[Path, Path]:
    """(folder to load, folder that holds the tensors training does not touch) of a verified start; see
    `open_start`."""
    if isinstance(optim, Rl) and optim.lora.dropout > 0:
        raise TrainableError(
            f"rl.lora.dropout = {optim.lora.dropout}: must be 0, or the trained policy is not the one that sampled"
        )
    parent, _ = source(start)
    load = start
    if optim.mode == "full" and is_adapter(start):
        load = parent = work / "start"
        if not parent.exists():  # published: what a kill left half written is not there
            publish(parent, lambda beside: fold(start, beside, getattr(torch, model.dtype)))
    return load, parent


def load_reference(start: Path, model: Model) -> Policy:
    """A frozen copy of the starting weights (adapter included)."""
    policy = load_policy(start, model)
    policy.model.requires_grad_(False)
    return policy


def write_checkpoint(
    out: Path,
    opened: Start | Finished,
    optim: Tuning | Rl,
    *,
    stage: str,
    seed: int,
    tasks: dict[str, Any],
    trained: Iterable[str],
    recipe: str = "",
) -> m.Manifest:
    """Write the trained checkpoint to `out`. tasks: the split manifest; trained: TaskSpec ids this stage trained on."""
    ancestors, inherited = m.lineage(opened.start)
    if optim.mode == "lora":
        save_adapter(out, opened.trained(), optim.lora, opened.parent)
    else:
        save_full(opened.parent, out, opened.trained())
    ids = sorted(set(trained))
    own = m.TrainedOn(
        suite=tasks["suite"],
        split_hash=tasks["hash"],
        templates=tuple(sorted({i.split("/")[1] for i in ids})),
        instances=tuple(ids),
    )
    start = m.Link.to(opened.start)
    return m.write(
        out,
        m.Manifest(
            kind="lora" if optim.mode == "lora" else "full",
            stage=stage,
            parent=m.Link.to(opened.parent) if optim.mode == "lora" else start,
            start=start,
            ancestors=ancestors,
            recipe=recipe,
            seed=seed,
            params_digest=m.digest_json(optim.model_dump(mode="json")),
            trained_on=own.union(inherited),
        ),
    )


def write_json(path: Path, value: Any) -> None:
    """Write JSON, sorted and readable; nan becomes null."""
    plain = {k: None if isinstance(v, float) and v != v else v for k, v in value.items()}
    path.write_text(json.dumps(plain, indent=1, sort_keys=True) + "\n")
