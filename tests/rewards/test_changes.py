"""What is measured of a step: exact pixels, near the point or not, and what a judge is told of it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guiderail.actions.types import Click, Drag, Finish, Key, LongPress, Move, Scroll, Type
from guiderail.rewards.changes import NOISE, change_of, repeated
from guiderail.rewards.process import StepContext, point_of
from guiderail.rewards.rubrics import long_parts, short_parts

BLANK = np.zeros((50, 100, 3), np.uint8)


def step(**more) -> StepContext:
    made = {
        "instruction": "go", "history": (), "before": "a", "action": "x", "after": "b", "kind": "act", "width": 100,
        "height": 50, "key": "k", "said": "click", "point": (0.5, 0.5),
    }  # fmt: skip
    return StepContext(**(made | more))


def change(after, **more):
    return change_of(step(**more), {"a": BLANK, "b": after}.__getitem__)


def dot(x, y, value=255):
    made = BLANK.copy()
    made[y, x, 1] = value
    return made


def test_where_the_screen_changed():
    """The point is pixel (50, 25); near reaches round(0.075 * 100) = 8 pixels each way (7.5 rounds to even)."""
    assert change(dot(50, 25)) == "here"
    assert change(dot(58, 33)) == "here" and change(dot(42, 17)) == "here"
    assert change(dot(59, 25)) == "away" and change(dot(50, 34)) == "away" and change(dot(41, 25)) == "away"
    assert change(dot(0, 0)) == "away" and change(dot(3, 3), point=(0.0, 0.0)) == "here"
    assert change(dot(99, 49), point=(1.0, 1.0)) == "here"  # a point on the border
    assert change(dot(0, 0), point=None) == "changed"
    assert change(np.zeros((60, 100, 3), np.uint8)) == "changed"


def test_no_change():
    never = {}.__getitem__  # equal frames are not read
    assert change_of(step(after="a"), never) == "same"
    assert change_of(step(after="a", ended=True), never) == "unseen"
    assert change(BLANK, ended=True) == "same"  # looked at again
    assert change(dot(50, 25, NOISE)) == "same" and change(dot(50, 25, NOISE + 1)) == "here"


@given(st.integers(0, 99), st.integers(0, 49), st.floats(0, 1), st.floats(0, 1))
def test_here_is_the_window(x, y, px, py):
    near = abs(int(px * 100) - x) <= 8 and abs(int(py * 50) - y) <= 8
    assert change(dot(x, y), point=(px, py)) == ("here" if near else "away")


def test_points_of_actions():
    assert [point_of(a) for a in (Click(0.1, 0.2), Move(0.1, 0.2), LongPress(0.1, 0.2), Scroll(0.1, 0.2, 0, 1))] == [
        (0.1, 0.2)
    ] * 4
    assert point_of(Drag(0.1, 0.2, 0.3, 0.4)) == (0.3, 0.4)
    assert [point_of(a) for a in (Type("x"), Key(("a",)), Finish("success"))] == [None] * 3


@pytest.mark.parametrize(
    ("change", "short", "long"),
    [
        ("same", "Nothing changed.", "equal, pixel for pixel"),
        ("here", "Changed here.", "changed where the step acted"),
        ("away", "Changed away.", "not near the point"),
        ("changed", "Changed.", "The screen changed."),
        ("unseen", "Ended.", "was not seen"),
    ],
)
def test_judges_are_told(change, short, long):
    assert short_parts(step(), change)[2] == f"\n{short}" and long in long_parts(step(), change)[2]
    said = replace(step(), history=("wait", "click"))
    assert repeated(said) and not repeated(replace(said, history=("wait",)))
    assert short_parts(said, change)[2] == f"\n{short} Again."
    assert "same of an earlier step" in long_parts(said, change)[2]
