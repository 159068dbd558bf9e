"""What the stages left in `results/`, read once and typed for the report.

Guarantees: the points read are those of `params.sweep`, never whatever lies about; a missing evaluation is an error
that names its path and the command to make it; anything else that is missing is listed in `missing`, not passed over.
Computes nothing: see `summary`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from guiderail.errors import Explained
from guiderail.params import Params

KEYS = ["recipe", "train_seed", "benchmark"]


class ReportError(Explained, RuntimeError):
    """The report cannot be made; the text names the missing input and the command that makes it."""


@dataclass(frozen=True)
class ReportData:
    """Everything the report shows.

    `episodes`: one row per evaluated episode with the columns of `bench.records` plus recipe, train_seed, benchmark.
    `metrics`: metrics.json per (recipe, seed, benchmark). `sft` and `rl`: learning curves per seed and (recipe, seed),
    one row per logged step. `used`: what each output cost, by its folder below the
    results folder: seconds, cpu_seconds, peak_memory_bytes (provenance.json: spent by the run that made it), env_steps,
    of them replay_steps (along recordings), tokens (metrics.json: the work behind it, cached or not), remembered_steps,
    remembered_tokens (provenance.json: what of these came from a cache); None = not recorded.
    `rss_only`: outputs whose peak memory is a sum of resident sets, because no proportional ones (PSS) were recorded.
    `evaluations`: the folder of each point, for its frames. `prm`: calibration.json of the recipes with a process
    reward model. `selftest`: what provision found of each template ({} where it kept nothing).
    """

    recipes: list[str]
    seeds: list[int]
    benchmarks: list[str]
    episodes: pd.DataFrame
    metrics: dict[tuple[str, int, str], dict[str, Any]]
    sft: dict[int, pd.DataFrame]
    rl: dict[tuple[str, int], pd.DataFrame]
    used: dict[str, dict[str, float | None]]
    evaluations: dict[tuple[str, int, str], Path]
    missing: list[str] = field(default_factory=list)
    prm: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    rss_only: list[str] = field(default_factory=list)
    selftest: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_curves(path: Path) -> pd.DataFrame:
    """curves.jsonl as a frame sorted by step; later lines of a step (a resumed run) replace earlier ones."""
    rows: dict[float, dict[str, Any]] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as e:
            raise ReportError(f"{path}:{number}: not JSON ({e}). Run the stage again.") from None
        values = {k: v for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        if "step" not in values:
            raise ReportError(f"{path}:{number}: no `step`. Every line of a curve needs one.")
        rows.setdefault(float(values["step"]), {}).update(values)
    return pd.DataFrame([rows[s] for s in sorted(rows)])


def _used(out: Path) -> tuple[dict[str, float | None], bool]:
    """Cost of the run that made `out`, and whether its peak memory is a sum of resident sets only."""

    def read(name: str) -> dict[str, Any]:
        found: Any = json.loads((out / name).read_text()) if (out / name).exists() else {}
        return found if isinstance(found, dict) else {}

    cost, work = read("provenance.json").get("cost", {}), read("metrics.json")
    values = {
        "seconds": cost.get("seconds"),
        "cpu_seconds": cost.get("cpu_seconds"),
        "peak_memory_bytes": cost.get("peak_pss_bytes", cost.get("peak_rss_bytes")),
        "env_steps": work.get("env_steps"),
        "replay_steps": work.get("replay_steps"),
        "tokens": work.get("tokens"),
        "remembered_steps": cost.get("remembered_env_steps"),
        "remembered_tokens": cost.get("remembered_tokens"),
    }
    rss_only = "peak_rss_bytes" in cost and "peak_pss_bytes" not in cost
    return {k: float(v) if isinstance(v, int | float) else None for k, v in values.items()}, rss_only


def read_selftest(path: Path) -> dict[str, dict[str, Any]]:
    """What provision found of each template; {} when the file is not there."""
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def read_judges(params: Params, results: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """calibration.json of each (recipe, seed) of the sweep that has a process reward model."""
    found = {}
    for recipe in params.sweep.recipe:
        for seed in params.sweep.seed:
            file = results / "prm" / recipe / f"seed{seed}" / "judge" / "calibration.json"
            if file.exists():
                found[recipe, seed] = json.loads(file.read_text())
    return found


def load(params: Params, results: Path) -> ReportData:
    """Read the outputs of all points of the sweep below `results`. Raises ReportError when an evaluation is missing."""
    sweep, missing = params.sweep, []
    frames: list[pd.DataFrame] = []
    metrics: dict[tuple[str, int, str], dict[str, Any]] = {}
    folders: dict[tuple[str, int, str], Path] = {}
    outputs = [results / "provision", results / "demos"]
    for recipe in sweep.recipe:
        for seed in sweep.seed:
            for benchmark in sweep.benchmark:
                folder = results / "evaluate" / recipe / f"seed{seed}" / benchmark
                if not (folder / "episodes.parquet").exists():
                    raise ReportError(
                        f"{folder}: no evaluation. Make it with `guiderail evaluate --recipe {recipe} --seed {seed} "
                        f"--benchmark {benchmark}`, or the whole chain with `snakemake`."
                    )
                rows = pd.read_parquet(folder / "episodes.parquet")
                frames.append(rows.assign(recipe=recipe, train_seed=seed, benchmark=benchmark))
                metrics[recipe, seed, benchmark] = json.loads((folder / "metrics.json").read_text())
                folders[recipe, seed, benchmark] = folder
                outputs.append(folder)
    sft: dict[int, pd.DataFrame] = {}
    rl: dict[tuple[str, int], pd.DataFrame] = {}
    for seed in sweep.seed:
        outputs.append(results / "sft" / f"seed{seed}")
        if (outputs[-1] / "curves.jsonl").exists():
            sft[seed] = read_curves(outputs[-1] / "curves.jsonl")
        else:
            missing.append(f"sft/seed{seed}/curves.jsonl")
        for recipe in sweep.recipe:
            outputs += [results / "rl" / recipe / f"seed{seed}", results / "merge" / recipe / f"seed{seed}" / "model"]
            if (outputs[-2] / "curves.jsonl").exists():
                rl[recipe, seed] = read_curves(outputs[-2] / "curves.jsonl")
            else:
                missing.append(f"rl/{recipe}/seed{seed}/curves.jsonl")
    prm = read_judges(params, results)
    outputs += [results / "prm" / recipe / f"seed{seed}" for recipe, seed in prm]
    used: dict[str, dict[str, float | None]] = {}
    rss_only: list[str] = []
    for out in dict.fromkeys(outputs):
        name = out.relative_to(results).as_posix()
        if not (out / "provenance.json").exists():
            missing.append(f"{name}/provenance.json")
        used[name], only = _used(out)
        rss_only += [name] if only else []
    return ReportData(
        recipes=list(sweep.recipe),
        seeds=list(sweep.seed),
        benchmarks=list(sweep.benchmark),
        episodes=pd.concat(frames, ignore_index=True),
        metrics=metrics,
        sft=sft,
        rl=rl,
        used=used,
        evaluations=folders,
        missing=missing,
        prm=prm,
        rss_only=rss_only,
        selftest=read_selftest(results / "provision" / "selftest.json"),
    )
