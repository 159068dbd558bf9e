"""manifest.json: what a checkpoint is, what it was made from, and the hash of every file in it.

Guarantees: `verify_files` finds a flipped byte, a missing and an extra file; `check_link` refuses a parent whose
weights are not the recorded ones; `trained_on` lists the templates and instances of the whole lineage, so that a
benchmark that overlaps can be refused. Paths of parents are as the stage saw them (relative to the repository root);
identity is always the weights' digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from guiderail.errors import Explained

FILE = "manifest.json"
UNHASHED = (FILE, "README.md", "verify.json", "provenance.json", "curves.jsonl", ".snakemake_timestamp")
Kind = Literal["full", "lora", "merged"]


class ManifestError(Explained, ValueError):
    """A checkpoint is not what its manifest says. The message names the file or parent and the remedy."""


class _Record(BaseModel):
    """Frozen, strict JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Link(_Record):
    """Another checkpoint: where it lay and the digest of its weights (`weights_digest`)."""

    path: str
    sha256: str

    @classmethod
    def to(cls, folder: Path) -> Link:
        """Link to an existing checkpoint folder."""
        return cls(path=folder.as_posix(), sha256=weights_digest(folder))


class TrainedOn(_Record):
    """Tasks that influenced the weights, this checkpoint's and its ancestors': `instances` are TaskSpec ids."""

    suite: str = ""
    split_hash: str = ""
    templates: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()

    def union(self, other: TrainedOn) -> TrainedOn:
        """Both together; suite and hash of the later (self) win when set."""
        return TrainedOn(
            suite=self.suite or other.suite,
            split_hash=self.split_hash or other.split_hash,
            templates=tuple(sorted({*self.templates, *other.templates})),
            instances=tuple(sorted({*self.instances, *other.instances})),
        )


class Manifest(_Record):
    """Contents of manifest.json.

    kind: full or merged (a Hugging Face folder) or lora (a PEFT adapter). parent: the weights an adapter is folded
    into, or the folder a full checkpoint's untouched tensors come from. start: the checkpoint that training started
    from (the lineage). ancestors: digests of all checkpoints on the way back to the base. files: sha256 by name.
    """

    kind: Kind
    stage: str
    parent: Link | None = None
    start: Link | None = None
    ancestors: tuple[str, ...] = ()
    recipe: str = ""
    seed: int = 0
    params_digest: str = ""
    trained_on: TrainedOn = TrainedOn()
    method: dict[str, Any] = {}
    files: dict[str, str] = {}
    format: Literal[1] = 1


def sha256_file(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def digest_json(value: Any) -> str:
    """sha256 of canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()


def weights_digest(folder: Path) -> str:
    """Identity of a checkpoint: sha256 over the names and hashes of its weights and model configuration, nothing
    else."""
    names = sorted(
        p.name
        for p in folder.iterdir()
        if p.suffix == ".safetensors" or p.name in ("config.json", "adapter_config.json")
    )
    if not any(n.endswith(".safetensors") for n in names):
        raise ManifestError(f"{folder}: holds no safetensors weights; restore it (dvc checkout) or run its stage")
    return digest_json({n: sha256_file(folder / n) for n in names})


def write(folder: Path, manifest: Manifest) -> Manifest:
    """Hash the files of `folder` and write manifest.json. Returns the manifest as written."""
    files = {n: sha256_file(folder / n) for n in _names(folder)}
    full = manifest.model_copy(update={"files": files})
    (folder / FILE).write_text(json.dumps(full.model_dump(mode="json"), indent=1, sort_keys=True) + "\n")
    return full


def sign_base(folder: Path, options: Mapping[str, Any] | None = None) -> Manifest:
    """Write the manifest of a base model (stage "pretrain", no parent); `options` of its making go into `method`.

    Raises ManifestError for a checkpoint of the chain: its manifest was written with its weights and tells its lineage.
    """
    known = read(folder) if (folder / FILE).is_file() else None
    if known is not None and known.stage != "pretrain":
        raise ManifestError(
            f"{folder}: a checkpoint of stage {known.stage}; a new manifest would lose its lineage. "
            "Restore it (dvc checkout) or run its stage"
        )
    return write(folder, Manifest(kind="full", stage="pretrain", method=dict(options or {})))


def _names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p.name not in UNHASHED)


def read(folder: Path) -> Manifest:
    """Read manifest.json. Raises ManifestError when it is missing or of another format."""
    file = folder / FILE
    if not file.is_file():
        raise ManifestError(f"{file}: missing; {folder} is not a checkpoint of guiderail (or was copied without it)")
    try:
        return Manifest.model_validate_json(file.read_bytes())
    except ValidationError as e:
        raise ManifestError(f"{file}: not a manifest this version reads ({e.error_count()} problems): {e}") from None


def verify_files(folder: Path) -> Manifest:
    """Read the manifest and check every file against it. Raises ManifestError naming what differs."""
    manifest = read(folder)
    present = set(_names(folder))
    missing, extra = sorted(manifest.files.keys() - present), sorted(present - manifest.files.keys())
    changed = [n for n in sorted(manifest.files.keys() & present) if sha256_file(folder / n) != manifest.files[n]]
    if missing or extra or changed:
        found = "; ".join(
            f"{w} {n}" for w, n in (("missing", missing), ("not listed", extra), ("changed", changed)) if n
        )
        raise ManifestError(
            f"{folder}: files are not the recorded ones: {found}. Restore it (dvc checkout) or run its stage"
        )
    return manifest


def check_link(link: Link | None, what: str, of: Path) -> Path:
    """Folder of a linked checkpoint. Raises ManifestError when it is gone or its weights are not the recorded ones."""
    if link is None:
        raise ManifestError(f"{of}: its manifest names no {what}")
    folder = Path(link.path)
    if not folder.is_dir():
        raise ManifestError(f"{of}: its {what} {folder} does not exist; restore it (dvc checkout) or run its stage")
    found = weights_digest(folder)
    if found != link.sha256:
        raise ManifestError(
            f"{of}: {what} {folder} is foreign: weights {found[:12]}, recorded {link.sha256[:12]}; "
            f"restore the {what} it was trained from, or train again"
        )
    return folder


def lineage(start: Path) -> tuple[tuple[str, ...], TrainedOn]:
    """(ancestor digests, tasks trained on) for a checkpoint that starts from `start`; `start` may be a plain base
    model."""
    own = weights_digest(start)
    if not (start / FILE).is_file():
        return (own,), TrainedOn()
    manifest = verify_files(start)
    return (*manifest.ancestors, own), manifest.trained_on


def trained_ids(folders: Iterable[Path]) -> set[str]:
    """TaskSpec ids that the checkpoints were trained on (for refusing a benchmark that overlaps)."""
    return {i for f in folders if (f / FILE).is_file() for i in read(f).trained_on.instances}
