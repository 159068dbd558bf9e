"""Play a stored episode again from its task's seed, and say step by step whether the same happens.

Guarantees: `recorded` does the stored actions, whoever chose them; `policy` asks the checkpoint again with the stored
prompt settings and sampling seeds, so on the machine and versions that played it the same tokens come out. Screens are
compared by digest, actions as parsed. The frames seen go to a folder of their own (for the explorer), never into
results. Nothing is trained or scored; a reward is what the page says at the end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guiderail.actions.types import Finish
from guiderail.actions.wire import action_from_json
from guiderail.errors import InputError
from guiderail.models.frames import FrameStore
from guiderail.params import Env, Model, Prompt
from guiderail.pool.client import PoolClient, RemoteEnv
from guiderail.pool.local import env_pool
from guiderail.rollout.types import Episode
from guiderail.tasks.types import TaskSpec

Say = Callable[[str], None]


@dataclass(frozen=True)
class Replayed:
    """What came of a replay: steps done, the first that differs (None: all agree) and why, and the page's raw reward at
    the end (None: not asked)."""

    steps: int
    differs: int | None
    why: str
    raw_reward: float | None

    @property
    def same(self) -> bool:
        """Whether every screen and action was the stored one."""
        return self.differs is None


def task_of(episode: Mapping[str, Any], results: Path) -> TaskSpec:
    """The task of an episode: stored with it, or found by its id in the manifest. Raises InputError."""
    if episode["spec"]:
        return TaskSpec.from_json(episode["spec"])
    file = results / "provision" / "tasks.json"
    try:
        splits = json.loads(file.read_text())["splits"]
        found = [TaskSpec.from_json(t) for t in splits[episode["split"]]]
        return next(t for t in found if t.id == episode["task"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        raise InputError(
            f"{file}: holds no {episode['task']} in split {episode['split']}; the manifest that the evaluation used is "
            "gone. Bring it back with `dvc checkout results/provision`."
        ) from None


def recorded_params(results: Path, work: Path, run: str) -> dict[str, Any]:
    """`params` of the record of a finished run or of an attempt; {} for episodes of another making."""
    for file in (results / run / "provenance.json", *sorted(work.glob("*/*/record.json"))):
        try:
            found = json.loads(file.read_text())
            place = "/".join([found["stage"], *(f"seed{v}" if k == "seed" else v for k, v in found["axes"].items())])
            if file.name == "provenance.json" or f"live/{place}" == run:
                return dict(found["params"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return {}


def checkpoint_of(episode: Mapping[str, Any], results: Path, params: Mapping[str, Any]) -> Path:
    """The weights that played an episode. Raises InputError for weights that were not kept, and without a record of the
    run (its prompt and sampling are then unknown)."""
    if "prompt" not in params:
        raise InputError(f"{episode['key']}: its run left no record, so its settings are unknown")
    recipe, seed = episode["recipe"], episode["seed"]
    places: dict[str, Path] = {
        "base": Path(params.get("model.path", "")),
        "sft": results / "sft" / f"seed{seed}" / "checkpoint",
        "rl": results / "merge" / recipe / f"seed{seed}" / "model",
    }
    if episode["kind"] == "evaluation" and episode["checkpoint"] in places:
        return places[episode["checkpoint"]]
    if episode["kind"] == "rollout" and episode["iteration"] == 0:
        return places["sft"]  # no update had happened yet
    raise InputError(
        f"{episode['key']}: the weights of iteration {episode['iteration']} were not kept; leave --policy out to do "
        "its recorded actions, or name a checkpoint with --checkpoint DIR"
    )


def recorded(episode: Mapping[str, Any], task: TaskSpec, env: Env, frames: Path, say: Say) -> Replayed:
    """Do the stored actions in a fresh environment."""

    async def play(screen: RemoteEnv, store: FrameStore) -> Replayed:
        seen = (await screen.reset(task)).observation
        done = False
        for n, step in enumerate(episode["steps"]):
            store.put(seen.png)
            if seen.frame != step["frame"]:
                return Replayed(n, n, f"screen {seen.frame[:12]}, stored {step['frame'][:12]}", None)
            if step["action"] is None:
                say(f"step {n + 1}: same screen; nothing could be read, so nothing is done")
                continue
            action = action_from_json(step["action"])
            say(f"step {n + 1}: same screen; {step['action_text']}")
            if isinstance(action, Finish):
                break
            result = await screen.step(action)
            seen, done = result.observation, result.done
        store.put(seen.png)
        last = episode["last_frame"]
        reward = await screen.evaluate()
        if last and seen.frame != last:
            return Replayed(len(episode["steps"]), len(episode["steps"]), "the last screen differs", reward)
        say(f"the page {'ended' if done else 'did not end'}; raw reward {reward:g}")
        return Replayed(len(episode["steps"]), None, "", reward)

    return asyncio.run(_with_screen(env, frames, play))


def policy(
    episode: Mapping[str, Any],
    task: TaskSpec,
    env: Env,
    frames: Path,
    say: Say,
    *,
    checkpoint: Path,
    params: Mapping[str, Any],
) -> Replayed:
    """Ask `checkpoint` again. params: of the run's provenance record (prompt, model, evaluate or rl and the recipe)."""
    from guiderail.models.loading import load_policy
    from guiderail.models.prompts import PromptBuilder
    from guiderail.rollout.engines.hf import HfEngine
    from guiderail.rollout.episode import Job, Setting, run_episode

    if "prompt" not in params:
        raise InputError(f"{episode['key']}: its run left no record of its settings; only its actions can be replayed")
    own = {k.partition(".")[2]: v for k, v in params.items() if k.startswith("model.")}
    model = load_policy(checkpoint, Model(**own, device="cpu"))
    builder = PromptBuilder(model.tokenizer, Prompt(**params["prompt"]), model.image_tokens, model.resized)
    rollout = episode["kind"] == "rollout"
    overrides = params.get(f"recipes.{episode['recipe']}") or {}
    temperature = ({**params["rl"], **overrides} if rollout else params["evaluate"])["temperature"]
    seed = 0 if episode["checkpoint"] == "base" else int(episode["seed"] or 0)
    setting = Setting(temperature, seed, episode["iteration"] or 0)
    job = Job(0, task, episode["sibling"] or 0, episode["attempt"] or 0)

    async def play(screen: RemoteEnv, store: FrameStore) -> Replayed:
        engine = HfEngine(model, store)

        async def ask(job: Any, prompt: Any, sampling: Any) -> Any:
            return engine.generate([prompt], [sampling])[0], 0.0

        again = await run_episode(ask, screen, job, builder, builder.codec, store, setting)
        return compared(episode, again, say)

    return asyncio.run(_with_screen(env, frames, play))


def compared(stored: Mapping[str, Any], again: Episode, say: Say) -> Replayed:
    """A stored episode beside one that was just played."""
    for n, step in enumerate(stored["steps"]):
        if n >= len(again.steps):
            return Replayed(n, n, f"the replay ended here: {again.outcome.cause} {again.outcome.detail}", None)
        new = again.steps[n]
        if new.frame != step["frame"]:
            return Replayed(n, n, f"screen {new.frame[:12]}, stored {step['frame'][:12]}", None)
        if new.completion.text != step["text"]:
            return Replayed(n, n, f"wrote {new.completion.text!r}, stored {step['text']!r}", None)
        ids = step["tokens"]["ids"] if step["tokens"] else None
        if ids is not None and list(new.completion.ids) != list(ids):
            return Replayed(n, n, "the same text from other tokens", None)
        what = "tokens" if ids is not None else "text"
        say(f"step {n + 1}: same screen, same {what}; {step['action_text'] or 'unreadable'}")
    if len(again.steps) > len(stored["steps"]):
        return Replayed(len(again.steps), len(stored["steps"]), "the replay goes on where the stored one ended", None)
    say(f"ended: {again.outcome.kind}, {again.outcome.cause}; stored {stored['outcome']['kind']}")
    same = again.outcome.kind == stored["outcome"]["kind"]
    return Replayed(len(again.steps), None if same else len(again.steps), "" if same else "another outcome", None)


async def _with_screen(env: Env, frames: Path, play: Callable[[RemoteEnv, FrameStore], Any]) -> Replayed:
    with env_pool(env.model_copy(update={"slots": 1}), owner="replay") as (url, token):
        async with PoolClient(url, token) as client, client.env("replay") as screen:
            found: Replayed = await play(screen, FrameStore(frames, durable=False))
            return found
