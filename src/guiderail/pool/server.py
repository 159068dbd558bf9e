"""The env pool server: `python -m guiderail.pool.server`. FastAPI + uvicorn around `Pool`.

Routes: JSON in; JSON out, or for reset and step a binary result (wire.py). All are POST and need the header
`Authorization: Bearer TOKEN` unless said otherwise:

    /v1/allocate  {holder, ttl_s, wait_s, request_id}      -> {lease, token, slot, ttl_s, call_timeout_s}
    /v1/heartbeat {leases: [{lease, token}, ...]}          -> {alive: [lease, ...], lost: {lease: error class}}
    /v1/reset     {lease, token, request_id, task}         -> result
    /v1/step      {lease, token, request_id, action}       -> result
    /v1/evaluate  {lease, token, request_id}               -> {raw_reward}
    /v1/oracle    {lease, token, request_id}               -> {elements}
    /v1/close     {lease, token}                           -> {}
    GET /v1/status -> counts        GET /healthz (no token) -> {"ok": true}

Guarantees: an error is always {"error": class, "message": sentence} with a fitting status (400 bad_json,
401 unauthorized, 404 unknown_lease or not_found, 405, 409 lease_ended | stale_token | busy | request_reused |
not_reset | episode_over, 413 too_large, 422 bad_request, 502 or 504 infra_error with `cause`, 503 no_slot | draining),
and only infra_error costs a lease. Binds 127.0.0.1; the token comes from the environment, is never printed, and is
compared in constant time. SIGTERM drains: no new leases, running calls end, environments and browser are closed.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

import orjson
import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from guiderail.actions.wire import action_from_json
from guiderail.envs.types import Env, StepResult
from guiderail.pool.bodies import Allocate, Call, Heartbeat, Ref, Refused, Reset, Step, read
from guiderail.pool.leases import Lease, LeaseError
from guiderail.pool.manager import Pool
from guiderail.pool.providers import make_provider
from guiderail.pool.providers.local import LocalProvider
from guiderail.pool.wire import RESULT_TYPE, TOKEN_ENV, Reply, encode_result, refusal, task_from_json

Act = Callable[[Env], Awaitable[Reply]]
NOT_RESET = refusal(409, "not_reset", "nothing runs on this lease yet; call /v1/reset with a task first")


class Gate:
    """ASGI layer: the token on every route but /healthz."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 here, or hand on."""
        if scope["type"] == "http" and scope["path"] != "/healthz":
            given = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
            if not hmac.compare_digest(given, self.expected):
                message = f"send the pool's token as 'Authorization: Bearer ...' (environment variable {TOKEN_ENV})"
                await answer(refusal(401, "unauthorized", message))(scope, receive, send)
                return
        await self.app(scope, receive, send)


def answer(reply: Reply) -> Response:
    """A Reply as an HTTP response."""
    return Response(reply.body, reply.status, media_type=reply.type)


def ok(data: dict[str, Any]) -> Reply:
    """A 200 JSON reply."""
    return Reply(200, orjson.dumps(data))


def build_app(pool: Pool, token: str) -> FastAPI:
    """The HTTP face of `pool`. Starting the app starts the pool, stopping it stops the pool."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await pool.start()
        yield
        await pool.stop()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, token=token)

    @app.exception_handler(Refused)
    async def refused(request: Request, e: Refused) -> Response:
        return answer(refusal(e.status, e.code, str(e)))

    @app.exception_handler(LeaseError)
    async def lease_error(request: Request, e: LeaseError) -> Response:
        return answer(refusal(e.status, e.code, str(e)))

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, e: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(e.status_code, "http_error")
        return answer(refusal(e.status_code, code, f"{request.method} {request.url.path}: {e.detail}"))

    async def call(lease: Lease, request_id: str, digest: int, act: Act) -> Response:
        return answer(await pool.call(lease, request_id, digest, act))

    @app.get("/healthz")
    async def healthz() -> Response:
        return answer(ok({"ok": True}))

    @app.get("/v1/status")
    async def status() -> Response:
        return answer(ok(pool.status()))

    @app.post("/v1/allocate")
    async def allocate(request: Request) -> Response:
        body, _ = await read(request, Allocate)
        lease = await pool.allocate(body.holder, body.ttl_s or pool.ttl_s, body.wait_s, body.request_id)
        told = {"lease": lease.id, "token": lease.token, "slot": lease.slot, "ttl_s": lease.ttl_s}
        return answer(ok({**told, "call_timeout_s": pool.call_timeout_s}))

    @app.post("/v1/heartbeat")
    async def heartbeat(request: Request) -> Response:
        body, _ = await read(request, Heartbeat)
        alive: list[str] = []
        lost: dict[str, str] = {}
        for ref in body.leases:
            try:
                alive.append(pool.lease(ref.lease, ref.token).id)
            except LeaseError as e:
                lost[ref.lease] = e.code
        return answer(ok({"alive": alive, "lost": lost}))

    @app.post("/v1/reset")
    async def reset(request: Request) -> Response:
        body, digest = await read(request, Reset)
        lease = pool.lease(body.lease, body.token)
        calls, task = pool.calls_of(lease), checked(task_from_json, body.task)

        async def act(env: Env) -> Reply:
            calls.started = False
            result = await env.reset(task)
            pool.counts["resets"] += 1
            calls.started, calls.over = True, result.done
            return as_reply(result)

        return await call(lease, body.request_id, digest, act)

    @app.post("/v1/step")
    async def step(request: Request) -> Response:
        body, digest = await read(request, Step)
        lease = pool.lease(body.lease, body.token)
        calls, action = pool.calls_of(lease), checked(action_from_json, body.action)

        async def act(env: Env) -> Reply:
            if not calls.started:
                return NOT_RESET
            if calls.over:
                return refusal(409, "episode_over", "the environment has ended this episode; reset it")
            result = await env.step(action)
            pool.counts["steps"] += 1
            calls.over = result.done
            return as_reply(result)

        return await call(lease, body.request_id, digest, act)

    @app.post("/v1/evaluate")
    async def evaluate(request: Request) -> Response:
        body, digest = await read(request, Call)
        lease = pool.lease(body.lease, body.token)

        async def act(env: Env) -> Reply:
            if not pool.calls_of(lease).started:
                return NOT_RESET
            return ok({"raw_reward": await env.evaluate()})

        return await call(lease, body.request_id, digest, act)

    @app.post("/v1/oracle")
    async def oracle(request: Request) -> Response:
        body, digest = await read(request, Call)
        lease = pool.lease(body.lease, body.token)

        async def act(env: Env) -> Reply:
            if not pool.calls_of(lease).started:
                return NOT_RESET
            return ok({"elements": await env.oracle()})

        return await call(lease, body.request_id, digest, act)

    @app.post("/v1/close")
    async def close(request: Request) -> Response:
        body, _ = await read(request, Ref)
        await pool.close(pool.lease(body.lease, body.token))
        return answer(ok({}))

    return app


def checked(codec: Callable[[dict[str, Any]], Any], data: dict[str, Any]) -> Any:
    """`codec(data)`, its ValueError as a 422."""
    try:
        return codec(data)
    except ValueError as e:
        raise Refused(422, "bad_request", str(e)) from None


def as_reply(result: StepResult) -> Reply:
    """A result as a binary reply."""
    return Reply(200, encode_result(result), RESULT_TYPE)


class Server(uvicorn.Server):
    """uvicorn that drains the pool first, so that nobody keeps waiting for a slot during shutdown."""

    def __init__(self, config: uvicorn.Config, pool: Pool) -> None:
        super().__init__(config)
        self.pool = pool

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain and shut down; uvicorn's own second-signal rule stays."""
        self.pool.drain()
        super().handle_exit(sig, frame)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Command line of the server."""
    p = argparse.ArgumentParser(prog="python -m guiderail.pool.server", description="Lend out environments over HTTP.")
    p.add_argument("--host", default="127.0.0.1", help="address to bind (default: this machine only)")
    p.add_argument("--port", type=int, default=18080, help="port to bind; 0 = any free one, printed in the log")
    p.add_argument("--token-env", default=TOKEN_ENV, help="environment variable that holds the token (required)")
    p.add_argument("--provider", choices=("local_browser", "noop"), default="local_browser")
    p.add_argument("--slots", type=int, default=16, help="environments kept ready")
    p.add_argument("--browser", default="", help="path of a Chromium; empty = find one")
    p.add_argument(
        "--browsers", type=int, default=0, help="browser processes; 0 = one for 8 slots, at most one per core"
    )
    p.add_argument("--step-ms", type=int, default=300, help="virtual milliseconds a page lives after an action")
    p.add_argument("--call-timeout", type=float, default=20.0, help="seconds until a call counts as hung")
    p.add_argument("--ttl", type=float, default=60.0, help="seconds a lease lives without a sign of its holder")
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM. Exit status 2 when the command cannot work, 3 when the provider does not start."""
    a = parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    token = os.environ.get(a.token_env, "")
    if len(token) < 16:
        print(f"error: set {a.token_env} to a secret of at least 16 characters; clients send it back", file=sys.stderr)
        return 2
    provider = make_provider(
        a.provider,
        slots=a.slots,
        browser=a.browser,
        browsers=a.browsers,
        step_ms=a.step_ms,
        call_timeout_s=a.call_timeout,
    )
    assert isinstance(provider, LocalProvider)
    pool = Pool(provider, a.slots, a.call_timeout, a.ttl)
    config = uvicorn.Config(
        build_app(pool, token),
        host=a.host,
        port=a.port,
        log_level="info",
        access_log=False,
        timeout_graceful_shutdown=int(a.call_timeout) + 1,
        ws="none",
    )
    server = Server(config, pool)
    asyncio.run(server.serve())
    return 0 if server.started else 3


if __name__ == "__main__":
    sys.exit(main())
