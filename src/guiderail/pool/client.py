"""Client of the env pool: leases, and an `Env` that lives on the other side of HTTP.

Guarantees: a call whose reply was lost is sent again with the same request id, so it is done at most once; leases are
kept alive by a thread, also while the event loop is busy training; whatever goes wrong is typed: InfraError (crash,
timeout, lease_lost) for the environment and the way to it; ValueError for a task or action the environment has no use
for (as its own `Env` raises; nothing was done, the lease lives); PoolRequestError for a fault of the calling program.
A client that dies silently loses its leases after their time to live.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson

from guiderail.actions.types import Action
from guiderail.actions.wire import action_to_json
from guiderail.envs.types import Cause, InfraError, JudgeError, StepResult, UsedUp
from guiderail.errors import Explained
from guiderail.pool.http import Http, TransportError
from guiderail.pool.wire import decode_result, own_seconds
from guiderail.tasks.types import TaskSpec

log = logging.getLogger("guiderail.pool.client")
ATTEMPTS = 6
WAIT_SLICE_S = 20.0


class PoolRequestError(Explained, RuntimeError):
    """The pool refused a request because of how it was made; `code` is the class, e.g. unauthorized, busy."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class NoSlotError(InfraError):
    """No slot became free in time. `boot_s`: how long a machine that is on its way may take, 0 where none is."""

    def __init__(self, message: str, boot_s: float = 0.0) -> None:
        super().__init__(message, "timeout")
        self.boot_s = boot_s


@dataclass(frozen=True)
class Lease:
    """A slot lent to us: `token` is the fencing token, `call_timeout_s` the server's limit of one call."""

    lease: str
    token: int
    slot: int
    ttl_s: float
    call_timeout_s: float


class PoolClient:
    """Speaks to one pool. Use as `async with PoolClient(url, token) as client`, within one event loop."""

    def __init__(self, url: str, token: str, *, ttl_s: float | None = None) -> None:
        self.http = Http(url, {"Authorization": f"Bearer {token}"})
        self.url, self.token, self.ttl_s = url, token, ttl_s
        self.leases: dict[str, Lease] = {}
        self.lost: dict[str, str] = {}
        self.ids = (f"{secrets.token_hex(6)}-{n}" for n in itertools.count())
        self._beat: threading.Thread | None = None
        self._stop = threading.Event()

    async def __aenter__(self) -> PoolClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back all leases still held and stop the heartbeat. Never raises for a pool that is gone."""
        for lease in list(self.leases.values()):
            await self.release(lease)
        self._stop.set()
        if self._beat is not None:
            await asyncio.to_thread(self._beat.join, 5.0)
        await self.http.close()

    async def status(self) -> dict[str, Any]:
        """The pool's counts."""
        status, body = await self._send("GET", "/v1/status", {}, 10.0)
        return _json(status, body)

    async def allocate(self, holder: str, timeout_s: float = 60.0) -> Lease:
        """Wait up to `timeout_s` for a slot, and beyond that for a machine that is on its way, as long as a boot may
        take. Raises NoSlotError, InfraError, PoolRequestError."""
        began = time.monotonic()
        end = began + timeout_s
        request_id = next(self.ids)
        while True:
            wait = max(0.0, min(WAIT_SLICE_S, end - time.monotonic()))
            body = {"holder": holder, "wait_s": wait, "request_id": request_id, "ttl_s": self.ttl_s}
            try:
                data = _json(*await self._send("POST", "/v1/allocate", body, wait + 10.0))
            except NoSlotError as e:
                end = max(end, began + timeout_s + e.boot_s)
                if time.monotonic() >= end:
                    raise
                continue
            lease = Lease(**data)
            self.leases[lease.lease] = lease
            self._start_heartbeat()
            return lease

    async def release(self, lease: Lease) -> None:
        """Give a slot back; one that is lost already, or a pool that is gone, is fine. Idempotent."""
        self.lost.pop(lease.lease, None)
        if self.leases.pop(lease.lease, None) is not None:
            try:
                body = {"lease": lease.lease, "token": lease.token}
                _json(*await self._send("POST", "/v1/close", body, lease.call_timeout_s + 10.0, attempts=2))
            except InfraError as e:
                log.debug("release of %s: %s", lease.lease, e)

    @contextlib.asynccontextmanager
    async def env(self, holder: str, timeout_s: float = 60.0) -> AsyncIterator[RemoteEnv]:
        """An environment for the length of the block."""
        env = RemoteEnv(self, await self.allocate(holder, timeout_s), holder)
        try:
            yield env
        finally:
            await env.close()

    async def call(self, lease: Lease, route: str, own_s: float = 0.0, **fields: Any) -> tuple[int, bytes]:
        """One at-most-once call on a lease, which may take `own_s` longer than others; returns status and body. Raises
        InfraError when no reply can be had."""
        if lease.lease in self.lost:
            raise InfraError(f"lease {lease.lease}: {self.lost[lease.lease]}", "lease_lost")
        body = {"lease": lease.lease, "token": lease.token, "request_id": next(self.ids), **fields}
        return await self._send("POST", f"/v1/{route}", body, lease.call_timeout_s + own_s + 10.0)

    async def _send(
        self, method: str, path: str, body: dict[str, Any], timeout: float, attempts: int = ATTEMPTS
    ) -> tuple[int, bytes]:
        """Send, and send again (the same bytes) while the connection fails."""
        raw = orjson.dumps(body)
        for attempt in range(1, attempts + 1):
            try:
                return await self.http.request(method, path, raw, timeout)
            except TimeoutError:
                raise InfraError(f"{path}: no reply from the pool within {timeout:g} s", "timeout") from None
            except TransportError as e:
                if attempt == attempts:
                    raise InfraError(f"the pool cannot be reached ({attempts} attempts): {e}", "crash") from e
                await asyncio.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")

    def _start_heartbeat(self) -> None:
        if self._beat is None:
            self._beat = threading.Thread(target=self._heartbeats, name="pool-heartbeat", daemon=True)
            self._beat.start()

    def _heartbeats(self) -> None:
        """Thread: every third of the shortest time to live, one request for all leases."""
        kind = http.client.HTTPSConnection if self.http.tls else http.client.HTTPConnection
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        while not self._stop.wait(min([x.ttl_s for x in list(self.leases.values())] or [1.0]) / 3):
            refs = [{"lease": x.lease, "token": x.token} for x in list(self.leases.values())]
            if not refs:
                continue
            connection = kind(self.http.host, self.http.port, timeout=5.0)
            try:
                path = f"{self.http.prefix}/v1/heartbeat"
                connection.request("POST", path, orjson.dumps({"leases": refs}), headers)
                answer = orjson.loads(connection.getresponse().read())
                self.lost.update({k: v for k, v in answer.get("lost", {}).items() if k in self.leases})
            except (OSError, http.client.HTTPException, orjson.JSONDecodeError) as e:
                log.warning("heartbeat failed (tried again soon): %s: %s", type(e).__name__, e)
            finally:
                connection.close()


class RemoteEnv:
    """One leased screen; implements `guiderail.envs.types.Env`. After an InfraError, allocate another.

    Where a machine serves one episode only, `reset` gives the lease back and takes another, by the name of `holder`.
    """

    def __init__(self, client: PoolClient, lease: Lease, holder: str = "renewed") -> None:
        self.client, self.lease, self.holder = client, lease, holder

    async def reset(self, task: TaskSpec) -> StepResult:
        """Start `task`. Raises InfraError, ValueError (unknown template)."""
        try:
            return _result(*await self.client.call(self.lease, "reset", task=task.to_json()))
        except UsedUp:
            await self.client.release(self.lease)
            self.lease = await self.client.allocate(self.holder)
            return _result(*await self.client.call(self.lease, "reset", task=task.to_json()))

    async def step(self, action: Action) -> StepResult:
        """Do `action` once, or raise ValueError (not done) or InfraError (perhaps done)."""
        sent = action_to_json(action)
        return _result(*await self.client.call(self.lease, "step", own_seconds(action), action=sent))

    async def evaluate(self) -> float:
        """Raw reward of the current state. Raises JudgeError."""
        return float(_json(*await self.client.call(self.lease, "evaluate"))["raw_reward"])

    async def side_effects(self) -> list[str] | None:
        """What changed beside what was asked for, None where nobody looks."""
        lines: list[str] | None = _json(*await self.client.call(self.lease, "side_effects"))["lines"]
        return lines

    async def oracle(self) -> list[dict[str, Any]]:
        """DOM facts for scripted experts."""
        elements: list[dict[str, Any]] = _json(*await self.client.call(self.lease, "oracle"))["elements"]
        return elements

    async def close(self) -> None:
        """Give the slot back. Idempotent."""
        await self.client.release(self.lease)


_LOST = ("unknown_lease", "lease_ended", "stale_token")


def _raise(status: int, body: bytes) -> None:
    try:
        said = orjson.loads(body)
        code, message = str(said["error"]), str(said["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise InfraError(f"HTTP {status} with a body that is not the pool's: {body[:120]!r}") from None
    if code == "infra_error":
        cause: Cause = "timeout" if said.get("cause") == "timeout" else "crash"
        raise InfraError(message, cause)
    if code == "judge_error":
        raise JudgeError(message)
    if code in _LOST:
        raise InfraError(message, "lease_lost")
    if code == "no_slot":
        raise NoSlotError(message, float(said.get("boot_s", 0.0)))
    if code == UsedUp.code:
        raise UsedUp(message)
    if status == 422:
        raise ValueError(message)
    if status >= 500:
        raise InfraError(f"{code}: {message}")
    raise PoolRequestError(code, message)


def _json(status: int, body: bytes) -> dict[str, Any]:
    if status != 200:
        _raise(status, body)
    data: dict[str, Any] = orjson.loads(body)
    return data


def _result(status: int, body: bytes) -> StepResult:
    if status != 200:
        _raise(status, body)
    try:
        return decode_result(body)
    except ValueError as e:
        raise InfraError(str(e)) from e
