"""Forget what a layer computed and compute it again for its gradient: less memory, one forward more.

Chen et al. 2016 (arXiv 1604.06174). Guarantees: the same numbers as without, gradients too (the same operations run
again); nothing changes where no gradient is asked for. Switched on by `model.recompute`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

FLAG = "guiderail_recompute"


def switch(language_model: Any, on: bool) -> None:
    """Remember on the text model whether its layers are recomputed."""
    setattr(language_model, FLAG, on)


def wanted(language_model: Any, cache: Any) -> bool:
    """Whether this forward should: switched on, with gradients, without a cache."""
    return bool(getattr(language_model, FLAG, False)) and torch.is_grad_enabled() and cache is None


def layer(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """run(x), whose inner results are made again in the backward pass."""
    return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]


@contextmanager
def in_library(language_model: Any, on: bool) -> Iterator[None]:
    """Within: the library's own forward recomputes its layers (they must be told so, and look at `training`)."""
    if not on:
        yield
        return
    names = ("gradient_checkpointing", "training", "_gradient_checkpointing_func")
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    layers = list(language_model.layers)
    before = [{n: getattr(x, n, None) for n in names} for x in layers]
    for x in layers:
        for name, value in zip(names, (True, True, again), strict=True):
            setattr(x, name, value)
    try:
        yield
    finally:
        for x, kept in zip(layers, before, strict=True):
            for name, value in kept.items():
                setattr(x, name, value)
