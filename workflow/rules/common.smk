# What all rules share: the stages of dvc.yaml, the check of params.yaml, the two ledgers kept in step.
import shlex
import sys
from pathlib import Path

from guiderail import params as guiderail_params
from guiderail.stages import checks
from guiderail.workflow import alone, ledger
from guiderail.workflow.spec import Spec

# `workflow` knows only later whether it may lock.
if workflow.is_main_process and "--nolock" not in sys.argv:
    alive = alone.enter(Path(".snakemake"))

if workflow.is_main_process and not ledger.off():
    checks.check_all(guiderail_params.load())
    checks.check_config(config)
    ledger.reconcile()

spec = Spec(config)
asks = guiderail_params.parse(config).resources.of


onsuccess:
    ledger.seen()


onerror:
    ledger.seen()
    told = "The same command goes on from here. `guiderail status` says what is done, and why the rest is not."
    print(told, file=sys.stderr)


wildcard_constraints:
    recipe="[a-z0-9_]+",
    seed=r"\d+",
    benchmark="[a-z0-9_]+",


def run_stage(name):
    """Shell line of a stage: DVC runs it, records it, or restores it from its cache. The command stands in dvc.yaml."""
    axes = "-".join(f"{{wildcards.{a}}}" for a in spec.axes(name))
    address = f"{name}@{axes}" if axes else name
    job = f"{shlex.quote(sys.executable)} -m guiderail.workflow.job {address}"
    return job + " --log {log} --gpus {resources.gpu}"
