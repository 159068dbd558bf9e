"""`guiderail merge verify` and `merge models` as commands: verdicts, exit status, the gate, what is refused early."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from guiderail.actions.types import Click
from guiderail.actions.wire import action_to_json
from guiderail.bench import records
from guiderail.checkpoints import manifest as m
from guiderail.cli import main
from guiderail.params_train import Lora, Rl, Sft
from guiderail.stages import evaluate, merge_models, paths
from guiderail.tasks import splits
from guiderail.workflow import presets

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoints"))
from test_demos import write as write_demos
from test_merge import train
from worlds import PROCESSOR, make_model

NORM = "model.language_model.norm.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A checkout's files with a lineage base -> sft -> a, b; read only."""
    root = tmp_path_factory.mktemp("project")
    make_model(PROCESSOR, 0).save_pretrained(root / "base")
    PROCESSOR.save_pretrained(root / "base")
    train(root / "base", root / "sft", Sft(mode="full"), "sft", ["miniwob/s/1/0"], root / "work")
    for seed, name in enumerate("ab"):
        train(root / "sft", root / name, Rl(mode="lora", lora=Lora(r=4, alpha=8)), "rl", [], root / "work", seed)
    (root / "results/demos").mkdir(parents=True)
    write_demos(root / "results/demos", [[(action_to_json(Click(0.5, 0.25)), "go")]])
    return root


@pytest.fixture
def project(made, tmp_path, monkeypatch):
    root = Path(__file__).parents[2]
    for name in ("dvc.yaml", "workflow"):
        (tmp_path / name).symlink_to(root / name)
    (tmp_path / "src").symlink_to(root / "src")
    monkeypatch.chdir(tmp_path)
    p = presets.preset("default")
    off = p.tracking.model_copy(update={"enabled": False})
    plain = p.model_copy(update={"tracking": off, "model": p.model.model_copy(update={"device": "cpu"})})
    Path("params.yaml").write_text(presets.render(plain, "x"))
    shutil.copytree(made / "results", "results")
    return made


def changed(folder: Path, to: Path, by: float) -> Path:
    """A copy of a checkpoint with one number changed, signed anew."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    tensors[NORM][0] += by
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    if (to / m.FILE).is_file():
        m.write(to, m.read(to))
    return to


def test_verify_says_equal(project, capsys):
    assert main(["merge", "verify", str(project / "sft"), str(project / "sft")]) == 0
    out = capsys.readouterr().out
    assert out.rstrip().endswith("EQUAL, bit for bit") and "same likeliest token 100.00 %" in out
    assert "max 0, mean 0" in out


def test_verify_names_what_differs_and_fails(project, tmp_path, capsys):
    other = changed(project / "sft", tmp_path / "other", 0.25)
    with pytest.raises(SystemExit) as e:
        main(["merge", "verify", str(project / "sft"), str(other)])
    out = capsys.readouterr().out
    assert e.value.code == 1 and "DIFFERENT: values of 1 tensors beyond 0" in out and "logits by" in out
    assert f"{NORM}: max 0.25" in out
    with pytest.raises(SystemExit):  # parameters within the bound, logits not
        main(["merge", "verify", str(project / "sft"), str(other), "--tolerance", "1", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["same"] is False and len(told["faults"]) == 1 and told["faults"][0].startswith("logits by")
    assert told["parameters"]["max"] == pytest.approx(0.25)
    assert main(["merge", "verify", str(project / "sft"), str(other), "--tolerance", "1", "--logits", "100"]) == 0
    assert "EQUAL within tolerance" in capsys.readouterr().out


def test_verify_of_an_adapter_and_its_merge(project, tmp_path, capsys):
    from guiderail.checkpoints.merge import merge_lora

    merge_lora(project / "a", tmp_path / "merged")
    assert main(["merge", "verify", str(project / "a"), str(tmp_path / "merged"), "--tolerance", "1e-6"]) == 0
    assert "EQUAL" in capsys.readouterr().out


def test_verify_needs_frames_or_is_told_to_do_without(project, capsys):
    shutil.rmtree("results/demos")
    assert main(["merge", "verify", str(project / "sft"), str(project / "sft")]) == 2
    assert "no demos.jsonl there" in capsys.readouterr().err
    assert main(["merge", "verify", str(project / "sft"), str(project / "sft"), "--no-logits"]) == 0
    assert "logits: not compared" in capsys.readouterr().out


def test_verify_refuses_what_is_not_there_before_it_loads_anything(project, tmp_path):
    """In a process of its own, which has to end without torch."""
    (tmp_path / "empty").mkdir()
    for a, b, words in (("sft", "nowhere", "nowhere: no such checkpoint folder."), ("empty", "sft", "no checkpoint (")):
        pair = [str((tmp_path if n == "empty" else project) / n) for n in (a, b)]
        code = (
            "import sys; from guiderail.cli import main\n"
            f"status = main(['merge', 'verify', *{pair!r}])\n"
            "sys.exit(99 if {'torch', 'transformers'} & set(sys.modules) else status)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 2 and words in done.stderr, done.stderr


def models(project, *more: str) -> list[str]:
    return ["merge", "models", str(project / "a"), str(project / "b"), "--out", "merged", *more]


def test_models_without_a_gate(project):
    assert main(models(project, "--method", "average", "--gate", "off")) == 0
    found = m.verify_files(Path("merged"))
    assert found.kind == "merged" and [x["weight"] for x in found.method["models"]] == [1.0, 1.0]
    assert json.loads(Path("merged/verify.json").read_text())["gate"] == "off"
    assert main(models(project, "--method", "average", "--gate", "off")) == 2  # it exists


class Played:
    """Stands in for an evaluation: wins of 40 instances by checkpoint."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = rows


@pytest.fixture
def plays(monkeypatch):
    """Let the merged model win `plays["merged"]` of 40, the others 30."""
    wins = {"merged": 30}
    Path("results/provision").mkdir(parents=True, exist_ok=True)
    paths.tasks_json().write_text("{}")

    def play(ctx, subjects, manifest, benchmark):
        assert benchmark == "miniwob"
        return {
            s.name: Played(
                records.table(
                    {c: pd.NA for c in records.COLUMNS}
                    | {"checkpoint": s.name, "split": "fresh", "template": "t", "task": f"m/t/{i}/0", "episode": 0}
                    | {"success": i < wins.get(s.name, 30), "kind": "failure", "cause": "c"}
                    for i in range(40)
                )
            )
            for s in subjects
        }

    monkeypatch.setattr(evaluate, "play", play)
    monkeypatch.setattr(splits, "load_manifest", lambda path: {})
    monkeypatch.setattr(merge_models.bench, "check_subject", lambda manifest, folder: m.verify_files(folder).trained_on)
    return wins


def test_a_merge_as_good_as_its_models_is_kept(project, plays):
    assert main(models(project, "--method", "ties", "--density", "0.5")) == 0
    told = json.loads(Path("merged/verify.json").read_text())
    assert told["worse_than"] == [] and len(told["differences"]) == 2 and told["benchmark"] == "miniwob"
    assert m.read(Path("merged")).method["density"] == 0.5


def test_a_worse_merge_is_refused_unless_told(project, plays, capsys):
    plays["merged"] = 5
    asked = models(project, "--method", "task_arithmetic", "--scale", "0.5")
    assert main(asked) == 1
    err = capsys.readouterr().err
    assert "worse than what it was made of, so it is not kept" in err and "--gate warn" in err
    assert not Path("merged").exists() and not list(Path().glob(".merged*"))
    assert main([*asked, "--gate", "warn"]) == 0
    assert len(json.loads(Path("merged/verify.json").read_text())["worse_than"]) == 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--method", "average", "--weight", "1"], "--weight: given 1 times for 2 models"),
        (["--method", "average", "--scale", "2"], "method average does not read them"),
        (["--method", "task_arithmetic", "--density", "0.5"], "method task_arithmetic does not read it"),
        (["--method", "ties", "--density", "0"], "--density above 0"),
        (["--method", "ties", "--base", "nowhere"], "nowhere: no such checkpoint folder"),
        (["--method", "ties"], "results/provision/tasks.json is missing"),
        (["--method", "ties", "--benchmark", "minwob"], "no such benchmark"),
    ],
)
def test_refused_before_any_work(project, capsys, more, words):
    assert main(models(project, *more)) == 2
    assert words in capsys.readouterr().err and not Path("merged").exists()


def test_the_stage_still_needs_its_axes(project, capsys):
    assert main(["merge"]) == 2
    assert "needs --recipe and --seed" in capsys.readouterr().err
