"""UI-S1's flat JSON and Qwen2.5-VL's mobile_use against hand-written tables; pixels of a 1092x2408 frame."""

import pytest
from codec_tables import assert_canonical, assert_reads, assert_refuses, bound

from guiderail.actions.codec import get_codec
from guiderail.actions.types import (
    Answer,
    Click,
    Drag,
    Finish,
    Key,
    LongPress,
    Nav,
    Open,
    Parsed,
    Type,
    Wait,
    to_pixel,
)

FLAT, TOOL = bound("ui_s1"), bound("qwen25vl")
MIDDLE = Click(546 / 1092, 1204 / 2408)

TABLE = [
    (MIDDLE, '{"action": "click", "coordinate": [546, 1204]}'),
    (Click(1.0, 1.0), '{"action": "click", "coordinate": [1091, 2407]}'),  # clamped to the last pixel
    (LongPress(0.5, 0.5, 2.0), '{"action": "long_press", "coordinate": [546, 1204], "time": 2}'),
    (Drag(0.5, 0.75, 0.5, 0.25), '{"action": "swipe", "coordinate": [546, 1806], "coordinate2": [546, 602]}'),
    (Type("don't\n"), r'{"action": "type", "text": "don' + r"""'t\n"}"""),
    (Type('a "b" <|im_end|> 你好 😀'), r'{"action": "type", "text": "a \"b\" \u003c|im_end|> 你好 😀"}'),
    (Key(("enter",)), '{"action": "system_button", "button": "Enter"}'),
    (Key(("ctrl", "a")), '{"action": "key", "text": "ctrl+a"}'),
    (Open("Zoho Meeting"), '{"action": "open", "text": "Zoho Meeting"}'),
    (Wait(2.0), '{"action": "wait", "time": 2}'),
    (Wait(0.5), '{"action": "wait", "time": 0.5}'),
    (Answer("42"), '{"action": "answer", "text": "42"}'),
    (Nav("back"), '{"action": "system_button", "button": "Back"}'),
    (Finish("success"), '{"action": "terminate", "status": "success"}'),
    (Finish("failure"), '{"action": "terminate", "status": "failure"}'),
]


@pytest.mark.parametrize("action, call", TABLE, ids=[c for _, c in TABLE])
def test_canonical_text(action, call):
    assert_canonical(FLAT, action, f"<action>\n{call}\n</action>")
    assert_canonical(FLAT, action, f"<think>\nOpen it\n</think>\n<action>\n{call}\n</action>", "Open it")
    tool = '<tool_call>\n{"name": "mobile_use", "arguments": ' + call + "}\n</tool_call>"
    assert_canonical(TOOL, action, tool)
    assert_canonical(TOOL, action, "Action: Open it\n" + tool, "Open it")


CLICK = '<action>{"action": "click", "coordinate": [546, 1204]}</action>'
CALL = '<tool_call>\n{"name": "mobile_use", "arguments": {"action": "click", "coordinate": [546, 1204]}}\n</tool_call>'


@pytest.mark.parametrize(
    "text, action, thought",
    [
        (CLICK, MIDDLE, ""),
        ("<think>\nThe button\nis there.\n</think>\n" + CLICK, MIDDLE, "The button\nis there."),
        ("<think></think>" + CLICK, MIDDLE, ""),
        ("<think>a <action>{} b</think>" + CLICK, MIDDLE, "a <action>{} b"),
        ("I see it.\n" + CLICK, MIDDLE, "I see it."),
        ('<action>\n```json\n{"action": "wait"}\n```\n</action>', Wait(1.0), ""),
        ('<action>{"action":"click","coordinate":[540.54,1204.0]}</action>', Click(540.54 / 1092, 0.5), ""),
        ('<action>{"action": "type", "text": "a</action><action>b"}</action>', Type("a</action><action>b"), ""),
        ('<action>{"action": "system_button", "button": "home"}</action>', Nav("home"), ""),
        ('<action>{"action": "key", "text": "volume_up"}</action>', Key(("volume_up",)), ""),
        ('<action>{"action": "long_press", "coordinate": [0, 0]}</action>', LongPress(0.0, 0.0, 1.0), ""),
        ('<action>{"action": "click", "coordinate": [1092, 2408]}</action>', Click(1.0, 1.0), ""),
        # actions as they stand in AndroidControl's recordings
        ('<action>{"action": "open", "text": "Zoho Meeting"}</action>', Open("Zoho Meeting"), ""),
        (
            '<action>{"action": "click", "coordinate": [540.0, 389.8351648351648]}</action>',
            Click(540 / 1092, 389.8351648351648 / 2408),
            "",
        ),
        (
            '<action>{"action": "swipe", "coordinate": [546.0, 602.0], "coordinate2": [546.0, 1806.0]}</action>',
            Drag(0.5, 0.25, 0.5, 0.75),
            "",
        ),
        (CALL, MIDDLE, ""),
        ("<think>hm</think>\n" + CALL, MIDDLE, "hm"),
        ("Thought: x\nAction: tap it\n" + CALL, MIDDLE, "tap it"),
    ],
)
def test_accepted(text, action, thought):
    assert_reads(FLAT, text, action, thought)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "no <action> block"),
        ('{"action": "wait"}', "no <action> block"),
        (CLICK.removesuffix("</action>"), "not closed by </action>"),
        ('<action>{"action": "click", "coordinate": [546, 12', "not valid JSON"),
        ("<action>{'action': 'wait'}</action>", "not valid JSON"),
        (CLICK + CLICK, "several actions"),
        (CLICK + "\nDone.", "Text after it: 'Done.'"),
        ("<action>[1]</action>", 'object with a string "action"'),
        ('<action>{"action": "tap", "coordinate": [1, 2]}</action>', "Unknown action 'tap'"),
        ('<action>{"action": "click"}</action>', "click lacks the argument coordinate"),
        ('<action>{"action": "click", "coordinate": [1, 2], "text": "x"}</action>', "no argument 'text'"),
        ('<action>{"action": "click", "coordinate": [1204, 546, 3]}</action>', "must be [x, y]"),
        ('<action>{"action": "click", "coordinate": "546, 1204"}</action>', "must be [x, y]"),
        ('<action>{"action": "click", "coordinate": [1204, 546.5]}</action>', "is outside [0, 1092] x [0, 2408]"),
        ('<action>{"action": "click", "coordinate": [-1, 5]}</action>', "is outside"),
        ('<action>{"action": "swipe", "coordinate": [1, 5]}</action>', "lacks the argument coordinate2"),
        ('<action>{"action": "system_button", "button": "Power"}</action>', "not one of Back, Home, Menu, Enter"),
        ('<action>{"action": "wait", "time": NaN}</action>', "not a finite number"),
        ('<action>{"action": "wait", "wait": 1, "wait": 2}</action>', "given twice"),
        ('<action>{"action": "terminate", "status": "done"}</action>', "not one of success, failure"),
        (CALL.replace("mobile_use", "computer_use"), "Unknown function 'computer_use'"),
    ],
)
def test_refused(text, reason):
    assert_refuses(FLAT, text, reason)


def test_qwen_reads_only_its_own_envelope():
    assert_reads(TOOL, "Action: tap it\n" + CALL, MIDDLE, "tap it")
    assert_refuses(TOOL, CLICK, "no <tool_call> block")
    assert_refuses(TOOL, CALL + CALL, "several tool calls")


def test_without_a_screen_no_point_is_read_or_written():
    codec = get_codec("ui_s1")
    assert_refuses(codec, CLICK, "unknown size")
    with pytest.raises(ValueError, match="unknown size"):
        codec.render(MIDDLE)
    assert codec.parse('<action>{"action": "wait"}</action>') == Parsed(Wait(1.0))
    with pytest.raises(ValueError, match="0x5"):
        codec.at(0, 5)


@pytest.mark.parametrize("size", [(1, 1), (29, 100), (1092, 2408), (3840, 2160), (7919, 4999)])
def test_every_pixel_is_read_back_and_clicked(size):
    """Fractions hit the very pixel that was named, although 29 / 100 * 100 < 29."""
    width, height = size
    codec = get_codec("ui_s1").at(width, height)
    for p in range(max(size)):
        x, y = min(p, width - 1), min(p, height - 1)
        parsed = codec.parse(f'<action>{{"action": "click", "coordinate": [{x}, {y}]}}</action>')
        assert to_pixel(parsed.action.x, parsed.action.y, width, height) == (x, y)
        assert abs(parsed.action.x - x / width) < 1e-15 and codec.quantise(parsed.action) == parsed.action
