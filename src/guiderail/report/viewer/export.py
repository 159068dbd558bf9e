"""An episode as a file to send: a GIF, or one HTML page that needs nothing else.

Guarantees: the HTML holds its pictures, no script, and a policy that forbids loading anything; every stored text is
escaped. The GIF shows each screen with the action drawn on it and what was thought and done below, then the last
screen; screens that were not kept are cards that say so. The same episode gives the same bytes.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from PIL import Image, ImageDraw

from guiderail.report import filmstrip
from guiderail.report.filmstrip import Card, cut
from guiderail.report.style import BAD, GOOD, INK, MUTED

Frames = Callable[[str], bytes | None]
TEMPLATE = Path(__file__).with_name("export.html")
STEP_MS, LAST_MS = 1400, 2600
MAX_STEPS = 200
PAD, LINE, LINES = 20, 26, 4


def gif(episode: Mapping[str, Any], frames: Frames) -> bytes:
    """The episode as an animation; at most MAX_STEPS steps."""
    steps = episode["steps"][:MAX_STEPS]
    cards = [_card(s, frames) for s in steps] + [Card(_png(episode["last_frame"], frames), 0, None, "", "")]
    pictures = [filmstrip.draw_card(c) for c in cards]
    width = max(p.width for p in pictures) + 2 * PAD
    tall = max(p.height for p in pictures)
    good = episode["outcome"]["kind"] == "success"
    made = []
    for n, (card, picture) in enumerate(zip(cards, pictures, strict=True)):
        canvas = Image.new("RGB", (width, tall + LINE * (LINES + 2) + 2 * PAD), "white")
        d = ImageDraw.Draw(canvas)
        text, small = filmstrip.typeface(19), filmstrip.typeface(17)
        for i, line in enumerate(cut(d, str(episode["instruction"]), text, width - 2 * PAD, 2)):
            d.text((PAD, PAD // 2 + i * LINE), line, font=text, fill=INK)
        top = LINE * 2 + PAD
        canvas.paste(picture, ((width - picture.width) // 2, top + (tall - picture.height) // 2))
        below = top + tall + PAD // 2
        if card.number:
            lines = [(t, text, INK) for t in cut(d, card.thought, text, width - 2 * PAD, 2)]
            lines += [
                (t, small, MUTED) for t in cut(d, f"{n + 1}/{len(steps)}  {card.call}", small, width - 2 * PAD, 2)
            ]
        else:
            verdict = f"{episode['outcome']['kind']}: {str(episode['outcome']['cause']).replace('_', ' ')}"
            lines = [(t, text, GOOD if good else BAD) for t in cut(d, verdict, text, width - 2 * PAD, 2)]
        for i, (line, font, fill) in enumerate(lines):
            d.text((PAD, below + i * LINE), line, font=font, fill=fill)
        made.append(canvas.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE))
    out = io.BytesIO()
    times = [STEP_MS] * (len(made) - 1) + [LAST_MS]
    made[0].save(out, "GIF", save_all=True, append_images=made[1:], duration=times, loop=0, disposal=2)
    return out.getvalue()


def html(episode: Mapping[str, Any], frames: Frames) -> str:
    """The episode as a page of its own."""
    env = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    cards = [_card(s, frames) for s in episode["steps"]]
    return env.from_string(TEMPLATE.read_text()).render(
        e={**episode, "instruction": _shown(episode["instruction"])},
        steps=[
            {
                "number": c.number, "image": _inline(c), "there": c.png is not None, "thought": _shown(s["thought"]),
                "text": _shown(s["text"]), "action": _shown(s["action_text"]), "problem": _shown(s["parse_error"]),
                "facts": _facts(s),
            }
            for c, s in zip(cards, episode["steps"], strict=True)
        ],
        last=_inline(Card(_png(episode["last_frame"], frames), 0, None, "", "")),
        detail=_shown(episode["outcome"]["detail"]),
    )  # fmt: skip


def _facts(step: Mapping[str, Any]) -> list[str]:
    found = []
    if step["advantage"] is not None:
        found.append(f"advantage {step['advantage']:+.3f}")
    if step["votes"]:
        found.append(f"votes {step['votes']['valid']} ({step['votes']['invalid']} invalid)")
    if step["tokens"]:
        found.append(f"{len(step['tokens']['ids'])} tokens, log-prob {sum(step['tokens']['behaviour']):.2f}")
    if step["seconds_policy"] is not None:
        found.append(f"policy {step['seconds_policy']:.2f} s, environment {step['seconds_env']:.2f} s")
    return found


def _shown(text: Any) -> str:
    """Text that a page can hold: controls and what turns the direction of writing become visible."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in str(text or ""))


def _card(step: Mapping[str, Any], frames: Frames) -> Card:
    return Card(
        _png(step["frame"], frames), step["step"] + 1, step["action"], str(step["thought"] or ""),
        step["action_text"] or "unreadable",
    )  # fmt: skip


def _png(sha: str, frames: Frames) -> bytes | None:
    return frames(sha) if sha else None


def _inline(card: Card) -> str:
    out = io.BytesIO()
    filmstrip.draw_card(card).quantize(192, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
