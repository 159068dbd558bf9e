"""Random pages with the boxes of what is drawn on them: the pretraining data of the tiny model.

Guarantees: page `seed` looks the same on every machine with the same Chromium (fonts ship with matplotlib); pixels
are cut into patches by the checkpoint's own image processor; a shard is either whole or not there. Draws no
benchmark page.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from guiderail.models import words

COLS, ROWS, WIDTH, HEIGHT = 6, 4, 160, 224
PER_SHEET = COLS * ROWS


@dataclass(frozen=True)
class Target:
    """One thing on a page: kind (word, textbox, checkbox, radio, shape, x), its name, its centre and size in pixels."""

    kind: str
    name: str
    x: float
    y: float
    w: float
    h: float


def word_lists() -> dict[str, list[str]]:
    """The words that pages draw from."""
    ui, lorem = ([w for w in ws if len(w) > 1] for ws in (words.UI, words.LOREM))
    return {"ui": ui, "lorem": lorem, "names": words.NAMES, "colours": words.COLOURS[:10]}


def render(first: int, sheets: int, browser_path: str) -> Iterator[tuple[np.ndarray, list[Target]]]:
    """Draw `sheets` sheets of 24 pages with seeds from `first` on; yields (uint8 [224, 160, 3], targets) per page.

    browser_path: a Chromium (`guiderail.envs.chromium.find().path`). Raises BrowserNotFound when it does not start.
    """
    from playwright.sync_api import sync_playwright

    from guiderail.envs.chromium import probe
    from guiderail.envs.launch import FLAGS, write_fonts

    script = Path(__file__).with_name("pages.js").read_text()
    args = [f for f in FLAGS if "debugging" not in f]
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as p:
        env: dict[str, str | float | bool] = {
            **os.environ,
            **probe(browser_path).environment(),
            "FONTCONFIG_FILE": str(write_fonts(Path(scratch))),
        }
        browser = p.chromium.launch(
            executable_path=browser_path, args=args, env=env, chromium_sandbox=os.geteuid() != 0
        )
        page = browser.new_page(viewport={"width": COLS * WIDTH, "height": ROWS * HEIGHT})
        page.add_script_tag(content=script)
        lists = word_lists()
        for s in range(sheets):
            facts = json.loads(page.evaluate("([f,c,r,w])=>sheet(f,c,r,w)", [first + s * PER_SHEET, COLS, ROWS, lists]))
            pixels = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
            for i, things in enumerate(facts):
                y, x = (i // COLS) * HEIGHT, (i % COLS) * WIDTH
                yield pixels[y : y + HEIGHT, x : x + WIDTH], [Target(*t) for t in things]
        browser.close()


def patches(image_processor: Any, frames: list[np.ndarray]) -> np.ndarray:
    """uint8 [n, patches, 3*16*16]: frames cut as the processor does, without scaling and the doubled time axis."""
    out = image_processor(
        images=[Image.fromarray(f) for f in frames], do_rescale=False, do_normalize=False, return_tensors="np"
    )
    flat = np.asarray(out["pixel_values"]).reshape(len(frames), -1, 3, 2, 256)
    cut: np.ndarray = np.clip(np.rint(flat[:, :, :, 0]), 0, 255).astype(np.uint8).reshape(len(frames), -1, 768)
    return cut


def write_shard(path: Path, first: int, sheets: int, image_processor: Any, browser_path: str) -> None:
    """Write pages [first, first + 24 * sheets) as `path`.npy (patches) and `path`.json (targets), unless they exist.

    The .json is renamed into place last: where it is, the shard is whole.
    """
    if path.with_suffix(".json").exists():
        return
    frames, targets = [], []
    for frame, things in render(first, sheets, browser_path):
        frames.append(frame)
        targets.append([[t.kind, t.name, t.x, t.y, t.w, t.h] for t in things])
    tmp = path.with_suffix(".tmp.npy")
    np.save(tmp, np.concatenate([patches(image_processor, frames[i : i + 48]) for i in range(0, len(frames), 48)]))
    os.replace(tmp, path.with_suffix(".npy"))
    partial = path.with_suffix(".tmp.json")
    partial.write_text(json.dumps(targets))
    os.replace(partial, path.with_suffix(".json"))
