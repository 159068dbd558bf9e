"""The explorer over many synthetic episodes: time to index, time of pages and filters, memory.

    python benchmarks/viewer_load.py [--episodes 100000] [--folder DIR]

Writes a store in the format of `rollout.store` (parts of 1000 episodes, two steps each on average), starts
`guiderail view` on it as a user would, and asks over loopback, one request at a time. Limits, checked (exit status 1):
first page under 300 ms, median of filters under 200 ms, peak memory of the server under 500 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from guiderail.rollout.store import EPISODES, STEPS

PART = 1000
TEMPLATES = [
    f"click-{w}" for w in ("button", "link", "tab", "dialog", "option", "shape", "color", "widget", "box", "list")
]
TEMPLATES += [f"{a}-{b}" for a in ("enter", "login", "read", "find", "use") for b in ("text", "user", "table", "word")]
WORDS = ["open", "the", "menu", "and", "choose", "save", "file", "before", "you", "send", "form", "to", "every"]
WORDS += ["person", "named", "in", "list", "below", "twice"]
FILTERS = [
    "outcome=failure", "template=login-user&outcome=failure", "cause=step_limit&sort=-steps", "split=heldout",
    "run=rl/rloo/seed1&iteration_min=20", "q=menu", "q=send+person&outcome=success", "steps_min=4&sort=reward",
    "reward_max=0&sort=-advantage", "recipe=grpo&seed=0&template=click-tab&page=4", "sort=-tokens&page=900", "q=zebra",
]  # fmt: skip


def write(folder: Path, episodes: int) -> None:
    """A store of `episodes` episodes over three recipes and two seeds."""
    draw = random.Random(0)
    runs = [(r, s) for r in ("grpo", "rloo", "dapo") for s in (0, 1)]
    for part in range(-(-episodes // PART)):
        recipe, seed = runs[part % len(runs)]
        made, steps = [], []
        for i in range(min(PART, episodes - part * PART)):
            template, task = draw.choice(TEMPLATES), draw.randrange(10**6)
            group, n, win = f"miniwob/{template}/{task}/0/v{part}", draw.choice((1, 1, 2, 2, 4)), draw.random() < 0.5
            cause = draw.choice(("env_done", "step_limit", "parse_failure"))
            text = " ".join(draw.choices(WORDS, k=12)) + (" zebra" if draw.random() < 1e-4 else "")
            name = f"{group}/{i % 8}/0"
            made.append(
                {"id": name + f"/{i}", "group": group, "sibling": i % 8, "attempt": 0, "policy_version": part,
                 "suite": "miniwob", "template": template, "seed": task, "wording": 0, "domain": template.split("-")[0],
                 "split": draw.choice(("train", "fresh", "heldout")), "max_steps": 5, "threshold": 1.0,
                 "task_id": f"miniwob/{template}/{task}/0", "instruction": text, "reward": float(win), "detail": "",
                 "outcome": "success" if win else "failure", "cause": "env_done" if win else cause, "n_steps": n,
                 "n_tokens": 11 * n, "last_frame": ""}
            )  # fmt: skip
            for k in range(n):
                act = {"kind": "Click", "x": round(draw.random(), 3), "y": round(draw.random(), 3)}
                steps.append(
                    {"episode_id": name + f"/{i}", "step": k, "frame": f"{draw.getrandbits(256):064x}", "chunk": 0,
                     "prompt_len": 90, "ids": [1] * 11, "logprobs": [-0.1] * 11, "finish_reason": "stop",
                     "text": f"Action: click {text[:40]}\nCLICK(x={act['x']}, y={act['y']})", "thought": text[:40],
                     "temperature": 0.7, "top_p": 1.0, "max_new_tokens": 28, "seed": k, "action": json.dumps(act),
                     "parse_error": "", "policy_version": part, "seconds_policy": 0.1, "seconds_env": 0.1}
                )  # fmt: skip
        root = folder / "rl" / recipe / f"seed{seed}" / "rollouts"
        for table, rows, schema in (("steps", steps, STEPS), ("episodes", made, EPISODES)):
            path = root / f"{table}.parquet" / f"part-{part:05d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd")


def ask(url: str) -> tuple[float, Any]:
    """Milliseconds and answer of a GET."""
    started = time.perf_counter()
    with urllib.request.urlopen(url) as reply:
        body = reply.read()
    return 1000 * (time.perf_counter() - started), json.loads(body)


def main() -> int:
    """Measure and print one JSON object."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--episodes", type=int, default=100_000)
    p.add_argument("--folder", type=Path, help="where the store is made or found again (default: a temporary folder)")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = a.folder or Path(scratch)
        if not (root / "results").exists():
            write(root / "results", a.episodes)
        for old in (root / ".work" / "viewer").glob("index-*"):
            old.unlink()
        started = time.perf_counter()
        server = subprocess.Popen(
            [sys.executable, "-m", "guiderail", "view", str(root / "results"), "--port", "0"],
            stderr=subprocess.PIPE, text=True, env=os.environ.copy(),
        )  # fmt: skip
        try:
            assert server.stderr is not None
            found = None
            while found is None:
                line = server.stderr.readline()
                if not line:
                    raise SystemExit("the explorer did not start")
                found = re.search(r"http://\S+:\d+/", line)
            base, total = found[0], 0
            while total < a.episodes:  # pages are served while the index is made
                with contextlib.suppress(OSError):  # the address is told just before it is served
                    total = ask(f"{base}api/state")[1]["episodes"]
                time.sleep(0.05)
            built = time.perf_counter() - started
            first, page = ask(f"{base}api/episodes")
            again = [ask(f"{base}api/episodes")[0] for _ in range(20)]
            filters = {f: [ask(f"{base}api/episodes?{f}")[0] for _ in range(5)] for f in FILTERS}
            colds = {f: times[0] for f, times in filters.items()}
            one = ask(f"{base}api/episode?key={urllib.parse.quote(page['episodes'][0]['key'], safe='')}")[0]
            memory = psutil.Process(server.pid).memory_info()
            peak = max(memory.rss, _peak(server.pid))
        finally:
            server.terminate()
            server.wait(20)
    told = {
        "episodes": page["all"], "index_s": round(built, 1), "first_page_ms": round(first, 1),
        "page_ms": round(statistics.median(again), 1), "episode_ms": round(one, 1),
        "filter_ms_median": round(statistics.median(t for ts in filters.values() for t in ts), 1),
        "filter_ms_first_median": round(statistics.median(colds.values()), 1),
        "filter_ms_worst": round(max(t for ts in filters.values() for t in ts), 1),
        "filters_first_ms": {f: round(t) for f, t in colds.items()}, "peak_rss_mb": round(peak / 1e6),
    }  # fmt: skip
    print(json.dumps(told, indent=1))
    return int(first > 300 or told["filter_ms_median"] > 200 or peak > 500e6)


def _peak(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


if __name__ == "__main__":
    sys.exit(main())
