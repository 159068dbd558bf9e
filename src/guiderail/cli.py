"""The command line: one subcommand per stage of the chain, and setup, doctor, preset, check, schema, pretrain,
manifest, consolidate, serve, selftest, pool, status, ui, track, view, replay.

Guarantees: nothing heavy is imported before a command is known (`guiderail --help` stays quick); a bad parameter, axis
or input is told in one line, with exit status 2, before any work; an error that explains itself, or a disk that
refuses, ends with its text and exit status 1 (`GUIDERAIL_TRACEBACK=1` shows where it came from); Ctrl-C gives 130, also
during imports, and SIGTERM 143. Holds no logic of its own.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from guiderail import cli_around, cli_setup
from guiderail.commands import AXES, STAGES

TOOLS = cli_setup.COMMANDS | cli_around.COMMANDS
LISTINGS = ("osworld", "pool", "preset", "status")  # print and end
OVERVIEW = """\
Train, merge and measure GUI agents, every artefact versioned.

the chain, in order (one command per stage):
{stages}

around it:
  setup       find or install a browser, make the tracking store
  doctor      say what of browser, desktop and machine is there; install a desktop's programs
  preset      list presets, or write one into params.yaml
  check       would it run, does it fit, how fast? (needs no GPU)
  schema      write the JSON Schema of params.yaml
  pretrain    make the small base model again (assets/tiny-vlm)
  manifest    write the hashes of a base model again (after replacing its files)
  consolidate put shards of a distributed run together
  serve       serve a model with vLLM (for rl --engine-url)
  osworld     check a folder of OSWorld's task files and report what each needs
  selftest    try every instance of the desktop suite on local desktops
  pool        list machines of a pool, end orphans, show costs
  status      what is done, stale, running, failed or to do, as DVC and Snakemake see it
  ui          open MLflow on the runs
  track       send outputs to MLflow that it does not have
  view        look at the episodes in the browser
  replay      play a stored episode again

Usually an engine runs the stages, and only those that need it:
  snakemake --cores all        or        dvc repro
By hand, for one point of the sweep:
  guiderail rl --recipe grpo --seed 0
`guiderail <command> --help` tells what a command reads and writes. Everything is set in params.yaml.
GUIDERAIL_TRACEBACK=1 in the environment adds the traceback to errors that are told in words.
"""


class Parser(argparse.ArgumentParser):
    """argparse that offers the nearest command and exits with status 2 in one line."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        known = [*STAGES, *TOOLS]
        words = ", ".join(known)
        wrong = next((w for w in sys.argv[1:2] if "invalid choice" in message and w not in known), None)
        if wrong:
            near = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
            message = f"no command {wrong!r}. " + (
                f"Did you mean {' or '.join(near)}?" if near else f"There are: {words}."
            )
        self.exit(2, f"{self.prog}: {message} See `{self.prog} --help`.\n")


def build() -> argparse.ArgumentParser:
    """The parser of all commands."""
    listing = "\n".join(f"  {n:<11} {s.title}" for n, s in STAGES.items())
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        "guiderail", description=OVERVIEW.format(stages=listing), formatter_class=raw, usage="guiderail COMMAND ..."
    )
    commands = parser.add_subparsers(dest="command", required=True, prog="guiderail", help=argparse.SUPPRESS)
    for name, stage in STAGES.items():
        p = commands.add_parser(name, description=stage.page(name), formatter_class=raw)
        for axis in stage.axes:
            needed = name not in ("evaluate", "merge") or axis == "benchmark"  # not with --model, verify, models
            p.add_argument(f"--{axis}", required=needed, metavar=axis.upper(), help=AXES[axis][0])
        if name == "evaluate":
            p.add_argument("--model", metavar="FOLDER", help="evaluate this checkpoint instead of a recipe and seed's")
            p.add_argument("--out", metavar="DIR", help="with --model: folder to write (default: below results/model)")
        p.add_argument("--params", default="params.yaml", metavar="FILE", help="parameters (default: params.yaml)")
        if "env-pool" in stage.uses:
            p.add_argument("--env-pool-url", metavar="URL", help="use this environment pool instead of starting one")
        if "engine" in stage.uses:
            p.add_argument("--engine-url", metavar="URL", default="", help="use this vLLM server (engine.kind vllm)")
        if name == "merge":
            from guiderail.stages.merge_command import add_actions

            add_actions(p)
        if name == "provision":
            p.add_argument("--yes", action="store_true", help="accept what cloud machines cost, without a budget")
    for name, tool in TOOLS.items():
        tool.options(commands.add_parser(name, description=tool.text, formatter_class=raw))
    return parser


def _stage(args: argparse.Namespace) -> None:
    from guiderail.stages.execution import Attach
    from guiderail.stages.runner import run_evaluation, run_stage
    from guiderail.workflow.job import die_with_parent

    if "DVC_STAGE" in os.environ:  # started by DVC: do not go on without it
        die_with_parent()
    if args.command == "merge":
        if args.action:
            from guiderail.stages import merge_command

            return merge_command.run(args)
        _check_merge(args)
    axes = {a: getattr(args, a) for a in STAGES[args.command].axes}
    attach = Attach(getattr(args, "env_pool_url", None), getattr(args, "yes", False), getattr(args, "engine_url", ""))
    if args.command == "evaluate":
        _check_evaluate(args)
        if args.model:
            model = Path(args.model)
            out = Path(args.out or f"results/model/{model.resolve().name}/{args.benchmark}")
            return run_evaluation(model, args.benchmark, out, args.params, attach)
    run_stage(args.command, axes, args.params, attach)


def _check_merge(args: argparse.Namespace) -> None:
    """merge, as a stage of the chain, takes a recipe and a seed."""
    from guiderail.params import ParamError

    if args.recipe is None or args.seed is None:
        raise ParamError("needs --recipe and --seed (of the chain), or one of: merge verify A B, merge models ...")


def _check_evaluate(args: argparse.Namespace) -> None:
    """evaluate takes a recipe and a seed, or a model."""
    from guiderail.params import ParamError

    point = [n for n in ("recipe", "seed") if getattr(args, n) is not None]
    if args.model and point:
        raise ParamError(f"--model and --{point[0]}: give a checkpoint, or a recipe and a seed of the chain.")
    if not args.model and len(point) < 2:
        raise ParamError("needs --recipe and --seed (of the chain), or --model FOLDER (any checkpoint).")
    if args.out and not args.model:
        raise ParamError("--out: only with --model; the chain's outputs are where dvc.yaml says.")


GOES_ON = "stopped; the same command goes on from here"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    command = "guiderail"
    try:
        args = build().parse_args(argv)
        command = f"guiderail {args.command}"
        return _run(args, command)
    except KeyboardInterrupt:
        print(f"{command}: {GOES_ON}", file=sys.stderr)
        return 130
    except SystemExit as e:
        if e.code in (130, 143):  # a training ended at its next border, with its state saved
            print(f"{command}: {GOES_ON}", file=sys.stderr)
        raise


def _run(args: argparse.Namespace, command: str) -> int:
    from guiderail.errors import Explained, refused_by_machine
    from guiderail.params import ParamError

    try:
        (TOOLS[args.command].run if args.command in TOOLS else _stage)(args)
        sys.stdout.flush()
    except BrokenPipeError:
        if args.command not in LISTINGS:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has seen enough
        return 141
    except ParamError as e:
        print(f"{command}: {e.message}", file=sys.stderr)
        return 2
    except (Explained, OSError) as e:
        told = str(e) if isinstance(e, Explained) else refused_by_machine(e)
        if told is None or os.environ.get("GUIDERAIL_TRACEBACK") == "1":
            raise
        print(f"{command}: {told}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
