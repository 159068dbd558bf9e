"""A pool served in the test's own event loop, a proxy that loses replies, and a client as gui-rl writes it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn

from guiderail.pool.app import build_app
from guiderail.pool.door import door
from guiderail.pool.gui_rl import GuiRl
from guiderail.pool.manager import Pool

TOKEN = "a-token-of-some-length"


@contextlib.asynccontextmanager
async def serving(
    pool: Pool, gui_rl: GuiRl | None = None, free: bool = True, connections: int = 100
) -> AsyncIterator[str]:
    """The url of `pool`, served until the block ends."""
    app = build_app(pool, TOKEN, gui_rl, free)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none", http=door(connections)))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined,method-assign]
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done(), task
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def lossy(url: str, lose: set[int]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy. Replies number `lose` are waited for and thrown away with their connection; requests are kept."""
    host, port = url.removeprefix("http://").split(":")
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                number = len(seen)
                seen.append(head.split(b" ")[1] + b" " + body)
                upstream = upstream or await asyncio.open_connection(host, int(port))
                upstream[1].write(head + body)
                answer = await upstream[0].readuntil(b"\r\n\r\n")
                answer += await upstream[0].readexactly(
                    int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                )
                if number in lose:
                    break
                writer.write(answer)
        if upstream:
            upstream[1].close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


class GuiRlClient:
    """What gui-rl's env_client.py sends and expects, written from the description of its wire (gui-rl.md 1.4)."""

    def __init__(self, base_url: str, pause_s: float = 1.0, retries: int = 10) -> None:
        self.base, self.pause_s, self.retries = base_url.rstrip("/"), pause_s, retries
        self.http = httpx.AsyncClient(timeout=None)

    async def post(self, route: str, payload: dict[str, Any], retries: int | None = None) -> dict[str, Any]:
        """Any exception, 4xx and 5xx included, is retried after a pause."""
        for attempt in range(1, (retries or self.retries) + 1):
            try:
                reply = await self.http.post(f"{self.base}{route}", json=payload)
                reply.raise_for_status()
                out: dict[str, Any] = reply.json()
                break
            except Exception:
                if attempt == (retries or self.retries):
                    raise
                await asyncio.sleep(self.pause_s)
        if not out.get("ok"):
            raise RuntimeError(f"{route}: {out}")
        return out

    @staticmethod
    def decode(observation: dict[str, Any]) -> dict[str, Any]:
        """screenshot_b64 becomes screenshot (empty bytes when it is null)."""
        observation = dict(observation)
        encoded = observation.pop("screenshot_b64", None)
        return {**observation, "screenshot": base64.b64decode(encoded) if encoded else b""}

    async def allocate(self, episode_id: str) -> dict[str, Any]:
        """-> lease_id, env_id, reused."""
        return await self.post("/allocate", {"episode_id": episode_id})

    async def heartbeat(self, lease_id: str) -> None:
        """Keep alive."""
        await self.post("/heartbeat", {"lease_id": lease_id})

    async def reset(self, lease_id: str, task_config: Any) -> dict[str, Any]:
        """-> observation."""
        return self.decode(
            (await self.post("/reset", {"lease_id": lease_id, "task_config": task_config}))["observation"]
        )

    async def get_obs(self, lease_id: str) -> dict[str, Any]:
        """-> observation."""
        return self.decode((await self.post("/get_obs", {"lease_id": lease_id}))["observation"])

    async def step(self, lease_id: str, action: Any, sleep: float = 0.0) -> tuple[dict[str, Any], float, bool, Any]:
        """-> observation, reward, done, info."""
        payload = {"lease_id": lease_id, "action": action, "sleep_after_execution": sleep}
        out = await self.post("/step", payload)
        return (
            self.decode(out["observation"]),
            float(out.get("reward", 0.0)),
            bool(out.get("done")),
            out.get("info", {}),
        )

    async def evaluate(self, lease_id: str) -> float:
        """-> score."""
        return float((await self.post("/evaluate", {"lease_id": lease_id}, 6))["score"])

    async def start_recording(self, lease_id: str) -> None:
        """Must work."""
        await self.post("/start_recording", {"lease_id": lease_id})

    async def end_recording(self, lease_id: str, out_path: str) -> None:
        """May fail."""
        await self.post("/end_recording", {"lease_id": lease_id, "out_path": out_path})

    async def close(self, lease_id: str) -> None:
        """Give back."""
        await self.post("/close", {"lease_id": lease_id})
