"""Our own episodes and demonstrations as recordings; what cannot be one is counted."""

from guiderail.actions.types import Click, Type
from guiderail.actions.wire import action_dumps, action_to_json
from guiderail.envs.types import Outcome
from guiderail.rollout.export import demo_recordings, recordings
from guiderail.rollout.types import Completion, Episode, SamplingParams, StepRecord
from guiderail.tasks.types import TaskSpec


def step(k, action, error=""):
    return StepRecord(
        k,
        f"frame{k}",
        0,
        5,
        Completion((1,), (-0.1,), "stop", "t"),
        SamplingParams(),
        f"thought {k}",
        action,
        error,
        0,
        0,
        0,
    )


def episode(name, kind, *steps):
    outcome = Outcome(kind, "env_done", 1.0 if kind == "success" else 0.0 if kind == "failure" else None)
    return Episode(name, "g", 0, 0, TaskSpec("miniwob", "click-test", 3), "press it", outcome, steps)


def test_successes_become_recordings_and_the_rest_is_counted():
    click, text = action_dumps(Click(0.25, 0.5)), action_dumps(Type("it's"))
    found, left = recordings(
        [
            episode("a", "success", step(0, click), step(1, text)),
            episode("b", "failure", step(0, click)),
            episode("c", "infra_error", step(0, click)),
            episode("d", "success", step(0, "", "no call")),
            episode("e", "success"),
        ],
        lambda sha: (160, 210),
    )
    assert left == {"a step without an action": 2, "failure": 1, "infra_error": 1}
    (one,) = found
    assert (one.id, one.goal) == ("a", "press it")
    assert [(s.frame, s.expected.action, s.thought) for s in one.steps] == [
        ("frame0", Click(0.25, 0.5), "thought 0"),
        ("frame1", Type("it's"), "thought 1"),
    ]
    assert (one.steps[0].width, one.steps[0].height) == (160, 210)


def test_demonstrations():
    task = TaskSpec("miniwob", "click-test", 3, wording=1)
    line = {
        "task": task.to_json(),
        "instruction": "press it",
        "steps": [{"frame": "f", "action": action_to_json(Click(0.5, 0.5)), "thought": "there"}],
        "reward": 1.0,
    }
    (one,) = demo_recordings([line], lambda sha: (160, 210))
    assert (one.id, one.goal, one.steps[0].expected.action) == (task.id, "press it", Click(0.5, 0.5))
