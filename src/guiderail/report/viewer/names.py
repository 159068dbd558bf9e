"""What an episode is called, and the commands that play it again.

Guarantees: the name is made from the folder it is stored in and its place there, so it is the same in the explorer, in
the report and on the command line; a command is quoted for a shell and works from the folder above the results.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guiderail.bench.protocols import PROTOCOLS


def evaluated(run: str, checkpoint: str, task: str, number: int) -> str:
    """Name of an evaluated episode: `evaluate/grpo/seed0/miniwob/rl/miniwob/click-tab/7/0/0`."""
    return f"{run}/{checkpoint}/{task}/{number}"


def command(name: str, results: Path = Path("results")) -> str:
    """`guiderail replay ...` for the episode called `name`."""
    words = ["guiderail", "replay", name]
    if results.resolve() != Path("results").resolve():
        words += ["--results", str(results)]
    return shlex.join(words)


def recorded(run: str) -> bool:
    """Whether a run asked for actions on stored screens: there is no page to play its episodes on again."""
    return run.rpartition("/")[2] in PROTOCOLS  # evaluate/R/seedS/BENCHMARK, model/NAME/BENCHMARK


def commands(found: Mapping[str, Any], results: Path) -> dict[str, str | None]:
    """The commands that play an episode (`episode.load`) again: its recorded actions, and the policy where its weights
    were kept. Both None for trajectories of stored screens."""
    if recorded(found["run"]):
        return {"recorded": None, "policy": None}
    key = found["key"].removeprefix("live/") if not found["live"] else found["key"]
    kept = found["kind"] == "evaluation" or (
        found["kind"] == "rollout" and found["iteration"] == 0 and not found["live"]
    )
    told = command(key, results)
    return {"recorded": told, "policy": f"{told} --policy" if kept else None}
