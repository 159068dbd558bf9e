"""`guiderail doctor`: what of browser, desktop and machine is there, and what to do about what is not.

Guarantees: without `--install` nothing is changed or downloaded; every line that is not "ok" names a remedy. `--install
desktop` runs the distribution's apt-get for the packages that lack, or prints the command where it may not. A check is
a function in `CHECKS` that returns a `Finding`; others add theirs there.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from guiderail.errors import Explained

POOL_PORT, TRACKING_PORT = 18080, 5000
DISK_GB, SHARED_MB = 5.0, 64


class NotInstalled(Explained, RuntimeError):
    """The packages could not be installed; the text says how to do it by hand."""


@dataclass(frozen=True)
class Finding:
    """One line: `ok` True, False, or None (a matter of taste: works, but worse)."""

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""


def browser() -> Finding:
    """A Chromium for web tasks."""
    from guiderail.envs.chromium import BrowserNotFound, find

    try:
        found = find()
    except BrowserNotFound:
        return Finding("browser", False, "no Chromium is found", "guiderail setup")
    return Finding("browser", True, f"{found.version} at {found.path}")


def desktop() -> Finding:
    """The programs of a local desktop."""
    from guiderail.pool.vm.packages import PACKAGES, missing, not_installed

    remedy = "guiderail doctor --install desktop"
    if lacking := missing():
        return Finding("desktop packages", False, f"missing: {', '.join(lacking)}", remedy)
    if lacking := not_installed(PACKAGES):
        return Finding("desktop packages", None, f"a desktop starts, but lacks: {', '.join(lacking)}", remedy)
    return Finding("desktop packages", True, f"{len(PACKAGES)} are installed")


def office() -> Finding:
    """LibreOffice, which only the suite desktop_office needs."""
    from guiderail.pool.vm.packages import lacks_office

    if lacking := lacks_office():
        detail = f"suite desktop_office cannot be played here; it needs: {', '.join(lacking)}"
        return Finding("office", None, detail, "guiderail doctor --install office")
    return Finding("office", True, "LibreOffice Calc and Writer are installed")


def walls() -> Finding:
    """Whether programs of a desktop can be walled in."""
    from guiderail.pool.vm.sandbox import refusal

    why = refusal()
    if not why:
        return Finding("desktop sandbox", True, "bubblewrap builds all its walls (user namespaces, no network)")
    remedy = "let user namespaces be used: sysctl kernel.unprivileged_userns_clone=1, or an AppArmor profile for bwrap"
    return Finding("desktop sandbox", None, f"desktops would NOT be isolated: {why}", remedy)


def disk() -> Finding:
    """Room where this project's results go."""
    free = shutil.disk_usage(".").free / 1e9
    return Finding("disk", free > DISK_GB, f"{free:.0f} GB free here", "" if free > DISK_GB else "free some space")


def shared_memory() -> Finding:
    """Room for the screens of desktops."""
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK):
        return Finding("shared memory", None, f"{place} cannot be written; screens go to {tempfile.gettempdir()}")
    free = shutil.disk_usage(place).free / 2**20
    enough = free > SHARED_MB
    remedy = "" if enough else "a container: start it with --shm-size=1g"
    return Finding("shared memory", enough or None, f"{free:.0f} MB free in {place}", remedy)


def ports() -> Finding:
    """The ports that servers take unless told otherwise."""
    taken = []
    for port, what in ((POOL_PORT, "env pool"), (TRACKING_PORT, "guiderail ui")):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                taken.append(f"{port} ({what})")
    if taken:
        return Finding("ports", None, f"taken: {', '.join(taken)}", "give another with --port; stages choose free ones")
    return Finding("ports", True, f"{POOL_PORT} and {TRACKING_PORT} are free")


CHECKS: list[Callable[[], Finding]] = [browser, desktop, office, walls, disk, shared_memory, ports]
"""What is looked at, in the order of the report."""


def report(say: Callable[[str], None] = print) -> list[Finding]:
    """Run all checks, say what they found."""
    found = []
    for check in CHECKS:
        finding = check()
        found.append(finding)
        mark = {True: "ok", False: "missing", None: "note"}[finding.ok]
        say(f"{mark:<8}{finding.name}: {finding.detail}")
        if finding.ok is not True and finding.remedy:
            say(f"        remedy: {finding.remedy}")
    counts = {ok: sum(f.ok is ok for f in found) for ok in (True, None, False)}
    say(f"\n{counts[True]} of {len(found)} in order, {counts[None]} to note, {counts[False]} missing")
    return found


def install_command(packages: Sequence[str]) -> list[str]:
    """The command that installs distribution packages."""
    return ["apt-get", "install", "-y", "--no-install-recommends", *packages]


def install(what: str, say: Callable[[str], None] = print) -> None:
    """Install the packages of "desktop" or "office". Raises NotInstalled with the command to run by hand."""
    from guiderail.pool.vm.packages import OFFICE, PACKAGES, not_installed

    lacking = not_installed({"desktop": PACKAGES, "office": OFFICE}[what])
    if not lacking:
        say(f"{what}: all packages are installed")
        return
    command = install_command(lacking)
    if shutil.which("apt-get") is None:
        raise NotInstalled(f"there is no apt-get here; install what Debian calls: {' '.join(lacking)}")
    if os.geteuid() != 0:
        raise NotInstalled(f"installing packages needs root. Run: sudo {' '.join(command)}")
    say(f"$ {' '.join(command)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for first in (["true"], ["apt-get", "update", "-q"]):  # lists of packages may be there, or old
        subprocess.run(first, check=False, stdout=sys.stderr, env=environment)
        if subprocess.run(command, check=False, stdout=sys.stderr, env=environment).returncode == 0:
            say(f"{what}: installed {', '.join(lacking)}")
            return
    raise NotInstalled(f"apt-get failed (its words are above). By hand: {' '.join(command)}")
