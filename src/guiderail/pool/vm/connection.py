"""One HTTP/1.1 connection of the in-VM server: requests in, replies out, one after the other.

In place of `http.server`, whose mail parser and TLS weigh a tenth of a slot. Guarantees: lines and headers are bounded,
a request that cannot be read is answered 400 and ends the connection, `Expect: 100-continue` (curl's) is answered,
connections are kept alive unless the client says otherwise. Source: RFC 9112.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

LINE, HEADERS = 1 << 16, 100


class Unreadable(Exception):
    """What came in is no request."""


@dataclass(frozen=True)
class Head:
    """The first lines of a request; names of headers in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    last: bool  # the connection ends after the reply


class Connection(socketserver.StreamRequestHandler):
    """Calls `serve(head)` for each request until the client has gone; `serve` reads the body and calls `reply`."""

    wbufsize = 1 << 16
    ended = False

    def setup(self) -> None:
        """Small replies at once (a unix socket has no such option)."""
        if self.request.family != socket.AF_UNIX:
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    def handle(self) -> None:
        """Serve until the end; a client that went away in between is an end too."""
        with contextlib.suppress(ConnectionError):
            self._serve_all()

    def _serve_all(self) -> None:
        while not self.ended:
            try:
                head = self._head()
            except Unreadable as e:
                self.ended = True
                self.reply(400, {"Content-Type": "text/plain; charset=utf-8"}, str(e).encode())
                return
            if head is None:
                return
            self.ended = head.last
            self.serve(head)

    def serve(self, head: Head) -> None:
        """Answer one request."""
        raise NotImplementedError

    def body(self, size: int) -> bytes:
        """The next `size` bytes."""
        data: bytes = self.rfile.read(size)
        return data

    def reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a reply with its length."""
        lines = [f"HTTP/1.1 {status} {_phrase(status)}", *(f"{name}: {value}" for name, value in headers.items())]
        lines += [f"Content-Length: {len(body)}", *(["Connection: close"] if self.ended else [])]
        self.wfile.write("\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n")
        self.wfile.write(body)
        self.wfile.flush()

    def _head(self) -> Head | None:
        """The next request's head, None at the end of the connection. Raises Unreadable."""
        line = self.rfile.readline(LINE + 1)
        if not line.strip():
            return None
        words = line.decode("latin-1").split()
        if len(line) > LINE or len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise Unreadable("not an HTTP/1.1 request")
        headers: dict[str, str] = {}
        for _ in range(HEADERS):
            line = self.rfile.readline(LINE + 1)
            if line in (b"\r\n", b"\n", b""):
                break
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon or len(line) > LINE:
                raise Unreadable("a header line that cannot be read")
            headers[name.strip().lower()] = value.strip()
        else:
            raise Unreadable(f"more than {HEADERS} headers")
        if headers.get("expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.wfile.flush()
        kept = headers.get("connection", "").lower()
        return Head(words[0], words[1], headers, kept == "close" or (words[2] == "HTTP/1.0" and kept != "keep-alive"))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Status"
