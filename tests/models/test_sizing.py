"""Image sizes against the Hugging Face processor itself, and figures published for Qwen3-VL's settings."""

from types import SimpleNamespace

import numpy as np
import pytest

from guiderail.models.sizing import ImageSizing

QWEN3VL = ImageSizing(16, 2, 56 * 56, 16 * 16 * 4 * 12800)
TINY = ImageSizing(16, 2, 1024, 160 * 224)


@pytest.mark.parametrize(
    "sizing, width, height, resized, tokens",
    [
        (QWEN3VL, 1920, 1080, (1920, 1088), 2040),
        (QWEN3VL, 1280, 720, (1280, 704), 880),
        (QWEN3VL, 3840, 2160, (3840, 2176), 8160),
        (TINY, 160, 210, (160, 224), 35),
    ],
)
def test_known_figures(sizing, width, height, resized, tokens):
    assert sizing.resized(width, height) == resized and sizing.tokens(width, height) == tokens
    assert sizing.grid(width, height) == (1, resized[1] // 16, resized[0] // 16)


@pytest.mark.parametrize("size", [(1024, 160 * 224), (56 * 56, 28 * 28 * 1280), (65536, 16777216)])
def test_agrees_with_the_processor(processor, size):
    from transformers import Qwen2VLImageProcessor

    hf = Qwen2VLImageProcessor(
        size={"shortest_edge": size[0], "longest_edge": size[1]}, patch_size=16, merge_size=2, temporal_patch_size=2
    )
    sizing = ImageSizing.from_processor(SimpleNamespace(image_processor=hf))
    assert sizing == ImageSizing(16, 2, *size)
    rng = np.random.default_rng(0)
    sizes = [(1, 1), (1, 200), (16, 48), (160, 210), (360, 800), (2, 399)]
    sizes += [tuple(int(v) for v in rng.integers(20, 2000, 2)) for _ in range(200)]
    for w, h in sizes:
        assert sizing.tokens(w, h) == hf.get_number_of_image_patches(h, w) // 4, (w, h)


def test_agrees_with_the_features_of_a_real_image(processor):
    from PIL import Image

    sizing = ImageSizing.from_processor(processor)
    for w, h in [(160, 210), (90, 300), (33, 17)]:
        out = processor.image_processor(images=[Image.new("RGB", (w, h))], return_tensors="np")
        assert tuple(out["image_grid_thw"][0]) == sizing.grid(w, h)
        assert out["pixel_values"].shape[0] == 4 * sizing.tokens(w, h)


@pytest.mark.parametrize("w, h", [(0, 5), (5, -1), (1, 201), (2010, 10)])
def test_refuses_impossible_images(w, h):
    with pytest.raises(ValueError, match=f"{w}x{h}"):
        TINY.tokens(w, h)


def test_refuses_a_processor_without_bounds():
    with pytest.raises(ValueError, match="shortest_edge"):
        ImageSizing.from_processor(
            SimpleNamespace(size={"shortest_edge": None, "longest_edge": 1}, patch_size=16, merge_size=2)
        )
    with pytest.raises(ValueError, match="min_pixels <= max_pixels"):
        ImageSizing(16, 2, 100, 99)
