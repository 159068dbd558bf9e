"""A Ray cluster of this one machine, on the loopback, for as long as this process lives.

Run as a service: `python -m guiderail.cluster.head READY CPUS GPUS STORE_BYTES`. Writes its address into the file READY
once it can be attached to; ends, with its processes and its temporary folder, on SIGTERM. The service guard
(service_guard.py) ends what is left of it when its stage dies; only the folder then stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

LONGEST = 40  # of the temporary folder's path: Ray puts sockets below it, whose paths Linux bounds at 107 bytes


def scratch() -> Path:
    """A new folder for Ray's sockets, logs and spilled objects. Raises OSError when the path would be too long."""
    root = tempfile.gettempdir()
    if len(os.fsencode(root)) > LONGEST:
        raise OSError(f"temporary folder {root}: longer than {LONGEST} bytes, too long for Ray; set TMPDIR to another")
    return Path(tempfile.mkdtemp(prefix="guiderail-ray-", dir=root))


def shared_memory() -> int:
    """Bytes free in /dev/shm; 0 where there is none."""
    with contextlib.suppress(OSError):
        found = os.statvfs("/dev/shm")
        return found.f_bavail * found.f_frsize
    return 0


def main(ready: Path, cpus: int, gpus: int, store: int) -> None:
    """Start, tell the address, wait for SIGTERM."""
    stop = threading.Event()
    for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(s, lambda *_: stop.set())
    folder = scratch()
    try:
        import ray

        # objects lie in shared memory; where that is small (containers), in files, which is slower and works
        where = {} if shared_memory() > store else {"_plasma_directory": str(folder)}
        context = ray.init(
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
        beside = ready.with_name(ready.name + ".tmp")
        beside.write_text(context.address_info["gcs_address"])
        beside.rename(ready)
        stop.wait()
        ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(x) for x in sys.argv[2:5]))
