"""The guiderail DSL against hand-written tables: what openadapt writes, what its parsers get wrong, what is refused."""

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
)

CODEC = get_codec("guiderail")


@pytest.mark.parametrize(
    "action, text",
    [
        (Click(0.475, 0.25), "CLICK(x=0.475, y=0.250)"),
        (Click(1.0, 0.0), "CLICK(x=1.000, y=0.000)"),
        (Click(1 / 3, 2 / 3), "CLICK(x=0.333, y=0.667)"),
        (Click(0.5, 0.5, count=2), "DOUBLE_CLICK(x=0.500, y=0.500)"),
        (Click(0.5, 0.5, "right"), "RIGHT_CLICK(x=0.500, y=0.500)"),
        (Click(0.5, 0.5, "middle", 3), 'CLICK(x=0.500, y=0.500, button="middle", count=3)'),
        (Move(0.1, 0.2), "MOVE(x=0.100, y=0.200)"),
        (Drag(0.1, 0.2, 0.3, 0.4), "DRAG(x=0.100, y=0.200, x2=0.300, y2=0.400)"),
        (LongPress(0.5, 0.25, 1.5), "LONG_PRESS(x=0.500, y=0.250, seconds=1.5)"),
        (Scroll(0.5, 0.5, 0, -3), "SCROLL(x=0.500, y=0.500, dx=0, dy=-3)"),
        (Type("hi"), 'TYPE(text="hi")'),
        (Type("don't"), 'TYPE(text="don\'t")'),
        (Type('say "a\\b"\n\t\x00'), r'TYPE(text="say \"a\\b\"\n\t\u0000")'),
        (Type("naïve 😀"), 'TYPE(text="naïve 😀")'),
        (Key(("ctrl", "a")), 'KEY(keys="ctrl+a")'),
        (Wait(1.0), "WAIT(seconds=1)"),
        (Wait(0.25), "WAIT(seconds=0.25)"),
        (Wait(10.0), "WAIT(seconds=10)"),
        (Open("Files"), 'OPEN(app="Files")'),
        (Answer("42"), 'ANSWER(text="42")'),
        (Nav("back"), 'NAV(button="back")'),
        (Finish("success"), "DONE()"),
        (Finish("failure"), "FAIL()"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_canonical_text(action, text):
    assert CODEC.render(action) == text
    assert CODEC.render(action, 'click "Ok"') == f'Action: click "Ok"\n{text}'


OK = Click(0.5, 0.25)


@pytest.mark.parametrize(
    "text, action, thought",
    [
        ("CLICK(x=0.50, y=0.25)", OK, ""),
        ("CLICK(x=0.5,y=0.25)", OK, ""),
        ("click ( X = .5 , Y = +2.5e-1 )", OK, ""),
        ("  CLICK(y=0.25, x=0.5)\n", OK, ""),
        ("Action: CLICK(x=0.50, y=0.25)", OK, ""),
        ("Thought: the button\nis there\nAction: CLICK(x=0.50, y=0.25)", OK, "the button\nis there"),
        ("Thought: do Action: later\nAction: DONE()", Finish(), "do Action: later"),  # old parser: wrong tail
        ("thought: why\naction: open it\nCLICK(x=0.5, y=0.25)", OK, "open it"),
        ("Action: open it\nCLICK(x=0.5, y=0.25)", OK, "open it"),
        ("Action:\nCLICK(x=0.5, y=0.25)", OK, ""),
        ("<think>hm\nso</think>\nCLICK(x=0.5, y=0.25)", OK, "hm\nso"),
        ("<think>hm</think>Action: open it\r\nCLICK(x=0.5, y=0.25)", OK, "open it"),
        ("Action: click (3, -4)\nCLICK(x=0.5, y=0.25)", OK, "click (3, -4)"),
        (r"Action: open C:\dir" + "\nDONE()", Finish(), r"open C:\dir"),
        ('TYPE(text="don\'t")', Type("don't"), ""),  # evals' parser accepts it, ml's refuses it
        (r"TYPE(text='don\'t \"x\"')", Type('don\'t "x"'), ""),
        ("TYPE(text='say \"hi\"')", Type('say "hi"'), ""),
        (r'TYPE(text="a\\nb\\\"")', Type(r"a\nb\""), ""),  # I-04: unescaping in the wrong order gives a newline
        (r'TYPE(text="a\nb")', Type("a\nb"), ""),
        ('TYPE(text="a\nb")', Type("a\nb"), ""),
        ('Action: TYPE(text="a\nb")', Type("a\nb"), ""),
        ('TYPE(text="DONE() CLICK(x=1, y=1) Action: x")', Type("DONE() CLICK(x=1, y=1) Action: x"), ""),
        ('TYPE(text="")', Type(""), ""),
        (r'TYPE(text="\ud83d\ude00")', Type("😀"), ""),
        (r'TYPE(text="\ud800")', Type("\ud800"), ""),
        ("TYPE(text=\"__import__('os').system('x')\")", Type("__import__('os').system('x')"), ""),
        ("WAIT()", Wait(1.0), ""),
        ("long_press(x=0.5, y=0.25)", LongPress(0.5, 0.25, 1.0), ""),
        ("wait ( )", Wait(1.0), ""),
        ("Done ()", Finish(), ""),
        ("SCROLL(x=0.5, y=0.5, dy=3)", Scroll(0.5, 0.5, 0, 3), ""),
        ('KEY(keys="Ctrl + Shift+A")', Key(("ctrl", "shift", "A")), ""),
        ('KEY(keys="ctrl++")', Key(("ctrl", "+")), ""),
        ('KEY(keys="Return")', Key(("return",)), ""),
        ('NAV(button="Home")', Nav("home"), ""),
        ("CLICK(x=1, y=-0.0)", Click(1.0, 0.0), ""),
        ("CLICK(x=0.123456, y=0.5)", Click(0.123456, 0.5), ""),
    ],
)
def test_accepted(text, action, thought):
    parsed = CODEC.parse(text)
    assert parsed == Parsed(action, thought)
    assert "-0.0" not in repr(parsed)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "Empty."),
        ("I would click the button", "No call found"),
        ("Action: click it", "No call found"),
        ("Thought: click it", "not followed by an Action: line"),
        ("Thought: Action: DONE()", "not followed by an Action: line"),
        ("TAP(x=0.5, y=0.5)", "Unknown action 'TAP'"),
        ("CLICK(0.5, 0.5)", "CLICK: expected name=value, got '0.5, 0.5)'"),
        ("CLICK([3])", "expected name=value"),
        ("CLICK(x=0.5)", "CLICK lacks the argument y"),
        ("CLICK(x=0.5, y=1.2.3)", "CLICK: y must be a number, got '1.2.3)'"),  # ml: an untyped ValueError
        ("CLICK(x=..., y=0.5)", "must be a number"),
        ("CLICK(x=0x1, y=0.5)", "must be a number"),
        ("CLICK(x=1_0, y=0.5)", "must be a number"),
        ("CLICK(x=\u0660, y=0.5)", "must be a number"),
        ("CLICK(x=nan, y=0.5)", "x is not a finite number"),
        ("CLICK(x=0.5, y=-Infinity)", "y is not a finite number"),
        ("CLICK(x=1e999, y=0.5)", "x is not a finite number"),
        ("CLICK(x=1.001, y=0.5)", "x=1.001 is outside [0, 1]"),
        ("CLICK(x=512, y=0.5)", "x=512.0 is outside [0, 1]"),
        ("CLICK(x=0.5, y=-0.1)", "y=-0.1 is outside [0, 1]"),
        ("CLICK(x=0.5, x=0.5, y=0.5)", "argument x is given twice"),
        ("CLICK(x=0.5, X=0.5, y=0.5)", "argument x is given twice"),
        ("CLICK(x=0.5, y=0.5, z=1)", "CLICK has no argument 'z'"),
        ("CLICK(x=0.5, y=0.5,)", "expected name=value, got ')'"),
        ("CLICK(x=0.5 y=0.5)", "expected , or ) after x"),
        ("CLICK(x=0.5, y=0.5", "expected , or ) after y, got the end"),
        ("CLICK(x='0.5', y=0.5)", "must be a number"),
        ("CLICK(x=0.5, y=0.5, count=4)", "count=4 is outside [1, 3]"),
        ('CLICK(x=0.5, y=0.5, button="fourth")', "is not one of left, right, middle"),
        ("CLICK(x=0.5, y=0.5) CLICK(x=0.1, y=0.1)", "several calls"),
        ("CLICK(x=0.5, y=0.5); DONE()", "several calls"),
        ("DONE()\nDONE()", "several calls"),
        ("Action: DONE()\nDONE()", "several calls"),
        ("Action: a\nAction: DONE()", "several Action: lines"),
        ("CLICK(x=0.5, y=0.5) and then wait", "Text after the call: 'and then wait'"),
        ("Action: a\nCLICK(x=0.5, y=0.5).", "Text after the call: '.'"),
        ("Sure! CLICK(x=0.5, y=0.5)", "No call found"),
        ("SCROLL(x=0.5, y=0.5, dy=1.5)", "dy must be a whole number"),
        ("SCROLL(x=0.5, y=0.5, dy=1e9)", "outside [-10000, 10000]"),
        ("TYPE(text=hello)", "must be a quoted string"),
        ('TYPE("hello")', "expected name=value"),
        ('TYPE(text="hello)', "must be a quoted string"),
        (r'TYPE(text="C:\dir")', r"unknown escape '\\d'"),
        (r'TYPE(text="\u12")', "unknown escape"),
        ('KEY(keys="")', "names no key"),
        ('KEY(keys="ctrl+")', "lacks a key name"),
        ("WAIT(seconds=-1)", "outside [0, 600]"),
        ('NAV(button="up")', "is not one of back, home, recent, menu"),
        ("DONE(now=1)", "DONE has no argument 'now'"),
        ('{"action_type":"click","coordinate":[0.5,0.5]}', "No call found"),
        ("__import__('os').system('x')", "Unknown action"),
    ],
)
def test_refused(text, reason):
    result = CODEC.parse(text)
    assert isinstance(result, ParseFailure), result
    assert reason in result.reason and result.text == text


def test_a_thought_that_reads_like_a_call_is_never_the_action():
    text = CODEC.render(Finish(), "CLICK(x=0.1, y=0.1)")
    assert text == "Action: CLICK\\u0028x=0.1, y=0.1)\nDONE()"
    assert CODEC.parse(text) == Parsed(Finish(), "CLICK(x=0.1, y=0.1)")


@pytest.mark.parametrize("thought", ['click "Ok"', "click textbox 2", "click (3, -4)", 'type "a b"', "click the X"])
def test_thoughts_of_the_vocabulary_are_written_verbatim(thought):
    assert CODEC.render(Finish(), thought) == f"Action: {thought}\nDONE()"


def test_nothing_is_unreachable_at_three_decimals():
    """Two decimals, as the reference writes, move a point by up to 10 pixels on a screen of 1920."""
    for px in range(1920):
        x = (px + 0.5) / 1920
        parsed = CODEC.parse(CODEC.render(Click(x, 0.5)))
        assert isinstance(parsed, Parsed) and isinstance(parsed.action, Click)
        assert abs(parsed.action.x - x) * 1920 <= 0.961
