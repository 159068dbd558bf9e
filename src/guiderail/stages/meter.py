"""What a stage costs: seconds and peak memory of its process tree, over all attempts.

Guarantees: costs of killed attempts are kept (written every few seconds). Memory is the sum of the resident sets of
the process and its descendants, sampled twice a second; shared pages count once per process, so it is an upper bound.
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

SAMPLE_S = 0.5
SAVE_S = 3.0


def tree_rss(process: psutil.Process) -> int:
    """Resident bytes of `process` and all its descendants."""
    total = 0
    for p in [process, *process.children(recursive=True)]:
        try:
            total += p.memory_info().rss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # gone between listing and reading
    return total


class Meter:
    """Context manager that measures; `stop()` gives `{"seconds", "peak_rss_bytes", "attempts", "peak_gpu_bytes"}`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        earlier: dict[str, Any] = {}
        if path.exists():
            try:
                earlier = json.loads(path.read_text())
            except json.JSONDecodeError:
                earlier = {}  # cut by a kill: only the cost of that attempt is lost
        self.seconds_before = float(earlier.get("seconds", 0.0))
        self.peak = int(earlier.get("peak_rss_bytes", 0))
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
            "peak_rss_bytes": self.peak,
            "peak_gpu_bytes": _gpu_peak(),
            "attempts": self.attempts,
        }

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
            self.peak = max(self.peak, tree_rss(process))
            if time.monotonic() - saved > SAVE_S:
                saved = time.monotonic()
                self._save()
            if self._done.wait(SAMPLE_S):
                return


def _gpu_peak() -> int:
    """Peak bytes torch has allocated on GPUs, 0 when torch or a GPU is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return 0
    return int(sum(torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count())))
