"""`guiderail status` in a real project with dummy stages: to do, running, killed, failed, done, stale."""

import json
import os
import signal
import time

import pytest

from guiderail.stages import attempts
from guiderail.stages.paths import WORK
from guiderail.status import changes, held


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
    before = state(p)
    assert {s for s, _, _ in before.values()} == {"to do"} and {v for _, _, v in before.values()} == {"would run"}

    running = p.popen("guiderail", "provision", DUMMY_SLEEP="60")
    deadline = time.monotonic() + 60
    while not list((p.path / WORK).glob("provision/*/attempt.json")):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    found = state(p)["provision"]
    assert found[0] == "running" and f"process {running.pid}" in found[1]
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert state(p)["provision"][:2] == ("stopped", "killed or the machine went down")

    p.dvc("repro", check=False, DUMMY_FAIL="sft@0")
    found = state(p)
    assert found["provision"] == found["demos"] == ("done", "", "up to date")
    assert found["sft@0"][:2] == ("failed", "RuntimeError: injected failure in sft@0")
    assert found["rl@grpo-0"][0] == "to do"

    p.dvc("repro")
    assert {s for s, _, _ in state(p).values()} == {"done"}
    p.set("rl.lr", 0.25)
    found = state(p)
    assert found["rl@grpo-0"][0] == "stale" and "rl modified" in found["rl@grpo-0"][1].replace(".lr", "")
    assert found["sft@0"] == ("done", "", "up to date") and found["rl@grpo-0"][2] == "would run"
    table = p.run("guiderail", "status")
    assert "DVC: " in table and "of 7 up to date" in table and "Snakemake: would run" in table


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
