"""Pretraining's last part: follow an instruction in any words, several things in order, with the vision tower still.

Before it the model points at what its thought names, but takes the name from where its few wordings put it. Here the
names stand anywhere among random words, so that the only way is to look them up. Guarantees: same seed and pages, same
weights on one machine, also when killed and resumed; no wording is a benchmark's (words are drawn at random).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guiderail.models.features import vision_forward
from guiderail.models.words import all_words
from guiderail.train.pages import Target
from guiderail.train.pretrain import next_token
from guiderail.train.pretrain_data import PageSet
from guiderail.train.pretrain_loop import adam, fast, learn, load_state
from guiderail.train.pretrain_model import GRID_THW, FoldedPatches
from guiderail.train.pretrain_rows import LETTERS, WRITE, Row, RowMaker, click_text, named

STATE = "follow.safetensors"
JOINS = (" ", ", ", " and ", ", then ")
SHARES = (0.2, 0.7, 1.0)  # cumulated: lists, things to point at in order, texts to type


class Follower(RowMaker):
    """Rows whose instructions are random words with names among them."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        super().__init__(tokenizer, seed)
        self.words = sorted(all_words())

    def noise(self, most: int) -> list[str]:
        """Up to `most` random words, some of them random letters."""
        draw = self.random
        return [
            draw.choice(self.words) if draw.random() < 0.8 else "".join(draw.choices(LETTERS, k=draw.randint(1, 6)))
            for _ in range(draw.randint(0, most))
        ]

    def words_around(self, names: list[str]) -> str:
        """One line with `names` in order, words before, between and after."""
        draw = self.random
        join = draw.choice(JOINS)
        middle = names[0]
        for name in names[1:]:
            middle += join + " ".join([*self.noise(2 if draw.random() < 0.4 else 0), name])
        line = " ".join([*self.noise(5), middle, *self.noise(4)])
        if draw.random() < 0.6:
            line = line[0].upper() + line[1:] if line[0] not in "\"'" and not line.startswith(middle) else line
        return line + draw.choice(("", "", ".", ".", "!", "?"))

    def said(self, name: str, t: Target) -> str:
        """How an instruction may call what a thought calls `name`."""
        k = self.random.random()
        if t.kind == "word":
            return t.name if k < 0.2 and t.name.isalnum() else name
        if t.kind in ("checkbox", "radio") and k < 0.5:
            return t.name if k < 0.25 else f'"{t.name}"'
        return name.removeprefix("the ") if k < 0.7 else name

    def ordered(self, page: int, targets: list[Target]) -> Row | None:
        """Up to five things of one page, in order; the first ones may be done. At most three screens, as in a chunk."""
        draw = self.random
        things = named(targets)
        labels = {t.name for _, t in things if t.kind in ("checkbox", "radio")}
        things = [(n, t) for n, t in things if t.kind != "word" or t.name not in labels]  # a label is its box
        if not things:
            return None
        rare = [x for x in things if x[1].kind != "word"]
        count = min(len(things), draw.choice((1, 1, 1, 1, 2, 2, 3, 4, 5)))
        chosen = draw.sample(things, count)
        if rare and draw.random() < 0.3:
            chosen[draw.randrange(count)] = draw.choice(rare)
        if len({n for n, _ in chosen}) < count:
            return None
        done = draw.choice([0, 0, *range(count)])
        row = self.start()
        text = self.words_around([self.said(n, t) for n, t in chosen]) + "\n"
        if done:
            text += "Done: " + "; ".join(f"click {n}" for n, _ in chosen[:done]) + "\n"
        for k, (name, t) in enumerate(chosen[done : done + 3]):
            if k:
                self._add(row, "\n")
            self._user(row, "" if k else text, page)
            self._add(row, f"Action: click {name}\n", 1.0)
            self._add(row, click_text(t.x, t.y) + "<|im_end|>", 0.1, 1.0)
        return row

    def writing(self, page: int, targets: list[Target]) -> Row:
        """Copy a quoted text of the instruction into a TYPE call."""
        draw = self.random
        words = [t.name for t in targets if t.kind == "word" and '"' not in t.name and "\\" not in t.name] or ["word"]
        source = words if draw.random() < 0.3 else self.words
        text = draw.choice(source) if draw.random() < 0.5 else "".join(draw.choices(LETTERS, k=draw.randint(1, 8)))
        row = self.start()
        said = draw.choice(WRITE).format(f'"{text}"')
        self._user(row, " ".join([*self.noise(3), said, *self.noise(5)]) + draw.choice(("", ".")) + "\n", page)
        self._add(row, f'Action: type "{text}"\nTYPE(text="{text}")<|im_end|>', 1.0)
        return row

    def batch(self, data: PageSet, size: int) -> list[Row]:
        """`size` rows of like length (a quarter of 4 * `size` drawn ones, by length): less padding. Kinds by SHARES."""
        rows: list[Row] = []
        while len(rows) < 4 * size:
            page, k = self.random.randrange(len(data)), self.random.random()
            targets = data.targets[page]
            make = (self.listing, self.ordered, self.writing)[sum(k >= s for s in SHARES[:2])]
            row = make(page, targets)
            rows += [row] if row else []
        rows.sort(key=lambda r: len(r.ids))
        start = self.random.randrange(4) * size
        return rows[start : start + size]


def _loss(model: Any, maker: Follower, data: PageSet, rows: list[Row]) -> tuple[torch.Tensor, dict[str, float]]:
    """Next-token loss; a page that a row shows several times is looked at once."""
    pages = [p for r in rows for p in r.pages]
    distinct = {p: i for i, p in enumerate(dict.fromkeys(pages))}
    with torch.no_grad():
        features = vision_forward(model.model.visual, data.patches(list(distinct)), GRID_THW)
    return next_token(model, maker, rows, features[[distinct[p] for p in pages]])


def learn_following(
    model: Any,
    tokenizer: Any,
    folder: Path,
    work: Path,
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
    bfloat16: bool,
    shards: list[str],
    say: Callable[[str], None],
    save_every: int = 200,
    held_batches: int = 8,
) -> dict[str, float]:
    """Train the text model in place for `steps` steps of `batch` rows; returns held-out accuracies (`follow_*`).

    folder, shards: the pages (the first shard is held out). work: a checkpoint every `save_every` steps is written
    there, and read at the start.
    """
    params = [p for n, p in model.named_parameters() if not n.startswith("model.visual.")]
    optimiser = adam(params, lr)
    state, step = work / STATE, 0
    if state.exists():
        step = load_state(state, params, optimiser)
        say(f"following: resumed at step {step}")
    held, data = PageSet(folder, shards[:1]), PageSet(folder, shards[1:])
    maker = Follower(tokenizer, seed)
    whole = model.model.visual.patch_embed
    model.model.visual.patch_embed = FoldedPatches(whole.proj)

    def loss_at(step: int) -> tuple[torch.Tensor, dict[str, float]]:
        maker.random.seed(seed * 1_000_003 + step)
        with fast(bfloat16):
            return _loss(model, maker, data, maker.batch(data, batch))

    model.train()
    learn(
        params,
        optimiser,
        loss_at,
        state,
        step=step,
        steps=steps,
        lr=lr,
        save_every=save_every,
        say=say,
        called="following",
    )
    model.eval()
    maker = Follower(tokenizer, 7)
    with torch.no_grad():
        parts = [_loss(model, maker, held, maker.batch(held, 64))[1] for _ in range(held_batches)]
    model.model.visual.patch_embed = whole
    return {f"follow_{k}": float(np.mean([p[k] for p in parts])) for k in parts[0]}
