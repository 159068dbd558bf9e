"""The commands around the chain: what each takes and does, a few lines that call the room it lives in.

Guarantees: nothing heavy is imported before a command is known. Holds no logic of its own; `cli` words the errors.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path


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
    p.add_argument("--preset", metavar="NAME", help="check this preset instead of params.yaml; `all`: every one")
    p.add_argument("--params", default="params.yaml", metavar="FILE", help="parameters (default: params.yaml)")


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
