"""Demonstrations on disk become rows whose spans hold exactly what the expert wrote."""

import json

import pytest
from worlds import PROCESSOR, NumberedFrames, make_policy

from guiderail.errors import InputError
from guiderail.models.frames import FrameStore
from guiderail.params import Prompt
from guiderail.tasks.types import TaskSpec
from guiderail.train.demos import load_demos


def write(folder, episodes):
    paint, store = NumberedFrames(), FrameStore(folder / "frames")
    lines = []
    for k, steps in enumerate(episodes):
        found = []
        for i, (action, thought) in enumerate(steps):
            sha = store.put(paint.png[paint.paint(10 * k + i)])
            found.append({"frame": sha, "action": action, "thought": thought})
        task = TaskSpec("toy", "t", k).to_json()
        lines.append(json.dumps({"task": task, "instruction": f"do {k}", "steps": found, "reward": 1.0}))
    (folder / "demos.jsonl").write_text("\n".join(lines) + "\n")


def spans(row):
    return [PROCESSOR.tokenizer.decode(row.ids[s:e]) for s, e in row.spans]


def test_rows_names_and_spans(tmp_path):
    from guiderail.actions.types import Click, Type
    from guiderail.actions.wire import action_to_json

    click, typed = action_to_json(Click(0.475, 0.25)), action_to_json(Type("Ann"))
    write(tmp_path, [[(click, 'click "OK"')], [(click, "click the textbox"), (typed, 'type "Ann"')]])
    policy = make_policy()
    found = load_demos(tmp_path, policy, Prompt(chunk_steps=3))
    assert found.tasks == ["toy/t/0/0", "toy/t/1/0"]
    assert found.names == ["demo toy/t/0/0 chunk 0", "demo toy/t/1/0 chunk 0"]
    assert spans(found.rows[0]) == ['Action: click "OK"\nCLICK(x=0.475, y=0.250)<|im_end|>']
    assert spans(found.rows[1])[1] == 'Action: type "Ann"\nTYPE(text="Ann")<|im_end|>'
    assert "do 1" in PROCESSOR.tokenizer.decode(found.rows[1].ids)
    bare = load_demos(tmp_path, policy, Prompt(chunk_steps=1, thought=False), limit=2)
    assert [spans(r) for r in bare.rows] == [
        ["CLICK(x=0.475, y=0.250)<|im_end|>"],
        ["CLICK(x=0.475, y=0.250)<|im_end|>"],
        ['TYPE(text="Ann")<|im_end|>'],
    ]
    assert len(load_demos(tmp_path, policy, Prompt(), limit=1).rows) == 1


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda line: line[: len(line) // 2], "JSONDecodeError"),
        (lambda line: "[]", "TypeError"),
        (lambda line: line.replace('"instruction"', '"instructions"'), "KeyError: 'instruction'"),
        (lambda line: line.replace('"frame": "', '"frame": "' + "0" * 64 + '", "was": "'), "KeyError: 'frame 000"),
    ],
)
def test_a_damaged_line_is_told_by_number(tmp_path, damage, words):
    from guiderail.actions.types import Click
    from guiderail.actions.wire import action_to_json

    click = (action_to_json(Click(0.475, 0.25)), "click")
    write(tmp_path, [[click], [click]])
    first, second = (tmp_path / "demos.jsonl").read_text().splitlines()
    (tmp_path / "demos.jsonl").write_text(f"{first}\n{damage(second)}\n")
    with pytest.raises(InputError) as e:
        load_demos(tmp_path, make_policy(), Prompt())
    assert str(e.value).startswith(f"{tmp_path / 'demos.jsonl'}, line 2: ") and words in str(e.value)
    assert "guiderail demos" in str(e.value)


def test_a_line_separator_in_an_instruction_does_not_cut_the_line(tmp_path):
    from guiderail.actions.types import Click
    from guiderail.actions.wire import action_to_json

    write(tmp_path, [[(action_to_json(Click(0.5, 0.5)), "click")]])
    demo = json.loads((tmp_path / "demos.jsonl").read_text()) | {"instruction": "one\u2028two"}
    (tmp_path / "demos.jsonl").write_text(json.dumps(demo, ensure_ascii=False) + "\n", encoding="utf-8")
    assert len(load_demos(tmp_path, make_policy(), Prompt()).rows) == 1


PIXELS = {"pyautogui", "qwen25vl", "ui_s1", "ui_tars15"}


def test_every_codec_writes_demonstrations_it_can_read(tmp_path):
    """Points in pixels are those of the frame after the processor's resize: 160x210 becomes 160x224."""
    from guiderail.actions.codec import CODECS, get_codec
    from guiderail.actions.types import Click, Parsed, Type
    from guiderail.actions.wire import action_to_json

    steps = [(action_to_json(a), "do it") for a in (Click(0.5, 0.25), Type("Ann"))]
    write(tmp_path, [steps])
    policy = make_policy()
    for name in sorted(CODECS):
        found = load_demos(tmp_path, policy, Prompt(codec=name, system="full"))
        codec = get_codec(name).at(160, 224)
        texts = [t.removesuffix("<|im_end|>") for t in spans(found.rows[0])]
        assert [codec.parse(t) for t in texts] == [Parsed(Click(0.5, 0.25), "do it"), Parsed(Type("Ann"), "do it")]
        assert ("80" in texts[0] and "56" in texts[0]) == (name in PIXELS)


def test_a_demonstration_that_the_format_cannot_say_is_named(tmp_path):
    from guiderail.actions.types import Open
    from guiderail.actions.wire import action_to_json

    write(tmp_path, [[(action_to_json(Open("Files")), "open it")]])
    with pytest.raises(ValueError, match="codec agentcpm cannot express Open"):
        load_demos(tmp_path, make_policy(), Prompt(codec="agentcpm"))
