"""Training rows of the tiny model's pretraining: random pages in, token ids, loss weights and dense vision labels out.

Guarantees: rows have the very ids of the agent's prompts (see `guiderail.models.prompts`; tested), so that grounding
learned here carries over; instructions are worded unlike any benchmark's. A row is either a list of pointings at one
page, or an instruction and its answer. Reads no files and knows no model.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import ImageFont

from guiderail.models.tiny import GRID
from guiderail.train.pages import Target

CELLS, GRID_W, GRID_H = 35, 5, 7
KINDS = ("none", "word", "textbox", "checkbox", "radio", "shape", "x")
FORMS = ("find {}", "go to {}", "where is {}?", "point at {}", "{}", "hit {}", "tap {}", "{} please")
WRITE = ("write {}", "put {} there", "{} goes in", "fill with {}", "key in {}", "the text is {}")


def spoken(t: Target, index: int = 0, several: bool = False) -> str:
    """How a thought names a target; `index` is its 1-based rank from the top among `several` textboxes."""
    if t.kind == "word":
        return f'"{t.name}"'
    if t.kind == "textbox":
        return f"textbox {index}" if several else "the textbox"
    if t.kind == "x":
        return "the X"
    return f"the {t.name}" if t.kind == "shape" else f'the {t.kind} "{t.name}"'


def click_text(x: float, y: float) -> str:
    """The call for a click at pixel (x, y) of a 160x224 screen, on the grid."""
    gx, gy = round(x / 160 / GRID) * GRID, round(y / 224 / GRID) * GRID
    return f"CLICK(x={gx:.3f}, y={gy:.3f})"


def named(targets: list[Target]) -> list[tuple[str, Target]]:
    """Targets that one name picks out, with that name."""
    boxes = sorted((t for t in targets if t.kind == "textbox"), key=lambda t: (t.y, t.x))
    pairs = [(spoken(t, boxes.index(t) + 1 if t in boxes else 0, len(boxes) > 1), t) for t in targets]
    names = [n for n, _ in pairs]
    return [(n, t) for n, t in pairs if names.count(n) == 1]


@dataclass
class Row:
    """Token ids, the loss weight of predicting each (same length), and the pages shown, in order."""

    ids: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)


class RowMaker:
    """Makes rows with one tokenizer and one random stream."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self.tokenizer = tokenizer
        self.random = random.Random(seed)
        self.encode = lru_cache(maxsize=200_000)(lambda s: tuple(tokenizer(s, add_special_tokens=False)["input_ids"]))
        self.is_point = np.array(
            [bool(re.fullmatch(r"[xy]=\d\.\d{3}", t)) for t in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
        )
        self.image = tokenizer.convert_tokens_to_ids("<|image_pad|>")

    def _add(self, row: Row, text: str, weight: float = 0.0, points: float | None = None) -> None:
        ids = self.encode(text)
        row.ids += ids
        row.weight += [points if points is not None and self.is_point[i] else weight for i in ids]

    def _user(self, row: Row, text: str, page: int) -> None:
        self._add(row, f"<|im_start|>user\n{text}<|vision_start|>")
        row.ids += [self.image] * CELLS
        row.weight += [0.0] * CELLS
        row.pages.append(page)
        self._add(row, "<|vision_end|><|im_end|>\n<|im_start|>assistant\n")

    def start(self) -> Row:
        """A row that holds the system turn."""
        row = Row()
        self._add(row, "<|im_start|>system\nWork the screen.<|im_end|>\n")
        return row

    def listing(self, page: int, targets: list[Target], most: int = 6) -> Row | None:
        """Point at up to `most` things of one page; only the points and the form are learned, not the order."""
        things = named(targets)
        if not things:
            return None
        rare = [t for t in things if t[1].kind != "word"]
        self.random.shuffle(things)
        chosen = (rare[:3] + [t for t in things if t not in rare[:3]])[:most]
        self.random.shuffle(chosen)
        row = self.start()
        self._user(row, "all\n", page)
        for name, t in chosen:
            self._add(row, f"Action: click {name}\n")
            self._add(row, click_text(t.x, t.y), 0.1, 1.0)
            self._add(row, "\n")
        return row

    def pointing(self, page: int, targets: list[Target]) -> Row | None:
        """One instruction, one thing, one click."""
        things = named(targets)
        if not things:
            return None
        name, t = self.random.choice(things)
        row = self.start()
        self._user(row, self.random.choice(FORMS).format(name) + "\n", page)
        self._add(row, f"Action: click {name}\n", 0.3)
        self._add(row, click_text(t.x, t.y) + "<|im_end|>", 0.1, 1.0)
        return row

    def pair(self, first: int, a: list[Target], second: int, b: list[Target]) -> Row | None:
        """Two things on two screens, one after the other."""
        one, two = named(a), named(b)
        if not one or not two:
            return None
        (n1, t1), (n2, t2) = self.random.choice(one), self.random.choice(two)
        row = self.start()
        self._user(row, f"{n1} then {n2}\n", first)
        self._add(row, f"Action: click {n1}\n", 0.3)
        self._add(row, click_text(t1.x, t1.y) + "<|im_end|>", 0.1, 1.0)
        self._add(row, "\n")
        self._user(row, "", second)
        self._add(row, f"Action: click {n2}\n", 0.3)
        self._add(row, click_text(t2.x, t2.y) + "<|im_end|>", 0.1, 1.0)
        return row

    def typing(self, page: int, targets: list[Target]) -> Row:
        """Copy a quoted text of the instruction into a TYPE call."""
        words = [t.name for t in targets if t.kind == "word"] or ["word"]
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        text = (
            self.random.choice(words)
            if self.random.random() < 0.4
            else "".join(self.random.choices(letters, k=self.random.randint(1, 9)))
        )
        text = text.replace("\\", "").replace('"', "")
        row = self.start()
        said = self.random.choice(WRITE).format(f'"{text}"')
        if self.random.random() < 0.5:
            said = f'{said} {self.random.choice(("by", "near", "beside", "not"))} "{self.random.choice(words)}"'
        self._user(row, said + "\n", page)
        self._add(row, f'Action: type "{text}"\nTYPE(text="{text}")<|im_end|>', 0.3)
        return row


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@lru_cache(maxsize=50_000)
def _letter_centres(text: str) -> tuple[float, ...]:
    """Centre of every character as a fraction of the width of `text` in DejaVu Sans."""
    face = _face()
    ends = [face.getlength(text[: i + 1]) for i in range(len(text))]
    return tuple((a + b) / 2 / (ends[-1] or 1.0) for a, b in zip([0.0, *ends], ends, strict=False))


@lru_cache(maxsize=1)
def _face() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), 100)


def slot_of(x: float, y: float) -> int:
    """The quarter of an image token that pixel (x, y) of a 160x224 screen falls into: token * 4 + quarter.

    Tokens are row-major in 7x5, quarters row-major in 2x2: the order of patches in the vision tower.
    """
    sx, sy = min(int(x // 16), 9), min(int(y // 16), 13)
    return ((sy // 2) * GRID_W + sx // 2) * 4 + (sy % 2) * 2 + sx % 2


def letter_labels(targets: list[Target]) -> np.ndarray:
    """float32 [140, 62]: 1 where a letter is centred in a 16x16 patch (patches in the vision tower's order)."""
    out = np.zeros((CELLS * 4, len(LETTERS)), dtype=np.float32)
    for t in targets:
        if t.kind == "word":
            for c, at in zip(t.name, _letter_centres(t.name), strict=True):
                if (k := LETTERS.find(c)) >= 0:
                    out[slot_of(t.x - t.w / 2 + at * t.w, t.y), k] = 1.0
    return out


def dense_labels(tokenizer: Any, targets: list[Target], encode: Any) -> tuple[np.ndarray, np.ndarray]:
    """What each quarter of each image token shows.

    Returns kinds int64 [35 * 4] (index into KINDS) and rows int64 [n, 7]: (slot, name token, three letter tokens,
    x token, y token) for every labelled slot; -100 where a letter does not exist. A slot is 16x16 pixels; of several
    things centred in one slot the best centred is named, other things before words.
    """
    kinds = np.zeros(CELLS * 4, dtype=np.int64)
    best: dict[int, tuple[float, Target]] = {}
    for t in targets:
        slot = slot_of(t.x, t.y)
        off = abs(t.x % 16 - 8) + abs(t.y % 16 - 8) - (8 if t.kind != "word" else 0)
        if slot not in best or off < best[slot][0]:
            best[slot] = (off, t)
    out = []
    for slot, (_, t) in best.items():
        kinds[slot] = KINDS.index(t.kind)
        bare = t.name.strip("\"'.,:;!?#()") or t.name
        if t.kind == "word":
            name = encode(bare)[0]
            letters = [encode(c)[0] if ord(c) < 128 else -100 for c in bare[:3]]
        elif t.kind == "shape":
            name, letters = encode(t.name.split()[0])[0], [encode(t.name.split()[1])[0]]
        else:
            name, letters = encode(t.kind if t.kind != "x" else "X")[0], []
        letters += [-100] * (3 - len(letters))
        x, y2 = re.findall(r"[xy]=\d\.\d{3}", click_text(t.x, t.y))
        out.append([slot, name, *letters, encode(x)[0], encode(y2)[0]])
    return kinds, np.array(out, dtype=np.int64).reshape(-1, 7)
