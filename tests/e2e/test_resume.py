"""The real `guiderail sft` and `guiderail rl`, killed with -9 after their first checkpoint: nothing outlives them, the
same command goes on, and what it publishes is byte for byte what an uninterrupted run publishes.

Minutes. Needs a Chromium and assets/tiny-vlm. `pytest -m e2e tests/e2e/test_resume.py`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from guiderail.params import load
from guiderail.provenance import tree_digest
from guiderail.workflow.presets import merged, render

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
REPLAY = {"algorithm": "semi_online", "iterations": 2, "group_size": 4, "semi_online": {"patch": "on_policy"}}
ASYNC = {"importance_cap": 2.0, "collection": {"mode": "async"}}
AHEAD = ASYNC | {"group_size": 8, "temperature": 2.0}  # groups that differ: else no optimiser step is taken
SMALL = {
    "sweep": {"recipe": ["grpo", "replay", "ahead"]},
    "recipes": {"grpo": {}, "ahead": AHEAD, "replay": {"phases": [REPLAY, REPLAY | {"clip_low": 0.1}]}},
    "provision": {"templates": ["click-test", "click-button"], "heldout": ["click-link"], "selftest_instances": 0},
    "demos": {"per_template": 3},
    "sft": {"epochs": 4, "batch": 2, "save_every": 2},
    "rl": {"iterations": 3, "groups": 2, "group_size": 2, "batch": 4, "epochs": 1, "save_every": 1, "temperature": 1.5},
    "env": {"slots": 4},
    "tracking": {"enabled": False},
}

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.timeout(1800)]


class Scratch:
    """A copy of what the stages need."""

    def __init__(self, path: Path) -> None:
        self.path = path
        keep = ("DVC_", "GUIDERAIL_STAGES", "GUIDERAIL_POOL", "MLFLOW_")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(keep)}
        self.env |= {"PYTHONPATH": str(path / "src"), "PYTHONUNBUFFERED": "1"}

    def start(self, *argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PYTHON, "-m", "guiderail", *argv],
            cwd=self.path,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv: str) -> str:
        p = self.start(*argv)
        _, told = p.communicate(timeout=900)
        assert p.returncode == 0, told
        return told

    def killed_after_first_checkpoint(self, *argv: str, phase: str = "") -> str:
        """Start a stage, kill it with -9 once a checkpoint (of `phase`) is on disk; everything it started must be gone
        soon. Returns the names of what it had started."""
        p = self.start(*argv)
        end = time.monotonic() + 600
        while not list((self.path / ".work" / argv[0]).glob(f"*/{phase}state-????????/state.json")):
            assert p.poll() is None and time.monotonic() < end, p.communicate()[1]
            time.sleep(0.02)
        started = psutil.Process(p.pid).children(recursive=True)
        names = " ".join(" ".join(c.cmdline()) for c in started if c.is_running())
        p.kill()
        assert p.wait() == -9
        p.stderr.close()
        _, alive = psutil.wait_procs(started, timeout=60)
        assert [c for c in alive if c.status() != psutil.STATUS_ZOMBIE] == []
        return names


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """Demonstrations of two templates, recorded."""
    path = tmp_path_factory.mktemp("resume") / "guiderail"
    for folder in ("src/guiderail", "assets", "workflow", "plugins"):
        shutil.copytree(ROOT / folder, path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("dvc.yaml", "params.yaml"):
        shutil.copyfile(ROOT / file, path / file)
    params = load(path / "params.yaml")
    tree = merged(params.model_dump(mode="json"), SMALL)
    (path / "params.yaml").write_text(render(type(params).model_validate(tree), "small"))
    made = Scratch(path)
    made.run("provision")
    made.run("demos")
    return made


def compared(scratch: Scratch, argv: list[str], output: str, unit: str, phase: str = "") -> str:
    """Run `argv` uninterrupted, then killed and resumed, and compare. Returns what the killed run had started."""
    scratch.run(*argv)
    final, whole = scratch.path / output, scratch.path / "whole" / output
    whole.parent.mkdir(exist_ok=True, parents=True)
    final.rename(whole)
    started = scratch.killed_after_first_checkpoint(*argv, phase=phase)
    assert not final.exists()
    told = scratch.run(*argv)
    assert f"goes on from its checkpoint: {unit}" in told, told
    assert json.loads((final / "provenance.json").read_text())["cost"]["attempts"] == 2
    assert tree_digest(final / "checkpoint") == tree_digest(whole / "checkpoint")
    assert not (scratch.path / ".work").exists()
    return started


def test_sft_goes_on_and_ends_with_the_same_bytes(scratch):
    compared(scratch, ["sft", "--seed", "0"], "results/sft/seed0", "2 of ")


def before_rl(scratch: Scratch, recipe: str) -> None:
    """The stages that `rl` of a recipe comes after, as far as they were not run."""
    if not (scratch.path / "results/sft/seed0").exists():
        scratch.run("sft", "--seed", "0")
    scratch.run("prm", "--recipe", recipe, "--seed", "0")


def test_rl_goes_on_leaves_no_browser_and_ends_with_the_same_bytes(scratch):
    before_rl(scratch, "grpo")
    argv = ["rl", "--recipe", "grpo", "--seed", "0"]
    started = compared(scratch, argv, "results/rl/grpo/seed0", "1 of 3 iterations")
    assert "guiderail.pool.server" in started and "--remote-debugging" in started  # there was something to leave behind
    assert same_metrics(scratch, "results/rl/grpo/seed0")["iterations"] == 3


def same_metrics(scratch: Scratch, output: str) -> dict[str, float]:
    """metrics.json of `output`, which must be that of the whole run but for its times."""
    found, whole = (
        json.loads((p / output / "metrics.json").read_text()) for p in (scratch.path, scratch.path / "whole")
    )
    same = {k for k in whole if not k.endswith("_s")}
    assert {k: found[k] for k in same} == {k: whole[k] for k in same}
    return found


def test_phases_along_recordings_go_on_without_a_browser(scratch):
    before_rl(scratch, "replay")
    output = "results/rl/replay/seed0"
    argv = ["rl", "--recipe", "replay", "--seed", "0"]
    started = compared(scratch, argv, output, "2 of 2 iterations", phase="phase1/")
    assert "guiderail.pool.server" not in started
    metrics = same_metrics(scratch, output)
    assert metrics["iterations"] == 4 and metrics["replay_steps"] == metrics["env_steps"] > 0
    assert metrics["optimizer_steps"] > 0


def test_rollouts_ahead_go_on_and_their_schedule_gives_the_same_bytes(scratch):
    """Killed with its worker process, resumed; then the schedule of both lives is followed from the start."""
    before_rl(scratch, "ahead")
    argv = ["rl", "--recipe", "ahead", "--seed", "0"]
    started = scratch.killed_after_first_checkpoint(*argv)
    assert "guiderail.stages.rollout_worker" in started and "guiderail.pool.server" in started
    assert "goes on from its checkpoint: 1 of 3 iterations" in scratch.run(*argv)
    final, first = scratch.path / "results/rl/ahead/seed0", scratch.path / "first"
    final.rename(first)
    shutil.copyfile(first / "schedule.jsonl", scratch.path / "schedule.jsonl")
    params = load(scratch.path / "params.yaml")
    follow = {
        "recipes": {**params.recipes, "ahead": AHEAD | {"collection": {"mode": "async", "replay": "schedule.jsonl"}}}
    }
    tree = merged(params.model_dump(mode="json"), follow)
    (scratch.path / "params.yaml").write_text(render(type(params).model_validate(tree), "small"))
    scratch.run(*argv)
    assert tree_digest_of(final) == tree_digest_of(first)
    assert untimed(final) == untimed(first)
    metrics, curves = untimed(final)
    assert metrics["iterations"] == len(curves) == 3 and metrics["optimizer_steps"] > 0
    assert max(row.get("staleness/1", 0) for row in curves) > 0  # rollouts were ahead of training
    assert (final / "schedule.jsonl").read_bytes() == (first / "schedule.jsonl").read_bytes()


CLOCKED = re.compile(r".*_s|idle_.*|waves_ready|worker_restarts")
"""What the clock decides: times and rates, idle shares, waves that happened to wait."""


def untimed(output: Path) -> tuple[dict[str, float], list[dict[str, float]]]:
    """(metrics.json, curves.jsonl) of a stage without what the clock decides."""
    rows = [json.loads(line) for line in (output / "curves.jsonl").read_text().splitlines()]
    told = [json.loads((output / "metrics.json").read_text()), *rows]
    metrics, *curves = [{k: v for k, v in row.items() if not CLOCKED.fullmatch(k)} for row in told]
    return metrics, curves


def tree_digest_of(output: Path) -> str:
    """Of the trained tensors (the manifest beside them names the parameters, one of which differs)."""
    (weights,) = (output / "checkpoint").glob("*.safetensors")
    return tree_digest(weights)
