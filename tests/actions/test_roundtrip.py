"""Every codec: parse is total, render and parse are inverse for what the format has a form for and refused for the
rest, and what is parsed can be carried to an environment and rendered again."""

import itertools
import json
import math

import pytest
from action_strategies import KINDS, action, nasty, text
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from guiderail.actions.bounds import checked
from guiderail.actions.codec import CODECS as NAMES
from guiderail.actions.codec import NotExpressible, get_codec
from guiderail.actions.prompts_full import SHORT_SYSTEM
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
from guiderail.actions.wire import action_dumps, action_from_json

WIDTH, HEIGHT = 1093, 607
PIXELS = {"ui_s1", "qwen25vl", "ui_tars15", "pyautogui"}
CODECS = [get_codec(name).at(WIDTH, HEIGHT) for name in sorted(NAMES)]
each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)


def yes(a):
    return True


def tap(a):
    return (a.button, a.count) == ("left", 1)


def step(a):
    return (a.dx, a.dy) in {(0, 5), (0, -5), (5, 0), (-5, 0)}


def centred_step(a):
    return step(a) and round(a.x * 1000) == round(a.y * 1000) == 500


def enter(a):
    return a.keys == ("enter",)


def lasts(ms):
    return lambda a: round(a.seconds * 1000) == ms


def button(*names):
    return lambda a: a.button in names


# Written from the formats' own lists of actions, not from the code: kind -> what of it the format has a form for.
MOBILE_USE = {
    "Click": tap, "LongPress": yes, "Drag": yes, "Type": yes, "Key": yes, "Wait": yes, "Open": yes, "Answer": yes,
    "Nav": button("back", "home", "menu"), "Finish": yes,
}  # fmt: skip
TARS = {
    "Click": lambda a: (a.button, a.count) in {("left", 1), ("left", 2), ("right", 1)}, "Move": yes, "LongPress": yes,
    "Drag": yes, "Scroll": step, "Type": yes, "Key": lambda a: all(len(k.split()) == 1 for k in a.keys),
    "Wait": lasts(5000), "Open": yes, "Nav": button("back", "home"), "Finish": yes,
}  # fmt: skip
OPENADAPT = {
    "Click": tap, "Scroll": lambda a: a.dx == 0 and step(a), "Type": yes, "Key": yes, "Wait": lasts(1000),
    "Finish": lambda a: a.status == "success",
}  # fmt: skip
EXPRESSIBLE = {
    "guiderail": dict.fromkeys(KINDS, yes),
    "qwen3vl": dict.fromkeys(KINDS, yes),
    "ui_s1": MOBILE_USE,
    "qwen25vl": MOBILE_USE,
    "agentcpm": {
        "Click": tap, "LongPress": lambda a: round(a.seconds * 1000) > 200, "Drag": yes, "Type": yes, "Key": enter,
        "Wait": yes, "Nav": button("back", "home", "recent"), "Finish": yes,
    },
    "os_atlas": {
        "Click": tap, "LongPress": lasts(1000), "Scroll": centred_step, "Type": yes, "Key": enter, "Wait": lasts(1000),
        "Open": yes, "Nav": button("back", "home", "recent"), "Finish": yes,
    },
    "os_genesis": {
        "Click": tap, "LongPress": lasts(1000), "Scroll": centred_step, "Type": yes, "Key": enter, "Wait": lasts(1000),
        "Open": yes, "Answer": yes, "Nav": button("back", "home"), "Finish": yes,
    },
    "ui_tars": TARS,
    "ui_tars15": TARS,
    "generic_v2": {
        "Click": lambda a: a.button == "left" and a.count < 3, "LongPress": lasts(1000), "Drag": yes, "Type": yes,
        "Key": enter, "Wait": yes, "Open": yes, "Answer": yes, "Nav": button("back", "home", "recent"), "Finish": yes,
    },
    "openadapt": OPENADAPT,
    "openadapt_json": OPENADAPT,
    "pyautogui": {
        "Click": yes, "Move": yes, "Drag": yes, "Scroll": lambda a: not (a.dx and a.dy), "Type": yes, "Key": yes,
        "Wait": yes, "Finish": yes,
    },
}  # fmt: skip


def expressible(codec, a) -> bool:
    return EXPRESSIBLE[codec.name].get(type(a).__name__, lambda _: False)(checked(a))


def joined(s: str) -> str:
    """Surrogate pairs joined, by UTF-16 (independent of the code under test only in that it is the definition)."""
    return s.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@each_codec
@settings(max_examples=80, deadline=None)
@given(a=action, thought=text)
@example(a=Type("b')"), thought="TYPE(text='a")
@example(a=Type("b"), thought='TYPE(text="a')
@example(a=Finish(), thought="DONE()")
@example(a=Key(("+",)), thought="+")
@example(a=Key(("+", "\\", "a+b", " ")), thought="\\")
@example(a=Click(1.0, 1.0), thought="")
@example(a=Drag(0.0, 1.0, 29 / 100, 0.0), thought="")
def test_parse_undoes_render_or_render_refuses(codec, a, thought):
    if not expressible(codec, a):
        for refused in (codec.render, codec.quantise):
            with pytest.raises(NotExpressible) as e:
                refused(a)
            assert e.value.codec == codec.name and type(a).__name__ in str(e.value) and e.value.why
        return
    rendered = codec.render(a, thought)
    assert codec.parse(rendered) == Parsed(codec.quantise(a), joined(thought))
    rendered.encode("utf-8")  # no lone surrogate gets out
    assert "<|" not in rendered and rendered.count("<tool_call>") <= 1


@each_codec
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])  # some say little
@given(a=action)
def test_quantise_is_near_and_idempotent(codec, a):
    assume(expressible(codec, a))
    q = codec.quantise(a)
    assert codec.quantise(q) == q and codec.parse(codec.render(a)) == Parsed(q, "")
    moved = {}
    for f in ("x", "y", "x2", "y2", "seconds"):
        if hasattr(a, f):
            unit = {"x": WIDTH, "y": HEIGHT}.get(f[0]) if codec.name in PIXELS else 1960
            moved[f] = getattr(a, f)
            assert math.isclose(getattr(q, f), moved[f], abs_tol=1.0001 / unit if f != "seconds" else 0.00051)
    assert type(q) is type(a) and type(q)(**{**vars(q), **moved}) == type(a)(**{**vars(checked(a)), **moved})


@each_codec
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_expressed_or_refused(codec, kind):
    """`open` and its like are never written as something else: what a format lacks is in the table above."""
    assert set(EXPRESSIBLE) == set(NAMES) and set(EXPRESSIBLE[codec.name]) <= set(KINDS)
    if kind in EXPRESSIBLE[codec.name]:
        return
    sample = {
        "Move": Move(0.5, 0.5), "LongPress": LongPress(0.5, 0.5), "Drag": Drag(0.1, 0.1, 0.5, 0.5), "Nav": Nav("back"),
        "Scroll": Scroll(0.5, 0.5, 0, 5), "Open": Open("Files"), "Answer": Answer("42"),
    }  # fmt: skip
    with pytest.raises(NotExpressible, match=f"codec {codec.name} cannot express {kind}: ."):
        codec.render(sample[kind])


@each_codec
def test_every_text_of_quotes_and_backslashes(codec):
    """The reference's formatter and parser lose 1001 of these 1364 texts (all that hold an apostrophe). I-04."""
    texts = ["".join(t) for n in range(1, 6) for t in itertools.product("a\\\"'", repeat=n)]
    assert len(texts) == 1364
    lost = [t for t in texts if codec.parse(codec.render(Type(t), t)) != Parsed(Type(t), t)]
    assert lost == []


_WORDS = [
    "CLICK",
    "TYPE",
    "DONE",
    "KEY",
    "(",
    ")",
    "x=",
    "y=",
    "text=",
    "keys=",
    "0.5",
    "1e999",
    "nan",
    '"',
    "'",
    "\\",
    ",",
    ":",
    "[",
    "]",
    "{",
    "}",
    "Action:",
    "Thought:",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '"action"',
    '"name"',
    '"arguments"',
    '"computer_use"',
    '"key"',
    '"keys"',
    "NaN",
    "true",
    "CLICK(x=0.5,y=0.5)",
    '{"name":"computer_use","arguments":',
    '{"action":"left_click","coordinate":[1,2]}',
    "<action>",
    "</action>",
    '{"action": "click", "coordinate": [1, 2]}',
    "<ANSWER>",
    "</answer>",
    '{"action": "CLICK", "point": [1, 2]}',
    '{"POINT":[1,2],"to":',
    '"down"}',
    '{"STATUS":"finish"}',
    "thoughts:",
    "actions:",
    "CLICK <point>[[1, 2]]</point>",
    "TYPE [",
    "SCROLL [UP]",
    '{"action_type": "click", "x": 1, "y": 2}',
    '{"action_type": "click", "coordinate": [0.5, 0.5]}',
    "click(start_box='(1,2)')",
    "scroll(direction='",
    "hotkey(key='ctrl a')",
    "<|box_start|>",
    "```python\n",
    "```",
    "pyautogui.click(1, 2)",
    "pyautogui.write(",
    "import os",
    "WAIT",
]
fragments = st.lists(st.sampled_from([*_WORDS, " ", "\n", "1" * 5000, "\ud800"]), max_size=14).map("".join)


def assert_read_or_refused(codec, text):
    result = codec.parse(text)
    if isinstance(result, ParseFailure):
        assert result.reason.endswith(".") and "\n" not in result.reason and result.reason.isascii()
        assert len(result.reason) < 300 and result.text == text
    else:
        assert action_from_json(json.loads(action_dumps(result.action))) == result.action
        assert codec.parse(codec.render(result.action, result.thought)).action == codec.quantise(result.action)


@each_codec
@settings(max_examples=80, deadline=None)
@given(text=st.one_of(fragments, text, st.text(max_size=60)))
def test_parse_is_total(codec, text):
    assert_read_or_refused(codec, text)


@each_codec
@settings(max_examples=40, deadline=None)
@given(a=action, thought=text, at=st.integers(0, 200), cut=st.integers(0, 5), put=nasty)
def test_parse_is_total_on_damaged_calls(codec, a, thought, at, cut, put):
    assume(expressible(codec, a))
    rendered = codec.render(a, thought)
    assert_read_or_refused(codec, rendered[:at] + put + rendered[at + cut :])


@each_codec
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" + "[" * 200_000,
        "<tool_call>" + '{"a":' * 100_000,
        "(" * 100_000,
        "CLICK(" * 50_000,
        "\\" * 100_000,
        "Action:" * 50_000,
        "<think>" * 50_000,
        'TYPE(text="' + "\\" * 99_999,
        " " * 200_000,
        "\n" * 200_000 + "Action: a",
        "{" * 100_000,
        '{"a":[' * 50_000,
        "```" * 70_000,
        "<ANSWER>" * 30_000,
        "actions:\n" * 30_000,
        "type(content='" + "' " * 100_000,
        "Action: type(content='" + "',a" * 60_000,
        "Action: click(start_box='" + "1 " * 100_000 + "')",
        "TYPE [" + "]" * 100_000 + "x",
        "pyautogui.click(" * 20_000,
        "```python\npyautogui.click(" + "-" * 100_000 + "1, 2)\n```",
        "```python\n" + "pyautogui.click(1, 2)\n" * 5_000 + "```",
        "pyautogui.write(" + "(" * 90_000 + ")" * 90_000 + ")",
    ],
    ids=range(23),
)
@pytest.mark.timeout(20)
def test_hostile_texts_fail_fast(codec, text):
    assert isinstance(codec.parse(text), ParseFailure)


@each_codec
def test_texts_longer_than_the_pool_carries_are_refused(codec):
    assert codec.parse(codec.render(Type("a" * 100_000))) == Parsed(Type("a" * 100_000))
    with pytest.raises(ValueError, match="100001 characters"):
        codec.render(Type("a" * 100_001))
    assert isinstance(codec.parse(codec.render(Type("a" * 100_000)).replace("aaaa", "aaaaa", 1)), ParseFailure)


@each_codec
@pytest.mark.parametrize(
    "bad",
    [
        Click(1.01, 0.5),
        Click(math.nan, 0.5),
        Move(0.5, math.inf),
        Drag(0, 0, -0.1, 0),
        Click(0.5, 0.5, "left", 4),
        Key(()),
        Key(("",)),
        Key(("\t",)),
        Key(("a",) * 17),
        Wait(-1),
        Wait(math.nan),
        LongPress(0.5, 0.5, -0.1),
        Scroll(0.5, 0.5, 0, 10_001),
        Click(0.5, 0.5, "fourth"),
        Nav("up"),
        Finish("maybe"),
    ],
    ids=repr,
)
def test_render_refuses_what_is_no_action(codec, bad):
    with pytest.raises(ValueError) as e:
        codec.render(bad)
    assert not isinstance(e.value, NotExpressible)
    with pytest.raises(TypeError):
        codec.render("CLICK")


@each_codec
def test_system_prompts(codec):
    assert codec.system_prompt("none") == ""
    assert codec.system_prompt("short") == SHORT_SYSTEM == "Work the screen."
    full, bare = codec.system_prompt("full"), codec.system_prompt("full", thought=False)
    assert full != bare and len(bare) < len(full) + 10
    if codec.name in ("guiderail", "qwen3vl"):
        assert "Action: " in full and "Action: " not in bare


def test_the_full_prompts_name_every_action():
    from guiderail.actions.guiderail_dsl import CALLS
    from guiderail.actions.qwen3vl import ACTIONS

    dsl = get_codec("guiderail").system_prompt("full")
    assert all(f"\n{keyword}(" in dsl for keyword in CALLS)
    tools = get_codec("qwen3vl").system_prompt("full").split("<tools>")[1].split("</tools>")[0]
    properties = json.loads(tools)["function"]["parameters"]["properties"]
    assert set(properties["action"]["enum"]) == set(ACTIONS)
    named = {name for required, optional in ACTIONS.values() for name in required + optional}
    assert named - set(properties) == {"count", "hpixels"}  # written only for actions that Qwen's tool lacks


@pytest.mark.parametrize("line", get_codec("guiderail").system_prompt("full").splitlines()[5:20])
def test_the_dsl_prompt_shows_readable_calls(line):
    call = line.split("  ")[0] if ")  " in line or ")" in line.split("  ")[0] else line
    assert isinstance(get_codec("guiderail").parse(call), Parsed), call


def test_an_unknown_codec_is_named():
    with pytest.raises(ValueError, match=r"xdotool.*guiderail.*qwen3vl"):
        get_codec("xdotool")
