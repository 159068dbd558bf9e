"""What the server has the desktop's own programs do: files, commands, opening, the accessibility tree.

Guarantees: everything happens among the programs, as their user, behind their walls: a link that leads out of the home
leads to the guest's own files, never to this machine's. Paths and words are passed as arguments, never pasted into
code. Every call ends at a limit of its own and says so.
"""

from __future__ import annotations

import contextlib
import json
import mimetypes
import re
import shlex
import time
from collections.abc import Sequence
from configparser import Error as ConfigError
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

from guiderail.pool.vm.desktop import Desktop, applications
from guiderail.pool.vm.guest import Child, GuestError, Ran, run, start
from guiderail.pool.vm.home import OFFICE_TYPES
from guiderail.pool.vm.http import Refused
from guiderail.pool.vm.pace import start_quiet_of
from guiderail.pool.vm.settle import Rule
from guiderail.pool.vm.windows import WindowInfo

PYTHON = "/usr/bin/python3"
COMMAND_S, FILE_S, OPEN_S, CODE_S, TREE_S = 120.0, 60.0, 60.0, 30.0, 30.0
OPEN_SETTLE_S = 20.0  # a program that starts is waited for longer than one that acts
TREE_TRIES = 3
FILE_LIMIT = 256 << 20
WRITE = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1.part~" && mv -f -- "$1.part~" "$1"'
READ = 'if [ -e "$1" ] && [ ! -f "$1" ]; then echo "$1: Is no file" >&2; exit 1; fi; exec /bin/cat -- "$1"'
"""Pipes and devices end never, or make somebody wait who judges; what is missing cat says best."""
TREE = """
import json, os, sys
left = [20000]
def look(path, depth):
    name = os.fsencode(os.path.basename(path) or path).decode(errors="backslashreplace")
    if os.path.islink(path) or not os.path.isdir(path):
        return {"type": "file", "name": name}
    found = []
    if depth:
        for entry in sorted(os.listdir(path)):
            left[0] -= 1
            if left[0] < 0:
                break
            found.append(look(os.path.join(path, entry), depth - 1))
    return {"type": "directory", "name": name, "children": found}
if not os.path.isdir(sys.argv[1]):
    sys.exit(2)
json.dump(look(sys.argv[1], 32), sys.stdout)
"""
FETCH = """
import os, shutil, sys, urllib.request
os.makedirs(os.path.dirname(sys.argv[2]) or ".", exist_ok=True)
with urllib.request.urlopen(sys.argv[1], timeout=30) as r, open(sys.argv[2] + ".part~", "wb") as f:
    shutil.copyfileobj(r, f)
os.replace(sys.argv[2] + ".part~", sys.argv[2])
"""


def path_of(desktop: Desktop, path: str) -> str:
    """An absolute path among the programs: `~` is their home. Raises ValueError."""
    if path == "~" or path.startswith("~/"):
        path = desktop.guest.home + path[1:]
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"path {path!r} is not absolute")
    return path


def words(told: dict[str, Any]) -> list[str]:
    """The words of {"command", "shell"}. Raises ValueError."""
    command = told.get("command")
    if isinstance(command, list) and command and all(isinstance(w, str) for w in command):
        argv = ["/bin/sh", "-c", " ".join(command)] if told.get("shell") else list(command)
    elif isinstance(command, str) and command.strip():
        argv = ["/bin/sh", "-c", command] if told.get("shell") else shlex.split(command)
    else:
        raise ValueError("command must be a text or a list of texts")
    if argv[0] == "python" and not Path("/usr/bin/python").exists():
        argv[0] = PYTHON
    return argv


def execute(desktop: Desktop, argv: Sequence[str], timeout: float) -> dict[str, Any]:
    """OSWorld's reply to a command. Raises Refused when it does not start or its time is up."""
    done = _run(desktop, [_tilde(desktop, w) for w in argv], timeout)
    if done.late:
        raise Refused(500, f"{argv[0]} did not end within {timeout:g} s", "timeout")
    out, err = done.output.decode(errors="replace"), done.error.decode(errors="replace")
    return {"status": "success", "output": out, "error": err, "returncode": done.status}


def _tilde(desktop: Desktop, word: str) -> str:
    return desktop.guest.home + word[1:] if word == "~" or word.startswith("~/") else word


def _run(desktop: Desktop, argv: Sequence[str], timeout: float, data: bytes = b"", **more: Any) -> Ran:
    try:
        return run(desktop.guest, argv, data=data, timeout=timeout, **more)
    except GuestError as e:
        if e.number:
            raise Refused(500, f"{argv[0]} does not start: {e}", "no_program") from None
        raise


def launch(desktop: Desktop, argv: Sequence[str]) -> Child:
    """Start a program that goes on. Raises Refused."""
    try:
        return start(desktop.guest, [_tilde(desktop, w) for w in argv])
    except GuestError as e:
        if e.number:
            raise Refused(500, f"{argv[0]} does not start: {e}", "no_program") from None
        raise


def read_file(desktop: Desktop, path: str) -> bytes:
    """Raises Refused (404 none, 413 too large), ValueError."""
    path = path_of(desktop, path)
    done = _run(desktop, ["/bin/sh", "-c", READ, "sh", path], FILE_S, limit=FILE_LIMIT)
    if len(done.output) >= FILE_LIMIT:
        raise Refused(413, f"{path} has more than {FILE_LIMIT} bytes", "too_large")
    if done.late:
        raise Refused(500, f"{path} could not be read within {FILE_S:g} s", "timeout")
    if done.status:
        raise Refused(404, f"{path}: {done.error.decode(errors='replace').strip()}", "no_file")
    return done.output


def write_file(desktop: Desktop, path: str, data: bytes) -> None:
    """Write a whole file; its folders are made. Raises Refused, ValueError."""
    path = path_of(desktop, path)
    done = _run(desktop, ["/bin/sh", "-c", WRITE, "sh", path], FILE_S, data)
    if done.late or done.status:
        why = done.error.decode(errors="replace").strip() or f"not done within {FILE_S:g} s"
        raise Refused(507, f"{path} was not written: {why}", "not_written")


def tree(desktop: Desktop, path: str) -> dict[str, Any]:
    """Folders and files below `path` (links are not followed). Raises Refused."""
    path = path_of(desktop, path)
    done = _run(desktop, [PYTHON, "-I", "-S", "-c", TREE, path], FILE_S)
    if done.late or done.status:
        raise Refused(404, f"{path} is no folder that can be read", "no_folder")
    found: dict[str, Any] = json.loads(done.output)
    return found


def accessibility(desktop: Desktop) -> str:
    """The accessibility tree as OSWorld's XML. Raises Refused."""
    return _atspi(desktop, "tree")


def terminal_text(desktop: Desktop) -> str:
    """The text of the terminal that is shown, "" without one. Raises Refused."""
    return _atspi(desktop, "terminal")


def _atspi(desktop: Desktop, what: str) -> str:
    code = Path(__file__).with_name("atspi.py").read_bytes()
    for _ in range(TREE_TRIES):
        done = _run(desktop, [PYTHON, "-I", "-W", "ignore", "-", what], TREE_S, code)
        if done.late or done.status >= 0:
            break  # else a signal ended it: the library dies of programs that end while they are asked
    if done.late:
        raise Refused(500, f"the accessibility tree was not read within {TREE_S:g} s", "no_tree")
    if done.status:
        why = done.error.decode(errors="replace").strip().rpartition("\n")[2] or "it said nothing"
        raise Refused(500, f"the accessibility tree cannot be read: status {done.status}, {why}", "no_tree")
    return done.output.decode(errors="replace")


def wallpaper(desktop: Desktop) -> bytes:
    """Bytes of the wallpaper's file. Raises Refused."""
    raw = read_file(desktop, "~/.config/pcmanfm/default/desktop-items-0.conf").decode(errors="replace")
    found = re.search(r"^wallpaper=(.+)$", raw, re.MULTILINE)
    if found is None:
        raise Refused(404, "the desktop has a plain colour", "no_file")
    return read_file(desktop, found[1].strip())


def set_wallpaper(desktop: Desktop, path: str) -> None:
    """Raises Refused."""
    argv = ["pcmanfm", "--set-wallpaper", path_of(desktop, path), "--wallpaper-mode=fit"]
    done = _run(desktop, argv, 10.0)
    if done.late or done.status:
        raise Refused(500, f"the wallpaper was not set: {done.error.decode(errors='replace').strip()}", "not_done")


def download(desktop: Desktop, url: str, path: str) -> None:
    """Raises Refused."""
    done = _run(desktop, [PYTHON, "-I", "-S", "-c", FETCH, url, path_of(desktop, path)], COMMAND_S)
    if done.late or done.status:
        why = done.error.decode(errors="replace").strip().rpartition("\n")[2] or "time is up"
        raise Refused(500, f"{url} was not fetched (a local desktop has no network): {why}", "not_done")


def run_python(desktop: Desktop, code: str) -> dict[str, Any]:
    """OSWorld's reply to /run_python."""
    done = _run(desktop, [PYTHON, "-"], CODE_S, code.encode())
    return _ran(done, "return_code")


def run_bash(desktop: Desktop, script: str, timeout: float, folder: str) -> dict[str, Any]:
    """OSWorld's reply to /run_bash_script."""
    cwd = path_of(desktop, folder) if folder else ""
    done = _run(desktop, ["/bin/bash", "-s"], min(timeout, 600.0), script.encode(), cwd=cwd)
    return _ran(done, "returncode")


def _ran(done: Ran, key: str) -> dict[str, Any]:
    status = "error" if done.late or done.status else "success"
    error = done.error.decode(errors="replace") + ("\ntime is up" if done.late else "")
    return {"status": status, "output": done.output.decode(errors="replace"), "error": error, key: done.status}


def open_file(desktop: Desktop, path: str, limit_s: float = OPEN_S) -> WindowInfo:
    """Open `path` with its program; the window that shows it. Raises Refused (404, 500 when none appears)."""
    path = path_of(desktop, path)
    kind = _run(desktop, ["/usr/bin/stat", "-L", "--printf=%F", "--", path], FILE_S)
    if kind.status:
        raise Refused(404, f"{path}: no such file", "no_file")
    before = {w.id for w in desktop.windows.all()}
    launch(desktop, _opener(desktop, path, kind.output == b"directory"))
    name, stem = Path(path).name, Path(path).stem
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = [w for w in desktop.windows.all() if w.kind in ("normal", "dialog")]
        for w in found:
            if name in w.title or (w.id not in before and stem and stem in w.title):
                desktop.settle(Rule(max(desktop.rule.quiet_s, start_quiet_of(w.app)), OPEN_SETTLE_S))
                return w
        time.sleep(0.02)
    raise Refused(500, f"no window shows {name!r} within {limit_s:g} s", "no_window")


def _opener(desktop: Desktop, path: str, is_folder: bool) -> list[str]:
    """The command that opens `path`: by the user's defaults, then by what the programs say they open."""
    known_type = OFFICE_TYPES.get(Path(path).suffix.lower(), ("",))[0] or mimetypes.guess_type(path)[0]
    kind = "inode/directory" if is_folder else known_type or "text/plain"
    known = applications()
    try:
        raw = read_file(desktop, "~/.config/mimeapps.list").decode(errors="replace")
    except Refused:
        raw = ""
    defaults = RawConfigParser(strict=False, interpolation=None, allow_no_value=True)
    defaults.optionxform = str  # type: ignore[assignment,method-assign]
    with contextlib.suppress(ConfigError):  # the guest's own file: one that cannot be read has no defaults
        defaults.read_string(raw)
    chosen = defaults.get("Default Applications", kind, fallback="") or ""
    stems = [s.removesuffix(".desktop") for s in chosen.split(";") if s]
    entries = {stem: _entry(file) for stem, file in known.items()}
    for wanted in (kind, "text/plain" if kind.startswith("text/") else kind):
        stems += [s for s, e in entries.items() if wanted in e.get("MimeType", "").split(";")]
    for stem in stems:
        command = entries.get(stem, {}).get("Exec", "")
        if command:
            parts = shlex.split(command)
            argv = [path if re.fullmatch(r"%[fFuU]", w) else w for w in parts if not re.fullmatch(r"%[^fFuU]", w)]
            return argv if path in argv else [*argv, path]
    raise Refused(500, f"no program here opens {kind} ({path})", "no_program")


def _entry(file: Path) -> dict[str, str]:
    parser = RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read(file, encoding="utf-8")
        return dict(parser["Desktop Entry"])
    except (KeyError, ValueError, OSError, ConfigError):
        return {}  # not a desktop file


def verify(desktop: Desktop, wanted: dict[str, Any], limit_s: float, every_s: float) -> bool:
    """Whether a window of that name is there and that command succeeds, within `limit_s`."""
    end = time.monotonic() + limit_s
    while True:
        window, command = wanted.get("window_exists"), wanted.get("command_success")
        ok = not window or desktop.windows.find(str(window)) is not None
        if ok and command:
            ok = _run(desktop, words({"command": command, "shell": isinstance(command, str)}), COMMAND_S).status == 0
        if ok or time.monotonic() > end:
            return ok
        time.sleep(every_s)
