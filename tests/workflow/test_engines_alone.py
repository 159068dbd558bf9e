"""What one engine refuses or has alone, and both without git; run for real, on dummy stages."""

import pytest

from conftest import ROOT, make_project

pytestmark = pytest.mark.timeout(3000)


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
