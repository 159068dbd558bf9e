"""The explorer's HTTP face: one page, a JSON API under /api, frames by digest, exports.

Guarantees: everything is read-only; nothing but GET is answered. Bound to loopback, only requests that name a loopback
host are answered (a page elsewhere cannot reach it through a name of its own); with a token, every request needs it: as
`Authorization: Bearer`, or in a cookie that opening /?token=... sets. A content security policy allows our own files
and no inline code, so that stored text is shown and never interpreted. The index is refreshed while it is watched.
"""

from __future__ import annotations

import hmac
import json
import math
import re
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio.to_thread
import orjson
import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.responses import FileResponse, RedirectResponse

from guiderail.errors import InputError
from guiderail.report.viewer import episode, export, names
from guiderail.report.viewer.index import Index
from guiderail.report.viewer.queries import Explorer
from guiderail.report.viewer.query import BadQuery, Query
from guiderail.report.viewer.tokens import Tokens

STATIC = Path(__file__).with_name("static")
PAGES = ("/", "/episode", "/compare", "/group")
COOKIE = "guiderail_view"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
REFRESH_S = 2.0
THREADS = 4
_LOCAL = re.compile(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?", re.IGNORECASE)


def encode(data: Any) -> bytes:
    """JSON bytes of anything stored: not-a-number becomes null, a lone surrogate its escape."""
    try:
        return orjson.dumps(data)
    except TypeError:
        return json.dumps(_plain(data)).encode()


def _plain(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {str(k): _plain(v) for k, v in data.items()}
    return [_plain(v) for v in data] if isinstance(data, list | tuple) else data


def answer(data: Any, status: int = 200) -> Response:
    """A JSON response."""
    return Response(encode(data), status, media_type="application/json", headers={"Cache-Control": "no-store"})


class Gate:
    """ASGI layer: method, host and token, and the headers of every answer."""

    def __init__(self, app: Any, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer 4xx or hand on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)

        async def sealed(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((k.lower().encode(), v.encode()) for k, v in HEADERS.items()),
                ]
            await send(message)

        await (self._refusal(request) or self.app)(scope, receive, sealed)

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return answer({"error": "read-only: GET it"}, 405)
        if not self.token:
            named = _LOCAL.fullmatch(request.headers.get("host", ""))
            return None if named else answer({"error": "open it as http://127.0.0.1 or localhost"}, 421)
        if self._known(request.query_params.get("token", "")):
            rest = urlencode([(k, v) for k, v in request.query_params.multi_items() if k != "token"])
            moved = RedirectResponse(request.url.path + (f"?{rest}" if rest else ""), 303)
            moved.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return moved
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._known(bearer) or self._known(request.cookies.get(COOKIE, "")):
            return None
        return answer({"error": "open the address with its ?token=..., or send 'Authorization: Bearer ...'"}, 401)

    def _known(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def build_app(index: Index, token: str = "") -> FastAPI:
    """The explorer of `index`. token: "" = loopback only."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS  # each has a connection and its cache
        threading.Thread(target=index.refresh, name="index", daemon=True).start()
        yield

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, token=token)
    explorer, tokens = Explorer(index), Tokens(index.results)

    @app.exception_handler(BadQuery)
    async def bad(request: Request, e: BadQuery) -> Response:
        return answer({"error": str(e)}, 400)

    @app.middleware("http")
    async def missing(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            return await call(request)
        except (KeyError, FileNotFoundError) as e:
            return answer({"error": f"not there (any more): {e.args[0] if e.args else e}"}, 404)

    def frame_path(sha: str) -> Path | None:
        if not episode.SHA.fullmatch(sha):
            return None
        return next((p for f in index.frames if (p := f / f"{sha}.png").is_file()), None)

    def frame_bytes(sha: str) -> bytes | None:
        path = frame_path(sha)
        return path.read_bytes() if path else None

    def stored(key: str) -> dict[str, Any]:
        row = explorer.one(key)
        if row is None:
            raise KeyError(key)
        found = episode.load(row, lambda sha: frame_path(sha) is not None)
        tokens.add_texts(found)
        return found | {"replay": names.commands(found, index.results)}

    for page in PAGES:
        app.add_api_route(page, lambda: _file("index.html"), methods=["GET"])

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        return _file(name)

    @app.get("/api/state")
    def state() -> Response:
        index.refresh(REFRESH_S)
        explorer.warm()
        cells = explorer.cells()
        live = sorted({run.removeprefix("live/") for run in cells.values["run"] if run.startswith("live/")})
        total = int(cells.sizes.sum())
        problems = {p: why for p, (_, why) in index.problems.items()}
        found = {"changes": index.changes(), "episodes": total, "live": live, "problems": problems}
        return answer(found | {"indexing": index.progress})

    @app.get("/api/episodes")
    def episodes(request: Request) -> Response:
        found = explorer.page(Query.parse(request.query_params.multi_items()))
        for row in found["episodes"]:
            row["frame_there"] = frame_path(row["frame"]) is not None
        blank = {row["kind"] for row in found["episodes"] if not row["frame_there"]}
        told = {"no_frame": {kind: episode.FRAMES[kind] for kind in sorted(blank)}, "indexing": index.progress}
        return answer(found | told)

    @app.get("/api/episode")
    def one(key: str) -> Response:
        found = stored(key)
        others, many = explorer.same_task(found["task"], found["key"], found["group"])
        return answer(found | {"others": others, "others_total": many})

    @app.get("/api/group")
    def group(run: str, group: str) -> Response:
        rows = explorer.group(run, group)
        if not rows:
            raise KeyError(group)
        return answer({"run": run, "group": group, "episodes": rows})

    @app.get("/api/compare")
    def compare(a: str, b: str) -> Response:
        one, two = stored(a), stored(b)
        return answer({"a": one, "b": two, "difference": episode.first_difference(one, two)})

    @app.get("/frame/{sha}.png")
    def frame(sha: str) -> Response:
        path = frame_path(sha)
        if path is None:
            raise KeyError(f"frame {sha[:64]}")
        return FileResponse(
            path, media_type="image/png", headers={"Cache-Control": "private, max-age=31536000, immutable"}
        )

    @app.get("/export/gif")
    def gif(key: str) -> Response:
        return _attached(export.gif(stored(key), frame_bytes), "image/gif", key, "gif")

    @app.get("/export/html")
    def html(key: str) -> Response:
        return _attached(export.html(stored(key), frame_bytes).encode(), "text/html; charset=utf-8", key, "html")

    return app


def _file(name: str) -> Response:
    path = STATIC / name
    if path.parent != STATIC or path.suffix not in TYPES or not path.is_file():
        raise KeyError(name)
    return FileResponse(path, media_type=TYPES[path.suffix], headers={"Cache-Control": "no-cache"})


def _attached(body: bytes, kind: str, key: str, suffix: str) -> Response:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", key).strip("-.")[-120:] or "episode"
    return Response(body, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}.{suffix}"'})


def serve(index: Index, host: str, port: int, token: str, ready: Callable[[str], None] | None = None) -> None:
    """Serve until stopped. Raises InputError when the port is taken. ready: is told the address (default: print it)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except (OSError, OverflowError) as e:
            why = getattr(e, "strerror", "") or "a port is a number from 0 to 65535"
            raise InputError(f"{host}:{port}: {why}. Name another with --port (0 = a free one).") from None
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{listening.getsockname()[1]}/" + (f"?token={token}" if token else "")
        (ready or (lambda u: print(f"episodes: {u} (Ctrl-C ends it)", file=sys.stderr, flush=True)))(url)
        config = uvicorn.Config(build_app(index, token), log_level="warning", access_log=False, server_header=False)
        uvicorn.Server(config).run(sockets=[listening])
