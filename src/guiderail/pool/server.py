"""The env pool server: `python -m guiderail.pool.server`. uvicorn around the app of `pool.app`.

Guarantees: binds 127.0.0.1 unless told otherwise; the token comes from the environment, is never printed, and is
compared in constant time. SIGTERM drains: no new leases, who waits is told, holders have `--drain` seconds to close,
running calls end, then machines are ended (`--keep` leaves them and their leases to the next server on the same
`--state`). A second SIGTERM cuts the wait short.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import os
import socket
import sys
import time
from pathlib import Path
from types import FrameType

import uvicorn

from guiderail.errors import Explained
from guiderail.pool.app import build_app
from guiderail.pool.config import PoolConfig
from guiderail.pool.manager import Pool
from guiderail.pool.providers import NAMES, make_provider
from guiderail.pool.providers.base import Provider
from guiderail.pool.store import MEMORY, Store
from guiderail.pool.wire import TOKEN_ENV


class Server(uvicorn.Server):
    """uvicorn that drains the pool first, so that nobody keeps waiting for a machine during shutdown."""

    def __init__(self, config: uvicorn.Config, pool: Pool, drain_s: float) -> None:
        super().__init__(config)
        self.pool, self.drain_s = pool, drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain, then shut down; uvicorn's own second-signal rule stays."""
        if self.pool.draining or not self.drain_s or not self.pool.table.leases:
            self.pool.drain()
            super().handle_exit(sig, frame)
            return
        self.pool.drain()
        self.waiting = asyncio.get_running_loop().create_task(self._when_closed(sig, frame))

    async def _when_closed(self, sig: int, frame: FrameType | None) -> None:
        end = time.monotonic() + self.drain_s
        while self.pool.table.leases and time.monotonic() < end:
            await asyncio.sleep(0.1)
        super().handle_exit(sig, frame)


def add_machine_options(p: argparse.ArgumentParser) -> None:
    """Which machines, and where they are written down: the server and `guiderail pool` must agree on these."""
    p.add_argument("--provider", choices=NAMES, default="local_browser")
    p.add_argument("--state", default="", metavar="FILE", help="what must survive a restart; empty = nothing does")
    p.add_argument(
        "--name", default="", help="label of the machines; two pools of one account need two (default: from FILE)"
    )
    p.add_argument("--vm-root", default="", metavar="DIR", help="provider process: the folder that is its cloud")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Command line of the server."""
    p = argparse.ArgumentParser(prog="python -m guiderail.pool.server", description="Lend out environments over HTTP.")
    p.add_argument("--host", default="127.0.0.1", help="address to bind (default: this machine only)")
    p.add_argument("--port", type=int, default=18080, help="port to bind; 0 = any free one, printed in the log")
    p.add_argument("--token-env", default=TOKEN_ENV, help="environment variable that holds the token (required)")
    add_machine_options(p)
    p.add_argument("--slots", type=int, default=16, help="machines at most")
    p.add_argument("--prewarm", type=int, default=None, help="machines kept ready (default: all)")
    p.add_argument("--max-boots", type=int, default=8, help="machines that boot at a time")
    p.add_argument("--boot-timeout", type=float, default=300.0, help="seconds until a boot has failed")
    p.add_argument("--idle-ttl", type=float, default=600.0, help="seconds an idle machine beyond --prewarm is kept")
    p.add_argument("--vm-ttl", type=float, default=21600.0, help="hard limit of a machine's life in seconds, 0 = none")
    p.add_argument("--probe", type=float, default=5.0, help="seconds between looks at idle machines")
    p.add_argument("--sweep", type=float, default=60.0, help="seconds between looks for orphans")
    p.add_argument("--budget", type=float, default=0.0, help="stop making machines when so much is spent, 0 = never")
    p.add_argument("--owner", default="", help="the run that pays, for the ledger")
    p.add_argument("--browser", default="", help="path of a Chromium; empty = find one")
    p.add_argument(
        "--browsers", type=int, default=0, help="browser processes; 0 = one for 8 slots, at most one per core"
    )
    p.add_argument("--step-ms", type=int, default=300, help="virtual milliseconds a page lives after an action")
    p.add_argument("--boot-s", type=float, default=0.0, help="providers noop and process: seconds a machine boots")
    p.add_argument("--call-timeout", type=float, default=20.0, help="seconds until a call counts as hung")
    p.add_argument("--ttl", type=float, default=60.0, help="seconds a lease lives without a sign of its holder")
    p.add_argument("--drain", type=float, default=0.0, help="seconds that holders have to close after SIGTERM")
    p.add_argument("--keep", action="store_true", help="at the end leave machines and leases to the next server")
    return p.parse_args(argv)


def pool_name(name: str, state: str) -> str:
    """The label: as given, or one that another state file does not have."""
    where = f"{socket.gethostname()}:{Path(state).resolve() if state else os.getpid()}"
    return name or "pool-" + hashlib.sha256(where.encode()).hexdigest()[:8]


def provider_of(a: argparse.Namespace) -> Provider:
    """The provider as the options say. Raises ValueError."""
    return make_provider(
        a.provider,
        slots=getattr(a, "slots", 1),
        browser=getattr(a, "browser", ""),
        browsers=getattr(a, "browsers", 0),
        step_ms=getattr(a, "step_ms", 300),
        call_timeout_s=getattr(a, "call_timeout", 20.0),
        root=a.vm_root,
        boot_s=getattr(a, "boot_s", 0.0),
    )


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
    try:
        provider = provider_of(a)
        pool = Pool(provider, config_of(a, provider.durable), Store(a.state or MEMORY))
    except (Explained, ValueError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    config = uvicorn.Config(
        build_app(pool, token),
        host=a.host,
        port=a.port,
        log_level="info",
        access_log=False,
        timeout_graceful_shutdown=int(a.call_timeout) + 1,
        ws="none",
    )
    server = Server(config, pool, a.drain)
    asyncio.run(server.serve())
    return 0 if server.started else 3


if __name__ == "__main__":
    sys.exit(main())
