"""A project like ours with dummy stages: the real dvc.yaml, Snakefile, rules and package, run for real by both
engines.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
STAGES = ["provision", "demos", "sft", "prm", "rl", "merge", "evaluate", "report"]
# jobs of a project of one seed
FROM_RL = ["evaluate@grpo-0-miniwob", "evaluate@grpo_kl-0-miniwob", "merge@grpo-0", "merge@grpo_kl-0", "report"]
FROM_RL += ["rl@grpo-0", "rl@grpo_kl-0"]
PRM = ["prm@grpo-0", "prm@grpo_kl-0"]
ALL = sorted([*FROM_RL, *PRM, "provision", "demos", "sft@0"])


class Project:
    """A checkout in `path`. `ran()` tells which stages were executed since the last call."""

    def __init__(self, path: Path, log: Path) -> None:
        self.path, self.log = path, log
        self.env = {
            **{
                k: v for k, v in os.environ.items() if not k.startswith(("DVC_", "GUIDERAIL_", "MLFLOW_", "SNAKEMAKE_"))
            },
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{path / 'src'}{os.pathsep}{ROOT / 'tests/workflow'}",
            "GUIDERAIL_STAGES_MODULE": "dummy_stages",
            "RUNLOG": str(log),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "DVC_NO_ANALYTICS": "1",
        }
        log.touch()

    def run(self, *argv: str, check: bool = True, **env: str) -> str:
        done = subprocess.run(
            argv,
            cwd=self.path,
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        if check:
            assert done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def snakemake(self, *args: str, check: bool = True, **env: str) -> str:
        return self.run("snakemake", *args, check=check, **env)

    def dvc(self, *args: str, check: bool = True, **env: str) -> str:
        return self.run("dvc", *args, check=check, **env)

    def git(self, *args: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        return self.run("git", *who, *args)

    def commit(self, message: str) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", message)

    def ran(self) -> list[str]:
        """Addresses executed since the last call, sorted."""
        lines = sorted(self.log.read_text().split())
        self.log.write_text("")
        return lines

    def set(self, dotted: str, value: object) -> None:
        """Change one value of params.yaml."""
        path = self.path / "params.yaml"
        tree = yaml.safe_load(path.read_text())
        *above, last = dotted.split(".")
        node = tree
        for k in above:
            node = node[k]
        node[last] = value
        path.write_text(yaml.safe_dump(tree, sort_keys=False))

    def agree(self) -> None:
        """Both engines say that nothing is to be done, and nothing is run by asking."""
        self.ran()
        plan = self.snakemake("-n")
        assert "Nothing to be done" in plan, plan
        status = self.dvc("status")
        assert "up to date" in status, status
        repro = self.dvc("repro")
        assert "up to date" in repro, repro
        assert self.ran() == []

    def popen(self, *argv: str, **env: str) -> subprocess.Popen[bytes]:
        """Start in the background, in a session of its own."""
        null = subprocess.DEVNULL
        return subprocess.Popen(
            argv, cwd=self.path, env=self.env | env, stdout=null, stderr=null, start_new_session=True
        )


def make_project(path: Path, log: Path, git: bool = True) -> Project:
    """A small copy of the repository at `path`: two seeds, two recipes."""
    skip = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "static")
    for folder in ("workflow", "profiles", "plugins", "src/guiderail"):
        shutil.copytree(ROOT / folder, path / folder, ignore=skip)
    for file in ("Snakefile", "dvc.yaml", "params.yaml", ".dvcignore", ".gitignore", ".dvc/config", ".dvc/.gitignore"):
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, path / file)
    for stage in STAGES:
        (path / f"src/guiderail/stages/{stage}.py").touch()
    model = path / "assets/tiny-vlm"
    without = shutil.ignore_patterns("model.safetensors", "manifest.json")
    shutil.copytree(ROOT / "assets/tiny-vlm", model, ignore=without)
    (model / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")  # whole, but empty
    project = Project(path, log)
    project.run("guiderail", "preset", "default", "--force")
    project.set("sweep.recipe", ["grpo", "grpo_kl"])
    project.set("sweep.seed", [0, 1])
    project.set("recipes", {"grpo": {}, "grpo_kl": {"kl_coef": 0.01}})
    project.set("tracking.enabled", False)
    if git:
        project.git("init", "-q")
        project.commit("start")
    return project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A fresh project; what a test leaves running in it is ended."""
    return make_project(tmp_path / "project", tmp_path / "ran.txt")


@pytest.fixture
def small(project: Project) -> Project:
    """One seed: twelve jobs."""
    project.set("sweep.seed", [0])
    project.commit("one seed")
    return project


def kill_session(process: subprocess.Popen[bytes], sign: int = signal.SIGKILL) -> None:
    """Signal the one process only, as `kill` does."""
    os.kill(process.pid, sign)


def jobs_of(plan: str) -> set[str]:
    """Addresses in the shell lines of `snakemake -n -p`."""
    return set(re.findall(r"guiderail\.workflow\.job (\S+) --log", plan))
