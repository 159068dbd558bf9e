"""OSWorld's task files: a JSON tree in, a checked and typed task out.

Guarantees: what cannot be used is one `TaskFileError` that names file and field: a missing or mistyped field, an
unknown func, getter, setup step or app, a file name that leaves its folder, a step that cannot work. A task that loads
may still need what is not there (an account, a proxy, a metric we lack): `osworld_needs` tells. Fields that nobody
knows are kept out and listed in `notes`. Nothing of a task file is ever executed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from guiderail.tasks.osworld import Check, Json, OsworldTask, Step, TaskFileError
from guiderail.tasks.osworld_steps import check_step
from guiderail.tasks.osworld_words import APPS, FUNCS, GETTERS, NEEDS_EXPECTED, nearest

KNOWN = {"id", "snapshot", "instruction", "source", "config", "trajectory", "related_apps", "evaluator", "proxy",
         "fixed_ip", "possibility_of_env_change", "guiderail"}  # fmt: skip
KNOWN_EVALUATOR = {"func", "conj", "result", "expected", "options", "postconfig"}


def parse_task(data: object, where: str) -> OsworldTask:
    """The task in a JSON tree; `where` names it in errors. Raises TaskFileError."""
    if not isinstance(data, dict):
        raise TaskFileError(f"{where}: must be an object, is {type(data).__name__}.")
    get = _Fields(data, where)
    evaluator = get("evaluator", dict)
    rules = _Fields(evaluator, f"{where}: evaluator")
    config = _steps(data.get("config"), f"{where}: config")
    postconfig = _steps(evaluator.get("postconfig"), f"{where}: evaluator.postconfig")
    apps = get("related_apps", list, [])
    for app in apps:
        if not isinstance(app, str) or app not in APPS:
            raise TaskFileError(f"{where}: related_apps: {app!r}: no such app. {nearest(app, APPS)}")
    conj = rules("conj", str, "and")
    if conj not in ("and", "or"):
        raise TaskFileError(f"{where}: evaluator.conj: {conj!r}: must be 'and' or 'or'.")
    instruction = get("instruction", str)
    if not instruction.strip():
        raise TaskFileError(f"{where}: instruction: empty.")
    name = get("id", str)
    if not name or "/" in name:
        raise TaskFileError(f"{where}: id: {name!r}: must be a word without a slash.")
    task = OsworldTask(
        id=name,
        instruction=instruction,
        config=config,
        checks=_checks(evaluator, f"{where}: evaluator"),
        conj=conj,
        postconfig=postconfig,
        apps=tuple(apps),
        snapshot=get("snapshot", str, ""),
        source=str(data.get("source") or ""),
        proxy=get("proxy", bool, False),
        fixed_ip=get("fixed_ip", bool, False),
        may_change=get("possibility_of_env_change", str, "low"),
        file=where,
        notes=tuple(sorted(str(k) for k in data.keys() - KNOWN))
        + tuple(sorted(f"evaluator.{k}" for k in evaluator.keys() - KNOWN_EVALUATOR)),
    )
    _check_files(task, where)
    return task


class _Fields:
    """Typed look-up of fields that names the field when it is wrong."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data, self.where = data, where

    def __call__(self, name: str, kind: type, default: Any = None) -> Any:
        dot = "." if self.where.endswith("evaluator") else ": "
        value = self.data.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise TaskFileError(f"{self.where}{dot}{name}: missing.")
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise TaskFileError(f"{self.where}{dot}{name}: must be {_NAMES[kind]}, is {type(value).__name__}.")
        return value


_NAMES = {str: "text", list: "a list", dict: "an object", bool: "true or false"}


def _steps(raw: object, where: str) -> tuple[Step, ...]:
    """Steps of a list (null means none), each checked. Raises TaskFileError."""
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise TaskFileError(f"{where}: must be a list of steps, is {type(raw).__name__}.")
    steps: list[Step] = []
    for i, item in enumerate(raw):
        at = f"{where}[{i}]"
        if not isinstance(item, dict) or not isinstance(item.get("type"), str):
            raise TaskFileError(f"{at}: must be an object with a type.")
        parameters = item.get("parameters", {})
        if not isinstance(parameters, dict):
            raise TaskFileError(f"{at}.parameters: must be an object, is {type(parameters).__name__}.")
        try:
            check_step(item["type"], parameters)
        except ValueError as e:
            raise TaskFileError(f"{at}{e}") from None
        steps.append(Step(item["type"], parameters))
    return tuple(steps)


def _checks(evaluator: Json, where: str) -> tuple[Check, ...]:
    """The metrics with their getters and options. Raises TaskFileError."""
    func = evaluator.get("func")
    if func is None:
        raise TaskFileError(f"{where}.func: missing.")
    funcs = func if isinstance(func, list) else [func]
    if not funcs:
        raise TaskFileError(f"{where}.func: empty.")
    parts: dict[str, list[Any]] = {}
    for key in ("result", "expected", "options"):
        value = evaluator.get(key)
        if not isinstance(func, list):
            value = [value]
        elif value is None:
            value = [None] * len(funcs)
        elif not isinstance(value, list):
            raise TaskFileError(f"{where}.{key}: must be a list, as func is one.")
        if len(value) != len(funcs):
            raise TaskFileError(f"{where}.{key}: {len(value)} for {len(funcs)} funcs; give one for each.")
        parts[key] = value
    found: list[Check] = []
    for i, name in enumerate(funcs):
        at = f"[{i}]" if isinstance(func, list) else ""
        if not isinstance(name, str) or name not in FUNCS:
            raise TaskFileError(f"{where}.func{at}: {name!r}: no such metric. {nearest(name, FUNCS)}")
        result, expected, options = (parts[k][i] or None for k in ("result", "expected", "options"))
        for key, getter in (("result", result), ("expected", expected)):
            _check_getter(getter, f"{where}.{key}{at}")
        if options is not None and not isinstance(options, dict):
            raise TaskFileError(f"{where}.options{at}: must be an object, is {type(options).__name__}.")
        if name != "infeasible" and result is None:
            raise TaskFileError(f"{where}.result{at}: missing; {name} has nothing to look at.")
        if name in NEEDS_EXPECTED and expected is None:
            raise TaskFileError(f"{where}.expected{at}: missing; {name} compares with it.")
        found.append(Check(name, result, expected, options))
    return tuple(found)


def _check_getter(getter: object, where: str) -> None:
    """A getter's type must exist and its fields be there. Raises TaskFileError."""
    if getter is None:
        return
    if not isinstance(getter, dict) or not isinstance(getter.get("type"), str):
        raise TaskFileError(f"{where}: must be an object with a type.")
    kind = getter["type"]
    if kind not in GETTERS:
        raise TaskFileError(f"{where}.type: {kind!r}: no such getter. {nearest(kind, GETTERS)}")
    for field in GETTERS[kind]:
        if field not in getter:
            raise TaskFileError(f"{where}.{field}: missing; {kind} needs it.")


def _check_files(task: OsworldTask, where: str) -> None:
    """File names on our side (the scratch folder of a lease) must stay inside it. Raises TaskFileError."""
    for i, check in enumerate(task.checks):
        for key, getter in (("result", check.result), ("expected", check.expected)):
            for name in local_names(getter):
                check_inside(name, f"{where}: evaluator.{key}[{i}]")
    for i, step in enumerate(task.steps):
        part, n = ("config", i) if i < len(task.config) else ("evaluator.postconfig", i - len(task.config))
        for key in ("stdout", "stderr"):
            if key in step.parameters:
                check_inside(step.parameters[key], f"{where}: {part}[{n}].parameters.{key}")
        for file in step.parameters.get("files", []) if step.type == "upload_file" else []:
            check_inside(file["local_path"], f"{where}: {part}[{n}].parameters.files.local_path")


def local_names(getter: Mapping[str, Any] | None) -> Iterator[str]:
    """Names of files that a getter keeps in, or takes from, the scratch folder."""
    if getter is None:
        return
    values: list[Any] = [getter.get("dest")]
    if getter["type"] in ("cache_file", "setup_file"):
        values.append(getter.get("path"))
    for value in values:
        yield from (str(v) for v in (value if isinstance(value, Sequence) and not isinstance(value, str) else [value])
                    if v is not None)  # fmt: skip


def check_inside(name: object, where: str) -> None:
    """`name` must be a relative path that does not climb. Raises TaskFileError."""
    path = PurePosixPath(str(name))
    if not isinstance(name, str) or not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise TaskFileError(f"{where}: {name!r}: must be a file inside its folder.")
