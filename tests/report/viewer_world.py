"""A small results tree for the explorer: rollouts with a training record, an evaluation, demonstrations; one episode
tries to break out of the page."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import uvicorn
from synthetic import page

from guiderail.bench import records
from guiderail.envs.types import Outcome
from guiderail.models.frames import FrameStore
from guiderail.report.viewer import server
from guiderail.report.viewer.index import Index
from guiderail.rollout.store import write_episodes
from guiderail.rollout.types import Completion, Episode, SamplingParams, StepRecord
from guiderail.tasks.types import TaskSpec
from guiderail.train.trace import SCHEMA

HOSTILE = "</pre><script>window.owned=1</script><img src=x onerror='window.owned=2'>\u202egnitirw\0\x07 " + "A" * 20_000
EFFECTS = ("made Desktop/<img src=x onerror='window.owned=3'>", "changed .bashrc")
RUN = "rl/grpo/seed0"


def step(n: int, frame: str, action: dict | None, text: str, problem: str = "") -> StepRecord:
    return StepRecord(
        step=n, frame=frame, chunk=0, prompt_len=40,
        completion=Completion((5, 6, 7), (-0.1, -2.0, -0.01), "stop", text),
        sampling=SamplingParams(0.7, 1.0, 28, 2**62 + 1), thought=text.split("\n")[0],
        action=json.dumps(action) if action else "", parse_error=problem, policy_version=0, seconds_policy=0.25,
        seconds_env=0.5,
    )  # fmt: skip


def episode(
    task: TaskSpec, sibling: int, win: bool, frames: list[str], text: str = "click the button", version: int = 0
):
    click = {"kind": "Click", "x": 0.25 + 0.1 * sibling, "y": 0.5, "button": "left", "count": 1}
    drag = {"kind": "Drag", "x": 0.2, "y": 0.3, "x2": 0.8, "y2": 0.6}
    typed = {"kind": "Type", "text": "hello world"}
    steps = [step(0, frames[0], click, text)]
    if not win:
        steps += [step(1, frames[1], drag, "drag it"), step(2, frames[1], typed, "type it")]
        steps += [step(3, frames[1], None, "mumble", "no call in the text")]
    outcome = (
        Outcome("success", "env_done", 1.0) if win else Outcome("failure", "parse_failure", 0.0, "no call in the text")
    )
    return Episode(
        f"{task.id}/v{version}/{sibling}/0", f"{task.id}/v{version}", sibling, 0, task,
        text if "script" in text else "Click on the \"Ok\" button.", outcome, tuple(steps), (), frames[2],
    )  # fmt: skip


def make(results: Path) -> None:
    """Write it."""
    rng = np.random.default_rng(0)
    folder = results / "rl/grpo/seed0/rollouts"
    store = FrameStore(folder / "frames", durable=False)
    frames = [store.put(page(rng, ["Ok", "Cancel", "Yes"])) for _ in range(3)]
    tasks = [TaskSpec("miniwob", t, 7, domain="click") for t in ("click-button", "click-drag")]
    episodes = [episode(tasks[0], s, s % 2 == 0, frames) for s in range(4)]
    episodes.append(episode(tasks[1], 0, False, frames, HOSTILE.replace("\0", "\u2400")))
    write_episodes(folder, episodes, part=0)
    rows = [{"episode_id": e.id, "step": -1, "iteration": 0, "advantage": a, "logprobs": None}
            for e, a in zip(episodes, (0.5, -0.5, 0.5, -0.5, None), strict=True)]  # fmt: skip
    rows += [
        {"episode_id": episodes[0].id, "step": 0, "iteration": 0, "advantage": 0.5, "logprobs": [-0.1, -1.9, -0.01]}
    ]
    path = folder / "training.parquet/part-00000.parquet"
    path.parent.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    evaluation = results / "evaluate/grpo/seed0/miniwob"
    evaluation.mkdir(parents=True)
    played = [(tasks[0], "sft", False, None), (tasks[0], "rl", True, ()), (tasks[1], "sft", True, EFFECTS)]
    made = [
        records.row(dataclasses.replace(episode(t, 0, win, frames), side_effects=effects), name)
        for t, name, win, effects in played
    ]
    made.append(records.row(episode(tasks[1], 0, False, frames, HOSTILE), "rl"))
    records.table(made).to_parquet(evaluation / "episodes.parquet", index=False)
    demos = results / "demos"
    demos.mkdir()
    steps = [{"frame": frames[0], "action": {"kind": "Click", "x": 0.5, "y": 0.5}, "thought": "click Ok"}]
    line = {"task": tasks[0].to_json(), "instruction": "Click Ok.", "reward": 1.0, "steps": steps}
    (demos / "demos.jsonl").write_text(json.dumps(line) + "\n")


def more(results: Path, part: int) -> Episode:
    """Another iteration arrives; gives its episode."""
    task = TaskSpec("miniwob", "click-new", part, domain="click")
    made = dataclasses.replace(episode(task, 0, True, ["0" * 64] * 3, version=part))
    write_episodes(results / "rl/grpo/seed0/rollouts", [made], part=part)
    return made


class Served:
    """The explorer on a free port, in a thread of this process."""

    def __init__(self, results: Path, token: str = "") -> None:
        self.index = Index(results, results.parent / ".work")
        self.index.refresh()
        config = uvicorn.Config(server.build_app(self.index, token), port=0, log_level="warning")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> str:
        self.thread.start()
        while not self.server.started:
            self.thread.join(0.02)
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)
