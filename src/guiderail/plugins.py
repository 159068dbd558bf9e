"""Suites, providers and algorithms of the user's own: one Python file each under `plugins/`, named in params.yaml.

Guarantees: a file is run only after params.yaml (or a command line) has named it, once per process, in the order of the
list; whatever is wrong with one is a PluginError with the file and the remedy. dvc.yaml lists the folders as
dependencies, so a change of a file re-runs what it can change; `digests` names the loaded ones for caches that DVC does
not see. A plugin is code and is trusted like the rest of the repository: nothing is fetched, nothing is sandboxed.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from guiderail.errors import Explained

FOLDER = Path("plugins")
KINDS = {"tasks": "SUITE", "providers": "PROVIDER", "algorithms": "ALGORITHM"}
"""Folder below `plugins/` -> what its files must define."""
NAME = re.compile(r"[a-z][a-z0-9_]*")

_active: dict[str, dict[str, ModuleType]] = {kind: {} for kind in KINDS}


class PluginError(Explained, RuntimeError):
    """A plugin cannot be used; the message names the file and what to do."""


def path_of(kind: str, name: str) -> Path:
    """The file of a plugin, below the current directory (that of params.yaml)."""
    return FOLDER / kind / f"{name}.py"


def activate(wanted: Mapping[str, Iterable[str]]) -> None:
    """Load exactly the plugins of `wanted` (kind -> names); those that are loaded from the same bytes stay as they are.

    Raises PluginError.
    """
    found: dict[str, dict[str, ModuleType]] = {kind: {} for kind in KINDS}
    for kind, names in wanted.items():
        if kind not in KINDS:
            raise PluginError(f"plugins.{kind}: no such kind; there are: {', '.join(KINDS)}")
        for name in names:
            found[kind][name] = _loaded(kind, name)
    for kind in KINDS:
        _active[kind] = found[kind]


def names(kind: str) -> tuple[str, ...]:
    """Names of the loaded plugins of a kind."""
    return tuple(_active[kind])


def find(kind: str, name: str) -> Any:
    """What the loaded plugin `name` defines (SUITE, PROVIDER or ALGORITHM), or None when none is loaded."""
    module = _active[kind].get(name)
    return None if module is None else getattr(module, KINDS[kind])


def command_line() -> list[str]:
    """Options that make another process of ours load the same plugins: `--plugin kind/name` for each."""
    return [part for kind, loaded in _active.items() for name in loaded for part in ("--plugin", f"{kind}/{name}")]


def activate_words(words: Iterable[str]) -> None:
    """Load what `command_line` has named. Raises PluginError."""
    wanted: dict[str, list[str]] = {}
    for word in words:
        kind, _, name = word.partition("/")
        wanted.setdefault(kind, []).append(name)
    activate(wanted)


def digests() -> dict[str, str]:
    """File -> sha256 of every loaded plugin, as it was when it was loaded."""
    return {path_of(k, n).as_posix(): m.__digest__ for k, loaded in _active.items() for n, m in loaded.items()}


def _loaded(kind: str, name: str) -> ModuleType:
    path = path_of(kind, name)
    if not NAME.fullmatch(name):
        raise PluginError(f"plugins.{kind}: {name!r}: a plugin's name may hold a-z, 0-9 and _ only, a letter first")
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise PluginError(
            f"plugins.{kind} names {name!r}, but there is no {path}. Put the file there, or take the name out of "
            "params.yaml."
        ) from None
    digest = hashlib.sha256(source).hexdigest()
    before = _active[kind].get(name)
    if before is not None and before.__digest__ == digest:
        return before
    module = ModuleType(f"guiderail_plugins_{kind}_{name}")
    module.__file__, module.__digest__ = str(path), digest  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as e:
        line = _line(e, str(path))
        raise PluginError(f"{path}{line}: {type(e).__name__}: {e}. Mend it, or take it out of plugins.{kind}.") from e
    if not hasattr(module, KINDS[kind]):
        raise PluginError(f"{path}: defines no {KINDS[kind]}; docs/howto/{kind.removesuffix('s')}.md shows one")
    return module


def _line(error: Exception, path: str) -> str:
    """ ":<line>" where in the file the error came from, "" when that is not known."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    trace, line = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = f":{trace.tb_lineno}"
        trace = trace.tb_next
    return line
