"""Strangers at the door: half requests, too many connections, bodies that never end; and how a server ends."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from guiderail.pool import bodies
from guiderail.pool import door as doors
from guiderail.pool.config import PoolConfig
from guiderail.pool.gui_rl import GuiRl
from guiderail.pool.manager import Pool
from guiderail.pool.providers.noop import NoopProvider
from guiderail.pool.vm.noop import start_time
from guiderail.services import free_port
from pool.serving import TOKEN, GuiRlClient, serving


def run(test: Callable[[str], Awaitable[None]], connections: int = 100) -> None:
    async def main() -> None:
        async with serving(Pool(NoopProvider(), PoolConfig(1)), connections=connections) as url:
            await asyncio.wait_for(test(url.removeprefix("http://")), 30)

    asyncio.run(main())


async def dial(where: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = where.split(":")
    return await asyncio.open_connection(host, int(port))


async def healthy(where: str) -> bool:
    reader, writer = await dial(where)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    try:
        return b"200 OK" in await reader.read(-1)
    except ConnectionError:
        return False
    finally:
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"POST /v1/step HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_does_not_end_ends_the_connection(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "HEAD_S", 0.3)

    async def test(where: str) -> None:
        reader, writer = await dial(where)
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()

    run(test)


def test_a_connection_in_use_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests one after the other on one connection, longer than a head may take; one of them takes longer itself."""
    monkeypatch.setattr(doors, "HEAD_S", 0.3)

    async def test(where: str) -> None:
        reader, writer = await dial(where)

        async def ask(wait_s: float) -> bytes:
            body = json.dumps({"holder": "h", "wait_s": wait_s}).encode()
            head = f"POST /v1/allocate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
            return answer.split(b"\r\n")[0]

        assert b"200" in await ask(5.0)
        assert b"503" in await ask(0.8)
        for _ in range(12):
            assert b"503" in await ask(0.05)
            await asyncio.sleep(0.02)
        writer.close()

    run(test)


def test_a_body_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.2)

    async def test(where: str) -> None:
        reader, writer = await dial(where)
        head = f"POST /v1/allocate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"holder": ')
        answer = await asyncio.wait_for(reader.readuntil(b"}"), 5)
        assert b"408" in answer.split(b"\r\n")[0] and b'"too_slow"' in answer
        writer.close()

    run(test)


def test_no_more_connections_than_there_is_room_for() -> None:
    async def test(where: str) -> None:
        held = [await dial(where) for _ in range(8)]
        await asyncio.sleep(0.1)
        assert not await healthy(where)
        for _, writer in held:
            writer.close()
        await asyncio.sleep(0.1)
        assert await healthy(where)

    run(test, connections=5)


def test_the_room_is_what_machines_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    assert doors.connection_limit(64) == 1024 - 256 - 4 * 64
    with pytest.raises(ValueError, match=r"256 slots need 1296 open files.*1024: raise `ulimit -n`"):
        doors.connection_limit(256)


@pytest.mark.parametrize("retried", [False, True])
def test_a_client_that_died_in_the_queue_does_not_keep_its_machine(
    retried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease of gui-rl lives for ten minutes; nobody knows of this one. A retry in time finds it, and keeps it."""
    monkeypatch.setattr("guiderail.pool.desk.UNHEARD_S", 0.5)

    async def main() -> None:
        pool = Pool(NoopProvider(), PoolConfig(1))
        async with serving(pool, GuiRl()) as url:
            holder = await pool.allocate("holder", 60, 5, "")
            _, writer = await dial(url.removeprefix("http://"))
            body = b'{"episode_id": "ghost"}'
            writer.write(b"POST /allocate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            while not len(pool.queue):
                await asyncio.sleep(0.01)
            writer.close()
            await asyncio.sleep(0.1)
            await pool.close(holder)
            while not pool.table.leases:
                await asyncio.sleep(0.01)
            if retried:
                lease = (await GuiRlClient(url).allocate("ghost"))["lease_id"]
                await asyncio.sleep(1.2)
                await GuiRlClient(url).heartbeat(lease)
            else:
                assert (await pool.allocate("next", 60, 5, "")).holder == "next"

    asyncio.run(main())


def machines(root: Path) -> list[str]:
    found = [(f.parent.name, *f.read_text().split()) for f in root.glob("vms/*/pid")]
    return [name for name, pid, born in found if start_time(pid) == born]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """A real one with 280 files, so that a few connections use them up; three machines."""
    port = free_port()
    command = [sys.executable, "-m", "guiderail.pool.server", "--port", str(port), "--slots", "3", "--probe", "0.3"]
    command += ["--provider", "process", "--vm-root", str(tmp_path), "--state", str(tmp_path / "s.db")]
    process = subprocess.Popen(
        command,
        env={**os.environ, "GUIDERAIL_POOL_TOKEN": TOKEN},
        stderr=(tmp_path / "log").open("ab"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)),
    )
    end = time.monotonic() + 60
    while len(machines(tmp_path)) < 3 or "running on" not in (tmp_path / "log").read_text():
        assert time.monotonic() < end and process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.05)
    yield process, port, tmp_path
    process.kill()
    process.wait()
    for name in machines(tmp_path):
        os.kill(int((tmp_path / "vms" / name / "pid").read_text().split()[0]), signal.SIGKILL)


def test_half_requests_kill_no_machine_and_a_second_ctrl_c_leaves_none(
    server: tuple[subprocess.Popen[bytes], int, Path],
) -> None:
    process, port, root = server
    before = sorted(machines(root))
    held = []
    for _ in range(500):
        held.append(socket.create_connection(("127.0.0.1", port), 5))
        with contextlib.suppress(OSError):
            held[-1].send(b"POST /v1/step HTTP/1.1\r\nHost: x\r\n")
    time.sleep(1.0)  # three rounds of probes
    assert sorted(machines(root)) == before
    for connection in held:
        connection.close()
    time.sleep(0.2)
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/status", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        assert json.loads(reply.read())["rebuilds"] == 0
    process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    assert machines(root) == []
