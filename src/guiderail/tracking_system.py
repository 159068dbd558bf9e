"""CPU, memory, disk, network and GPU while a stage runs, under the names that MLflow shows as system metrics.

Guarantees: sampled at most every `EVERY_S` seconds and once at the end; what a machine lacks (a GPU, the reader for it)
is left out. The numbers are of the machine, not of the stage: what the stage itself cost stands under `cost.*`.
"""

from __future__ import annotations

import time

import psutil

EVERY_S = 10.0
MB = 2**20


class SystemMeter:
    """Call `sample` as often as you like."""

    def __init__(self) -> None:
        self._next, self._number = 0.0, 0
        self._net = _network()
        psutil.cpu_percent()  # the first answer is of no interval

    def sample(self, last: bool = False) -> list[tuple[str, float, int, int]]:
        """(key, value, time in ms, step) points, or nothing when it is too early for the next ones."""
        if time.monotonic() < self._next and not last:
            return []
        self._next = time.monotonic() + EVERY_S
        memory, disk, net = psutil.virtual_memory(), psutil.disk_usage("."), _network()
        found = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / MB,
            "system_memory_usage_percentage": memory.percent,
            "disk_usage_percentage": disk.percent,
            "disk_available_megabytes": disk.free / MB,
            "network_receive_megabytes": (net[0] - self._net[0]) / MB,
            "network_transmit_megabytes": (net[1] - self._net[1]) / MB,
            **_gpus(),
        }
        now, step = int(time.time() * 1000), self._number
        self._number += 1
        return [(f"system/{k}", float(v), now, step) for k, v in found.items()]


def _network() -> tuple[int, int]:
    """Bytes received and sent since boot; zeros where the system does not tell."""
    net = psutil.net_io_counters()
    return (net.bytes_recv, net.bytes_sent) if net is not None else (0, 0)


def _gpus() -> dict[str, float]:
    """Use of each GPU that this process has already touched: asking would start the driver."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    found = {}
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        found[f"gpu_{i}_memory_usage_megabytes"] = (total - free) / MB
        found[f"gpu_{i}_memory_usage_percentage"] = 100 * (total - free) / total
        try:
            found[f"gpu_{i}_utilization_percentage"] = float(torch.cuda.utilization(i))
        except (ModuleNotFoundError, RuntimeError):  # needs nvidia-ml-py, which is not among our packages
            continue
    return found
