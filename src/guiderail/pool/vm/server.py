"""The in-VM server: `python -m guiderail.pool.vm.server`. OSWorld's VM-side HTTP protocol, and ours, for one desktop.

In a VM:   GUIDERAIL_VM_TOKEN=... python -m guiderail.pool.vm.server --display :0 --host 0.0.0.0 --port 5000
A slot:    python -m guiderail.pool.vm.server --slot FOLDER --size 1280x720   (what the provider local_desktop does)
A container with a desktop of its own: the first line with `--slot FOLDER --tcp` in place of `--display :0`.

Guarantees: binds 127.0.0.1 unless told otherwise, and another address only with a token (`--open`: without one, for
OSWorld's own clients on a network of your own). Strict unless `--not-strict`. A slot answers on FOLDER/server.sock (or
with `--tcp` on host and port) and writes "ready" into `--ready-fd` when it does; it ends, with everything of it, on
SIGTERM.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import socketserver
import sys
import threading
from pathlib import Path
from types import FrameType

from guiderail.pool.vm import slot, watchdog
from guiderail.pool.vm.desktop import Desktop, attach
from guiderail.pool.vm.guest import GuestError
from guiderail.pool.vm.http import TcpServer, UnixServer, handler_of
from guiderail.pool.vm.journal import Journal
from guiderail.pool.vm.routes import Routes
from guiderail.pool.vm.sandbox import Limits
from guiderail.pool.vm.settle import Rule
from guiderail.pool.vm.x11 import XError

TOKEN_ENV = "GUIDERAIL_VM_TOKEN"
SOCKET = "server.sock"


def _size(text: str) -> tuple[int, int]:
    m = re.fullmatch(r"(\d{2,5})x(\d{2,5})", text)
    if m is None or not (64 <= int(m[1]) <= 8192 and 64 <= int(m[2]) <= 8192):
        raise argparse.ArgumentTypeError(f"{text}: write WIDTHxHEIGHT, 64 to 8192 each")
    return int(m[1]), int(m[2])


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m guiderail.pool.vm.server", description="Serve one desktop over HTTP.")
    p.add_argument("--slot", default="", metavar="FOLDER", help="make a desktop of its own in this empty folder")
    p.add_argument("--tcp", action="store_true", help="a slot answers on --host and --port, not on a socket file")
    p.add_argument("--size", type=_size, default=(1280, 720), metavar="WxH", help="of a slot's screen, in pixels")
    p.add_argument("--ready-fd", type=int, default=-1, help="a slot writes into this descriptor when it answers")
    p.add_argument("--journal", default="", metavar="DIR", help="write down every action there before it is done")
    p.add_argument("--no-walls", action="store_true", help="a slot without a sandbox")
    for name, value in vars(Limits()).items():
        p.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help="limit of a slot (see Limits)")
    p.add_argument("--display", default=os.environ.get("DISPLAY", ":0"), help="the display of a VM's own desktop")
    p.add_argument("--host", default="127.0.0.1", help="address to bind")
    p.add_argument("--port", type=int, default=5000, help="port to bind")
    p.add_argument("--open", action="store_true", help="bind another address than loopback without a token")
    p.add_argument("--not-strict", action="store_true", help="/execute, /run_python, /run_bash_script run code")
    p.add_argument("--quiet-ms", type=float, default=1000 * Rule().quiet_s, help="a settled screen is still so long")
    p.add_argument("--settle-s", type=float, default=Rule().limit_s, help="longest wait for a settled screen")
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM. Exit status 2: the command cannot work; 3: no desktop."""
    a = parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    token = os.environ.get(TOKEN_ENV, "")
    if (
        (a.tcp or not a.slot)
        and not a.host.startswith("127.")
        and a.host not in ("localhost", "::1")
        and not (token or a.open)
    ):
        print(
            f"error: binding {a.host} needs {TOKEN_ENV}, a secret that clients send back (or --open)", file=sys.stderr
        )
        return 2
    signal.signal(signal.SIGTERM, _end)
    if a.slot:
        Path(a.slot).mkdir(parents=True, exist_ok=True)
    rule = Rule(a.quiet_ms / 1000, a.settle_s)
    try:
        if a.slot:
            limits = Limits(**{name: getattr(a, name) for name in vars(Limits())})
            desktop: Desktop = slot.make(Path(a.slot), a.size, limits, rule, walls=not a.no_walls)
            watchdog.watch(desktop, limits.memory_mb)
        else:
            desktop = attach(a.display, rule)
    except (GuestError, XError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 3
    try:
        _serve(desktop, a, token)
    except SystemExit:
        return 0
    finally:
        desktop.close()
    return 0


def _end(sig: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _serve(desktop: Desktop, a: argparse.Namespace, token: str) -> None:
    """Answer, and say that we do. The main thread stays here: what it started would die with it."""
    journal = Journal(Path(a.journal), Path(a.slot).name or str(a.port)) if a.journal else None
    handler = handler_of(Routes(desktop, strict=not a.not_strict, journal=journal), token)
    server: socketserver.BaseServer
    if a.slot and not a.tcp:
        path = f"{a.slot}/{SOCKET}"
        old = os.umask(0o177)
        server = UnixServer(path, handler)
        os.umask(old)
    else:
        server = TcpServer((a.host, a.port), handler)
        print(f"http://{a.host}:{server.server_address[1]}", flush=True)  # type: ignore[index]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 3600}, daemon=True).start()
    if a.ready_fd >= 0:
        os.write(a.ready_fd, b"ready\n")
        os.close(a.ready_fd)
    if isinstance(desktop, slot.Slot):
        for i in range(
            len(desktop.processes_of_ours)
        ):  # X server or sandbox gone: this slot is over, its owner sees it
            threading.Thread(target=_leave_with, args=(desktop, i), daemon=True).start()
    while True:
        signal.pause()


def _leave_with(desktop: slot.Slot, index: int) -> None:
    """End this server when a process of the desktop ends that was not replaced."""
    process = None
    while process is not desktop.processes_of_ours[index]:
        process = desktop.processes_of_ours[index]
        process.wait()
        with desktop.replacing:
            pass  # a reset takes its time to put another one there
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
