"""`probe` for machines whose server speaks HTTP: our in-VM server on a desktop, and OSWorld's own.

OSWorld's server has no name to claim: whoever answers there as one is taken for the machine.
"""

from __future__ import annotations

import asyncio
import os

import httpx

from guiderail.pool.providers.probe import ANSWER_S, CONNECT_S, NO_ROUTE, SILENT

VM_TOKEN_ENV = "GUIDERAIL_VM_TOKEN"  # as the in-VM server reads it


async def ping_desktop(address: str, name: str, *, claim: bool = False) -> str:
    """`ping` of our in-VM server on a desktop, over HTTP."""
    token = os.environ.get(VM_TOKEN_ENV, "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    method, path, body = ("POST", "/claim", {"name": name}) if claim else ("GET", "/guiderail", None)
    reply = await _http(address, method, path, body, headers)
    if isinstance(reply, str):
        return reply
    if reply.status_code == 401:
        return f"the server there wants another token: give this pool the machine's {VM_TOKEN_ENV}"
    if reply.status_code == 404:
        return "the server there is not ours; for OSWorld's own set env.cloud.server: osworld"
    try:
        told = reply.json()
        said = told.get("name") if reply.status_code == 200 else ""
    except (ValueError, AttributeError):
        return "connections are taken, but the answer is none of ours (no JSON object)"
    if reply.status_code != 200:
        return f"the server there refuses: {str(told.get('message', reply.status_code))[:200]}"
    return (
        "" if said == name else f"the server there does not say that it is machine {name}: it is {said or 'nobody'}'s"
    )


async def ping_osworld(address: str, name: str, *, claim: bool = False) -> str:
    """Whether OSWorld's own server answers: with a screenshot when the machine boots, later with its platform."""
    reply = await _http(address, "GET", "/screenshot" if claim else "/platform", None, {})
    if isinstance(reply, str):
        return reply
    if reply.status_code != 200 or (claim and not reply.content.startswith(b"\x89PNG")):
        return f"the server there answers {reply.status_code} and no screen (yet)"
    return ""


async def _http(
    address: str, method: str, path: str, body: dict[str, str] | None, headers: dict[str, str]
) -> httpx.Response | str:
    """The reply, or what kept it away."""
    try:
        async with asyncio.timeout(CONNECT_S + ANSWER_S), httpx.AsyncClient(trust_env=False, headers=headers) as client:
            limits = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
            return await client.request(method, f"http://{address}{path}", json=body, timeout=limits)
    except httpx.ConnectTimeout:
        return NO_ROUTE
    except httpx.ConnectError as e:
        return f"no connection ({e})"
    except (httpx.TimeoutException, TimeoutError):
        return SILENT
    except httpx.HTTPError as e:
        return f"connections are taken, but the answer is none of ours ({type(e).__name__})"
