"""Keep the books of the two engines in step. dvc.lock (content hashes) is the ledger of truth.

Guarantees: `reconcile`, called when Snakemake starts, touches every stage that DVC vouches for by content and that has
no changed stage above it, so that Snakemake's dates and recorded parameters agree; it can never bless stale work. It
looks only when dvc.lock or an output has changed since Snakemake last looked (dvc repro, checkout, pull, git switch,
fresh clone, kill -9). DVC needs no hook. Where DVC is absent it warns and does nothing.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from guiderail.workflow.spec import Spec

SEEN = Path(".snakemake/guiderail_seen")
OFF = "GUIDERAIL_LEDGER"


def dvc_command() -> list[str]:
    """How to start DVC, or [] where it is not installed."""
    return [sys.executable, "-m", "dvc"] if importlib.util.find_spec("dvc") else []


def environment() -> dict[str, str]:
    """Environment for a child: this Python's commands come first, DVC does not think it is inside a stage."""
    env = {k: v for k, v in os.environ.items() if k not in ("DVC_STAGE", "DVC_ROOT")}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
    return env | {"DVC_NO_ANALYTICS": "1"}


def _run(argv: list[str]) -> str:
    done = subprocess.run(argv, env=environment() | {OFF: "off"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"ledger: `{' '.join(argv[2:7])}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def off() -> bool:
    """True inside the Snakemake that the ledger itself starts."""
    return os.environ.get(OFF) == "off"


def fingerprint(spec: Spec) -> str:
    """Changes whenever dvc.lock, the sweep, or the date or presence of an output does."""
    h = hashlib.sha256(Path("dvc.lock").read_bytes() if Path("dvc.lock").exists() else b"")
    for o in spec.all_outs():
        h.update(f"{o}:{os.stat(o).st_mtime_ns if os.path.exists(o) else 0};".encode())
    return h.hexdigest()


def seen(spec: Spec | None = None) -> None:
    """Note that Snakemake knows the present state."""
    SEEN.parent.mkdir(exist_ok=True)
    SEEN.write_text(fingerprint(spec or Spec.read()))


def vouched(spec: Spec, dirty: set[str]) -> list[str]:
    """Addresses that are not dirty and stand below no dirty one."""
    outs = {j.address: set(spec.job_outs(j)) for j in spec.jobs()}
    deps = {j.address: set(spec.job_deps(j)) for j in spec.jobs()}
    bad = dirty & set(outs)
    while True:
        stale = {o for a in bad for o in outs[a]}
        more = {a for a in outs if a not in bad and deps[a] & stale}
        if not more:
            return [a for a in outs if a not in bad]
        bad |= more


def reconcile() -> None:
    """Bring Snakemake's books up to date with dvc.lock."""
    spec = Spec.read()
    if SEEN.exists() and SEEN.read_text() == fingerprint(spec):
        return
    dvc = dvc_command()
    if not dvc:
        print("warning: DVC is not installed; Snakemake goes by dates alone", file=sys.stderr)
        return
    if not Path("dvc.lock").exists():
        return
    dirty = set(json.loads(_run([*dvc, "--wait-for-lock", "status", "--json"])))
    good = set(vouched(spec, dirty))
    flags = ["--nolock", "--rerun-incomplete", "--no-hooks", "--cores", "1"]
    smk = [sys.executable, "-m", "snakemake", *flags]
    rows = csv.DictReader(_run([*smk, "--summary"]).splitlines(), delimiter="\t")
    stale = {r["output_file"] for r in rows if r["plan"] != "no update" or r["log-file(s)"] == "-"}
    jobs = [j for j in spec.jobs() if j.address in good and stale & set(spec.job_outs(j))]
    touch = [o for j in jobs for o in spec.job_outs(j)]
    if touch:
        _run([*smk, "--touch", "--force", "--quiet", "all", "--", *touch])
    seen(spec)
    if touch:
        print(
            f"ledger: DVC vouches for {len(good)} stages; {len(touch)} outputs touched for Snakemake", file=sys.stderr
        )
