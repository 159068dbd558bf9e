"""A stage fails or an engine is killed: the other engine does the rest, and only that. On dummy stages."""

import os
import signal
import time

import psutil
import pytest

from conftest import ALL, PRM, kill_session

pytestmark = pytest.mark.timeout(3000)


def test_failure_and_kill(small):
    """A stage fails under one engine, the engine is killed -9 later: the other does only the rest."""
    p = small
    p.snakemake("--cores", "2", "-k", "--retries", "0", check=False, DUMMY_FAIL="rl@grpo_kl-0")
    done = [a for a in ALL if ("grpo_kl" not in a or a in PRM) and a != "report"]
    assert sorted(set(p.ran()) - {"rl@grpo_kl-0"}) == done

    running = p.popen("snakemake", "--cores", "2", DUMMY_SLEEP="4")
    deadline = time.monotonic() + 120
    while "rl@grpo_kl-0" not in p.log.read_text():
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.1)
    kill_session(running, signal.SIGKILL)
    running.wait()
    end = time.monotonic() + 20  # nothing of it goes on
    while left := [q for q in psutil.process_iter(["cmdline"]) if _works_on(q, p)]:
        assert time.monotonic() < end, [q.info["cmdline"] for q in left]
        time.sleep(0.2)
    assert not (p.path / "results/rl/grpo_kl/seed0").exists()
    p.ran()
    p.dvc("repro")
    assert p.ran() == [a for a in ALL if ("grpo_kl" in a and a not in PRM) or a == "report"]
    assert list((p.path / ".snakemake/locks").iterdir())
    p.snakemake("--cores", "2")  # the lock of the killed one does not stand in the way
    assert p.ran() == []
    p.agree()
    leftovers = [f for f in (p.path / "results").rglob(".*") if f.name.endswith((".partial", ".old"))]
    assert leftovers == []
    assert not (p.path / ".work").exists() or not any((p.path / ".work").rglob("lock"))


def _works_on(process, project):
    """A stage, DVC or job process with its working directory in the project."""
    try:
        return process.cwd() == str(project.path) and process.pid != os.getpid()
    except psutil.Error:
        return False
