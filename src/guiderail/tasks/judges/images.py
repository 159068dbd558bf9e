"""Metrics over images. Similarity is SSIM (Wang et al. 2004, eq. 13) over grey 7 x 7 windows, uniform weights, K1 =
0.01, K2 = 0.03, sample covariance, data range 255: what scikit-image computes by default for 8-bit images."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from guiderail.tasks.judges.safe import load_image

Rules = Mapping[str, Any]
Array = npt.NDArray[np.float64]
WINDOW = 7
SIMILAR = 0.9


def _means(a: Array) -> Array:
    """Means over all WINDOW x WINDOW windows inside the image."""
    s = np.pad(a, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    k = WINDOW
    return np.asarray((s[k:, k:] - s[:-k, k:] - s[k:, :-k] + s[:-k, :-k]) / k**2)


def ssim(a: Array, b: Array) -> float:
    """Mean SSIM of two grey images of one size, values in [0, 255]. Raises ValueError when smaller than a window."""
    if a.shape != b.shape or min(a.shape) < WINDOW:
        raise ValueError(f"ssim of images {a.shape} and {b.shape}: need one size of at least {WINDOW} x {WINDOW}")
    n = WINDOW**2
    ux, uy = _means(a), _means(b)
    vx, vy, vxy = (
        n / (n - 1) * (_means(p * q) - m * o) for p, q, m, o in ((a, a, ux, ux), (b, b, uy, uy), (a, b, ux, uy))
    )
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    found = ((2 * ux * uy + c1) * (2 * vxy + c2)) / ((ux**2 + uy**2 + c1) * (vx + vy + c2))
    return float(found.mean())


def _grey(image: Any) -> Array:
    return np.asarray(image.convert("L"), dtype=np.float64)


def _similarity(one: Any, two: Any) -> float:
    """SSIM after bringing both to the smaller width and height (at least a window)."""
    size = max(WINDOW, min(one.width, two.width)), max(WINDOW, min(one.height, two.height))
    return ssim(*(_grey(i.convert("RGB").resize(size) if i.size != size else i) for i in (one, two)))


def _structure(one: Any, two: Any, threshold: float = SIMILAR) -> bool:
    """Same size, and SSIM at least `threshold`."""
    return bool(one.size == two.size and _similarity(one, two) >= threshold)


def compare_images(result: str | None, expected: str | None, reference_base_result: float | None = None) -> float:
    """SSIM of two images (brought to one size), below 0 counted as 0; scaled so that `reference_base_result` is 0."""
    if result is None or expected is None:
        return 0.0
    found = max(0.0, _similarity(load_image(result), load_image(expected)))
    if reference_base_result is None:
        return found
    return max(0.0, (found - reference_base_result) / (1 - reference_base_result))


def compare_image_list(result: Any, expected: Any) -> float:
    """1 when every image equals its counterpart pixel for pixel."""
    if result is None or expected is None:
        return 0.0
    one, two = ([x] if isinstance(x, str) else x for x in (result, expected))
    if len(one) != len(two) or None in one:
        return 0.0
    return float(all(_equal(load_image(a), load_image(b)) for a, b in zip(one, two, strict=True)))


def _equal(one: Any, two: Any) -> bool:
    return bool(one.size == two.size and np.array_equal(np.asarray(one.convert("RGB")), np.asarray(two.convert("RGB"))))


def check_structure_sim(result: str | None, expected: str | None) -> float:
    """1 when two images have one size and SSIM of at least 0.9."""
    if result is None or expected is None:
        return 0.0
    return float(_structure(load_image(result), load_image(expected)))


def check_structure_sim_resized(result: str | None, expected: str | None) -> float:
    """As check_structure_sim, after the expected image (transparent margins of the result aside) is brought to the
    result's size."""
    if result is None or expected is None:
        return 0.0
    one, two = _trim(load_image(result)), load_image(expected)
    return float(_structure(one, two.convert("RGB").resize(one.size)))


def _trim(image: Any) -> Any:
    """The image without fully transparent margins."""
    if image.mode not in ("RGBA", "LA", "PA"):
        return image
    box = image.convert("RGBA").getchannel("A").getbbox()
    return image.crop(box) if box else image


def check_file_exists_and_structure_sim(result: str | None, expected: str | None) -> float:
    """As check_structure_sim; 0 when the file is not there."""
    return check_structure_sim(result, expected)


def check_brightness_decrease_and_structure_sim(
    result: str | None, expected: str | None, threshold: float = 0.03
) -> float:
    """1 when the result is darker than the expected image, and, brought to its brightness, looks the same.

    "The same": the mean squared difference of the normalised grey images is at most `threshold`.
    """
    if result is None or expected is None:
        return 0.0
    one, two = load_image(result), load_image(expected)
    if one.size != two.size:
        return 0.0
    a, b = _grey(one), _grey(two)
    return float(a.mean() < b.mean() and _distance(a, b) <= threshold)


def _distance(a: Array, b: Array) -> float:
    """Mean squared difference after both are brought to the mean 128, of values in [0, 1]."""
    x, y = (np.clip(v * (128.0 / max(v.mean(), 1e-6)), 0, 255) / 255 for v in (a, b))
    return float(((x - y) ** 2).mean())


def check_saturation_increase_and_structure_sim(result: str | None, expected: str | None) -> float:
    """1 when the result is more saturated than the expected image and of the same structure (SSIM 0.9)."""
    if result is None or expected is None:
        return 0.0
    one, two = load_image(result).convert("RGB"), load_image(expected).convert("RGB")
    s, t = (np.asarray(i.convert("HSV"), dtype=np.float64)[..., 1].mean() for i in (one, two))
    return float(s > t and _structure(one, two))


def check_contrast_increase_and_structure_sim(result: str | None, expected: str | None) -> float:
    """1 when the result has more contrast (deviation of grey values) and SSIM of at least 0.65."""
    if result is None or expected is None:
        return 0.0
    one, two = load_image(result), load_image(expected)
    return float(_grey(one).std() > _grey(two).std() and _structure(one, two, 0.65))


def check_image_size(result: str | None, rules: Rules) -> float:
    """1 when the image has the height and width of the rule; ignore_transparent leaves transparent margins out."""
    if result is None:
        return 0.0
    image = load_image(result)
    image = _trim(image) if rules.get("ignore_transparent") else image
    return float(rules.get("height", image.height) == image.height and rules.get("width", image.width) == image.width)


def check_image_file_size(result: str | None, rules: Rules) -> float:
    """1 when the file has fewer than rules["max_size"] bytes."""
    return 0.0 if result is None else float(os.stat(result).st_size < rules["max_size"])


def check_image_mirror(result: str | None, expected: str | None) -> float:
    """1 when the result is the expected image mirrored left to right (SSIM 0.99)."""
    if result is None or expected is None:
        return 0.0
    from PIL import ImageOps

    return float(_structure(ImageOps.mirror(load_image(expected)), load_image(result), 0.99))


def check_green_background(result: str | None, expected: str | None) -> float:
    """1 when every pixel that is white in the expected image is mostly green in the result."""
    if result is None or expected is None:
        return 0.0
    one, two = (np.asarray(load_image(p).convert("RGB"), dtype=np.int64) for p in (result, expected))
    if one.shape != two.shape:
        return 0.0
    r, g, b = (one[..., i] for i in range(3))
    background = (two == 255).all(-1)
    return float(background.any() and bool(((g > r) & (g > b))[background].all()))


def check_textbox_on_leftside(result: str | None) -> float:
    """1 when the leftmost dark pixel lies in the left twentieth of the image."""
    if result is None:
        return 0.0
    dark = np.argwhere(_grey(load_image(result)).T < 128)
    width = load_image(result).width
    return float(bool(len(dark)) and dark[0][0] < 0.05 * width)


def check_triangle_position(result: str | None) -> float:
    """1 when the middle of the yellow pixels lies within a twentieth of the middle of the image."""
    if result is None:
        return 0.0
    rgb = np.asarray(load_image(result).convert("RGB"), dtype=np.int64)
    yellow = np.argwhere((rgb[..., 0] > 200) & (rgb[..., 1] > 180) & (rgb[..., 2] < 100))
    if not len(yellow):
        return 0.0
    y, x = yellow.mean(0)
    height, width = rgb.shape[:2]
    return float(abs(x - width / 2) < 0.05 * width and abs(y - height / 2) < 0.05 * height)
