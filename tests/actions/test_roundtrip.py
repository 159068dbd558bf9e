"""Every codec: parse is total, render and parse are inverse, and what is parsed can be carried to an environment."""

import itertools
import json
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guiderail.actions.codec import get_codec
from guiderail.actions.prompts_full import SHORT_SYSTEM
from guiderail.actions.types import (
    Answer,
    Click,
    Drag,
    Finish,
    Key,
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

CODECS = [get_codec("guiderail"), get_codec("qwen3vl")]
each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)

fraction = st.floats(0, 1)
# All of unicode with surrogates, and a second source rich in what breaks parsers.
nasty = st.text(st.sampled_from("a'\"\\\n\t\r <>|+=(),;:{}[]un0\x00\x7f\x85\u2028\ud800\udc00é😀"), max_size=12)
text = st.one_of(
    st.text(st.characters(codec=None), max_size=12),
    nasty,
    st.sampled_from(
        [
            "<|im_end|>",
            "</tool_call>",
            "<tool_call>",
            "Action: DONE()",
            "click (3, 4)",
            "CLICK(x=0.1, y=0.2)",
            "DONE()",
            "Thought: a\nAction: b",
            "<think>x</think>",
            'TYPE(text="',
            "TYPE(text='a",
            r"\u0041\n",
            " ",
            "\ud83d\ude00",
        ]
    ),
)
key = text.filter(lambda k: k == " " or k.strip() != "")
action = st.one_of(
    st.builds(Click, fraction, fraction, st.sampled_from(["left", "right", "middle"]), st.integers(1, 3)),
    st.builds(Move, fraction, fraction),
    st.builds(Drag, fraction, fraction, fraction, fraction),
    st.builds(Scroll, fraction, fraction, st.integers(-10_000, 10_000), st.integers(-10_000, 10_000)),
    st.builds(Type, text),
    st.builds(Key, st.lists(key, min_size=1, max_size=4).map(tuple)),
    st.builds(Wait, st.floats(0, 600)),
    st.builds(Open, text),
    st.builds(Answer, text),
    st.builds(Nav, st.sampled_from(["back", "home", "recent", "menu"])),
    st.builds(Finish, st.sampled_from(["success", "failure"])),
)


def joined(s: str) -> str:
    """Surrogate pairs joined, by UTF-16 (independent of the code under test only in that it is the definition)."""
    return s.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@each_codec
@settings(max_examples=200, deadline=None)
@given(a=action, thought=text)
@example(a=Type("b')"), thought="TYPE(text='a")
@example(a=Type("b"), thought='TYPE(text="a')
@example(a=Finish(), thought="DONE()")
@example(a=Key(("+",)), thought="+")
@example(a=Key(("+", "\\", "a+b", " ")), thought="\\")
def test_parse_undoes_render(codec, a, thought):
    rendered = codec.render(a, thought)
    assert codec.parse(rendered) == Parsed(codec.quantise(a), joined(thought))
    rendered.encode("utf-8")  # no lone surrogate gets out
    assert "<|" not in rendered and rendered.count("<tool_call>") <= 1


@each_codec
@settings(max_examples=60, deadline=None)
@given(a=action)
def test_quantise_is_near_and_idempotent(codec, a):
    q = codec.quantise(a)
    assert codec.quantise(q) == q and codec.parse(codec.render(a)) == Parsed(q, "")
    for f in ("x", "y", "x2", "y2", "seconds"):
        if hasattr(a, f):
            assert math.isclose(getattr(q, f), getattr(a, f), abs_tol=0.00051)


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
@settings(max_examples=250, deadline=None)
@given(text=st.one_of(fragments, text, st.text(max_size=60)))
def test_parse_is_total(codec, text):
    assert_read_or_refused(codec, text)


@each_codec
@settings(max_examples=100, deadline=None)
@given(a=action, thought=text, at=st.integers(0, 200), cut=st.integers(0, 5), put=nasty)
def test_parse_is_total_on_damaged_calls(codec, a, thought, at, cut, put):
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
    ],
    ids=range(10),
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
        Scroll(0.5, 0.5, 0, 10_001),
        Click(0.5, 0.5, "fourth"),
        Nav("up"),
        Finish("maybe"),
    ],
    ids=repr,
)
def test_render_refuses_what_is_no_action(codec, bad):
    with pytest.raises(ValueError):
        codec.render(bad)
    with pytest.raises(TypeError):
        codec.render("CLICK")


@each_codec
def test_system_prompts(codec):
    assert codec.system_prompt("none") == ""
    assert codec.system_prompt("short") == SHORT_SYSTEM == "Work the screen."
    full, bare = codec.system_prompt("full"), codec.system_prompt("full", thought=False)
    assert "Action: " in full and "Action: " not in bare and full != bare


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


@pytest.mark.parametrize("line", get_codec("guiderail").system_prompt("full").splitlines()[5:19])
def test_the_dsl_prompt_shows_readable_calls(line):
    call = line.split("  ")[0] if ")  " in line or ")" in line.split("  ")[0] else line
    assert isinstance(get_codec("guiderail").parse(call), Parsed), call


def test_an_unknown_codec_is_named():
    with pytest.raises(ValueError, match=r"pyautogui.*guiderail.*qwen3vl"):
        get_codec("pyautogui")
