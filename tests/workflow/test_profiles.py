"""Cluster profiles: what the official executor plugins are asked for, with a Slurm made of shell scripts."""

import importlib.util
import os
import re
from pathlib import Path

import pytest
from kube_api import kube_api

from conftest import ROOT, make_project
from guiderail.params import load

SLURM = {
    "sbatch": """echo "$@" >> "$FAKE_SLURM/calls"
n=$(($(wc -l < "$FAKE_SLURM/calls")))
for a in "$@"; do case "$a" in --wrap=*) work="${a#--wrap=}";; esac; done
echo RUNNING > "$FAKE_SLURM/$n.state"
(SLURM_JOB_ID=$n SLURM_CPUS_PER_TASK=1 /bin/sh -c "$work" > "$FAKE_SLURM/$n.log" 2>&1 \
  && echo COMPLETED > "$FAKE_SLURM/$n.state" || echo FAILED > "$FAKE_SLURM/$n.state") < /dev/null > /dev/null 2>&1 &
echo "$n" """,
    "sacct": """for f in "$FAKE_SLURM"/*.state; do echo "$(basename "$f" .state)|$(cat "$f")"; done""",
    "srun": """while [ "${1#-}" != "$1" ]; do shift; done; exec /bin/sh -c "$*" """,
    "sacctmgr": "echo lab",
    "sinfo": "printf 'PARTITION\\nmain*\\ngpu\\n'",
    "scontrol": "echo 'MinJobAge = 300 sec'",
    "squeue": "true",
    "scancel": "true",
}
needs_kubernetes = pytest.mark.skipif(
    importlib.util.find_spec("snakemake_executor_plugin_kubernetes") is None
    or importlib.util.find_spec("snakemake_storage_plugin_fs") is None,
    reason="snakemake-executor-plugin-kubernetes is not installed (pip install 'guiderail[kubernetes]')",
)


@pytest.fixture
def project(tmp_path):
    made = make_project(tmp_path / "project", tmp_path / "ran.txt")
    made.set("sweep.recipe", ["grpo"])
    made.set("sweep.seed", [0])
    return made


def asked(plan: str) -> dict[str, dict[str, str]]:
    """Resources by rule, from `snakemake -n`."""
    found = {}
    for block in re.split(r"\nrule ", plan)[1:]:
        line = re.search(r"resources: (.*)", block)
        threads = re.search(r"threads: (\d+)", block)
        parts = dict(x.split("=", 1) for x in line[1].split(", ")) if line else {}
        found[block.split(":")[0]] = parts | ({"threads": threads[1]} if threads else {"threads": "1"})
    return found


def test_a_job_asks_for_what_params_say(project):
    project.set("resources.rl", {"gpu": 8, "cpus": 2, "mem_mb": 96000, "minutes": 1440})
    found = asked(project.snakemake("-n", "--cores", "4", "--profile", "profiles/slurm", "--workflow-profile", "none"))
    assert {k: found["rl"][k] for k in ("gpu", "mem_mb", "runtime", "threads", "slurm_partition")} == {
        "gpu": "8", "mem_mb": "96000", "runtime": "1440", "threads": "2", "slurm_partition": "gpu",
    }  # fmt: skip
    assert (found["provision"]["gpu"], found["provision"]["slurm_partition"]) == ("0", "main")
    before = load(project.path / "params.yaml").resources
    for stage in ("sft", "prm", "merge", "evaluate", "report", "demos"):
        job = before.of(stage)
        assert (found[stage]["gpu"], found[stage]["mem_mb"]) == (str(job.gpu), str(job.mem_mb)), stage


def test_changed_resources_run_nothing_again(project):
    project.snakemake("--cores", "2", "results/demos")
    project.ran()
    project.set("resources.light", {"gpu": 0, "cpus": 1, "mem_mb": 500, "minutes": 5})
    project.set("plan.gpus", 8)
    assert "Nothing to be done" in project.snakemake("-n", "results/demos")
    assert "up to date" in project.dvc("status", "provision", "demos")


@pytest.mark.timeout(600)
def test_slurm_runs_the_jobs_it_is_asked_to(project, tmp_path):
    """A stage through sbatch, sacct and the plugin's job steps, for real but for Slurm itself."""
    fake = tmp_path / "slurm"
    fake.mkdir()
    for name, body in SLURM.items():
        (fake / name).write_text(f"#!/bin/sh\n{body}\n")
        (fake / name).chmod(0o755)
    path = f"{fake}{os.pathsep}{project.env['PATH']}"
    flags = ["--profile", "profiles/slurm", "--workflow-profile", "none", "--latency-wait", "10"]
    flags += ["--slurm-init-seconds-before-status-checks", "1", "--default-resources", "slurm_account=lab"]
    flags += ["slurm_partition=main"]
    out = project.snakemake(*flags, "--", "results/provision", PATH=path, FAKE_SLURM=str(fake))
    calls = (fake / "calls").read_text().splitlines()
    assert project.ran() == ["provision"], out
    assert len(calls) == 1
    light = load(project.path / "params.yaml").resources.light
    for call in calls:
        assert f"-t {light.minutes}" in call and f"--mem {light.mem_mb}" in call and "-p main" in call, call
        assert "--gpus" not in call


@needs_kubernetes
def test_kubernetes_plans_the_chain(project):
    """A dry run: the plugin's settings are understood. Storage is the project itself, so inputs are found."""
    flags = ["--profile", "profiles/kubernetes", "--workflow-profile", "none"]
    flags += ["--default-storage-prefix", str(project.path)]
    found = asked(project.snakemake("-n", *flags))
    assert {"provision", "demos", "sft", "prm", "rl", "merge", "evaluate", "report"} <= found.keys()
    assert found["rl"]["gpu"] == "1" and found["rl"]["gpu_manufacturer"] == "nvidia"


@needs_kubernetes
@pytest.mark.timeout(600)
def test_kubernetes_hands_on_what_params_ask_for(project, tmp_path):
    """The plugin's own requests, at an API that refuses what a cluster refuses. No pod runs."""
    project.set("resources.sft", {"gpu": 2, "cpus": 3, "mem_mb": 24000, "minutes": 60})
    project.snakemake("--cores", "2", "results/demos")
    flags = ["--profile", "profiles/kubernetes", "--workflow-profile", "none", "--retries", "0"]
    flags += ["--default-storage-prefix", str(project.path), "--seconds-between-status-checks", "1"]
    copy = tmp_path / "bin/rsync"  # the storage plugin's: it copies the sources to where pods would find them
    copy.parent.mkdir()
    copy.write_text('#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nexec cp -rL "$1" "$2"\n')
    copy.chmod(0o755)
    path = f"{copy.parent}{os.pathsep}{project.env['PATH']}"
    with kube_api(tmp_path) as (jobs, config):
        out = project.snakemake(*flags, "--", "results/sft/seed0", check=False, PATH=path, KUBECONFIG=str(config))
    assert len(jobs) == 1, out
    pod = jobs[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    asked, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert (asked["nvidia.com/gpu"], limits["nvidia.com/gpu"]) == ("2", "2")
    assert (asked["memory"], asked["cpu"], limits["cpu"]) == ("24000M", "2850m", "3000m")  # 0.95 of the cores
    assert {"name": "guiderail", "persistentVolumeClaim": {"claimName": "guiderail"}} in pod["volumes"]
    assert {"name": "guiderail", "mountPath": "/mnt/guiderail"} in container["volumeMounts"]
    assert container["image"] == "your-registry/guiderail:latest"
    assert "sft" in container["args"][-1]


def test_the_single_pod_job_runs_the_chain_on_all_its_gpus():
    import yaml

    (job,) = yaml.safe_load_all((ROOT / "profiles/kubernetes/job.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert f"gpu={gpus}" in " ".join(container["command"])
    assert container["workingDir"].startswith(container["volumeMounts"][0]["mountPath"])
    assert Path(ROOT / "profiles/kubernetes/config.yaml").is_file()
