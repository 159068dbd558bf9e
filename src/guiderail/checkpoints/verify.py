"""Prove that a merged folder is the policy that was trained: reload it and compare logits on real frames.

Guarantees: passes only when every file has its recorded hash, `from_pretrained` loads the folder, and its logits at
every position of every probe row lie within the tolerance of a reference that was put together in memory by PEFT's
arithmetic, not by ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guiderail.checkpoints import manifest as m
from guiderail.checkpoints.merge import interpolate
from guiderail.errors import Explained
from guiderail.models.features import Frames
from guiderail.models.loading import load_policy
from guiderail.models.policy import Policy
from guiderail.models.rows import ChunkRow
from guiderail.params import Model


class VerifyError(Explained, RuntimeError):
    """A merged checkpoint is not the trained policy."""


@torch.no_grad()
def probe_logits(policy: Policy, row: ChunkRow, frames: Frames) -> Tensor:
    """float32 logits [tokens, vocabulary] at every position of a row."""
    hidden = policy.hidden(policy.pack([(row.ids, row.frames)], frames))
    return policy.model.lm_head(hidden)[0].float().cpu()  # type: ignore[no-any-return]


@torch.no_grad()
def effective_weights(policy: Policy) -> dict[str, Tensor]:
    """All parameters by plain name, adapters added by PEFT's own `get_delta_weight`."""
    found: dict[str, Tensor] = {}
    for name, param in policy.model.named_parameters():
        if ".lora_" not in name:
            found[name.replace(".base_layer.", ".")] = param.detach().clone()
    for name, module in policy.model.named_modules():
        if hasattr(module, "get_delta_weight"):
            found[f"{name}.weight"] += module.get_delta_weight("default")
    return found


@torch.no_grad()
def reference_policy(end: Path, params: Model, weight: float | None) -> Policy:
    """The policy a merge of `end` must equal: adapter and base apart (weight None), or start and end mixed in
    memory."""
    last = load_policy(end, params)
    if weight is None:
        return last
    start = m.check_link(m.read(end).start, "start", end)
    first, mixed = effective_weights(load_policy(start, params)), effective_weights(last)
    parent = m.check_link(m.read(end).parent, "parent", end)
    plain = load_policy(end if m.read(end).kind != "lora" else parent, params)
    for name, param in plain.model.named_parameters():
        param.copy_(interpolate(first[name], mixed[name], weight))
    return plain


def verify(
    merged: Path, reference: Policy, rows: Sequence[ChunkRow], frames: Frames, params: Model, tolerance: float
) -> dict[str, Any]:
    """Check `merged` against `reference` on the probe rows. Returns the record for verify.json; raises VerifyError or
    ManifestError."""
    manifest = m.verify_files(merged)
    if not rows:
        raise VerifyError(f"{merged}: no probe rows to compare on; run the demos stage")
    policy = load_policy(merged, params)
    worst, agree, tokens = 0.0, 0, 0
    for i, row in enumerate(rows):
        got, want = probe_logits(policy, row, frames), probe_logits(reference, row, frames)
        gap = float((got - want).abs().max())
        if not gap <= tolerance:
            raise VerifyError(
                f"{merged}: logits differ by {gap:.3g} > merge.tolerance = {tolerance:g} on probe row {i}; "
                "the merged weights are not the trained policy (with bfloat16 weights a tolerance near 0.1 is usual)"
            )
        worst, tokens = max(worst, gap), tokens + len(row.ids)
        agree += int((got.argmax(-1) == want.argmax(-1)).sum())
    return {
        "passed": True,
        "max_abs_logit_difference": worst,
        "tolerance": tolerance,
        "same_argmax": agree / tokens,
        "probe_rows": len(rows),
        "probe_tokens": tokens,
        "files": len(manifest.files),
        "parent": manifest.parent.model_dump() if manifest.parent else None,
        "weights": m.weights_digest(merged),
    }
