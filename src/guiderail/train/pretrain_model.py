"""What pretraining adds to the tiny Qwen3-VL: a cheap patch embedding, dense heads, and the text forward on rows.

Guarantees: `FoldedPatches` unfolded, and `text_forward`, equal the library's own forward to rounding (tested). The
dense heads are scaffolding: they are trained along and dropped. Knows nothing of files or of optimisers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from guiderail.models.attention import mrope_positions
from guiderail.train.pretrain_rows import KINDS, LETTERS, Row

GRID_THW = (1, 14, 10)  # patches of a 160x224 screen: time, height, width


class FoldedPatches(torch.nn.Module):
    """The patch embedding on one of the two identical time slices: a Linear(768 -> hidden).

    A still image fills both time slices with the same pixels, so that the two halves of the convolution's kernel may
    be added up once instead of multiplied twice; `unfold_into` goes the way back.
    """

    def __init__(self, conv: torch.nn.Conv3d) -> None:
        """`conv` has weight [hidden, 3, 2, 16, 16] and a bias [hidden]."""
        super().__init__()
        self.proj = torch.nn.Linear(768, conv.out_channels)
        with torch.no_grad():
            self.proj.weight.copy_(conv.weight.sum(2).flatten(1))
            self.proj.bias.copy_(conv.bias)  # type: ignore[arg-type]

    def unfold_into(self, conv: torch.nn.Conv3d) -> None:
        """Write the learned weights into `conv`, half on each time slice: the same output for a still image."""
        with torch.no_grad():
            w = self.proj.weight.view(conv.out_channels, 3, 1, 16, 16) / 2
            conv.weight.copy_(w.expand(-1, -1, 2, -1, -1))
            conv.bias.copy_(self.proj.bias)  # type: ignore[union-attr]


class DenseHeads(torch.nn.Module):
    """Read vision features: the kind of thing in each quarter of an image token, its name, its letters, its point."""

    def __init__(self, hidden: int) -> None:
        """`hidden`: width of the vision tower and of the text model."""
        super().__init__()
        self.kind = torch.nn.Linear(hidden, 4 * len(KINDS))
        self.letters = torch.nn.ModuleList([torch.nn.Linear(hidden, len(LETTERS)) for _ in range(2)])
        self.read = torch.nn.Parameter(torch.randn(4, 6, hidden, hidden) * hidden**-0.5)

    def letters_loss(self, taps: list[torch.Tensor], target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which letters each patch shows.

        taps: patch features [m, hidden] at one or two depths; target: float [m, 62], 1 where a letter is shown.
        Returns the loss (scalar, per shown letter) and the recall of the last tap (scalar).
        """
        total = torch.zeros(())
        for tap, head in zip(taps, self.letters, strict=False):
            logits = head(F.layer_norm(tap, tap.shape[-1:])) - 3.0
            shown = target.sum() + 1.0
            total = total + F.binary_cross_entropy_with_logits(logits.float(), target, reduction="sum") / shown
        return total, ((logits > 0) * target).sum() / shown

    def loss(
        self, features: torch.Tensor, kinds: torch.Tensor, labels: torch.Tensor, embedding: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What each quarter shows, read through the token embeddings of the text model.

        features: merged vision output [n, 35, hidden]; kinds: int64 [n, 140]; labels: int64 [m, 8] = (image, slot,
        name, 3 letters, x, y), -100 where there is none; embedding: [vocab, hidden].
        Returns the loss (scalar) and the accuracies [7] of (kind, name, 3 letters, x, y).
        """
        features = F.layer_norm(features, features.shape[-1:])
        logits = self.kind(features).view(-1, len(KINDS)).float()
        weight = torch.ones(len(KINDS))
        weight[0] = 0.2
        presence = F.cross_entropy(logits, kinds.view(-1), weight=weight)
        image, slot = labels[:, 0], labels[:, 1]
        at = features[image, slot // 4]
        total, hits = presence, [(logits.argmax(-1) == kinds.view(-1))[kinds.view(-1) > 0].float().mean()]
        order = torch.argsort(slot % 4, stable=True)  # by quarter, so that each is one matrix product
        labels, at = labels[order], at[order]
        parts = torch.split(at, torch.bincount(slot % 4, minlength=4).tolist())
        flat = self.read.transpose(1, 2).flatten(2)  # [4, hidden, 6 * hidden]
        reading = torch.cat([part @ w for part, w in zip(parts, flat, strict=True)]).view(len(at), 6, -1)
        for j in range(6):
            target = labels[:, 2 + j]
            scores = (reading[:, j] @ embedding.T).float() * 5
            keep = target != -100
            total = total + F.cross_entropy(scores[keep], target[keep])
            hits.append((scores.argmax(-1) == target)[keep].float().mean())
        return total, torch.stack(hits)


def text_forward(
    model: Any, rows: list[Row], features: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of the weighted tokens of `rows`.

    features: [pages of all rows in order, 1 + deepstack levels, 35, hidden], as `vision_forward` gives them.
    Returns logits [m, vocab], targets int64 [m] and weights [m], row by row. Padding comes after a row's end, where
    the causal mask hides it.
    """
    longest = max(len(r.ids) for r in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    positions = torch.zeros(3, len(rows), longest, dtype=torch.long)
    weights = torch.zeros(len(rows), longest)
    image = model.config.image_token_id
    for i, r in enumerate(rows):
        array = np.array(r.ids)
        ids[i, : len(array)] = torch.from_numpy(array)
        pos, _ = mrope_positions(array, image, [GRID_THW] * len(r.pages), 2)
        positions[:, i, : len(array)] = torch.from_numpy(pos)
        weights[i, : len(array)] = torch.tensor(r.weight)
    mask = ids == image
    embeds = model.model.language_model.embed_tokens(ids)
    features = features.to(embeds.dtype)  # bfloat16 under autocast
    embeds = embeds.masked_scatter(mask[..., None], features[:, 0].reshape(-1, features.shape[-1]))
    deep = [features[:, k].reshape(-1, features.shape[-1]) for k in range(1, features.shape[1])]
    hidden = model.model.language_model(
        inputs_embeds=embeds,
        position_ids=positions,
        attention_mask=None,
        visual_pos_masks=mask,
        deepstack_visual_embeds=deep,
        use_cache=False,
    ).last_hidden_state
    want = weights[:, 1:] > 0
    return model.lm_head(hidden[:, :-1][want]), ids[:, 1:][want], weights[:, 1:][want]
