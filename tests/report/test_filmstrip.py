"""Film strips: the ring stands where the click went, and text cannot move anything."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageColor, ImageDraw

from guiderail.report import filmstrip
from guiderail.report.filmstrip import HEAD, PAD, RING, Card, cut, describe, plain, strip


def white(width: int = 160, height: int = 210) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), "white").save(out, "PNG")
    return out.getvalue()


def click(x: float, y: float) -> dict[str, object]:
    return {"kind": "Click", "x": x, "y": y, "button": "left", "count": 1}


def draw(cards: list[Card], **words: str) -> np.ndarray:
    text = {"title": "RL", "instruction": "Click.", **words}
    return np.asarray(strip(cards, **text, good=True, verdict=("Success", "")))  # type: ignore[arg-type]


@pytest.mark.parametrize(("x", "y"), [(0.25, 0.5), (0.6, 0.3)])
def test_ring_is_centred_on_the_click(x: float, y: float) -> None:
    pixels = draw([Card(white(), 1, click(x, y), "", ""), Card(white(), 0, None, "", "")]).astype(int)
    near = np.abs(pixels - np.array(ImageColor.getrgb(RING))).sum(axis=2) < 60
    ys, xs = np.nonzero(near)
    cx, cy = PAD + x * 320, HEAD + y * 420  # 160x210 fits the box at twice its size
    radius = np.hypot(xs - cx, ys - cy)
    ring = radius < 19  # the number's badge lies further out
    assert ring.sum() > 150 and radius.min() > 10
    assert xs[ring].mean() == pytest.approx(cx, abs=1.5) and ys[ring].mean() == pytest.approx(cy, abs=1.5)


def test_points_off_the_screen_are_drawn_at_its_edge() -> None:
    inside = draw([Card(white(), 1, click(1.0, 1.0), "", ""), Card(white(), 0, None, "", "")])
    outside = draw([Card(white(), 1, click(7.0, 1.5), "", ""), Card(white(), 0, None, "", "")])
    assert (inside == outside).all()


def test_text_changes_no_size_but_the_caption_height() -> None:
    card = Card(white(), 1, click(0.5, 0.5), "x" * 5000 + "\n" * 50, "y" * 5000)
    long = draw([card, Card(None, 0, None, "", "")], title="t" * 3000, instruction="$\\alpha" * 400)
    short = draw([Card(white(), 1, click(0.5, 0.5), "a", "b"), Card(None, 0, None, "", "")])
    assert long.shape[1] == short.shape[1] and long.shape[0] - short.shape[0] == 2 * filmstrip.LINE


def test_same_episode_same_bytes(tmp_path) -> None:  # type: ignore[no-untyped-def]
    for name in "ab":
        image = strip(
            [Card(white(), 0, None, "", "")], title="t", instruction="i", good=False, verdict=("Failure", "x")
        )
        filmstrip.save(image, tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (None, "unreadable"),
        ({"kind": "Click", "x": 0.475, "y": 0.25}, "click (0.475, 0.25)"),
        ({"kind": "Click", "x": 0, "y": 1, "button": "right", "count": 2}, "right double click (0, 1)"),
        ({"kind": "Type", "text": 'don"t'}, 'type "don\\"t"'),
        ({"kind": "Key", "keys": ["ctrl", "a"]}, "key ctrl+a"),
        ({"kind": "Drag", "x": 0.1, "y": 0.2, "x2": 0.3, "y2": 0.4}, "drag (0.1, 0.2) to (0.3, 0.4)"),
        ({"kind": "Finish", "status": "failure"}, "finish failure"),
    ],
)
def test_describe(action: dict[str, object] | None, text: str) -> None:
    assert describe(action) == text


def test_cut_keeps_words_and_marks_the_cut() -> None:
    d = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    font = filmstrip.typeface(20)
    lines = cut(d, "click the checkbox and then the button", font, 170, 2)
    assert len(lines) == 2 and lines[1].endswith("…") and all(d.textlength(x, font=font) <= 170 for x in lines)
    assert cut(d, "Ok", font, 170, 2) == ["Ok"] and cut(d, "", font, 170, 2) == []


def test_plain_drops_control_characters() -> None:
    assert plain("a\x00b\u202ec\n\td") == "a b c d"
