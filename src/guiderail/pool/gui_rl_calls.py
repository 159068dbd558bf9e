"""What reset, step, get_obs and evaluate of the gui-rl routes do on a machine, and what is remembered of an episode.

Guarantees: an answer is complete JSON with a screenshot; `DONE` and `FAIL` are noted and never reach the machine, so
what the client sends at the end of an episode cannot change the state that is judged.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from guiderail.actions.pyautogui_script import Pointer, read_script
from guiderail.actions.types import Action, Wait
from guiderail.actions.wire import action_from_json
from guiderail.envs.types import Env, Observes, StepResult
from guiderail.pool.bodies import on_screen
from guiderail.pool.calls import Calls
from guiderail.pool.manager import Pool
from guiderail.pool.retries import Last
from guiderail.pool.wire import OWN_S, Reply, own_seconds, refusal, task_from_json
from guiderail.tasks.types import TaskSpec

Act = Callable[[Env], Awaitable[Reply]]
MAX_FRAMES, MAX_FRAME_BYTES = 2000, 64 << 20
MAX_SLEEP_S = 60.0
WAIT_S = 1.0
NOT_RESET = refusal(409, "not_reset", "nothing runs on this lease yet; reset it with a task_config first")


@dataclass
class Episode:
    """Of one lease: calls so far, the screen last seen, the pointer, the video."""

    number: int = 0  # calls that change anything
    looks: int = 0
    last: Last | None = None
    asked: bool = False  # something else was asked since `last`
    task: TaskSpec | None = None
    seen: StepResult | None = None
    pointer: Pointer | None = None
    scored: tuple[int, float] = (-1, 0.0)
    recording: bool = False
    frames: list[tuple[float, bytes]] = field(default_factory=list)
    kept_bytes: int = 0

    @classmethod
    def of(cls, calls: Calls) -> Episode:
        """The episode of a lease; after a restart of the server, what its call book still tells."""
        if "gui_rl" not in calls.state:
            episode = calls.state["gui_rl"] = cls()
            episode.task = task_from_json(orjson.loads(calls.task)) if calls.task else None
            for request, what in calls.seen.items():
                kind, _, number = request.rpartition("-")
                if kind not in ("gui-rl-act", "gui-rl-look"):
                    continue
                if kind == "gui-rl-act" and int(number) > episode.number:
                    episode.number, episode.last = int(number), Last(what, request, ("", 0), replied=-1e9)
                elif kind == "gui-rl-look":
                    episode.looks = max(episode.looks, int(number))
        found: Episode = calls.state["gui_rl"]
        return found

    def confirm(self) -> None:
        """Something else was asked: a sequential client has read the last reply, if that is out."""
        self.asked = True
        if self.last is not None and self.last.replied:
            self.last.read = True

    def remember(self, result: StepResult) -> None:
        """A new screen."""
        self.seen = result
        png = result.observation.png
        if self.recording and len(self.frames) < MAX_FRAMES and self.kept_bytes + len(png) < MAX_FRAME_BYTES:
            self.frames.append((time.monotonic(), png))
            self.kept_bytes += len(png)

    def answer(self, **more: Any) -> Reply:
        """The screen last seen as the client expects it."""
        assert self.seen is not None
        observation = {
            "screenshot_b64": base64.b64encode(self.seen.observation.png).decode(),
            "accessibility_tree": None,
            "terminal": None,
            "instruction": self.seen.observation.instruction,
        }
        return Reply(200, orjson.dumps({"observation": observation, **more}, option=orjson.OPT_SERIALIZE_NUMPY))


def task_of(config: Any, present: TaskSpec | None) -> TaskSpec:
    """A task_config: our own task fields, or {id: "suite/template/seed/wording"}; null = the present task again.

    Raises ValueError.
    """
    if config is None:
        if present is None:
            raise ValueError("task_config is null and nothing was ever reset on this lease: name a task")
        return present
    if not isinstance(config, dict):
        raise ValueError("task_config must be an object or null")
    if "template" in config:
        return task_from_json(config)
    parts = str(config.get("id", "")).split("/")
    if len(parts) in (3, 4) and all(p.isdigit() for p in parts[2:]):
        return TaskSpec(parts[0], parts[1], int(parts[2]), wording=int(parts[3]) if len(parts) == 4 else 0)
    raise ValueError("task_config names no task of this pool: give {suite, template, seed} or id 'suite/template/seed'")


def actions_of(body: dict[str, Any], pointer: Pointer, limit_s: float) -> list[Action]:
    """What to do, the pause after it included. Raises ValueError."""
    sleep = body.get("sleep_after_execution", 0.0)
    sleep = 0.0 if sleep is None else sleep
    if isinstance(sleep, bool) or not isinstance(sleep, int | float) or not 0 <= sleep <= limit_s:
        raise ValueError(f"sleep_after_execution must be a number between 0 and {limit_s:g}, not {str(sleep)[:40]!r}")
    action = body.get("action")
    if isinstance(action, dict):
        done: list[Action] = [on_screen(action_from_json(action))]
    elif not isinstance(action, str):
        raise ValueError("action must be a pyautogui script, WAIT, DONE, FAIL or an object")
    elif action.strip().upper() == "WAIT":
        return [Wait(max(float(sleep), WAIT_S))]
    else:
        done = read_script(action, pointer)
    return [*done, Wait(float(sleep))] if sleep else done


def own_time(body: dict[str, Any]) -> float:
    """Seconds that the waits of a step ask for together (see `wire.own_seconds`); 0 for what cannot be read."""
    try:
        actions = actions_of(body, Pointer(1 << 20, 1 << 20), MAX_SLEEP_S)  # read for its waits alone
    except ValueError:
        return 0.0
    return min(OWN_S, sum(map(own_seconds, actions)))


def reset(pool: Pool, calls: Calls, episode: Episode, body: dict[str, Any]) -> Act:
    """Start the task of the body."""

    async def act(env: Env) -> Reply:
        task = task_of(body.get("task_config"), episode.task)
        calls.started = False
        result = await env.reset(task)
        pool.counts["resets"] += 1
        calls.started, calls.over = True, result.done
        calls.task = orjson.dumps(task.to_json()).decode()
        episode.task, episode.pointer = task, Pointer(result.observation.width, result.observation.height)
        episode.remember(result)
        return episode.answer()

    return act


def step(pool: Pool, calls: Calls, episode: Episode, body: dict[str, Any]) -> Act:
    """Do the script of the body, or note that the agent has finished."""

    async def act(env: Env) -> Reply:
        if not calls.started or not await look(env, episode):
            return NOT_RESET
        assert episode.seen is not None
        action = body.get("action")
        word = action.strip().upper() if isinstance(action, str) else ""
        if word in ("DONE", "FAIL"):
            return episode.answer(reward=0, done=True, info={word.lower(): True})
        if calls.over:
            return episode.answer(reward=0, done=True, info={})
        pointer = episode.pointer or Pointer(episode.seen.observation.width, episode.seen.observation.height)
        episode.pointer = pointer
        actions = actions_of(body, pointer, min(MAX_SLEEP_S, 0.8 * pool.config.call_timeout_s))
        for number, one in enumerate(actions):
            try:
                result = await env.step(one)
            except ValueError as e:
                if number == 0:
                    raise
                raise ValueError(f"{e} (action {number + 1} of the script; those before it were done)") from e
            pool.counts["steps"] += 1
            episode.remember(result)
            calls.over = result.done
            if calls.over:
                break
        return episode.answer(reward=0, done=calls.over, info=dict(episode.seen.info))

    return act


def observe(calls: Calls, episode: Episode) -> Act:
    """The screen as it is now."""

    async def act(env: Env) -> Reply:
        if not calls.started or not await look(env, episode, fresh=True):
            return NOT_RESET
        return episode.answer()

    return act


def evaluate(calls: Calls, episode: Episode) -> Act:
    """Judge: 1 when the raw reward reaches the task's threshold, else the raw reward, not below 0."""

    async def act(env: Env) -> Reply:
        if not calls.started:
            return NOT_RESET
        raw = float(await env.evaluate())
        threshold = episode.task.threshold if episode.task else 1.0
        score = 1.0 if raw >= threshold else max(0.0, raw)
        episode.scored = (episode.number, score)
        return Reply(200, orjson.dumps({"score": score}))

    return act


async def look(env: Env, episode: Episode, fresh: bool = False) -> bool:
    """See the screen if it was never seen, or `fresh` (where time passes by itself); whether there is one."""
    if (fresh or episode.seen is None) and isinstance(env, Observes):
        episode.remember(await env.observe())
    return episode.seen is not None
