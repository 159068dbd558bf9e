"""Pretrain the tiny Qwen3-VL on random pages: read short words, find them, point at them, copy quoted text.

Guarantees: same seed and pages, same weights on one machine; resumes from its last checkpoint. Next-token loss on points and answers
plus a dense loss on the vision output (every quarter of an image token names what it shows, read through the model's own token
embeddings, and where), without which pointing stays on a plateau. The dense heads are dropped at the end. Never sees a benchmark page.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from guiderail.models.attention import mrope_positions
from guiderail.models.features import vision_forward
from guiderail.train.pages import Target
from guiderail.train.pretrain_rows import KINDS, LETTERS, Row, RowMaker, dense_labels, letter_labels

GRID_THW = (1, 14, 10)


class FoldedPatches(torch.nn.Module):
    """The patch embedding on one of the two identical time slices: Linear(768 -> hidden), folded back by
    `unfold_into`.
    """

    def __init__(self, conv: torch.nn.Conv3d) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(768, conv.out_channels)
        with torch.no_grad():
            self.proj.weight.copy_(conv.weight.sum(2).flatten(1))
            self.proj.bias.copy_(conv.bias)  # type: ignore[arg-type]

    def unfold_into(self, conv: torch.nn.Conv3d) -> None:
        """Write the learned weights into `conv`, half on each time slice (numerically the same output for a still
        image).
        """
        with torch.no_grad():
            w = self.proj.weight.view(conv.out_channels, 3, 1, 16, 16) / 2
            conv.weight.copy_(w.expand(-1, -1, 2, -1, -1))
            conv.bias.copy_(self.proj.bias)  # type: ignore[union-attr]


class DenseHeads(torch.nn.Module):
    """Read merged vision features [n, 35, hidden]: a kind per quarter, and name, letters and point where something
    is.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.kind = torch.nn.Linear(hidden, 4 * len(KINDS))
        self.letters = torch.nn.ModuleList([torch.nn.Linear(hidden, len(LETTERS)) for _ in range(2)])
        self.read = torch.nn.Parameter(torch.randn(4, 6, hidden, hidden) * hidden**-0.5)

    def letters_loss(self, taps: list[torch.Tensor], target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which letters each patch shows, from patch features [m, hidden] at one or two depths; target [m, 62].
        Loss and recall.
        """
        total = torch.zeros(())
        for tap, head in zip(taps, self.letters, strict=False):
            logits = head(F.layer_norm(tap, tap.shape[-1:])) - 3.0
            shown = target.sum() + 1.0
            total = total + F.binary_cross_entropy_with_logits(logits, target, reduction="sum") / shown
        return total, ((logits > 0) * target).sum() / shown

    def loss(
        self, features: torch.Tensor, kinds: torch.Tensor, labels: torch.Tensor, embedding: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """kinds [n, 140]; labels [m, 8] = (image, slot, name, 3 letters, x, y). Returns the loss and the accuracy
        of each head.
        """
        features = F.layer_norm(features, features.shape[-1:])
        logits = self.kind(features).view(-1, len(KINDS))
        weight = torch.ones(len(KINDS))
        weight[0] = 0.2
        presence = F.cross_entropy(logits, kinds.view(-1), weight=weight)
        image, slot = labels[:, 0], labels[:, 1]
        at = features[image, slot // 4]
        total, hits = presence, [(logits.argmax(-1) == kinds.view(-1))[kinds.view(-1) > 0].float().mean()]
        reading = torch.einsum("mh,mjhk->mjk", at, self.read[slot % 4])
        for j in range(6):
            target = labels[:, 2 + j]
            scores = reading[:, j] @ embedding.T * 5
            keep = target != -100
            total = total + F.cross_entropy(scores[keep], target[keep])
            hits.append((scores.argmax(-1) == target)[keep].float().mean())
        return total, torch.stack(hits)


def ink(patches: torch.Tensor, targets: list[list[Target]]) -> torch.Tensor:
    """bool [n * 140]: patches that show something, without the instruction bar on top (pages with nothing named
    above pixel row 50).
    """
    shown = patches.amax(1) - patches.amin(1) > 0.2
    bar = torch.tensor([all(t.y > 48 for t in page) for page in targets])
    top = torch.arange(140) // 4 // 5 * 2 + torch.arange(140) % 4 // 2 < 3
    return shown & ~(bar[:, None] & top[None]).view(-1)


def learn_glyphs(
    visual: Any,
    heads: DenseHeads,
    data: PageSet,
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
    say: Callable[[str], None],
) -> None:
    """Teach the patch embedding and the first block's MLP which letters a patch shows, patch by patch and without
    attention.

    Reading starts from single patches: doing this first, at a tenth of the cost of a page, shortens the plateau of everything after it.
    """
    block, head = visual.blocks[0], heads.letters[0]
    params = [*visual.patch_embed.parameters(), *block.mlp.parameters(), *block.norm2.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(params, lr=lr, weight_decay=0.01, betas=(0.9, 0.95))
    draw = random.Random(seed)
    for step in range(steps):
        for g in optimiser.param_groups:
            g["lr"] = lr * rate(step, steps)
        pages = [draw.randrange(len(data)) for _ in range(batch)]
        pixels = data.patches(pages)
        keep = ink(pixels, [data.targets[p] for p in pages])
        x = visual.patch_embed.proj(pixels[keep])
        target = torch.from_numpy(np.concatenate([letter_labels(data.targets[p]) for p in pages]))[keep]
        loss, recall = heads.letters_loss([x + block.mlp(block.norm2(x))], target)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if (step + 1) % 50 == 0:
            say(
                f"glyphs {step + 1}/{steps}: loss {loss.item():.3f} recall {recall.item():.3f} patches {int(keep.sum())}"
            )


class PageSet:
    """Shards of rendered pages, memory-mapped."""

    def __init__(self, folder: Path, shards: list[str]) -> None:
        self.pixels = [np.load(folder / f"{s}.npy", mmap_mode="r") for s in shards]
        self.targets: list[list[Target]] = []
        for s in shards:
            self.targets += [[Target(*t) for t in page] for page in json.loads((folder / f"{s}.json").read_text())]
        self.per = len(self.pixels[0])
        self.busy = [i for i, page in enumerate(self.targets) if len(page) >= 12]

    def __len__(self) -> int:
        return len(self.targets)

    def patches(self, pages: list[int]) -> torch.Tensor:
        """float32 [n * 140, 768] in [-2, 0], white = 0."""
        raw = np.concatenate([self.pixels[p // self.per][p % self.per] for p in pages])
        return torch.from_numpy(raw).float().div_(127.5).sub_(2.0)


def text_forward(
    model: Any, rows: list[Row], features: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits at the weighted positions. features [pages in order, levels, 35, hidden]. Returns logits [m, vocab],
    targets [m], weights [m].
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


def make_batch(maker: RowMaker, data: PageSet, size: int, listing: float) -> list[Row]:
    """`size` pages worth of rows: a share `listing` of lists, the rest pointing, pairs and typing."""
    rows: list[Row] = []
    used = 0
    while used < size:
        page = maker.random.randrange(len(data))
        k = maker.random.random()
        row: Row | None
        if k < listing:
            row = maker.listing(page, data.targets[page])
        elif (k := (k - listing) / (1 - listing)) < 0.45:
            row = maker.pointing(page, data.targets[page])
        elif k < 0.75:
            other = maker.random.randrange(len(data))
            row = maker.pair(page, data.targets[page], other, data.targets[other])
        else:
            row = maker.typing(page, data.targets[page])
        if row is not None:
            rows.append(row)
            used += len(row.pages)
    return rows


def losses(
    model: Any, heads: DenseHeads, maker: RowMaker, data: PageSet, rows: list[Row], pages: list[int]
) -> tuple[torch.Tensor, dict[str, float]]:
    """Loss and accuracies of one batch: dense on `pages`, and next-token on `rows` (which show exactly `pages`)
    unless there are none.
    """
    visual = model.model.visual
    taps: list[torch.Tensor] = []
    hooks = [
        m.register_forward_pre_hook(lambda _, args: taps.append(args[0].reshape(-1, args[0].shape[-1])))
        for m in (visual.blocks[2].norm1, visual.merger)
    ]
    pixels = data.patches(pages)
    features = vision_forward(visual, pixels, GRID_THW)
    for hook in hooks:
        hook.remove()
    letters = torch.from_numpy(np.concatenate([letter_labels(data.targets[p]) for p in pages]))
    readable = ink(pixels, [data.targets[p] for p in pages])
    spelled, recall = heads.letters_loss([t[readable] for t in taps], letters[readable])
    found = [dense_labels(maker.tokenizer, data.targets[p], maker.encode) for p in pages]
    kinds = torch.from_numpy(np.stack([k for k, _ in found]))
    labels = torch.from_numpy(np.concatenate([np.insert(r, 0, i, axis=1) for i, (_, r) in enumerate(found)]))
    dense, hits = heads.loss(features[:, 0], kinds, labels, model.get_input_embeddings().weight)
    stats = {f"dense_{n}": h.item() for n, h in zip(("kind", "name", "c1", "c2", "c3", "x", "y"), hits, strict=True)}
    stats |= {"dense": dense.item(), "letters": spelled.item(), "recall": recall.item()}
    dense = dense / 3 + spelled / 2
    if not rows:
        return dense, stats
    logits, target, weight = text_forward(model, rows, features)
    lm = (F.cross_entropy(logits, target, reduction="none") * weight).sum() / weight.sum()
    with torch.no_grad():
        point = torch.from_numpy(maker.is_point)[target]
        near = (logits.argmax(-1)[point] - target[point]).abs() <= 1
        pairs = near[: len(near) // 2 * 2].view(-1, 2).all(-1)  # x then y of one call
        stats |= {"lm": lm.item(), "point": near.float().mean().item(), "click": pairs.float().mean().item()}
        stats["text"] = (logits.argmax(-1)[~point] == target[~point]).float().mean().item()
    return lm + dense, stats


def rate(step: int, steps: int, warmup: int = 100, decay: float = 0.3) -> float:
    """Warm-up, constant, then linear decay over the last share `decay` (Haegele et al. 2024)."""
    start = int(steps * (1 - decay))
    return min(1.0, (step + 1) / warmup) * (1.0 if step < start else max(0.02, (steps - step) / max(1, steps - start)))


def train(
    model: Any, tokenizer: Any, folder: Path, work: Path, *, steps: int, batch: int, lr: float, listing: float, read_first: int, glyph_steps: int, seed: int, say: Callable[[str], None],
    available: Callable[[], list[str]],
) -> dict[str, float]:  # fmt: skip
    """Train for `steps`, the first `read_first` mostly on the dense loss (reading, without the text model);
    checkpoints under `work` every 200 steps; returns held-out accuracies. `available` lists finished shards.
    """
    hidden = model.config.text_config.hidden_size
    torch.manual_seed(seed)
    heads = DenseHeads(hidden)
    conv = model.model.visual.patch_embed.proj
    original, folded = model.model.visual.patch_embed, FoldedPatches(conv)
    model.model.visual.patch_embed = folded
    params = [*model.parameters(), heads.read, heads.kind.weight, heads.kind.bias, *heads.letters.parameters()]
    optimiser = torch.optim.AdamW(params, lr=lr, weight_decay=0.01, betas=(0.9, 0.95))
    state_file, step = work / "state.safetensors", 0
    if state_file.exists():
        state = load_file(state_file)
        step = int(state["step"])
        with torch.no_grad():
            for i, p in enumerate(params):
                if f"p{i}" not in state:
                    continue
                p.copy_(state[f"p{i}"])
                optimiser.state[p] = {
                    "step": torch.tensor(float(step)),
                    "exp_avg": state[f"m{i}"],
                    "exp_avg_sq": state[f"v{i}"],
                }
        say(f"resumed at step {step}")
    shards = available()
    held, data = PageSet(folder, shards[:1]), PageSet(folder, shards[1:])
    if step == 0:
        learn_glyphs(model.model.visual, heads, data, steps=glyph_steps, batch=2 * batch, lr=2 * lr, seed=seed, say=say)
    began = time.perf_counter()
    sums: dict[str, list[float]] = {}
    maker = RowMaker(tokenizer, seed)
    model.train()
    while step < steps:
        if step % 200 == 0 and len(available()) != len(shards):
            shards = available()
            data = PageSet(folder, shards[1:])
        maker.random.seed(seed * 1_000_003 + step)
        for g in optimiser.param_groups:
            g["lr"] = lr * rate(step, steps)
        rows = make_batch(maker, data, batch, listing) if step >= read_first or step % 5 == 0 else []
        pages = [p for r in rows for p in r.pages] or maker.random.choices(data.busy, k=batch)
        loss, stats = losses(model, heads, maker, data, rows, pages)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        step += 1
        for k, v in stats.items():
            sums.setdefault(k, []).append(v)
        if step % 50 == 0:
            say(
                f"step {step}/{steps} {(time.perf_counter() - began) / 60:.1f} min, {len(data)} pages: "
                + " ".join(f"{k} {np.mean(v):.3f}" for k, v in sums.items())
            )
            sums = {}
        if step % 200 == 0 or step == steps:
            state = {f"p{i}": p.detach() for i, p in enumerate(params)} | {"step": torch.tensor(step)}
            for i, p in enumerate(params):
                state |= {f"m{i}": optimiser.state[p]["exp_avg"], f"v{i}": optimiser.state[p]["exp_avg_sq"]}
            save_file({k: v.contiguous().clone() for k, v in state.items()}, work / "state.tmp")
            os.replace(work / "state.tmp", state_file)
    model.eval()
    maker = RowMaker(tokenizer, 7)
    with torch.no_grad():
        parts = []
        for _ in range(8):
            rows = make_batch(maker, held, 64, listing)
            parts.append(losses(model, heads, maker, held, rows, [p for r in rows for p in r.pages])[1])
    folded.unfold_into(conv)
    model.model.visual.patch_embed = original
    return {k: float(np.mean([p[k] for p in parts])) for k in parts[0]}
