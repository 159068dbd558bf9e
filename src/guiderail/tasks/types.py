"""What a task is: a template (a page, an app, a judge) and an instance (a seed) of it.

Guarantees: a `TaskSpec` is immutable, orders and hashes by its id, and round-trips through JSON.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Split = Literal["train", "fresh", "heldout"]


@dataclass(frozen=True, order=True)
class TaskSpec:
    """One task instance.

    `template` names the page (e.g. "click-button"), `seed` its instance, `wording` the instruction variant
    (0 = the page's own words), `max_steps` the step budget, `threshold` the raw reward that counts as success,
    `domain` a coarse group for the report (e.g. "click", "form", "text").
    """

    suite: str
    template: str
    seed: int
    split: Split = "train"
    wording: int = 0
    domain: str = "all"
    max_steps: int = 5
    threshold: float = 1.0

    @property
    def id(self) -> str:
        """Stable identifier, unique within a suite."""
        return f"{self.suite}/{self.template}/{self.seed}/{self.wording}"

    def to_json(self) -> dict[str, Any]:
        """Plain dict for manifests and the wire."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TaskSpec:
        """Inverse of `to_json`. Raises TypeError on unknown keys."""
        return cls(**data)
