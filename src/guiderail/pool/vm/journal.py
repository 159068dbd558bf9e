"""What was done to a desktop, written down before it is done: for the chaos test, and for whoever wants to know.

DIR/journal has one line of JSON per call ([time, machine, fencing token, kind, what]), in one write, so that many
machines share it; DIR/vms/MACHINE/pid says which process the machine is (see `noop.start_time`).
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from guiderail.pool.vm.noop import publish, start_time


class Journal:
    """Of one machine."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        place = folder / "vms" / name
        place.mkdir(parents=True, exist_ok=True)
        publish(place / "pid", f"{os.getpid()} {start_time('self')}")
        self._fd = os.open(folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.write("boot", 0, "")

    def write(self, kind: str, fence: int, what: str) -> None:
        """One line."""
        line = [round(time.time(), 4), self.name, fence, kind, what]
        os.write(self._fd, json.dumps(line).encode() + b"\n")
