"""Many runs at once on one MLflow: does anything fail, does any point get lost, what does it cost a stage?

    python benchmarks/mlflow_parallel.py --runs 40 --steps 200            # processes on one fresh SQLite file
    python benchmarks/mlflow_parallel.py --runs 40 --server               # the same through one mlflow server
    python benchmarks/mlflow_parallel.py --cost                           # seconds that tracking adds to a stage

Every run is a process with a Tracker of its own that logs `--metrics` metrics a step. Afterwards all points are counted
in the store. Prints one line of JSON; exit status 1 when a point is missing or a run failed. `--cost` runs the same
loop (a stage that works `--seconds`) with tracking off and on, in turn, and prints the difference of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

RUN = """
import sys, time
from pathlib import Path
from guiderail import tracking
tracking.CLOSE_S = float(sys.argv[5])
name, steps, metrics, on = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "on"
pause = float(sys.argv[6])
with tracking.Tracker(Path(name + ".jsonl"), run_name=name, required=True, enabled=on, system=on) as t:
    for step in range(steps):
        t.log({f"m{k}": float(step) for k in range(metrics)}, step)
        time.sleep(pause)
"""


def command(name: str, a: argparse.Namespace, on: bool = True, pause: float = 0.0) -> list[str]:
    state = "on" if on else "off"
    return [sys.executable, "-c", RUN, name, str(a.steps), str(a.metrics), state, str(a.close), str(pause)]


def parallel(a: argparse.Namespace, folder: Path) -> int:
    from guiderail.services import service
    from guiderail.tracking_mlflow import tracking_uri

    env = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"} | {"OMP_NUM_THREADS": "1"}
    env["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    store = f"sqlite:///{folder / 'mlflow.db'}"
    with ExitStack() as stack:
        if a.server:
            cmd = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--host", "127.0.0.1"]
            cmd += ["--port", "{port}", "--workers", "2"]
            url = "http://127.0.0.1:{port}/health"
            env["MLFLOW_TRACKING_URI"] = stack.enter_context(service(cmd, "mlflow", ready_url=url, timeout=300)).url
        started = time.perf_counter()
        names = [f"run{i}" for i in range(a.runs)]
        processes = [
            subprocess.Popen(command(n, a), cwd=folder, env=env, stderr=subprocess.PIPE, text=True) for n in names
        ]
        told = [(p.communicate()[1], p.returncode) for p in processes]
        seconds = time.perf_counter() - started
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri(folder) if not a.server else store)
    experiment = client.get_experiment_by_name("guiderail").experiment_id
    runs = client.search_runs([experiment], max_results=1000)
    counts = [len(client.get_metric_history(r.info.run_id, f"m{k}")) for r in runs for k in range(a.metrics)]
    wanted = a.runs * a.steps * a.metrics
    failed = [text for text, code in told if code]
    found = {
        "runs": len(runs), "failed": len(failed), "finished": sum(r.info.status == "FINISHED" for r in runs),
        "points": sum(counts), "wanted": wanted, "seconds": round(seconds, 1), "server": a.server,
    }  # fmt: skip
    print(json.dumps(found))
    if failed:
        print(failed[0], file=sys.stderr)
    return int(sum(counts) != wanted or len(runs) != a.runs or bool(failed))


def cost(a: argparse.Namespace, folder: Path) -> int:
    env = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"} | {"OMP_NUM_THREADS": "1"}
    taken: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * a.turns + 1):  # the first makes the store
        on = turn % 2 == 0
        started = time.perf_counter()
        subprocess.run(command(f"c{turn}", a, on, a.seconds / a.steps), cwd=folder, env=env, check=True)
        if turn:
            taken[on].append(time.perf_counter() - started)
    with_it, without = statistics.median(taken[True]), statistics.median(taken[False])
    print(json.dumps({"off_s": round(without, 2), "on_s": round(with_it, 2), "added_s": round(with_it - without, 2)}))
    return 0


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--runs", type=int, default=40)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--metrics", type=int, default=20)
    p.add_argument("--close", type=float, default=600.0, help="seconds a run may take to deliver at its end")
    p.add_argument("--server", action="store_true", help="through one mlflow server")
    p.add_argument("--cost", action="store_true", help="what tracking adds to a stage")
    p.add_argument("--seconds", type=float, default=20.0, help="--cost: how long the stage works")
    p.add_argument("--turns", type=int, default=5)
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sys.exit((cost if args.cost else parallel)(args, Path(name)))
