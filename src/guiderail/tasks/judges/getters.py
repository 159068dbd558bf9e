"""Getters: what a metric looks at, fetched from the guest, the asset cache or the task file.

Guarantees: every file lands in a folder of its own inside the lease's scratch folder (results and expected files never
share one, so equal names cannot hide each other), under a size limit; what the guest holds is copied, never parsed
here: a getter that must read a format names a `finish` function, which runs in the judge's child.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guiderail.tasks.assets import AssetCache
from guiderail.tasks.guest import Guest, GuestError, GuestFileMissing

Json = dict[str, Any]
HOME = "/home/user"
CHROME = f"{HOME}/.config/google-chrome"


@dataclass(frozen=True)
class Source:
    """Where getters fetch from and to: `folder` is for the files of this getter, `steps` for what steps printed, and
    beside it in `files` lie those that the task brought along."""

    guest: Guest
    assets: AssetCache
    folder: Path
    steps: Path

    def file(self, name: str) -> Path:
        """A path inside `folder`. Raises ValueError when `name` climbs out of it."""
        path = (self.folder / name).resolve()
        if self.folder.resolve() not in path.parents:
            raise ValueError(f"file name {name!r} leaves the scratch folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@dataclass(frozen=True)
class Fetched:
    """A getter's value (JSON; files as paths) and the function that finishes it in the child ("" = none)."""

    value: Any
    finish: str = ""


Fetcher = Callable[[Source, Json], Awaitable[Fetched]]


def is_true(value: object) -> bool:
    """OSWorld writes true, "true" and 1."""
    return value is True or str(value).lower() in ("true", "1")


async def _rule(s: Source, c: Json) -> Fetched:
    return Fetched(c["rules"])


async def _vm_file(s: Source, c: Json) -> Fetched:
    async def get(path: str, name: str) -> str | None:
        try:
            data = await s.guest.read(path)
        except GuestFileMissing:
            return None
        target = s.file(name)
        target.write_bytes(data)
        return str(target)

    return Fetched(await _several(c, get))


async def _cloud_file(s: Source, c: Json) -> Fetched:
    async def get(url: str, name: str) -> str | None:
        target = s.file(name)
        target.write_bytes((await s.assets.get(url)).read_bytes())
        return str(target)

    return Fetched(await _several(c, get))


async def _several(c: Json, get: Callable[[str, str], Awaitable[str | None]]) -> Any:
    """One file, or with `multi` all of them, of which those numbered in `gives` (the first) are the value."""
    many = is_true(c.get("multi")) or isinstance(c["path"], list)
    paths, names = (c["path"], c["dest"]) if many else ([c["path"]], [c["dest"]])
    found = [await get(p, n) for p, n in zip(paths, names, strict=True)]
    given = [found[i] for i in (c.get("gives") or [0])]
    return given[0] if len(given) == 1 else given


async def _cache_file(s: Source, c: Json) -> Fetched:
    path = s.steps / c["path"]
    return Fetched(str(path) if path.is_file() else None)


async def _setup_file(s: Source, c: Json) -> Fetched:
    """Ours: a file that setup put into the guest, as it was then: the guest's own is the agent's to change."""
    return Fetched(str(s.steps.parent / "files" / c["path"]))


async def _command(s: Source, c: Json) -> Fetched:
    return Fetched((await s.guest.execute(c["command"], is_true(c.get("shell")))).output)


async def _command_error(s: Source, c: Json) -> Fetched:
    return Fetched((await s.guest.execute(c["command"], is_true(c.get("shell")))).error)


async def _terminal(s: Source, c: Json) -> Fetched:
    return Fetched(await s.guest.terminal())


async def _screen(s: Source, c: Json) -> Fetched:
    return Fetched(await s.guest.screen_size())


async def _window(s: Source, c: Json) -> Fetched:
    return Fetched(await s.guest.window_size(c["app_class_name"]))


async def _wallpaper(s: Source, c: Json) -> Fetched:
    target = s.file(c["dest"])
    target.write_bytes(await s.guest.wallpaper())
    return Fetched(str(target))


async def _tree(s: Source, c: Json) -> Fetched:
    return Fetched(await s.guest.tree(c["path"]))


async def _accessibility(s: Source, c: Json) -> Fetched:
    return Fetched(await s.guest.accessibility())


async def _vlc_playing(s: Source, c: Json) -> Fetched:
    command = ["curl", "-s", "-m", "10", "-u", ":password", "http://localhost:8080/requests/status.xml"]
    target = s.file(c["dest"])
    target.write_text((await s.guest.execute(command)).output, encoding="utf-8")
    return Fetched(str(target))


async def _video_player(s: Source, c: Json) -> Fetched:
    return Fetched((await s.guest.execute(["xdg-mime", "query", "default", "video/mp4"])).output.strip())


def _at(path: Callable[[Json], str], finish: str = "") -> Fetcher:
    """A getter of one file whose place follows from the getter's fields."""

    async def fetch(s: Source, c: Json) -> Fetched:
        place = path(c)
        name = c.get("dest") or Path(place).name
        return Fetched((await _vm_file(s, {"path": place, "dest": name})).value, finish)

    return fetch


def _chrome(file: str, finish: str) -> Fetcher:
    return _at(lambda c: f"{CHROME}/{file}", f"guiderail.tasks.judges.chrome:{finish}")


FETCHERS: dict[str, Fetcher] = {
    "rule": _rule,
    "vm_file": _vm_file,
    "cloud_file": _cloud_file,
    "cache_file": _cache_file,
    "setup_file": _setup_file,
    "vm_command_line": _command,
    "vm_command_error": _command_error,
    "vm_terminal_output": _terminal,
    "vm_screen_size": _screen,
    "vm_window_size": _window,
    "vm_wallpaper": _wallpaper,
    "list_directory": _tree,
    "accessibility_tree": _accessibility,
    "vlc_config": _at(lambda c: f"{HOME}/.config/vlc/vlcrc"),
    "vlc_playing_info": _vlc_playing,
    "default_video_player": _video_player,
    "gimp_config_file": _at(lambda c: f"{HOME}/.config/GIMP/2.10/{c['file_name']}"),
    "bookmarks": _chrome("Default/Bookmarks", "bookmarks"),
    "profile_name": _chrome("Default/Preferences", "profile_name"),
    "enable_do_not_track": _chrome("Default/Preferences", "enable_do_not_track"),
    "enable_safe_browsing": _chrome("Default/Preferences", "enable_safe_browsing"),
    "new_startup_page": _chrome("Default/Preferences", "new_startup_page"),
    "default_search_engine": _chrome("Default/Preferences", "default_search_engine"),
    "chrome_font_size": _chrome("Default/Preferences", "font_size"),
    "data_delete_automacally": _chrome("Default/Preferences", "data_delete"),
    "enabled_experiments": _chrome("Local State", "experiments"),
    "find_unpacked_extension_path": _chrome("Default/Preferences", "extension_paths"),
    "find_installed_extension_name": _chrome("Default/Preferences", "extension_names"),
    "history": _chrome("Default/History", "history"),
    "cookie_data": _chrome("Default/Cookies", "cookies"),
}
"""Getter type -> how it is fetched."""

__all__ = ["FETCHERS", "Fetched", "Fetcher", "GuestError", "Source", "is_true"]
