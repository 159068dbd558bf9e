"""The text model's forward without the library's wrappers: the same weights, fewer and larger operations.

Guarantees: equals `Qwen3VLTextModel.forward` to rounding (tested at 1e-5, gradients too), with and without a cache,
with LoRA on any linear layer; `LeanText.of` gives None for a model that is not exactly what it knows (another class,
hooks, a replaced forward, dropout in training, another attention), and the caller then runs the library's. Takes the
weights where they lie and copies none. Covers plain causal rows and, with a cache, any additive mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen3_vl.modeling_qwen3_vl import (
    Qwen3VLTextAttention,
    Qwen3VLTextDecoderLayer,
    Qwen3VLTextMLP,
    Qwen3VLTextModel,
    Qwen3VLTextRMSNorm,
)

from guiderail.models import recompute
from guiderail.models.attention import SlotCache
from guiderail.models.lora import Adapted, adapted
from guiderail.models.packing import Block

Rope = tuple[Tensor, Tensor]
Linear = Adapted | nn.Module


@dataclass(frozen=True)
class _Layer:
    """What one decoder layer computes with."""

    norm1: nn.Module
    norm2: nn.Module
    q_norm: nn.Module
    k_norm: nn.Module
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    gate: Linear
    up: Linear
    down: Linear


class LeanText:
    """A reading of the text model's modules as they stand now; make a new one after adapters change or are folded."""

    def __init__(self, lm: Any) -> None:
        self.lm = lm
        first = lm.layers[0].self_attn
        self.head_dim, self.groups, self.scale = first.head_dim, first.num_key_value_groups, first.scaling
        self.layers = [_layer(x) for x in lm.layers]

    @classmethod
    def of(cls, lm: Any) -> LeanText | None:
        """A reading of `lm`, or None when its own forward must be used."""
        return cls(lm) if _known(lm) else None

    @torch.no_grad()
    def rope(self, like: Tensor, positions: Tensor) -> Rope:
        """Rotary factors of positions [3, B, T]: cos and sin [B, T, 1, d], the first half of sin negated, so that
        rotating is x * cos + roll(x, d / 2) * sin."""
        cos, sin = self.lm.rotary_emb(like, positions)
        half = self.head_dim // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        return cos[:, :, None], sin[:, :, None]

    def __call__(
        self,
        x: Tensor,
        rope: Rope,
        *,
        cache: SlotCache | None = None,
        mask: Tensor | None = None,
        blocks: list[Block] | None = None,
        visual_mask: Tensor | None = None,
        deepstack: list[Tensor] | None = None,
    ) -> Tensor:
        """Last hidden states [B, T, D] of embeddings x [B, T, D]. mask: additive [B, 1, T, columns]; None = causal,
        for an empty cache or none. blocks: of a packed layout, in place of both."""
        again = recompute.wanted(self.lm, cache)
        for i, layer in enumerate(self.layers):

            def run(x: Tensor, i: int = i, layer: _Layer = layer) -> Tensor:
                x = x + self._attend(layer, i, _norm(layer.norm1, x), rope, cache, mask, blocks)
                y = _norm(layer.norm2, x)
                return x + _linear(F.silu(_linear(y, layer.gate)) * _linear(y, layer.up), layer.down)

            x = recompute.layer(run, x) if again else run(x)
            if deepstack is not None and visual_mask is not None and i < len(deepstack):
                x = x.clone()
                x[visual_mask] = x[visual_mask] + deepstack[i].to(x.device, x.dtype)
        return _norm(self.lm.norm, x)

    def _attend(
        self,
        layer: _Layer,
        index: int,
        x: Tensor,
        rope: Rope,
        cache: SlotCache | None,
        mask: Tensor | None,
        blocks: list[Block] | None,
    ) -> Tensor:
        b, t, _ = x.shape
        q = _rotate(_norm(layer.q_norm, _linear(x, layer.q).view(b, t, -1, self.head_dim)), rope).transpose(1, 2)
        k = _rotate(_norm(layer.k_norm, _linear(x, layer.k).view(b, t, -1, self.head_dim)), rope).transpose(1, 2)
        v = _linear(x, layer.v).view(b, t, -1, self.head_dim).transpose(1, 2)
        if cache is not None:
            k, v = cache.update(k, v, index)
        if t == 1 and mask is not None:  # the queries of a group share their keys: they are rows of one small product
            q = q.reshape(b, k.shape[1], self.groups, self.head_dim)
        elif self.groups > 1:
            k, v = k.repeat_interleave(self.groups, 1), v.repeat_interleave(self.groups, 1)
        if blocks is not None:
            parts = [self._scores(q[:, :, a.start : a.end], a.keys(k), a.keys(v), a.mask) for a in blocks]
            return _linear(torch.cat(parts, 2).transpose(1, 2).reshape(b, t, -1), layer.o)
        out = self._scores(q, k, v, mask)
        out = out.reshape(b, 1, -1) if t == 1 else out.transpose(1, 2).reshape(b, t, -1)
        return _linear(out, layer.o)

    def _scores(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of q [B, H, s, d] over k, v [B, H, n, d]; mask None = causal."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale)


def _rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotary embedding of x [B, T, H, d]."""
    cos, sin = rope
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def _norm(module: Any, x: Tensor) -> Tensor:
    """Root-mean-square norm; below float32 the library's own, which rounds between its steps."""
    if x.dtype != torch.float32:
        return module(x)  # type: ignore[no-any-return]
    return F.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)


def _linear(x: Tensor, layer: Linear) -> Tensor:
    return layer(x)  # type: ignore[no-any-return]


def _layer(layer: Any) -> _Layer:
    a, m = layer.self_attn, layer.mlp
    return _Layer(
        layer.input_layernorm,
        layer.post_attention_layernorm,
        a.q_norm,
        a.k_norm,
        *(adapted(x) for x in (a.q_proj, a.k_proj, a.v_proj, a.o_proj, m.gate_proj, m.up_proj, m.down_proj)),
    )


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _known(lm: Any) -> bool:
    """Whether `lm` does exactly what LeanText does."""
    if type(lm) is not Qwen3VLTextModel or lm.config._attn_implementation != "sdpa" or lm.config.hidden_act != "silu":
        return False
    if torch.is_autocast_enabled(lm.norm.weight.device.type) or not getattr(lm.config, "is_causal", True):
        return False
    if lm.training and (lm.gradient_checkpointing or lm.config.attention_dropout):
        return False
    for m in lm.modules():
        if "forward" in m.__dict__ or any(getattr(m, h) for h in _HOOKS):
            return False
    return all(
        type(x) is Qwen3VLTextDecoderLayer
        and type(x.self_attn) is Qwen3VLTextAttention
        and type(x.mlp) is Qwen3VLTextMLP
        and {type(n) for n in (x.input_layernorm, x.post_attention_layernorm, x.self_attn.q_norm, x.self_attn.k_norm)}
        == {Qwen3VLTextRMSNorm}
        for x in lm.layers
    )
