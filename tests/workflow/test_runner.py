"""The stage runner: checks first, publishes whole, goes on after a kill, reads only what is declared."""

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import Project
from guiderail.cli import build
from guiderail.errors import Explained
from guiderail.params import ParamError, Params
from guiderail.stages import runner
from guiderail.stages.meter import Meter
from guiderail.tracking import Tracker
from guiderail.workflow.spec import Job

SLOW = """
import os, time
from pathlib import Path

def provision(ctx):
    state = ctx.work / "state.txt"
    done = int(state.read_text()) if state.exists() else 0
    (ctx.out / "part").write_text("half")
    for i in range(done, 5):
        state.write_text(str(i + 1))
        print("step", i, flush=True)
        time.sleep(float(os.environ["STEP"]))
    (ctx.out / "tasks.json").write_text(str(done))
"""


@pytest.fixture
def slow(project: Project, tmp_path: Path) -> Project:
    """A project whose provision counts to five in its attempt folder."""
    (tmp_path / "slow_stages.py").write_text(SLOW)
    project.env |= {"GUIDERAIL_STAGES_MODULE": "slow_stages", "STEP": "0"}
    project.env["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    return project


def start(project: Project, step: str = "0.5") -> subprocess.Popen[str]:
    """The stage in the background; Ctrl-C reaches it even where our own parent ignores it (`make test &`)."""
    argv = [sys.executable, "-m", "guiderail", "provision"]
    return subprocess.Popen(
        argv,
        cwd=project.path,
        env=project.env | {"STEP": step},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize(("sign", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_stopped_stage_goes_on(slow, sign, status):
    p = start(slow)
    for line in p.stdout:
        if line == "step 2\n":
            break
    p.send_signal(sign)
    assert p.wait(timeout=30) == status
    final = slow.path / "results/provision"
    assert not final.exists()
    assert (slow.path / "results/.provision.partial").exists() == (sign == signal.SIGKILL)
    slow.run("guiderail", "provision")
    assert (final / "tasks.json").read_text() == "3"  # it went on at step 3
    assert not (final / "part").exists() or (final / "part").read_text() == "half"
    assert not (slow.path / ".work").exists()
    assert json.loads((final / "provenance.json").read_text())["cost"]["attempts"] == 2
    assert [f.name for f in (slow.path / "results").iterdir()] == ["provision"]


def test_changed_parameter_starts_afresh(slow):
    p = start(slow, step="60")
    assert p.stdout.readline() == "step 0\n"
    second = slow.run("guiderail", "provision", check=False)
    assert "already running in another process" in second
    p.kill()
    p.wait()
    slow.set("provision.task_seed", 7)
    slow.run("guiderail", "provision")
    assert (slow.path / "results/provision/tasks.json").read_text() == "0"


def test_a_run_with_other_parameters_does_not_touch_an_output_that_is_being_written(slow):
    """Both would write results/.provision.partial."""
    p = start(slow, step="60")
    assert p.stdout.readline() == "step 0\n"
    slow.set("provision.task_seed", 7)
    second = slow.run("guiderail", "provision", check=False)
    assert "provision is already running in another process, which writes results/provision" in second
    assert (slow.path / "results/.provision.partial/part").read_text() == "half"  # the first one's, untouched
    p.kill()
    p.wait()
    slow.run("guiderail", "provision")
    assert (slow.path / "results/provision/tasks.json").read_text() == "0"


def ended(project: Project, *argv: str, **env: str) -> tuple[int, str]:
    """Status and stderr of a command."""
    done = subprocess.run(argv, cwd=project.path, env=project.env | env, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_a_damaged_tasks_json_is_told_by_name(project):
    project.run("guiderail", "provision")
    (project.path / "results/provision/tasks.json").write_text('{"suite": "mini')
    status, told = ended(project, "guiderail", "demos")
    assert status == 1 and len(told.splitlines()) == 1
    assert "results/provision/tasks.json: damaged, not readable as JSON" in told and "guiderail provision" in told
    assert not (project.path / ".work").exists()


@pytest.mark.parametrize("place", ["results", ".work"])
def test_a_file_where_a_folder_should_be_is_told_by_name(project, place):
    (project.path / place).write_text("mine")
    status, told = ended(project, "guiderail", "provision")
    assert status == 1 and len(told.splitlines()) == 1
    assert place in told and "Move it away" in told
    assert (project.path / place).read_text() == "mine"


FULL = """
import errno

def provision(ctx):
    raise OSError(errno.ENOSPC, "No space left on device", str(ctx.out / "tasks.json"))
"""


def test_a_full_disk_is_told_by_name(slow, tmp_path):
    (tmp_path / "slow_stages.py").write_text(FULL)
    status, told = ended(slow, "guiderail", "provision")
    assert (status, told) == (
        1,
        "guiderail provision: results/.provision.partial/tasks.json: the disk is full. Free some space, then run the "
        "same command again; what was finished is kept.\n",
    )


SWALLOWS = """
import sys, time
print("importing", flush=True)
try:
    time.sleep(60)
except BaseException as e:
    ENDING

def provision(ctx):
    print("the stage ran", flush=True)
"""


@pytest.mark.parametrize("ending", ["raise", "pass", "raise ImportError('half a package') from e"])
def test_ctrl_c_during_imports_ends_with_130_whatever_becomes_of_it(slow, tmp_path, ending):
    (tmp_path / "slow_stages.py").write_text(SWALLOWS.replace("ENDING", ending))
    p = subprocess.Popen(
        [sys.executable, "-m", "guiderail", "provision"],
        cwd=slow.path,
        env=slow.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert p.stdout.readline() == "importing\n"
    p.send_signal(signal.SIGINT)
    out, told = p.communicate(timeout=60)
    assert (p.returncode, out) == (130, "")
    assert told == "guiderail provision: stopped; the same command goes on from here\n"


def test_failure_keeps_the_old_output(slow, tmp_path):
    slow.run("guiderail", "provision")
    (tmp_path / "slow_stages.py").write_text("def provision(ctx):\n    (ctx.out / 'x').write_text('new')\n    1 / 0\n")
    out = slow.run("guiderail", "provision", check=False)
    assert "ZeroDivisionError" in out
    assert sorted(f.name for f in (slow.path / "results/provision").iterdir()) == [
        "part",
        "provenance.json",
        "tasks.json",
    ]


def test_provenance_says_where_it_came_from_but_not_on_which_machine(slow):
    slow.run("guiderail", "provision")
    text = (slow.path / "results/provision/provenance.json").read_text()
    record = json.loads(text)
    assert record["git"] == {"commit": slow.git("rev-parse", "HEAD").strip(), "dirty": False, "changed": []}
    assert record["params"]["env.step_ms"] == 300
    assert set(record["params"]) == {"provision", "env.step_ms", "env.desktop.width", "env.desktop.height"}
    assert record["command"] == ["guiderail", "provision"]
    assert record["packages"]["torch"].startswith("2.")
    assert str(slow.path) not in text
    assert os.uname().nodename not in record["packages"].values()
    first = record["inputs"]["src/guiderail/tasks"]
    with (slow.path / "src/guiderail/tasks/types.py").open("a") as f:
        f.write("\n")
    slow.run("guiderail", "provision")
    record = json.loads((slow.path / "results/provision/provenance.json").read_text())
    assert record["git"]["dirty"] and record["git"]["changed"] == ["src/guiderail/tasks/types.py"]
    assert record["inputs"]["src/guiderail/tasks"] != first


def test_undeclared_parameters_cannot_be_read():
    params = Params()
    view = runner.guarded(params, "sft@0", ["sft", "prompt", "model.path"])
    assert view.sft == params.sft
    assert view.model.path == params.model.path
    assert view.env.slots == params.env.slots
    with pytest.raises(ParamError, match=r"stage sft@0 reads params\.rl, which dvc\.yaml does not list"):
        _ = view.rl
    view = runner.guarded(params, "rl@grpo-0", ["rl", "recipes.grpo"])
    assert view.rl_for("grpo").lr == params.rl.lr


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["rl", "--recipe", "grop", "--seed", "0"],
            "--recipe grop: no such recipe in params.yaml. Did you mean grpo or",
        ),
        (["sft", "--seed", "x"], "--seed x: must be a whole number, 0 or more."),
        (
            ["rl", "--recipe", "grpo", "--seed", "99"],
            "--seed 99: not in sweep.seed of params.yaml (0, 1).",
        ),
        (["provision", "--env-pool-url", "localhost:80"], "--env-pool-url localhost:80: must be of the form http://"),
        (["demos"], "input results/provision/tasks.json is missing. Make it with `guiderail provision`"),
        (["sft"], "the following arguments are required: --seed"),
        (["evaluate", "--recipe", "grpo", "--seed", "0", "--benchmark", "miniwab"], "Did you mean miniwob?"),
        (["evaluate", "--model", "gone", "--benchmark", "miniwob"], "evaluate: --model gone: does not exist. Give the"),
        (["provison"], "no command 'provison'. Did you mean provision?"),
        (["preset", "smok"], "preset smok: no such file in workflow/presets. Did you mean smoke?"),
        (["demos", "--params", "no.yaml"], "no.yaml: not found."),
    ],
)
def test_bad_command_is_one_line_and_status_2(project, argv, words):
    done = subprocess.run(["guiderail", *argv], cwd=project.path, env=project.env, capture_output=True, text=True)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (project.path / "results").exists()


FAILING = """
from guiderail.errors import Explained

class NoRain(Explained, RuntimeError):
    pass

def provision(ctx):
    raise NoRain("no rain in May\\nlook at the sky")
"""


def test_an_error_that_explains_itself_ends_with_its_text_alone(slow, tmp_path):
    (tmp_path / "slow_stages.py").write_text(FAILING)
    argv = ["guiderail", "provision"]
    done = subprocess.run(argv, cwd=slow.path, env=slow.env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "guiderail provision: no rain in May\nlook at the sky\n")
    assert not (slow.path / "results/provision").exists()
    env = slow.env | {"GUIDERAIL_TRACEBACK": "1"}
    done = subprocess.run(argv, cwd=slow.path, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" in done.stderr and "NoRain: no rain in May" in done.stderr


@pytest.mark.parametrize(
    "name",
    [
        *("services.ServiceError", "stages.provision.SelfTestFailed", "stages.demos.ExpertMisses"),
        *("envs.chromium.BrowserNotFound", "envs.types.InfraError", "train.gates.GateError"),
        *(
            "train.optim.TrainableError",
            "train.optim.NotFinite",
            "models.loading.CheckpointError",
            "tasks.splits.OverlapError",
        ),
        *("checkpoints.manifest.ManifestError", "checkpoints.merge.MergeError", "checkpoints.save.StateError"),
        *("checkpoints.verify.VerifyError", "checkpoints.weights.WeightsError", "report.data.ReportError"),
    ],
)
def test_errors_of_the_chain_explain_themselves(name):
    module, cls = f"guiderail.{name}".rsplit(".", 1)
    assert issubclass(getattr(importlib.import_module(module), cls), Explained)


def test_meter_sees_children_and_earlier_attempts(tmp_path):
    path = tmp_path / "cost.json"
    hog = "import time; x = bytearray(150 * 2**20); time.sleep(9)"
    with Meter(path) as m:
        child = subprocess.Popen([sys.executable, "-c", hog])
        time.sleep(4.0)
        child.kill()
        child.wait()
    first = m.stop()
    assert first["peak_rss_bytes"] > 150 * 2**20
    assert first["peak_pss_bytes"] > 150 * 2**20
    with Meter(path) as again:
        pass
    cost = again.stop()
    assert cost["attempts"] == 2
    assert cost["seconds"] >= first["seconds"] > 3.9
    assert cost["peak_rss_bytes"] == first["peak_rss_bytes"]


def test_publish_replaces_as_a_whole(tmp_path):
    final, out = tmp_path / "a" / "final", tmp_path / "a" / ".final.partial"
    final.mkdir(parents=True)
    (final / "old").touch()
    out.mkdir()
    (out / "new").touch()
    runner.publish(out, final)
    assert [f.name for f in final.iterdir()] == ["new"]
    assert [f.name for f in final.parent.iterdir()] == ["final"]


def test_help_is_quick_and_teaches(project):
    script = "import sys; from guiderail.cli import build; build(); print(*[m for m in sys.modules if '.' not in m])"
    loaded = set(project.run("python", "-c", script).split())
    assert not loaded & {"torch", "mlflow", "transformers", "pydantic", "yaml", "numpy", "dvc", "snakemake"}
    page = project.run("guiderail", "rl", "--help")
    for words in (
        "reads",
        "results/sft/seedS/checkpoint",
        "writes",
        "example",
        "guiderail rl --recipe grpo --seed 0",
        "then",
    ):
        assert words in page


@pytest.mark.parametrize(
    ("command", "wanted"),
    [("rl", {"--env-pool-url", "--engine-url"}), ("evaluate", {"--env-pool-url"}), ("sft", set())],
)
def test_only_the_services_that_can_be_attached_are_offered(command, wanted):
    (sub,) = (a for a in build()._actions if a.dest == "command")
    offered = {o for action in sub.choices[command]._actions for o in action.option_strings if o.endswith("-url")}
    assert offered == wanted
    assert wanted <= {f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(runner.Attach)}


def test_context_progress_without_terminal(tmp_path, capsys):
    from guiderail.stages.context import StageContext

    tracker = Tracker(tmp_path / "c.jsonl", enabled=False)
    ctx = StageContext(Params(), "rl", {"recipe": "grpo", "seed": "3"}, tmp_path, tmp_path, tmp_path, tracker)
    assert (ctx.seed, ctx.label) == (3, "rl@grpo-3") == (3, Job("rl", {"recipe": "grpo", "seed": "3"}).address)
    with ctx.progress(3) as bar:
        for _ in range(3):
            bar.update(1, loss=0.25)
    assert capsys.readouterr().err.splitlines()[-1] == "rl@grpo-3 3/3  loss 0.25"
