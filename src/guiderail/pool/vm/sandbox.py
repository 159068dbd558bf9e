"""bubblewrap: the walls around a slot's X server and around its programs.

Guarantees of the programs' sandbox: its own user, pid, ipc, uts, cgroup and network namespaces (loopback only), uid
1000 "user" without capabilities or a way to new ones, no nested user namespaces; /usr, a few files of /etc read-only;
what it can write (home, /tmp, /var/tmp, /run/user/1000, /dev/shm) is memory of limited size that ends with it; the X
socket is its only door, the host's files are not there. The X server has its own sandbox, so programs cannot signal or
trace it. As root both run under an unused uid of their own, so that a way out of the walls leads nowhere and limits on
processes hold. Needs bubblewrap 0.8 (`--size`, `--disable-userns`) and user namespaces: `refusal` says what is missing.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

UID = 1000
HOME = "/home/user"
RUNTIME = f"/run/user/{UID}"
INIT = "/run/guiderail/init.py"
ETC = (
    "alternatives", "dbus-1", "default", "fonts", "gtk-2.0", "gtk-3.0", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "libreoffice", "localtime", "locale.alias", "magic", "mime.types", "pango", "ssl/certs", "X11", "xdg",
)  # fmt: skip
PASSWD = f"root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:{UID}:{UID}:user:{HOME}:/bin/bash\n"
GROUP = f"root:x:0:\nuser:x:{UID}:\n"
SPARE_UID = 1_900_000_000  # far above what accounts use; + the server's pid
MB = 1 << 20
X_SERVER_MB = 768  # address space; at rest it uses 30


@dataclass(frozen=True)
class Limits:
    """Of one slot: megabytes of all programs together, of the home, of /tmp and of one file; how many processes."""

    memory_mb: int = 3072
    home_mb: int = 512
    tmp_mb: int = 256
    processes: int = 400
    open_files: int = 4096

    def of_process(self) -> dict[str, int]:
        """Resource limits by their names in `resource`."""
        return {
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.home_mb * MB,
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": self.open_files,
        }


def slot_uid() -> int | None:
    """The uid to run a slot under: an unused one for root, None (our own) for anybody else."""
    return SPARE_UID + os.getpid() if os.geteuid() == 0 else None


def _bare(uid: int | None) -> list[str]:
    """What both sandboxes begin with."""
    command = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    command += ["--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL", "--clearenv"]
    command += ["--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        place = Path("/") / name
        if place.is_symlink():
            command += ["--symlink", os.readlink(place), str(place)]
        elif place.is_dir():
            command += ["--ro-bind", str(place), str(place)]
    return command


def x_server(sockets: Path, frames: Path, server: Sequence[str]) -> list[str]:
    """Command of the X server's sandbox; it makes its socket in `sockets` and its frame file in `frames` (as /fb).

    Its memory is limited (X_SERVER_MB): pixmaps and events that nobody reads are kept there, where no limit of the
    programs counts them.
    """
    server = ["/bin/sh", "-c", f'ulimit -v {X_SERVER_MB * 1024}; exec "$@"', "sh", *server]
    return [
        *_bare(None),
        *("--dev", "/dev", "--tmpfs", "/tmp", "--bind", str(sockets), "/tmp/.X11-unix", "--bind", str(frames), "/fb"),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--", *server),
    ]


def programs(
    sockets: Path, limits: Limits, fds: dict[str, int], info_fd: int, order_fd: int, filter_fd: int = -1
) -> list[str]:
    """Command of the programs' sandbox, running `init.py`. `fds`: open files by the path they appear under;
    `filter_fd`: a filter of system calls (see `seccomp`). What programs can write to are mounts of their own, each of
    which a reset empties; nothing else in there is writable."""
    command = _bare(None)
    command += ["--seccomp", str(filter_fd)] if filter_fd >= 0 else []
    for name in ETC:
        command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for path, size in (("/tmp", limits.tmp_mb), (RUNTIME, 64), ("/var/tmp", 64)):
        command += ["--size", str(size * MB), "--tmpfs", path]
    command += ["--ro-bind-try", "/var/cache/fontconfig", "/var/cache/fontconfig"]
    for path, fd in fds.items():
        command += ["--perms", "0444", "--ro-bind-data", str(fd), path]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", str(limits.tmp_mb * MB), "--tmpfs", "/dev/shm"]
    command += ["--ro-bind", str(sockets), "/tmp/.X11-unix", "--hostname", "desktop"]
    command += ["--perms", "0755", "--size", str(limits.home_mb * MB), "--tmpfs", HOME, "--chdir", HOME]
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--as-pid-1", "--info-fd", str(info_fd)]
    return [*command, "--", "/usr/bin/python3", "-I", "-S", INIT, str(order_fd)]


@functools.cache
def refusal() -> str:
    """Why no sandbox can be made here, "" when one can: a trial in which every wall of the real one is built."""
    if shutil.which("bwrap") is None:
        return "bubblewrap (bwrap) is not installed"
    trial = [*_bare(None), "--size", str(MB), "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", "--", "/bin/true"]
    uid = slot_uid()
    try:
        done = subprocess.run(trial, capture_output=True, text=True, timeout=20, check=False, **as_user(uid))  # type: ignore[call-overload]
    except (OSError, subprocess.SubprocessError) as e:
        return f"bwrap does not run: {e}"
    return "" if done.returncode == 0 else f"bwrap: {done.stderr.strip() or f'exit status {done.returncode}'}"


def as_user(uid: int | None) -> dict[str, object]:
    """Options of subprocess that run a command under `uid`."""
    return {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
