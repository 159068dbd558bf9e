"""AgentCPM-GUI, OS-Atlas, OS-Genesis and MobileGym's generic_v2 against hand-written tables of their own layouts."""

import pytest
from codec_tables import assert_canonical, assert_reads, assert_refuses, bound

from guiderail.actions.codec import NotExpressible
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

CPM, ATLAS, GENESIS, GYM = bound("agentcpm"), bound("os_atlas"), bound("os_genesis"), bound("generic_v2")
TAP, EDGE = Click(0.475, 0.25), Click(1.0, 0.0)
NASTY = 'don\'t "say" <|im_end|> a]b {}\n你好 😀\\n'


@pytest.mark.parametrize(
    "action, text",
    [
        (TAP, '{"POINT":[475,250]}'),
        (EDGE, '{"POINT":[1000,0]}'),
        (LongPress(0.475, 0.25), '{"POINT":[475,250],"duration":1000}'),
        (Drag(0.5, 0.8, 0.5, 0.2), '{"POINT":[500,800],"to":[500,200]}'),
        (Type('天气 "x" don\'t\n'), r'{"TYPE":"天气 \"x\" don' + r"""'t\n"}"""),
        (Nav("back"), '{"PRESS":"BACK"}'),
        (Nav("home"), '{"PRESS":"HOME"}'),
        (Key(("enter",)), '{"PRESS":"ENTER"}'),
        (Wait(0.2), '{"duration":200}'),
        (Finish("success"), '{"STATUS":"finish"}'),
        (Finish("failure"), '{"STATUS":"impossible"}'),
    ],
)
def test_agentcpm_canonical(action, text):
    assert_canonical(CPM, action, text)
    assert_canonical(CPM, action, '{"thought":"点击 \\"好\\"\\n",' + text[1:], '点击 "好"\n')


@pytest.mark.parametrize(
    "text, action, thought",
    [
        ('{"thought":"看到了按钮","POINT":[475,250]}', TAP, "看到了按钮"),
        ('{"POINT": [475, 250], "STATUS": "continue", "thought": "x"}', TAP, "x"),
        ('```json\n{"POINT":[475,250]}\n```', TAP, ""),
        ('I tap it.\n{"POINT":[475,250]}', TAP, "I tap it."),
        ('<think>hm</think>{"POINT":[475,250]}', TAP, "hm"),
        ('{"POINT":[475,250],"duration":200}', TAP, ""),
        ('{"POINT":[475,250],"duration":201}', LongPress(0.475, 0.25, 0.201), ""),
        ('{"POINT":[500,500],"to":"up"}', Drag(0.5, 0.5, 0.5, 0.3), ""),  # the finger's way
        ('{"POINT":[500,100],"to":"up","duration":500}', Drag(0.5, 0.1, 0.5, 0.0), ""),
        ('{"POINT":[900,500],"to":"right"}', Drag(0.9, 0.5, 1.0, 0.5), ""),
        ('{"PRESS":"APPSELECT"}', Nav("recent"), ""),
        ('{"STATUS":"satisfied"}', Finish("success"), ""),
        ('{"STATUS":"need_feedback"}', Finish("failure"), ""),
        ('{"duration":3000,"STATUS":"continue"}', Wait(3.0), ""),
        ('{"TYPE":"} {\\"POINT\\":[1,2]}"}', Type('} {"POINT":[1,2]}'), ""),
    ],
)
def test_agentcpm_reads(text, action, thought):
    assert_reads(CPM, text, action, thought)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "There is no action"),
        ("点击屏幕", "There is no action"),
        ('{"thought":"x","POINT":[475,2', "not valid JSON"),
        ('```json\n{"POINT":[475,250]}', "code fence is not closed"),
        ('{"POINT":[475,250]}{"PRESS":"BACK"}', "several actions"),
        ('{"POINT":[475,250]}\n```\n', "several actions"),
        ('{"POINT":[475,250]} done', "Text after it"),
        ('{"POINT":[475,250],"TYPE":"x"}', "several actions in one object"),
        ('{"POINT":[475,250],"STATUS":"finish"}', "several actions in one object"),
        ('{"TYPE":"x","to":"up"}', "several actions in one object"),
        ('{"thought":"x"}', "holds no action"),
        ('{"STATUS":"continue"}', "holds no action"),
        ('{"POINT":[475,1204]}', "outside [0, 1000]"),
        ('{"POINT":[475]}', "must be [x, y]"),
        ('{"POINT":[500,0],"to":"up"}', "leaves the screen"),
        ('{"POINT":[500,0],"to":"away"}', "is not a point"),
        ('{"PRESS":"POWER"}', "not one of BACK"),
        ('{"STATUS":"done"}', "not one of continue"),
        ('{"OPEN_APP":"Files"}', "Unknown key 'OPEN_APP'"),
        ('{"duration":-5}', "outside [0, 600]"),
        ('{"POINT":[1,2],"POINT":[3,4]}', "given twice"),
    ],
)
def test_agentcpm_refuses(text, reason):
    assert_refuses(CPM, text, reason)


@pytest.mark.parametrize("action", [Open("Files"), Answer("42"), Move(0.5, 0.5), Scroll(0.5, 0.5, 0, 5)], ids=repr)
def test_what_agentcpm_cannot_say(action):
    """The reference's evaluation counts rows with `open` as plain failures of this model; here they are reported."""
    with pytest.raises(NotExpressible, match=f"agentcpm cannot express {type(action).__name__}"):
        CPM.render(action)


@pytest.mark.parametrize(
    "action, call",
    [
        (TAP, "CLICK <point>[[475, 250]]</point>"),
        (LongPress(0.475, 0.25), "LONG_PRESS <point>[[475, 250]]</point>"),
        (Type("Shanghai shopping mall"), "TYPE [Shanghai shopping mall]"),
        (Type(NASTY), 'TYPE [don\'t "say" \\u003c|im_end|> a]b {}\\n你好 😀\\\\n]'),
        (Type(""), "TYPE []"),
        (Scroll(0.5, 0.5, 0, 5), "SCROLL [DOWN]"),
        (Scroll(0.5, 0.5, -5, 0), "SCROLL [LEFT]"),
        (Open("Google Chrome"), "OPEN_APP [Google Chrome]"),
        (Nav("recent"), "PRESS_RECENT"),
        (Key(("enter",)), "ENTER"),
        (Wait(1.0), "WAIT"),
        (Finish("success"), "COMPLETE"),
        (Finish("failure"), "IMPOSSIBLE"),
    ],
)
def test_os_atlas_canonical(action, call):
    assert_canonical(ATLAS, action, f"actions:\n{call}")
    assert_canonical(ATLAS, action, f"thoughts:\nactions\\u003a x\nactions:\n{call}", "actions: x")


@pytest.mark.parametrize(
    "text, action, thought",
    [
        ("Thoughts: I see it.\nActions: CLICK <point>[[475,250]]</point>", TAP, "I see it."),
        ("Thoughts:\nclick\nthe bar\nActions:\n\nCLICK <point>[[ 475 , 250 ]]</point>\n", TAP, "click\nthe bar"),
        ("actions:\nCLICK [[475, 250]]", TAP, ""),
        ("CLICK <point>[[475, 250]]</point>", TAP, ""),
        ("actions:\n```\nCLICK <point>[[475, 250]]</point>\n```", TAP, ""),
        ("actions:\nSCROLL [up]", Scroll(0.5, 0.5, 0, -5), ""),
        ("actions:\nTYPE [a]b]", Type("a]b"), ""),
        ("actions:\nTYPE [ CLICK me ]", Type(" CLICK me "), ""),
        ("actions:\nTYPE [two\nlines]", Type("two\nlines"), ""),
        ("action:\nPRESS_BACK", Nav("back"), ""),
    ],
)  # fmt: skip
def test_os_atlas_reads(text, action, thought):
    assert_reads(ATLAS, text, action, thought)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "Empty."),
        ("Thoughts: I see it.", "not followed by a line that names the action"),
        ("actions:\n点击", "No action found"),
        ("actions:\nI would click", "Unknown action 'I'"),
        ("actions:\nSWIPE [UP]", "Unknown action 'SWIPE'"),
        ("actions:\nCLICK <point>[[475, 25", "must be followed by <point>"),
        ("actions:\nCLICK", "must be followed by <point>"),
        ("actions:\nCLICK <point>[[1.2.3, 5]]</point>", "must be followed by <point>"),
        ("actions:\nCLICK <point>[[475, 1250]]</point>", "outside [0, 1000]"),
        ("actions:\nCLICK <point>[[-475, 250]]</point>", "outside [0, 1000]"),
        ("actions:\nCLICK <point>[[475, 250]]</point>\nWAIT", "several actions"),
        ("actions:\nTYPE [a]\nSCROLL [UP]", "several actions"),  # greedy brackets would type both lines
        ("actions:\nTYPE [a", "must be followed by [...]"),
        ("actions:\nSCROLL [AWAY]", "up, down, left or right"),
        ("actions:\nCOMPLETE now", "COMPLETE takes nothing"),
        ("actions:\n```\nWAIT", "code fence is not closed"),
    ],
)
def test_os_atlas_refuses(text, reason):
    assert_refuses(ATLAS, text, reason)


@pytest.mark.parametrize(
    "action, call",
    [
        (TAP, '{"action_type": "click", "x": 475, "y": 250}'),
        (LongPress(0.475, 0.25), '{"action_type": "long_press", "x": 475, "y": 250}'),
        (Scroll(0.5, 0.5, 0, 5), '{"action_type": "scroll", "direction": "down"}'),
        (Type("don't\n"), '{"action_type": "type", "text": "don\'t\\n"}'),
        (Open("Tasks"), '{"action_type": "open_app", "app_name": "Tasks"}'),
        (Nav("back"), '{"action_type": "navigate_back"}'),
        (Key(("enter",)), '{"action_type": "keyboard_enter"}'),
        (Wait(1.0), '{"action_type": "wait"}'),
        (Answer("42"), '{"action_type": "answer", "text": "42"}'),
        (Finish("success"), '{"action_type": "status", "goal_status": "successful"}'),
        (Finish("failure"), '{"action_type": "status", "goal_status": "infeasible"}'),
    ],
)
def test_os_genesis_canonical(action, call):
    assert_canonical(GENESIS, action, f"action: {call}")
    assert_canonical(GENESIS, action, f"Low-level thought: Open it\naction: {call}", "Open it")


@pytest.mark.parametrize(
    "text, action, thought",
    [
        ('Low-level thought: Tap.\naction: {"action_type":"click","x":475.0,"y":250}', TAP, "Tap."),
        ('Low-level thought: I\ntap\nAction:\n```json\n{"action_type":"click","x":475,"y":250}\n```', TAP, "I\ntap"),
        ('{"action_type": "click", "x": 475, "y": 250}', TAP, ""),
        ('action: {"action_type":"scroll","direction":"right"}', Scroll(0.5, 0.5, 5, 0), ""),
        ('action: {"action_type":"type","text":"action: {} <b>"}', Type("action: {} <b>"), ""),
        ('action: {"action_type":"status","goal_status":"complete"}', Finish("success"), ""),
    ],
)  # fmt: skip
def test_os_genesis_reads(text, action, thought):
    assert_reads(GENESIS, text, action, thought)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "There is no action"),
        ("Low-level thought: Tap.", "not followed by a line that names the action"),
        ('action: {"action_type":"click","x":475,"y":', "not valid JSON"),
        ("action: {'action_type':'wait'}", "not valid JSON"),
        ('action: {"action_type":"wait"}\naction: {"action_type":"wait"}', "Text after it"),
        ('action: {"action_type":"wait"}{"action_type":"wait"}', "several actions"),
        ('action: {"action_type":"click","x":539.5,"y":2148.0}', "outside [0, 1000]"),  # AndroidWorld's pixels
        ('action: {"action_type":"click","x":475}', "lacks the argument y"),
        ('action: {"action_type":"type","text":"a","x":1,"y":2}', "no argument 'x'"),
        ('action: {"action_type":"scroll","direction":"away"}', "up, down, left or right"),
        ('action: {"action_type":"status","goal_status":"failed"}', "not successful or infeasible"),
        ('action: {"action_type":"dismiss","x":1,"y":2}', "Unknown action 'dismiss'"),
        ('action: {"action_type":"type","text":7}', "Text must be a string"),
    ],
)
def test_os_genesis_refuses(text, reason):
    assert_refuses(GENESIS, text, reason)


@pytest.mark.parametrize(
    "action, call",
    [
        (TAP, '{"action": "CLICK", "point": [475, 250]}'),
        (Click(0.5, 0.5, count=2), '{"action": "DOUBLE_TAP", "point": [500, 500]}'),
        (LongPress(0.475, 0.25), '{"action": "LONGPRESS", "point": [475, 250]}'),
        (Drag(0.5, 0.8, 0.5, 0.2), '{"action": "SWIPE", "point1": [500, 800], "point2": [500, 200]}'),
        (Type("don't </ANSWER>"), '{"action": "TYPE", "value": "don\'t </ANSWER>"}'),
        (Nav("back"), '{"action": "BACK"}'),
        (Nav("recent"), '{"action": "RECENT"}'),
        (Key(("enter",)), '{"action": "ENTER"}'),
        (Wait(2.5), '{"action": "WAIT", "value": 2.5}'),
        (Open("微信"), '{"action": "AWAKE", "value": "微信"}'),
        (Answer("42"), '{"action": "ANSWER", "value": "42"}'),
        (Finish("success"), '{"action": "COMPLETE"}'),
        (Finish("failure"), '{"action": "ABORT"}'),
    ],
)
def test_generic_v2_canonical(action, call):
    assert_canonical(GYM, action, f"<ANSWER>\n{call}\n</ANSWER>")
    thought = "<THINK>\na \\u003c/think> b\n</THINK>\n"
    assert_canonical(GYM, action, f"{thought}<ANSWER>\n{call}\n</ANSWER>", "a </think> b")


@pytest.mark.parametrize(
    "text, action, thought",
    [
        ('<think>看\n看</think> <answer>{"action": "TAP", "point": [475, 250]}</answer>', TAP, "看\n看"),
        ('<THINK>a <ANSWER> b</THINK><ANSWER>{"action": "back"}</ANSWER>', Nav("back"), "a <ANSWER> b"),
        ('{"action": "CLICK", "point": [475.0, 250]}', TAP, ""),
        ('I tap.\n```json\n{"action": "CLICK", "point": [475, 250]}\n```', TAP, "I tap."),
        ('<ANSWER>\n```json\n{"action": "HOME"}\n```\n</ANSWER>', Nav("home"), ""),
        ('<ANSWER>{"action": "DRAG", "point1": [0, 0], "point2": [1000, 1000]}</ANSWER>', Drag(0, 0, 1, 1), ""),
        ('<ANSWER>{"action": "TYPE", "value": "a", "clear": false}</ANSWER>', Type("a"), ""),
        ('<ANSWER>{"action": "WAIT"}</ANSWER>', Wait(1.0), ""),
        ('<ANSWER>{"action": "FINISH", "return": "已完成"}</ANSWER>', Finish("success"), ""),
        ('<ANSWER>{"action": "ABORT", "value": "no such app"}</ANSWER>', Finish("failure"), ""),
    ],
)
def test_generic_v2_reads(text, action, thought):
    assert_reads(GYM, text, action, thought)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "There is no answer"),  # the reference ends the episode with ABORT for every one of these
        ("<THINK>x</THINK>", "There is no answer"),
        ('<ANSWER>{"action": "CLICK", "point": [475, 25', "not valid JSON"),
        ('<ANSWER>{"action": "BACK"}', "not closed by </ANSWER>"),
        ('<ANSWER>{"action": "BACK"}</ANSWER><ANSWER>{"action": "BACK"}</ANSWER>', "several answers"),
        ('{"action": "BACK"}\n{"action": "HOME"}', "several answers"),
        ('<ANSWER>{"action": "BACK" // back\n}</ANSWER>', "not valid JSON"),
        ('<ANSWER>{"action": "CLICK", "point": [475, 2500]}</ANSWER>', "outside [0, 1000]"),
        ('<ANSWER>{"action": "CLICK", "point": {"x": 1, "y": 2}}</ANSWER>', "must be [x, y]"),
        ('<ANSWER>{"action": "TYPE", "value": "a", "clear": true}</ANSWER>', "several actions"),
        ('<ANSWER>{"action": "TYPE", "value": "a", "point": [1, 2]}</ANSWER>', "several actions"),
        ('<ANSWER>{"action": "INFO", "value": "a"}</ANSWER>', "Unknown action 'INFO'"),
        ('<ANSWER>{"action": "WAIT", "value": "2"}</ANSWER>', "must be a number"),
    ],
)
def test_generic_v2_refuses(text, reason):
    assert_refuses(GYM, text, reason)
