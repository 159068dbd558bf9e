"""Services: ready before use, nothing left after, whatever ends the parent. Processes are checked by pid."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from guiderail.services import ServiceError, service

# a service that starts a child in a session of its own (as browsers do), writes both pids, then serves HTTP
SERVER = textwrap.dedent(
    """
    import http.server, os, signal, subprocess, sys
    stubborn = len(sys.argv) > 3
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    open(sys.argv[2], "w").write(f"{os.getpid()} {child.pid}")
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
    """
)
PARENT = textwrap.dedent(
    """
    import sys, time
    from guiderail.services import service
    server, pids = sys.argv[1:3]
    with service([sys.executable, server, "{port}", pids], "toy", ready_url="http://127.0.0.1:{port}/", grace=1.0) as s:
        print("ready", flush=True)
        time.sleep(600)
    """
)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_dead(pids: list[int], timeout: float = 15.0) -> list[int]:
    end = time.monotonic() + timeout
    while time.monotonic() < end and any(alive(p) for p in pids):
        time.sleep(0.05)
    return [p for p in pids if alive(p)]


@pytest.fixture
def server(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return path


def toy(server: Path, pids: Path, *extra: str):
    cmd = [sys.executable, str(server), "{port}", str(pids), *extra]
    return service(cmd, "toy", ready_url="http://127.0.0.1:{port}/", grace=0.7, timeout=30)


def test_normal_end_leaves_nothing(server: Path, tmp_path: Path) -> None:
    with toy(server, tmp_path / "pids") as s:
        assert urllib.request.urlopen(s.url, timeout=5).status == 200
        pids = [int(p) for p in (tmp_path / "pids").read_text().split()]
        assert pids[0] == s.pid and all(alive(p) for p in pids)
        log = s.log
        assert log.exists()
    assert wait_dead([*pids, s.guard_pid], 0.0) == []
    assert not log.exists()


def test_exception_and_stubborn_service(server: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), toy(server, tmp_path / "pids", "stubborn") as s:
        pids = [int(p) for p in (tmp_path / "pids").read_text().split()]
        1 / 0
    assert wait_dead([*pids, s.guard_pid], 0.0) == []


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_parent_killed(server: Path, tmp_path: Path, sig: signal.Signals) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    pids_file = tmp_path / "pids"
    parent = subprocess.Popen(
        [sys.executable, str(script), str(server), str(pids_file)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None and parent.stdout.readline().strip() == "ready"
    pids = [int(p) for p in pids_file.read_text().split()]
    pids += [p.pid for p in psutil.Process(parent.pid).children(recursive=True)]
    assert all(alive(p) for p in pids)
    parent.send_signal(sig)
    parent.wait(20)
    assert wait_dead(pids) == []


def test_thread_that_started_it_may_end(server: Path, tmp_path: Path) -> None:
    holder: dict[str, object] = {}
    context = toy(server, tmp_path / "pids")

    def start() -> None:
        holder["s"] = context.__enter__()

    t = threading.Thread(target=start)
    t.start()
    t.join()
    time.sleep(1.2)
    s = holder["s"]
    assert urllib.request.urlopen(s.url, timeout=5).status == 200  # type: ignore[attr-defined]
    context.__exit__(None, None, None)
    assert not alive(s.pid)  # type: ignore[attr-defined]


def test_early_death_shows_the_log(tmp_path: Path) -> None:
    cmd = [sys.executable, "-c", "import sys; print('no browser here'); sys.exit(7)"]
    start = time.monotonic()
    expected = pytest.raises(ServiceError, match=r"died with status 7(.|\n)*no browser here")
    with expected, service(cmd, "toy", ready_url="http://127.0.0.1:{port}/", timeout=60):
        pass
    assert time.monotonic() - start < 20


def test_not_ready_in_time_is_an_error_and_is_stopped(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"import os; open({str(pid_file)!r},'w').write(str(os.getpid())); print('warming up', flush=True)\n"
    cmd = [sys.executable, "-c", code + "import time; time.sleep(600)"]
    expected = pytest.raises(ServiceError, match=r"did not answer(.|\n)*warming up")
    with expected, service(cmd, "toy", ready_url="http://127.0.0.1:{port}/", timeout=1.5):
        pass
    assert wait_dead([int(pid_file.read_text())], 1.0) == []


def test_missing_program() -> None:
    with pytest.raises(ServiceError, match="could not be started"), service(["/nonexistent/program"], "toy"):
        pass


def test_env_and_given_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "toy.log"
    cmd = [sys.executable, "-c", "import os,time; print(os.environ['SECRET_WORD'], flush=True); time.sleep(60)"]
    with service(cmd, "toy", env={"SECRET_WORD": "xyzzy"}, log=log) as s:
        end = time.monotonic() + 10
        while "xyzzy" not in log.read_text() and time.monotonic() < end:
            time.sleep(0.02)
    assert "xyzzy" in log.read_text() and not alive(s.pid) and "SECRET_WORD" not in os.environ
