"""Run the steps of a task in its guest: setup before the episode, postconfig before judging.

Guarantees: a step that cannot be done raises `SetupError` naming it (strict), or is told in the returned list
(upstream's way: its own controller ignores what a step says); files come from the asset cache, whole and checked;
nothing repeats a step. A command's stdout lands in the lease's scratch folder when the step asks for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from guiderail.tasks.assets import AssetCache
from guiderail.tasks.guest import Command, Executed, Guest, GuestError
from guiderail.tasks.osworld import Step

HOME = "/home/user"
UNTIL_TRIES = 20
UNTIL_PAUSE_S = 0.5
WINDOW_PAUSE_S = 0.1


class SetupError(RuntimeError):
    """A step of a task could not be done; the text names it."""


@dataclass(frozen=True)
class Place:
    """Where steps run: the guest, its screen, our cache, and the folders for outputs and for the task's own files.

    window_s: how long to wait for a window that a step wants and that is not there (yet).
    """

    guest: Guest
    assets: AssetCache
    outputs: Path
    files: Path
    width: int
    height: int
    password: str = "password"
    window_s: float = 0.0


async def run_steps(steps: Sequence[Step], place: Place, *, strict: bool) -> list[str]:
    """Do `steps` in order; what went wrong without stopping (not strict), one sentence each. Raises SetupError."""
    told: list[str] = []
    for i, step in enumerate(steps):
        try:
            await _do(step, place)
        except (GuestError, SetupError) as e:
            text = f"step {i} ({step.type}): {e}"
            if strict:
                raise SetupError(text) from e
            told.append(text)
    return told


async def _do(step: Step, place: Place) -> None:
    p, guest = step.parameters, place.guest
    match step.type:
        case "download":
            for file in p["files"]:
                data = (await place.assets.get(file["url"])).read_bytes()
                await guest.upload(in_guest(file["path"]), data)
        case "upload_file":
            for file in p["files"]:
                await guest.upload(file["path"], (place.files / file["local_path"]).read_bytes())
        case "launch":
            await guest.launch(_filled(p["command"], place), _shell(p))
        case "execute" | "command" | "execute_with_verification":
            await _execute(p, place)
        case "open":
            await guest.open(in_guest(p["path"]))
        case "activate_window" | "close_window":
            await _window(step.type.partition("_")[0], p, place)
        case "change_wallpaper":
            await guest.wallpaper(in_guest(p["path"]))
        case "sleep":
            await asyncio.sleep(p["seconds"])
        case other:
            raise SetupError(f"{other} is not implemented here")


async def _window(verb: str, p: dict[str, Any], place: Place) -> None:
    """Activate or close a window, once it is there."""
    end = time.monotonic() + place.window_s
    while True:
        try:
            return await place.guest.window(verb, p["window_name"], bool(p.get("strict")), bool(p.get("by_class")))
        except GuestError:
            if time.monotonic() >= end:
                raise
        await asyncio.sleep(WINDOW_PAUSE_S)


async def _execute(p: dict[str, Any], place: Place) -> None:
    """Run a command (again, within bounds, while `until` does not hold) and keep its output where asked."""
    command, until = _filled(p["command"], place), p.get("until") or {}
    for _ in range(UNTIL_TRIES if until else 1):
        done = await place.guest.execute(command, _shell(p))
        for name, text in (("stdout", done.output), ("stderr", done.error)):
            if p.get(name):
                target = place.outputs / p[name]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
        if _reached(until, done):
            break
        await asyncio.sleep(UNTIL_PAUSE_S)
    else:
        raise SetupError(f"{command!r} did not come to {until}")
    if not until and done.returncode != 0:
        raise SetupError(f"{command!r} ended with {done.returncode}: {done.error.strip()[:200]}")


def _reached(until: dict[str, Any], done: Executed) -> bool:
    found = {"returncode": done.returncode, "stdout": done.output, "stderr": done.error}
    return not until or any(found[k] == v if k == "returncode" else v in str(found[k]) for k, v in until.items())


def _shell(p: dict[str, Any]) -> bool:
    return str(p.get("shell", False)).lower() == "true"


def _filled(command: Command, place: Place) -> Command:
    """`command` with the screen's size and the password in the places upstream has for them."""
    words = {
        "{CLIENT_PASSWORD}": place.password,
        "{SCREEN_WIDTH_HALF}": str(place.width // 2),
        "{SCREEN_HEIGHT_HALF}": str(place.height // 2),
        "{SCREEN_WIDTH}": str(place.width),
        "{SCREEN_HEIGHT}": str(place.height),
    }

    def fill(text: str) -> str:
        for k, v in words.items():
            text = text.replace(k, v)
        return text

    return [fill(w) for w in command] if isinstance(command, list) else fill(command)


def in_guest(path: str) -> str:
    """An absolute path; upstream's relative ones are meant from the home folder."""
    return path if PurePosixPath(path).is_absolute() else f"{HOME}/{path}"
