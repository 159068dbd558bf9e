"""The env pool server: `python -m guiderail.pool.server`. uvicorn around the app of `pool.app`.

Guarantees: binds 127.0.0.1 unless told otherwise; the token comes from the environment, is never printed, and is
compared in constant time. SIGTERM drains: no new leases, who waits is told, holders have `--drain` seconds to close,
running calls end, then machines are ended (`--keep` leaves them and their leases to the next server on the same
`--state`). A second SIGTERM or Ctrl-C cuts the wait short; machines are ended all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from guiderail.errors import Explained
from guiderail.pool.app import build_app
from guiderail.pool.config import PoolConfig
from guiderail.pool.door import BACKLOG, connection_limit, door
from guiderail.pool.gui_rl import GuiRl
from guiderail.pool.manager import Pool
from guiderail.pool.options import add_machine_options, pool_name, provider_of
from guiderail.pool.store import MEMORY, Store
from guiderail.pool.wire import TOKEN_ENV


class Server(uvicorn.Server):
    """uvicorn that drains the pool first, so that nobody keeps waiting for a machine during shutdown."""

    def __init__(self, config: uvicorn.Config, pool: Pool, drain_s: float) -> None:
        super().__init__(config)
        self.pool, self.drain_s = pool, drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal comes between any two lines of Python: what it means to the pool waits for the loop's turn."""
        asyncio.get_running_loop().call_soon_threadsafe(self._exit, sig, frame)

    def _exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain, then shut down; a second one cuts the waiting for holders and connections short."""
        if self.pool.draining or not self.drain_s or not self.pool.table.leases:
            self.pool.drain()
            super().handle_exit(sig, frame)
            return
        self.pool.drain()
        self.waiting = asyncio.get_running_loop().create_task(self._when_closed(sig, frame))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's, which leaves the pool's own shutdown out after a second Ctrl-C: its machines would stay."""
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()

    async def _when_closed(self, sig: int, frame: FrameType | None) -> None:
        end = time.monotonic() + self.drain_s
        while self.pool.table.leases and time.monotonic() < end:
            await asyncio.sleep(0.1)
        super().handle_exit(sig, frame)


def _number(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], float]:
    """An argparse type: a finite number in [low, high]; the error names what was given and what would be right."""

    def read_number(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = kind(low) - 1
        if not low <= value <= high:
            noun = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text}: must be {noun} from {low:g} to {high:g}")
        return value

    return read_number


def parser() -> argparse.ArgumentParser:
    """Command line of the server."""
    p = argparse.ArgumentParser(prog="python -m guiderail.pool.server", description="Lend out environments over HTTP.")
    p.add_argument("--host", default="127.0.0.1", help="address to bind (default: this machine only)")
    p.add_argument(
        "--port", type=_number(int, 0, 65535), default=18080, help="port to bind; 0 = any free one, printed in the log"
    )
    p.add_argument("--token-env", default=TOKEN_ENV, help="environment variable that holds the token (required)")
    add_machine_options(p)
    p.add_argument("--slots", type=_number(int, 1, 1024), default=16, help="machines at most")
    p.add_argument("--prewarm", type=_number(int, 0, 1024), default=None, help="machines kept ready (default: all)")
    p.add_argument("--max-boots", type=_number(int, 1, 1024), default=8, help="machines that boot at a time")
    p.add_argument(
        "--boot-timeout", type=_number(float, 0.001, 86_400), default=300.0, help="seconds until a boot has failed"
    )
    p.add_argument(
        "--idle-ttl",
        type=_number(float, 0, 1e9),
        default=600.0,
        help="seconds an idle machine beyond --prewarm is kept",
    )
    p.add_argument(
        "--vm-ttl",
        type=_number(float, 0, 1e9),
        default=21600.0,
        help="hard limit of a machine's life in seconds, 0 = none",
    )
    p.add_argument(
        "--probe", type=_number(float, 0.001, 86_400), default=5.0, help="seconds between looks at idle machines"
    )
    p.add_argument(
        "--sweep", type=_number(float, 0.001, 86_400), default=60.0, help="seconds between looks for orphans"
    )
    p.add_argument(
        "--budget",
        type=_number(float, 0, 1e12),
        default=0.0,
        help="stop making machines when so much is spent, 0 = never",
    )
    p.add_argument("--owner", default="", help="the run that pays, for the ledger")
    p.add_argument("--browser", default="", help="path of a Chromium; empty = find one")
    p.add_argument(
        "--browsers",
        type=_number(int, 0, 1024),
        default=0,
        help="browser processes; 0 = one for 8 slots, at most one per core",
    )
    p.add_argument(
        "--step-ms", type=_number(int, 0, 60_000), default=300, help="virtual milliseconds a page lives after an action"
    )
    p.add_argument(
        "--call-timeout", type=_number(float, 0.001, 86_400), default=20.0, help="seconds until a call counts as hung"
    )
    p.add_argument(
        "--ttl",
        type=_number(float, 0.001, 86_400),
        default=60.0,
        help="seconds a lease lives without a sign of its holder",
    )
    p.add_argument(
        "--boot-s",
        type=_number(float, 0, 86_400),
        default=0.0,
        help="providers noop and process: seconds a machine boots",
    )
    p.add_argument(
        "--gui-rl",
        choices=("off", "token", "open"),
        default="token",
        help="gui-rl's routes: need the token in the URL (http://any:TOKEN@host:port or .../t/TOKEN); open: no token, "
        "on a loopback address only",
    )
    p.add_argument(
        "--gui-rl-ttl",
        type=_number(float, 0, 86_400),
        default=600.0,
        help="seconds a lease of gui-rl's routes lives untouched",
    )
    p.add_argument(
        "--gui-rl-wait", type=_number(float, 0, 86_400), default=60.0, help="seconds its /allocate waits for a machine"
    )
    p.add_argument("--recordings", default=".", metavar="DIR", help="recordings may be written below this folder")
    p.add_argument(
        "--drain", type=_number(float, 0, 86_400), default=0.0, help="seconds that holders have to close after SIGTERM"
    )
    p.add_argument("--keep", action="store_true", help="at the end leave machines and leases to the next server")
    return p


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Options of a command line."""
    return parser().parse_args(argv)


def config_of(a: argparse.Namespace, durable: bool) -> PoolConfig:
    """The pool's numbers as the options say. Raises ValueError."""
    return PoolConfig(
        a.slots,
        a.call_timeout,
        a.ttl,
        pool_name(a.name, a.state),
        a.owner,
        a.prewarm,
        a.max_boots,
        a.boot_timeout,
        a.idle_ttl,
        a.vm_ttl if durable else 0.0,
        a.probe,
        a.sweep,
        a.budget,
        a.keep,
    )


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM. Exit status 2 when the command cannot work, 3 when the provider does not start."""
    a = parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    token = os.environ.get(a.token_env, "")
    if len(token) < 16:
        print(f"error: set {a.token_env} to a secret of at least 16 characters; clients send it back", file=sys.stderr)
        return 2
    loopback = a.host == "localhost" or (a.host.replace(".", "").isdigit() and a.host.startswith("127."))
    if a.gui_rl == "open" and not (loopback or a.host == "::1"):
        print(f"error: --gui-rl open would lend machines to anybody who reaches {a.host}; use token", file=sys.stderr)
        return 2
    face = None if a.gui_rl == "off" else GuiRl(a.gui_rl_ttl, a.gui_rl_wait, Path(a.recordings))
    try:
        provider = provider_of(a)
        limit = connection_limit(a.slots)
        pool = Pool(provider, config_of(a, provider.durable), Store(a.state or MEMORY))
    except (Explained, ValueError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    config = uvicorn.Config(
        build_app(pool, token, face, a.gui_rl == "open"),
        host=a.host,
        port=a.port,
        log_level="info",
        access_log=False,
        timeout_graceful_shutdown=int(a.call_timeout) + 1,
        ws="none",
        http=door(limit),
        backlog=BACKLOG,
    )
    server = Server(config, pool, a.drain)
    asyncio.run(server.serve())
    return 0 if server.started else 3


if __name__ == "__main__":
    sys.exit(main())
