"""A small HTTP/1.1 client for the pool: kept-alive connections on asyncio streams.

Written because a general client costs several times its CPU per request (benchmarks/pool_steps.py measures both).
Guarantees: one request at a time per connection; a reply is complete or an error; a broken connection is never used
again. Does not follow redirects, keep cookies, decompress or retry: the caller knows what may be sent twice.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit


class TransportError(ConnectionError):
    """No complete reply came: refused, reset, cut short or not HTTP."""


class Http:
    """Connections to one server, reused; as many at once as there are requests."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"pool url {url!r} is not of the form http://host:port")
        self.url, self.host, self.tls = url.rstrip("/"), parts.hostname, parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self.prefix = parts.path.rstrip("/")
        lines = {"Host": parts.netloc, "Content-Type": "application/json", **headers}
        if any("\r" in v or "\n" in v for v in lines.values()):
            raise ValueError("a header value holds a line break")
        self.common = "".join(f"{k}: {v}\r\n" for k, v in lines.items())
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.closed = False

    async def request(self, method: str, path: str, body: bytes, timeout: float) -> tuple[int, bytes]:
        """Status and body. Raises TransportError, or TimeoutError after `timeout` seconds."""
        head = f"{method} {self.prefix}{path} HTTP/1.1\r\n{self.common}Content-Length: {len(body)}\r\n\r\n"
        reader, writer = await self._connection(timeout)
        keep = False
        try:
            async with asyncio.timeout(timeout):
                writer.write(head.encode("latin-1") + body)
                status, reply, keep = await _read_reply(reader)
            return status, reply
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as e:
            if isinstance(e, TimeoutError):
                raise
            raise TransportError(f"{method} {self.url}{path}: {type(e).__name__}: {e}") from e
        finally:
            if keep and not self.closed:
                self.free.append((reader, writer))
            else:
                writer.close()

    async def _connection(self, timeout: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self.free:
            reader, writer = self.free.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        try:
            async with asyncio.timeout(min(timeout, 10.0)):
                return await asyncio.open_connection(self.host, self.port, ssl=self.tls or None, limit=1 << 18)
        except OSError as e:  # TimeoutError is one
            raise TransportError(f"cannot connect to {self.url}: {type(e).__name__}: {e}") from e

    async def close(self) -> None:
        """Close all idle connections; those in use close when their request ends."""
        self.closed = True
        while self.free:
            writer = self.free.pop()[1]
            writer.close()


async def _read_reply(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Status, body, and whether the connection may be used again."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, _, rest = head[0].partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"not an HTTP reply: {head[0][:80]!r}")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
    keep = headers.get("connection", "").lower() != "close" and version != "HTTP/1.0"
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body, keep = await reader.read(-1), False
    return int(rest[:3]), body, keep
