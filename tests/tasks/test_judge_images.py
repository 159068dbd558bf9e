"""Metrics over images drawn here; SSIM against its definition written out for single windows."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from guiderail.tasks.judges import images
from guiderail.tasks.judges.safe import Unreadable


def picture(seed=0, size=(40, 30)):
    rng = np.random.default_rng(seed)
    base = Image.fromarray(rng.integers(40, 200, (*size[::-1], 3), dtype=np.uint8))
    ImageDraw.Draw(base).rectangle((5, 5, 15, 20), fill=(200, 30, 60))
    return base


@pytest.fixture
def save(tmp_path):
    def put(image, name):
        image.save(tmp_path / name)
        return str(tmp_path / name)

    return put


def test_ssim_is_the_mean_over_windows():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, (2, 9, 8)).astype(float)
    found = []
    for i in range(3):
        for j in range(2):
            x, y = a[i : i + 7, j : j + 7].ravel(), b[i : i + 7, j : j + 7].ravel()
            (vx, c), (_, vy) = np.cov(x, y)
            k1, k2 = 2.55**2, 7.65**2
            found.append(
                (2 * x.mean() * y.mean() + k1) * (2 * c + k2) / ((x.mean() ** 2 + y.mean() ** 2 + k1) * (vx + vy + k2))
            )
    assert images.ssim(a, b) == pytest.approx(np.mean(found), abs=1e-9)
    assert images.ssim(a, a) == pytest.approx(1)


def test_likeness(save):
    a, b = save(picture(), "a.png"), save(picture(7), "b.png")
    assert images.compare_images(a, a) == pytest.approx(1)
    assert images.compare_images(a, b) < 0.7
    assert images.compare_images(a, b, reference_base_result=0.9) == 0
    assert images.compare_images(None, a) == 0
    assert images.check_structure_sim(a, a) == 1 and images.check_structure_sim(a, b) == 0
    assert images.compare_image_list([a, b], [a, b]) == 1 and images.compare_image_list([a, b], [b, a]) == 0
    assert images.check_structure_sim(save(picture(size=(41, 30)), "c.png"), a) == 0


def test_edits(save):
    a = save(picture(), "a.png")
    dark = save(ImageEnhance.Brightness(picture()).enhance(0.7), "dark.png")
    assert images.check_brightness_decrease_and_structure_sim(dark, a) == 1
    assert images.check_brightness_decrease_and_structure_sim(a, dark) == 0
    assert images.check_brightness_decrease_and_structure_sim(save(Image.new("RGB", (40, 30)), "k.png"), a) == 0
    vivid = save(ImageEnhance.Color(picture()).enhance(1.2), "vivid.png")
    assert images.check_saturation_increase_and_structure_sim(vivid, a) == 1
    assert images.check_saturation_increase_and_structure_sim(a, vivid) == 0
    hard = save(ImageEnhance.Contrast(picture()).enhance(1.2), "hard.png")
    assert images.check_contrast_increase_and_structure_sim(hard, a) == 1
    assert images.check_contrast_increase_and_structure_sim(a, hard) == 0
    mirrored = save(ImageOps.mirror(picture()), "m.png")
    assert images.check_image_mirror(mirrored, a) == 1 and images.check_image_mirror(a, a) == 0


def test_size_and_places(save):
    clear = Image.new("RGBA", (60, 50), (0, 0, 0, 0))
    clear.paste(picture().convert("RGBA"), (10, 10))
    a = save(clear, "clear.png")
    assert images.check_image_size(a, {"width": 60, "height": 50}) == 1
    assert images.check_image_size(a, {"height": 30, "ignore_transparent": True}) == 1
    assert images.check_image_size(a, {"height": 50, "ignore_transparent": True}) == 0
    assert images.check_structure_sim_resized(a, save(picture(), "p.png")) == 1
    assert images.check_image_file_size(a, {"max_size": 10}) == 0

    def spot(x, colour):
        base = Image.new("RGB", (100, 100), "white")
        ImageDraw.Draw(base).rectangle((x, 45, x + 10, 55), fill=colour)
        return base

    assert images.check_textbox_on_leftside(save(spot(2, "black"), "l.png")) == 1
    assert images.check_textbox_on_leftside(save(spot(60, "black"), "r.png")) == 0
    assert images.check_triangle_position(save(spot(45, "yellow"), "y.png")) == 1
    assert images.check_triangle_position(save(spot(5, "yellow"), "z.png")) == 0
    white = save(spot(45, "black"), "w.png")
    green = Image.new("RGB", (100, 100), (0, 200, 0))
    ImageDraw.Draw(green).rectangle((45, 45, 55, 55), fill="black")
    assert images.check_green_background(save(green, "g.png"), white) == 1
    assert images.check_green_background(white, white) == 0


def test_what_is_no_image_is_refused(tmp_path):
    (tmp_path / "x.png").write_text("no image")
    with pytest.raises(Unreadable):
        images.check_image_size(str(tmp_path / "x.png"), {"width": 1})
