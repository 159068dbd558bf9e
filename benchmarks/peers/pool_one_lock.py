"""A pool in the design of gui-rl's server, for comparison: threaded Flask, one lock, machines made under that lock.

Written from the description of its routes and semantics (no code of it is used). Environments do nothing; making one
takes `--boot-s` seconds.

    python benchmarks/peers/pool_one_lock.py --port 18081 --max-envs 64 --prewarm 64 --boot-s 0
"""

from __future__ import annotations

import argparse
import base64
import logging
import secrets
import threading
import time
from multiprocessing.pool import ThreadPool
from typing import Any

from flask import Flask, request

from guiderail.pool.providers.noop import png


class Slot:
    """An environment that counts, and who has it."""

    def __init__(self, boot_s: float) -> None:
        time.sleep(boot_s)
        self.id, self.lease, self.steps, self.lock = f"env-{secrets.token_hex(6)}", "", 0, threading.RLock()

    def observation(self) -> dict[str, Any]:
        """The screen."""
        shot = base64.b64encode(png(self.steps)).decode()
        return {"screenshot_b64": shot, "accessibility_tree": None, "terminal": None, "instruction": "count"}


class Pool:
    """All slots under one lock."""

    def __init__(self, most: int, prewarm: int, boot_s: float) -> None:
        self.most, self.boot_s, self.lock = most, boot_s, threading.RLock()
        with ThreadPool(8) as workers:
            self.slots = workers.map(lambda _: Slot(boot_s), range(prewarm))
        self.leases: dict[str, Slot] = {}

    def allocate(self) -> Slot:
        """The first idle slot, else a new one, made while everybody waits."""
        with self.lock:
            slot = next((s for s in self.slots if not s.lease), None)
            if slot is None:
                if len(self.slots) >= self.most:
                    raise RuntimeError(f"Pool exhausted: {len(self.slots)}/{self.most}")
                slot = Slot(self.boot_s)
                self.slots.append(slot)
            slot.lease = f"lease-{secrets.token_hex(8)}"
            self.leases[slot.lease] = slot
            return slot

    def of(self, lease: str) -> Slot:
        """The slot of a lease."""
        with self.lock:
            return self.leases[lease]

    def close(self, lease: str) -> None:
        """Reset and give back."""
        with self.lock:
            slot = self.leases.pop(lease)
        slot.steps = 0
        with self.lock:
            slot.lease = ""


def main() -> None:
    """Serve."""
    p = argparse.ArgumentParser()
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--max-envs", type=int, default=64)
    p.add_argument("--prewarm", type=int, default=0)
    p.add_argument("--boot-s", type=float, default=0.0)
    a = p.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    pool = Pool(a.max_envs, a.prewarm, a.boot_s)
    app = Flask("one_lock")

    @app.get("/healthz")
    def healthz() -> Any:
        return {"ok": True}

    @app.post("/allocate")
    def allocate() -> Any:
        try:
            slot = pool.allocate()
        except RuntimeError as e:
            return {"ok": False, "error": str(e)}, 500
        return {"ok": True, "lease_id": slot.lease, "env_id": slot.id, "reused": True}

    @app.post("/reset")
    def reset() -> Any:
        slot = pool.of(request.get_json(force=True)["lease_id"])
        with slot.lock:
            slot.steps = 0
            return {"ok": True, "observation": slot.observation()}

    @app.post("/step")
    def step() -> Any:
        slot = pool.of(request.get_json(force=True)["lease_id"])
        with slot.lock:
            slot.steps += 1
            return {"ok": True, "observation": slot.observation(), "reward": 0, "done": False, "info": {}}

    @app.post("/close")
    def close() -> Any:
        pool.close(request.get_json(force=True)["lease_id"])
        return {"ok": True}

    app.run("127.0.0.1", a.port, threaded=True)


if __name__ == "__main__":
    main()
