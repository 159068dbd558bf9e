"""Process guard: runs one command and makes sure that nothing of it is left when its owner is gone.

Run as a script (`python -I guard.py OWNER_PID STATUS_FD IN_FD OUT_FD SCRATCH_DIR CMD...`), standard library only.
Guarantees: when the owner dies in any way (also SIGKILL), closes the status pipe, or CMD ends, every descendant of CMD
is killed (the guard is their subreaper, so processes that changed session or parent are found too) and SCRATCH_DIR is
removed.
If the guard itself is killed, CMD gets SIGKILL (PR_SET_PDEATHSIG); SCRATCH_DIR is then left to the next sweep.
Linux only. IN_FD and OUT_FD become descriptors 3 and 4 of CMD (Chromium's --remote-debugging-pipe).
"""

from __future__ import annotations

import ctypes  # what else the library has is not imported: each slot and browser has a guard, and they add up
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.5


def prctl(option: int, value: int) -> None:
    """Call prctl(2). Raises OSError when the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def descendants(root: int) -> list[int]:
    """Process ids below `root`, read from /proc (a snapshot)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                ppid = int(f.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # the process ended while we looked
        children.setdefault(ppid, []).append(int(name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def kill_below(root: int, deadline_s: float = 10.0) -> None:
    """SIGKILL and reap everything below `root` (which must be the calling process) until nothing is left."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        pids = descendants(root)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue  # it has ended
        try:
            while os.waitpid(-1, os.WNOHANG)[0] > 0:
                pass
        except ChildProcessError:
            pass  # none of them is our child
        if not pids:
            return
        time.sleep(0.005)


def remove(folder: str) -> None:
    """Remove a folder with all that is in it, as far as that can be done; links are not followed."""
    for top, folders, names in os.walk(folder, topdown=False):
        for name in names + folders:
            path = os.path.join(top, name)
            try:
                (os.rmdir if name in folders and not os.path.islink(path) else os.unlink)(path)
            except OSError:
                continue  # left to the next sweep
    try:
        os.rmdir(folder)
    except OSError:
        pass  # as above


def spawn(command: list[str], in_fd: int, out_fd: int) -> int:
    """Fork and exec `command` with in_fd, out_fd as its descriptors 3 and 4; returns its pid."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        high_in, high_out = os.dup(in_fd), os.dup(out_fd)  # neither may already be 3 or 4 when we overwrite those
        while high_in <= 4 or high_out <= 4:
            high_in, high_out = os.dup(high_in), os.dup(high_out)
        os.dup2(high_in, 3)
        os.dup2(high_out, 4)
        os.closerange(5, 1024)
        os.execv(command[0], command)
    except OSError as e:
        os.write(2, f"guard: cannot run {command[0]}: {e}\n".encode())
    os._exit(127)


def main(argv: list[str]) -> int:
    """Run the guard; returns the exit status of the command (or 1 when the owner went away)."""
    owner, status_fd, in_fd, out_fd = (int(a) for a in argv[:4])
    scratch, command = argv[4], argv[5:]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    for sig in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(sig, lambda *_: sys.exit(1))
    child = 0
    code = 1
    try:
        child = spawn(command, in_fd, out_fd)
        os.close(in_fd)
        os.close(out_fd)
        child_fd = os.pidfd_open(child)
        while os.getppid() == owner:
            ready, _, _ = select.select([status_fd, child_fd], [], [], POLL_S)
            if child_fd in ready:
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                break
            if status_fd in ready and not os.read(status_fd, 4096):
                break
    finally:
        if child:
            kill_below(os.getpid())
        remove(scratch)
    return code & 0xFF


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
