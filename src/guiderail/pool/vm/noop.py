"""A machine without a screen, as a process of its own: `python -I -S noop.py FOLDER EXPIRES BOOT_S`.

Stands in for a VM where the pool's own behaviour is tried (chaos, load, conformance): it can be killed, frozen and
orphaned like one, and it outlives the pool. Standard library only, so that it boots in 30 ms. Speaks lines of JSON over
TCP on 127.0.0.1, one call at a time; writes its pid to FOLDER/pid at once, its port to FOLDER/port when it is ready.
Guarantees: every action that is applied is first written to FOLDER/../../journal (one line: time, machine, fencing
token, action), by this process alone, so that an action applied twice shows whatever the pool believes; a call with a
lower fencing token than the highest seen is refused (one without a token never); so is a call for another machine's
name (`claim` gives a nameless one its name, once); it ends by itself at EXPIRES (unix seconds; 0 = never).
"""

import json
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

GRACE_S = 1.0


class Machine:
    """The state behind the wire."""

    def __init__(self, folder: Path, owned_as: str = "") -> None:
        """`owned_as`: the pool's name for it, "" = whoever claims it first."""
        self.name, self.steps, self.fence, self.task = folder.name, 0, 0, ""
        self.started, self.owned_as = False, owned_as
        self.journal = os.open(folder.parent.parent / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.write("boot", "")

    def write(self, kind: str, what: str) -> None:
        """One line of the journal, in one write."""
        line = [round(time.time(), 4), self.name, self.fence, kind, what]
        os.write(self.journal, json.dumps(line).encode() + b"\n")

    def answer(self, call: dict[str, Any]) -> dict[str, Any]:
        """The reply to one call; {"error": sentence} when it is refused."""
        name = str(call.get("name", self.owned_as))
        if call["call"] == "claim" and not self.owned_as:
            self.owned_as = name
        if name != self.owned_as:
            return {"error": f"this is machine {self.owned_as or 'of nobody yet'}, not {name}"}
        fence = int(call.get("fence", self.fence))
        if fence < self.fence:
            self.write("refused", str(call.get("what", "")))
            return {"error": f"fencing token {fence} is older than {self.fence}"}
        self.fence = fence
        match call["call"]:
            case "ping" | "claim":
                return {"ok": True, "name": self.owned_as}
            case "clean":
                self.steps, self.started = 0, False
                self.write("clean", "")
                return {"ok": True}
            case "reset":
                self.write("reset", call["what"])
                self.steps, self.started, self.task = 0, True, call["what"]
            case "step":
                if not self.started:
                    return {"error": "step before reset"}
                self.write("step", call["what"])
                if call.get("sleep"):
                    time.sleep(float(call["sleep"]))
                self.steps += 1
            case "evaluate":
                pass
            case other:
                return {"error": f"unknown call {other!r}"}
        return {"ok": True, "steps": self.steps, "task": self.task}


def serve(machine: Machine, listener: socket.socket, expires: float) -> None:
    """Answer calls until the machine's time is over."""
    box = selectors.DefaultSelector()
    box.register(listener, selectors.EVENT_READ, None)
    while not expires or time.time() < expires:
        for key, _ in box.select(GRACE_S):
            if key.data is None:
                connection, _ = listener.accept()
                connection.settimeout(GRACE_S)
                box.register(connection, selectors.EVENT_READ, bytearray())
                continue
            assert isinstance(key.fileobj, socket.socket)
            connection, buffer = key.fileobj, key.data
            try:
                data = connection.recv(65536)
                buffer += data
                while b"\n" in buffer:
                    line, _, rest = bytes(buffer).partition(b"\n")
                    buffer[:] = rest
                    connection.sendall(json.dumps(machine.answer(json.loads(line))).encode() + b"\n")
            except (OSError, ValueError, KeyError):
                data = b""
            if not data:
                box.unregister(connection)
                connection.close()


def main(argv: list[str]) -> int:
    """Boot, serve, end."""
    folder, expires, boot_s = Path(argv[0]), float(argv[1]), float(argv[2])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        publish(folder / "pid", f"{os.getpid()} {start_time('self')}")
        time.sleep(boot_s)
        listener = socket.create_server(("127.0.0.1", 0))
        machine = Machine(folder, folder.name)
        publish(folder / "port", str(listener.getsockname()[1]))
    except FileNotFoundError:  # terminated while it booted: the folder is gone
        return 1
    serve(machine, listener, expires)
    return 0


def publish(path: Path, text: str) -> None:
    """Write a file that is never seen half written. FileNotFoundError when its folder is gone."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def start_time(pid: str) -> str:
    """When a process started, in clock ticks since boot: with the pid it names a process for good ("" = it is gone)."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if raw[0] in (b"Z", b"X") else raw[19].decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
