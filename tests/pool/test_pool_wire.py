"""Codecs of the pool: every action and result comes back as it went; anything else is refused by name."""

import hashlib
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guiderail.actions import types as a
from guiderail.actions.wire import action_dumps, action_from_json, action_to_json
from guiderail.envs.types import Observation, StepResult
from guiderail.pool.wire import decode_result, encode_result, task_from_json
from guiderail.tasks.types import TaskSpec

number = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(max_size=40)
notch = st.integers(-100, 100)
actions = st.one_of(
    st.builds(a.Click, number, number, st.sampled_from(["left", "right", "middle"]), st.integers(1, 3)),
    st.builds(a.Move, number, number),
    st.builds(a.Drag, number, number, number, number),
    st.builds(a.Scroll, number, number, notch, notch),
    st.builds(a.Type, text),
    st.builds(a.Key, st.lists(text, min_size=1, max_size=4).map(tuple)),
    st.builds(a.Wait, number),
    st.builds(a.Open, text),
    st.builds(a.Answer, text),
    st.builds(a.Nav, st.sampled_from(["back", "home", "recent", "menu"])),
    st.builds(a.Finish, st.sampled_from(["success", "failure"])),
)


@settings(deadline=None)
@given(actions)
def test_every_action_comes_back(action: a.Action) -> None:
    assert action_from_json(action_to_json(action)) == action
    assert action_from_json(action_dumps(action)) == action
    assert action_dumps(action_from_json(action_dumps(action))) == action_dumps(action)


def test_canonical_text_is_as_documented() -> None:
    assert action_dumps(a.Click(0.475, 0.25)) == '{"kind":"Click","x":0.475,"y":0.25,"button":"left","count":1}'
    assert action_dumps(a.Key(("ctrl", "a"))) == '{"kind":"Key","keys":["ctrl","a"]}'
    assert action_dumps(a.Type("ä\n'\\<")) == '{"kind":"Type","text":"ä\\n\'\\\\<"}'
    assert action_dumps(a.Click(0, -0.0)) == action_dumps(a.Click(0.0, 0.0))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"kind": "Exec", "code": "1"}, "unknown action kind 'Exec'"),
        ({"kind": "Click", "x": 0.1}, "Click: field y is missing"),
        ({"kind": "Click", "x": 0.1, "y": 0.1, "z": 1}, "unknown field z"),
        ({"kind": "Click", "x": "0.1", "y": 0.1}, "Click.x must be a finite number"),
        ({"kind": "Click", "x": True, "y": 0.1}, "Click.x must be a finite number"),
        ({"kind": "Click", "x": math.nan, "y": 0.1}, "Click.x must be a finite number"),
        ({"kind": "Click", "x": 0.1, "y": 0.1, "button": "fourth"}, "Click.button must be one of left, right, middle"),
        ({"kind": "Key", "keys": "ctrl"}, "Key.keys must be a list"),
        ({"kind": "Key", "keys": []}, "Key.keys must be a list"),
        ({"kind": "Finish", "status": "maybe"}, "Finish.status must be one of"),
        ({"x": 1}, "unknown action kind None"),
        ([1], "an action is a JSON object, not list"),
        ({"kind": ["Click"]}, "unknown action kind"),
    ],
)
def test_bad_actions_are_named(data: object, said: str) -> None:
    with pytest.raises(ValueError) as e:
        action_from_json(data)
    assert said in str(e.value)


@settings(max_examples=30, deadline=None)
@given(st.recursive(st.none() | st.booleans() | number | text, lambda x: st.lists(x) | st.dictionaries(text, x)))
def test_any_json_is_an_action_or_a_value_error(data: object) -> None:
    with pytest.raises(ValueError):
        action_from_json(data)


@settings(deadline=None)
@given(st.binary(max_size=200), text, st.booleans(), number, st.dictionaries(text, st.integers(-5, 5), max_size=3))
def test_results_come_back(png: bytes, instruction: str, done: bool, reward: float, info: dict[str, int]) -> None:
    seen = Observation(hashlib.sha256(png).hexdigest(), 160, 210, instruction, 3, png)
    back = decode_result(encode_result(StepResult(seen, done, reward, info)))
    assert (back.observation, back.done, back.raw_reward, back.info) == (seen, done, reward, info)
    assert back.observation.png == png


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_damaged_results_are_value_errors(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decode_result(raw)


def test_a_flipped_frame_byte_is_noticed() -> None:
    png = b"picture"
    raw = bytearray(encode_result(StepResult(Observation(hashlib.sha256(png).hexdigest(), 1, 1, "", 0, png), False)))
    raw[-1] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        decode_result(bytes(raw))
    with pytest.raises(ValueError, match="damaged"):
        decode_result(bytes(raw[:-1]))


def test_tasks() -> None:
    task = TaskSpec("miniwob", "click-button", 2**50 - 1, "fresh", 1, "click", 4, 0.5)
    assert task_from_json(json.loads(json.dumps(task.to_json()))) == task
    for bad, said in [
        ({"suite": "m", "template": "t"}, "seed is missing"),
        ({"suite": "m", "template": "t", "seed": "1"}, "task.seed must be of type int"),
        ({"suite": "m", "template": "t", "seed": True}, "task.seed must be of type int"),
        ({"suite": "m", "template": "t", "seed": 1, "oracle": 1}, "unknown field 'oracle'"),
        ([], "must be a JSON object"),
    ]:
        with pytest.raises(ValueError, match=said):
            task_from_json(bad)
