"""Recorded data in three dialects: loaded whole, refused by line, swipes told apart, gaps reported."""

import json
import os
from pathlib import Path

import pytest

from guiderail.actions.types import Answer, Click, Drag, Finish, Key, LongPress, Nav, Open, Type, Wait
from guiderail.errors import InputError
from guiderail.rewards.match import match
from guiderail.rewards.match_reference import reference_sop_match, reference_train_match
from guiderail.tasks.android_control import load
from guiderail.tasks.recorded import scroll_direction

SHOT = "/datasets/AndroidControl/images/{}_{}.png"


def step(k=0, episode=7, check=None, **more):
    action = more.pop("action")
    found = {"action_content": action, "screenshot": SHOT.format(episode, k), **more}
    return found | ({"check_options": check} if check is not None else {})


def write(tmp_path, *rows):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def row(*steps, **more):
    return {"goal": "publish it", "is_successful": True, "steps": list(steps), **more}


CLICK = {"action": "click", "coordinate": [540, 1200]}
UP = {"action": "swipe", "coordinate": [540, 1800], "coordinate2": [540, 600]}


def test_eval_dialect(tmp_path):
    check = {**CLICK, "candidate_bbox": [[456, 1320, 600, 1080], [0, 480, 1080, 2400]]}  # first corners swapped
    steps = [
        step(0, action=CLICK, check=check, step_instruction="tap it"),
        step(1, action=UP, check={"action": "swipe", "direction": "down"}, step_instruction="scroll down"),
        step(2, action={"action": "open", "text": "Mail"}, check={"action": "open", "text": "Mail"}),
    ]
    (found,), report = load(write(tmp_path, row(*steps, episode_id=12)))
    assert (found.id, found.goal, len(found.steps)) == ("12", "publish it", 3)
    first, second, third = found.steps
    assert first.expected.action == Click(0.5, 0.5) and (first.width, first.height) == (1080, 2400)
    assert first.expected.boxes == ((456 / 1080, 0.45, 600 / 1080, 0.55), (0.0, 0.2, 1.0, 1.0))
    assert second.expected.action == Drag(0.5, 0.75, 0.5, 0.25) and second.expected.direction == "down"
    assert third.expected.action == Open("Mail") and third.instruction == "" and first.instruction == "tap it"
    assert report.to_json() == {
        "rows": 1,
        "steps": 3,
        "dialects": {"eval": 1},
        "actions": {"click": 1, "open": 1, "swipe": 1},
        "lacks": {
            "box of a click": 0, "check_options": 0, "direction of a swipe": 0, "screen size (assumed)": 3,
            "step_instruction": 1, "thought": 3,
        },
        "swipes": "gesture",
    }  # fmt: skip


def test_train_and_thought_dialects(tmp_path):
    train = row(step(0, 3, action={**CLICK, "bbox": [360, 1080, 720, 1320]}), step(1, 3, action=UP))
    thought = row(
        step(0, 4, action=CLICK, action_description="d", motivation="m"), step(1, 4, action=CLICK, thought="t")
    )
    (a, b), report = load(write(tmp_path, train, thought), swipes="gesture")
    assert (a.id, b.id) == ("3", "4") and report.dialects == {"train": 1, "thought": 1}
    assert a.steps[0].expected.boxes == ((360 / 1080, 0.45, 720 / 1080, 0.55),)
    assert [s.thought for s in b.steps] == ["m", "t"] and report.lacks["box of a click"] == 2


def test_steps_that_are_no_model_to_follow_are_reported(tmp_path):
    """The reference turns the reward of a HARMFUL step round; here such steps are the file's, and told."""
    steps = [step(k, action=CLICK, annotation=a) for k, a in enumerate(("GOOD", "HARMFUL", "NEUTRAL", "HARMFUL"))]
    _, report = load(write(tmp_path, row(*steps)))
    told = {k: n for k, n in report.lacks.items() if "annotation" in k}
    assert told == {
        "a good expert step (annotation HARMFUL)": 2,
        "a good expert step (annotation NEUTRAL)": 1,
    }


def test_a_goal_with_a_line_separator_is_one_line(tmp_path):
    path = tmp_path / "odd.jsonl"
    path.write_text(
        json.dumps(row(step(action=CLICK), goal="send\u2028this\x85"), ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (found,), _ = load(path)
    assert found.goal == "send\u2028this\x85"


def test_a_swipe_is_never_guessed(tmp_path):
    bare = write(tmp_path, row(step(action=UP)))
    with pytest.raises(InputError, match="swipes='gesture'"):
        load(bare)
    finger, scroll = (load(bare, swipes=s)[0][0].steps[0].expected.action for s in ("gesture", "scroll"))
    assert (finger, scroll) == (Drag(0.5, 0.75, 0.5, 0.25), Drag(0.5, 0.25, 0.5, 0.75))
    assert (scroll_direction(finger, 1080, 2400), scroll_direction(scroll, 1080, 2400)) == ("down", "up")
    said = write(tmp_path, row(step(action=UP, check={"action": "swipe", "direction": "down"})))
    with pytest.raises(InputError, match="own directions say 'gesture'"):
        load(said, swipes="scroll")
    both = row(
        step(0, action=UP, check={"action": "swipe", "direction": "down"}),
        step(1, action=UP, check={"action": "swipe", "direction": "up"}),
    )
    with pytest.raises(InputError, match="1 vertical swipes are gestures, 1 follow"):
        load(write(tmp_path, both))


def test_a_sideways_direction_names_the_finger(tmp_path):
    left = {"action": "swipe", "coordinate": [900, 1200], "coordinate2": [100, 1200]}
    (found,), _ = load(
        write(tmp_path, row(step(action=left, check={"action": "swipe", "direction": "left"}))), swipes="gesture"
    )
    expected = found.steps[0].expected
    assert expected.direction == "right" == scroll_direction(expected.action, 1080, 2400)
    with pytest.raises(InputError, match="a swipe left is said to be right"):
        load(write(tmp_path, row(step(action=left, check={"action": "swipe", "direction": "right"}))))


@pytest.mark.parametrize(
    ("raw", "action"),
    [
        ({"action": "long_press", "coordinate": [540, 1200], "time": 2}, LongPress(0.5, 0.5, 2.0)),
        ({"action": "type", "text": "it's"}, Type("it's")),
        ({"action": "answer", "text": "7"}, Answer("7")),
        ({"action": "key", "text": "volume_up"}, Key(("volume_up",))),
        ({"action": "system_button", "button": "Back"}, Nav("back")),
        ({"action": "system_button", "button": "Menu"}, Nav("menu")),
        ({"action": "system_button", "button": "Enter"}, Key(("enter",))),
        ({"action": "wait", "time": 2}, Wait(2.0)),
        ({"action": "terminate", "status": "failure"}, Finish("failure")),
    ],
)
def test_every_action(tmp_path, raw, action):
    (found,), _ = load(write(tmp_path, row(step(action=raw))))
    s = found.steps[0]
    assert s.expected.action == action
    assert match(action, s.expected, s.width, s.height).exact


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (row(step(action={"action": "tap"})), "line 2: step 0: unknown action 'tap'"),
        (row(step(action={**CLICK, "x": 1})), r"has unknown \['x'\]"),
        (row(step(action={"action": "type"})), r"lacks \['text'\]"),
        (row(step(action=CLICK, colour="red")), r"has unknown \['colour'\]"),
        (row(step(action=CLICK, check={**CLICK, "coordinate": [1, 2]})), "disagree on"),
        (row(step(action=CLICK, annotation="BAD")), "annotation"),
        (row(step(action={"action": "click", "coordinate": [-1, 5]})), "outside a screen"),
        (row(step(action={**CLICK, "bbox": [[1, 2, 3]]})), "four numbers"),
        (row(step(action={"action": "system_button", "button": "Up"})), "system_button"),
        (row(), "needs a goal and steps"),
        (row(step(action=CLICK), mood="?"), r"has unknown \['mood'\]"),
        (row(step(action=CLICK, episode=1)), "episode 1 occurs twice"),
    ],
)
def test_what_is_not_understood_is_refused_by_line(tmp_path, bad, text):
    with pytest.raises(InputError, match=text):
        load(write(tmp_path, row(step(action=CLICK, episode=1)), bad))


def test_sizes_come_from_pictures_or_are_counted_as_assumed(tmp_path):
    wide = {"action": "click", "coordinate": [1800, 540]}
    path = write(tmp_path, row(step(action=wide)))
    (known,), report = load(path, size_of=lambda name: (2400, 1080))
    assert known.steps[0].expected.action == Click(0.75, 0.5) and not report.lacks["screen size (assumed)"]
    (widened,), report = load(path)
    assert widened.steps[0].width == 1801 and report.lacks["screen size (assumed too small, widened)"] == 1


DATA = Path(os.environ.get("GUIDERAIL_ANDROID_CONTROL", "nowhere"))


def replay(recordings, verdict):
    """(steps before the first miss, whole trajectories, mean progress in %) of the expert's own actions."""
    leading = []
    for r in recordings:
        hits = [verdict(s) for s in r.steps]
        leading.append(hits.index(False) if False in hits else len(hits))
    whole = sum(s == len(r.steps) for s, r in zip(leading, recordings, strict=True))
    return (
        sum(leading),
        whole,
        100 * sum(s / len(r.steps) for s, r in zip(leading, recordings, strict=True)) / len(leading),
    )


@pytest.mark.skipif(not DATA.is_dir(), reason="UI-S1's JSONL does not ship; GUIDERAIL_ANDROID_CONTROL names its folder")
def test_whole_files_and_the_references_own_figures():
    """UI-S1's training scorer fails its own ground truth: 6,826 of 8,444 steps and 162 of 206, as published."""
    evaluation, report = load(DATA / "android_control_evaluation_std.jsonl")
    assert (report.rows, report.steps, report.swipes) == (1543, 8444, "gesture")
    assert report.actions == {
        "click": 5074, "swipe": 1211, "type": 632, "open": 608, "wait": 567, "system_button": 343, "long_press": 9
    }  # fmt: skip
    train, report = load(DATA / "android_control_train_example.jsonl", swipes="scroll")
    assert (report.rows, report.steps, report.actions["terminate"]) == (32, 206, 32)
    for recordings in (evaluation, train):
        n = sum(len(r.steps) for r in recordings)
        ours = replay(recordings, lambda s: match(s.expected.action, s.expected, s.width, s.height).exact)
        assert ours == (n, len(recordings), pytest.approx(100))
    theirs = replay(evaluation, lambda s: reference_train_match(s.expected.action, s).exact)
    assert theirs == (6826, 1152, pytest.approx(83.6547, abs=5e-5))
    assert replay(evaluation, lambda s: reference_sop_match(s.expected.action, s).exact)[:2] == (8444, 1543)
    as_stored, _ = load(DATA / "android_control_train_example.jsonl", swipes="gesture")
    theirs = replay(as_stored, lambda s: reference_train_match(s.expected.action, s).exact)
    assert theirs == (162, 23, pytest.approx(79.5637, abs=5e-5))
    clicks = [s for r in evaluation for s in r.steps if isinstance(s.expected.action, Click)]
    centre = sum(match(Click(0.5, 0.5), s.expected, s.width, s.height).exact for s in clicks)
    assert 136 <= centre < 1296 / 3  # 1,296 pass when every container counts, 136 by distance alone
    reversed_swipes = [s for r in evaluation for s in r.steps if isinstance(a := s.expected.action, Drag)]
    for s in reversed_swipes:
        a = s.expected.action
        assert not match(Drag(a.x2, a.y2, a.x, a.y), s.expected, s.width, s.height).exact
    texts = [s for r in evaluation for s in r.steps if isinstance(s.expected.action, Type | Open)]
    assert not any(match(type(s.expected.action)(""), s.expected, s.width, s.height).exact for s in texts)
