"""System calls that programs of a slot do not get: a filter for bubblewrap's `--seccomp`.

Guarantees: what would outlive a reset (System V and POSIX message queues, semaphores and shared memory of an ipc
namespace; the kernel's keyrings, which no namespace parts from those of other slots), memory that no limit counts
(memfd), and parts of the kernel that desktops do not need (io_uring, bpf, perf, userfaultfd) answer ENOSYS, as on a
kernel that was built without them: programs fall back. So do calls of another instruction set (32-bit).
A machine whose numbers are not known here gets no filter (`program` is empty). Layout: linux/filter.h, linux/seccomp.h.
"""

from __future__ import annotations

import errno
import os
import struct

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_RET
NUMBER, ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOSYS
OTHER_ABI = 0x40000000  # numbers from here on are x86-64's x32
REFUSED: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (0xC000003E, {
        "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "mq_open": 240, "add_key": 248, "request_key": 249,
        "keyctl": 250, "perf_event_open": 298, "memfd_create": 319, "bpf": 321, "userfaultfd": 323,
        "io_uring_setup": 425, "memfd_secret": 447,
    }),
    "aarch64": (0xC00000B7, {
        "shmget": 194, "shmat": 196, "semget": 190, "msgget": 186, "mq_open": 180, "add_key": 217, "request_key": 218,
        "keyctl": 219, "perf_event_open": 241, "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
        "io_uring_setup": 425, "memfd_secret": 447,
    }),
}  # fmt: skip
"""Machine -> its number in linux/audit.h, and the calls by their numbers there."""


def program(machine: str = "") -> bytes:
    """The filter for `machine` (default: this one), empty where its calls are not known."""
    known = REFUSED.get(machine or os.uname().machine)
    if known is None:
        return b""
    architecture, calls = known
    numbers = sorted(calls.values())
    lines = [(LOAD, 0, 0, ARCHITECTURE), (JUMP_EQUAL, 0, len(numbers) + 3, architecture), (LOAD, 0, 0, NUMBER)]
    lines.append((JUMP_AT_LEAST, len(numbers) + 1, 0, OTHER_ABI))
    lines += [(JUMP_EQUAL, len(numbers) - i, 0, n) for i, n in enumerate(numbers)]
    lines += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
