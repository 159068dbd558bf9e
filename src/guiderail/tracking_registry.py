"""The model registry: a version per merged checkpoint, `candidate` on the newest, `champion` through a gate.

Guarantees: a version leads to the run that made it and to the folder and manifest of its weights (in a local store
relative to the folder of the project, so that both can move together); weights are not copied (a server that may not
see our disk gets the record of the files instead, unless told to take them all). A version becomes champion only if it
was measured better than the present one on the same tasks, and says so with the interval and the day; the first one
measured becomes champion because nothing stands against it. The one before it says from then on by which version it was
superseded.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guiderail.tracking_mlflow import MlflowRun

CANDIDATE, CHAMPION = "candidate", "champion"
RECORD = ("manifest.json", "verify.json", "provenance.json", "config.json")
FILE = "evaluation.json"
ALIASES = (
    "Merged checkpoints, one version each. `candidate` is the newest; `champion` the one that was measured better than "
    "the champion before it, beyond the interval; `<recipe>-seed<seed>` the newest of a point of the sweep. The "
    "description of a version says how it fared. Sources are folders below the project's, where `guiderail ui` runs."
)
"""What the registered model says of its aliases."""

Difference = tuple[float | None, float | None, float | None, int]
"""Mean, lower and upper bound of a paired difference, and how many tasks it is of."""


@dataclass(frozen=True)
class Model:
    """A merged checkpoint: the registered model's name, its folder, the digest of its manifest, tags (recipe, seed)."""

    name: str
    folder: Path
    digest: str
    tags: Mapping[str, str]

    @property
    def alias(self) -> str:
        """The alias of one point of the sweep."""
        return "-".join(f"{k}{v}" if k == "seed" else v for k, v in self.tags.items() if k in ("recipe", "seed"))


@dataclass(frozen=True)
class Measured:
    """What an evaluation found: success by task, on `split` of `benchmark`, over the tasks of `split_hash`."""

    benchmark: str
    split: str
    split_hash: str
    success: Mapping[str, float]


def register(run: MlflowRun, model: Model, aliases: Sequence[str], upload: bool = False) -> Any:
    """A new version of `model`, made by `run`, under `aliases`. upload: send the weights to the artifact store."""
    from mlflow.exceptions import MlflowException

    try:
        run.client.create_registered_model(model.name, description=ALIASES)
    except MlflowException as e:
        if e.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    folder = model.folder.resolve()
    inside = run.root is not None and folder.is_relative_to(run.root.resolve())
    source = folder.relative_to(run.root.resolve()).as_posix() if run.root and inside else folder.as_uri()
    if upload or not run.local:
        for file in [model.folder] if upload else [model.folder / f for f in RECORD if (model.folder / f).is_file()]:
            run.artifact(file, "model")
        source = f"runs:/{run.run}/model"
    tags = {**model.tags, "manifest_sha256": model.digest, "weights": "uploaded" if upload else "by reference"}
    version = run.client.create_model_version(model.name, source=source, run_id=run.run, tags=tags)
    for alias in aliases:
        run.client.set_registered_model_alias(model.name, alias, version.version)
    return version


def promote(run: MlflowRun, model: Model, found: Measured, better: Callable[[Mapping[str, float]], Difference]) -> str:
    """Let `model`, measured by `run`, try to become champion; gives one line that says what happened and why.

    better(champion's success by task): the paired difference to it, ours minus theirs.
    """
    with run.alone():
        version = _version(run, model) or register(run, model, [model.alias])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / FILE
            path.write_text(json.dumps(found.__dict__ | {"success": dict(found.success)}))
            run.artifact(path, None)
        champion = _champion(run, model.name)
        won, why = _verdict(run, version, champion, found, better)
        tags = {f"evaluated.{found.benchmark}": run.run, f"gate.{found.benchmark}": why}
        mean = sum(found.success.values()) / len(found.success) if found.success else None
        if mean is not None:
            tags[f"success.{found.benchmark}.{found.split}"] = f"{mean:.4f}"
        for key, value in tags.items():
            run.client.set_model_version_tag(model.name, version.version, key, value)
        if champion is None or int(champion.version) != int(version.version):  # one that stays keeps its reason
            told = f"{why}. {_meaning(found, champion)}" if won else why
            run.client.update_model_version(model.name, version.version, description=f"{model.alias}: {told}")
        if won:
            run.client.set_registered_model_alias(model.name, CHAMPION, version.version)
            if champion is not None:
                _supersede(run, model, found.benchmark, champion, version)
        run.tags({"model": model.name, "model_version": version.version, "gate": why})
    return f"{model.name} version {version.version}: {why}"


def _meaning(found: Measured, champion: Any) -> str:
    """What the alias says of a version that takes it today from `champion`, and what it does not say."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    where = f"{found.split} of {found.benchmark}"
    if champion is None:
        return f"Since {day}; nothing stood against it on {where}"
    return (
        f"Since {day}: better, beyond the interval, than the champion before it (version {champion.version}) on "
        f"{where}. A later version that cannot be told from it does not take the alias; the report compares all"
    )


def _supersede(run: MlflowRun, model: Model, benchmark: str, old: Any, new: Any) -> None:
    """Let the version that was champion say which one took its place."""
    told = f"superseded by version {new.version} ({model.alias}) on {time.strftime('%Y-%m-%d', time.gmtime())}"
    alias = Model(model.name, model.folder, "", old.tags).alias
    run.client.set_model_version_tag(model.name, old.version, f"gate.{benchmark}", told)
    run.client.update_model_version(model.name, old.version, description=f"{alias}: {told}")


def _version(run: MlflowRun, model: Model) -> Any:
    """The newest version of these very weights; None when there is none."""
    found = run.client.search_model_versions(f"name='{model.name}' AND tags.manifest_sha256='{model.digest}'")
    return max(found, key=lambda v: int(v.version)) if found else None


def _champion(run: MlflowRun, name: str) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        return run.client.get_model_version_by_alias(name, CHAMPION)
    except MlflowException as e:
        if e.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None


def _verdict(
    run: MlflowRun, version: Any, champion: Any, found: Measured, better: Callable[[Mapping[str, float]], Difference]
) -> tuple[bool, str]:
    """(whether it becomes champion, the reason in words)."""
    where = f"on {found.split} of {found.benchmark}"
    if not found.success:
        return False, f"not champion: nothing was measured {where}"
    if champion is None:
        return True, f"champion: the first to be measured {where}"
    if int(champion.version) == int(version.version):
        return False, f"is champion; measured again {where}"
    source = champion.tags.get(f"evaluated.{found.benchmark}")
    if source is None:
        return False, f"not champion: version {champion.version}, which is, was not measured on {found.benchmark}"
    with tempfile.TemporaryDirectory() as folder:
        known = json.loads(Path(run.client.download_artifacts(source, FILE, folder)).read_text())
    if (known["split"], known["split_hash"]) != (found.split, found.split_hash):
        return False, f"not champion: version {champion.version}, which is, was measured on other tasks"
    mean, lo, hi, n = better(known["success"])
    if mean is None or lo is None or hi is None:
        return False, f"not champion: no task was measured for both it and version {champion.version}"
    told = f"{100 * mean:+.1f} points [{100 * lo:+.1f}, {100 * hi:+.1f}] against version {champion.version} {where}"
    told += f", {n} tasks"
    return (True, f"champion: {told}") if lo > 0 else (False, f"not champion: {told}")
