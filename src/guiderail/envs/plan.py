"""From an action to CDP input events at pixels of the screen.

Guarantees: total over the action algebra: every action gives its events or raises ValueError with nothing sent.
A `Draw` in the plan asks for a frame there: movements reach a page's handlers only when a frame is drawn.
"""

from __future__ import annotations

from typing import Final

from guiderail.actions.types import Action, Click, Drag, Key, Move, Scroll, Type, Wait, to_pixel
from guiderail.envs import keys
from guiderail.envs.cdp import Json
from guiderail.envs.scripts import HEIGHT, WIDTH

NOTCH_PX = 40  # one notch of the wheel
MAX_WAIT_S = 60.0
MOUSE, KEYBOARD = "Input.dispatchMouseEvent", "Input.dispatchKeyEvent"
MASK = {"left": 1, "right": 2, "middle": 4}

Event = tuple[str, Json]  # CDP method, parameters
DRAW: Final[Event] = ("", {})


def _moved(x: int, y: int, *, held: bool = False) -> Event:
    return MOUSE, keys.mouse("Moved", x, y, button="left" if held else "none", buttons=1 if held else 0)


def _click(px: int, py: int, button: str, count: int) -> list[Event]:
    if not 1 <= count <= 3:
        raise ValueError(f"click count {count}: must be 1, 2 or 3")
    plan = [_moved(px, py)]
    for i in range(1, count + 1):
        plan.append((MOUSE, keys.mouse("Pressed", px, py, button=button, buttons=MASK[button], count=i)))
        plan.append((MOUSE, keys.mouse("Released", px, py, button=button, count=i)))
    return plan


def _drag(ax: int, ay: int, bx: int, by: int) -> list[Event]:
    plan = [_moved(ax, ay), DRAW, (MOUSE, keys.mouse("Pressed", ax, ay, button="left", buttons=1, count=1))]
    for t in (0.1, 0.5, 0.9, 1.0):
        plan += [_moved(round(ax + t * (bx - ax)), round(ay + t * (by - ay)), held=True), DRAW]
    return [*plan, (MOUSE, keys.mouse("Released", bx, by, button="left", count=1))]


def events(action: Action) -> list[Event]:
    """Input events of `action`, in order.

    Raises ValueError for what a page has no use for: LongPress, Open, Answer, Nav, Finish, an unknown key, a click
    count beyond 3, a wait that is negative or longer than a minute.
    """

    def pixel(x: float, y: float) -> tuple[int, int]:
        return to_pixel(x, y, WIDTH, HEIGHT)

    match action:
        case Click(x, y, button, count):
            return _click(*pixel(x, y), button, count)
        case Move(x, y):
            return [_moved(*pixel(x, y)), DRAW]
        case Drag(x, y, x2, y2):
            return _drag(*pixel(x, y), *pixel(x2, y2))
        case Scroll(x, y, dx, dy):
            px, py = pixel(x, y)
            turn: Json = {"deltaX": dx * NOTCH_PX, "deltaY": dy * NOTCH_PX}
            return [_moved(px, py), DRAW, (MOUSE, keys.mouse("Wheel", px, py) | turn), DRAW]
        case Type(text):
            return [(KEYBOARD, e) for e in keys.type_events(text)]
        case Key(names):
            return [(KEYBOARD, e) for e in keys.chord_events(names)]
        case Wait(seconds):
            if not 0 <= seconds <= MAX_WAIT_S:
                raise ValueError(f"wait of {seconds} s: must be between 0 and {MAX_WAIT_S:g}")
            return []
        case _:
            raise ValueError(f"a browser page has no use for {type(action).__name__}")
