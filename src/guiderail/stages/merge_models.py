"""merge models: several checkpoints of one lineage become one, if it is no worse than they are.

Reads the checkpoints, and for the gate results/provision/tasks.json (results/demos/recorded for a recorded benchmark).
Writes a Hugging Face folder with manifest.json and verify.json (what the gate measured). Beside the chain, which it
leaves alone. Gate: all models and the merged one play the benchmark (results are remembered, so a model is played once
for all merges); a merge that is worse than one of them beyond the interval is refused, unless gate is warn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from guiderail.bench import evaluate as bench
from guiderail.bench.gate import Verdict, judge
from guiderail.bench.protocols import PROTOCOLS
from guiderail.checkpoints.manifest import weights_digest
from guiderail.checkpoints.merge import MergeError
from guiderail.checkpoints.merge_many import Recipe, merge_models
from guiderail.errors import Explained
from guiderail.stages import evaluate, evaluate_recorded, paths
from guiderail.stages.context import StageContext
from guiderail.tasks import splits
from guiderail.train.start import write_json

MERGED = "merged"


class WorseError(Explained, RuntimeError):
    """A merged checkpoint lost to one of those it was made of."""


def run(ctx: StageContext, **_: str) -> None:
    """Merge, measure, refuse or keep."""
    told = json.loads(ctx.options["merge"])
    models = [Path(x) for x in told["models"]]
    recipe = Recipe(told["method"], tuple(told["weights"]), told["scale"], told["density"])
    base = Path(told["base"]) if told["base"] else None
    made = merge_models(models, ctx.out, recipe, base=base, dtype=getattr(torch, ctx.params.model.dtype))
    ctx.say(f"{recipe.method} of {len(models)} models: {len(made.files)} files")
    record: dict[str, Any] = {"gate": told["gate"], "benchmark": told["benchmark"]}
    if told["gate"] == "off":
        ctx.say("gate off: nobody measured whether it is any good; `guiderail evaluate --model` does")
    else:
        record |= gate(ctx, models, told["benchmark"], told["gate"]).to_json()
    write_json(ctx.out / "verify.json", record)


def gate(ctx: StageContext, models: list[Path], benchmark: str, mode: str) -> Verdict:
    """Play the benchmark with all models and `ctx.out`. Raises WorseError in mode refuse."""
    manifest, p = splits.load_manifest(paths.tasks_json()), ctx.params.evaluate
    names = {f"{x.name}-{weights_digest(x)[:8]}": x for x in models}
    subjects = [*(bench.Subject(n, x) for n, x in names.items()), bench.Subject(MERGED, ctx.out)]
    for subject in subjects:
        bench.check_subject(manifest, subject.folder)
    if benchmark in PROTOCOLS:
        results = evaluate_recorded.play(ctx, subjects, benchmark, evaluate.CACHE)
        (ctx.out / "recorded.json").unlink()
        for file in ctx.out.glob("*.jsonl"):
            file.unlink()
    else:
        results = evaluate.play(ctx, subjects, manifest, benchmark)
    found = judge({n: r.rows for n, r in results.items()}, MERGED, draws=p.bootstrap, confidence=p.confidence)
    for line in found.lines():
        ctx.say(line)
    if found.unmeasured:
        raise MergeError(f"nothing was measured for {found.unmeasured}: the gate cannot judge; see the pool's log")
    if found.worse_than and mode == "refuse":
        lost = "; ".join(line for line in found.lines() if line.endswith("WORSE"))
        raise WorseError(
            f"the merge is worse than what it was made of, so it is not kept: {lost}. Choose another method, weight or "
            "scale, or keep it all the same with --gate warn"
        )
    return found
