"""An image as the vision tower's pixel values, without the image processor's bookkeeping.

Guarantees: bit for bit what the Qwen2-VL image processor of transformers gives (tested), in a fraction of its time:
patches are cut while pixels are still bytes, then scaled. `Pixels.of` gives None for a processor that is not the one it
knows (another class, another step switched on or off), and the caller then asks the library. Still images only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tvF
from transformers import Qwen2VLImageProcessor

from guiderail.models.attention import Grid
from guiderail.models.sizing import ImageSizing


class Pixels:
    """What `processor` (its image processor) does, read once."""

    def __init__(self, processor: Any) -> None:
        self.sizing = ImageSizing.from_processor(processor)
        self.temporal = int(processor.temporal_patch_size)
        self.resample = tvF.InterpolationMode.BICUBIC
        # (v * rescale - mean) / std as the library fuses it: (v - mean / rescale) / (std / rescale), per channel
        scale = 1.0 / processor.rescale_factor
        self.mean, self.std = (
            (torch.tensor(x) * scale)[:, None, None] for x in (processor.image_mean, processor.image_std)
        )

    @classmethod
    def of(cls, processor: Any) -> Pixels | None:
        """A reading of a Hugging Face processor's image processor, or None when it must be asked itself."""
        images = getattr(processor, "image_processor", processor)
        steps = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
        if type(images) is not Qwen2VLImageProcessor or not all(getattr(images, s) is True for s in steps):
            return None
        lists = all(isinstance(x, list | tuple) and len(x) == 3 for x in (images.image_mean, images.image_std))
        return cls(images) if images.resample == 3 and lists else None  # 3: PIL's bicubic

    def __call__(self, image: Any) -> tuple[Tensor, Grid]:
        """Image (PIL, or uint8 [height, width, 3]) -> (pixel values [patches, volume], grid (1, h, w) in patches)."""
        array = np.asarray(image if isinstance(image, np.ndarray) else image.convert("RGB"))
        height, width = array.shape[:2]
        to = self.sizing.resized(width, height)
        x = torch.from_numpy(array.transpose(2, 0, 1).copy())
        if to != (width, height):
            x = tvF.resize(x, [to[1], to[0]], interpolation=self.resample, antialias=True)
        p, m = self.sizing.patch_size, self.sizing.merge_size
        h, w = to[1] // p, to[0] // p
        x = x.view(3, h // m, m, p, w // m, m, p).permute(1, 4, 2, 5, 0, 3, 6).reshape(h * w, 3, p, p)
        x = x.float().sub_(self.mean).div_(self.std)
        return x[:, :, None].expand(-1, -1, self.temporal, -1, -1).reshape(h * w, -1), (1, h, w)
