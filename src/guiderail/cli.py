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
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from guiderail.commands import AXES, STAGES

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
        known = [*STAGES, *EXTRA]
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
    for name, (text, add) in EXTRA.items():
        add(commands.add_parser(name, description=text, formatter_class=raw))
    return parser


def _stage(args: argparse.Namespace) -> None:
    from guiderail.stages.runner import Attach, run_evaluation, run_stage
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


def _setup_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--no-browser", action="store_true", help="leave the browser out")


def _setup(args: argparse.Namespace) -> None:
    from guiderail.tracking_mlflow import prepare_store

    if not args.no_browser:
        from guiderail.envs.chromium import install

        found = install()
        print(f"browser: {found.version} at {found.path}")
    if not Path(".git").exists() and Path(".dvc").is_dir():
        local = Path(".dvc/config.local")
        if not local.exists():
            local.write_text("[core]\n    no_scm = true\n")
            print("dvc: no git here, core.no_scm set in .dvc/config.local")
    print(f"tracking: {prepare_store()}")


def _osworld_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("folder", help="the folder that holds examples/, or one with task files")
    p.add_argument("--json", action="store_true", help="one JSON object a task, for machines")


def _osworld(args: argparse.Namespace) -> None:
    from guiderail.tasks.osworld import load_folder
    from guiderail.tasks.osworld_needs import needs, report

    tasks = load_folder(args.folder)
    if args.json:
        for task in tasks:
            print(json.dumps(needs(task).to_json(), ensure_ascii=False))
    else:
        print(report(tasks))


def _doctor_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--install", choices=("desktop", "office"), help="install these packages (Debian, Ubuntu; root)")


def _doctor(args: argparse.Namespace) -> None:
    from guiderail import doctor

    if args.install:
        doctor.install(args.install)
    if any(f.ok is False for f in doctor.report()):
        raise SystemExit(1)


def _preset_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", nargs="?", help="preset to write; without it, list them")
    p.add_argument("--params", default="params.yaml", metavar="FILE", help="file to write (default: params.yaml)")
    p.add_argument("--force", action="store_true", help="overwrite values of your own")


def _preset(args: argparse.Namespace) -> None:
    from guiderail.workflow import presets

    path = Path(args.params)
    if args.name is None:
        now = presets.current(path) if path.exists() else None
        for name in presets.names():
            print(f"{'*' if name == now else ' '} {name:<10} {presets.about(name)}")
        return
    presets.write(args.name, path, args.force)
    print(f"{path}: preset {args.name}. Run `snakemake --cores all` or `dvc repro`.")


def _check_options(p: argparse.ArgumentParser) -> None:
    from guiderail.stages.capacity_check import command_options

    command_options(p)


def _check(args: argparse.Namespace) -> None:
    from guiderail.stages import capacity_check

    capacity_check.run(args)


def _schema_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--out", default="workflow/schemas/params.schema.json", metavar="FILE")
    p.add_argument("--check", action="store_true", help="write nothing; exit 1 when the file is not current")


def _schema(args: argparse.Namespace) -> None:
    from guiderail.params import Params

    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Params.model_json_schema()}
    text = json.dumps(schema, indent=1) + "\n"
    path = Path(args.out)
    if args.check:
        if not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path} is not current: run `guiderail schema`")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _pretrain_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--out", default="assets/tiny-vlm", metavar="DIR", help="folder to write (default: assets/tiny-vlm)")
    p.add_argument("--params", default="params.yaml", metavar="FILE", help="parameters (default: params.yaml)")
    p.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="an option of the recipe, e.g. steps=800"
    )


def _pretrain(args: argparse.Namespace) -> None:
    from guiderail.params import ParamError
    from guiderail.stages.runner import run_pretrain

    options: dict[str, str] = {}
    for text in args.set:
        key, sign, value = text.partition("=")
        if not sign:
            raise ParamError(f"--set {text}: write KEY=VALUE, e.g. steps=800.")
        if key in options:
            raise ParamError(f"--set {text}: {key} is set twice; set it once.")
        options[key] = value
    run_pretrain(Path(args.out), args.params, options)


def _manifest_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("folder", nargs="?", default="assets/tiny-vlm", help="base model (default: assets/tiny-vlm)")


def _manifest(args: argparse.Namespace) -> None:
    from guiderail.checkpoints.manifest import FILE, read, sign_base
    from guiderail.models.folder import check_folder

    folder = check_folder(args.folder)
    known = read(folder).method if (folder / FILE).is_file() else {}
    print(f"{folder / FILE}: {len(sign_base(folder, known).files)} files")


def _ui_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--port", type=int, default=5000, help="port on 127.0.0.1 (default: 5000)")


def _ui(args: argparse.Namespace) -> None:
    from guiderail.tracking_mlflow import tracking_uri

    program = shutil.which("mlflow", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        raise SystemExit("guiderail ui: no `mlflow` command; install the package's dependencies again")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # jobs of judges: processes nobody here asks
    print(
        f"runs: http://127.0.0.1:{args.port}/#/experiments?workflowType=machine_learning (Ctrl-C ends it)",
        file=sys.stderr,
        flush=True,
    )
    where = ["--backend-store-uri", tracking_uri(), "--host", "127.0.0.1", "--port", str(args.port), "--workers", "1"]
    os.execv(program, ["mlflow", "ui", *where])


def _track_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("folders", nargs="*", metavar="FOLDER", help="outputs, or folders of them (default: results)")


def _track(args: argparse.Namespace) -> None:
    from guiderail.params import load
    from guiderail.stages import track

    track.run([Path(f) for f in args.folders or ["results"]], load().tracking)


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


def _pool_options(p: argparse.ArgumentParser) -> None:
    from guiderail.pool.options import command_options

    command_options(p)


def _pool(args: argparse.Namespace) -> None:
    from guiderail.pool import command

    command.run(args)


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


def _selftest_options(p: argparse.ArgumentParser) -> None:
    from guiderail.bench.selftest import command_options

    command_options(p)


def _selftest(args: argparse.Namespace) -> None:
    from guiderail.bench.selftest import run

    run(args)


def _status_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--json", action="store_true", help="one JSON object per job")


def _status(args: argparse.Namespace) -> None:
    from guiderail.status import collect, show

    print(show(collect(), args.json))


EXTRA = {
    "setup": ("Find a Chromium or install one, and make the tracking store. Safe to repeat.", _setup_options),
    "doctor": (
        "Say what is there: browser, desktop packages, sandbox, disk, ports. Exit status 1 when something is missing.",
        _doctor_options,
    ),
    "preset": ("List presets, or write one into params.yaml (which both engines read).", _preset_options),
    "check": (
        "Check parameters as the stages do; reckon memory per device, screens, trajectories per hour. Needs no GPU.",
        _check_options,
    ),
    "schema": ("Write the JSON Schema of params.yaml (editors and Snakemake check against it).", _schema_options),
    "pretrain": (
        "Train the small base model again, on renders of random pages. Takes about an hour.",
        _pretrain_options,
    ),
    "manifest": (
        "Write manifest.json of a base model again: the hash of every file, which stages check before they load it.",
        _manifest_options,
    ),
    "consolidate": ("Put shards of a distributed run together: one Hugging Face folder.", _consolidate_options),
    "serve": ("Serve a model with vLLM on 127.0.0.1, for `guiderail rl --engine-url`. Ctrl-C ends it.", _serve_options),
    "osworld": (
        "Check a folder of OSWorld's task files; report what the tasks need, and which are not covered and why.",
        _osworld_options,
    ),
    "selftest": (
        "Try every instance of the desktop suite on local desktops: start, doing nothing and tampering must score 0,\n"
        "the scripted expert 1. Exit status 1 when one does not.",
        _selftest_options,
    ),
    "pool": ("List machines that carry our label, end those that nobody answers for, show costs.", _pool_options),
    "status": ("Show what of the chain is done, stale, running, failed or to do, and why.", _status_options),
    "ui": ("Open MLflow on the runs, on 127.0.0.1.", _ui_options),
    "track": (
        "Send stored outputs to MLflow that it does not have whole: what they say of themselves, and their curves.",
        _track_options,
    ),
    "view": ("Look at stored episodes in the browser: filters, search, frames, groups. Follows a run.", _view_options),
    "replay": (
        "Play a stored episode again from its seed: its recorded actions, or with --policy what the checkpoint says.\n"
        "Exit status 1: something differs from what was stored. `guiderail view` shows the name of every episode.",
        _replay_options,
    ),
}
LISTINGS = ("osworld", "pool", "preset", "status")  # print and end
RUN = {
    "consolidate": _consolidate,
    "serve": _serve,
    "osworld": _osworld,
    "pool": _pool,
    "selftest": _selftest,
    "setup": _setup,
    "doctor": _doctor,
    "preset": _preset,
    "check": _check,
    "schema": _schema,
    "pretrain": _pretrain,
    "manifest": _manifest,
    "status": _status,
    "ui": _ui,
    "track": _track,
    "view": _view,
    "replay": _replay,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    command = "guiderail"
    try:
        args = build().parse_args(argv)
        command = f"guiderail {args.command}"
        return _run(args, command)
    except KeyboardInterrupt:
        print(f"{command}: stopped; the same command goes on from here", file=sys.stderr)
        return 130


def _run(args: argparse.Namespace, command: str) -> int:
    from guiderail.errors import Explained, refused_by_machine
    from guiderail.params import ParamError

    try:
        RUN.get(args.command, _stage)(args)
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
