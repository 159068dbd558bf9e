"""`guiderail check`: would these parameters run, do they fit, and how fast? No GPU, no model, nothing started.

Guarantees: what the stages would refuse before any work is refused here too (parameters, suite, templates, benchmarks,
the model folder when it is here); then every recipe of the sweep is reckoned (`guiderail.capacity`). Exit status 0: it
should run; 1: it will not fit, with what to change; 2: the parameters themselves are wrong. GPUs that the parameters
ask for and this machine lacks make no difference to it: it is then a plan for another machine, and says so.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from pathlib import Path

from guiderail.capacity.shapes import KNOWN, Shape, known, read_shape
from guiderail.capacity.verdict import Report, counted, reckon
from guiderail.errors import InputError
from guiderail.params import ParamError, Params, load
from guiderail.params_plan import Plan
from guiderail.stages import checks
from guiderail.workflow import gpu_slots, presets


def shape_of(p: Params) -> tuple[Shape, str]:
    """(shape, where it is from): the folder's own, or that of the Hub's model of its name. Raises ParamError."""
    folder = Path(p.model.path)
    if (folder / "config.json").is_file():
        checks.check_model(p)
        return read_shape(folder), f"{folder}/config.json"
    found = known(p.model.path)
    if found is None:
        raise ParamError(
            f"model.path = {p.model.path!r}: no such folder, and no model of that name is known ({', '.join(KNOWN)}). "
            "Give the folder of a Qwen3-VL checkpoint."
        )
    if found.bias:
        raise ParamError(
            f"model.path = {p.model.path!r}: of Qwen2.5-VL the size is known, but it cannot be trained here: "
            "policies are Qwen3-VL (model_type qwen3_vl). Take one of those, Qwen3-VL-8B in place of Qwen2.5-VL-7B."
        )
    return found, f"the model's name; {folder} is not here yet: put the checkpoint there before the first stage"


def early_refusals(p: Params) -> list[str]:
    """What the stages would refuse before any work (raises ParamError); what this machine lacks but another may have
    comes back as notes."""
    checks.check_tasks(p)
    checks.check_browser(p)
    notes = []
    if p.trainer.kind == "ray":
        try:
            checks.check_trainer(p, "rl")
        except ParamError as e:
            notes.append(f"{e.message} (on the machine that runs rl)")
    if p.engine.kind != "vllm" or p.engine.url:
        return notes
    from guiderail.rollout.engines.vllm_server import find_build

    try:
        find_build(p.engine.python)
    except InputError as e:
        notes.append(f"engine.kind = 'vllm': {e} (on the machine that runs rl)")
    return notes


def elsewhere(p: Params) -> str:
    """ "" when this machine has the GPUs that the parameters ask for, else for what machine they are."""
    device = p.model.device
    named = int(device.partition(":")[2] or 0) + 1 if device.startswith("cuda") else 0
    wanted = max(p.plan.gpus, p.trainer.gpus if p.trainer.kind == "ray" else 0, named)
    here = len(gpu_slots.devices())
    if wanted <= here:
        return ""
    return f"a plan for another machine, with {wanted} GPU{'s' * (wanted > 1)}: this one has {here or 'none'}"


def host_bytes() -> int:
    """Memory of this machine."""
    import psutil

    return int(psutil.virtual_memory().total)


def check(p: Params) -> tuple[list[str], list[Report]]:
    """(lines about the parameters as a whole, one report per recipe of the sweep). Raises ParamError."""
    notes = early_refusals(p)
    if p.model.device.startswith("cuda") and not p.plan.gpus:
        notes.append(
            f"model.device = {p.model.device!r}, plan.gpus = 0: memory and speed below are those of this machine's "
            "CPUs; set plan.gpus to reckon with GPUs"
        )
    shape, source = shape_of(p)
    where = (
        f"{p.plan.gpus} GPU{'s' * (p.plan.gpus > 1)} of {p.plan.gpu_memory_gb:g} GB"
        if p.plan.gpus
        else "this machine's CPUs"
    )
    told = [f"model: {counted(shape.total)} parameters, from {source}", f"devices: {where}"]
    told += [f"rates: {line}" for line in rates(p.plan)]
    told += [f"note: {n}" for n in notes]
    return told, [reckon(p, shape, recipe, host_bytes()) for recipe in p.sweep.recipe]


def rates(plan: Plan) -> list[str]:
    """The rates reckoned with, and whether they are the defaults or somebody's own."""
    defaults = Plan()
    names = (
        ["gpu_tflops", "gpu_bandwidth_tbs", "train_mfu", "prefill_mfu", "decode_share"] if plan.gpus else ["cpu_gflops"]
    )
    names += ["action_s", "reset_s", "episode_steps"]
    values = {n: getattr(plan, n) for n in names}
    own = [f"{n} {v:g}" for n, v in values.items() if v != getattr(defaults, n)]
    theirs = [f"{n} {v:g}" for n, v in values.items() if v == getattr(defaults, n)]
    found = [f"{', '.join(own)} (plan in the parameters)"] if own else []
    return found + ([f"{', '.join(theirs)} (defaults, sources in docs/presets.md)"] if theirs else [])


def say(line: str) -> None:
    """Print a line; on a terminal, broken between words and its later lines further in."""
    if not sys.stdout.isatty():
        print(line)
        return
    indent = " " * (len(line) - len(line.lstrip()))
    width = max(40, shutil.get_terminal_size().columns)
    print(textwrap.fill(line.strip(), width, initial_indent=indent, subsequent_indent=f"{indent}    "))


def run(args: argparse.Namespace) -> None:
    """The command."""
    named = [] if args.preset is None else presets.names() if args.preset == "all" else [args.preset]
    bad, ends = 0, []
    for name, p in [(n, presets.preset(n)) for n in named] or [(args.params, load(args.params))]:
        told, reports = check(p)
        print(name)
        known = name if args.preset else presets.current(Path(name))
        if known:
            say(f"  {presets.about(known)}")
        for line in [*told, *(line for r in reports for line in r.lines())]:
            say(f"  {line}")
        problems = sum(len(r.problems) for r in reports)
        other = elsewhere(p)
        verdict = "WILL NOT RUN as it is" if problems else "ok"
        ends.append((name, f"{verdict}, as {other}" if other and not problems else verdict))
        print(f"  {ends[-1][1]}")
        bad += problems
    if len(ends) > 1:
        print("\nin short:")
        for name, end in ends:
            print(f"  {name:<{max(len(n) for n, _ in ends)}}  {end.partition(':')[0]}")
    if bad:
        raise SystemExit(1)
