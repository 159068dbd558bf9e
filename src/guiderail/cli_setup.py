"""Commands that look after the parameters, the machine and the shipped model.

Guarantees: nothing heavy is imported before a command is known. Each is a few lines that call the room it lives in;
`cli` words the errors.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from guiderail.commands import Command


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


def _doctor_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--install", choices=("desktop", "office"), help="install these packages (Debian, Ubuntu; root)")


def _doctor(args: argparse.Namespace) -> None:
    from guiderail import doctor

    if args.install:
        doctor.install(args.install)
    if any(f.ok is False for f in doctor.report()):
        raise SystemExit(1)


def _preset_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", nargs="?", help="preset to write; without it, or `list`: list them")
    p.add_argument("--params", default="params.yaml", metavar="FILE", help="file to write (default: params.yaml)")
    p.add_argument("--force", action="store_true", help="overwrite values of your own")


def _preset(args: argparse.Namespace) -> None:
    from guiderail.workflow import presets

    path = Path(args.params)
    if args.name in (None, "list"):
        now, names = presets.current(path) if path.exists() else None, presets.names()
        for name in names:
            print(f"{'*' if name == now else ' '} {name:<{max(map(len, names))}}  {presets.about(name)}")
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


def _osworld_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("folder", help="the folder that holds examples/, or one with task files")
    p.add_argument("--json", action="store_true", help="one JSON object a task, for machines")


def _osworld(args: argparse.Namespace) -> None:
    from guiderail.tasks.osworld_files import load_folder
    from guiderail.tasks.osworld_needs import needs, report

    tasks = load_folder(args.folder)
    if args.json:
        for task in tasks:
            print(json.dumps(needs(task).to_json(), ensure_ascii=False))
    else:
        print(report(tasks))


COMMANDS = {
    "setup": Command(
        "Find a Chromium or install one, and make the tracking store. Safe to repeat.",
        _setup_options,
        _setup,
    ),
    "doctor": Command(
        "Say what is there: browser, desktop packages, sandbox, disk, ports. Exit status 1 when something is missing.",
        _doctor_options,
        _doctor,
    ),
    "preset": Command(
        "List presets, or write one into params.yaml (which both engines read).",
        _preset_options,
        _preset,
    ),
    "check": Command(
        "Check parameters as the stages do; reckon memory per device, screens, trajectories per hour. Needs no GPU.",
        _check_options,
        _check,
    ),
    "schema": Command(
        "Write the JSON Schema of params.yaml (editors and Snakemake check against it).",
        _schema_options,
        _schema,
    ),
    "pretrain": Command(
        "Train the small base model again, on renders of random pages. Takes about an hour.",
        _pretrain_options,
        _pretrain,
    ),
    "manifest": Command(
        "Write manifest.json of a base model again: the hash of every file, which stages check before they load it.",
        _manifest_options,
        _manifest,
    ),
    "osworld": Command(
        "Check a folder of OSWorld's task files; report what the tasks need, and which are not covered and why.",
        _osworld_options,
        _osworld,
    ),
}
