"""Does the harm, and counts machines from outside.

Guarantees: faults are drawn from a seed; only processes that it started itself (and the machines in its own folder) are
ever signalled, by pid; at its end nothing of it is left, whatever happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guiderail.errors import Explained
from guiderail.pool.chaos.proxy import Proxy
from guiderail.pool.command import SKEW_S
from guiderail.pool.providers.process import ProcessProvider
from guiderail.pool.vm.noop import start_time
from guiderail.pool.wire import TOKEN_ENV
from guiderail.services import free_port

TOKEN = "chaos-token-0123456789"
TTL_S, SWEEP_S, CALL_S = 2.0, 1.0, 2.0
DESKTOP_CALL_S = 10.0  # a reset and a settled screen take longer than a counter
LOSS = 0.05
START_S = SETTLE_S = 180.0  # what comes later is a violation, so a busy computer must not make it so
OVER_S = 30.0
REST_S = 3.0  # requests of the dead that the proxy has still to pass on come within that
SUITES = {"process": "noop/count", "local_desktop": "blank/blank"}
END_S = 60.0
FAULTS = ("kill client", "kill server", "kill machine", "freeze machine", "freeze server", "lose replies", "nothing")


class RefereeError(Explained, RuntimeError):
    """There is nothing to harm: the server does not start."""


class Referee:
    """One run in `root`."""

    def __init__(self, root: Path, clients: int, slots: int, seed: int, provider: str = "process") -> None:
        self.provider, self.call_s = provider, CALL_S if provider == "process" else DESKTOP_CALL_S
        self.root, self.count, self.slots, self.rng = root, clients, slots, random.Random(seed)
        self.cloud, self.port = root / "cloud", free_port()
        self.proxy = Proxy(self.port, seed)
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self.server: subprocess.Popen[bytes] | None = None
        self.number = 0
        self.over_since = self.rest_since = time.monotonic()
        self.log_fd = os.open(root / "referee.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def log(self, kind: str, *what: Any) -> None:
        """One line."""
        os.write(self.log_fd, json.dumps([round(time.time(), 4), kind, *what]).encode() + b"\n")

    # -- processes ----------------------------------------------------------------------------------------------------
    def pool_options(self) -> list[str]:
        """What server and sweeper must agree on."""
        return ["--provider", self.provider, "--vm-root", str(self.cloud), "--state", str(self.root / "state.db")]

    async def start_server(self) -> None:
        """Start it and wait until it answers."""
        command = [sys.executable, "-m", "guiderail.pool.server", "--port", str(self.port), *self.pool_options()]
        command += ["--slots", str(self.slots), "--ttl", str(TTL_S), "--sweep", str(SWEEP_S), "--probe", "0.5"]
        command += ["--call-timeout", str(self.call_s), "--gui-rl-ttl", str(4 * TTL_S), "--vm-ttl", "3600"]
        with (self.root / "server.log").open("ab") as log:
            environment = {**os.environ, TOKEN_ENV: TOKEN}
            self.server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        server = self.server
        await self.until(lambda: self.status() is not None or server.poll() is not None, START_S, "the server answers")
        if server.poll() is not None:
            said = (self.root / "server.log").read_text(errors="replace").splitlines()[-3:]
            raise RefereeError(f"the server ended with {server.returncode} at its start: {' / '.join(said)}")

    def start_client(self) -> None:
        """Start another one; every fourth speaks gui-rl's wire."""
        self.number += 1
        name = f"c{self.number}"
        mode = "gui_rl" if self.number % 4 == 0 else "typed"
        log = self.root / f"client-{name}.jsonl"
        command = [sys.executable, "-m", "guiderail.pool.chaos.client", f"http://127.0.0.1:{self.proxy.port}", TOKEN]
        with (self.root / "clients.log").open("ab") as out:
            self.clients[name] = subprocess.Popen(
                [*command, str(log), name, mode, SUITES[self.provider]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def kill_client(self, name: str) -> None:
        """kill -9."""
        self.log("killed client", name)
        process = self.clients.pop(name)
        process.kill()
        process.wait()

    def status(self) -> dict[str, Any] | None:
        """The server's own view, None when it does not answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/status")
        request.add_header("Authorization", f"Bearer {TOKEN}")
        try:
            with urllib.request.urlopen(request, timeout=1.0) as reply:
                found: dict[str, Any] = json.loads(reply.read())
                return found
        except OSError:
            return None

    def machines(self) -> dict[str, int]:
        """Machines whose process is there, counted without the pool, its provider or what that keeps of them."""
        found: dict[str, int] = {}
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:  # it has ended
                continue
            folder = next((x for x in command if x.startswith(f"{self.cloud.resolve()}/vms/")), "")
            if folder and start_time(process.name):
                found[folder.rpartition("/")[2]] = int(process.name)
        return found

    async def until(self, condition: Callable[[], bool], seconds: float, what: str) -> bool:
        """Whether it came true in time; if not, that is written down."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                self.log("late", what)
                return False
            await asyncio.sleep(0.1)
        return True

    def count_machines(self) -> None:
        """More machines than slots may be seen for as long as a restarted server needs to sweep, not longer."""
        if len(self.machines()) <= self.slots:
            self.over_since = time.monotonic()
        elif time.monotonic() - self.over_since > OVER_S:
            self.over_since = time.monotonic()
            self.log("leak", f"for {OVER_S:g} s more than {self.slots} machines: {sorted(self.machines())}")

    # -- the run ------------------------------------------------------------------------------------------------------
    async def run(self, rounds: int, calm_s: float, pause_s: float, say: Callable[[int], None]) -> None:
        """Calm, `rounds` faults, calm, then everybody dies and what is left is counted."""
        (self.cloud / "vms").mkdir(parents=True, exist_ok=True)
        await self.proxy.start()
        try:
            await self.start_server()
            for _ in range(self.count):
                self.start_client()
            await self.settled()
            await self.calm(calm_s)
            for n in range(rounds):
                await self.fault(self.rng.choice(FAULTS))
                await asyncio.sleep(self.rng.uniform(0.3, 1.0) * pause_s)
                for name in [k for k, p in self.clients.items() if p.poll() is not None]:
                    self.log("client died", name)  # of itself: the oracle will miss its outcome
                    del self.clients[name]
                while len(self.clients) < self.count:
                    self.start_client()
                self.count_machines()
                say(n + 1)
            self.proxy.rate = 0.0
            await self.settled()
            await self.calm(calm_s)
            await self.end()
        finally:
            await self.clear()

    async def settled(self) -> None:
        """All clients have leases or wait, and machines work again."""
        begun = [self.root / f"client-{n}.jsonl" for n in self.clients]
        await self.until(lambda: all(f.exists() for f in begun), SETTLE_S, "all clients have begun")
        await self.until(lambda: bool((s := self.status()) and s["slots"]["down"] <= 1), SETTLE_S, "machines are up")

    def at_rest(self) -> bool:
        """Whether nobody has had a lease or waited for one for a while.

        A look at leases alone misses the dead who stand in the queue: the proxy has not hung up for them.
        """
        status, now = self.status(), time.monotonic()
        if status is None or status["leases"] or status["waiting"]:
            self.rest_since = now
        return now - self.rest_since >= REST_S

    async def calm(self, seconds: float) -> None:
        """No harm for a while: a window to measure throughput in."""
        start = time.time()
        await asyncio.sleep(seconds)
        self.log("calm", start, time.time())

    async def fault(self, kind: str) -> None:
        """One harm."""
        self.log(kind)
        machines = list(self.machines().values())
        if kind == "kill client":
            self.kill_client(self.rng.choice(list(self.clients)))
        elif kind == "kill server" and self.server is not None:
            self.server.kill()
            self.server.wait()
            await self.start_server()
        elif kind == "freeze server" and self.server is not None:
            self.server.send_signal(signal.SIGSTOP)
            await asyncio.sleep(self.rng.uniform(0.1, 1.5 * TTL_S))  # longer than leases live, at times
            self.server.send_signal(signal.SIGCONT)
        elif kind == "lose replies":
            self.proxy.rate = self.rng.choice((0.0, LOSS, 4 * LOSS))
        elif machines and kind.endswith("machine"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(machines), signal.SIGKILL if kind == "kill machine" else signal.SIGSTOP)

    async def end(self) -> None:
        """The running server must end what froze; then everybody dies: leases must run out, the sweep leave nothing."""
        frozen = self.rng.sample(sorted(self.machines().items()), min(2, len(self.machines())))
        for _, pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        gone = {name for name, _ in frozen}  # no restart helps here: a new server would sweep what the old one forgot
        if not await self.until(lambda: not gone & self.machines().keys(), END_S, "frozen machines are ended"):
            self.log("leak", f"frozen machines are still there: {sorted(gone & self.machines().keys())}")
        for name in list(self.clients):
            self.kill_client(name)
        self.rest_since = time.monotonic()
        if not await self.until(self.at_rest, END_S, "leases have run out"):
            self.log("leak", f"leases outlived their clients: {self.status()}")
        if not await self.until(lambda: len(self.machines()) <= self.slots, END_S, "no more machines than slots"):
            self.log("leak", f"{len(self.machines())} machines for {self.slots} slots: {sorted(self.machines())}")
        assert self.server is not None
        if self.rng.random() < 0.5:
            self.log("terminate server")
            self.server.terminate()
        else:
            self.log("kill server")
            self.server.kill()
        self.server.wait()
        sweep = [sys.executable, "-m", "guiderail", "pool", "sweep", "--yes", *self.pool_options()]
        end = time.monotonic() + TTL_S + SKEW_S + OVER_S  # so long a sweep keeps what a new server would take up
        done = subprocess.run(sweep, capture_output=True, text=True, check=False)
        while self.machines() and time.monotonic() < end:
            await asyncio.sleep(1.0)
            done = subprocess.run(sweep, capture_output=True, text=True, check=False)
        if done.returncode or self.machines():
            self.log("leak", f"left after the sweep: {sorted(self.machines())}; it said {done.stdout}{done.stderr}")

    async def clear(self) -> None:
        """End everything that is ours."""
        for process in [*self.clients.values(), *([self.server] if self.server else [])]:
            process.kill()
            process.wait()
        await self.proxy.stop()
        if self.provider != "process":  # desktops die with their server
            await self.until(lambda: not self.machines(), 30, "no machine is left")
            return
        provider = ProcessProvider(self.cloud)
        for vm in await provider.list({}):
            await provider.terminate(vm.id)
