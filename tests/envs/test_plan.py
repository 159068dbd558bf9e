"""Actions become the events a mouse and a US keyboard would send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guiderail.actions.types import Click, Drag, Key, Type
from guiderail.envs import keys, page, plan


def test_a_double_click_at_the_far_corner_stays_on_the_screen() -> None:
    events = [e for _, e in plan.events(Click(1.0, 1.0, count=2))]
    assert {(e["x"], e["y"]) for e in events} == {(159, 223)}
    assert [(e["type"], e["clickCount"]) for e in events[1:]] == [
        ("mousePressed", 1),
        ("mouseReleased", 1),
        ("mousePressed", 2),
        ("mouseReleased", 2),
    ]


def test_a_right_click_and_a_drag() -> None:
    right = [e for _, e in plan.events(Click(0.5, 0.5, button="right"))]
    assert [(e["button"], e["buttons"]) for e in right[1:]] == [("right", 2), ("right", 0)]
    drag = [e for m, e in plan.events(Drag(0, 0, 0.5, 0.5)) if m]
    assert (drag[1]["type"], drag[-1]["type"]) == ("mousePressed", "mouseReleased")
    assert (drag[-1]["x"], drag[-1]["y"]) == (80, 112)
    assert all(e["buttons"] == 1 for e in drag[2:-1])


@pytest.mark.parametrize(
    ("char", "code", "virtual", "shift"),
    [
        ("a", "KeyA", 65, 0),
        ("A", "KeyA", 65, 8),
        ("'", "Quote", 222, 0),
        ("(", "Digit9", 57, 8),
        ("?", "Slash", 191, 8),
    ],
)
def test_characters_carry_the_codes_of_a_us_keyboard(char: str, code: str, virtual: int, shift: int) -> None:
    down, up = keys.type_events(char)
    assert (down["code"], down["windowsVirtualKeyCode"], down["modifiers"], down["text"]) == (
        code,
        virtual,
        shift,
        char,
    )
    assert (down["type"], up["type"]) == ("keyDown", "keyUp")


def test_a_chord_is_pressed_in_order_and_released_in_reverse() -> None:
    events = keys.chord_events(("Ctrl", "shift", "a"))
    assert [(e["type"][-4:].lower().strip("y"), e["key"]) for e in events] == [
        ("down", "Control"),
        ("down", "Shift"),
        ("down", "a"),
        ("eyup", "a"),
        ("eyup", "Shift"),
        ("eyup", "Control"),
    ]
    assert events[2]["modifiers"] == 2 + 8 and "text" not in events[2]
    assert events[-1]["modifiers"] == 0


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=30))
def test_typed_text_is_the_text_inserted(text: str) -> None:
    assert "".join(e["text"] for _, e in plan.events(Type(text)) if e["type"] == "keyDown") == text


@given(st.text(max_size=12))
def test_any_key_name_is_pressed_or_refused(name: str) -> None:
    try:
        events = plan.events(Key((name,)))
    except ValueError as error:
        assert repr(name) in str(error)
    else:
        assert len(events) == 2


@pytest.mark.parametrize("name", ["../core/core", "nosuch", ""])
def test_only_pages_of_the_package_are_opened(name: str) -> None:
    with pytest.raises(ValueError, match="no page"):
        page.page_url(name)
