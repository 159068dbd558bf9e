"""The matcher at its edges, its laws over the whole algebra, step rewards, and the reference's faults by name."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guiderail.actions.types import (
    Answer,
    Click,
    Drag,
    Finish,
    Key,
    LongPress,
    Move,
    Nav,
    Open,
    Scroll,
    Type,
    Wait,
)
from guiderail.rewards.match import Match, edit_distance, match, same_text, scaled
from guiderail.rewards.match_reference import reference_sop_match, reference_train_match
from guiderail.rewards.steps import step_reward
from guiderail.tasks.recorded import Expected, RecordedStep, box, gesture

W, H = 1080, 2400
TIGHT = (456 / W, 2211 / H, 624 / W, 2337 / H)
HERE = Click(540 / W, 1200 / H)


def exact(predicted, expected, *boxes, **kw):
    return match(predicted, Expected(expected, boxes, **kw), W, H).exact


@pytest.mark.parametrize(
    ("x", "y", "hit"), [(583, 1200, True), (584, 1200, False), (540, 1296, True), (540, 1297, False), (497, 1200, True)]
)
def test_distance_by_hand(x, y, hit):
    """43 pixels sideways are 0.0398 of 1080; 96 downwards exactly 0.04 of 2400, which float arithmetic puts above."""
    assert exact(Click(x / W, y / H), HERE) is hit
    assert exact(LongPress(x / W, y / H), LongPress(HERE.x, HERE.y)) is hit


@pytest.mark.parametrize(
    ("x", "y", "hit"),
    [
        (440, 2200, True),
        (640, 2349, True),
        (438, 2274, False),
        (642, 2274, False),
        (540, 2151, False),
        (540, 2350, True),
    ],
)
def test_a_box_is_widened_by_a_fifth(x, y, hit):
    """x in [439.2, 640.8], y in [2198.4, 2349.6]; (540, 2350) is near the point, (540, 2151) neither."""
    assert exact(Click(x / W, y / H), Click(540 / W, 2273 / H), TIGHT) is hit
    assert scaled(TIGHT, 1.2) == pytest.approx((439.2 / W, 2198.4 / H, 640.8 / W, 2349.6 / H))


def test_the_tightest_box_counts_whichever_way_its_corners_lie_and_however_many_there_are():
    container, other = (0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 0.1, 0.1)
    swapped = (TIGHT[2], TIGHT[3], TIGHT[0], TIGHT[1])
    point, inside, outside = Click(540 / W, 2273 / H), Click(445 / W, 2340 / H), Click(0.05, 0.05)
    for b in (TIGHT, swapped):
        boxes = (container, b, other, (0.2, 0.2, 0.3, 0.3))
        assert exact(inside, point, *boxes) and not exact(outside, point, *boxes)
    row = (0.0, 2200 / H, 1.0, 2350 / H)  # a list row around the button: no container, but not the tightest
    assert exact(Click(0.1, 2273 / H), point, row) and not exact(Click(0.1, 2273 / H), point, row, TIGHT)
    assert not exact(Click(0.5, 0.5), point, container), "a container of the whole screen is no target"
    assert box((0.9, 0.2, 0.1, 0.8)) == (0.1, 0.2, 0.9, 0.8)


def test_kinds_buttons_and_grounding():
    found = match(Click(0.9, 0.9), Expected(HERE), W, H)
    assert found == Match(True, False, False, "beside the target")
    assert match(HERE, Expected(HERE), W, H).grounding is True
    assert match(Type("a"), Expected(HERE), W, H) == Match(False, False, None, "another kind of action")
    assert match(None, Expected(HERE), W, H) == Match(False, False, None, "nothing could be read")
    double = match(Click(HERE.x, HERE.y, count=2), Expected(HERE), W, H)
    assert (double.exact, double.grounding) == (False, True)
    assert not exact(LongPress(HERE.x, HERE.y), HERE) and not exact(HERE, LongPress(HERE.x, HERE.y))


def test_swipes_and_the_wheel_mean_where_the_content_goes():
    up, down, left = Drag(0.5, 0.75, 0.5, 0.25), Drag(0.5, 0.25, 0.5, 0.75), Drag(0.9, 0.5, 0.1, 0.5)
    assert exact(Drag(0.3, 0.9, 0.31, 0.8), up) and not exact(down, up) and not exact(left, up)
    assert exact(Scroll(0.5, 0.5, dy=3), up) and not exact(Scroll(0.5, 0.5, dy=-3), up)
    assert exact(Scroll(0.5, 0.5, dx=2, dy=1), left) and exact(left, Scroll(0.5, 0.5, dx=1))
    assert exact(up, down, direction="down"), "a stated direction wins over the coordinates"
    for nowhere in (Drag(0.5, 0.5, 0.5, 0.5), Scroll(0.5, 0.5)):
        assert not exact(nowhere, up) and not exact(up, nowhere)
    assert gesture(0, 0, 0.2, 0.1, W, H) == "down", "240 pixels down, 216 to the right"


@pytest.mark.parametrize(
    ("expected", "predicted", "same"),
    [
        ("Zoho Meeting", " zoho  MEETING.", True),
        ("Zoho Meeting", "Zoho Meetin", True),
        ("Zoho Meeting", "Zoho Meet", False),
        ("Zoho Meeting", "", False),
        ("Zoho Meeting", "o", False),
        ("", "", True),
        ("", "a", False),
        ("10:30 am", "10:40 am", False),
        ("2023", "2024", False),
        ("caf\u00e9", "cafe\u0301", True),
        ("don't", "dont", True),
        ("cat", "hat", False),
    ],
)
def test_texts(expected, predicted, same):
    assert same_text(expected, predicted) is same
    for kind in (Type, Open, Answer):
        assert exact(kind(predicted), kind(expected)) is same
    assert not exact(Answer(expected), Type(expected))
    assert not same_text("a", "", 0.0) and not same_text("", "a", 0.0)


def test_edit_distance_by_hand():
    assert edit_distance("kitten", "sitting") == 3 and edit_distance("", "ab") == 2 and edit_distance("ab", "ab") == 0


def test_an_app_is_opened_by_its_icon_too():
    icon = (0.1, 0.1, 0.2, 0.15)
    assert exact(Click(0.15, 0.12), Open("Mail"), icon) and not exact(Click(0.5, 0.5), Open("Mail"), icon)
    assert not exact(Click(0.15, 0.12), Open("Mail")) and exact(Open("mail"), Open("Mail"), icon)


def test_the_rest():
    assert exact(Wait(9.0), Wait(1.0)) and exact(Key(("enter",)), Key(("enter",))) and exact(Nav("back"), Nav("back"))
    assert not exact(Key(("a",)), Key(("b",))) and not exact(Nav("home"), Nav("back"))
    assert exact(Finish("success"), Finish("success")) and not exact(Finish("failure"), Finish("success"))
    assert exact(Move(0.5, 0.51), Move(0.5, 0.5)) and not exact(Move(0.5, 0.6), Move(0.5, 0.5))


F = st.floats(0, 1)
ACTIONS = st.one_of(
    st.builds(Click, F, F, st.sampled_from(["left", "right"]), st.integers(1, 3)),
    st.builds(Move, F, F),
    st.builds(LongPress, F, F),
    st.builds(Drag, F, F, F, F),
    st.builds(Scroll, F, F, st.integers(-9, 9), st.integers(-9, 9)),
    st.builds(Type, st.text(max_size=9)),
    st.builds(Open, st.text(max_size=9)),
    st.builds(Answer, st.text(max_size=9)),
    st.builds(Key, st.tuples(st.text(max_size=3))),
    st.builds(Wait, st.floats(0, 9)),
    st.builds(Nav, st.sampled_from(["back", "home"])),
    st.builds(Finish, st.sampled_from(["success", "failure"])),
)


@given(ACTIONS, st.lists(st.tuples(F, F, F, F), max_size=5))
def test_the_experts_own_action_always_matches(action, boxes):
    nowhere = isinstance(action, Drag) and (action.x, action.y) == (action.x2, action.y2)
    nowhere |= isinstance(action, Scroll) and not (action.dx or action.dy)
    assert exact(action, action, *boxes) is not nowhere


@given(ACTIONS, ACTIONS, st.lists(st.tuples(F, F, F, F), max_size=5))
def test_total_and_exact_implies_type(predicted, expected, boxes):
    found = match(predicted, Expected(expected, tuple(boxes)), W, H)
    assert found.type or not found.exact
    assert bool(found.why) is not found.exact


@given(st.builds(Drag, F, F, F, F).filter(lambda a: math.hypot(a.x - a.x2, a.y - a.y2) > 1e-3))
def test_a_reversed_swipe_never_matches(a):
    assert not exact(Drag(a.x2, a.y2, a.x, a.y), a)


EXACT, TYPE, OTHER = Match(True, True), Match(True, False), Match(False, False)


@pytest.mark.parametrize(
    ("found", "parsed", "thought", "code", "paper"),
    [
        (EXACT, True, True, 1.0, 1.0),
        (TYPE, True, True, 0.55, 0.5),
        (OTHER, True, True, 0.19, 0.1),
        (EXACT, True, False, 0.9, 0.0),
        (TYPE, True, False, 0.45, 0.0),
        (OTHER, True, False, 0.09, 0.0),
        (OTHER, False, True, 0.0, 0.0),
        (OTHER, False, False, 0.0, 0.0),
    ],
)
def test_step_rewards_by_hand(found, parsed, thought, code, paper):
    assert step_reward(found, parsed, thought) == pytest.approx(code)
    assert step_reward(found, parsed, thought, "paper") == pytest.approx(paper)
    with pytest.raises(ValueError, match="rule"):
        step_reward(found, parsed, thought, "book")


def recorded(**raw):
    return RecordedStep("f", W, H, Expected(Wait()), raw={"action_content": raw})


def test_the_reference_has_its_faults_here_and_only_here():
    text = recorded(action="type", text="hello")
    assert reference_train_match(Type(""), text).exact and reference_sop_match(Type(""), text).exact
    assert reference_train_match(Answer("hello"), recorded(action="answer", text="hello")) == Match(False, False)
    up = recorded(action="swipe", coordinate=[540, 1800], coordinate2=[540, 600])
    finger, other = Drag(0.5, 0.75, 0.5, 0.25), Drag(0.5, 0.25, 0.5, 0.75)
    assert not reference_train_match(finger, up).exact and reference_train_match(other, up).exact
    assert reference_sop_match(finger, up).exact and reference_sop_match(other, up).exact
    click = recorded(action="click", coordinate=[540, 1200], bbox=[360, 1080, 720, 1320])
    corner = Click(350 / W, 1200 / H)
    assert reference_train_match(corner, click).exact and not reference_sop_match(corner, click).exact
    edge = recorded(action="click", coordinate=[540, 1200])
    assert not reference_sop_match(Click(0.5, 1296 / H), edge).exact  # 0.040000000000000036
    with pytest.raises(NotImplementedError):
        reference_sop_match(Finish(), recorded(action="terminate", status="success"))
