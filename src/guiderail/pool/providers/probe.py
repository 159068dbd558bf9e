"""Does OUR machine answer at this address? One look of a few seconds that tells the ways of not answering apart.

An address outlives its machine: a cloud gives it to the next one, perhaps another pool's. So a machine belongs to a
name. Guarantees: `claim` (only while a machine boots, at the address that the API tells for its id) gives it the name,
unless it has another already; `ping` is content only with a machine that says it has this name, so a stranger, another
pool's machine, and one that has started anew and forgotten everything, count as not answering. A name is no secret:
this finds mistakes, not liars; who may reach the port is the security group's business.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

CONNECT_S = 2.0
ANSWER_S = 2.0
NO_ROUTE = f"no connection within {CONNECT_S:g} s (no route, or a firewall drops it)"
SILENT = f"connections are taken, but no answer within {ANSWER_S:g} s"


async def ping(address: str, name: str, *, claim: bool = False) -> str:
    """ "" when the in-VM server at `address` ("host:port") is machine `name`; else what happened, in words."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, int(port))
    except TimeoutError:
        return NO_ROUTE
    except OSError as e:
        return f"no connection ({e.strerror or e})"
    try:
        async with asyncio.timeout(ANSWER_S):
            writer.write(json.dumps({"call": "claim" if claim else "ping", "name": name}).encode() + b"\n")
            return judged(json.loads(await reader.readline()), name)
    except TimeoutError:
        return SILENT
    except (OSError, ValueError, AttributeError) as e:
        return f"connections are taken, but the answer is none of ours ({type(e).__name__})"
    finally:
        writer.close()


def judged(reply: dict[str, Any], name: str) -> str:
    """ "" for the answer of machine `name`."""
    if "error" in reply:
        return f"the server there refuses: {str(reply['error'])[:200]}"
    if not reply.get("ok") or reply.get("name") != name:
        return f"the server there does not say that it is machine {name}: {str(reply)[:200]}"
    return ""
