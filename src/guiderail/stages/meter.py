"""What a stage costs: seconds, CPU seconds and peak memory of its process tree, over all attempts.

Guarantees: costs of killed attempts are kept (written every few seconds). `peak_pss_bytes` is the largest sum of
proportional set sizes (Linux: /proc/<pid>/smaps_rollup; a page that n processes share counts 1/n for each) of the
process and its descendants; a process whose PSS cannot be read counts with its resident set, and where none can be
read the key is left out. `peak_rss_bytes` is the same with resident sets: shared pages count once per process, so it is
an upper bound. `cpu_seconds` is what the process and its descendants used: those that are waited for to the end, others
as last seen. Sampled once a second at most, and seldom enough to cost at most a twentieth of a core: a shorter peak
may be missed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

SAMPLE_S = 1.0
SAVE_S = 3.0
MAX_SHARE = 0.05


def pss(pid: int) -> int | None:
    """Proportional set size of a process in bytes; None where it cannot be read (another system or user, or gone)."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as f:
            return next((int(line.split()[1]) * 1024 for line in f if line.startswith(b"Pss:")), None)
    except OSError:
        return None


def tree_memory(process: psutil.Process) -> tuple[int | None, int]:
    """(PSS, RSS) in bytes of `process` and all its descendants; PSS is None when that of no process can be read."""
    proportional, resident, readable = 0, 0, False
    for p in [process, *process.children(recursive=True)]:
        try:
            rss = p.memory_info().rss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # gone between listing and reading
        own = pss(p.pid)
        readable |= own is not None
        resident += rss
        proportional += rss if own is None else own
    return proportional if readable else None, resident


def tree_cpu(process: psutil.Process) -> float:
    """User and system seconds of the living descendants of `process`, what they have waited for included."""
    total = 0.0
    for p in process.children(recursive=True):
        try:
            t = p.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # gone between listing and reading
        total += t.user + t.system + t.children_user + t.children_system
    return total


class Meter:
    """Context manager that measures; `stop()` gives seconds, cpu_seconds, attempts and peak_{pss,rss,gpu}_bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        earlier: dict[str, Any] = {}
        if path.exists():
            try:
                earlier = json.loads(path.read_text())
            except json.JSONDecodeError:
                earlier = {}  # cut by a kill: only the cost of that attempt is lost
        self.seconds_before = float(earlier.get("seconds", 0.0))
        self.cpu_before = float(earlier.get("cpu_seconds", 0.0))
        self.descendants = 0.0
        self._cpu_start = time.process_time(), _waited()
        self.peak_rss = int(earlier.get("peak_rss_bytes", 0))
        self.peak_pss = int(earlier.get("peak_pss_bytes", 0))
        self.attempts = int(earlier.get("attempts", 0)) + 1
        self._start = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="meter", daemon=True)

    def __enter__(self) -> Meter:
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def cost(self) -> dict[str, Any]:
        """Costs so far."""
        return {
            "seconds": round(self.seconds_before + time.monotonic() - self._start, 3),
            "cpu_seconds": round(self.cpu_before + self._cpu(), 3),
            **({"peak_pss_bytes": self.peak_pss} if self.peak_pss else {}),
            "peak_rss_bytes": self.peak_rss,
            "peak_gpu_bytes": _gpu_peak(),
            "attempts": self.attempts,
        }

    def _cpu(self) -> float:
        own, waited = self._cpu_start
        return time.process_time() - own + max(_waited() - waited, self.descendants)

    def stop(self) -> dict[str, Any]:
        """Stop sampling; final costs."""
        if not self._done.is_set():
            self._done.set()
            if self._thread.is_alive():
                self._thread.join()
            self._save()
        return self.cost()

    def _save(self) -> None:
        tmp = self.path.with_suffix(".tmp")
        tmp.write_text(json.dumps(self.cost()))
        os.replace(tmp, self.path)

    def _sample(self) -> None:
        process, saved = psutil.Process(), 0.0
        while True:
            started = time.monotonic()
            proportional, resident = tree_memory(process)
            self.descendants = max(self.descendants, _waited() - self._cpu_start[1] + tree_cpu(process))
            self.peak_pss = max(self.peak_pss, proportional or 0)
            self.peak_rss = max(self.peak_rss, resident)
            took = time.monotonic() - started
            if time.monotonic() - saved > SAVE_S:
                saved = time.monotonic()
                self._save()
            if self._done.wait(max(SAMPLE_S, took / MAX_SHARE)):
                return


def _waited() -> float:
    """CPU seconds of all descendants that were waited for."""
    used = os.times()
    return used.children_user + used.children_system


def _gpu_peak() -> int:
    """Peak bytes torch has allocated on GPUs, 0 when torch or a GPU is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return 0
    return int(sum(torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count())))
