"""Presets: params.yaml is always complete and commented, and a preset is the few values that differ from the defaults.

Guarantees: `write` never overwrites values of the user's own without `force`. Both engines read params.yaml only, so a
preset takes effect by being written there; it is not merged at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from guiderail.param_errors import nearest
from guiderail.params import ParamError, Params, load, parse
from guiderail.yaml_file import YamlError, read_yaml

PRESETS = Path("workflow/presets")
WIDTH = 60


def names() -> list[str]:
    """Presets on disk."""
    return sorted(p.stem for p in PRESETS.glob("*.yaml"))


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `over` put in, section by section; `recipes` are replaced as a whole."""
    out = dict(base)
    for k, v in over.items():
        deep = isinstance(v, Mapping) and isinstance(out.get(k), Mapping) and k != "recipes"
        out[k] = merged(out[k], v) if deep else v
    return out


def preset(name: str) -> Params:
    """Defaults, workflow/presets/default.yaml, then workflow/presets/<name>.yaml. Raises ParamError."""
    if name not in names():
        raise ParamError(f"preset {name}: no such file in {PRESETS}. {nearest(name, names())}")
    tree = Params().model_dump(mode="json")
    for part in dict.fromkeys(["default", name]):
        path = PRESETS / f"{part}.yaml"
        try:
            tree = merged(tree, read_yaml(path) or {})
        except YamlError as e:
            raise ParamError(str(e)) from None
    return parse(tree, str(PRESETS / f"{name}.yaml"))


def about(name: str) -> str:
    """The first comment line of a preset file."""
    first = (PRESETS / f"{name}.yaml").read_text().splitlines()[:1]
    return first[0].removeprefix("#").strip() if first else ""


def _value(v: Any) -> str:
    text = yaml.safe_dump(v, default_flow_style=True, width=10**6).strip()
    return text.removesuffix("...").strip()


def _lines(model: BaseModel, indent: str) -> list[str]:
    lines: list[str] = []
    for key, field in type(model).model_fields.items():
        v = getattr(model, key)
        note = field.description or ""
        if isinstance(v, BaseModel):
            title = note or (type(v).__doc__ or "").splitlines()[0]
            lines += ["", f"# {title}"] if not indent else []
            lines += [f"{indent}{key}:", *_lines(v, indent + "  ")]
        elif isinstance(v, dict) and v:
            lines += ["", f"# {note}"] if note and not indent else []
            lines += [f"{indent}{key}:", *(f"{indent}  {k}: {_value(x)}" for k, x in v.items())]
        else:
            tree = model.model_dump(mode="json")
            text = f"{indent}{key}: {_value(tree[key])}"
            lines.append(f"{text}  # {note}" if note else text)
    return lines


def render(params: Params, name: str) -> str:
    """A complete params.yaml with the descriptions as comments."""
    head = [
        f"# Parameters of the chain (preset: {name}). Every key is here; an unknown one is an error.",
        "# `guiderail preset` lists presets, `guiderail preset NAME` writes one into this file. Both engines",
        "# read this file only; a change re-runs the stages that use it and those after them (dvc.yaml says which).",
    ]
    return "\n".join(head + _lines(params, "")) + "\n"


def current(path: Path) -> str | None:
    """The preset whose values `path` holds, or None when it holds values of its own or cannot be read."""
    try:
        params = load(path)
    except ParamError:
        return None
    return next((n for n in names() if preset(n) == params), None)


def write(name: str, path: Path, force: bool = False) -> None:
    """Write preset `name` to `path`. Raises ParamError when that would lose the user's own values and not `force`."""
    chosen = preset(name)
    if path.exists() and not force and current(path) is None:
        raise ParamError(
            f"{path} holds values that no preset has. Keep it (`cp {path} mine.yaml`) and pass --force, "
            "or edit it by hand."
        )
    try:
        path.write_text(render(chosen, name))
    except OSError as e:
        raise ParamError(f"{path}: cannot be written: {e.strerror or e}.") from None
