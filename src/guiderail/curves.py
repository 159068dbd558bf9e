"""curves.jsonl: the record of a stage's metrics by step.

Guarantees: a row is on disk when `append` returns; a torn last line (a kill while writing) is dropped on opening;
`rewind` lets a resumed stage write the rows after its checkpoint again. No clock, no host: the same run gives the same
bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All whole rows of a curves.jsonl, which is left as it is; none where there is no file."""
    out: list[dict[str, Any]] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            out.append(json.loads(line))
        except json.JSONDecodeError:  # the line that a kill cut in two
            break
    return out


class Curves:
    """Append-only JSON lines `{"step": int, "<metric>": float | null}`; survives a torn last line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rewind(None)

    def rows(self) -> list[dict[str, Any]]:
        """All whole rows on disk."""
        return read_rows(self.path)

    def rewind(self, step: int | None) -> None:
        """Drop rows at or after `step` (None: only a torn tail), so that a resumed stage writes them again."""
        if self.path.exists():
            kept = [r for r in self.rows() if step is None or r["step"] < step]
            tmp = self.path.with_suffix(".tmp")
            tmp.write_text("".join(json.dumps(r) + "\n" for r in kept))
            os.replace(tmp, self.path)

    def append(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one row; non-finite values become null."""
        row = {"step": step} | {k: float(v) if math.isfinite(v) else None for k, v in metrics.items()}
        with self.path.open("a") as f:
            f.write(json.dumps(row) + "\n")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"rl": {"lr": 1}}` -> `{"rl.lr": 1}`; empty mappings are kept as `{}`."""
    out: dict[str, Any] = {}
    for k, v in tree.items():
        if isinstance(v, Mapping) and v:
            out |= flatten(v, f"{prefix}{k}.")
        else:
            out[f"{prefix}{k}"] = v
    return out
