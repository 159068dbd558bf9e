"""A small HTTP/1.1 server on a unix socket or a TCP port: standard library, a thread per connection.

Guarantees: bodies are bounded (MAX_BODY), connections are kept alive, a handler that raises becomes a reply (see
`Refused`), never a dead connection; with a token every request without it is answered 401. Nothing is logged of bodies.
"""

from __future__ import annotations

import json
import logging
import socketserver
from _operator import _compare_digest as compare_digest  # what hmac's is; hmac itself would load OpenSSL
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

from guiderail.pool.vm.connection import Connection, Head

log = logging.getLogger("guiderail.pool.vm")
MAX_BODY = 512 << 20


class Refused(Exception):
    """Answered with `status` and {"status": "error", "message": ..., "kind": ...}."""

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass
class Request:
    """What came in. `fields` and `files`: a form, if the body is one. `machine`: whom the client means (header
    X-Guiderail-Machine), "" when it does not say."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    kind: str  # content type
    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    machine: str = ""

    def json(self) -> dict[str, Any]:
        """The body as an object. Raises Refused."""
        try:
            found = json.loads(self.body or b"{}")
        except ValueError as e:
            raise Refused(400, f"the body is not JSON: {e}", "bad_request") from None
        if not isinstance(found, dict):
            raise Refused(400, f"the body must be a JSON object, not {type(found).__name__}", "bad_request")
        return found


@dataclass(frozen=True)
class Response:
    """What goes out."""

    body: bytes
    kind: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def as_json(data: Any, status: int = 200) -> Response:
    """A JSON reply."""
    return Response(json.dumps(data).encode(), "application/json", status)


def as_text(text: str) -> Response:
    """A plain reply."""
    return Response(text.encode(), "text/plain; charset=utf-8")


Answer = Callable[[Request], Response]


def read_form(request: Request) -> None:
    """Fill `fields` and `files` of a form (urlencoded or multipart). Raises Refused."""
    kind, _, options = request.kind.partition(";")
    if kind.strip() == "application/x-www-form-urlencoded":
        request.fields = dict(parse_qsl(request.body.decode(errors="replace"), keep_blank_values=True))
    elif kind.strip() == "multipart/form-data":
        _, sign, mark = options.partition("boundary=")
        if not sign:
            raise Refused(400, "a multipart form without a boundary", "bad_request")
        line = b"--" + mark.split(";")[0].strip().strip('"').encode()
        for part in (b"\r\n" + request.body).split(b"\r\n" + line)[1:]:
            head, blank, data = part.partition(b"\r\n\r\n")
            if blank:
                _read_part(request, head.decode(errors="replace"), data)


def _read_part(request: Request, head: str, data: bytes) -> None:
    names = {}
    for row in head.split("\r\n"):
        if row.lower().startswith("content-disposition:"):
            for option in row.split(";")[1:]:
                key, _, value = option.strip().partition("=")
                names[key.lower()] = value.strip('"').replace("%22", '"')
    if "filename" in names or "filename*" in names:
        request.files[names.get("name", "")] = data
    else:
        request.fields[names.get("name", "")] = data.decode(errors="replace")


def handler_of(answer: Answer, token: str) -> type[Connection]:
    """A handler class that answers by `answer`."""

    class Handler(Connection):
        def serve(self, head: Head) -> None:
            try:
                response = self._answer(head)
            except Refused as e:
                response = as_json({"status": "error", "message": str(e), "kind": e.kind}, e.status)
            except Exception as e:
                log.exception("%s %s", head.method, head.target)
                told = {"status": "error", "message": f"{type(e).__name__}: {e}", "kind": "fault"}
                response = as_json(told, 500)
            self.reply(response.status, {"Content-Type": response.kind, **response.headers}, response.body)

        def _answer(self, head: Head) -> Response:
            size = head.headers.get("content-length") or "0"
            if not _is_size(size) or "transfer-encoding" in head.headers:
                self.ended = True
                raise Refused(413, f"a body of at most {MAX_BODY} bytes with its length is taken", "bad_request")
            body = self.body(int(size))
            given = head.headers.get("authorization") or ""
            if token and not compare_digest(given.encode(), f"Bearer {token}".encode()):
                raise Refused(401, "the token is missing or wrong (Authorization: Bearer ...)", "unauthorized")
            url = urlsplit(head.target)
            query = {k: v[-1] for k, v in parse_qs(url.query).items()}
            kind, machine = head.headers.get("content-type") or "", head.headers.get("x-guiderail-machine") or ""
            request = Request(head.method, url.path, query, body, kind, machine=machine)
            read_form(request)
            return answer(request)

    return Handler


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= MAX_BODY


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """On a socket file."""

    daemon_threads = True
    request_queue_size = 64


class TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """On a port."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64
