"""The way to a desktop machine's server: one request, one answer, and what it means when the answer is no.

Guarantees: nothing is sent twice and no request waits longer than its limit; no answer, and a desktop that is broken or
another's, is an InfraError; what the machine says it did not do is a `Refusal` (a missing file: FileNotFoundError; an
action that means nothing there: ValueError). Knows nothing of what is asked.
"""

from __future__ import annotations

from typing import Any

import httpx

from guiderail.envs.types import InfraError
from guiderail.errors import Explained


class Refusal(Explained, RuntimeError):
    """The machine answered that it did not do it. `status`: of HTTP; `kind`: our server's word for the reason."""

    def __init__(self, message: str, status: int, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class Wire:
    """The way to one machine. `ours`: whether our own server is at its end, which `greet` finds out."""

    def __init__(self, url: str, *, uds: str = "", token: str = "", name: str = "") -> None:
        """As of `machine.Machine`."""
        self.where, self.ours = uds or url, False
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= {"X-Guiderail-Machine": name} if name else {}
        transport = httpx.AsyncHTTPTransport(uds=uds) if uds else None
        self._http = httpx.AsyncClient(
            base_url=url or "http://slot", transport=transport, headers=headers, trust_env=False
        )

    async def greet(self, timeout: float) -> dict[str, Any]:
        """What our own server tells of itself; empty for a stock one. Raises InfraError, Refusal (the token is
        wrong)."""
        reply = await self.send("GET", "/guiderail", timeout, refuse=False)
        if reply.status_code == 401:
            raise Refusal(f"{self.where}: {_message(reply)}", 401, "unauthorized")
        if _kind(reply) == "not_yours":
            raise self._refusal("/guiderail", reply)
        told = reply.json() if reply.status_code == 200 and _is_json(reply) else {}
        self.ours = isinstance(told, dict) and told.get("server") == "guiderail"
        return dict(told) if self.ours else {}

    async def send(self, method: str, path: str, timeout: float, *, refuse: bool = True, **body: Any) -> httpx.Response:
        """One request, one answer. Raises InfraError; with `refuse` what an answer of status 400 and above means."""
        try:
            reply = await self._http.request(method, path, timeout=httpx.Timeout(timeout, connect=5.0), **body)
        except httpx.TimeoutException as e:
            raise InfraError(f"{self.where}{path}: no answer within {timeout:g} s", "timeout") from e
        except httpx.HTTPError as e:
            raise InfraError(f"{self.where}{path}: {type(e).__name__}: {e}", "crash") from e
        if refuse and reply.status_code >= 400:
            raise self._refusal(path, reply)
        return reply

    async def close(self) -> None:
        """Drop the connection."""
        await self._http.aclose()

    def _refusal(self, path: str, reply: httpx.Response) -> Exception:
        said, kind = _message(reply), _kind(reply)
        text = f"{self.where}{path}: {said}"
        if kind == "invalid_action":
            return ValueError(said)
        if kind in ("desktop", "fault", "not_yours"):
            return InfraError(text, "crash")
        if kind in ("no_file", "no_folder") or (not self.ours and reply.status_code == 404 and path == "/file"):
            return FileNotFoundError(text)
        return Refusal(text, reply.status_code, kind)


def _is_json(reply: httpx.Response) -> bool:
    return "json" in reply.headers.get("content-type", "")


def _told(reply: httpx.Response) -> dict[str, Any]:
    try:
        found = reply.json() if _is_json(reply) else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def _message(reply: httpx.Response) -> str:
    return str(_told(reply).get("message") or reply.text[:300] or f"HTTP {reply.status_code}")


def _kind(reply: httpx.Response) -> str:
    return str(_told(reply).get("kind", ""))
