"""Pretrain the tiny Qwen3-VL on random pages: read short words, find them, point at them, copy quoted text.

Guarantees: same seed and pages, same weights on one machine, bit for bit, however often it was killed and went on
from its last checkpoint. Next-token loss on points and answers plus a dense loss on the vision output (every quarter
of an image token names what it shows, read through the model's own token embeddings, and where), without which
pointing stays on a plateau. The dense heads are dropped at the end. Never sees a benchmark page.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from guiderail.models.features import vision_forward
from guiderail.train.pretrain_data import PageSet, ink, make_batch
from guiderail.train.pretrain_loop import adam, fast, learn, load_state, rate
from guiderail.train.pretrain_model import GRID_THW, DenseHeads, FoldedPatches, text_forward
from guiderail.train.pretrain_rows import Row, RowMaker, dense_labels, letter_labels

STATE = "state.safetensors"


def learn_glyphs(
    visual: Any,
    heads: DenseHeads,
    data: PageSet,
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
    bfloat16: bool,
    say: Callable[[str], None],
) -> None:
    """Teach the patch embedding and the first block's MLP which letters a patch shows.

    Patch by patch and without attention, `batch` pages a step. Reading starts from single patches: doing this first,
    at a tenth of the cost of a page, shortens the plateau of everything after it.
    """
    block, head = visual.blocks[0], heads.letters[0]
    params = [*visual.patch_embed.parameters(), *block.mlp.parameters(), *block.norm2.parameters(), *head.parameters()]
    optimiser = adam(params, lr)
    draw = random.Random(seed)
    for step in range(steps):
        for g in optimiser.param_groups:
            g["lr"] = lr * rate(step, steps)
        pages = [draw.randrange(len(data)) for _ in range(batch)]
        pixels = data.patches(pages)
        keep = ink(pixels, [data.targets[p] for p in pages])
        target = torch.from_numpy(np.concatenate([letter_labels(data.targets[p]) for p in pages]))[keep]
        with fast(bfloat16):
            x = visual.patch_embed.proj(pixels[keep])
            loss, recall = heads.letters_loss([x + block.mlp(block.norm2(x))], target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
        if (step + 1) % 50 == 0:
            shown = f"loss {loss.item():.3f} recall {recall.item():.3f} patches {int(keep.sum())}"
            say(f"glyphs {step + 1}/{steps}: {shown}")


def losses(
    model: Any,
    heads: DenseHeads,
    maker: RowMaker,
    data: PageSet,
    rows: list[Row],
    pages: list[int],
    *,
    see: bool = True,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Loss (scalar) and accuracies of one batch.

    Dense on `pages`, plus next-token on `rows`, which show exactly `pages` in order, unless there are none. Without
    `see` the vision tower stands still: next-token loss only.
    """
    visual = model.model.visual
    if not see:
        with torch.no_grad():
            features = vision_forward(visual, data.patches(pages), GRID_THW)
        return next_token(model, maker, rows, features)
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
    lm, more = next_token(model, maker, rows, features)
    return lm + dense, stats | more


def next_token(
    model: Any, maker: RowMaker, rows: list[Row], features: torch.Tensor
) -> tuple[torch.Tensor, dict[str, float]]:
    """Weighted next-token loss of `rows` (scalar), and accuracies; `features` are [pages, levels, 35, hidden]."""
    logits, target, weight = text_forward(model, rows, features)
    lm = (F.cross_entropy(logits.float(), target, reduction="none") * weight).sum() / weight.sum()
    with torch.no_grad():
        point = torch.from_numpy(maker.is_point)[target]
        near = (logits.argmax(-1)[point] - target[point]).abs() <= 1
        pairs = near[: len(near) // 2 * 2].view(-1, 2).all(-1)  # x then y of one call
        stats = {"lm": lm.item(), "point": near.float().mean().item(), "click": pairs.float().mean().item()}
        stats["text"] = (logits.argmax(-1)[~point] == target[~point]).float().mean().item()
    return lm, stats


def train(
    model: Any,
    tokenizer: Any,
    folder: Path,
    work: Path,
    *,
    steps: int,
    batch: int,
    lr: float,
    listing: float,
    read_first: int,
    joint_from: int = 0,
    glyph_steps: int,
    seed: int,
    bfloat16: bool = True,
    say: Callable[[str], None],
    available: Callable[[], list[str]],
    save_every: int = 200,
    held_batches: int = 8,
) -> dict[str, float]:
    """Train `model` in place for `steps` steps of `batch` pages; returns held-out accuracies.

    folder: page shards; `available` lists the finished ones (the first is held out, so there must be two); new ones
    are taken up every 200 steps. work: a checkpoint is written there every `save_every` steps, and read at the start.
    joint_from: from `read_first` to here only the text model learns, by pointing with what is read; then all do.
    glyph_steps: see `learn_glyphs`. read_first: so many steps learn mostly the dense loss (reading), with the text
    model in one step of five. listing: see `make_batch`. bfloat16: see `fast`; weights and the held-out
    accuracies are float32. held_batches: of 64 pages, for the accuracies.
    """
    hidden = model.config.text_config.hidden_size
    torch.manual_seed(seed)
    heads = DenseHeads(hidden)
    conv = model.model.visual.patch_embed.proj
    original, folded = model.model.visual.patch_embed, FoldedPatches(conv)
    model.model.visual.patch_embed = folded
    params = [*model.parameters(), heads.read, heads.kind.weight, heads.kind.bias, *heads.letters.parameters()]
    optimiser = adam(params, lr)
    state_file, step = work / STATE, 0
    if state_file.exists():
        step = load_state(state_file, params, optimiser)
        say(f"resumed at step {step}")
    shards = available()
    held, data = PageSet(folder, shards[:1]), PageSet(folder, shards[1:])
    if step == 0:
        learn_glyphs(
            model.model.visual,
            heads,
            data,
            steps=glyph_steps,
            batch=2 * batch,
            lr=2 * lr,
            seed=seed,
            bfloat16=bfloat16,
            say=say,
        )
    maker = RowMaker(tokenizer, seed)

    def loss_at(step: int) -> tuple[torch.Tensor, dict[str, float]]:
        nonlocal shards, data
        if step % 200 == 0 and len(available()) != len(shards):
            shards = available()
            data = PageSet(folder, shards[1:])
            say(f"{len(data)} pages from step {step} on")
        maker.random.seed(seed * 1_000_003 + step)
        rows = make_batch(maker, data, batch, listing) if step >= read_first or step % 5 == 0 else []
        pages = [p for r in rows for p in r.pages] or maker.random.choices(data.busy, k=batch)
        with fast(bfloat16):
            return losses(model, heads, maker, data, rows, pages, see=not read_first <= step < joint_from)

    model.train()
    learn(params, optimiser, loss_at, state_file, step=step, steps=steps, lr=lr, save_every=save_every, say=say)
    model.eval()
    maker = RowMaker(tokenizer, 7)
    with torch.no_grad():
        parts = []
        for _ in range(held_batches):
            rows = make_batch(maker, held, 64, listing)
            parts.append(losses(model, heads, maker, held, rows, [p for r in rows for p in r.pages])[1])
    folded.unfold_into(conv)
    model.model.visual.patch_embed = original
    return {k: float(np.mean([p[k] for p in parts])) for k in parts[0]}
