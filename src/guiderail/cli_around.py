"""Commands that serve, watch and look at what the chain does.

Guarantees: nothing heavy is imported before a command is known. Each is a few lines that call the room it lives in;
`cli` words the errors.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import time
from pathlib import Path

from guiderail.commands import Command

UI_S = 900.0
"""Longest wait for MLflow's first answer."""


def _consolidate_options(p: argparse.ArgumentParser) -> None:
    from guiderail.checkpoints.command import command_options

    command_options(p)


def _consolidate(args: argparse.Namespace) -> None:
    from guiderail.checkpoints import command

    command.run(args)


def _serve_options(p: argparse.ArgumentParser) -> None:
    from guiderail.rollout.engines.serve import command_options

    command_options(p)


def _serve(args: argparse.Namespace) -> None:
    from guiderail.rollout.engines.serve import run

    run(args)


def _selftest_options(p: argparse.ArgumentParser) -> None:
    from guiderail.bench.selftest import command_options

    command_options(p)


def _selftest(args: argparse.Namespace) -> None:
    from guiderail.bench.selftest import run

    run(args)


def _pool_options(p: argparse.ArgumentParser) -> None:
    from guiderail.pool.options import command_options

    command_options(p)


def _pool(args: argparse.Namespace) -> None:
    from guiderail.pool import command

    command.run(args)


def _status_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--json", action="store_true", help="one JSON object per job")


def _status(args: argparse.Namespace) -> None:
    from guiderail.status import collect, show

    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(show(collect(), args.json, columns))


def _ui_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--port", type=int, default=5000, help="port on 127.0.0.1 (default: 5000)")


def _ui(args: argparse.Namespace) -> None:
    import psutil

    from guiderail.errors import InputError
    from guiderail.services import ServiceError, service, tail
    from guiderail.tracking_mlflow import tracking_uri

    program = shutil.which("mlflow", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        raise SystemExit("guiderail ui: no `mlflow` command; install the package's dependencies again")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # jobs of judges: processes nobody here asks
    with socket.socket() as asked:  # else whoever has the port would answer in MLflow's place
        if asked.connect_ex(("127.0.0.1", args.port)) == 0:
            raise InputError(f"127.0.0.1:{args.port}: somebody listens there already. Name another with --port.")
    base = f"http://127.0.0.1:{args.port}"
    where = ["--backend-store-uri", tracking_uri(), "--host", "127.0.0.1", "--port", str(args.port), "--workers", "1"]
    print("MLflow starts; on a busy machine that takes minutes ...", file=sys.stderr, flush=True)
    try:
        with service([program, "ui", *where], "mlflow", ready_url=f"{base}/health", timeout=UI_S, poll=0.5) as running:
            told = f"runs: {base}/#/experiments?workflowType=machine_learning (Ctrl-C ends it)"
            print(told, file=sys.stderr, flush=True)
            while psutil.pid_exists(running.pid):
                time.sleep(1)
            raise ServiceError(f"MLflow has ended; its last lines:\n{tail(running.log)}")
    except KeyboardInterrupt:
        return


def _track_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("folders", nargs="*", metavar="FOLDER", help="outputs, or folders of them (default: results)")


def _track(args: argparse.Namespace) -> None:
    from guiderail.params import load
    from guiderail.stages import track

    track.run([Path(f) for f in args.folders or ["results"]], load().tracking)


def _view_options(p: argparse.ArgumentParser) -> None:
    from guiderail.report.viewer.command import view_options

    view_options(p)


def _view(args: argparse.Namespace) -> None:
    from guiderail.report.viewer import command

    command.view(args)


def _replay_options(p: argparse.ArgumentParser) -> None:
    from guiderail.report.viewer.command import replay_options

    replay_options(p)


def _replay(args: argparse.Namespace) -> None:
    from guiderail.report.viewer import command

    command.replay(args)


COMMANDS = {
    "consolidate": Command(
        "Put shards of a distributed run together: one Hugging Face folder.",
        _consolidate_options,
        _consolidate,
    ),
    "serve": Command(
        "Serve a model with vLLM on 127.0.0.1, for `guiderail rl --engine-url`. Ctrl-C ends it.",
        _serve_options,
        _serve,
    ),
    "selftest": Command(
        "Try every instance of the desktop suite on local desktops: start, doing nothing and tampering must score 0,\n"
        "the scripted expert 1. Exit status 1 when one does not.",
        _selftest_options,
        _selftest,
    ),
    "pool": Command(
        "List machines that carry our label, end those that nobody answers for, show costs.",
        _pool_options,
        _pool,
    ),
    "status": Command(
        "Show what of the chain is done, stale, running, failed or to do, and why.",
        _status_options,
        _status,
    ),
    "ui": Command(
        "Open MLflow on the runs, on 127.0.0.1.",
        _ui_options,
        _ui,
    ),
    "track": Command(
        "Send stored outputs to MLflow that it does not have whole: what they say of themselves, and their curves.",
        _track_options,
        _track,
    ),
    "view": Command(
        "Look at stored episodes in the browser: filters, search, frames, groups. Follows a run.",
        _view_options,
        _view,
    ),
    "replay": Command(
        "Play a stored episode again from its seed: its recorded actions, or with --policy what the checkpoint says.\n"
        "Exit status 1: something differs from what was stored. `guiderail view` shows the name of every episode.",
        _replay_options,
        _replay,
    ),
}
