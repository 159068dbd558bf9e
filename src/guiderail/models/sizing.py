"""Image size <-> number of image tokens of a Qwen3-VL processor, in integers alone.

Guarantees: `ImageSizing.from_processor(p).tokens(w, h)` is the number of `<|image_pad|>` ids that `p` expands a
`w` x `h` image to, without touching pixels. Still images only (one temporal patch).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

MAX_ASPECT = 200


@dataclass(frozen=True)
class ImageSizing:
    """Resize rule of the Qwen2-VL image processor family (`smart_resize`), sizes in pixels.

    A side is rounded to a multiple of `patch_size * merge_size`; the area is then brought into
    [min_pixels, max_pixels]. One token stands for merge_size x merge_size patches.
    """

    patch_size: int = 16
    merge_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    def __post_init__(self) -> None:
        if min(self.patch_size, self.merge_size, self.min_pixels) < 1 or self.max_pixels < self.min_pixels:
            raise ValueError(f"{self}: sizes must be positive and min_pixels <= max_pixels")

    @classmethod
    def from_processor(cls, processor: Any) -> ImageSizing:
        """Read the rule from a Hugging Face processor, or from its image processor."""
        images = getattr(processor, "image_processor", processor)
        size = images.size
        low, high = size["shortest_edge"], size["longest_edge"]
        if low is None or high is None:
            raise ValueError(f"image processor size = {size}: needs shortest_edge and longest_edge (areas in pixels)")
        return cls(int(images.patch_size), int(images.merge_size), int(low), int(high))

    @property
    def factor(self) -> int:
        """Pixels per token along one side."""
        return self.patch_size * self.merge_size

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) after the processor's resize. Raises ValueError on an empty or extreme (200:1) image."""
        if width < 1 or height < 1:
            raise ValueError(f"image of {width}x{height} pixels: both sides must be at least 1")
        if max(width, height) / min(width, height) > MAX_ASPECT:
            raise ValueError(f"image of {width}x{height} pixels: aspect ratio above {MAX_ASPECT}:1 is refused")
        f = self.factor
        w, h = round(width / f) * f, round(height / f) * f
        if w * h > self.max_pixels:
            beta = math.sqrt(width * height / self.max_pixels)
            w, h = max(f, math.floor(width / beta / f) * f), max(f, math.floor(height / beta / f) * f)
        elif w * h < self.min_pixels:
            beta = math.sqrt(self.min_pixels / (width * height))
            w, h = math.ceil(width * beta / f) * f, math.ceil(height * beta / f) * f
        return w, h

    def grid(self, width: int, height: int) -> tuple[int, int, int]:
        """image_grid_thw of the image: (1, rows, columns) in patches."""
        w, h = self.resized(width, height)
        return 1, h // self.patch_size, w // self.patch_size

    def tokens(self, width: int, height: int) -> int:
        """Image tokens (= vision features) of a `width` x `height` image."""
        w, h = self.resized(width, height)
        return (w // self.factor) * (h // self.factor)
