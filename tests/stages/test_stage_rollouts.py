"""Where rl's episodes come from: phases draw tasks of their own and keep their records apart; recordings are read
whole."""

import json
from types import SimpleNamespace

import pytest

import recorded_world
from guiderail.envs.types import Outcome
from guiderail.models.frames import FrameStore
from guiderail.params import Params, Provision
from guiderail.params_train import Rl
from guiderail.rollout.store import read_episodes, stored_parts
from guiderail.rollout.types import Completion, Episode, SamplingParams, StepRecord
from guiderail.stages.rollouts import PoolRollouts, before, read_recorded
from guiderail.tasks.splits import build_manifest
from guiderail.tasks.types import TaskSpec

MANIFEST = build_manifest(Provision(templates=["click-test", "click-button"], heldout=["click-link"]))
PNG = b"\x89PNG\r\n\x1a\n"
SHORT = Rl(iterations=2, groups=2)
FILTERED = Rl(iterations=2, groups=2, filter_rounds=3)


def rollouts(phases: list[Rl], number: int, folder=None) -> PoolRollouts:
    tracker = SimpleNamespace(image=lambda *a: None, episodes=lambda made: None)
    ctx = SimpleNamespace(params=Params(), seed=0, work=folder, tracker=tracker)
    first, parts = before(phases, number)
    return PoolRollouts(ctx, phases[number], None, None, first, parts, ("", ""), MANIFEST, None)  # type: ignore[arg-type]


def episode(name: str) -> Episode:
    frames = FrameStore(None)
    said = Completion((1,), (-0.1,), "stop", "x")
    step = StepRecord(0, frames.put(PNG), 0, 4, said, SamplingParams(), "", "{}", "", 0, 0.0, 0.0)
    return Episode(name, name, 0, 0, TaskSpec("toy", "t", 0), "go", Outcome("failure", "step_limit", 0.0), (step,))


def test_no_task_is_trained_on_in_two_phases():
    phases = [SHORT, SHORT, FILTERED]
    drawn = [t.id for k in range(3) for i in range(2) for t in rollouts(phases, k).tasks(i)]
    assert len(set(drawn)) == len(drawn) == 12
    alone = rollouts([SHORT], 0)
    assert [t.id for i in range(2) for t in alone.tasks(i)] == drawn[:4]


@pytest.mark.parametrize("phases", [[FILTERED, SHORT], [SHORT, FILTERED], [SHORT, SHORT]])
def test_the_records_of_a_phase_are_not_written_over_by_the_next(tmp_path, phases):
    names = []
    for number, rl in enumerate(phases):
        own = rollouts(phases, number, tmp_path)
        for iteration in range(rl.iterations):
            for round in range(max(1, rl.filter_rounds)):
                names.append(f"phase {number} iteration {iteration} round {round}")
                frames = FrameStore(None)
                frames.put(PNG)
                own.record([episode(names[-1])], frames, iteration, round)
    assert [e.id for e in read_episodes(tmp_path / "rollouts")] == names
    assert stored_parts(tmp_path / "rollouts") == list(range(len(names)))


def test_a_recording_with_a_line_separator_in_its_instruction_is_one(tmp_path):
    recorded_world.write(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "demos.jsonl").read_text().splitlines()]
    told = [{**line, "instruction": f"Type a\u2028b\x85{k}"} for k, line in enumerate(lines)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in told)
    (tmp_path / "demos.jsonl").write_text(text, encoding="utf-8")
    found = read_recorded(tmp_path / "demos.jsonl", tmp_path / "frames")
    assert [r.goal for r in found.recordings.values()] == [line["instruction"] for line in told]
