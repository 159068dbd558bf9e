"""The guard between a stage and a service: starts it, and ends it when it is told to or when the stage is gone.

Runs as its own small process (`python -S -E service_guard.py PARENT_PID GRACE_S CMD...`, standard library only).
Guarantees, on Linux: when the parent dies in any way (kill -9 included), or the guard gets SIGTERM, the service's
process group gets SIGTERM, and after the grace every descendant of the service, whatever session or group it moved
itself to, gets SIGKILL. When the guard itself is killed with -9 the service dies with it, but not what the service
started. Elsewhere than on Linux only the process group is ended.

PR_SET_PDEATHSIG fires when the creating THREAD ends, so it only wakes the guard, which then looks at its parent's pid.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINUX = sys.platform.startswith("linux")


def _prctl(option: int, value: int) -> None:
    if LINUX and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def descendants(root: int) -> list[int]:
    """Pids of all living processes below `root` (Linux; empty elsewhere). Zombies are left out."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if LINUX else []:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as f:
                    state, ppid = f.read().rpartition(b")")[2].split()[:2]
            except OSError:  # it ended while we looked
                continue
            if state not in (b"Z", b"X"):
                children.setdefault(int(ppid), []).append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def kill_descendants(root: int, patience: float = 1.0, timeout: float = 5.0) -> None:
    """SIGKILL what is still below `root` after `patience` seconds (it may be tidying up), until nothing is left."""
    start = time.monotonic()
    while time.monotonic() < start + patience + timeout:
        pids = descendants(root)
        if not pids:
            return
        for pid in pids if time.monotonic() > start + patience else []:
            signal_pid(pid, signal.SIGKILL)
        reap(0)
        time.sleep(0.02)


def signal_pid(pid: int, sig: int, group: bool = False) -> None:
    """Send `sig` to a process or its group; one that is gone already (or is not ours) is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, sig)


def reap(main_pid: int) -> int | None:
    """Collect ended children; returns the exit status of `main_pid` if it was among them."""
    status = None
    while True:
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == main_pid:
            status = os.waitstatus_to_exitcode(raw)


def guard(parent: int, grace: float, cmd: list[str]) -> int:
    """Run `cmd` until it ends, SIGTERM comes or `parent` dies. Returns its exit status (127: could not start)."""
    stop = False

    def on_stop(sig: int, frame: FrameType | None) -> None:
        nonlocal stop
        stop = True

    for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(s, on_stop)
    for s in (signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(s, lambda sig, frame: None)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    os.set_blocking(read_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    me = os.getpid()

    def in_child() -> None:  # this process has one thread, so running Python between fork and exec is safe
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != me:
            os._exit(1)

    try:
        child = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=2, preexec_fn=in_child, process_group=0)
    except OSError as e:
        print(f"cannot start {cmd[0]}: {e}", file=sys.stderr, flush=True)
        return 127
    print(child.pid, flush=True)
    os.close(1)
    status: int | None = None
    deadline = float("inf")
    while status is None and time.monotonic() < deadline:
        if (stop or os.getppid() != parent) and deadline == float("inf"):
            signal_pid(child.pid, signal.SIGTERM, group=True)
            deadline = time.monotonic() + grace
        select.select([read_end], [], [], min(0.5, max(0.0, deadline - time.monotonic())))
        with contextlib.suppress(BlockingIOError):
            os.read(read_end, 4096)
        status = reap(child.pid)
    if status is None:
        signal_pid(child.pid, signal.SIGKILL, group=True)
        status = -signal.SIGKILL
    kill_descendants(me)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(guard(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
