"""Start the sandbox of a slot's programs.

Guarantees: a sandbox that does not start is a GuestError with its last words. It dies with the thread that starts it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

from guiderail.pool.vm import home, sandbox, seccomp
from guiderail.pool.vm.guest import GuestError
from guiderail.pool.vm.sandbox import Limits
from guiderail.pool.vm.sandbox_guest import SandboxGuest
from guiderail.pool.vm.xserver import START_S, popen, tail


def begin_programs(
    sockets: Path, log_file: Path, limits: Limits, as_user: dict[str, object]
) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start the programs' sandbox; its process, our end of its socket, and where bwrap writes its pid."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    info, told = os.pipe2(os.O_CLOEXEC)
    texts = {
        sandbox.INIT: Path(__file__).with_name("init.py").read_text(),
        "/etc/passwd": sandbox.PASSWD,
        "/etc/group": sandbox.GROUP,
        "/etc/hosts": "127.0.0.1 localhost desktop\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "/etc/machine-id": "0" * 31 + "1\n",
        "/etc/hostname": "desktop\n",
    }
    fds = {path: _memory_file(text.encode()) for path, text in texts.items()}
    refused = seccomp.program()
    filters = [_memory_file(refused)] if refused else []
    try:
        command = sandbox.programs(sockets, limits, fds, told, there.fileno(), *filters)
        process = popen(command, log_file, (told, there.fileno(), *fds.values(), *filters), as_user)
    finally:
        there.close()
        for fd in (told, *fds.values(), *filters):
            os.close(fd)
    return process, here, info


def guest_of(
    process: subprocess.Popen[bytes], here: socket.socket, info: int, log_file: Path, limits: Limits
) -> SandboxGuest:
    """The guest of what `begin_programs` started, once it is ready. Raises GuestError."""
    told = _line(info, process, log_file)
    here.settimeout(START_S)
    if not here.recv(1 << 16):  # {"ready": 1}
        raise GuestError(f"the sandbox ended at once: {tail(log_file)}")
    here.settimeout(None)
    return SandboxGuest(
        here, int(json.loads(told)["child-pid"]), home.environment(":0"), sandbox.HOME, limits.of_process()
    )


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("guiderail", 0)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _line(fd: int, process: subprocess.Popen[bytes], log_file: Path) -> str:
    """What a child writes into a pipe before it closes it."""
    with open(fd, "rb") as f:
        text = f.read().decode()
    if not text:
        process.wait(5)
        raise GuestError(f"the sandbox did not start: {tail(log_file)}")
    return text
