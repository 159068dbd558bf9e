"""Thoughts from a teacher over real HTTP: paid for once, missing is an error or a counted drop, kills do no harm."""

import json
import os
import signal
import subprocess
import sys
import time

import cot_child
import pytest
from test_demos import spans, write
from worlds import make_policy

from chat_stub import ChatStub
from guiderail.actions.types import Click, Type
from guiderail.actions.wire import action_to_json
from guiderail.errors import InputError
from guiderail.params import Params, Prompt, parse
from guiderail.train.demos import load_demos, sayable

CLICK, TYPE = action_to_json(Click(0.5, 0.25)), action_to_json(Type("Ann"))
WHERE = {"url": "http://x", "model": "m"}
PROMPT = Prompt(max_new_tokens=60)


@pytest.fixture(scope="module")
def policy():
    return make_policy()


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, [[(CLICK, "own a")], [(CLICK, "own b"), (TYPE, "own c")]])
    return tmp_path


def annotate(folder, stub, policy=None, **more):
    usable = {"usable": sayable(folder, policy, PROMPT)} if policy else {}
    return cot_child.annotate(folder, stub.url, **usable, **more)


def text_of(request) -> str:
    return request["messages"][1]["content"][0]["text"]


def test_thoughts_reach_the_rows(folder, policy):
    with ChatStub(lambda body: [" press\n the thing "]) as stub:
        found = annotate(folder, stub, policy)
    assert found.thoughts == dict.fromkeys([(0, 0), (1, 0), (1, 1)], "press the thing") and not found.missing
    rows = load_demos(folder, policy, PROMPT, thoughts=found.thoughts).rows
    assert [s for r in rows for s in spans(r)] == [
        "Action: press the thing\nCLICK(x=0.500, y=0.250)<|im_end|>",
        "Action: press the thing\nCLICK(x=0.500, y=0.250)<|im_end|>",
        'Action: press the thing\nTYPE(text="Ann")<|im_end|>',
    ]
    assert found.summary() == {
        "answers": 3, "tokens_in": 3000, "tokens_out": 30, "thoughts": 3, "missing": 0,
        "price": pytest.approx(3000 * 5e-6 + 30 * 1e-4),
    }  # fmt: skip
    assert [(r["line"], r["step"], r["model"], r["tries"]) for r in found.record] == [
        (0, 0, "teacher", 1), (1, 0, "teacher", 1), (1, 1, "teacher", 1),
    ]  # fmt: skip


def test_the_teacher_sees_the_past_alone(folder):
    with ChatStub(lambda body: ["x"]) as stub:
        annotate(folder, stub)
    asked = {text_of(r) for r in stub.requests}
    (first,) = [t for t in asked if "do 1" in t and "none" in t]
    assert "Ann" not in first and "own" not in "".join(asked)  # neither what comes later, nor the expert's thought
    (second,) = [t for t in asked if "Ann" in t]
    assert "1. " in second and '"Click"' in second
    assert all(r["messages"][1]["content"][1]["image_url"]["url"].startswith("data:image/png") for r in stub.requests)


def test_an_answer_is_paid_for_once(folder):
    with ChatStub(lambda body: ["x"]) as stub:
        first, again = annotate(folder, stub), annotate(folder, stub)
        assert len(stub.requests) == 3
        assert (again.asked, again.remembered, again.price_now) == (0, 3, 0.0)
        assert again.summary() == first.summary() and first.from_cache()["answers"] == 0
        assert again.from_cache() == {"answers": 3, "price": again.price}
        assert again.thoughts == first.thoughts and again.price == pytest.approx(first.price)
        annotate(folder, stub, temperature=0.5)
        assert len(stub.requests) == 6  # asked otherwise, so another answer
    files = list((folder / "cache").rglob("*.json"))
    assert len(files) == 6
    known = json.loads(files[0].read_text())
    assert known["model"] == "stub-1" and known["asked"] and known["frame"] and known["tokens_in"] == 1000
    files[0].write_text('{"text": "x')  # the disk's doing
    with ChatStub(lambda body: ["x"]) as stub:
        annotate(folder, stub)
        annotate(folder, stub, temperature=0.5)
        assert len(stub.requests) == 1


def refuses(word):
    return lambda body: 400 if word in text_of(body) else ["x"]


def test_a_missing_thought_is_an_error_and_the_rest_is_kept(folder):
    words = r"demonstration 2, step 1: no usable thought.*HTTP 400"
    with ChatStub(refuses("Ann")) as stub, pytest.raises(InputError, match=words):
        annotate(folder, stub)
    with ChatStub(lambda body: ["x"]) as stub:
        found = annotate(folder, stub)
        assert len(found.thoughts) == 3 and found.asked == len(stub.requests) < 3


def test_or_a_drop_that_is_counted(folder, policy):
    with ChatStub(refuses("Ann")) as stub:
        found = annotate(folder, stub, on_missing="drop")
    assert found.summary()["missing"] == 1 and "HTTP 400" in found.missing[1, 1]
    assert [r["missing"] is None for r in found.record] == [True, True, False]
    demos = load_demos(folder, policy, PROMPT, thoughts=found.thoughts)
    assert demos.tasks == ["toy/t/0/0"] and demos.dropped == ["toy/t/1/0"] and len(demos.rows) == 1


@pytest.mark.parametrize(
    ("said", "why"),
    [("", "empty"), ("  \n ", "empty"), ("x" * 90, "tokens, prompt.max_new_tokens = 60")],
)
def test_unusable_answers_are_asked_again_and_then_missing(folder, policy, said, why):
    with ChatStub(lambda body: [said]) as stub:
        found = annotate(folder, stub, policy, on_missing="drop", tries=2)
        assert len(found.missing) == 3 and all(why in w for w in found.missing.values())
        assert len(stub.requests) == 6 and len({r["seed"] for r in stub.requests if text_of(r).count("Ann")}) == 2
        assert found.price_now == pytest.approx(6 * (1000 * 5e-6 + 10 * 1e-4))  # paid for all the same
    answers = [said]
    with ChatStub(lambda body: [answers.pop() if answers else "fine"]) as stub:
        assert len(annotate(folder, stub, policy, cache="other", tries=2).thoughts) == 3


def test_a_cut_answer_is_not_used(folder):
    choices = [{"message": {"content": "click the"}, "finish_reason": "length"}]
    with ChatStub(lambda body: (200, json.dumps({"choices": choices}), {})) as stub:
        found = annotate(folder, stub, on_missing="drop", tries=1)
    assert set(found.missing.values()) == {"the answer was cut at max_tokens"}


def test_killed_and_started_again(tmp_path):
    """SIGKILL in the middle: the next run asks for what was not answered, and every remembered answer is whole."""
    write(tmp_path, [[(CLICK, "t")] for _ in range(24)])

    def slow(body):
        time.sleep(0.05)
        return ["x"]

    with ChatStub(slow) as stub:
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen([sys.executable, cot_child.__file__, str(tmp_path), stub.url], env=env)
        while len(stub.requests) < 9 or not any((tmp_path / "cache").rglob("*.json")):
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kept = [json.loads(p.read_text()) for p in (tmp_path / "cache").rglob("*.json")]
        before = len(stub.requests)
        assert 0 < len(kept) < 24
        found = annotate(tmp_path, stub)
        assert found.remembered == len(kept) and len(stub.requests) - before == 24 - len(kept) == found.asked
        assert len(found.thoughts) == 24


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sft": {"cot": {"source": "teacher"}}}, "sft.cot.endpoint: url and model are needed"),
        ({"sft": {"cot": {"source": "none"}}}, "prompt.thought is true"),
        (
            {"prompt": {"thought": False}, "sft": {"cot": {"source": "teacher", "endpoint": WHERE}}},
            "would go unused",
        ),
        ({"sft": {"cot": {"endpoint": {"key_env": "sk-1"}}}}, "the key itself never stands in a file"),
    ],
)  # fmt: skip
def test_parameters_that_cannot_work(change, words):
    with pytest.raises(SystemExit, match=words):
        parse(change)
    assert Params.model_validate({"prompt": {"thought": False}, "sft": {"cot": {"source": "none"}}})
