"""The first process inside a slot's sandbox: starts programs on order, and cleans up after them.

Runs as `/usr/bin/python3 -I -S init.py FD`, standard library only. Process 1 of its pid namespace, so nothing inside
can signal it to death (a handler-less signal to process 1 from within is dropped, SIGKILL too); not dumpable, so
nothing inside can trace it or reach its descriptors; the orders come over a socket that no program inherits. When the
socket closes it ends, and the kernel ends everything inside with it.
Orders are JSON messages on a SOCK_SEQPACKET socket: spawn (with descriptors 0, 1, 2), kill (a process or its group),
end (kill everything), fresh (kill everything, empty the writable folders, lay out the home). Replies carry the order's
id; ends of programs come as {"exit": pid, "status": code}.
"""

from __future__ import annotations

import ctypes  # what else the library has is not imported: there is one of us in every slot
import json
import os
import resource
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any

    Tell = Callable[[Mapping[str, Any]], None]

PR_SET_DUMPABLE = 4
MESSAGE = 1 << 20


def spawn(order: Mapping[str, Any], fds: Sequence[int]) -> int:
    """Fork and exec; returns the pid. Raises OSError when the program does not start."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for target, fd in enumerate(fds):
                os.dup2(fd, target)
            os.closerange(3, write_end)
            os.closerange(write_end + 1, 4096)
            for name, value in order["limits"].items():
                kind = getattr(resource, name)
                hard = resource.getrlimit(kind)[1]
                value = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.setrlimit(kind, (value, value))
            signal.set_wakeup_fd(-1)
            for s in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(s, signal.SIG_DFL)
            try:
                os.chdir(order["cwd"])
            except OSError:
                if order["cwd"] != order["env"].get("HOME"):
                    raise
                os.chdir("/")  # a home that was closed or removed keeps nobody out who judges
            os.execvpe(order["argv"][0], order["argv"], order["env"])
        except BaseException as e:
            os.write(write_end, json.dumps([getattr(e, "errno", 0) or 0, str(e)]).encode())
        os._exit(127)
    os.close(write_end)
    with open(read_end, "rb") as f:
        said = f.read()
    if said:
        os.waitpid(pid, 0)
        number, text = json.loads(said)
        raise OSError(number, text)
    return pid


def reap(tell: Tell) -> bool:
    """Collect programs that have ended; whether others live."""
    while True:
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        tell({"exit": pid, "status": os.waitstatus_to_exitcode(raw)})


def kill_all(tell: Tell, limit_s: float = 5.0) -> None:
    """Kill every process inside but this one."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass  # there is none
        if not reap(tell):
            return
        time.sleep(0.002)
    raise OSError(0, "a process does not die")


def empty(folder: str, keep: Collection[str] = ()) -> None:
    """Remove what is in a folder, but not `keep`; a folder that was made unreadable is no hiding place.

    Folders are taken up to the top before they are removed, so that no depth is too great for a path or a stack.
    """
    os.chmod(folder, 0o700)
    mark, number, left = os.urandom(8).hex(), 0, [folder]
    while left:
        place = left.pop()
        for entry in list(os.scandir(place)):
            if entry.path in keep:
                continue
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
                number += 1
                left.append(f"{folder}/{mark}{number}")
                os.rename(entry.path, left[-1])
            else:
                os.unlink(entry.path)
        if place != folder:
            os.rmdir(place)


def lay_out(layout: Mapping[str, Any]) -> None:
    """Make folders and files: {"empty": [...], "keep": [...], "folders": {path: mode}, "files": {path: text}}."""
    for folder in layout["empty"]:
        try:
            empty(folder, layout["keep"])
        except FileNotFoundError:
            continue  # it is made below
    for folder, mode in layout["folders"].items():
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, mode)
    for path, text in layout["files"].items():
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)


def obey(order: Mapping[str, Any], fds: Sequence[int], tell: Tell) -> dict[str, Any]:
    """Carry out one order; returns its reply."""
    try:
        if order["do"] == "spawn":
            return {"pid": spawn(order, fds)}
        if order["do"] == "kill":
            try:
                (os.killpg if order["group"] else os.kill)(order["pid"], signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended
            return {}
        if order["do"] == "end":
            kill_all(tell)
            return {}
        if order["do"] == "fresh":
            kill_all(tell)
            lay_out(order["layout"])
            return {}
        return {"error": f"unknown order {order['do']!r}", "errno": 0}
    except OSError as e:
        words = str(e).encode(errors="backslashreplace").decode()  # names of files need be no text
        return {"error": words, "errno": e.errno or 0}


def main(fd: int) -> int:
    """Serve until the socket closes."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with open("/proc/self/oom_score_adj", "w") as f:
            f.write("500")  # programs go first when memory ends, not who looks after them
    except OSError:
        pass  # some kernels do not let us
    sock = socket.socket(fileno=fd)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)

    def tell(message: Mapping[str, Any]) -> None:
        try:
            sock.send(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionResetError):
            pass  # the socket's end is seen where it is read

    tell({"ready": os.getpid()})
    while True:
        ready, _, _ = select.select([fd, woken], [], [])
        if woken in ready:
            try:
                os.read(woken, 4096)
            except BlockingIOError:
                pass  # read before
            reap(tell)
        if fd in ready:
            data, ancillary, _, _ = sock.recvmsg(MESSAGE, socket.CMSG_SPACE(12))
            if not data:
                return 0
            fds = [
                int.from_bytes(raw[i : i + 4], sys.byteorder) for _, _, raw in ancillary for i in range(0, len(raw), 4)
            ]
            order = json.loads(data)
            reply = obey(order, fds, tell)
            for number in fds:
                os.close(number)
            tell({"id": order["id"], **reply})


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
