"""The oracle sees each way a pool can fail; a short chaos run finds none of them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from guiderail.pool.chaos.oracle import judge
from guiderail.pool.chaos.referee import REST_S, Referee
from guiderail.pool.vm import noop

Lines = list[list[Any]]


def good() -> tuple[Lines, Lines, Lines]:
    """journal, client, referee: two episodes on one machine, one killed, calm before and after."""
    step = json.dumps({"kind": "Type", "text": "{}"})
    journal: Lines = [
        [1.0, "m", 1, "reset", "noop/count/1/0"],
        [1.1, "m", 1, "step", step.replace("{}", "c1-1-0")],
        [1.2, "m", 1, "step", step.replace("{}", "c1-1-1")],
        [1.9, "m", 1, "clean", ""],
        [2.0, "m", 2, "reset", "noop/count/2/0"],
        [2.1, "m", 2, "step", step.replace("{}", "c2-1-0")],
    ]
    client: Lines = [
        [0.9, "c1", "begin", 1],
        [0.95, "c1", "lease", 1, "lease-a", 1],
        [1.1, "c1", "ack", 1, "c1-1-0", "m", 1.0],
        [1.2, "c1", "ack", 1, "c1-1-1", "m", 2.0],
        [1.3, "c1", "end", 1, "success"],
        [1.9, "c2", "begin", 1],
        [1.95, "c2", "lease", 1, "lease-b", 2],
        [2.1, "c2", "ack", 1, "c2-1-0", "m", 1.0],
    ]
    referee: Lines = [[1.25, "calm", 1.0, 1.5], [2.2, "killed client", "c2"], [2.5, "calm", 2.0, 2.5]]
    return journal, client, referee


def verdict(tmp_path: Path, journal: Lines, client: Lines, referee: Lines) -> list[str]:
    (tmp_path / "cloud").mkdir(exist_ok=True)
    for path, log in (("cloud/journal", journal), ("client-c.jsonl", client), ("referee.jsonl", referee)):
        (tmp_path / path).write_text("".join(json.dumps(x) + "\n" for x in log))
    return judge(tmp_path).violations


def test_a_clean_run_has_no_violations(tmp_path: Path) -> None:
    assert verdict(tmp_path, *good()) == []


@pytest.mark.parametrize(
    ("which", "at", "line", "said"),
    [
        (0, 2, [1.15, "m", 1, "step", '{"text": "c1-1-0"}'], "c1-1-0 was applied 2 times"),
        (0, 6, [2.2, "m", 1, "step", '{"text": "c1-1-9"}'], "with token 1 after a newer one"),
        (0, 6, [2.2, "m", 2, "step", '{"text": "c1-1-9"}'], "token 2 was used by"),
        (0, 6, [2.2, "n", 1, "step", '{"text": "c1-1-9"}'], "token 1 was used by"),
        (1, 4, [1.2, "c1", "ack", 1, "c1-1-7", "m", 3.0], "c1-1-7 was acknowledged but no machine"),
        (1, 4, [1.2, "c1", "ack", 1, "c1-1-1", "m", 2.0], "acknowledged 2 times"),
        (1, 7, [1.96, "c2", "lease", 1, "lease-a", 2], "lease-a was given to"),
        (1, 0, [0.8, "c3", "begin", 1], "episode 1 of c3 has no outcome"),
        (1, 8, [2.2, "c2", "begin", 2], "episode 1 of c2 has no outcome"),
        (1, 8, [2.2, "c2", "end", 1, "wrong_state"], "ended with 'wrong_state'"),
        (2, 0, [1.0, "leak", "3 machines for 2 slots"], "3 machines for 2 slots"),
        (2, 3, [9.0, "calm", 8.0, 9.0], "throughput was"),
        (2, 0, [0.5, "calm", 0.1, 0.5], "no action was acknowledged before any harm"),
        (2, 0, [0.5, "late", "machines are up"], "took too long until machines are up"),
    ],
)
def test_each_violation_is_seen(tmp_path: Path, which: int, at: int, line: list[Any], said: str) -> None:
    logs = good()
    logs[which].insert(at, line)
    assert any(said in v for v in verdict(tmp_path, *logs)), verdict(tmp_path, *logs)


def test_what_is_not_there_is_seen_too(tmp_path: Path) -> None:
    journal, client, referee = good()
    assert any("uncleaned after token 1" in v for v in verdict(tmp_path, journal[:3] + journal[4:], client, referee))
    assert any("1 windows of calm" in v for v in verdict(tmp_path, journal, client, referee[:-1]))
    (tmp_path / "server.log").write_text("INFO: fine\nTraceback (most recent call last):\n")
    assert any("1 faults of its own" in v for v in verdict(tmp_path, journal, client, referee))


def test_machines_are_counted_by_their_processes_alone(tmp_path: Path) -> None:
    """One whose folder is gone costs as much."""
    referee = Referee(tmp_path, 1, 1, 0)
    folder = tmp_path / "cloud" / "vms" / "m-1"
    folder.mkdir(parents=True)
    machine = subprocess.Popen([sys.executable, "-I", "-S", noop.__file__, str(folder), "0", "0"])
    try:
        while not (folder / "port").exists():
            time.sleep(0.01)
        shutil.rmtree(folder)
        assert referee.machines() == {"m-1": machine.pid}
    finally:
        machine.kill()
        machine.wait()
    assert referee.machines() == {}


def test_who_waits_will_have_a_lease_though_nobody_has_one_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that are being cleaned have no leases, and go to the next in the queue, dead or not."""
    referee, now = Referee(tmp_path, 1, 1, 0), [time.monotonic()]
    said: list[dict[str, Any] | None] = [{"leases": [{}], "waiting": 1}]
    monkeypatch.setattr(referee, "status", lambda: said[0])
    monkeypatch.setattr("guiderail.pool.chaos.referee.time.monotonic", lambda: now[0])

    def rests(status: dict[str, Any] | None, seconds: float = 0.0) -> bool:
        said[0], now[0] = status, now[0] + seconds
        return referee.at_rest()

    nobody: dict[str, Any] = {"leases": [], "waiting": 0}
    assert not rests({"leases": [{}], "waiting": 1}, 60)
    assert not rests({"leases": [], "waiting": 1}, 60)
    assert not rests({"leases": [{}], "waiting": 0}, 60)
    assert not rests(None, 60)  # a server that does not answer
    assert not rests(nobody, 0.1)
    assert rests(nobody, REST_S)


def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "guiderail.pool.chaos", "--rounds", "14", "--clients", "6", "--slots", "3"]
    command += ["--calm", "3", "--pause", "0.4", "--seed", "5", "--keep", str(tmp_path / "logs")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout[: done.stdout.rindex("}") + 1])
    assert counts["acknowledged"] > 50 and counts["episodes"]["success"] > 10
    assert sum(counts["faults"].values()) >= 14 and {"kill server", "freeze machine"} <= counts["faults"].keys()


def test_a_signal_ends_every_process(tmp_path: Path) -> None:
    """Also SIGINT where it was ignored at the start, as in a shell's background."""
    command = [sys.executable, "-m", "guiderail.pool.chaos", "--rounds", "500", "--clients", "3", "--slots", "2"]
    command += ["--calm", "0.1", "--keep", str(tmp_path / "logs")]
    run = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    while not list((tmp_path / "logs").glob("client-*")):
        assert run.poll() is None
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    assert run.wait(30) == 130
    left = [p for p in Path("/proc").glob("[0-9]*") if str(tmp_path).encode() in _command(p)]
    assert left == []


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_server_that_does_not_start_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "guiderail.pool.chaos", "--rounds", "1", "--clients", "1", "--slots", "1"]
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "uvicorn.py").write_text("raise ImportError('no such thing here')\n")
    path = os.pathsep.join([str(tmp_path / "site"), *sys.path])
    done = subprocess.run(
        [*command, "--keep", str(tmp_path / "logs")],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 1 and "no such thing here" in done.stderr and "Traceback" not in done.stderr
