"""What is trained and how a step is taken: trainable parameters, LoRA, AdamW, learning-rate schedules.

Guarantees: the list of trainable parameters is exactly the one asked for (asserted by name, never by substring); LoRA
sits on linear layers of the language model only, named in full, so no vision tower of any naming is touched; its
initial weights come from the seed, not from a global generator; the learning rate is a pure function of the step. The
optimiser's state is plain tensors by parameter name. Does not compute losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from guiderail import params_train as p
from guiderail.errors import Explained, InputError
from guiderail.seeds import derive_seed

LANGUAGE = "model.language_model.layers."
VISION = "model.visual."
ADAPTER = "default"
STATE = ("step", "exp_avg", "exp_avg_sq")


class NotFinite(Explained, FloatingPointError):
    """Training has run into infinities; the message names the weights and the remedy."""


class TrainableError(Explained, ValueError):
    """The parameters that would be trained are not the ones that should be."""


def lora_targets(model: nn.Module) -> list[str]:
    """Full names of all linear layers inside the language model's blocks, in model order (never vision, embeddings or
    head)."""
    names = [n for n, m in model.named_modules() if n.startswith(LANGUAGE) and _is_linear(m)]
    if not names:
        raise TrainableError(f"no linear layer under {LANGUAGE!r}: is this a Qwen3-VL model?")
    return names


def _is_linear(module: nn.Module) -> bool:
    """A plain linear layer, or the LoRA layer that already wraps one (not the linears inside of it)."""
    from peft.tuners.lora import Linear as LoraLinear

    return isinstance(module, LoraLinear) or type(module) is nn.Linear


def adapter_targets(model: nn.Module) -> list[str]:
    """Full names of the modules that carry a LoRA adapter."""
    return [n.removesuffix(".lora_A") for n, _ in model.named_modules() if n.endswith(".lora_A")]


def inject_lora(model: nn.Module, lora: p.Lora, seed: int) -> list[str]:
    """Put fresh adapters on `lora_targets`, in place; returns their names. B = 0, so the function is unchanged.

    W' = W + (alpha / r) B A (Hu et al. 2021, arXiv 2106.09685, section 4.1). A is drawn from the seed (Kaiming
    uniform, as in PEFT).
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets = lora_targets(model)
    config = LoraConfig(r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets, bias="none")
    inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    for i, (_, param) in enumerate(_named(model, f".lora_A.{ADAPTER}.weight")):
        generator = torch.Generator().manual_seed(derive_seed(seed, "lora", i))
        fresh = torch.empty(param.shape)
        nn.init.kaiming_uniform_(fresh, a=math.sqrt(5), generator=generator)
        with torch.no_grad():
            param.copy_(fresh)
    return targets


def _named(model: nn.Module, suffix: str) -> Iterator[tuple[str, nn.Parameter]]:
    return ((n, x) for n, x in model.named_parameters() if n.endswith(suffix))


@contextmanager
def folded(model: nn.Module) -> Iterator[None]:
    """Within: adapters are added into the weights they sit on (W + (alpha / r) B A), so sampling costs no more than
    without adapters. After: every weight is back, bit for bit. A model without adapters is left alone.
    """
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "lora_A")]
    kept = [layer.base_layer.weight.detach().clone() for layer in layers]
    try:
        with torch.no_grad():
            for layer in layers:
                layer.base_layer.weight += layer.get_delta_weight(ADAPTER)
                layer.enable_adapters(False)
        yield
    finally:
        with torch.no_grad():
            for layer, weight in zip(layers, kept, strict=True):
                layer.base_layer.weight.copy_(weight)
                layer.enable_adapters(True)


def select_trainable(
    model: nn.Module, mode: Literal["full", "lora"], *, lora: p.Lora, train_vision: bool, seed: int
) -> dict[str, nn.Parameter]:
    """Mark exactly the parameters to train and return them by name.

    full: everything but the vision tower (with `train_vision`, everything). lora: adapters alone; fresh ones are
    injected unless the model was loaded with an adapter, which is then trained further. Raises TrainableError for
    combinations that cannot be saved.
    """
    present = adapter_targets(model)
    if mode == "lora":
        if train_vision:
            raise TrainableError(
                "model.train_vision = true needs mode = full: an adapter folder cannot hold trained vision weights"
            )
        targets = present or inject_lora(model, lora, seed)
        ranks = {x.shape[0] for _, x in _named(model, f".lora_A.{ADAPTER}.weight")}
        layers: list[Any] = [m for m in model.modules() if hasattr(m, "lora_A")]
        scales = {m.scaling[ADAPTER] for m in layers}
        if present and (ranks != {lora.r} or scales != {lora.alpha / lora.r}):
            found = f"r {sorted(ranks)}, alpha / r {sorted(scales)}"
            raise TrainableError(
                f"lora: r = {lora.r}, alpha = {lora.alpha}, but the starting adapter has {found}: use its"
            )
        wanted = {f"{t}.lora_{ab}.{ADAPTER}.weight" for t in targets for ab in "AB"}
    else:
        if present:
            raise TrainableError("mode = full starts from full weights, not from an adapter: fold it first")
        wanted = {n for n, _ in model.named_parameters() if train_vision or not n.startswith(VISION)}
    for name, param in model.named_parameters():
        param.requires_grad_(name in wanted)
    trainable = {n: x for n, x in model.named_parameters() if x.requires_grad}
    check_trainable(trainable, wanted)
    return trainable


def check_trainable(trainable: Mapping[str, nn.Parameter], wanted: Iterable[str]) -> None:
    """Refuse a list of trainable names that is not the wanted one. Raises TrainableError naming the difference."""
    more, less = sorted(set(trainable) - set(wanted)), sorted(set(wanted) - set(trainable))
    if more or less or not trainable:
        raise TrainableError(f"trainable parameters: unexpected {more[:5]}, missing {less[:5]} (of {len(trainable)})")


def learning_rate(step: int, total: int, optim: p.Optim) -> float:
    """Learning rate of step `step` (0-based) of `total`.

    Linear warm-up over the first round(warmup * total) steps, (step + 1) / warm-up, so that no step is wasted at 0;
    then, with t the fraction of the remaining steps done: constant 1, linear 1 - t, cosine (1 + cos(pi t)) / 2
    (Loshchilov and Hutter 2016), times `lr`.
    """
    warm = min(total, round(optim.warmup * total))
    if step < warm:
        return optim.lr * (step + 1) / warm
    t = (step - warm) / max(1, total - warm)
    factor = {"constant": 1.0, "linear": 1.0 - t, "cosine": (1.0 + math.cos(math.pi * t)) / 2}[optim.schedule]
    return optim.lr * factor


class Learner:
    """AdamW over named parameters: accumulate gradients with `backward`, then `step`.

    Weight decay applies to matrices alone (norm gains and biases are vectors). Gradients are clipped by their global
    norm. Parameters below float32 are moved as float32 copies (`master`) and rounded after each step: a bfloat16 number
    of 0.02 has no neighbour within 1e-4, so steps of a usual learning rate (1e-6) would leave it where it is for ever.
    The copies and the optimiser's state are made at the first step, so what only samples pays for neither.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], optim: p.Optim) -> None:
        self.named, self.optim, self.clip = dict(named), optim, optim.grad_clip
        self.master: dict[str, nn.Parameter] = {}

    @cached_property
    def optimizer(self) -> torch.optim.AdamW:
        """What moves the weights."""
        for n, x in self.named.items():
            if x.dtype in (torch.bfloat16, torch.float16):
                self.master[n] = nn.Parameter(x.detach().float())
        moved = [self.moved(n) for n in self.named]
        groups: list[dict[str, Any]] = [
            {"params": [x for x in moved if x.ndim >= 2], "weight_decay": self.optim.weight_decay},
            {"params": [x for x in moved if x.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([g for g in groups if g["params"]], lr=self.optim.lr, betas=self.optim.betas)

    def moved(self, name: str) -> nn.Parameter:
        """What the optimiser moves for a parameter: its float32 copy, or itself."""
        return self.master.get(name, self.named[name])

    def step(self, lr: float) -> float:
        """Clip, update, clear. Returns the gradient norm before clipping; raises NotFinite when it is not
        finite."""
        norm = self.clip_gradients()
        if not math.isfinite(norm):
            raise NotFinite(
                f"gradient is not finite in {self.not_finite()[:5]}: lower the learning rate or use float32"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        for n, copy in self.master.items():
            grad, self.named[n].grad = self.named[n].grad, None
            copy.grad = None if grad is None else grad.float()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for n, copy in self.master.items():
                self.named[n].copy_(copy)
        return norm

    def clip_gradients(self) -> float:
        """Scale gradients so that their global norm is at most `clip`; returns the norm before."""
        return float(nn.utils.clip_grad_norm_(self.named.values(), self.clip))

    def not_finite(self) -> list[str]:
        """Names of the parameters whose gradient is not finite."""
        return [n for n, x in self.named.items() if x.grad is not None and not torch.isfinite(x.grad).all()]

    def weights(self) -> dict[str, Tensor]:
        """The trained tensors by name."""
        return {n: x.detach() for n, x in self.named.items()}

    def state(self) -> dict[str, Tensor]:
        """The optimiser's tensors, named `<parameter>|<exp_avg, exp_avg_sq, step or master>`; empty before the first
        step."""
        if "optimizer" not in self.__dict__:
            return {}
        stepped = [n for n in self.named if self.moved(n) in self.optimizer.state]
        found = {f"{n}|{k}": self.optimizer.state[self.moved(n)][k] for n in stepped for k in STATE}
        return found | {f"{n}|master": self.master[n].detach() for n in stepped if n in self.master}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Restore both, bit for bit. Raises InputError when the names are not the learner's own."""
        if weights.keys() != self.named.keys():
            differ = sorted(weights.keys() ^ self.named.keys())[:5]
            raise InputError(f"saved weights do not fit this model: {differ}; delete the attempt folder to start over")
        for name, param in self.named.items():
            param.copy_(weights[name])
        if not state and not self.master:
            return
        kept = self.optimizer.state
        for name, param in self.named.items():
            moved = self.moved(name)
            if name in self.master:
                moved.copy_(state.get(f"{name}|master", param))
            if f"{name}|step" in state:
                kept[moved] = {k: state[f"{name}|{k}"].clone() for k in STATE}
