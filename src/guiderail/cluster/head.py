"""A Ray cluster of this one machine, on the loopback, for as long as this process lives.

Run as a service: `python -m guiderail.cluster.head READY CPUS GPUS STORE_BYTES`. Writes its address into the file READY
once it can be attached to; ends, with its processes and its temporary folder, on SIGTERM. The service guard
(service_guard.py) ends what is left of it when its stage dies; its folder is then removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guiderail.service_guard import kill_descendants

TRIES = 5
NAME = "guiderail-ray"
LONGEST = 40  # of the temporary folder's path: Ray puts sockets below it, whose paths Linux bounds at 107 bytes


def scratch() -> Path:
    """A new folder for Ray's sockets, logs and spilled objects. Raises OSError when the path would be too long."""
    root = tempfile.gettempdir()
    if len(os.fsencode(root)) > LONGEST:
        raise OSError(f"temporary folder {root}: longer than {LONGEST} bytes, too long for Ray; set TMPDIR to another")
    for old in Path(root).glob(f"{NAME}-*-*"):  # of clusters that were killed with -9
        pid = old.name.split("-")[2]
        if pid.isdecimal() and not alive(int(pid)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{NAME}-{os.getpid()}-", dir=root))


def alive(pid: int) -> bool:
    """Whether there is a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def shared_memory() -> int:
    """Bytes free in /dev/shm; 0 where there is none."""
    with contextlib.suppress(OSError):
        found = os.statvfs("/dev/shm")
        return found.f_bavail * found.f_frsize
    return 0


def patiently(start: Callable[[], Any], tries: int = TRIES) -> Any:
    """`start()`, again when Ray's node was slower than the 30 seconds it is given (a busy machine); what the failed
    try left running is ended first."""
    for left in reversed(range(tries)):
        try:
            return start()
        except Exception as e:  # Ray raises no narrower one
            if "timed out during startup" not in str(e) or not left:
                raise
            print(f"Ray was not up in time; {left} more tries", file=sys.stderr, flush=True)
            kill_descendants(os.getpid(), patience=0.0)
    raise AssertionError("unreachable")


def main(ready: Path, cpus: int, gpus: int, store: int) -> None:
    """Start, tell the address, wait for SIGTERM."""
    stop = threading.Event()
    folder = scratch()
    try:
        import ray

        # objects lie in shared memory; where that is small (containers), in files, which is slower and works
        where = {} if shared_memory() > store else {"_plasma_directory": str(folder)}

        def start() -> Any:
            return ray.init(
                address="local",
                num_cpus=cpus,
                num_gpus=gpus,
                object_store_memory=store,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="warning",
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder),
                **where,
            )

        context = patiently(start)
        for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # before now, a signal ends this process as it would
            signal.signal(s, lambda *_: stop.set())
        beside = ready.with_name(ready.name + ".tmp")
        beside.write_text(context.address_info["gcs_address"])
        beside.rename(ready)
        stop.wait()
        ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(x) for x in sys.argv[2:5]))
