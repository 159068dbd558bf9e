"""The token at the door.

Guarantees: every route but the open ones needs the pool's token, compared in constant time. It may come as `Bearer`,
as the password of `Basic` (a client that takes only a URL: http://any:TOKEN@host:port), or as the first part of the
path (http://host:port/t/TOKEN). Routes under `free` need none; the server allows that on loopback only.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Container

from starlette.types import ASGIApp, Receive, Scope, Send

from guiderail.pool.wire import TOKEN_ENV, Reply, refusal

OPEN = ("/healthz", "/openapi.json")


class Gate:
    """ASGI layer: answers 401 or hands on."""

    def __init__(self, app: ASGIApp, token: str, free: Container[str] = ()) -> None:
        self.app, self.token, self.bearer, self.free = app, token.encode(), f"Bearer {token}".encode(), free

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, and take a token out of the path."""
        if scope["type"] == "http" and scope["path"] not in OPEN:
            given = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
            if not hmac.compare_digest(given, self.bearer) and not self._other_ways(scope, given):
                message = f"send the pool's token as 'Authorization: Bearer ...' (environment variable {TOKEN_ENV})"
                await send_reply(refusal(401, "unauthorized", message), send)
                return
        await self.app(scope, receive, send)

    def _other_ways(self, scope: Scope, given: bytes) -> bool:
        if given.startswith(b"Basic "):
            try:
                password = base64.b64decode(given[6:], validate=True).partition(b":")[2]
            except binascii.Error:
                return False
            return hmac.compare_digest(password, self.token)
        parts = scope["path"].split("/", 3)  # "", "t", token, rest
        if len(parts) == 4 and parts[1] == "t":
            scope["path"] = f"/{parts[3]}"
            scope["raw_path"] = scope["path"].encode()
            return hmac.compare_digest(parts[2].encode(), self.token)
        return scope["path"] in self.free


async def send_reply(reply: Reply, send: Send) -> None:
    """A reply as ASGI messages."""
    headers = [(b"content-type", reply.type.encode()), (b"content-length", str(len(reply.body)).encode())]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
