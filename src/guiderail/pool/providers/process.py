"""Machines that are processes of this computer without a screen: a cloud small enough to be killed in a test.

The folder `root` is the cloud: `root/vms/<id>/` holds what the provider knows of a machine (labels, pid, port).
Guarantees what a cloud does: machines outlive the pool and carry labels from their first moment on, each ends by itself
at its hard limit, `create` twice with one name makes one, and pools on the same folder see each other's machines.
The journal of all actions is `root/journal` (see `pool.vm.noop`).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from guiderail.envs.types import Env
from guiderail.pool.providers.base import BootFailed, Unreachable, Vm, VmSpec
from guiderail.pool.providers.probe import judged
from guiderail.pool.vm import noop
from guiderail.pool.vm.client import MachineEnv

POLL_S = 0.02
DEAD = ".ended"


class ProcessProvider:
    """Processes of `pool.vm.noop` under `root`, each booting for `boot_s` seconds."""

    name = "process"
    durable = True
    reset_between_leases = True
    hard_ttl = True
    price_per_hour = 0.36  # made up: a cent for 100 seconds, so that tests of the ledger see something
    currency = "credit"

    def __init__(self, root: Path, *, boot_s: float = 0.0) -> None:
        self.root, self.boot_s = root.resolve(), boot_s
        self.children: dict[str, subprocess.Popen[bytes]] = {}  # kept to reap them

    async def start(self) -> None:
        """Make the folders."""
        (self.root / "vms").mkdir(parents=True, exist_ok=True)

    async def create(self, spec: VmSpec) -> Vm:
        """Start the process; one that has the name already is returned. Raises BootFailed."""
        folder = self.root / "vms" / spec.name
        vm = Vm(spec.name, spec.name, "booting", spec.labels(), "", time.time(), self.price_per_hour)
        draft = self.root / f"draft-{spec.name}-{os.getpid()}"
        draft.mkdir()
        (draft / "vm.json").write_text(json.dumps(asdict(vm)))
        try:
            draft.rename(folder)
        except OSError:  # it exists (a folder that is not empty is never replaced)
            shutil.rmtree(draft)
            return _read(folder) or vm
        command = [sys.executable, "-I", "-S", noop.__file__, str(folder), str(spec.expires), str(self.boot_s)]
        null = subprocess.DEVNULL
        try:
            self.children[vm.id] = await asyncio.to_thread(
                subprocess.Popen, command, stdin=null, stdout=null, stderr=null, start_new_session=True
            )
        except OSError as e:
            raise BootFailed(f"{spec.name}: {e}") from e
        return vm

    async def wait_ready(self, vm: Vm, timeout_s: float) -> Vm:
        """Wait for its port, then for an answer there. Raises BootFailed, Unreachable."""
        end = time.monotonic() + timeout_s
        seen = "no process"
        while time.monotonic() < end:
            now = _read(self.root / "vms" / vm.id)
            if now is None or (now.state == "gone" and self._ended(vm.id)):
                raise BootFailed(f"{vm.name} ended while it booted")
            seen = f"state {now.state}, address {now.address or 'none yet'}"
            if now.address and await self.ready(now):
                return now
            await asyncio.sleep(POLL_S)
        raise Unreachable(f"{vm.name} did not answer within {timeout_s:g} s ({seen})")

    async def connect(self, vm: Vm) -> Env:
        """Connect to its port. Raises Unreachable."""
        try:
            return await MachineEnv.open(vm.address, vm.name)
        except OSError as e:
            raise Unreachable(f"{vm.name} at {vm.address}: {type(e).__name__}: {e}") from e

    async def ready(self, vm: Vm) -> bool:
        """Whether it answers a ping within two seconds."""
        try:
            async with asyncio.timeout(2.0):
                return not judged(await _ask(vm, "ping"), vm.name)
        except (OSError, ValueError, EOFError):
            return False

    async def reset(self, vm: Vm) -> Vm:
        """Clean it in place. Raises BootFailed."""
        try:
            async with asyncio.timeout(5.0):
                await _ask(vm, "clean")
        except (OSError, ValueError, EOFError) as e:
            raise BootFailed(f"{vm.name} could not be cleaned: {type(e).__name__}: {e}") from e
        return vm

    async def terminate(self, vm_id: str) -> None:
        """Kill the process, forget the folder. Idempotent."""
        folder, dead = self.root / "vms" / vm_id, self.root / "vms" / f"{vm_id}{DEAD}"
        if folder.exists():
            shutil.rmtree(dead, ignore_errors=True)
            folder.rename(dead)  # from now on the process cannot publish itself
        pid = _pid(dead)
        if pid:
            os.kill(pid, signal.SIGKILL)
        child = self.children.pop(vm_id, None)
        if child is not None:
            child.kill()
            await asyncio.to_thread(child.wait)
        while _pid(dead):
            await asyncio.sleep(POLL_S)
        shutil.rmtree(dead, ignore_errors=True)

    async def list(self, labels: Mapping[str, str]) -> list[Vm]:
        """Machines in the folder with `labels`, also those that died."""
        found = [_read(f) for f in sorted((self.root / "vms").iterdir())]
        return [vm for vm in found if vm is not None and labels.items() <= vm.labels.items()]

    async def stop(self) -> None:
        """Nothing is shared; machines stay."""

    def _ended(self, vm_id: str) -> bool:
        """Whether the process we started has ended (before it wrote its pid, its folder looks the same either way)."""
        child = self.children.get(vm_id)
        return child is None or child.poll() is not None


def _read(folder: Path) -> Vm | None:
    """What the folder says of its machine; state gone when its process is not there (yet)."""
    try:
        known: dict[str, Any] = json.loads((folder / "vm.json").read_text())
        port = (folder / "port").read_text() if (folder / "port").exists() else ""
    except FileNotFoundError:
        return None
    vm = Vm(**known)
    if not _pid(folder):
        return replace(vm, state="gone")
    return replace(vm, state="running", address=f"127.0.0.1:{port}") if port else vm


def _pid(folder: Path) -> int:
    """The living process of a machine, 0 when there is none."""
    try:
        pid, born = (folder / "pid").read_text().split()
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return int(pid) if noop.start_time(pid) == born else 0


async def _ask(vm: Vm, call: str) -> dict[str, Any]:
    """One call without a fencing token, on a connection of its own."""
    host, _, port = vm.address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(json.dumps({"call": call, "name": vm.name}).encode() + b"\n")
        reply: dict[str, Any] = json.loads(await reader.readline())
    finally:
        writer.close()
    if "error" in reply:
        raise ValueError(reply["error"])
    return reply
