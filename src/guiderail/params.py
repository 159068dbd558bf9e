"""Typed, strict parameters: params.yaml in, frozen pydantic models out.

Guarantees: an unknown or missing key, a wrong type or a value that cannot work is refused with one line per problem
that names the key, the value and the remedy. A file must hold every key: DVC tracks and interpolates single keys, so
one left to a default would be a change that re-runs nothing. Knows nothing of stages; each section is handed to the
part that consumes it (`params_tree` has them all).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from guiderail import plugins
from guiderail.param_errors import explain, nearest
from guiderail.params_chain import (
    PROVIDERS,
    AndroidControl,
    Demos,
    Env,
    Evaluate,
    Merge,
    Model,
    Plugins,
    Prompt,
    Provision,
    Report,
    Sweep,
    Tracking,
)
from guiderail.params_engine import Engine
from guiderail.params_prm import Prm
from guiderail.params_train import Rl, Sft
from guiderail.params_trainer import Trainer
from guiderail.params_tree import Params
from guiderail.yaml_file import YamlError, read_yaml

__all__ = [
    "PROVIDERS",
    "AndroidControl",
    "Demos",
    "Engine",
    "Env",
    "Evaluate",
    "Merge",
    "Model",
    "ParamError",
    "Params",
    "Plugins",
    "Prm",
    "Prompt",
    "Provision",
    "Report",
    "Rl",
    "Sft",
    "Sweep",
    "Tracking",
    "Trainer",
    "load",
    "load_plugins",
    "parse",
]


class ParamError(SystemExit):
    """Bad parameters. Its text is what the user reads; exit status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def parse(raw: object, source: str = "params.yaml") -> Params:
    """Check a tree of plain values. Raises ParamError with one line per problem, each beginning with `source`."""
    try:
        text = json.dumps(raw, default=str)
    except (TypeError, ValueError, RecursionError) as e:  # a key that is no text, or a mapping that holds itself
        raise ParamError(f"{source}: not plain keys and values: {e}.") from None
    try:
        return Params.model_validate_json(text, strict=True)
    except ValidationError as e:
        lines = [line for x in e.errors() for line in explain(x, Params).splitlines()]
        raise ParamError("\n".join(f"{source}: {line}" for line in lines)) from None


def load(path: str | Path = "params.yaml") -> Params:
    """Read and check parameters, every key must be there; load the plugins they name and no others. Raises ParamError
    with one line per problem."""
    try:
        raw = read_yaml(path)
    except YamlError as e:
        raise ParamError(str(e)) from None
    if raw is None or raw == {}:
        raise ParamError(f"{path}: empty. `guiderail preset default --force` writes all parameters into it.")
    if not isinstance(raw, dict):
        raise ParamError(f"{path}: must be a mapping of sections (sweep, model, rl, ...), not {type(raw).__name__}.")
    params = parse(raw, str(path))
    missing = _missing(raw, params.model_dump(mode="json"))
    if missing:
        named = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ParamError(
            f"{path}: missing: {named}. Every parameter must be in it (DVC tracks each). Add them, or let "
            "`guiderail preset NAME --force` write a whole file."
        )
    load_plugins(params, str(path))
    return params


def load_plugins(params: Params, source: str = "params.yaml") -> None:
    """Load the plugins of `params`, and check the options of their algorithms. Raises ParamError."""
    try:
        plugins.activate(params.plugins.model_dump())
    except plugins.PluginError as e:
        raise ParamError(f"{source}: {e}") from None
    for recipe in params.recipes:
        for rl in params.phases_for(recipe):
            own = plugins.find("algorithms", rl.algorithm)
            unknown = sorted(set(rl.options) - set(own.options)) if own is not None else []
            if unknown:
                raise ParamError(f"{source}: recipes.{recipe}.options.{unknown[0]}: {nearest(unknown[0], own.options)}")


def _missing(raw: Mapping[str, Any], full: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys of `full` that `raw` lacks; an absent section counts once."""
    found: list[str] = []
    for key, value in full.items():
        if key not in raw:
            found.append(f"{prefix}{key}")
        elif isinstance(value, dict) and f"{prefix}{key}" != "recipes":
            found += _missing(raw[key], value, f"{prefix}{key}.")
    return found
