"""The routes that gui-rl's `env_client.py` speaks, over the same pool and with its guarantees.

    GET  /status                                             -> {ok, pool: {total_envs, busy_envs, ...}}
    POST /allocate {episode_id}                              -> {ok, lease_id, env_id, reused}
    POST /heartbeat {lease_id}                               -> {ok}
    POST /reset {lease_id, task_config}                      -> {ok, observation}
    POST /get_obs {lease_id}                                 -> {ok, observation}
    POST /step {lease_id, action, sleep_after_execution}     -> {ok, observation, reward, done, info}
    POST /evaluate {lease_id}                                -> {ok, score}
    POST /start_recording {lease_id}, /end_recording {lease_id, out_path}, /close {lease_id} -> {ok}

Guarantees: what cannot be mended by asking again is HTTP 200 with {ok: false, class, error: sentence} (its client asks
again after any 4xx or 5xx, but not after this); 503 says that asking again may help. A retried call acts once (see
`retries`); a retried allocate gets the same lease, a second close is fine. An observation always has its screenshot.
A lease lives for `ttl_s` without any call, so a client that died gives its machine back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response

from guiderail.pool import recording
from guiderail.pool.bodies import Refused, digest, read_json
from guiderail.pool.gui_rl_calls import Episode, evaluate, observe, own_time, reset, step
from guiderail.pool.leases import Lease, LeaseEnded, LeaseError
from guiderail.pool.manager import Pool
from guiderail.pool.retries import PAUSE_S, Connections, Last
from guiderail.pool.wire import Reply

ROUTES = ("allocate", "heartbeat", "reset", "get_obs", "step", "evaluate", "start_recording", "end_recording", "close")
PATHS = ("/status", *(f"/{r}" for r in ROUTES))
GIVEN = "given-"  # before a client's own request ids, so that none is one of ours
RETRYABLE = ("no_slot", "draining", "storage")


@dataclass(frozen=True)
class GuiRl:
    """Options: lease time and longest wait in the queue (seconds), where recordings may be written."""

    ttl_s: float = 600.0
    wait_s: float = 60.0
    recordings: Path = Path()


def said(data: dict[str, Any], status: int = 200) -> Response:
    """A JSON answer."""
    return Response(orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY), status, media_type="application/json")


def no(code: str, message: str) -> Response:
    """A refusal: HTTP 200 unless asking again may help."""
    return said({"ok": False, "class": code, "error": message}, 503 if code in RETRYABLE else 200)


class Face:
    """State of the compatible routes."""

    def __init__(self, pool: Pool, options: GuiRl) -> None:
        self.pool, self.options, self.connections = pool, options, Connections()

    def lease_of(self, body: dict[str, Any]) -> Lease:
        """The live lease. Raises Refused, LeaseError."""
        lease_id = body.get("lease_id")
        if not isinstance(lease_id, str) or not lease_id:
            raise Refused(200, "bad_request", "lease_id is missing")
        known = self.pool.table.leases.get(lease_id)
        return self.pool.lease(lease_id, known.token if known else 0)

    async def allocate(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        """A lease; the same one as long as nothing was done with it."""
        episode_id = body.get("episode_id")
        if episode_id is not None and not (isinstance(episode_id, str) and len(episode_id) <= 200):
            raise Refused(200, "bad_request", "episode_id must be a string of at most 200 characters")
        key = f"gui-rl:{episode_id}" if episode_id else ""
        earlier = self.pool.queue.requests.get(key)
        if earlier and earlier.granted and (used := self.pool.calls.get(earlier.granted.id)) and used.seen:
            self.pool.queue.forget(earlier)
        came = time.monotonic()
        lease = await self.pool.allocate(episode_id or "gui-rl", self.options.ttl_s, self.options.wait_s, key)
        if await request.is_disconnected():
            self.pool.unheard(lease)
        machine = self.pool.machines.slots[lease.slot]
        name = machine.vm.name if machine.vm else ""
        env_id = f"env-{digest('env', name.encode()) & 0xFFFFFFFFFFFF:012x}"
        return {"lease_id": lease.id, "env_id": env_id, "reused": machine.since <= came}

    async def changing(self, route: str, body: dict[str, Any], request: Request) -> dict[str, Any]:
        """reset and step: done once, however often they are asked for."""
        lease = self.lease_of(body)
        calls = self.pool.calls_of(lease)
        episode = Episode.of(calls)
        what = {k: body.get(k) for k in ("task_config", "action", "sleep_after_execution")}
        key = digest(route, orjson.dumps(what, option=orjson.OPT_SORT_KEYS))
        connection, given = connection_of(request), request_id_of(body)
        last = episode.last
        if (
            last is None
            or given
            or not last.repeated(key, time.monotonic(), pause_s=0.0 if route == "reset" else PAUSE_S)
        ):
            while calls.running is not None and given not in calls.seen:
                await asyncio.wait([calls.running])
            again = given in calls.seen
            if not again:
                episode.number += 1
                episode.last = Last(key, given or f"gui-rl-act-{episode.number}", connection)
            last = Last(key, given, connection) if again else episode.last
        else:
            again = True
        assert last is not None
        act = (reset if route == "reset" else step)(self.pool, calls, episode, body)
        own_s = own_time(body) if route == "step" else 0.0
        reply = await self.pool.call(lease, last.request_id, key, act, own_s)
        last.connection, last.lost, last.replied = connection, await request.is_disconnected(), time.monotonic()
        self.connections.answered(connection, last)
        answer = checked(reply)
        if again and "info" in answer:
            answer["info"]["replayed"] = True
        return answer

    async def looking(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """get_obs and evaluate: evaluate is asked of the machine once in each state of the episode."""
        lease = self.lease_of(body)
        calls = self.pool.calls_of(lease)
        episode = Episode.of(calls)
        episode.confirm()
        if route == "get_obs":
            episode.looks += 1
            request_id, act = f"gui-rl-look-{episode.looks}", observe(calls, episode)
        elif episode.scored[0] == episode.number and calls.running is None:
            return {"score": episode.scored[1]}
        else:
            request_id, act = f"gui-rl-score-{episode.number}", evaluate(calls, episode)
        while calls.running is not None and request_id not in calls.seen:
            await asyncio.wait([calls.running])
        return checked(await self.pool.call(lease, request_id, 0, act))

    async def other(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """heartbeat, recordings, close."""
        if route == "close":
            with contextlib.suppress(LeaseEnded):  # a second close, or a lease that is over anyway
                await self.pool.close(self.lease_of(body))
            return {}
        lease = self.lease_of(body)
        episode = Episode.of(self.pool.calls_of(lease))
        episode.confirm()
        if route == "start_recording":
            episode.recording, episode.frames, episode.kept_bytes = True, [], 0
            if episode.seen is not None:
                episode.remember(episode.seen)
        elif route == "end_recording":
            out_path = body.get("out_path")
            if not isinstance(out_path, str) or not out_path:
                raise Refused(200, "bad_request", "out_path is missing")
            try:
                path = recording.place(out_path, self.options.recordings)
                await asyncio.to_thread(recording.write, path, list(episode.frames))
            except (ValueError, OSError) as e:
                raise Refused(200, "bad_request", f"the recording was not written: {e}") from None
        return {}


def connection_of(request: Request) -> tuple[str, int]:
    """What tells connections apart."""
    client = request.client
    return (client.host, client.port) if client else ("", 0)


def request_id_of(body: dict[str, Any]) -> str:
    """The request id, if the client sends one. Raises Refused."""
    given = body.get("request_id", "")
    if not isinstance(given, str) or len(given) > 64:
        raise Refused(200, "bad_request", "request_id must be a string of at most 64 characters")
    return f"{GIVEN}{given}" if given else ""


def checked(reply: Reply) -> dict[str, Any]:
    """The body of a good reply. Raises Refused."""
    answer: dict[str, Any] = orjson.loads(reply.body)
    if reply.status != 200:
        raise Refused(200, answer["error"], answer["message"])
    return answer


def add_routes(app: FastAPI, pool: Pool, options: GuiRl) -> None:
    """Add the routes to an app."""
    face = Face(pool, options)

    @app.get("/status")
    async def status() -> Response:
        s, config = pool.status()["slots"], pool.config
        idle, busy = s["idle"], s["leased"]
        counts = {"total_envs": idle + busy, "busy_envs": busy, "idle_envs": idle, "leases": len(pool.table.leases)}
        sizes = {"max_envs": config.slots, "min_envs": config.ready, "prewarm_concurrency": config.max_boots}
        return said({"ok": True, "pool": {**counts, **sizes, "reset_on_close": pool.provider.reset_between_leases}})

    def add(route: str) -> None:
        @app.post(f"/{route}")
        async def handler(request: Request) -> Response:
            face.connections.came(connection_of(request))
            try:
                body = await read_json(request)
                if route == "allocate":
                    answer = await face.allocate(body, request)
                elif route in ("reset", "step"):
                    answer = await face.changing(route, body, request)
                elif route in ("get_obs", "evaluate"):
                    answer = await face.looking(route, body)
                else:
                    answer = await face.other(route, body)
            except (Refused, LeaseError) as e:
                return no(e.code, str(e))
            return said({"ok": True, **answer})

    for route in ROUTES:
        add(route)
