"""The two engines agree: the same jobs, and each accepts the other's work. Both are run for real, on dummy stages."""

import json

import pytest

from conftest import ALL, FROM_RL, Project, jobs_of
from guiderail.workflow.spec import Spec

pytestmark = pytest.mark.timeout(3000)


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
