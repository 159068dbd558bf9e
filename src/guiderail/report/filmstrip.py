"""Film strips: the frames of an episode in a row, each with what the agent did drawn on it.

Guarantees: a ring stands where the environment really clicked (the same clamping as `to_pixel`); the last picture is
the screen the episode ended on; text of the model is drawn as plain glyphs, cut to its place, and moves nothing else;
the same episode gives the same bytes. A frame that is not on disk is drawn as an empty card that says so.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from guiderail.actions.types import clamp01
from guiderail.report.style import BAD, GOOD, INK, MUTED, SPLIT_NAME, STAGE_NAME, cause_name

BOX = (440, 420)  # a frame is scaled into this box
GAP, PAD, MIN_CARD = 34, 28, 320
LINE, HEAD = 27, 96
MAX_CARDS = 6
RING = "#e8461e"
ROOM = 52  # pixels about a point that its marks may fill
SUPER = 3  # marks are drawn this much larger and scaled down, for smooth edges


@dataclass(frozen=True)
class Card:
    """One picture of a strip: a PNG (None = not on disk), the action drawn on it, and the lines below it."""

    png: bytes | None
    number: int  # 1-based step, 0 = the final screen
    action: dict[str, Any] | None
    thought: str
    call: str


@lru_cache(maxsize=32)
def typeface(size: int, name: str = "DejaVuSans") -> ImageFont.FreeTypeFont:
    """A face of the fonts that ship with matplotlib."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def plain(text: str) -> str:
    """Text as one line of printable characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def describe(action: dict[str, Any] | None) -> str:
    """A canonical action in a few words, e.g. `click (0.48, 0.25)` or `type "don't"`."""
    if not action:
        return "unreadable"
    kind = str(action.get("kind", "?")).lower()
    if kind == "click":
        name = {2: "double click", 3: "triple click"}.get(action.get("count", 1), "click")
        kind = f"{action.get('button')} {name}" if action.get("button", "left") != "left" else name
    words = [kind]
    if "x" in action:
        words.append(f"({action['x']:.3g}, {action['y']:.3g})")
    if "x2" in action:
        words.append(f"to ({action['x2']:.3g}, {action['y2']:.3g})")
    if "dx" in action:
        words.append(f"by ({action.get('dx')}, {action.get('dy')})")
    for key in ("text", "app"):
        if key in action:
            words.append(json.dumps(str(action[key]), ensure_ascii=False))
    if "keys" in action:
        words.append("+".join(map(str, action["keys"])))
    if "status" in action:
        words.append(str(action["status"]))
    return " ".join(words)


def cut(draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont, width: int, lines: int) -> list[str]:
    """Break `text` into at most `lines` lines of at most `width` pixels, at spaces where possible; "…" marks a cut."""
    rest = plain(text)[:400]
    out: list[str] = []
    while rest and len(out) < lines:
        end = len(rest)
        while end > 1 and draw.textlength(rest[:end], font=font) > width:
            space = rest.rfind(" ", 1, end)
            end = space if space > 0 else end - 1
        out.append(rest[:end].strip())
        rest = rest[end:].strip()
    if rest and out:
        last = out[-1]
        while last and draw.textlength(last + "…", font=font) > width:
            last = last[:-1]
        out[-1] = last + "…"
    return out


def _mark(shown: Image.Image, action: dict[str, Any] | None, number: int) -> None:
    """Draw the ring (and line, for a drag) of an action on `shown` (RGBA)."""
    if not action or "x" not in action:
        return
    size = shown.size
    points = [(action["x"], action["y"])] + ([(action["x2"], action["y2"])] if "x2" in action else [])
    place = [(clamp01(x) * size[0], clamp01(y) * size[1]) for x, y in points]
    left, top = (max(0, int(min(p[i] for p in place)) - ROOM) for i in (0, 1))
    right, bottom = (min(size[i], int(max(p[i] for p in place)) + ROOM) for i in (0, 1))
    layer = Image.new("RGBA", ((right - left) * SUPER, (bottom - top) * SUPER))
    d = ImageDraw.Draw(layer)
    at = [((x - left) * SUPER, (y - top) * SUPER) for x, y in place]
    r = 17 * SUPER
    if len(at) > 1:
        d.line(at, fill="white", width=7 * SUPER)
        d.line(at, fill=RING, width=4 * SUPER)
    for x, y in at:
        d.ellipse((x - r, y - r, x + r, y + r), outline="white", width=7 * SUPER)
        d.ellipse((x - r + SUPER, y - r + SUPER, x + r - SUPER, y + r - SUPER), outline=RING, width=4 * SUPER)
    side = 1 if place[0][0] < size[0] - 48 else -1
    bx, by, b = at[0][0] + side * 25 * SUPER, (max(15.0, place[0][1] - 20) - top) * SUPER, 14 * SUPER
    d.ellipse((bx - b, by - b, bx + b, by + b), fill=RING, outline="white", width=2 * SUPER)
    d.text((bx, by), str(number), font=typeface(17 * SUPER, "DejaVuSans-Bold"), fill="white", anchor="mm")
    small = layer.resize((right - left, bottom - top), Image.Resampling.LANCZOS)
    shown.alpha_composite(small, (left, top))


def draw_card(card: Card) -> Image.Image:
    """A card as a picture: the frame in its box with the action drawn on it."""
    if card.png is None:
        empty = Image.new("RGB", (MIN_CARD, BOX[1]), "#f1f3f5")
        ImageDraw.Draw(empty).text(
            (MIN_CARD / 2, BOX[1] / 2), "frame not kept", font=typeface(19), fill=MUTED, anchor="mm"
        )
        return empty
    with Image.open(io.BytesIO(card.png)) as opened:
        frame = opened.convert("RGB")
    scale = min(BOX[0] / frame.width, BOX[1] / frame.height)
    size = (max(1, round(frame.width * scale)), max(1, round(frame.height * scale)))
    how = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    shown = frame.resize(size, how).convert("RGBA")
    _mark(shown, card.action, card.number)
    return shown.convert("RGB")


def _caption(draw: ImageDraw.ImageDraw, card: Card, width: int) -> list[tuple[str, ImageFont.FreeTypeFont, str]]:
    """The lines below a card: the thought in ink, the action below it in grey."""
    text, mono = typeface(20), typeface(18, "DejaVuSansMono")
    lines = [(t, text, INK) for t in cut(draw, card.thought, text, width, 2)]
    return lines + [(t, mono, MUTED) for t in cut(draw, card.call, mono, width, 2)]


def strip(cards: list[Card], *, title: str, instruction: str, good: bool, verdict: tuple[str, str]) -> Image.Image:
    """Draw a film strip. `title` and `instruction` stand above it; the verdict (word, detail) ends it, green or red."""
    pictures = [draw_card(c) for c in cards]
    widths = [max(MIN_CARD, p.width) for p in pictures]
    tall = max(p.height for p in pictures)
    width = max(2 * PAD + sum(widths) + GAP * (len(cards) - 1), 640)
    colour, bold = (GOOD if good else BAD), typeface(21, "DejaVuSans-Bold")
    ruler = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    captions = [_caption(ruler, c, w) for c, w in zip(cards, widths, strict=True)]
    small = typeface(19)
    captions[-1] = [(verdict[0], bold, colour)] + [
        (t, small, MUTED) for t in cut(ruler, verdict[1], small, widths[-1], 2)
    ]
    canvas = Image.new("RGB", (width, HEAD + tall + 30 + LINE * max(len(c) for c in captions)), "white")
    d = ImageDraw.Draw(canvas)
    d.rounded_rectangle((PAD, 22, PAD + 10, HEAD - 20), 5, fill=colour)
    for y, text, font, fill in ((18, title, bold, INK), (50, f"\u201c{instruction}\u201d", typeface(20), MUTED)):
        for line in cut(d, text, font, width - 2 * PAD - 24, 1):
            d.text((PAD + 24, y), line, font=font, fill=fill)
    x = PAD
    for i, (card, picture, w) in enumerate(zip(cards, pictures, widths, strict=True)):
        left, top = x + (w - picture.width) // 2, HEAD + (tall - picture.height) // 2
        canvas.paste(picture, (left, top))
        last = card.number == 0
        for t in range(3 if last else 2):
            box = (left - 1 - t, top - 1 - t, left + picture.width + t, top + picture.height + t)
            d.rectangle(box, outline=colour if last else "#cdd3da")
        for n, (text, font, fill) in enumerate(captions[i]):
            d.text((x, HEAD + tall + 14 + n * LINE), text, font=font, fill=fill)
        if i + 1 < len(cards):
            cx, cy = x + w + GAP / 2, HEAD + tall / 2
            d.line([(cx - 5, cy - 11), (cx + 6, cy), (cx - 5, cy + 11)], fill="#aab3bc", width=4, joint="curve")
        x += w + GAP
    return canvas


def _load(text: Any) -> list[Any]:
    value = json.loads(text) if isinstance(text, str) and text else []
    return value if isinstance(value, list) else []


def episode_strip(row: dict[str, Any], frames: Path, recipe: str = "") -> Image.Image:
    """The strip of one row of episodes.parquet; `frames` holds <sha256>.png. At most six pictures."""

    def png(sha: Any) -> bytes | None:
        path = frames / f"{sha}.png"
        return path.read_bytes() if sha and str(sha).isalnum() and path.exists() else None

    thoughts, actions, seen = _load(row["thoughts"]), _load(row["actions"]), _load(row["frames"])
    cards = []
    for i, sha in enumerate(seen):
        action = json.loads(actions[i]) if i < len(actions) and actions[i] else None
        thought = thoughts[i] if i < len(thoughts) else ""
        cards.append(Card(png(sha), i + 1, action, thought, describe(action)))
    cards.append(Card(png(row["last_frame"]), 0, None, "", ""))
    if len(cards) > MAX_CARDS:
        cards = cards[: MAX_CARDS - 3] + cards[-3:]
    good = row["kind"] == "success"
    name = STAGE_NAME.get(row["checkpoint"], row["checkpoint"]) + (f" {recipe}" if recipe else "")
    verdict = ("Success", "the page reports the full reward") if good else ("Failure", cause_name(str(row["cause"])))
    title = f"{name} · {SPLIT_NAME.get(row['split'], row['split']).lower()} · {row['template']}"
    return strip(cards, title=title, instruction=str(row["instruction"]), good=good, verdict=verdict)


def save(image: Image.Image, path: Path) -> Path:
    """Write a PNG with a palette (small, and no metadata)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.quantize(192, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
    return path
