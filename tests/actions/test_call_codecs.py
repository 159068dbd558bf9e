"""UI-TARS, openadapt and pyautogui against hand-written tables of their own layouts. Nothing here is ever run."""

import ast
import json

import pytest
from codec_tables import assert_canonical, assert_reads, assert_refuses, bound

from guiderail.actions.codec import NotExpressible, get_codec
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

TARS, TARS15 = bound("ui_tars"), bound("ui_tars15")
DSL, OBJECT, CODE = bound("openadapt"), bound("openadapt_json"), bound("pyautogui")
TAP = Click(0.475, 0.25)


@pytest.mark.parametrize(
    "action, call",
    [
        (TAP, "click(start_box='(475,250)')"),
        (Click(1.0, 0.0), "click(start_box='(1000,0)')"),
        (Click(0.475, 0.25, count=2), "left_double(start_box='(475,250)')"),
        (Click(0.475, 0.25, "right"), "right_single(start_box='(475,250)')"),
        (Move(0.475, 0.25), "hover(start_box='(475,250)')"),
        (LongPress(0.475, 0.25), "long_press(start_box='(475,250)')"),
        (LongPress(0.475, 0.25, 2.5), "long_press(start_box='(475,250)', time='2500')"),
        (Drag(0.1, 0.2, 0.3, 0.4), "drag(start_box='(100,200)', end_box='(300,400)')"),
        (Scroll(0.475, 0.25, 0, 5), "scroll(start_box='(475,250)', direction='down')"),
        (Scroll(0.5, 0.5, 5, 0), "scroll(start_box='(500,500)', direction='right')"),
        (Type('don\'t "x" \\ <|im_end|> 你好\n'), r"""type(content='don\'t "x" \\ \u003c|im_end|> 你好\n')"""),
        (Key(("ctrl", "a")), "hotkey(key='ctrl a')"),
        (Open("Google Chrome"), "open_app(app_name='Google Chrome')"),
        (Nav("home"), "press_home()"),
        (Nav("back"), "press_back()"),
        (Wait(5.0), "wait()"),
        (Finish("success"), "finished()"),
        (Finish("failure"), "call_user()"),
    ],
)
def test_ui_tars_canonical(action, call):
    assert_canonical(TARS, action, f"Action: {call}")
    assert_canonical(TARS, action, f"Thought: Action: a\\nb\nAction: {call}", "Action: a\nb")


@pytest.mark.parametrize(
    "text, action, thought",
    [
        ("Thought: Tap.\nAction: click(start_box='<|box_start|>(475,250)<|box_end|>')", TAP, "Tap."),
        ("Thought: Tap.\nThen wait.\nAction: click(start_box='(475, 250)')", TAP, "Tap.\nThen wait."),
        ("Action: click(point='<point>475 250</point>')", TAP, ""),
        ("Action: click(start_point='<point>475 250</point>')", TAP, ""),
        ("Action: click(start_box='[470, 240, 480, 260]')", TAP, ""),
        ("Action: click(start_box='(480,260,470,240)')", TAP, ""),  # swapped corners
        ("Action: click(start_box='<bbox>470 240 480 260</bbox>')", TAP, ""),
        ("click(start_box='(475,250)')", TAP, ""),
        ("Action:\n```\nclick(start_box='(475,250)')\n```", TAP, ""),
        ("<think>hm</think>Action: left_single(start_box='(475,250)')", TAP, "hm"),
        ("Action: drag(start_point='<point>0 0</point>', end_point='<point>1000 1000</point>')", Drag(0, 0, 1, 1), ""),
        ("Action: scroll(direction='down')", Scroll(0.5, 0.5, 0, 5), ""),
        ("Action: scroll(point='<point>475 250</point>', direction='UP')", Scroll(0.475, 0.25, 0, -5), ""),
        ("Action: scroll(start_box='(500,800)', end_box='(500,200)')", Drag(0.5, 0.8, 0.5, 0.2), ""),
        ("Action: type(content='don't stop')", Type("don't stop"), ""),  # the reference's reading too
        ("Action: type(content='point='(1,2)'')", Type("point='(1,2)'"), ""),
        (r"Action: type(content='C:\dir')", Type(r"C:\dir"), ""),
        ("Action: type(content='two\nlines\\n')", Type("two\nlines\n"), ""),
        ("Action: type(content='')", Type(""), ""),
        ("Action: type(content='a\nAction: b')", Type("a\nAction: b"), ""),
        ("Action: long_press(start_box='(475,250)', time='')", LongPress(0.475, 0.25), ""),
        ("Action: finished(content='All steps are done.')", Finish("success"), ""),
        ("Reflection: no.\nAction_Summary: tap\nAction: wait()", Wait(5.0), "Reflection: no.\nAction_Summary: tap"),
    ],
)
def test_ui_tars_reads(text, action, thought):
    assert_reads(TARS, text, action, thought)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "Empty."),
        ("Thought: I tap it.", "not followed by a line that names the action"),
        ("I would tap it", "No call found"),
        ("Action: click(start_box='(475,2", "must be a quoted string"),
        ("Action: click(start_box='(475,250)'", "must be a quoted string"),
        ("Action: click(start_box='475')", "must be (x,y)"),
        ("Action: click(start_box='(1.2.3,4)')", "must be (x,y)"),
        ("Action: click(start_box='(1,2,3)')", "must be (x,y)"),
        ("Action: click(start_box='__import__(1),2')", "must be (x,y)"),
        ("Action: click(start_box='(475,1250)')", "outside [0, 1000]"),
        ("Action: click(start_box='(-475,250)')", "outside [0, 1000]"),
        ("Action: click()", "lacks the argument start_box"),
        ("Action: tap(start_box='(1,2)')", "Unknown action 'tap'"),
        ("Action: wait()\n\nwait()", "several calls"),
        ("Action: wait()\nAction: wait()", "Text after the call"),
        ("Action: scroll(start_box='(1,2)')", "Direction must be up, down, left or right"),
        ("Action: scroll(start_box='(1,2)', direction='away')", "up, down, left or right"),
        ("Action: hotkey(key='')", "names no key"),
        ("Action: long_press(start_box='(1,2)', time='long')", "whole milliseconds"),
        ("Action: type(content='a', content='b')", "given twice"),
    ],
)
def test_ui_tars_refuses(text, reason):
    assert_refuses(TARS, text, reason)


def test_ui_tars_15_counts_pixels_of_the_frame_as_seen():
    assert_canonical(TARS15, Click(0.5, 0.25), "Action: click(start_box='(546,602)')")
    assert_reads(TARS15, "Action: click(start_box='(1092,2408)')", Click(1.0, 1.0))
    assert_refuses(TARS15, "Action: click(start_box='(1093,5)')", "is outside [0, 1092] x [0, 2408]")
    assert_refuses(get_codec("ui_tars15"), "Action: click(start_box='(1,2)')", "unknown size")


@pytest.mark.parametrize("action", [Answer("42"), Nav("recent"), Wait(2.0), Scroll(0.5, 0.5, 0, 3)], ids=repr)
def test_what_ui_tars_cannot_say(action):
    with pytest.raises(NotExpressible):
        TARS.render(action)


DSL_TABLE = [
    (TAP, "CLICK(x=0.475, y=0.250)", '{"action_type": "click", "coordinate": [0.475, 0.25]}'),
    (Click(1.0, 0.0), "CLICK(x=1.000, y=0.000)", '{"action_type": "click", "coordinate": [1, 0]}'),
    (Type("don't"), 'TYPE(text="don\'t")', '{"action_type": "type", "text": "don\'t"}'),
    (Type('"\\n\n'), 'TYPE(text="\\"\\\\n\n")', '{"action_type": "type", "text": "\\"\\\\n\\n"}'),
    (Key(("ctrl", "a")), 'KEY(key="ctrl+a")', '{"action_type": "key", "key": "ctrl+a"}'),
    (
        Scroll(0.5, 0.5, 0, -5),
        'SCROLL(x=0.500, y=0.500, direction="up")',
        '{"action_type": "scroll", "coordinate": [0.5, 0.5], "direction": "up"}',
    ),
    (Wait(1.0), "WAIT()", '{"action_type": "wait"}'),
    (Finish("success"), "DONE()", '{"action_type": "done"}'),
]


@pytest.mark.parametrize("action, call, json_text", DSL_TABLE, ids=[c for _, c, _ in DSL_TABLE])
def test_openadapt_canonical(action, call, json_text):
    assert_canonical(DSL, action, f"Action: {call}")
    assert_canonical(DSL, action, f"Thought: It is there.\nAction: {call}", "It is there.")
    assert_canonical(OBJECT, action, f"Thought: It is there.\nAction: {json_text}", "It is there.")
    assert_reads(DSL, json_text, action)  # each codec reads the other's form
    assert_reads(OBJECT, call, action)


@pytest.mark.parametrize(
    "text, action, thought",
    [
        ("Thought: The button.\nAction: CLICK(x=0.48, y=0.25)", Click(0.48, 0.25), "The button."),
        ("click( x = 0.475 , y = .25 )", TAP, ""),
        ("<think>so</think>\nAction: DONE()", Finish(), "so"),
        (r"TYPE(text='don\'t')", Type("don't"), ""),
        ("TYPE(text='don't')", Type("don't"), ""),
        (r'TYPE(text="C:\new")', Type(r"C:\new"), ""),  # a backslash-n is no newline in this family
        ('TYPE(text="say "hi" to <b>")', Type('say "hi" to <b>'), ""),
        ("WAIT ( )", Wait(1.0), ""),
        ('```json\n{"action_type":"click","coordinate":[0.475,0.25]}\n```', TAP, ""),
        ('{"action_type":"click","coords":[0.475,0.25],"coordinate_mode":"normalized"}', TAP, ""),
        ('{"action_type":"click","coordinate":[546,602]}', Click(0.5, 0.25), ""),
        ('{"action_type":"click","coordinate":[1,602],"coordinate_space":"pixels"}', Click(1 / 1092, 0.25), ""),
        ('{"action_type":"CLICK","coordinate":[1,1]}', Click(1.0, 1.0), ""),
    ],
)
def test_openadapt_reads(text, action, thought):
    for codec in (DSL, OBJECT):
        assert_reads(codec, text, action, thought)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "Empty."),
        ("click the button", "No call found"),  # the reference's first parser ended the episode with DONE here
        ("Action: CLICK(x=0.5, y=1.2.3)", "must be a number"),
        ("Action: CLICK(x=0.5, y=1.25)", "outside [0, 1]"),
        ("Action: CLICK(0.5, 0.5)", "expected name=value"),
        ("Action: CLICK(x=0.5)", "lacks the argument y"),
        ("Action: CLICK(x=0.5, y=0.5)\nAction: DONE()", "Text after the call"),
        ("Action: CLICK(x=0.5, y=0.5) DONE()", "several calls"),
        ('Action: TYPE(text="hello', "must be a quoted string"),
        ("Action: DRAG(x=0.5, y=0.5)", "Unknown action 'DRAG'"),
        ('SCROLL(x=0.5, y=0.5, direction="left")', "Direction must be up or down"),
        ('{"action_type":"click","coordinate":[0.5,602]}', "outside [0, 1]"),  # mixed units
        ('{"action_type":"click","coordinate":[0.5,0.5],"coords":[0.5,0.5]}', "one coordinate"),
        ('{"action_type":"click","coordinate":[0.5', "not valid JSON"),
        ('{"action_type":"click","coordinate":[1e999,0.5]}', "not a finite number"),
        ('{"action_type":"click"}', "one coordinate"),
        ('{"action_type":"type"}', "lacks the argument text"),
        ('{"action_type":"done","done":1}', "no argument 'done'"),
        ('{"action_type":"done"}{"action_type":"done"}', "several actions"),
    ],
)
def test_openadapt_refuses(text, reason):
    assert_refuses(DSL, text, reason)


def test_openadapt_reads_pixels_only_on_a_known_screen():
    assert_refuses(get_codec("openadapt"), '{"action_type":"click","coordinate":[546,602]}', "unknown size")


@pytest.mark.parametrize("action", [Open("Files"), Nav("back"), Finish("failure"), Drag(0, 0, 1, 1)], ids=repr)
def test_what_openadapt_cannot_say(action):
    for codec in (DSL, OBJECT):
        with pytest.raises(NotExpressible):
            codec.render(action)


@pytest.mark.parametrize(
    "action, code",
    [
        (Click(0.5, 0.25), "pyautogui.click(546, 602)"),
        (Click(1.0, 1.0), "pyautogui.click(1091, 2407)"),
        (Click(0.5, 0.25, "right"), "pyautogui.rightClick(546, 602)"),
        (Click(0.5, 0.25, "middle"), "pyautogui.middleClick(546, 602)"),
        (Click(0.5, 0.25, count=2), "pyautogui.doubleClick(546, 602)"),
        (Click(0.5, 0.25, count=3), "pyautogui.tripleClick(546, 602)"),
        (Click(0.5, 0.25, "right", 2), "pyautogui.click(546, 602, 2, button='right')"),
        (Move(0.5, 0.25), "pyautogui.moveTo(546, 602)"),
        (Drag(0, 0, 0.5, 0.25), "pyautogui.moveTo(0, 0)\npyautogui.dragTo(546, 602, button='left')"),
        (Scroll(0.5, 0.25, 0, 3), "pyautogui.scroll(-3, 546, 602)"),
        (Scroll(0.5, 0.25, 3, 0), "pyautogui.hscroll(3, 546, 602)"),
        (Type('it\'s < 5 \\ "x"\n你好'), r"""pyautogui.write('it\'s < 5 \\ "x"\n你好')"""),
        (Key(("enter",)), "pyautogui.press('enter')"),
        (Key(("ctrl", "a")), "pyautogui.hotkey('ctrl', 'a')"),
        (Wait(1.5), "time.sleep(1.5)"),
        (Finish("success"), "DONE"),
        (Finish("failure"), "FAIL"),
    ],
)
def test_pyautogui_canonical(action, code):
    fence = "```" if code.isupper() else "```python"
    assert_canonical(CODE, action, f"{fence}\n{code}\n```")
    assert_canonical(CODE, action, f"Open \\u0060`it\n{fence}\n{code}\n```", "Open ``it")
    if isinstance(action, Type):  # Python itself reads the literal as the text
        assert ast.literal_eval(code[len("pyautogui.write(") : -1]) == action.text


@pytest.mark.parametrize(
    "text, action, thought",
    [
        ("pyautogui.click(546, 602)", Click(0.5, 0.25), ""),
        ("I click.\n\npyautogui.click(x=546, y=602)", Click(0.5, 0.25), "I click."),
        ("```python\nimport pyautogui\nimport time\npyautogui.click(546, 602, duration=1)\n```", Click(0.5, 0.25), ""),
        ("pyautogui.click(x=546, y=602, clicks=2, interval=0.1, button='left')", Click(0.5, 0.25, count=2), ""),
        ("pyautogui.moveTo(546, 602); pyautogui.click()", Click(0.5, 0.25), ""),
        ("pyautogui.moveTo(546, 602)\npyautogui.scroll(-3)", Scroll(0.5, 0.25, 0, 3), ""),
        ("pyautogui.scroll(5)", Scroll(0.5, 0.5, 0, -5), ""),
        ("pyautogui.moveTo(0, 0)\npyautogui.dragTo(546, 602, 0.5, button='left')", Drag(0, 0, 0.5, 0.25), ""),
        ("pyautogui.typewrite(\"don't\", interval=0.05)", Type("don't"), ""),
        ("```\npyautogui.write('''two\nlines```''')\n```", Type("two\nlines```"), ""),
        ("pyautogui.hotkey(['ctrl', 'c'])", Key(("ctrl", "c")), ""),
        ("pyautogui.press(' ')", Key(("space",)), ""),
        ("```WAIT```", Wait(1.0), ""),
        ("The task is done.\n```DONE```", Finish("success"), "The task is done."),
        ("FAIL", Finish("failure"), ""),
    ],
)  # fmt: skip
def test_pyautogui_reads(text, action, thought):
    assert_reads(CODE, text, action, thought)


@pytest.mark.parametrize(
    "code, reason",
    [
        ("", "The code does nothing"),
        ("import pyautogui", "The code does nothing"),
        ("pyautogui.click(546, 60", "not readable Python"),
        ("pyautogui.click(546, 602)\npyautogui.click(1, 2)", "several actions"),
        ("pyautogui.write('a'); pyautogui.press('enter')", "several actions"),
        ("pyautogui.moveTo(1, 2); pyautogui.click(3, 4)", "several actions"),
        ("pyautogui.moveTo(1, 2); pyautogui.write('a')", "several actions"),
        ("pyautogui.click()", "needs x and y"),
        ("pyautogui.click(546)", "needs x and y"),
        ("pyautogui.dragTo(546, 602)", "needs a moveTo"),
        ("pyautogui.click(602, 2546)", "is outside [0, 1092] x [0, 2408]"),
        ("pyautogui.click(-1, 5)", "is outside"),
        ("pyautogui.click('546', 602)", "must be a number"),
        ("pyautogui.click(x, y)", "must be literals, got Name"),
        ("pyautogui.click(10**10**10, 1)", "must be literals, got BinOp"),
        ("pyautogui.click(*[1, 2])", "must be literals, got Starred"),
        ("pyautogui.click(**{'x': 1})", "no argument 'None'"),
        ("pyautogui.click(1, 2, x=1)", "given twice"),
        ("pyautogui.click(1, 2, 3, 4, 5, 6)", "at most 5 arguments"),
        ("pyautogui.click(1, 2, clicks=9)", "outside [1, 3]"),
        ("pyautogui.press(['a', 'b'])", "must be a string"),
        ("pyautogui.press('a', presses=3)", "several actions"),
        ("pyautogui.write(f'{1}')", "must be literals, got JoinedStr"),
        ("pyautogui.screenshot('/tmp/x')", "Unknown call 'pyautogui.screenshot'"),
        ("pyautogui.alert('x')", "Unknown call"),
        ("time.sleep(1e9)", "outside [0, 600]"),
        ("os.system('rm -rf /')", "Unknown call 'os.system'"),
        ("import os", "Only pyautogui and time are imported"),
        ("import time as os", "Only pyautogui and time are imported"),
        ("from pyautogui import os", "no call of pyautogui: ImportFrom"),
        ("__import__('os').system('x')", "no call of pyautogui"),
        ("pyautogui.__class__.__bases__[0]()", "no call of pyautogui"),
        ("exec('1')", "no call of pyautogui"),
        ("[pyautogui.click(1, 2) for _ in range(9)]", "no call of pyautogui"),
        ("x = pyautogui.click(1, 2)", "no call of pyautogui: Assign"),
        ("while True: pass", "no call of pyautogui: While"),
        ("pyautogui.click(1, 2) if 1 else 2", "no call of pyautogui"),
    ],
)
def test_pyautogui_refuses(code, reason):
    assert_refuses(CODE, f"```python\n{code}\n```", reason)


def test_pyautogui_refuses_what_is_no_code_block():
    assert_refuses(CODE, "", "There is no code")
    assert_refuses(CODE, "I click on it.", "There is no code")
    assert_refuses(CODE, "```python\npyautogui.click(1, 2)", "fence is not closed")
    assert_refuses(CODE, "```python\npyautogui.click(1, 2)\n```\nDone.", "fence is not closed, or text follows")
    assert_refuses(CODE, "```\nDONE\n```\n```\nDONE\n```", "not readable Python")
    assert_refuses(get_codec("pyautogui"), "```\npyautogui.click(1, 2)\n```", "unknown size")


def test_reading_code_runs_nothing(monkeypatch):
    def never(*_):
        raise AssertionError("model text was run")

    for name in ("exec", "eval"):
        monkeypatch.setattr(f"builtins.{name}", never)
    assert_refuses(CODE, "```python\n__import__('os').system('x')\n```", "no call of pyautogui")
    assert json.dumps(vars(CODE.parse("DONE").action)) == '{"status": "success"}'
