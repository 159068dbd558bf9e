"""The two engines agree: the same jobs, and each accepts the other's work. Both are run for real, on dummy stages."""

import json
import os
import signal
import time

import psutil
import pytest

from conftest import ROOT, Project, jobs_of, kill_session, make_project
from guiderail.workflow.spec import Spec

pytestmark = pytest.mark.timeout(3000)

FROM_RL = ["evaluate@grpo-0-miniwob", "evaluate@grpo_kl-0-miniwob", "merge@grpo-0", "merge@grpo_kl-0", "report"]
FROM_RL += ["rl@grpo-0", "rl@grpo_kl-0"]
PRM = ["prm@grpo-0", "prm@grpo_kl-0"]
ALL = sorted([*FROM_RL, *PRM, "provision", "demos", "sft@0"])


@pytest.fixture
def small(project: Project) -> Project:
    """One seed: twelve jobs."""
    project.set("sweep.seed", [0])
    project.commit("one seed")
    return project


def test_parity(project):
    """Same addresses, inputs, outputs: what Snakemake plans against what DVC has indexed (both are asked)."""
    script = """
import json
from dvc.repo import Repo
stages = Repo(".").index.stages
deps = lambda s: [d.def_path for d in s.deps if type(d).__name__ != "ParamsDependency"]
print(json.dumps({s.addressing: [deps(s), [o.def_path for o in s.outs]] for s in stages}))
"""
    dvc = json.loads(project.run("python", "-c", script).splitlines()[-1])
    plan = project.snakemake("-n", "-F", "-p", "--nolock", "--quiet", "host", GUIDERAIL_LEDGER="off")
    jobs = {}
    for block in plan.split("\nrule ")[1:]:
        fields = dict(
            line.strip().split(": ", 1) for line in block.splitlines() if line.startswith(("    input:", "    output:"))
        )
        if block.startswith("all:"):
            continue
        (address,) = jobs_of(block)
        jobs[address] = (set(fields["input"].split(", ")), set(fields["output"].split(", ")))
    assert jobs.keys() == dvc.keys()
    assert len(jobs) == 1 + 1 + 2 + 4 + 4 + 4 + 4 + 1
    made = {o: a for a, (_, outs) in dvc.items() for o in outs}
    for address, (inputs, outputs) in jobs.items():
        deps, outs = dvc[address]
        assert outputs == set(outs), address
        expected = set()
        for dep in deps:  # itself, the output it lies in, or everything below it
            inside = {o for o in made if dep == o or dep.startswith(o + "/") or o.startswith(dep + "/")}
            below = {f.relative_to(project.path).as_posix() for f in (project.path / dep).rglob("*.*") if f.is_file()}
            expected |= inside or {f for f in below if "__pycache__" not in f} or {dep}
        assert inputs == expected, address


def test_dvc_yaml_declares_the_paths_that_stages_use(project, monkeypatch):
    from guiderail.stages import paths

    monkeypatch.chdir(project.path)
    spec = Spec.read()
    for job in spec.jobs():
        assert spec.job_outs(job) == [getattr(paths, job.stage)(**job.axes).as_posix()]


def test_battery(small, tmp_path):
    """The invariant, step by step in one project."""
    p = small
    p.snakemake("--cores", "2")
    assert p.ran() == ALL
    p.agree()
    assert p.git("status", "--short").split() == ["??", "dvc.lock"]
    assert [f for f in (p.path / "results").rglob(".*") if f.name != ".snakemake_timestamp"] == []
    p.commit("done by snakemake")

    p.set("rl.lr", 2.0e-4)  # one parameter, under Snakemake
    p.snakemake("--cores", "2")
    assert p.ran() == FROM_RL
    p.agree()

    p.set("rl.lr", 3.0e-4)  # the same parameter, under DVC
    p.dvc("repro")
    assert p.ran() == FROM_RL
    p.agree()

    p.set("env.slots", 3)  # a knob of the machine
    p.set("model.threads", 2)
    p.agree()
    p.git("checkout", "-q", "params.yaml")
    p.set("tracking.enabled", False)
    p.set("rl.lr", 3.0e-4)

    p.set("recipes", {"grpo": {}, "grpo_kl": {"kl_coef": 0.5}})  # one recipe only
    p.dvc("repro")
    assert p.ran() == ["evaluate@grpo_kl-0-miniwob", "merge@grpo_kl-0", "prm@grpo_kl-0", "report", "rl@grpo_kl-0"]
    p.agree()

    p.set("rl.lr", 2.0e-4)  # a value of before: restored from the run cache under Snakemake
    p.set("recipes", {"grpo": {}, "grpo_kl": {"kl_coef": 0.01}})
    p.snakemake("--cores", "2")
    assert p.ran() == ["report"] or p.ran() == []
    p.agree()

    p.set("sweep.recipe", ["grpo"])  # a point taken out of the sweep
    p.dvc("repro")
    assert p.ran() == ["report"]
    p.agree()
    p.set("sweep.recipe", ["grpo", "grpo_kl"])
    p.dvc("repro")
    p.agree()

    p.dvc("remote", "add", "-q", "-d", "store", str(tmp_path / "store"))  # fresh clone, pulled cache
    p.dvc("push", "-q")
    p.commit("pushed")
    p.git("clone", "-q", str(p.path), str(tmp_path / "clone"))
    clone = Project(tmp_path / "clone", tmp_path / "ran2.txt")
    clone.dvc("pull", "-q")
    clone.agree()


def test_failure_and_kill(small):
    """A stage fails under one engine, the engine is killed -9 later: the other does only the rest."""
    p = small
    p.snakemake("--cores", "2", "-k", "--retries", "0", check=False, DUMMY_FAIL="rl@grpo_kl-0")
    done = [a for a in ALL if ("grpo_kl" not in a or a in PRM) and a != "report"]
    assert sorted(set(p.ran()) - {"rl@grpo_kl-0"}) == done

    running = p.popen("snakemake", "--cores", "2", DUMMY_SLEEP="4")
    deadline = time.monotonic() + 120
    while "rl@grpo_kl-0" not in p.log.read_text():
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.1)
    kill_session(running, signal.SIGKILL)
    running.wait()
    end = time.monotonic() + 20  # nothing of it goes on
    while left := [q for q in psutil.process_iter(["cmdline"]) if _works_on(q, p)]:
        assert time.monotonic() < end, [q.info["cmdline"] for q in left]
        time.sleep(0.2)
    assert not (p.path / "results/rl/grpo_kl/seed0").exists()
    p.ran()
    p.snakemake("--unlock")
    p.dvc("repro")
    assert p.ran() == [a for a in ALL if ("grpo_kl" in a and a not in PRM) or a == "report"]
    p.agree()
    leftovers = [f for f in (p.path / "results").rglob(".*") if f.name.endswith((".partial", ".old"))]
    assert leftovers == []
    assert not (p.path / ".work").exists() or not any((p.path / ".work").rglob("lock"))


def _works_on(process, project):
    """A stage, DVC or job process with its working directory in the project."""
    try:
        return process.cwd() == str(project.path) and process.pid != os.getpid()
    except psutil.Error:
        return False


def test_without_git_and_without_dvc_lock(tmp_path):
    """No git: the setup command sets core.no_scm, and both engines work."""
    p = make_project(tmp_path / "plain", tmp_path / "ran.txt", git=False)
    p.set("sweep.recipe", ["grpo"])
    p.set("sweep.seed", [0])
    p.run("guiderail", "setup", "--no-browser", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    p.dvc("repro")
    assert len(p.ran()) == 8
    p.agree()


def test_snakemake_refuses_before_any_work(small):
    p = small
    for key, value, words in [
        ("rl.group_size", 1, "rl.group_size = 1: must be at least 2"),
        ("model.path", "nowhere", "model.path = 'nowhere': does not exist"),
        ("provision.suite", "minwob", "Did you mean miniwob?"),
    ]:
        before = (p.path / "params.yaml").read_text()
        p.set(key, value)
        out = p.snakemake("--cores", "1", check=False)
        assert words in out
        assert "Traceback" not in out
        (p.path / "params.yaml").write_text(before)
    out = p.snakemake("-n", "--config", "report={title: other}", check=False)
    assert "--config does not reach the stages" in out
    assert p.ran() == []


def test_lint_format_report_and_slurm(small):
    """What only Snakemake has: lint, format, the offline report with captions, the cluster profile."""
    p = small
    assert "good condition" in p.snakemake("--lint")
    p.run("snakefmt", "--check", "Snakefile", "workflow")
    plan = p.snakemake("-n", "--profile", "profiles/slurm", "--workflow-profile", "none")
    assert "total" in plan
    p.set("sweep.recipe", ["grpo"])
    p.snakemake("--cores", "2")
    p.snakemake("--report", "report.html")
    html = (p.path / "report.html").read_text()
    assert "success.svg" in html
    assert "Tables, curves and film strips over the whole sweep" in html
    assert "https://cdn" not in html


def test_slurm_profile_is_not_held_to_one_gpu(monkeypatch):
    """The profile beside the Snakefile is merged last; `--workflow-profile none` leaves it out."""
    from snakemake.cli import parse_args

    monkeypatch.chdir(ROOT)
    _, args = parse_args(["--profile", "profiles/slurm", "--workflow-profile", "none"])
    assert args.executor == "slurm"
    assert args.resources["gpu"].value > 1
