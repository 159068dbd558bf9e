"""Open the judge of steps that a recipe asks for: the state judge, the process reward model, or an endpoint.

Guarantees: a process reward model is used only when its calibration on held-out templates reaches `prm.min_auroc`, or
when the recipe says that it shall be used anyway (`judge_gate: false`); nothing is loaded or asked for a recipe without
a judge; what was opened is closed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from guiderail.endpoint import Endpoint
from guiderail.errors import InputError
from guiderail.models.frames import FrameStore
from guiderail.models.loading import load_policy
from guiderail.params_train import Rl
from guiderail.rewards.endpoint_judge import EndpointJudge
from guiderail.rewards.prm_judge import PrmJudge, PrmModel
from guiderail.rewards.process import FrameJudge
from guiderail.rewards.progress import ProgressJudge
from guiderail.rollout.judging import Judge
from guiderail.stages.context import StageContext


class Over(Protocol):
    """Gives the judge of a collection, whose frames lie in `frames`."""

    def __call__(self, frames: FrameStore) -> Judge | None:
        """None where the algorithm reads no votes."""
        ...


Opener = Callable[[Path, int], Any]
"""Opens the process reward model of a folder for so many steps at once: something with `signs`, `batch`, `frames`."""


def no_judge(frames: FrameStore) -> Judge | None:
    """The judge of who judges nothing."""
    return None


@contextmanager
def opened_judge(ctx: StageContext, rl: Rl, folder: Path, opener: Opener | None = None) -> Iterator[Over]:
    """The judge of one phase. folder: judge/ of the recipe's prm output. opener: for a process reward model elsewhere
    (default: in this process). Raises InputError when it may not be used."""
    s = rl.step_wise
    if rl.algorithm != "step_wise":
        yield no_judge
    elif s.judge == "progress":
        yield lambda frames: ProgressJudge()
    elif s.judge == "endpoint":
        v = s.voting
        with Endpoint(v.endpoint, "rl.step_wise.voting.endpoint") as endpoint:
            options: dict[str, Any] = {"votes": v.votes, "temperature": v.temperature, "seed": ctx.seed}
            options["max_new_tokens"] = v.max_new_tokens
            yield lambda frames: FrameJudge(EndpointJudge(endpoint, frames, **options))
            ctx.say(
                f"judge {v.endpoint.model}: {endpoint.calls} calls, {endpoint.failed} tries failed, "
                f"{endpoint.tokens_in} + {endpoint.tokens_out} tokens, {endpoint.price:.4f} {v.endpoint.currency}"
            )
            names = ("calls", "failed", "tokens_in", "tokens_out", "price")
            ctx.tracker.log_cost({f"judge.{k}": float(getattr(endpoint, k)) for k in names})
    else:
        check_gate(folder, ctx.params.prm.min_auroc, s.judge_gate)
        model = (opener or partial(_loaded, ctx))(folder / "checkpoint", s.voting.batch)
        with PrmJudge(model, votes=s.voting.votes, temperature=s.voting.temperature, seed=ctx.seed) as judge:

            def over(frames: FrameStore) -> Judge:
                model.frames = frames  # nothing is being judged between collections
                return FrameJudge(judge)

            yield over


def _loaded(ctx: StageContext, folder: Path, batch: int) -> PrmModel:
    policy = load_policy(folder, ctx.params.model)
    policy.model.requires_grad_(False)
    return PrmModel(policy, ctx.params.prompt, FrameStore(None), batch)


def check_gate(folder: Path, min_auroc: float, gate: bool) -> None:
    """Refuse a judge that is not known to be good enough. Raises InputError, which names the figure and the way out."""
    file = folder / "calibration.json"
    if not file.is_file():
        raise InputError(
            f"{folder}: holds no process reward model, but the recipe's judge is prm. Make it again: "
            f"`guiderail prm --recipe {folder.parent.parent.name} --seed {folder.parent.name.removeprefix('seed')}`."
        )
    area = json.loads(file.read_text())["auroc"]
    if gate and (area["mean"] is None or area["mean"] < min_auroc):
        shown = f"unknown ({area.get('reason', '')})" if area["mean"] is None else f"{area['mean']:.3f}"
        span = "" if area["mean"] is None else f" [{area['lo']:.3f}, {area['hi']:.3f}], n = {area['n']}"
        raise InputError(
            f"{file}: AUROC on held-out templates is {shown}{span}, below prm.min_auroc = {min_auroc}: votes of such a "
            "judge would mislead training. Train it better (prm.noised, prm.policy, prm.epochs), choose judge progress "
            "or endpoint, or take it anyway with step_wise: {judge_gate: false} in the recipe."
        )
