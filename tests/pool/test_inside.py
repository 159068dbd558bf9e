"""What answers inside a cloud's machine: whose it is, which token it wants, whether it can be made anew in place."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from guiderail.envs.desktop import DesktopEnv
from guiderail.envs.machine import Machine, Seen
from guiderail.envs.types import InfraError, UsedUp
from guiderail.pool.providers.base import Vm
from guiderail.pool.providers.inside import inside
from guiderail.pool.providers.probe_http import ping_desktop, ping_osworld
from guiderail.pool.vm.http import TcpServer, handler_of
from guiderail.pool.vm.routes import Routes
from guiderail.tasks.types import TaskSpec

TOKEN = "machine-secret"
BLANK = TaskSpec("blank", "blank", 0)


@pytest.fixture
def address() -> Iterator[str]:
    """Our server on a desktop that is not there."""
    desk: Any = SimpleNamespace(
        size=(640, 480), guest=SimpleNamespace(home="/home/user"), notes=[], sandboxed=False, resets=False
    )
    server = TcpServer(("127.0.0.1", 0), handler_of(Routes(desk, strict=True), TOKEN))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield "127.0.0.1:%d" % server.server_address[1]  # noqa: UP031
    server.shutdown()
    server.server_close()


class Stock(BaseHTTPRequestHandler):
    """OSWorld's server, as far as it is asked here."""

    png = b""

    def do_GET(self) -> None:
        known = {"/screenshot": self.png, "/platform": b"Linux"}
        body = known.get(self.path, b"<html>404</html>")
        self.send_response(200 if self.path in known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def stock() -> Iterator[str]:
    Stock.png = b""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stock)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield "127.0.0.1:%d" % server.server_port  # noqa: UP031
    server.shutdown()
    server.server_close()


def run(do: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(do())


def test_a_machine_is_its_first_claimants(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        monkeypatch.delenv("GUIDERAIL_VM_TOKEN", raising=False)
        assert "wants another token" in await ping_desktop(address, "a-1", claim=True)
        assert inside("desktop", 1.0).secrets() == {}
        monkeypatch.setenv("GUIDERAIL_VM_TOKEN", TOKEN)
        assert (
            inside("desktop", 1.0).secrets() == {"GUIDERAIL_VM_TOKEN": TOKEN} and inside("osworld", 1.0).secrets() == {}
        )
        assert "it is nobody's" in await ping_desktop(address, "a-1")
        assert await ping_desktop(address, "a-1", claim=True) == ""
        assert await ping_desktop(address, "a-1", claim=True) == ""  # asked again: a reply was lost
        assert await ping_desktop(address, "a-1") == ""
        assert "this is machine a-1, not b-1" in await ping_desktop(address, "b-1", claim=True)
        assert "it is a-1's" in await ping_desktop(address, "b-1")
        with pytest.raises(OSError, match="this is machine a-1, not b-1"):
            await inside("desktop", 1.0).connect(Vm("i", "b-1", "running", address=address))
        env = await inside("desktop", 1.0).connect(Vm("i", "a-1", "running", address=address))
        assert isinstance(env, DesktopEnv) and env.machine.ours and not env.machine.resets
        await env.close()

    run(go)


def test_a_call_for_another_machine_is_refused_before_anything_is_done(address: str) -> None:
    async def go() -> None:
        first, later = Machine(f"http://{address}", token=TOKEN), Machine(f"http://{address}", token=TOKEN, name="b-1")
        await first.hello()
        for call in (later.hello(), later.launch(["true"]), later.read("/etc/passwd")):
            with pytest.raises(InfraError, match="machine of nobody yet, not b-1"):
                await call
        await first.close()
        await later.close()

    run(go)


def test_osworlds_server_is_named_and_waited_for(stock: str) -> None:
    async def go() -> None:
        assert "set env.cloud.server: osworld" in await ping_desktop(stock, "a-1", claim=True)
        assert "no screen (yet)" in await ping_osworld(stock, "a-1", claim=True)
        Stock.png = b"\x89PNG..."
        assert await ping_osworld(stock, "a-1", claim=True) == "" == await ping_osworld(stock, "a-1")
        assert "no connection" in await ping_osworld("127.0.0.1:9", "a-1")

    run(go)


def test_a_machine_that_cannot_reset_itself_is_clean_once() -> None:
    class Own(Machine):
        async def look(self, *, settle: bool = True) -> Seen:
            return Seen(b"\x89PNG")

    async def go() -> None:
        machine = Own("http://127.0.0.1:9")
        machine.size = (640, 480)
        env = DesktopEnv(machine)
        assert (await env.reset(BLANK)).observation.step == 0
        with pytest.raises(UsedUp, match="take a new lease"):
            await env.reset(BLANK)
        assert (await env.observe()).observation.step == 0  # nothing was done to the episode that runs
        await env.close()

    run(go)
