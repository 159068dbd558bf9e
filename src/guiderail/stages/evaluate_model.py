"""evaluate --model: any checkpoint on any benchmark, without training; beside the chain, which it leaves alone.

Reads the folder, results/provision/tasks.json and, for sop, results/demos/recorded (`guiderail provision`, `guiderail
demos`). Writes what the evaluate stage writes, with the one checkpoint "model". Refuses tasks it was trained on, as far
as its manifest tells.
"""

from __future__ import annotations

from pathlib import Path

from guiderail.bench import evaluate as bench
from guiderail.bench.protocols import PROTOCOLS
from guiderail.stages import evaluate, evaluate_recorded, paths
from guiderail.stages.context import StageContext
from guiderail.tasks import splits


def run(ctx: StageContext, model: str, benchmark: str) -> None:
    """Evaluate one folder on one benchmark."""
    manifest = splits.load_manifest(paths.tasks_json())
    subject = bench.Subject("model", Path(model))
    bench.check_subject(manifest, subject.folder)
    if benchmark in PROTOCOLS:
        results = evaluate_recorded.play(ctx, [subject], benchmark, evaluate.CACHE)
    else:
        results = evaluate.play(ctx, [subject], manifest, benchmark)
    evaluate.write(ctx, results, {"model": model, "benchmark": benchmark, "split_hash": manifest["hash"]})
