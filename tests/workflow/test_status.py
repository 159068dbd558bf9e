"""`guiderail status` in a real project with dummy stages: to do, running, killed, failed, done, stale."""

import json
import os
import signal
import time

import pytest

from guiderail.stages import attempts
from guiderail.stages.paths import WORK
from guiderail.status import Row, brief, changes, goes_on, held, reached, saved, show


def state(project):
    """Job -> (state, why, snakemake's view)."""
    return {
        r["job"]: (r["state"], r["why"], r["snakemake"])
        for r in json.loads(project.run("guiderail", "status", "--json"))
    }


def test_the_life_of_a_chain(project):
    p = project
    p.set("sweep.recipe", ["grpo"])
    p.set("sweep.seed", [0])
    running = p.popen("guiderail", "provision", DUMMY_SLEEP="60")
    deadline = time.monotonic() + 60
    while not list((p.path / WORK).glob("provision/*/attempt.json")):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    found = state(p)
    assert found["provision"][0] == "running" and f"process {running.pid}" in found["provision"][1]
    assert {found[j][0] for j in found if j != "provision"} == {"to do"}
    assert {view for _, _, view in found.values()} == {"would run"}
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert attempts.notes(p.path / WORK)["provision"][0].why == ""

    p.dvc("repro", check=False, DUMMY_FAIL="prm@grpo-0")
    found = state(p)
    assert found["provision"] == found["demos"] == found["sft@0"] == ("done", "", "up to date")
    assert found["prm@grpo-0"][:2] == ("failed", "RuntimeError: injected failure in prm@grpo-0")
    assert found["rl@grpo-0"][0] == "to do"

    p.set("demos.per_template", 7)
    found = state(p)
    assert found["demos"][0] == "stale" and "demos modified" in found["demos"][1].replace(".per_template", "")
    assert found["demos"][2] == "would run" and found["provision"] == ("done", "", "up to date")
    assert found["sft@0"] == ("stale", "a stage above it is not up to date", "would run")


def test_while_dvc_runs_a_stage(project):
    """DVC locks what it works on and refuses to be asked about it."""
    p = project
    p.set("sweep.recipe", ["grpo"])
    p.set("sweep.seed", [0])
    p.dvc("repro", "--single-item", "provision")
    p.ran()
    running = p.popen("dvc", "repro", "--single-item", "demos", DUMMY_SLEEP="60")
    try:
        deadline = time.monotonic() + 60
        while "demos" not in p.log.read_text():
            assert time.monotonic() < deadline and running.poll() is None
            time.sleep(0.1)
        found = state(p)
        assert found["provision"] == ("done", "", "up to date")
        assert found["demos"][0] == "running" and found["sft@0"][0] == "to do"
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def test_the_table_counts_what_each_engine_would_do():
    rows = [Row("sft@0", "done", "", "a", "up to date"), Row("rl@grpo-0", "stale", "rl.lr modified", "b", "would run")]
    assert show(rows, False).splitlines()[:2] == ["sft@0      done", "rl@grpo-0  stale   rl.lr modified"]
    assert show(rows, False).endswith("DVC: 1 of 2 up to date.\nSnakemake: would run 1 of 2.")


def test_changes_are_told_in_words():
    entry = [
        {"changed deps": {"params.yaml": {"rl.lr": "modified", "rl.groups": "new"}, "src/a.py": "modified"}},
        {"changed outs": {"results/rl": "deleted"}},
        "changed command",
    ]
    assert changes(entry) == "rl.lr modified; rl.groups new; src/a.py modified; output deleted; changed command"


def test_a_lock_is_held_only_while_its_holder_lives(tmp_path):
    lock = tmp_path / "lock"
    assert not held(lock)
    lock.touch()
    assert not held(lock)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job": "a"}', '{"job": "a", "pid": 1, "began": 1, "more": 2}'])
def test_a_damaged_note_is_no_note(tmp_path, text):
    (tmp_path / attempts.FILE).write_text(text)
    assert attempts.read(tmp_path / attempts.FILE) is None


def test_the_newest_note_counts(tmp_path):
    for k, began in enumerate([5.0, 9.0, 7.0]):
        folder = tmp_path / "rl" / str(k)
        folder.mkdir(parents=True)
        (folder / attempts.FILE).write_text(json.dumps({"job": "rl@a-0", "pid": k, "began": began}))
    assert attempts.notes(tmp_path)["rl@a-0"][0].pid == 1


def attempt(folder, states, steps):
    """An attempt folder with checkpoints of these counts and curves of these steps."""
    for n in states:
        (folder / f"state-{n:08d}").mkdir(parents=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state-00000099.tmp").mkdir()  # being written when the process died
    rows = [json.dumps({"step": k, "success": 0.25, "loss": 1.5}) + "\n" for k in range(steps)]
    (folder / "curves.jsonl").write_text("".join(rows) + '{"step": 5')


@pytest.mark.parametrize(
    ("states", "steps", "where"),
    [((15, 16), 16, 16), ((12, 14), 15, 14), ((), 2, 0)],  # stopped after a save; killed between saves; before one
)
def test_it_says_where_the_checkpoint_stands_not_where_the_curves_end(tmp_path, states, steps, where):
    folder = tmp_path / "rl" / "abc"
    attempt(folder, states, steps)
    assert saved(folder) == where
    told = goes_on(folder, lambda: "abc" + "0" * 61)
    assert told == (f"; the same command goes on after {where} iterations" if where else "")
    assert "goes on" not in goes_on(folder, lambda: "abd" + "0" * 61)  # other parameters: another attempt folder
    assert reached(folder) == f"{steps} iterations done, success 0.25, loss 1.5"


def test_phases_count_together(tmp_path):
    folder = tmp_path / "rl" / "abc"
    attempt(folder / "phase0", (8, 10), 10)
    attempt(folder / "phase1", (2,), 2)
    assert saved(folder) == 12


def test_reasons_fit_the_terminal_and_json_has_all():
    why = "src/guiderail/envs modified; src/guiderail/pool modified; src/guiderail/tasks modified; output missing"
    rows = [Row("evaluate@grpo-0-miniwob", "stale", why, "results/evaluate/grpo/seed0/miniwob", "would run")]
    line = show(rows, False, 80).splitlines()[0]
    assert len(line) <= 80 and line.endswith("envs modified; pool modified; and 2 more")
    assert show(rows, False).splitlines()[0].endswith(why) and json.loads(show(rows, True))[0]["why"] == why
    assert brief(why, 200).count("modified") == 3 and brief(why, 10) == "4 reasons (--json)"
