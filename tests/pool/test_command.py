"""`guiderail pool`: what it keeps, what it ends, what it says; as a user runs it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from guiderail.pool.client import PoolClient
from guiderail.pool.providers.base import VmSpec
from guiderail.pool.providers.process import ProcessProvider
from guiderail.services import free_port

TOKEN = "t" * 20


class Place:
    """A cloud, a state file, and servers on them."""

    def __init__(self, root: Path) -> None:
        self.root, self.state = root / "cloud", root / "state.db"
        self.which = ["--provider", "process", "--vm-root", str(self.root), "--state", str(self.state)]

    def serve(self, *more: str) -> tuple[subprocess.Popen[bytes], str]:
        port = free_port()
        command = [sys.executable, "-m", "guiderail.pool.server", "--port", str(port), *self.which, *more]
        server = subprocess.Popen(command, env={**os.environ, "GUIDERAIL_POOL_TOKEN": TOKEN}, stderr=subprocess.DEVNULL)
        return server, f"http://127.0.0.1:{port}"

    def command(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "guiderail", "pool", args[0], *self.which, *args[1:]]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def verdicts(self, *args: str) -> dict[str, str]:
        out = self.command("list", "--json", *args)
        assert out.returncode == 0, out.stderr
        return {r["machine"]: r["verdict"] for r in json.loads(out.stdout)["rows"]}


@pytest.fixture
def place(tmp_path: Path) -> Any:
    place = Place(tmp_path)
    yield place

    async def clear() -> None:
        provider = ProcessProvider(place.root)
        await provider.start()
        for vm in await provider.list({}):
            await provider.terminate(vm.id)

    asyncio.run(clear())


async def leased(url: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            await PoolClient(url, TOKEN, ttl_s=30.0).allocate("me", 30)
            return
        except Exception:
            assert time.monotonic() < end
            await asyncio.sleep(0.2)


def test_list_and_sweep(place: Place) -> None:
    server, url = place.serve("--slots", "2", "--owner", "run-9")
    try:
        asyncio.run(leased(url))
        assert set(place.verdicts().values()) == {"kept"} and len(place.verdicts()) == 2
        assert "ended" not in place.command("sweep", "--yes").stdout  # its server lives
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    asyncio.run(others(place))
    verdicts = place.verdicts()
    assert sorted(verdicts.values()) == ["kept", "orphan"]  # a lease that a new server would take up
    assert place.verdicts("--all-pools") == {**verdicts, "foreign": "kept", "old": "expired"}
    said = place.command("sweep")
    assert "1 would be ended; say --yes" in said.stdout and place.verdicts() == verdicts
    said = place.command("sweep", "--yes", "--all-pools")
    assert said.returncode == 0 and said.stdout.count("ended ") == 2
    assert sorted(place.verdicts("--all-pools").values()) == ["kept", "kept"]
    costs = json.loads(place.command("costs", "--json").stdout)
    assert costs["totals"]["machines"] == 2 and costs["rows"][0]["owner"] == "run-9"


async def others(place: Place) -> None:
    provider = ProcessProvider(place.root)
    await provider.create(VmSpec("foreign", "pool-of-others", expires=time.time() + 1000))
    await provider.create(VmSpec("old", "pool-of-others", expires=time.time() - 1000))


def test_what_cannot_be_said_is_said(place: Place) -> None:
    assert "give --state" in place.command("costs", "--state", "").stderr
    out = place.command("costs", "--state", "/nonexistent/x.db")
    assert out.returncode == 1 and "there is no state file" in out.stderr
    out = place.command("list", "--provider", "noop")
    assert out.returncode == 0 and "die with their server" in out.stdout
