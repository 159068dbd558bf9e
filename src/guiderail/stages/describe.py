"""What a run of a stage is, in words and digests, for those who find it in MLflow: its description and its inputs.

Guarantees: relative paths only; the digests are those of provenance.json and of the manifests themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from guiderail.curves import flatten
from guiderail.params import Params
from guiderail.stages.paths import tasks_json
from guiderail.tasks.manifest_file import read
from guiderail.tracking_mlflow import DataSet
from guiderail.workflow.spec import Job

MEASURED = ("evaluate", "evaluate_model", "report")
EPISODES = ("demos", "rl", "evaluate")


def description(record: Mapping[str, Any], final: Path, explorer: str) -> str:
    """Markdown: the command, where the output is, the code, what differs from the defaults, a link to its episodes."""
    git, stage = record["git"], record["stage"]
    commit = (
        f"`{git['commit'][:12]}`{', with uncommitted changes' if git['dirty'] else ''}" if git["commit"] else "none"
    )
    lines = [
        f"`{' '.join(record['command'])}`",
        "",
        f"- output: `{final.as_posix()}` (`provenance.json` in it says where it came from)",
        f"- commit: {commit}; attempt digest `{record['digest'][:12]}`",
    ]
    changed = differences(record["params"])
    told = ", ".join(f"`{k}: {v}`" for k, v in list(changed.items())[:12])
    more = f" and {len(changed) - 12} more" if len(changed) > 12 else ""
    lines.append(f"- differs from the defaults: {told or 'nothing'}{more}")
    if stage in EPISODES and explorer:
        run = final.relative_to("results").as_posix() if final.is_relative_to("results") else final.as_posix()
        link = f"{explorer.rstrip('/')}/?run={quote(run, safe='')}"
        lines.append(f"- [its episodes in the explorer]({link}) (while `guiderail view` runs)")
    return "\n".join(lines) + "\n"


def differences(used: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a record that are not the defaults of the code, by dotted key."""
    default = flatten(Params().model_dump(mode="json"))
    return {k: v for k, v in flatten(used).items() if k in default and default[k] != v}


def shown(job: Job, params: Params) -> bool:
    """Whether a stage has anything to show in MLflow; where a recipe wants no process reward model, prm has not."""
    return job.stage != "prm" or params.wants_prm(job.axes["recipe"])


def tags_of(job: Job, record: dict[str, Any]) -> dict[str, str]:
    """The tags of a run, for filters; those that begin with mlflow fill MLflow's own columns Source and Version."""
    tags = {"stage": job.stage, **job.axes, "stage_key": job.address, "digest": record["digest"]}
    tags["git.commit"] = f"{record['git']['commit']}{'-dirty' if record['git']['dirty'] else ''}"
    tags |= {"mlflow.source.name": " ".join(record["command"]), "mlflow.source.type": "LOCAL"}
    tags |= {"mlflow.source.git.commit": record["git"]["commit"]} if record["git"]["commit"] else {}
    tags["dvc.lock.sha256"] = str(record["dvc_lock_sha256"])
    manifest = tasks_json()
    if job.stage not in ("provision", "pretrain") and manifest.exists():
        head = read(manifest)
        tags |= {"split_hash": str(head.get("hash", "")), "suite": str(head.get("suite", ""))}
    return tags


def datasets(record: Mapping[str, Any]) -> list[DataSet]:
    """The data and models among a record's inputs (code is the commit's affair), the tasks first: MLflow's table of
    runs shows the first."""
    context = "evaluation" if record["stage"] in MEASURED else "training"
    found: list[DataSet] = []
    for path, digest in record["inputs"].items():
        if path.startswith(("src/", "plugins/")):
            continue
        head = read(path) if Path(path) == tasks_json() else {}
        if {"suite", "hash", "splits"} <= head.keys():
            counts = {k: len(v) for k, v in head["splits"].items()}
            found.insert(0, DataSet(f"tasks of {head['suite']}", str(head["hash"]), path, context, counts))
        else:
            found.append(DataSet(path.removeprefix("results/"), digest, path, context))
    return found
