"""The setup steps of OSWorld's tasks: which there are, and what each needs to make sense.

Guarantees: `check_step` refuses, with the field's name, a step that does not exist or cannot work: nothing to run or
download, a wait that is negative or without end, a file that would land outside the guest's file system. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from guiderail.tasks.osworld_words import nearest

Parameters = Mapping[str, Any]
MAX_SLEEP_S = 300.0
PLACES = ("{CLIENT_PASSWORD}", "{SCREEN_WIDTH}", "{SCREEN_HEIGHT}", "{SCREEN_WIDTH_HALF}", "{SCREEN_HEIGHT_HALF}")
"""Words that a command may hold; they are filled in when it is run."""


def check_step(kind: str, parameters: Parameters) -> None:
    """Raises ValueError(".field: what is wrong") unless the step can be tried."""
    if kind not in STEPS:
        raise ValueError(f".type: {kind!r}: no such setup step. {nearest(kind, STEPS)}")
    try:
        STEPS[kind](parameters)
    except ValueError as e:
        raise ValueError(f".parameters.{e}") from None


def _text(p: Parameters, name: str) -> str:
    value = p.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: {'missing' if value is None else 'must be text, not empty'}.")
    if "\0" in value:
        raise ValueError(f"{name}: holds a NUL.")
    return value


def _list(p: Parameters, name: str) -> list[Any]:
    value = p.get(name)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name}: {'missing' if value is None else 'must be a list, not empty'}.")
    return value


def _command(p: Parameters) -> None:
    command = p.get("command")
    words = command if isinstance(command, list) else [command]
    if not words or not all(isinstance(w, str) and "\0" not in w for w in words) or not str(words[0]).strip():
        raise ValueError("command: must be text or a list of texts, not empty.")
    until = p.get("until")
    if until is not None and (not isinstance(until, dict) or not set(until) <= {"returncode", "stdout", "stderr"}):
        raise ValueError("until: may hold returncode, stdout and stderr only.")


def _download(p: Parameters) -> None:
    for i, file in enumerate(_list(p, "files")):
        if not isinstance(file, dict):
            raise ValueError(f"files[{i}]: must be an object with url and path.")
        try:
            parts = urlsplit(_text(file, "url"))
            _text(file, "path")
        except ValueError as e:
            raise ValueError(f"files[{i}].{e}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"files[{i}].url: {file['url']!r}: must be an http or https address.")


def _upload(p: Parameters) -> None:
    for i, file in enumerate(_list(p, "files")):
        if not isinstance(file, dict):
            raise ValueError(f"files[{i}]: must be an object with local_path and path.")
        try:
            _text(file, "local_path")
            path = _text(file, "path")
        except ValueError as e:
            raise ValueError(f"files[{i}].{e}") from None
        if not PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError(f"files[{i}].path: {path!r}: must be an absolute path in the guest.")


def _sleep(p: Parameters) -> None:
    seconds = p.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_SLEEP_S:
        raise ValueError(f"seconds: {seconds!r}: must be between 0 and {MAX_SLEEP_S:g}.")


def _verified(p: Parameters) -> None:
    _command(p)
    if not isinstance(p.get("verification"), dict):
        raise ValueError("verification: missing.")


STEPS: dict[str, Callable[[Parameters], object]] = {
    "download": _download,
    "upload_file": _upload,
    "launch": _command,
    "execute": _command,
    "command": _command,
    "execute_with_verification": _verified,
    "open": lambda p: _text(p, "path"),
    "activate_window": lambda p: _text(p, "window_name"),
    "close_window": lambda p: _text(p, "window_name"),
    "change_wallpaper": lambda p: _text(p, "path"),
    "sleep": _sleep,
    "chrome_open_tabs": lambda p: _list(p, "urls_to_open"),
    "chrome_close_tabs": lambda p: _list(p, "urls_to_close"),
    "update_browse_history": lambda p: _list(p, "history"),
    "googledrive": lambda p: _list(p, "operation"),
    "login": lambda p: _text(p, "platform"),
}
"""Setup step -> check of its parameters."""
