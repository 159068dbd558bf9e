"""The computer_use codec against hand-written tables: Qwen's own layout, and what the reference agent gets wrong."""

import json

import pytest

from guiderail.actions.codec import get_codec
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
    Parsed,
    ParseFailure,
    Scroll,
    Type,
    Wait,
    to_pixel,
)

CODEC = get_codec("qwen3vl")


def call(arguments: str) -> str:
    return '<tool_call>\n{"name": "computer_use", "arguments": ' + arguments + "}\n</tool_call>"


@pytest.mark.parametrize(
    "action, arguments",
    [
        (Click(0.475, 0.25), '{"action": "left_click", "coordinate": [475, 250]}'),
        (Click(1.0, 0.0, "right"), '{"action": "right_click", "coordinate": [1000, 0]}'),
        (Click(1 / 3, 2 / 3, "middle"), '{"action": "middle_click", "coordinate": [333, 667]}'),
        (Click(0.5, 0.5, count=2), '{"action": "double_click", "coordinate": [500, 500]}'),
        (Click(0.5, 0.5, count=3), '{"action": "triple_click", "coordinate": [500, 500]}'),
        (Click(0.5, 0.5, "right", 2), '{"action": "right_click", "coordinate": [500, 500], "count": 2}'),
        (Move(0.1, 0.2), '{"action": "mouse_move", "coordinate": [100, 200]}'),
        (
            Drag(0.1, 0.2, 0.3, 0.4),
            '{"action": "left_click_drag", "start_coordinate": [100, 200], "coordinate": [300, 400]}',
        ),
        (Scroll(0.5, 0.5, 0, 3), '{"action": "scroll", "coordinate": [500, 500], "pixels": -3}'),
        (Scroll(0.5, 0.5, -2, 0), '{"action": "hscroll", "coordinate": [500, 500], "pixels": -2}'),
        (Scroll(0.5, 0.5, 1, 2), '{"action": "scroll", "coordinate": [500, 500], "pixels": -2, "hpixels": 1}'),
        (Type("don't\n"), r'{"action": "type", "text": "don' + r"""'t\n"}"""),
        (Type("</tool_call>é"), r'{"action": "type", "text": "\u003c/tool_call>é"}'),
        (Key(("ctrl", "a")), '{"action": "key", "keys": ["ctrl", "a"]}'),
        (LongPress(0.5, 0.25, 1.5), '{"action": "long_press", "coordinate": [500, 250], "time": 1.5}'),
        (Wait(1.0), '{"action": "wait", "time": 1}'),
        (Wait(0.5), '{"action": "wait", "time": 0.5}'),
        (Open("Files"), '{"action": "open", "text": "Files"}'),
        (Answer("42"), '{"action": "answer", "text": "42"}'),
        (Nav("back"), '{"action": "system_button", "button": "Back"}'),
        (Finish("success"), '{"action": "terminate", "status": "success"}'),
        (Finish("failure"), '{"action": "terminate", "status": "failure"}'),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_canonical_text(action, arguments):
    assert CODEC.render(action) == call(arguments)
    assert CODEC.render(action, "Open it") == "Action: Open it\n" + call(arguments)
    assert json.loads(arguments)["action"]


OK, CALL = Click(0.5, 0.25), call('{"action": "left_click", "coordinate": [500, 250]}')


@pytest.mark.parametrize(
    "text, action, thought",
    [
        (CALL.replace("\n", ""), OK, ""),  # the reference reads no action from one line
        ("Action: Open it\n" + CALL, OK, "Open it"),
        ("action:Open it\r\n\r\n" + CALL + "\n", OK, "Open it"),
        ("Hm. I think\nAction: wrong\nno:\nAction: Open it\n" + CALL, OK, "Open it"),  # the reference takes the first
        ("I see a button.\n" + CALL, OK, "I see a button."),
        ("<think>try <tool_call>{} first\nAction: no</think>\n\nAction: Open it\n" + CALL, OK, "Open it"),
        ("<think>only this</think>" + CALL, OK, "only this"),
        (call('{"coordinate": [500.0, 250], "action": "left_click"}'), OK, ""),
        (call('{"action": "left_click", "coordinate": [0, 0.5]}'), Click(0.0, 0.0005), ""),
        (call('{"action": "type", "text": "a</tool_call><tool_call>b"}'), Type("a</tool_call><tool_call>b"), ""),
        (call(r'{"action": "type", "text": "\ud83d\ude00\ud800"}'), Type("😀\ud800"), ""),
        (call('{"action": "type", "text": "' + "don't < 3" + '"}'), Type("don't < 3"), ""),  # reference: invalid Python
        (call('{"action": "key", "keys": "Ctrl+A"}'), Key(("ctrl", "A")), ""),
        (call('{"action": "key", "keys": ["Enter"]}'), Key(("enter",)), ""),
        (call('{"action": "scroll", "pixels": -5}'), Scroll(0.5, 0.5, 0, 5), ""),
        (call('{"action": "hscroll", "pixels": 5}'), Scroll(0.5, 0.5, 5, 0), ""),
        (call('{"action": "triple_click", "coordinate": [1, 2]}'), Click(0.001, 0.002, count=3), ""),
        (call('{"action": "wait"}'), Wait(1.0), ""),
        (call('{"action": "system_button", "button": "Recent"}'), Nav("recent"), ""),
    ],
)
def test_accepted(text, action, thought):
    assert CODEC.parse(text) == Parsed(action, thought)


@pytest.mark.parametrize("n", [0, 1, 500, 998, 999, 1000])
@pytest.mark.parametrize("width", [160, 1280, 1920, 3840])
def test_coordinates_stay_on_the_screen(n, width):
    """The reference divides by 999: 999 lands on pixel `width`, 1000 beyond it."""
    parsed = CODEC.parse(call(json.dumps({"action": "left_click", "coordinate": [n, n]})))
    assert isinstance(parsed, Parsed) and isinstance(parsed.action, Click)
    px, py = to_pixel(parsed.action.x, parsed.action.y, width, width)
    assert px == py == min(n * width // 1000, width - 1)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "no <tool_call> block"),
        ('{"name": "computer_use", "arguments": {"action": "wait"}}', "no <tool_call> block"),
        (CALL + CALL, "several tool calls"),  # the reference runs them all
        (CALL + "\nDone!", "Text after it: 'Done!'"),
        (CALL.removesuffix("</tool_call>"), "not closed"),
        (CALL.replace("]}}", "]}"), "not valid JSON"),
        (call("{'action': 'wait'}"), "not valid JSON"),
        (call('{"action": "wait", "time": NaN}'), "NaN is not a finite number"),
        (call('{"action": "wait", "time": -Infinity}'), "-Infinity is not a finite number"),
        (call('{"action": "wait", "time": 1e999}'), "seconds is not a finite number"),
        (call('{"action": "wait", "action": "wait"}'), "'action' is given twice"),
        (call('{"action": "type", "text": "a\nb"}'), "not valid JSON"),
        (call("[]"), '"arguments" must be an object'),
        (call('{"action": 3}'), 'string "action"'),
        ("<tool_call>[1]</tool_call>", 'exactly "name" and "arguments"'),
        ('<tool_call>{"name": "computer_use", "arguments": {}, "id": 1}</tool_call>', "exactly"),
        (CALL.replace("computer_use", "mobile_use"), "Unknown function 'mobile_use'"),
        (call('{"action": "fly"}'), "Unknown action 'fly'"),
        (call('{"action": "left_click"}'), "left_click lacks the argument coordinate"),
        (call('{"action": "left_click_drag", "coordinate": [1, 2]}'), "lacks the argument start_coordinate"),
        (call('{"action": "left_click", "coordinate": [1, 2], "text": "a"}'), "has no argument 'text'"),
        (call('{"action": "left_click", "coordinate": "[1, 2]"}'), "must be [x, y]"),
        (call('{"action": "left_click", "coordinate": [1, 2, 3, 4]}'), "must be [x, y]"),
        (call('{"action": "left_click", "coordinate": [1, "2"]}'), "must be a number"),
        (call('{"action": "left_click", "coordinate": [true, 2]}'), "must be a number"),
        (call('{"action": "left_click", "coordinate": [1001, 2]}'), "outside [0, 1000]"),
        (call('{"action": "left_click", "coordinate": [-1, 2]}'), "outside [0, 1000]"),
        (call('{"action": "left_click", "coordinate": [1, 2], "count": 1.5}'), "whole number"),
        (call('{"action": "type", "text": 5}'), "text must be a string"),
        (call('{"action": "key", "keys": []}'), "names no key"),
        (call('{"action": "key", "keys": [1]}'), "list of strings"),
        (call('{"action": "scroll", "pixels": "3"}'), "must be a number"),
        (call('{"action": "terminate"}'), "lacks the argument status"),  # the reference calls it success
        (call('{"action": "terminate", "status": "done"}'), "is not one of success, failure"),
    ],
)
def test_refused(text, reason):
    result = CODEC.parse(text)
    assert isinstance(result, ParseFailure), result
    assert reason in result.reason and result.text == text
