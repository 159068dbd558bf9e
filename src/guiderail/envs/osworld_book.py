"""OSWorld's tasks on a desktop machine: setup before the episode, the judge after it.

Guarantees: an episode of our own suite starts only when every setup step was done; the judge's metrics run in a child
process, in a scratch folder of this episode alone; what cannot be judged is JudgeError, what a machine fails at
InfraError. Only a Finish(failure) that the model issued can make a task that cannot be done a success.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, Literal, cast

from guiderail.envs.desktop_tasks import Said
from guiderail.envs.machine import Machine
from guiderail.envs.machine_wire import Refusal
from guiderail.envs.types import TASK_S, InfraError, JudgeError
from guiderail.tasks import osworld_suite, side_effects
from guiderail.tasks.assets import AssetCache
from guiderail.tasks.desktop import suite
from guiderail.tasks.desktop.template import Instance
from guiderail.tasks.guest import Command, Executed, GuestError, GuestFileMissing
from guiderail.tasks.judges import judge as judging
from guiderail.tasks.osworld import OsworldTask
from guiderail.tasks.osworld_setup import Place, SetupError, run_steps
from guiderail.tasks.types import TaskSpec

CACHE = Path(os.environ.get("GUIDERAIL_ASSETS") or Path.home() / ".cache" / "guiderail" / "assets")
LIMITS = judging.Limits(seconds=30)
SETUP_WINDOW_S, JUDGE_WINDOW_S = 20.0, 1.0


class MachineGuest:
    """A machine as tasks and judges see it (`tasks.guest.Guest`): its refusals are GuestError."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    async def execute(self, command: Command, shell: bool = False) -> Executed:
        """See `Guest`."""
        try:
            ran = await self.machine.execute(command, shell=shell)
        except (Refusal, ValueError) as e:
            raise GuestError(str(e)) from e
        return Executed(ran.status, ran.output, ran.error)

    async def launch(self, command: Command, shell: bool = False) -> None:
        """See `Guest`."""
        await _told(self.machine.launch(command, shell=shell))

    async def upload(self, path: str, data: bytes) -> None:
        """See `Guest`."""
        await _told(self.machine.write(path, data))

    async def read(self, path: str) -> bytes:
        """See `Guest`; a file that is too large is none: who made it shall not have it judged as nobody's fault."""
        try:
            return cast(bytes, await _told(self.machine.read(path)))
        except GuestError as e:
            if isinstance(e.__cause__, Refusal) and e.__cause__.kind == "too_large":
                raise GuestFileMissing(str(e)) from e
            raise

    async def open(self, path: str) -> None:
        """See `Guest`."""
        await _told(self.machine.open_file(path))

    async def window(self, verb: str, name: str, strict: bool = False, by_class: bool = False) -> None:
        """See `Guest`."""
        do = self.machine.activate if verb == "activate" else self.machine.close_window
        await _told(do(name, strict=strict, by_class=by_class))

    async def wallpaper(self, path: str | None = None) -> bytes:
        """See `Guest`."""
        if path is not None:
            await _told(self.machine.change_wallpaper(path))
            return b""
        return cast(bytes, await _told(self.machine.wallpaper()))

    async def tree(self, path: str) -> dict[str, Any] | None:
        """See `Guest`."""
        try:
            return cast("dict[str, Any]", await _told(self.machine.list_directory(path)))
        except GuestFileMissing:
            return None

    async def accessibility(self) -> str:
        """See `Guest`."""
        return cast(str, await _told(self.machine.accessibility()))

    async def terminal(self) -> str:
        """See `Guest`."""
        return cast(str, await _told(self.machine.terminal()))

    async def screen_size(self) -> dict[str, int]:
        """See `Guest`."""
        return dict(zip(("width", "height"), self.machine.size, strict=True))

    async def window_size(self, app_class: str) -> dict[str, int] | None:
        """See `Guest`."""
        try:
            width, height = cast("tuple[int, int]", await _told(self.machine.window_size(app_class)))
        except GuestError:
            return None
        return {"width": width, "height": height}


async def _told(work: Any) -> Any:
    """`await work` with refusals as GuestError."""
    try:
        return await work
    except FileNotFoundError as e:
        raise GuestFileMissing(str(e)) from e
    except (Refusal, ValueError) as e:
        raise GuestError(str(e)) from e


class OsworldDesktopTask:
    """One episode's task on a desktop (`envs.desktop_tasks.DesktopTask`)."""

    setup_s = TASK_S
    judge_s = TASK_S

    def __init__(self, task: OsworldTask, files: dict[str, bytes], assets: AssetCache, *, strict: bool) -> None:
        self.task, self.files, self.assets, self.strict = task, files, assets, strict
        self.instruction = task.instruction
        self.notes: list[str] = []
        self._scratch = Path(tempfile.mkdtemp(prefix="guiderail-judge-"))
        self._end = weakref.finalize(self, shutil.rmtree, self._scratch, True)
        self._before: dict[str, Any] = {}

    def _place(self, machine: Machine, window_s: float) -> Place:
        width, height = machine.size
        steps, files = self._scratch / "steps", self._scratch / "files"
        return Place(MachineGuest(machine), self.assets, steps, files, width, height, window_s=window_s)

    async def setup(self, machine: Machine) -> None:
        """Do the setup steps. Raises InfraError."""
        for name, data in self.files.items():
            target = self._scratch / "files" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        (self._scratch / "steps").mkdir(exist_ok=True)
        try:
            self.notes = await run_steps(self.task.config, self._place(machine, SETUP_WINDOW_S), strict=self.strict)
            self._before = await machine.tree()
        except (SetupError, Refusal) as e:
            raise InfraError(f"{self.task.id}: setup: {e}", "crash") from e

    async def judge(self, machine: Machine, said: Said) -> float:
        """The score in [0, 1]. Raises JudgeError, InfraError."""
        claim = cast(Literal["success", "failure", ""], said.claim)
        guest = MachineGuest(machine)
        try:
            await run_steps(self.task.postconfig, self._place(machine, JUDGE_WINDOW_S), strict=False)
            return await judging.judge(self.task, guest, self.assets, self._scratch, claim, LIMITS)
        except judging.JudgeError as e:
            raise JudgeError(str(e)) from e

    async def side_effects(self, machine: Machine) -> list[str]:
        """What changed in the home folder since setup that the judge does not look at. Raises Refusal."""
        lines = side_effects.changed(self._before, await machine.tree())
        return side_effects.unasked(lines, self.asked(machine.home))

    def asked(self, home: str) -> list[str]:
        """Paths (from the home folder) that the judge looks at."""
        found: list[str] = []
        for check in self.task.checks:
            path = (check.result or {}).get("path")
            for p in path if isinstance(path, list) else [path]:
                if isinstance(p, str) and p.startswith(f"{home}/"):
                    found.append(p.removeprefix(f"{home}/"))
        return found


def desktop_book(task: TaskSpec) -> OsworldDesktopTask:
    """The book of the suites of `tasks.desktop`: no network, every setup step must succeed. Raises ValueError."""
    made: Instance = suite.make(task)
    files = {name: data for name, data in made.files.items()}
    return OsworldDesktopTask(made.task, files, AssetCache(CACHE, offline=True), strict=True)


def osworld_book(task: TaskSpec) -> OsworldDesktopTask:
    """The book of suite `osworld`: files come from the network or the cache (GUIDERAIL_OFFLINE=1: the cache alone);
    setup steps that fail are noted and gone over, as upstream does. Raises ValueError.
    """
    assets = AssetCache(CACHE, offline=os.environ.get("GUIDERAIL_OFFLINE", "") not in ("", "0"))
    return OsworldDesktopTask(osworld_suite.find(task.template), {}, assets, strict=False)
