"""The reference part of the documentation, made from the code: parameters, commands, HTTP, files, algorithms.

Guarantees: nothing here repeats what the code says; a page is Markdown and depends on the code alone. `pages` gives all
of them by path; scripts/docs_pages.py hands them to mkdocs.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from guiderail import cli, provenance
from guiderail.bench import records
from guiderail.commands import STAGES
from guiderail.params import Params
from guiderail.pool import openapi
from guiderail.reference_algorithms import algorithms_page
from guiderail.stages import paths
from guiderail.workflow.spec import Spec


def pages(root: Path) -> dict[str, str]:
    """Path below docs/ -> Markdown. root: the repository, whose dvc.yaml is read."""
    return {
        "reference/params.md": params_page(Spec.read(root / "params.yaml", root / "dvc.yaml")),
        "reference/cli.md": cli_page(),
        "reference/http.md": http_page(),
        "reference/files.md": files_page(),
        "explanation/algorithms.md": algorithms_page(),
    }


def params_page(spec: Spec) -> str:
    """Every key of params.yaml: its default, what it means, and the stages that run again when it changes."""
    lines = [
        "# Parameters",
        "",
        "All keys of `params.yaml` with the values of the code (`guiderail preset default` may differ). *Re-runs*",
        "names the stages that depend on a key, after `dvc.yaml`; a dash is a knob of the machine.",
    ]
    for key, field in Params.model_fields.items():
        value = getattr(Params(), key)
        note = field.description or (type(value).__doc__ or "").strip().splitlines()[0]
        lines += ["", f"## {key}", "", note if isinstance(value, BaseModel) else "RL recipes by name: keys of `rl`."]
        lines += ["", "| key | default | meaning | re-runs |", "|---|---|---|---|"]
        rows = (
            list(_keys(value, key))
            if isinstance(value, BaseModel)
            else [(f"recipes.{k}", v, "") for k, v in value.items()]
        )
        lines += [f"| `{k}` | `{_cell(v)}` | {_escape(about)} | {_rerun(spec, k)} |" for k, v, about in rows]
    return "\n".join(lines) + "\n"


def _keys(model: BaseModel, prefix: str) -> Iterator[tuple[str, Any, str]]:
    for key, field in type(model).model_fields.items():
        value = getattr(model, key)
        if isinstance(value, BaseModel):
            yield from _keys(value, f"{prefix}.{key}")
        else:
            yield f"{prefix}.{key}", value, field.description or ""


def _cell(value: Any) -> str:
    text = json.dumps(value, default=str)
    return _escape(text if len(text) <= 60 else text[:57] + "...")


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _rerun(spec: Spec, key: str) -> str:
    axes = {"recipe": "*", "seed": "*", "benchmark": "*"}
    found = []
    for stage in spec.stages:
        for used in spec.param_keys(stage, axes):
            base = used.removesuffix(".*")
            if key == base or key.startswith(base + "."):
                found.append(stage)
    return ", ".join(dict.fromkeys(found)) or "-"


def cli_page() -> str:
    """Every command's own help."""
    parser = cli.build()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    lines = ["# Commands", "", "What `guiderail COMMAND --help` prints.", ""]
    for title, names in (("The chain", list(STAGES)), ("Around it", [n for n in commands.choices if n not in STAGES])):
        lines += [f"## {title}", ""]
        for name in names:
            lines += [f"### {name}", "", "```text", _help(commands.choices[name]), "```", ""]
    server = import_module("guiderail.pool.server")
    lines += ["## The pool's server", "", "`python -m guiderail.pool.server`, see [the pool](../pool.md).", ""]
    return "\n".join([*lines, "```text", _help(server.parser()), "```"]) + "\n"


def _help(parser: argparse.ArgumentParser) -> str:
    parser.formatter_class = _wide(parser.formatter_class)
    return parser.format_help().rstrip()


def _wide(kind: Any) -> Any:
    """The same formatter, whatever terminal this runs in."""
    return lambda prog: kind(prog, width=110)


def http_page() -> str:
    """The pool's routes, bodies and errors, from its OpenAPI document."""
    document = openapi.document()
    schemas = document["components"]["schemas"]
    lines = [
        "# HTTP API of the pool",
        "",
        "The server tells it all itself at `GET /openapi.json`. Requests carry `Authorization: Bearer TOKEN`; bodies",
        "are JSON.",
        "",
    ]
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            lines += [f"## {method.upper()} {path}", "", about["summary"], ""]
            body = about.get("requestBody")
            if body:
                (content,) = body["content"].values()
                lines += _fields(schemas[content["schema"]["$ref"].rsplit("/", 1)[-1]])
            lines += [f"Reply: {_escape(about['responses']['200']['description'])}", ""]
    lines += [
        "## Errors",
        "",
        "`{error, message}`, with one of these classes:",
        "",
        "| error | status | when |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{code}` | {', '.join(map(str, statuses))} | {_escape(when)} |"
        for code, (statuses, when) in openapi.ERRORS.items()
    ]
    return "\n".join(lines) + "\n"


def _fields(schema: Mapping[str, Any]) -> list[str]:
    lines = ["| field | type | needed |", "|---|---|---|"]
    for name, field in schema.get("properties", {}).items():
        kind = field.get("type") or field.get("$ref", "").rsplit("/", 1)[-1] or "any"
        about = f": {_escape(field['description'])}" if "description" in field else ""
        lines.append(f"| `{name}` | {kind}{about} | {'yes' if name in schema.get('required', []) else 'no'} |")
    return [*lines, ""]


def files_page() -> str:
    """Where outputs lie, and the columns and keys of the tables among them."""
    store, trace = import_module("guiderail.rollout.store"), import_module("guiderail.train.trace")
    plugins, curves = import_module("guiderail.plugins"), import_module("guiderail.curves")
    lines = ["# Files", "", "## Outputs", "", "| stage | folder | what |", "|---|---|---|"]
    for stage, point in (
        ("provision", ()), ("demos", ()), ("sft", ("S",)), ("prm", ("R", "S")), ("rl", ("R", "S")),
        ("merge", ("R", "S")), ("evaluate", ("R", "S", "B")), ("report", ()),
    ):  # fmt: skip
        where = getattr(paths, stage)
        lines.append(f"| `{stage}` | `{where(*point).as_posix()}` | {_escape(inspect.getdoc(where) or '')} |")
    lines += ["", "R recipe, S seed, B benchmark. Beside each output:", ""]
    lines += ["- `provenance.json`: " + _first(provenance), "- `curves.jsonl`: " + _first(curves), ""]
    lines += ["## Episodes of RL", "", "```text", inspect.getdoc(store) or "", "```", ""]
    for name, schema in store.SCHEMAS.items():
        lines += [f"### {name}.parquet", "", "| column | type |", "|---|---|"]
        lines += [f"| `{f.name}` | {_escape(str(f.type))} |" for f in schema] + [""]
    lines += [
        "### training.parquet",
        "",
        "```text",
        inspect.getdoc(trace) or "",
        "```",
        "",
        "| column | type |",
        "|---|---|",
    ]
    lines += [f"| `{f.name}` | {_escape(str(f.type))} |" for f in trace.SCHEMA] + [""]
    lines += ["## Episodes of an evaluation", "", inspect.getdoc(records) or "", "", "| column | type |", "|---|---|"]
    lines += [f"| `{name}` | {kind} |" for name, kind in records.COLUMNS.items()] + [""]
    lines += ["## Plugins", "", "| folder | must define |", "|---|---|"]
    lines += [f"| `plugins/{kind}/NAME.py` | `{name}` |" for kind, name in plugins.KINDS.items()]
    return "\n".join(lines) + "\n"


def _first(module: Any) -> str:
    return (inspect.getdoc(module) or "").splitlines()[0]
