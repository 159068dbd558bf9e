"""Stand-ins for the stages: pure functions of their parameters and inputs, a few milliseconds each.

Like the real ones they differ from run to run in provenance.json only. RUNLOG gets a line per execution, DUMMY_FAIL
names an address that fails, DUMMY_SLEEP (seconds) makes each stage last.
"""

import hashlib
import json
import os
import time
from pathlib import Path

from guiderail.provenance import tree_digest
from guiderail.stages import paths


def _begin(ctx):
    with open(os.environ["RUNLOG"], "a") as f:
        f.write(ctx.label + "\n")
    if os.environ.get("DUMMY_FAIL") == ctx.label:
        raise RuntimeError(f"injected failure in {ctx.label}")
    time.sleep(float(os.environ.get("DUMMY_SLEEP", "0")))


def _write(folder, name, value):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(value, sort_keys=True))


def _dump(section):
    return section.model_dump(mode="json")


def provision(ctx):
    _begin(ctx)
    _write(ctx.out, "tasks.json", {"suite": "miniwob", "hash": "0", "p": _dump(ctx.params.provision)})


def demos(ctx):
    _begin(ctx)
    _write(ctx.out, "demos.jsonl", {"p": _dump(ctx.params.demos), "i": tree_digest(paths.tasks_json())})
    _write(ctx.out / "frames", "a.png", "frame")
    _write(ctx.out / "recorded", "demos.jsonl", {"p": ctx.params.demos.recorded})


def sft(ctx, seed):
    _begin(ctx)
    inputs = [tree_digest(paths.demos() / "demos.jsonl"), tree_digest(Path(ctx.params.model.path))]
    _write(ctx.out / "checkpoint", "model.json", {"p": _dump(ctx.params.sft), "seed": seed, "i": inputs})


def prm(ctx, recipe, seed):
    _begin(ctx)
    needed = ctx.params.wants_prm(recipe)
    i = [_dump(ctx.params.prm), tree_digest(paths.sft(seed) / "checkpoint")] if needed else []
    _write(ctx.out / "judge", "judge.json", {"needed": needed, "i": i})


def rl(ctx, recipe, seed):
    _begin(ctx)
    i = [tree_digest(paths.sft(seed) / "checkpoint"), tree_digest(paths.prm(recipe, seed) / "judge")]
    _write(
        ctx.out / "checkpoint", "model.json", {"p": _dump(ctx.params.rl_for(recipe)), "r": recipe, "seed": seed, "i": i}
    )
    ctx.tracker.log({"success": 0.5}, 0)


def merge(ctx, recipe, seed):
    _begin(ctx)
    _write(
        ctx.out, "model.json", {"p": _dump(ctx.params.merge), "i": tree_digest(paths.rl(recipe, seed) / "checkpoint")}
    )


def evaluate(ctx, recipe, seed, benchmark):
    _begin(ctx)
    i = tree_digest(paths.merge(recipe, seed) / "model.json")
    success = int(hashlib.sha256(f"{i}{benchmark}".encode()).hexdigest()[:4], 16) / 65536
    _write(ctx.out, "metrics.json", {"success": success, "p": _dump(ctx.params.evaluate)})


def report(ctx):
    _begin(ctx)
    sweep = ctx.params.sweep
    points = [(r, s, b) for r in sweep.recipe for s in sweep.seed for b in sweep.benchmark]
    lines = [f"- {r} {s} {b}: {(paths.evaluate(r, s, b) / 'metrics.json').read_text()}\n" for r, s, b in points]
    (ctx.out / "report.md").write_text(f"# {ctx.params.report.title}\n" + "".join(lines))
    _write(ctx.out, "summary.json", lines)
    (ctx.out / "figures").mkdir()
    (ctx.out / "figures" / "success.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
