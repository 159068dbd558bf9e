"""A task of the desktop suite on machines that a cloud's provider makes: the stand-in boots our in-VM server.

The API is the stand-in of the provider's tests (a Docker engine; EC2 by moto); a "machine" is our server with a desktop
of its own, at the address that the API tells.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guiderail.params import Env
from guiderail.pool.client import PoolClient
from guiderail.pool.local import env_pool
from guiderail.pool.vm.launch import scratch_root
from guiderail.tasks.instances import instance_seed
from guiderail.tasks.selftest import run_expert
from guiderail.tasks.types import TaskSpec
from pool.clouds.world import Instance, World
from pool.conformance.clouds import Realm, realm
from pool.vm.here import needs_walls

TOKEN = "machine-secret-0123456789"
TASK = TaskSpec("desktop", "terminal-mkdir", instance_seed("train", "terminal-mkdir", 0), "train")


class DesktopWorld(World):
    """A world whose machines have desktops: the in-VM server with a slot of its own, on TCP."""

    def _boot(self, i: Instance) -> None:
        """The server ends the slot with itself on SIGTERM; SIGKILL is the death of the machine."""
        folder = scratch_root((640, 480)) / f"guiderail-desktop-{os.getpid()}-{i.id[:12]}-{i.renewed}"
        self.folders = [*getattr(self, "folders", []), folder]
        port = str(i.asked.get("Port", self.port))
        command = [sys.executable, "-m", "guiderail.pool.vm.server", "--slot", str(folder), "--tcp", "--host", i.host]
        given = i.asked.get("Env") or [f"GUIDERAIL_VM_TOKEN={TOKEN}"]  # docker is told, an image of EC2 has it
        with (self.root / f"{i.id[:12]}.log").open("ab") as log:
            i.process = subprocess.Popen(
                [*command, "--port", port, "--size", "640x480"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **dict(x.split("=", 1) for x in given)},
            )

    def kill(self, vm_id: str) -> None:
        """The machine and all that is in it."""
        found = self.instances.get(vm_id)
        if found is not None and found.process is not None:
            found.process.send_signal(signal.SIGTERM)
            found.process.wait()

    def close(self) -> None:
        super().close()
        for folder in getattr(self, "folders", []):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["docker", "aws"])
def cloud(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Realm]:
    monkeypatch.setenv("GUIDERAIL_VM_TOKEN", TOKEN)
    monkeypatch.setattr("pool.conformance.clouds.World", DesktopWorld)
    (tmp_path / "world").mkdir()
    with realm(request.param, tmp_path / "world", monkeypatch, server="desktop", boot_timeout_s=60.0) as r:
        yield r


@needs_walls
def test_an_expert_solves_a_desktop_task_on_a_machine_of_a_cloud(cloud: Realm, tmp_path: Path) -> None:
    """Twice in one lease (the server resets its desktop), and again on the machine of the next lease."""
    env = Env(provider=cloud.name, slots=1, call_timeout_s=60.0, cloud=cloud.params(ttl_h=1.0, currency="USD"))
    seen: list[str] = []

    async def work(url: str, token: str) -> None:
        async with PoolClient(url, token) as client:
            async with client.env("test", 90.0) as remote:
                for _ in range(2):
                    assert (await run_expert(remote, TASK))["success"]
                assert (await remote.reset(TASK)).observation.step == 0
                assert await remote.evaluate() == 0.0
                seen.extend(cloud.world.instances)
            async with client.env("test", 90.0) as remote:
                assert (await run_expert(remote, TASK))["success"]
                seen.extend(cloud.world.instances)

    with env_pool(env, log=tmp_path / "pool.log") as (url, token):
        asyncio.run(work(url, token))
    assert len(set(seen)) == 2 and cloud.world.instances == {}
    log = (tmp_path / "pool.log").read_text()
    assert "Traceback" not in log and TOKEN not in log
