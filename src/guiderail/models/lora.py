"""A linear layer with its LoRA adapter as three matrix products, forward and backward.

Guarantees: y = x W' + bias with W' = W + scale * B A (Hu et al. 2021), as PEFT computes it (tested, gradients too),
adding in place instead of making a tensor per term; `adapted` leaves a layer that is not plain LoRA to itself. Does
not merge or change weights, and gives no gradient of W.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Adapted(NamedTuple):
    """A linear layer, read once. lora: (A [r, in], B [out, r], scale) or None."""

    weight: Tensor
    bias: Tensor | None
    lora: tuple[Tensor, Tensor, float] | None

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        if self.lora is None:
            return F.linear(x, self.weight, self.bias)
        return _Lora.apply(x, self.weight, self.bias, *self.lora)  # type: ignore[no-any-return, no-untyped-call]


def adapted(module: Any) -> Adapted | nn.Module:
    """What `module` computes with; `module` itself when it is neither a plain linear layer nor plain LoRA on one."""
    if type(module) is nn.Linear:
        return Adapted(module.weight, module.bias, None)
    base = getattr(module, "base_layer", None)
    if type(base) is not nn.Linear or type(module).__module__ != "peft.tuners.lora.layer" or module.merged:
        return module  # type: ignore[no-any-return]
    if module.disable_adapters:
        return Adapted(base.weight, base.bias, None)
    active = [n for n in module.active_adapters if n in module.lora_A]
    if len(active) != 1 or active[0] in module.lora_variant or base.weight.requires_grad:
        return module  # type: ignore[no-any-return]
    a, b, drop = (getattr(module, f"lora_{x}")[active[0]] for x in ("A", "B", "dropout"))
    plain = type(a) is type(b) is nn.Linear and a.bias is None and b.bias is None
    same = a.weight.dtype == b.weight.dtype == base.weight.dtype
    dropped = module.training and not isinstance(drop, nn.Identity)
    bias_trained = base.bias is not None and base.bias.requires_grad
    if not plain or not same or dropped or bias_trained or module.fan_in_fan_out:
        return module  # type: ignore[no-any-return]
    return Adapted(base.weight, base.bias, (a.weight, b.weight, float(module.scaling[active[0]])))


class _Lora(torch.autograd.Function):
    """y = x W^T + bias + scale (x A^T) B^T, with W and bias constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        """See the class."""
        flat = x.reshape(-1, x.shape[-1])
        low = flat @ a.t()
        out = F.linear(flat, w, bias).addmm_(low, b.t(), alpha=scale)
        ctx.save_for_backward(flat, w, a, b, low)
        ctx.scale, ctx.shape = scale, x.shape
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        """With g the gradient of y and h = scale g B: x gets g W + h A, A gets h^T x, B gets scale g^T (x A^T)."""
        x, w, a, b, low = ctx.saved_tensors
        g = grad.reshape(-1, grad.shape[-1])
        h = (g @ b).mul_(ctx.scale)
        dx = (g @ w).addmm_(h, a).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return dx, None, None, h.t() @ x, (g.t() @ low).mul_(ctx.scale), None
