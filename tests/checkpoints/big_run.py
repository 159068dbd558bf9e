"""One work on a checkpoint much larger than memory may grow, watching anonymous memory (what is mapped is not held).

`python big_run.py consolidate|ties FOLDER` prints the bytes by which it grew at most, and the bytes of the checkpoint.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import torch

FILE = 16 << 20


def anonymous() -> int:
    """Bytes of anonymous memory of this process, now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise SystemExit("no RssAnon in /proc/self/status")


class Watch(threading.Thread):
    """The largest growth since it started."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.start_at = anonymous()
        self.grown, self.on = 0, True

    def run(self) -> None:
        while self.on:
            self.grown = max(self.grown, anonymous() - self.start_at)
            time.sleep(0.002)


def main(what: str, at: Path) -> None:
    torch.set_num_threads(1)
    if what == "consolidate":
        from guiderail.checkpoints.consolidate import consolidate as work

        shards = at / "shards"
        size = sum(f.stat().st_size for f in shards.iterdir())
        run = lambda: work(shards, at / "like", at / "out", file_bytes=FILE)  # noqa: E731
    else:
        from guiderail.checkpoints.merge_many import Recipe, merge_models

        size = sum(f.stat().st_size for f in (at / "a").glob("*.safetensors"))
        recipe = Recipe("ties", (1.0, 1.0), 1.0, 0.2)
        run = lambda: merge_models([at / "a", at / "b"], at / "out", recipe)  # noqa: E731
    import transformers.models.qwen3_vl.modeling_qwen3_vl  # noqa: F401  (imports are not the work's)

    watch = Watch()
    watch.start()
    run()
    watch.on = False
    watch.join()
    print(watch.grown, size)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
