"""Pixel values: bit for bit the library's, for every size; a processor that does something else is asked itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from guiderail.models.pixels import Pixels


def noise(size: tuple[int, int], seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("size", [(160, 210), (160, 224), (96, 64), (33, 300), (640, 480), (20, 20)])
@pytest.mark.parametrize("mean", [[0.5] * 3, [0.48145466, 0.4578275, 0.40821073]])
def test_equals_the_library_bit_for_bit(processor, size, mean, monkeypatch):
    monkeypatch.setattr(processor.image_processor, "image_mean", mean)
    image = noise(size, seed=size[0])
    wanted = processor.image_processor(images=[image], return_tensors="pt")
    ours = Pixels.of(processor)
    for given in (image, np.asarray(image)):
        values, grid = ours(given)
        assert list(grid) == wanted["image_grid_thw"][0].tolist()
        assert values.dtype == torch.float32 and torch.equal(values, wanted["pixel_values"])
    assert values.std() > 0.1


@pytest.mark.parametrize(
    ("name", "value"), [("do_resize", False), ("do_normalize", False), ("resample", 2), ("image_mean", 0.5)]
)
def test_a_processor_that_does_something_else_is_not_taken_for_it(processor, name, value, monkeypatch):
    assert Pixels.of(processor) is not None
    monkeypatch.setattr(processor.image_processor, name, value)
    assert Pixels.of(processor) is None
