"""The pool as Gymnasium environments: `GuiEnv` (one screen) and `GuiVectorEnv` (many, stepped at the same time).

    env = GuiEnv(url, token, tasks)            # tasks: TaskSpecs to draw from, by the seed of reset
    seen, info = env.reset(seed=1)             # seen["screen"]: (height, width, 3) uint8; seen["instruction"]
    seen, reward, terminated, truncated, info = env.step(Click(0.5, 0.5))    # or an element of env.action_space

Guarantees: both pass Gymnasium's conventions (tests run its `check_env`); a step is done once; the reward is the raw
reward when the task ends and 0 before; `truncated` at the task's step limit. When the machine fails the episode is
truncated with info["infra_error"] = cause (crash, timeout, lease_lost) and reward 0: leave such episodes out of your
statistics. The next reset leases another machine. Needs the extra `gym`.
"""

from __future__ import annotations

import asyncio
import io
import string
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from PIL import Image

from guiderail.actions.types import Action, Click, Drag, Key, Move, Scroll, Type, Wait
from guiderail.envs.keys import NAMED
from guiderail.envs.types import InfraError, StepResult
from guiderail.pool.client import NoSlotError, PoolClient, RemoteEnv
from guiderail.tasks.types import TaskSpec

KINDS = ("click", "double_click", "right_click", "move", "drag", "scroll", "type", "key", "wait")
KEYS = (*sorted(NAMED), *string.ascii_lowercase, *string.digits)
MODIFIERS = ("ctrl", "alt", "shift")
TEXT = string.ascii_letters + string.digits + string.punctuation + " "
MAX_TEXT = 64
MAX_INSTRUCTION = 1000
NOTCHES = 10
T = TypeVar("T")
Seen = dict[str, Any]


def action_space() -> spaces.Dict:
    """What a policy without a text format may do: a kind and all arguments, of which the kind uses some."""
    return spaces.Dict(
        {
            "kind": spaces.Discrete(len(KINDS)),
            "point": spaces.Box(0.0, 1.0, (2,), np.float32),
            "to": spaces.Box(0.0, 1.0, (2,), np.float32),
            "scroll": spaces.Box(-1.0, 1.0, (2,), np.float32),  # times NOTCHES
            "text": spaces.Text(MAX_TEXT, min_length=0, charset=TEXT),
            "key": spaces.Discrete(len(KEYS)),
            "modifiers": spaces.MultiBinary(len(MODIFIERS)),
        }
    )


def action_of(chosen: Any) -> Action:
    """An element of `action_space` as an action; actions pass. Raises ValueError."""
    if not isinstance(chosen, dict):
        return chosen  # type: ignore[no-any-return]
    x, y = (float(v) for v in chosen["point"])
    x2, y2 = (float(v) for v in chosen["to"])
    match KINDS[int(chosen["kind"])]:
        case "click":
            return Click(x, y)
        case "double_click":
            return Click(x, y, "left", 2)
        case "right_click":
            return Click(x, y, "right")
        case "move":
            return Move(x, y)
        case "drag":
            return Drag(x, y, x2, y2)
        case "scroll":
            return Scroll(x, y, *(round(NOTCHES * float(n)) for n in chosen["scroll"]))
        case "type":
            return Type(str(chosen["text"]))
        case "key":
            held = [m for m, on in zip(MODIFIERS, chosen["modifiers"], strict=True) if on]
            return Key((*held, KEYS[int(chosen["key"])]))
        case _:
            return Wait(1.0)


class Screens:
    """`count` leased screens of one pool, worked from an event loop in a thread of its own."""

    def __init__(self, url: str, token: str, tasks: Sequence[TaskSpec], count: int) -> None:
        if not tasks:
            raise ValueError("tasks is empty: give at least one TaskSpec")
        self.tasks = list(tasks)
        self.envs: list[RemoteEnv | None] = [None] * count
        self.limits = [0] * count
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="pool-gym", daemon=True)
        self.thread.start()
        self.client = self.run(self._open(url, token))
        try:
            first = self.run(self._start(0, self.tasks[0]))
            self.height, self.width = first.observation.height, first.observation.width
        except BaseException:
            self.close()
            raise

    async def _open(self, url: str, token: str) -> PoolClient:
        return PoolClient(url, token)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done in the thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def _close(self) -> None:
        await self.client.close()
        await asyncio.sleep(0.05)  # the transports have closed then

    async def _start(self, i: int, task: TaskSpec) -> StepResult:
        env = self.envs[i]
        if env is None:
            env = self.envs[i] = RemoteEnv(self.client, await self.client.allocate(f"gym-{i}"), f"gym-{i}")
        self.limits[i] = task.max_steps
        try:
            return await env.reset(task)
        except InfraError:
            await self._drop(i)
            raise

    async def _drop(self, i: int) -> None:
        env, self.envs[i] = self.envs[i], None
        if env is not None:
            await env.close()

    async def start(self, i: int, task: TaskSpec, tries: int = 3) -> tuple[Seen, dict[str, Any]]:
        """Reset screen `i`, on another machine if need be. Raises InfraError when none works."""
        for left in reversed(range(tries)):
            try:
                result = await self._start(i, task)
                return self.seen(result), {"task": task.id, "instruction": result.observation.instruction}
            except InfraError as e:
                if not left or isinstance(e, NoSlotError):
                    raise
        raise AssertionError("unreachable")

    async def step(self, i: int, action: Action, before: Seen) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Gymnasium's five values; `before` is shown again when the machine failed."""
        env = self.envs[i]
        if env is None:
            raise RuntimeError("step before reset, or after an infrastructure error: reset first")
        try:
            result = await env.step(action)
        except InfraError as e:
            await self._drop(i)
            return before, 0.0, False, True, {"infra_error": e.cause, "message": str(e)}
        over = result.observation.step >= self.limits[i]
        reward = result.raw_reward if result.done else 0.0
        info = {"raw_reward": result.raw_reward, "frame": result.observation.frame}
        return self.seen(result), reward, result.done, over and not result.done, info

    def seen(self, result: StepResult) -> Seen:
        """The observation of a result; characters that the space lacks become "?"."""
        screen = np.asarray(Image.open(io.BytesIO(result.observation.png)).convert("RGB"))
        words = result.observation.instruction[:MAX_INSTRUCTION]
        return {
            "screen": screen,
            "instruction": "".join(c if c in TEXT else " " if c.isspace() else "?" for c in words),
        }

    def space(self) -> spaces.Dict:
        """The observation space."""
        screen = spaces.Box(0, 255, (self.height, self.width, 3), np.uint8)
        words = spaces.Text(MAX_INSTRUCTION, min_length=0, charset=TEXT)
        return spaces.Dict({"screen": screen, "instruction": words})

    def draw(self, rng: np.random.Generator, options: dict[str, Any] | None) -> TaskSpec:
        """The task of an episode: options["task"], or a draw."""
        task = (options or {}).get("task")
        if task is not None:
            return task if isinstance(task, TaskSpec) else TaskSpec.from_json(task)
        return self.tasks[int(rng.integers(len(self.tasks)))]

    def close(self) -> None:
        """Give all machines back, end the thread. Idempotent."""
        if self.thread.is_alive():
            self.run(self._close())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()


class GuiEnv(gymnasium.Env[Seen, Any]):
    """One screen of the pool at `url`."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, url: str, token: str, tasks: Sequence[TaskSpec], render_mode: str | None = None) -> None:
        self.screens = Screens(url, token, tasks, 1)
        self.render_mode = render_mode
        self.observation_space, self.action_space = self.screens.space(), action_space()
        self.now: Seen | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, dict[str, Any]]:
        """Start a task: options["task"], or drawn with the seed. Raises InfraError when no machine works."""
        super().reset(seed=seed)
        self.now, info = self.screens.run(self.screens.start(0, self.screens.draw(self.np_random, options)))
        return dict(self.now), info

    def step(self, action: Any) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Do an action. Raises ValueError for one that the screen has no use for (nothing was done)."""
        if self.now is None:
            raise RuntimeError("step before reset")
        self.now, *rest = self.screens.run(self.screens.step(0, action_of(action), self.now))
        return dict(self.now), *rest  # type: ignore[return-value]

    def render(self) -> Any:
        """The screen."""
        return None if self.now is None or self.render_mode is None else self.now["screen"]

    def close(self) -> None:
        """Give the machine back."""
        self.screens.close()


class GuiVectorEnv(VectorEnv[Seen, Any, Any]):
    """`num_envs` screens, all stepped at the same time; an ended episode is reset at the next step."""

    def __init__(self, url: str, token: str, tasks: Sequence[TaskSpec], num_envs: int) -> None:
        self.screens, self.num_envs = Screens(url, token, tasks, num_envs), num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = self.screens.space(), action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.generators = [np.random.default_rng() for _ in range(num_envs)]
        self.now: list[Seen] = []
        self.ended = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        """Start all; seeds seed, seed + 1, ... or a list."""
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        for i, s in enumerate(seeds):
            if s is not None:
                self.generators[i] = np.random.default_rng(s)
        started = self.screens.run(self._all([self._reset(i, options) for i in range(self.num_envs)]))
        self.now, self.ended = [s for s, _ in started], np.zeros(self.num_envs, bool)
        return self._batch(), self._infos([info for _, info in started])

    def step(self, actions: Any) -> tuple[Seen, Any, Any, Any, dict[str, Any]]:
        """Step all; `actions`: an element of `action_space`, or a list of actions."""
        each = list(actions) if isinstance(actions, list | tuple) else list(iterate(self.action_space, actions))
        out = self.screens.run(self._all([self._step(i, action_of(a)) for i, a in enumerate(each)]))
        self.now = [o[0] for o in out]
        reward, terminated, truncated = (np.array([o[k] for o in out]) for k in (1, 2, 3))
        self.ended = terminated | truncated
        return self._batch(), reward.astype(np.float64), terminated, truncated, self._infos([o[4] for o in out])

    def close_extras(self, **kwargs: Any) -> None:
        """Give the machines back."""
        self.screens.close()

    async def _reset(self, i: int, options: dict[str, Any] | None) -> tuple[Seen, dict[str, Any]]:
        return await self.screens.start(i, self.screens.draw(self.generators[i], options))

    async def _step(self, i: int, action: Action) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        if self.ended[i]:
            seen, info = await self._reset(i, None)
            return seen, 0.0, False, False, info
        return await self.screens.step(i, action, self.now[i])

    async def _all(self, work: list[Coroutine[Any, Any, T]]) -> list[T]:
        return list(await asyncio.gather(*work))

    def _batch(self) -> Seen:
        empty = create_empty_array(self.single_observation_space, self.num_envs)
        return concatenate(self.single_observation_space, self.now, empty)  # type: ignore[return-value,arg-type]

    def _infos(self, each: list[dict[str, Any]]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for i, info in enumerate(each):
            infos = self._add_info(infos, info, i)
        return infos
