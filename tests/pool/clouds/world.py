"""What stands behind the make-believe APIs: instances that boot as processes, and the faults of a cloud.

An `Instance` takes PENDING_S to come up and then answers at 127.x.y.z:PORT as the machine of a cloud would. Each API
(aliyun.py, ...) speaks its SDK's wire format over this and knows nothing else.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from guiderail.pool.vm import noop

PENDING_S = 0.15
ACCESS_KEY, SECRET_KEY = "AKIDMAKEBELIEVE00001", "make-believe-secret-0123456789abcdef"
MAX_SKEW_S = 900.0
FAULTS = ("throttled", "quota", "boot_failure", "error_after_create", "half_dead", "bad_credentials")
_networks = itertools.count(1)


@dataclass
class Instance:
    """`ready` = when it leaves Pending (monotonic); `release` = unix seconds of its hard limit, 0 = none."""

    id: str
    host: str
    labels: dict[str, str]
    asked: dict[str, Any]
    ready: float
    created: float
    release: float = 0.0
    failed: bool = False
    stopped: bool = False
    renewed: int = 0  # times that its disk was made anew
    process: subprocess.Popen[bytes] | None = None

    def pending(self) -> bool:
        return time.monotonic() < self.ready


@dataclass
class World:
    """One account in one region."""

    root: Path
    instances: dict[str, Instance] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)  # client token -> instance id
    fault: str = ""
    times: int = -1  # how often the fault still happens; -1 = always
    clock_ahead_s: float = 0.0
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lock, self.closed = threading.RLock(), False
        self.numbers = itertools.count(1)
        self.network = f"127.{os.getpid() % 200 + 20}.{next(_networks) % 250}"
        self.port = self.free_port()

    def free_port(self) -> int:
        with socket.create_server(("0.0.0.0", 0)) as s:
            return int(s.getsockname()[1])

    def arm(self, fault: str, times: int = -1) -> Callable[[], None]:
        def do() -> None:
            self.fault, self.times = fault, times

        return do

    def fails(self, fault: str) -> bool:
        """Whether `fault` happens now (and counts it)."""
        with self.lock:
            if self.fault != fault or not self.times:
                return False
            self.times -= 1 if self.times > 0 else 0
            return True

    def now(self) -> float:
        return time.time() + self.clock_ahead_s

    def make(self, labels: dict[str, str], asked: dict[str, Any], release: float = 0.0, host: str = "") -> Instance:
        """A new instance that begins to boot."""
        with self.lock:
            n = next(self.numbers)
            host = host or f"{self.network}.{n}"
            made = Instance(f"i-{n:08d}x0", host, labels, asked, time.monotonic() + PENDING_S, self.now(), release)
            self.instances[made.id] = made
        self.boot(made)
        return made

    def boot(self, i: Instance) -> None:
        """Start the process of an instance, in the mode that the fault wants."""
        with self.lock:
            self._boot(i)

    def _boot(self, i: Instance) -> None:
        if self.fails("boot_failure"):
            i.failed = True
            return
        if self.closed:  # a request that outlived its test
            raise RuntimeError("this world has ended")
        folder = self.root / "vms" / i.id
        folder.mkdir(parents=True, exist_ok=True)
        how = "mute" if self.fails("half_dead") else "ok"
        here, port = Path(__file__).with_name("machine.py"), str(i.asked.get("Port", self.port))
        i.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(here), noop.__file__, str(folder), i.host, port, how],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def renew(self, vm_id: str) -> None:
        """A new disk and a boot from it; fault `disk_kept`: the API says so, but the old system goes on."""
        with self.lock:
            found = self.instances[vm_id]
            found.renewed += 1
            found.stopped = False
            if not self.fails("disk_kept"):
                self.kill(vm_id)
                self.boot(found)

    def kill(self, vm_id: str) -> None:
        """The machine dies; the API goes on saying that it runs."""
        found = self.instances.get(vm_id)
        process = found.process if found else None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def end(self, vm_id: str) -> None:
        """Remove an instance."""
        with self.lock:
            self.kill(vm_id)
            self.instances.pop(vm_id, None)

    def expire(self) -> None:
        """Release what is over its hard limit (called by each request, as the cloud's own timer)."""
        with self.lock:
            for i in list(self.instances.values()):
                if i.release and self.now() > i.release:
                    self.end(i.id)

    def select(self, labels: dict[str, str], ids: list[str]) -> list[Instance]:
        """Instances with all labels, and one of `ids` unless empty."""
        with self.lock:
            found = [i for i in self.instances.values() if labels.items() <= i.labels.items()]
            return [i for i in found if not ids or i.id in ids]

    def close(self) -> None:
        with self.lock:
            self.closed = True
            for vm_id in list(self.instances):
                self.end(vm_id)
        shutil.rmtree(self.root, ignore_errors=True)


class Api:
    """A threaded HTTP server on 127.0.0.1; `handler` is the API."""

    def __init__(self, world: World, handler: type[BaseHTTPRequestHandler]) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (handler,), {"world": world}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
