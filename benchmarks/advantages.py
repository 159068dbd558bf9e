"""Advantage and return functions at size, and against a plain quadratic version of the same formulas.

    python benchmarks/advantages.py [--rows 1000000] [--small 20000] [--repeat 3]

Rows are steps of trajectories of 1 to 20 steps, eight trajectories a group. First each function on `--rows` rows (best
of `--repeat`; the goal is under 1 s each), then semi-online and step-wise advantages on `--small` rows beside the plain
version, which searches the whole batch again for every row, as UI-S1's released code does for returns. Both give the
same numbers; the largest difference is printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from guiderail.algorithms.grpo import group_advantages
from guiderail.algorithms.returns import returns_to_go, segment_returns
from guiderail.algorithms.semi_online import semi_online_advantages
from guiderail.algorithms.step_wise import step_wise_advantages

Rows = dict[str, np.ndarray]


def make(count: int, seed: int = 0) -> Rows:
    """`count` rows in random order."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 21, size=count // 10 + 20)
    trajectory = np.repeat(np.arange(len(lengths)), lengths)[:count]
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    outcome = rng.choice([-1.0, 1.0], size=len(lengths))[trajectory]
    rows = {
        "trajectory": trajectory,
        "group": trajectory // 8,
        "step": np.arange(count) - first[trajectory],
        "reward": rng.choice([0.0, 0.19, 0.55, 1.0], size=count),
        "matched": rng.random(count) < 0.8,
        "outcome": outcome,
        "process": rng.choice([-1.0, 0.0, 1.0], size=count),
        "measured": np.ones(count, dtype=np.bool_),
    }
    order = rng.permutation(count)
    return {k: v[order] for k, v in rows.items()}


def seconds(call: Callable[[], object], repeat: int) -> tuple[float, float]:
    """Best (wall, CPU) time of `repeat` calls; they differ on a machine that does other things too."""
    walls, cpus = [], []
    for _ in range(repeat):
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def quadratic_semi_online(r: Rows, gamma: float = 0.5) -> np.ndarray:
    """Segment returns (code rule) and both advantages, one search of the batch per row."""
    n = len(r["reward"])
    returns, out = np.zeros(n), np.zeros(n)
    for i in range(n):
        mine = np.flatnonzero(r["trajectory"] == r["trajectory"][i])
        mine = mine[np.argsort(r["step"][mine])]
        for j in mine[r["step"][mine] >= r["step"][i]]:
            if not r["matched"][j]:
                break
            returns[i] += gamma ** (r["step"][j] - r["step"][i]) * r["reward"][j]
        if not r["matched"][i]:
            returns[i] = r["reward"][i]
    for i in range(n):
        siblings = r["group"] == r["group"][i]
        bucket = returns[siblings & (r["step"] == r["step"][i])]
        if len(bucket) > 1 and np.ptp(bucket) > 0:
            out[i] += (returns[i] - bucket.mean()) / (bucket.std(ddof=1) + 1e-6)
        sums = {t: r["reward"][r["trajectory"] == t].sum() for t in np.unique(r["trajectory"][siblings])}
        values = np.array(list(sums.values()))
        if len(values) > 1 and np.ptp(values) > 0:
            out[i] += (sums[r["trajectory"][i]] - values.mean()) / (values.std(ddof=1) + 1e-6)
    return out


def quadratic_step_wise(r: Rows) -> np.ndarray:
    """Bucket advantages, one search of the batch per row."""
    x = r["outcome"] + r["process"]
    out = np.zeros(len(x))
    for i in range(len(x)):
        bucket = x[(r["group"] == r["group"][i]) & (r["step"] == r["step"][i])]
        if len(bucket) > 1 and np.ptp(bucket) > 0:
            out[i] = (x[i] - bucket.mean()) / (bucket.std(ddof=1) + 1e-6)
    return out


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()

    r = make(args.rows)
    keys = (r["group"], r["trajectory"], r["step"], r["measured"])
    calls: dict[str, Callable[[], object]] = {
        "group_advantages": lambda: group_advantages(r["reward"], r["trajectory"], r["measured"]),
        "returns_to_go": lambda: returns_to_go(r["reward"], r["trajectory"], r["step"], 0.9),
        "segment_returns": lambda: segment_returns(r["reward"], r["matched"], r["trajectory"], r["step"]),
        "semi_online": lambda: semi_online_advantages(r["reward"], r["matched"], *keys),
        **{
            f"step_wise, {credit}": partial(step_wise_advantages, r["outcome"], r["process"], *keys, credit=credit)
            for credit in ("bucket", "return_to_go", "outcome_anchored")
        },
    }
    print(f"{args.rows:,} rows, best of {args.repeat}")
    for name, call in calls.items():
        wall, cpu = seconds(call, args.repeat)
        print(f"  {name:28s} {wall:7.3f} s wall  {cpu:7.3f} s CPU")

    r = make(args.small)
    keys = (r["group"], r["trajectory"], r["step"], r["measured"])
    print(f"{args.small:,} rows, against the quadratic version")
    sides: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "semi_online": (lambda: semi_online_advantages(r["reward"], r["matched"], *keys), quadratic_semi_online),
        "step_wise, bucket": (lambda: step_wise_advantages(r["outcome"], r["process"], *keys), quadratic_step_wise),
    }
    for name, (ours, plain) in sides.items():
        fast = seconds(ours, args.repeat)[1]
        started = time.process_time()
        wanted = plain(r)
        slow = time.process_time() - started
        gap = np.abs(ours().values - wanted).max()
        print(f"  {name:28s} {slow:7.2f} s / {fast:.4f} s CPU = {slow / fast:,.0f} times; largest difference {gap:.1e}")


if __name__ == "__main__":
    main()
