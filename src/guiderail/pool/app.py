"""The typed API over HTTP: FastAPI around `Pool`.

Routes: JSON in; JSON out, or for reset and step a binary result (wire.py). All need the header `Authorization: Bearer
TOKEN` unless said otherwise; GET /openapi.json has all of it for machines:

    POST /v1/allocate  {holder, ttl_s, wait_s, request_id}      -> {lease, token, slot, ttl_s, call_timeout_s}
    POST /v1/heartbeat {leases: [{lease, token}, ...]}          -> {alive: [lease, ...], lost: {lease: error class}}
    POST /v1/reset     {lease, token, request_id, task}         -> result
    POST /v1/step      {lease, token, request_id, action}       -> result
    POST /v1/evaluate  {lease, token, request_id}               -> {raw_reward}
    POST /v1/side_effects {lease, token, request_id}            -> {lines}
    POST /v1/oracle    {lease, token, request_id}               -> {elements}
    POST /v1/close     {lease, token}                           -> {}
    GET  /v1/status -> counts    GET /v1/costs -> the ledger's totals
    GET  /healthz (no token) -> {"ok": true}    GET /openapi.json (no token)

Guarantees: an error is always {"error": class, "message": sentence} with a fitting status (see `openapi.ERRORS`), and
of all of them only infra_error costs a lease. Starting the app starts the pool, stopping it stops the pool.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from guiderail.actions.wire import action_from_json
from guiderail.envs.types import Env, Reports, StepResult
from guiderail.pool.bodies import Allocate, Call, Heartbeat, Ref, Refused, Reset, Step, on_screen, read
from guiderail.pool.gate import Gate
from guiderail.pool.gui_rl import PATHS, GuiRl, add_routes
from guiderail.pool.leases import Lease, LeaseError, NoSlot
from guiderail.pool.manager import Pool
from guiderail.pool.openapi import document
from guiderail.pool.wire import RESULT_TYPE, Reply, encode_result, own_seconds, refusal, task_from_json

Act = Callable[[Env], Awaitable[Reply]]
NOT_RESET = refusal(409, "not_reset", "nothing runs on this lease yet; call /v1/reset with a task first")


def answer(reply: Reply) -> Response:
    """A Reply as an HTTP response."""
    return Response(reply.body, reply.status, media_type=reply.type)


def ok(data: dict[str, Any]) -> Reply:
    """A 200 JSON reply."""
    return Reply(200, orjson.dumps(data))


def build_app(pool: Pool, token: str, gui_rl: GuiRl | None = None, free: bool = False) -> FastAPI:
    """The HTTP face of `pool`, with gui-rl's routes if options for them are given; `free`: these need no token."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await pool.start()
        yield
        await pool.stop()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, token=token, free=PATHS if gui_rl and free else ())
    if gui_rl:
        add_routes(app, pool, gui_rl)

    @app.exception_handler(Refused)
    async def refused(request: Request, e: Refused) -> Response:
        return answer(refusal(e.status, e.code, str(e)))

    @app.exception_handler(LeaseError)
    async def lease_error(request: Request, e: LeaseError) -> Response:
        more = {"boot_s": e.boot_s} if isinstance(e, NoSlot) and e.boot_s else {}
        return answer(refusal(e.status, e.code, str(e), **more))

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, e: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(e.status_code, "http_error")
        return answer(refusal(e.status_code, code, f"{request.method} {request.url.path}: {e.detail}"))

    @app.exception_handler(Exception)
    async def internal(request: Request, e: Exception) -> Response:
        return answer(refusal(500, "internal", f"a fault of the server ({type(e).__name__}); its log says more"))

    async def call(lease: Lease, request_id: str, digest: int, act: Act, own_s: float = 0.0) -> Response:
        return answer(await pool.call(lease, request_id, digest, act, own_s))

    @app.get("/healthz")
    async def healthz() -> Response:
        return answer(ok({"ok": True}))

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return answer(ok(document()))

    @app.get("/v1/status")
    async def status() -> Response:
        return answer(ok(pool.status()))

    @app.get("/v1/costs")
    async def costs() -> Response:
        return answer(ok(pool.costs()))

    @app.post("/v1/allocate")
    async def allocate(request: Request) -> Response:
        body, _ = await read(request, Allocate)
        lease = await pool.allocate(body.holder, body.ttl_s or pool.config.ttl_s, body.wait_s, body.request_id)
        if await request.is_disconnected():
            pool.unheard(lease)
        told = {"lease": lease.id, "token": lease.token, "slot": lease.slot, "ttl_s": lease.ttl_s}
        return answer(ok({**told, "call_timeout_s": pool.config.call_timeout_s}))

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
        calls, action = pool.calls_of(lease), on_screen(checked(action_from_json, body.action))

        async def act(env: Env) -> Reply:
            if not calls.started:
                return NOT_RESET
            if calls.over:
                return refusal(409, "episode_over", "the environment has ended this episode; reset it")
            result = await env.step(action)
            pool.counts["steps"] += 1
            calls.over = result.done
            return as_reply(result)

        return await call(lease, body.request_id, digest, act, own_seconds(action))

    @app.post("/v1/evaluate")
    async def evaluate(request: Request) -> Response:
        body, digest = await read(request, Call)
        lease = pool.lease(body.lease, body.token)

        async def act(env: Env) -> Reply:
            if not pool.calls_of(lease).started:
                return NOT_RESET
            return ok({"raw_reward": await env.evaluate()})

        return await call(lease, body.request_id, digest, act)

    @app.post("/v1/side_effects")
    async def side_effects(request: Request) -> Response:
        body, digest = await read(request, Call)
        lease = pool.lease(body.lease, body.token)

        async def act(env: Env) -> Reply:
            if not pool.calls_of(lease).started:
                return NOT_RESET
            return ok({"lines": await env.side_effects() if isinstance(env, Reports) else None})

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
