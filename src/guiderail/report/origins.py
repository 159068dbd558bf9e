"""Where the numbers came from: commit, lock, parameters that differ from the default, and hashes of the data.

Guarantees: all of it is read from the provenance records the stages left; of the checkout the report is made in only
the commit is told, as that of the report itself; outputs that were made by different code or locks are told apart; what
no record says is "not recorded". Lock files differ from stage to stage as DVC writes them, so the last one is named for
each output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from guiderail.params import Params
from guiderail.provenance import git_state
from guiderail.report.data import ReportData

NOT = "not recorded"
NAMED = 3
"""Changed files that are named; more are counted."""


def results_folder(data: ReportData) -> Path:
    """The folder that `data` was read from."""
    return next(iter(data.evaluations.values())).parents[3]


def read(data: ReportData) -> dict[str, dict[str, Any]]:
    """provenance.json of every output of the sweep that has one, by the output's place below results."""
    found: dict[str, dict[str, Any]] = {}
    for name in data.used:
        try:
            record = json.loads((results_folder(data) / name / "provenance.json").read_text())
        except (OSError, ValueError):
            continue
        found[name] = record if isinstance(record, dict) else {}
    return found


def _commit(record: Mapping[str, Any]) -> str:
    git = record.get("git") or {}
    commit = git.get("commit")
    if not isinstance(commit, str):
        return NOT
    if not git.get("dirty"):
        return commit[:12]
    files = list(map(str, git.get("changed") or [])) or ["files not recorded"]
    named = ", ".join(files[:NAMED]) + (f" and {len(files) - NAMED} more" if len(files) > NAMED else "")
    return f"{commit[:12]} with changes in {named}"


def commits(data: ReportData) -> list[str]:
    """The commits that made the outputs, each once, in short."""
    return sorted({_commit(r).replace(" with changes in ", " + ") for r in read(data).values()})


def table(records: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """One line per output: commit, lock, digest of parameters and inputs."""
    return pd.DataFrame(
        [
            {"output": name, "commit": _commit(r), "dvc.lock": str(r.get("dvc_lock_sha256") or NOT)[:12],
             "digest": str(r.get("digest") or NOT)[:12]}
            for name, r in records.items()
        ],
        columns=["output", "commit", "dvc.lock", "digest"],
    )  # fmt: skip


def changed_params(records: Mapping[str, Mapping[str, Any]], sweep: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Parameters that the outputs were made with and whose value is not the default: key, value, default. sweep: the
    points of this report, which no single output records."""
    used: dict[str, Any] = _leaves(dict(sweep or {}), "sweep")
    for record in records.values():
        for key, value in (record.get("params") or {}).items():
            used |= _leaves(value, key)
    default = _leaves(Params().model_dump(mode="json"))
    rows = [
        {"parameter": k, "value": json.dumps(v), "default": json.dumps(default[k]) if k in default else "none"}
        for k, v in sorted(used.items())
        if k not in default or default[k] != v
    ]
    return pd.DataFrame(rows, columns=["parameter", "value", "default"])


def _leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {prefix: value} if prefix and value != {} else {}
    return {
        k: v for name, part in value.items() for k, v in _leaves(part, f"{prefix}.{name}" if prefix else name).items()
    }


def data_hashes(records: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Inputs other than code with their sha256, and how many outputs read them; two hashes of one input stand apart."""
    found: dict[tuple[str, str], int] = {}
    for record in records.values():
        for path, sha in (record.get("inputs") or {}).items():
            if not path.startswith("src/"):
                found[path, str(sha)] = found.get((path, str(sha)), 0) + 1
    rows = [{"data": p, "sha256": sha, "read by": f"{n} outputs"} for (p, sha), n in sorted(found.items())]
    return pd.DataFrame(rows, columns=["data", "sha256", "read by"])


def reading(data: ReportData) -> list[tuple[str, str, pd.DataFrame]]:
    """(heading, note, table of texts) for the pages."""
    records = read(data)
    if not records:
        return []
    commits = sorted({_commit(r) for r in records.values()})
    packages: dict[str, str] = next((r["packages"] for r in reversed(list(records.values())) if r.get("packages")), {})
    named = ", ".join(f"{k} {v}" for k, v in packages.items() if k in ("python", "torch", "transformers", "guiderail"))
    note = f"Made by commit {'; '.join(commits)}."
    if len(commits) > 1:
        note += " Several commits: outputs that were up to date were not made again."
    note += f" This report was made by commit {_commit({'git': git_state()})}. {named}"
    made = [("Made by", note.strip(), table(records))]
    changed = changed_params(records, {"recipe": data.recipes, "seed": data.seeds, "benchmark": data.benchmarks})
    same = "Every parameter has its default." if changed.empty else "All others have their default."
    made.append(("Parameters changed against the default", same, changed))
    made.append(("Data", "What the stages read, by content.", data_hashes(records)))
    return [(h, n, t.astype(str)) for h, n, t in made]
