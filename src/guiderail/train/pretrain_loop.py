"""The loop that both parts of pretraining share: learning rate, mixed precision, progress, checkpoints.

Guarantees: a checkpoint is whole or not there; a loop that was killed goes on from its last one with the parameters and
Adam's moments as they were. What is drawn at a step is the caller's: it must depend on the step's number alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def fast(bfloat16: bool) -> Iterator[None]:
    """Matrix products in bfloat16 if asked for; attention as plain products.

    For 140 patches an image, torch's flash attention takes five times as long backward on a CPU.
    """
    with sdpa_kernel(SDPBackend.MATH), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
        yield


def rate(step: int, steps: int, warmup: int = 100, decay: float = 0.3) -> float:
    """Warm-up, constant, then linear decay over the last share `decay` (Haegele et al. 2024)."""
    start = int(steps * (1 - decay))
    return min(1.0, (step + 1) / warmup) * (1.0 if step < start else max(0.02, (steps - step) / max(1, steps - start)))


def save_state(path: Path, params: list[torch.Tensor], optimiser: torch.optim.Optimizer, step: int) -> None:
    """Write parameters and Adam's state after `step` steps, atomically.

    Tensors: step; and per parameter i p{i}, m{i}, v{i} (moments) and t{i} (its own number of updates; the text model
    gets fewer than `step`).
    """
    state = {f"p{i}": p.detach() for i, p in enumerate(params)} | {"step": torch.tensor(step)}
    for i, p in enumerate(params):
        s = optimiser.state[p]
        state |= {f"m{i}": s["exp_avg"], f"v{i}": s["exp_avg_sq"], f"t{i}": torch.as_tensor(s["step"])}
    partial = path.with_suffix(".tmp")
    save_file({k: v.contiguous().clone() for k, v in state.items()}, partial)
    os.replace(partial, path)


def load_state(path: Path, params: list[torch.Tensor], optimiser: torch.optim.Optimizer) -> int:
    """Read what `save_state` wrote into `params` and `optimiser`; returns the number of steps done.

    A parameter that the file lacks keeps its value; a file without t{i} is from before updates were counted apart.
    """
    state = load_file(path)
    step = int(state["step"])
    with torch.no_grad():
        for i, p in enumerate(params):
            if f"p{i}" not in state:
                continue
            p.copy_(state[f"p{i}"])
            optimiser.state[p] = {
                "step": state.get(f"t{i}", torch.tensor(float(step))),
                "exp_avg": state[f"m{i}"],
                "exp_avg_sq": state[f"v{i}"],
            }
    return step


def adam(params: list[torch.Tensor], lr: float) -> torch.optim.AdamW:
    """The optimiser of all parts."""
    return torch.optim.AdamW(params, lr=lr, weight_decay=0.01, betas=(0.9, 0.95), fused=True)


def learn(
    params: list[torch.Tensor],
    optimiser: torch.optim.Optimizer,
    loss_at: Callable[[int], tuple[torch.Tensor, dict[str, float]]],
    state: Path,
    *,
    step: int,
    steps: int,
    lr: float,
    save_every: int,
    say: Callable[[str], None],
    called: str = "step",
) -> None:
    """Take optimiser steps `step` to `steps` on `loss_at(step)`: a scalar loss and its statistics by name.

    Every 50 steps the means of the statistics are said; every `save_every` steps, and at the end, `state` is written.
    """
    began = time.perf_counter()
    sums: dict[str, list[float]] = {}
    while step < steps:
        for g in optimiser.param_groups:
            g["lr"] = lr * rate(step, steps)
        loss, stats = loss_at(step)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        step += 1
        for k, v in stats.items():
            sums.setdefault(k, []).append(v)
        if step % 50 == 0:
            means = " ".join(f"{k} {np.mean(v):.3f}" for k, v in sums.items())
            say(f"{called} {step}/{steps} {(time.perf_counter() - began) / 60:.1f} min: {means}")
            sums = {}
        if step % save_every == 0 or step == steps:
            save_state(state, params, optimiser, step)
