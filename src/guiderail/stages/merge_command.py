"""Options and bodies of `guiderail merge verify` and `guiderail merge models`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guiderail.stages.execution import Attach

METHODS = ("average", "task_arithmetic", "ties")
GATES = ("refuse", "warn", "off")


def add_actions(p: argparse.ArgumentParser) -> None:
    """The two commands below `merge`; without one it is the chain's stage."""
    actions = p.add_subparsers(dest="action", metavar="ACTION", title="beside the chain")
    verify = actions.add_parser(
        "verify",
        help="compare two checkpoints: parameters and logits",
        description="Compare two checkpoints (Hugging Face folders or adapters) parameter by parameter and by their "
        "logits on recorded frames. Exit status 0: the same; 1: different, with the reasons; 2: nothing to compare.",
    )
    _verify_options(verify)
    models = actions.add_parser(
        "models",
        help="average, task arithmetic or TIES of checkpoints of one lineage",
        description="Merge checkpoints of one lineage, play a benchmark with all of them, and refuse a merge that is "
        "worse than one it was made of (beyond the interval).",
    )
    _models_options(models)


def _verify_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("a", metavar="A", help="a checkpoint")
    p.add_argument("b", metavar="B", help="another one")
    p.add_argument("--tolerance", type=float, default=0.0, metavar="T", help="|difference| of a parameter (default: 0)")
    p.add_argument("--logits", type=float, metavar="L", help="|difference| of a logit (default: merge.tolerance)")
    p.add_argument("--no-logits", action="store_true", help="compare parameters alone; loads no model")
    p.add_argument("--any-dtype", action="store_true", help="let dtypes differ when the values are the same")
    p.add_argument("--demos", default="results/demos", metavar="DIR", help="frames and answers (results/demos)")
    p.add_argument("--episodes", type=int, default=8, metavar="N", help="demonstrations to probe (default: 8)")
    p.add_argument("--params", default="params.yaml", metavar="FILE", help="parameters (default: params.yaml)")
    p.add_argument("--json", action="store_true", help="one JSON object")


def _models_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("models", nargs="+", metavar="MODEL", help="two or more checkpoints")
    p.add_argument("--method", choices=METHODS, required=True)
    p.add_argument("--out", required=True, metavar="FOLDER", help="folder to make; it must not exist")
    p.add_argument("--weight", type=float, action="append", metavar="W", help="once per model, in order (default: 1)")
    p.add_argument("--scale", type=float, default=1.0, help="task_arithmetic, ties: lambda (default: 1)")
    p.add_argument("--density", type=float, default=0.2, help="ties: share of each task vector kept (default: 0.2)")
    p.add_argument("--base", metavar="FOLDER", help="start of the task vectors (default: the nearest common ancestor)")
    p.add_argument("--benchmark", metavar="B", help="for the gate (default: the first of sweep.benchmark)")
    p.add_argument(
        "--gate", choices=GATES, default="refuse", help="a worse merge: refuse it, warn, or (off) measure nothing"
    )
    p.add_argument("--params", default="params.yaml", metavar="FILE", help="parameters (default: params.yaml)")
    p.add_argument("--env-pool-url", metavar="URL", help="use this environment pool instead of starting one")


def run(args: argparse.Namespace) -> None:
    """The chosen one."""
    {"verify": _verify, "models": _models}[args.action](args)


def _verify(args: argparse.Namespace) -> None:
    from guiderail.params import ParamError, load

    if args.episodes < 1 or not args.tolerance >= 0 or (args.logits is not None and not args.logits >= 0):
        raise ParamError("--episodes must be 1 or more, --tolerance and --logits 0 or more.")
    params = load(args.params)
    _check_there(Path(args.a), Path(args.b), None if args.no_logits else Path(args.demos))
    from guiderail.stages.merge_verify import verify  # seconds: what is not there is told before

    limit = args.logits if args.logits is not None else params.merge.tolerance
    found = verify(
        Path(args.a),
        Path(args.b),
        params,
        tolerance=args.tolerance,
        logits=None if args.no_logits else limit,
        any_dtype=args.any_dtype,
        demos=Path(args.demos),
        episodes=args.episodes,
    )
    if args.json:
        logits = found.logits.to_json() if found.logits else None
        told = {"same": not found.faults, "faults": found.faults, "parameters": found.parameters.to_json()}
        print(json.dumps({**told, "logits": logits}))
    else:
        for line in found.lines():
            print(line)
    if found.faults:
        sys.stdout.flush()
        raise SystemExit(1)


def _check_there(a: Path, b: Path, demos: Path | None) -> None:
    """Both must be checkpoint folders by their looks, and there must be frames to compare logits on (demos None: none
    are). Raises ParamError."""
    from guiderail.params import ParamError

    for folder in (a, b):
        if not folder.is_dir():
            raise ParamError(f"{folder}: no such checkpoint folder.")
        if not any((folder / n).is_file() for n in ("config.json", "adapter_config.json")):
            raise ParamError(f"{folder}: no checkpoint (neither config.json nor adapter_config.json is there).")
    if demos is not None and not (demos / "demos.jsonl").is_file():
        raise ParamError(
            f"{demos}: no demos.jsonl there, so no frames to compare logits on; run the demos stage, give another "
            "folder with --demos, or pass --no-logits."
        )


def _models(args: argparse.Namespace) -> None:
    from guiderail.params import ParamError
    from guiderail.stages.execution import Attach
    from guiderail.stages.runner import run_merge

    weights = args.weight or [1.0] * len(args.models)
    if len(weights) != len(args.models):
        raise ParamError(f"--weight: given {len(weights)} times for {len(args.models)} models; give one each, or none.")
    if not all(map(math.isfinite, [*weights, args.scale])) or not 0 < args.density <= 1:
        raise ParamError("--weight and --scale must be finite, --density above 0 and at most 1.")
    if args.method != "ties" and args.density != 0.2:
        raise ParamError(f"--density: method {args.method} does not read it; leave it out.")
    if args.method == "average" and (args.base or args.scale != 1.0):
        raise ParamError("--base, --scale: method average does not read them; leave them out.")
    attach: Attach = Attach(args.env_pool_url)
    run_merge(
        {
            "models": args.models,
            "method": args.method,
            "weights": weights,
            "scale": args.scale,
            "density": args.density,
            "base": args.base or "",
            "gate": args.gate,
            "benchmark": args.benchmark or "",
        },
        Path(args.out),
        args.params,
        attach,
    )
