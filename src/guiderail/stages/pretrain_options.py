"""Options of `guiderail pretrain` (`--set key=value`), checked before anything heavy is imported."""

from __future__ import annotations

import math

from guiderail.param_errors import nearest
from guiderail.params import ParamError

DEFAULTS: dict[str, int | float] = {
    "shards": 46,
    "sheets": 50,
    "glyph_steps": 2500,
    "read_first": 1500,
    "joint_from": 2200,
    "steps": 4000,
    "batch": 32,
    "lr": 1.5e-3,
    "listing": 0.7,
    "follow_steps": 1600,
    "follow_lr": 1e-3,
    "seed": 0,
    "bfloat16": 1,
}
LEAST = {"shards": 2, "sheets": 1, "steps": 1, "batch": 1}  # of shards, the first is held out


def read_options(given: dict[str, str]) -> dict[str, int | float]:
    """DEFAULTS with the texts of `given` read in. Raises ParamError on an unknown key or a value out of its domain."""
    options = dict(DEFAULTS)
    for key, text in given.items():
        if key not in DEFAULTS:
            near = nearest(key, DEFAULTS)
            near = f" {near}" if near.startswith("Did") else ""
            raise ParamError(f"--set {key}={text}: no such option.{near} Options: {', '.join(DEFAULTS)}.")
        kind = type(DEFAULTS[key])
        try:
            options[key] = kind(text)
        except ValueError:
            noun = "a whole number" if kind is int else "a number"
            raise ParamError(f"--set {key}={text}: must be {noun}, e.g. {key}={DEFAULTS[key]}") from None
        if not LEAST.get(key, 0) <= options[key] < math.inf:
            raise ParamError(f"--set {key}={text}: must be at least {LEAST.get(key, 0)}, and finite")
    if options["listing"] >= 1:
        raise ParamError(f"--set listing={options['listing']}: is a share, must be below 1")
    return options
