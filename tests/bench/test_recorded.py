"""Recorded benchmarks as the evaluate stage plays them: what is read, asked, and put into rows."""

import json

import pytest

import recorded_world
from guiderail.bench import sop
from guiderail.bench.predict import Batcher, PolicyPredict
from guiderail.bench.recorded import android_trials, own_trials, table
from guiderail.errors import InputError
from guiderail.models.prompts import PromptBuilder
from guiderail.models.sizing import ImageSizing
from guiderail.params import AndroidControl, Evaluate
from guiderail.params import Prompt as PromptParams
from recorded_world import Words
from tinyvlm import NumberedFrames


@pytest.fixture
def folder(tmp_path):
    return recorded_world.write(tmp_path)


def test_first_episodes_of_each_split(folder):
    trials = own_trials(folder, Evaluate(episodes=2))
    assert [t.split for t in trials.tasks.values()] == ["fresh", "fresh", "heldout"]
    assert [r.id for r in trials.recordings] == [t.id for t in trials.tasks.values()]
    step = trials.recordings[0].steps[0]
    assert (step.width, step.height) == (160, 210) and step.expected.boxes == ((0.4, 0.55, 0.6, 0.65),)
    assert trials.png(step.frame).startswith(b"\x89PNG")
    (folder / "demos.jsonl").write_text("")
    with pytest.raises(InputError, match=r"Raise demos\.recorded"):
        own_trials(folder, Evaluate())


def test_a_goal_with_a_line_separator_is_one_line(folder):
    lines = [json.loads(line) for line in (folder / "demos.jsonl").read_text().splitlines()]
    told = [{**line, "instruction": f"Type a\u2028b\x85{k}"} for k, line in enumerate(lines)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in told)
    (folder / "demos.jsonl").write_text(text, encoding="utf-8")
    assert [r.goal for r in own_trials(folder, Evaluate()).recordings] == [line["instruction"] for line in told]


def play(processor, trials, answers, tmp_path, protocol="sop"):
    sizing = ImageSizing.from_processor(processor)
    builder = PromptBuilder(processor.tokenizer, PromptParams(max_new_tokens=9), sizing.tokens, sizing.resized)
    engine = Words(processor.tokenizer, answers)
    with Batcher(engine) as batcher:
        predict = PolicyPredict(batcher, builder, NumberedFrames(), trials.png, 0.0, 0)
        lines = sop.run(
            trials.recordings, predict, tmp_path / f"{protocol}.jsonl", "m", rules=trials.rules, workers=4,
            protocol=protocol,
        )  # fmt: skip
    return lines, engine


def test_a_policy_on_recordings(processor, folder, tmp_path):
    trials = own_trials(folder, Evaluate())
    good, beside = "Action: a\nCLICK(x=0.420, y=0.640)", "Action: a\nCLICK(x=0.620, y=0.600)"
    answers = {
        "goal 0": [good, 'Action: b\nTYPE(text="Ann")'],
        "goal 1": [good, 'Action: b\nTYPE(text="ann")'],  # pages compare to the letter
        "goal 2": [beside],
        "goal 3": ["gibberish"],
    }
    lines, engine = play(processor, trials, answers, tmp_path)
    assert [(x["s"], x["success"]) for x in lines] == [(2, True), (1, False), (0, False), (0, False)]
    assert max(engine.batches) > 1 and sum(engine.batches) == 6
    second = next(p for p in engine.prompts if "goal 0" in p and p.count("<|im_start|>assistant") == 2)
    assert good + "<|im_end|>" in second  # its own words are its history
    rows = table(lines, trials, "rl")
    assert list(rows["success"]) == [True, False, False, False] and list(rows["reward"]) == [1.0, 0.5, 0.0, 0.0]
    assert list(rows["parse_failures"]) == [0, 0, 0, 1] and list(rows["kind"]) == ["success"] + ["failure"] * 3


def test_a_step_is_kept_as_it_was_sampled_and_seen(processor, folder, tmp_path):
    """Thought, tokens with their log-probs, frame and verdict of every step, as rows of pages have them."""
    trials = own_trials(folder, Evaluate(episodes=1))
    answers = {"goal 0": ["Action: to the field\nCLICK(x=0.420, y=0.640)", "mumble"], "goal 3": ["mumble"]}
    lines, _ = play(processor, trials, answers, tmp_path)
    row = table(lines, trials, "rl").set_index("split").loc["fresh"]
    said = {k: json.loads(row[k]) for k in ("thoughts", "texts", "problems", "ids", "logprobs", "matched", "frames")}
    assert said["thoughts"] == ["to the field", ""] and said["texts"] == answers["goal 0"]
    assert said["problems"][0] == "" and said["problems"][1].startswith("No call") and said["matched"] == [True, False]
    end = processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert said["ids"] == [[*processor.tokenizer.encode(t), end] for t in answers["goal 0"]]
    assert said["logprobs"] == [[round(-i / 3, 6) for i in range(len(ids))] for ids in said["ids"]]
    assert said["frames"] == [s.frame for s in trials.recordings[0].steps] and row["last_frame"] == ""
    assert row["tokens"] == sum(map(len, said["ids"])) and row["seconds"] > 0


def test_a_missing_frame_is_no_failure(processor, folder, tmp_path):
    trials = own_trials(folder, Evaluate(episodes=1))
    gone = trials.recordings[0].steps[0].frame
    (folder / "frames" / f"{gone}.png").unlink()
    fresh, held = play(processor, trials, {"goal 3": ["x"]}, tmp_path)[0]
    assert fresh["error"]["kind"] == "crash" and fresh["s"] is None and held["s"] == 0
    rows = table([fresh, held], trials, "rl")
    assert rows["success"].isna().tolist() == [True, False] and rows["kind"].tolist() == ["infra_error", "failure"]


def test_an_engine_that_fails_ends_the_run(processor, folder, tmp_path):
    trials = own_trials(folder, Evaluate(episodes=1))
    with pytest.raises(KeyError):
        play(processor, trials, {}, tmp_path)


@pytest.fixture
def android(tmp_path):
    """Two trajectories in the format of AndroidControl's evaluation file."""
    rows = []
    for e in (7, 8):
        steps = []
        for k, a in enumerate(({"action": "click", "coordinate": [80, 100]}, {"action": "wait", "time": 1})):
            steps.append({"action_content": a, "check_options": a, "screenshot": f"/x/{e}_{k}.png",
                          "step_instruction": f"do {k}"})  # fmt: skip
        rows.append({"goal": f"goal {e}", "is_successful": True, "episode_id": e, "steps": steps})
    file = tmp_path / "ac.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return file


def test_teacher_forced_low_tells_each_steps_instruction(processor, android, tmp_path):
    p = Evaluate(episodes=1, android_control=AndroidControl(path=str(android), blank=True))
    trials = android_trials(p, "low")
    assert [r.id for r in trials.recordings] == ["7"] and trials.about["blank"]
    hit = "Action: a\nCLICK(x=0.074, y=0.042)"
    (line,), engine = play(processor, trials, {"do 0": [hit], "do 1": ["", "DONE()"]}, tmp_path, "low")
    assert [s["exact"] for s in line["steps"]] == [True, False] and line["s"] == 1
    assert ["do 1" in p for p in engine.prompts] == [False, True] and "CLICK(x=0.074" in engine.prompts[1]
    assert table([line], trials, "rl")["reward"].tolist() == [0.5]


def test_screenshots_must_be_there_unless_none_are_wanted(android, tmp_path):
    p = Evaluate(android_control=AndroidControl(path=str(android), frames=str(tmp_path)))
    with pytest.raises(InputError, match=r"lacks 4 screenshots, e\.g\. 7_0\.png"):
        android_trials(p, "high")
