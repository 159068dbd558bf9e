"""The routes of OSWorld's VM-side protocol as functions of a desktop.

Guarantees: replies have the shapes that OSWorld's clients read; what a client asks for and does not get is an error
status with a message (OSWorld's server answers 200 to a window that is not there). In strict mode `/execute`,
`/run_python` and `/run_bash_script` run no code: a pyautogui script is read as data and done as typed actions, all
else is 403; `/setup/*` is for whoever may prepare the machine. Every screenshot is its own (no shared file), every wait
ends.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from guiderail.actions.pyautogui_script import Pointer, read_script
from guiderail.actions.types import Action
from guiderail.pool.vm import programs
from guiderail.pool.vm.desktop import Desktop
from guiderail.pool.vm.http import Refused, Request, Response, as_json, as_text
from guiderail.pool.vm.screen import jpeg, png
from guiderail.pool.vm.windows import WindowInfo

PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; "
LOOKS = frozenset(("/screen_size", "/window_size", "/desktop_path"))
"""POSTs that leave the desktop as it is."""
Table = dict[tuple[str, str], Callable[[Request], Response]]


class OsworldRoutes:
    """Answers OSWorld's requests for one desktop; `table`: method and path -> what answers."""

    def __init__(self, desktop: Desktop, *, strict: bool) -> None:
        self.desktop, self.strict = desktop, strict
        self.table: Table = {
            ("GET", "/screenshot"): self.screenshot,
            ("GET", "/accessibility"): self.accessibility,
            ("GET", "/terminal"): self.terminal,
            ("GET", "/platform"): lambda _: as_text(platform.system()),
            ("GET", "/cursor_position"): lambda _: as_json(list(self.desktop.x.pointer()[:2])),
            ("POST", "/screen_size"): self.screen_size,
            ("POST", "/window_size"): self.window_size,
            ("POST", "/desktop_path"): self.desktop_path,
            ("POST", "/wallpaper"): self.wallpaper,
            ("POST", "/list_directory"): self.list_directory,
            ("POST", "/file"): self.file,
            ("POST", "/execute"): self.execute,
            ("POST", "/run_python"): self.run_python,
            ("POST", "/run_bash_script"): self.run_bash,
            ("POST", "/setup/execute"): self.setup_execute,
            ("POST", "/setup/execute_with_verification"): self.verified,
            ("POST", "/setup/launch"): self.launch,
            ("POST", "/setup/open_file"): self.open_file,
            ("POST", "/setup/upload"): self.upload,
            ("POST", "/setup/download_file"): self.download,
            ("POST", "/setup/change_wallpaper"): self.change_wallpaper,
            ("POST", "/setup/activate_window"): lambda r: self.window(r, self.desktop.windows.activate, "activated"),
            ("POST", "/setup/close_window"): lambda r: self.window(r, self.desktop.windows.close, "closed"),
            ("POST", "/start_recording"): self.no_recording,
            ("POST", "/end_recording"): self.no_recording,
        }

    # -- looking -------------------------------------------------------------------------------------------
    def screenshot(self, request: Request) -> Response:
        """PNG, or with ?format=jpeg JPEG."""
        frame = self.desktop.frames.grab()
        if request.query.get("format") == "jpeg":
            return Response(jpeg(frame, *self.desktop.size), "image/jpeg")
        return Response(png(frame, *self.desktop.size), "image/png")

    def accessibility(self, _: Request) -> Response:
        """{"AT": xml}."""
        return as_json({"AT": programs.accessibility(self.desktop)})

    def terminal(self, _: Request) -> Response:
        """{"output": text of the terminal in front, "status": "success"}."""
        return as_json({"output": programs.terminal_text(self.desktop), "status": "success"})

    def screen_size(self, _: Request) -> Response:
        """{"width", "height"}."""
        width, height = self.desktop.size
        return as_json({"width": width, "height": height})

    def window_size(self, request: Request) -> Response:
        """{"width", "height"} of the window whose class holds app_class_name; 404 without one."""
        name = request.fields.get("app_class_name") or ""
        found = self.desktop.windows.find(name, by_class=True)
        if found is None:
            raise Refused(404, f"no window of class {name!r}", "no_window")
        return as_json({"width": found.box[2], "height": found.box[3]})

    def desktop_path(self, _: Request) -> Response:
        """{"desktop_path"}."""
        return as_json({"desktop_path": f"{self.desktop.guest.home}/Desktop"})

    def wallpaper(self, _: Request) -> Response:
        """The wallpaper's file; 404 when the desktop has a plain colour."""
        return Response(programs.wallpaper(self.desktop), "image/png")

    def list_directory(self, request: Request) -> Response:
        """{"directory_tree": {"type", "name", "children"}}."""
        return as_json({"directory_tree": programs.tree(self.desktop, _text(request.json(), "path"))})

    def file(self, request: Request) -> Response:
        """Bytes of a file; 404 when there is none."""
        path = request.fields.get("file_path")
        if not path:
            raise Refused(400, "file_path is missing", "bad_request")
        return Response(programs.read_file(self.desktop, path), "application/octet-stream")

    # -- acting --------------------------------------------------------------------------------------------
    def execute(self, request: Request) -> Response:
        """The agent's way in: a pyautogui script, done as typed actions; in strict mode nothing else."""
        told = request.json()
        command = told.get("command")
        script = script_of(command)
        if script is not None:
            x, y, _ = self.desktop.x.pointer()
            try:
                actions: list[Action] | None = read_script(script, Pointer(*self.desktop.size, x, y))
            except ValueError as e:
                if self.strict:
                    raise Refused(403, f"only pyautogui calls with literal arguments are done: {e}", "strict") from None
                actions = None
            if actions is not None:
                for action in actions:
                    self.desktop.act(action)
                return as_json({"status": "success", "output": "", "error": "", "returncode": 0})
        self._not_strict("/execute runs no commands")
        return self.setup_execute(request)

    def _not_strict(self, what: str) -> None:
        if self.strict:
            raise Refused(403, f"{what} in strict mode; send typed actions to /act", "strict")

    def run_python(self, request: Request) -> Response:
        """{"code"} -> {"status", "output", "error", "return_code"}; 30 s."""
        self._not_strict("/run_python runs no code")
        return as_json(programs.run_python(self.desktop, _text(request.json(), "code")))

    def run_bash(self, request: Request) -> Response:
        """{"script", "timeout", "working_dir"} -> {"status", "output", "error", "returncode"}."""
        self._not_strict("/run_bash_script runs no code")
        told = request.json()
        timeout, folder = float(told.get("timeout") or 100), told.get("working_dir") or ""
        return as_json(programs.run_bash(self.desktop, _text(told, "script"), timeout, str(folder)))

    # -- setup ---------------------------------------------------------------------------------------------
    def setup_execute(self, request: Request) -> Response:
        """{"command": list or string, "shell"} -> {"status", "output", "error", "returncode"}; 120 s."""
        told = request.json()
        timeout = min(float(told.get("timeout") or programs.COMMAND_S), 600.0)
        return as_json(programs.execute(self.desktop, programs.words(told), timeout))

    def verified(self, request: Request) -> Response:
        """As `setup_execute`, then waits until {"verification": {"window_exists", "command_success"}} holds."""
        told = request.json()
        done = programs.execute(self.desktop, programs.words(told), programs.COMMAND_S)
        limit, every = float(told.get("max_wait_time") or 10), float(told.get("check_interval") or 1)
        if not programs.verify(self.desktop, told.get("verification") or {}, min(limit, 300), max(0.05, every)):
            raise Refused(500, f"verification failed within {limit:g} s: {told.get('verification')}", "not_verified")
        return as_json({**done, "verification": "passed"})

    def launch(self, request: Request) -> Response:
        """{"command", "shell"}: start a program that goes on."""
        argv = programs.words(request.json())
        programs.launch(self.desktop, argv)
        return as_text(f"{' '.join(argv)} launched successfully")

    def open_file(self, request: Request) -> Response:
        """{"path"}: open it with its program; returns when a window with its name is there."""
        found = programs.open_file(self.desktop, _text(request.json(), "path"))
        return as_text(f"File opened successfully: {found.title}")

    def upload(self, request: Request) -> Response:
        """Form: file_path, file_data."""
        path, data = request.fields.get("file_path"), request.files.get("file_data")
        if not path or data is None:
            raise Refused(400, "file_path and file_data are needed", "bad_request")
        programs.write_file(self.desktop, path, data)
        return as_text(f"File Uploaded: {len(data)} bytes")

    def download(self, request: Request) -> Response:
        """{"url", "path"}: the programs fetch it, so this needs a network in there."""
        told = request.json()
        programs.download(self.desktop, _text(told, "url"), _text(told, "path"))
        return as_text("File downloaded successfully")

    def change_wallpaper(self, request: Request) -> Response:
        """{"path"}."""
        programs.set_wallpaper(self.desktop, _text(request.json(), "path"))
        return as_text("Wallpaper changed successfully")

    def window(self, request: Request, do: Callable[[int], None], done: str) -> Response:
        """{"window_name", "strict", "by_class"}; 404 when no window matches."""
        told = request.json()
        name = _text(told, "window_name")
        found: WindowInfo | None = self.desktop.windows.find(
            name, strict=bool(told.get("strict")), by_class=bool(told.get("by_class"))
        )
        if found is None:
            raise Refused(404, f"no window {name!r}", "no_window")
        do(found.id)
        return as_text(f"Window {done} successfully")

    def no_recording(self, _: Request) -> Response:
        """Not offered: every step's frame is kept by the pool's client."""
        raise Refused(501, "recording is not offered here; frames of all steps are kept by the client", "unsupported")


def script_of(command: Any) -> str | None:
    """The code of OSWorld's ["python", "-c", code], None for another command."""
    match command:
        case [str() as program, "-c", str() as code] if program.rpartition("/")[2] in ("python", "python3"):
            return code.removeprefix(PREFIX)
    return None


def _text(told: dict[str, Any], name: str) -> str:
    value = told.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(400, f"{name} must be a text", "bad_request")
    return value
