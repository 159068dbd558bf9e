"""Does a machine answer at its address? One look of a few seconds that tells the ways of not answering apart."""

from __future__ import annotations

import asyncio
import json

CONNECT_S = 2.0
ANSWER_S = 2.0


async def ping(address: str) -> str:
    """ "" when the in-VM server at `address` ("host:port") answers a ping; else what happened, in words."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, int(port))
    except TimeoutError:
        return f"no connection within {CONNECT_S:g} s (no route, or a firewall drops it)"
    except OSError as e:
        return f"no connection ({e.strerror or e})"
    try:
        async with asyncio.timeout(ANSWER_S):
            writer.write(b'{"call": "ping"}\n')
            reply = json.loads(await reader.readline())
            return "" if reply.get("ok") else f"the server there refuses a ping: {reply}"
    except TimeoutError:
        return f"connections are taken, but no answer within {ANSWER_S:g} s"
    except (OSError, ValueError, AttributeError) as e:
        return f"connections are taken, but the answer is none of ours ({type(e).__name__})"
    finally:
        writer.close()
