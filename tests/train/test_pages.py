"""Random pages in a real browser: the same seed gives the same page, boxes hold what they say, shards are whole."""

from __future__ import annotations

import json

import numpy as np
import pytest

from guiderail.envs import chromium
from guiderail.models import tiny
from guiderail.train.pages import PER_SHEET, render, write_shard

pytestmark = pytest.mark.browser


def test_a_page_is_its_seed_and_boxes_hold_ink():
    browser = chromium.find().path
    first = list(render(0, 1, browser))
    shifted = list(render(1, 1, browser))
    assert len(first) == PER_SHEET
    assert np.array_equal(first[5][0], shifted[4][0]) and first[5][1] == shifted[4][1]
    assert not np.array_equal(first[5][0], first[4][0])
    words = [(frame, t) for frame, targets in first for t in targets if t.kind == "word"]
    assert len(words) > 50
    for frame, t in words:
        box = frame[int(t.y - t.h / 2) : int(t.y + t.h / 2) + 1, int(t.x - t.w / 2) : int(t.x + t.w / 2) + 1]
        assert frame.shape == (224, 160, 3) and box.max() > box.min(), t


def test_a_shard_is_cut_as_the_processor_cuts(tmp_path):
    images = tiny.build_processor(tiny.build_tokenizer()).image_processor
    browser = chromium.find().path
    write_shard(tmp_path / "pages-0000", 48, 1, images, browser)
    pixels = np.load(tmp_path / "pages-0000.npy")
    targets = json.loads((tmp_path / "pages-0000.json").read_text())
    assert pixels.shape == (PER_SHEET, 140, 768) and len(targets) == PER_SHEET
    frame, things = next(iter(render(48, 1, browser)))
    assert np.array_equal(pixels[0, 1].reshape(3, 16, 16), frame[0:16, 16:32].transpose(2, 0, 1))
    assert targets[0] == [[t.kind, t.name, t.x, t.y, t.w, t.h] for t in things]
    stamp = (tmp_path / "pages-0000.npy").stat().st_mtime_ns
    write_shard(tmp_path / "pages-0000", 48, 1, images, "/no/browser")  # is there: nothing to draw
    assert (tmp_path / "pages-0000.npy").stat().st_mtime_ns == stamp
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pages-0000.json", "pages-0000.npy"]
