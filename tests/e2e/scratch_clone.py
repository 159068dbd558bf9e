"""A clone of the working tree, uncommitted files included, and commands in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def sh(cwd, *argv, check=True, timeout=1500):
    """What a command of the clone says; it must succeed when `check`."""
    drop = ("DVC_", "GUIDERAIL_STAGES", "MLFLOW_", "PYTHONPATH")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    env |= {"PATH": f"{BIN}{os.pathsep}{env['PATH']}", "PYTHONPATH": str(cwd / "src"), "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        argv, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )
    if check:
        assert done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout[-6000:]}"
    return done.stdout


def clone(path):
    """Copy the working tree to `path`, as a repository of one commit without results. Returns `path`."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, files.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, path / name)
    (path / "dvc.lock").unlink(missing_ok=True)
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    for argv in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "start"]):
        sh(path, "git", *argv)
    return path
