"""Attach this process to a Ray cluster: the one `trainer.address` names, or one started here for the length of a block.

Guarantees: a cluster started here listens on the loopback, asks for a token that only this process and its children
know, and is gone with all its processes when the block is left in any way or this process dies in any way (kill -9
included: services.py). A cluster that was there before is only left. A split that the cluster cannot hold is refused.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guiderail.errors import Explained
from guiderail.params_trainer import Trainer
from guiderail.services import Service, ServiceError, service, tail

SPARE_CPUS = 2  # logical ones, beside the split's: Ray's own actors
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
OWN = {
    "GLOO_SOCKET_IFNAME": "lo",
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too: one machine, so Ray listens on the loopback alone
    "RAY_worker_niceness": "0",  # Ray's is 15: beside other work on the machine its processes would hardly run
}


class ClusterError(Explained, RuntimeError):
    """No cluster, or not the one that is needed. The message says what there is and what to do."""


@contextmanager
def ray_cluster(trainer: Trainer, log: Path) -> Iterator[Any]:
    """The module `ray`, attached, for the length of the block. log: output of a cluster started here; beside it
    stands its address. Raises ClusterError, ServiceError."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(trainer.start_timeout_s))
    if trainer.address:
        with _attached(trainer.address, trainer) as ray:
            yield ray
        return
    for name, value in OWN.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ready = log.with_name(f"{log.name}.address")
    ready.unlink(missing_ok=True)  # of a stage that was killed
    size = (trainer.processes + SPARE_CPUS, trainer.gpus, trainer.object_store_mb << 20)
    command = [sys.executable, "-m", "guiderail.cluster.head", str(ready.absolute()), *map(str, size)]
    with service(command, "ray", log=log, grace=10.0) as head:
        address = _address(ready, head, trainer.start_timeout_s)
        with _attached(address, trainer) as ray:
            yield ray
    ready.unlink(missing_ok=True)


def _address(ready: Path, head: Service, timeout: float) -> str:
    """What a starting cluster writes once it is ready."""
    end = time.monotonic() + timeout
    while not ready.exists():
        try:
            os.kill(head.guard_pid, 0)
            gone = Path(f"/proc/{head.guard_pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            gone = True
        if gone or time.monotonic() > end:
            what = "ended" if gone else f"was not ready within trainer.start_timeout_s = {timeout:g} s"
            raise ServiceError(
                f"the Ray cluster of this machine {what}; end of its log ({head.log}):\n{tail(head.log)}"
            )
        time.sleep(0.05)
    return ready.read_text()


@contextmanager
def _attached(address: str, trainer: Trainer) -> Iterator[Any]:
    import ray

    ours = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="warning", namespace=f"guiderail-{os.getpid()}")
    except (ConnectionError, RuntimeError, ValueError) as e:
        raise ClusterError(
            f"trainer.address = {address!r}: no Ray cluster to attach to ({' '.join(str(e).split())[:300]}). Start one "
            "(`ray start --head`), give the address it prints, and its token in RAY_AUTH_TOKEN if it asks for one."
        ) from None
    finally:
        if threading.current_thread() is threading.main_thread():  # Ray puts its own in place of the stage's
            for s, handler in ours.items():
                signal.signal(s, handler)
    try:
        check_size(trainer, ray.cluster_resources(), address)
        yield ray
    finally:
        ray.shutdown()


def check_size(trainer: Trainer, has: dict[str, float], address: str) -> None:
    """Refuse a split that the cluster can never hold; Ray would wait for it without an end."""
    for kind, wanted in (("GPU", trainer.gpus), ("CPU", trainer.processes)):
        if has.get(kind, 0.0) < wanted:
            raise ClusterError(
                f"the cluster at {address} has {has.get(kind, 0.0):g} {kind}s; trainer's split of actor "
                f"{trainer.actor} + rollout {trainer.rollout} + prm {trainer.prm} needs {wanted}. Lower it, or add "
                "nodes (`ray start`)."
            )
