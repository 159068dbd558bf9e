"""Early refusals: each names what is wrong, where, and what to do, and imports nothing heavy."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from guiderail.commands import STAGES
from guiderail.models.folder import CheckpointError, check_folder, check_weights
from guiderail.params import ParamError, parse
from guiderail.stages import checks
from guiderail.workflow.spec import Job, Spec

ROOT = Path(__file__).parents[2]
BASE = ROOT / "assets/tiny-vlm"


def test_the_stages_that_play_are_those_whose_help_offers_a_pool():
    assert {n for n, s in STAGES.items() if "env-pool" in s.uses} == checks.USES_POOL


def refusal(check, *args) -> str:
    with pytest.raises(ParamError) as e:
        check(*args)
    return e.value.message


@pytest.fixture
def base(tmp_path):
    """A copy of the base to damage."""
    return Path(shutil.copytree(BASE, tmp_path / "base"))


def params(base=BASE, **sections):
    return parse({"model": {"path": str(base)}, **sections})


@pytest.mark.parametrize(
    ("url", "token", "words"),
    [
        ("localhost:80", "t", "must be of the form http://host:port"),
        ("http://", "t", "must be of the form http://host:port"),
        ("http://h:port", "t", "must be of the form http://host:port"),
        ("http://h:99999", "t", "must be of the form http://host:port"),
        ("http://h:0", "t", "must be of the form http://host:port"),
        ("http://[::1", "t", "must be of the form http://host:port"),
        ("ftp://h:1", "t", "must be of the form http://host:port"),
        ("http://h:80/?a=1", "t", "must be of the form http://host:port"),
        ("http://h:80", "", "GUIDERAIL_POOL_TOKEN is not set"),
    ],
)
def test_a_pool_address_that_is_none(monkeypatch, url, token, words):
    monkeypatch.setenv("GUIDERAIL_POOL_TOKEN", token)
    assert words in refusal(checks.check_pool_url, url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:18080", "https://pool.example/path/", "http://[::1]:80", None])
def test_a_pool_address(monkeypatch, url):
    monkeypatch.setenv("GUIDERAIL_POOL_TOKEN", "t")
    checks.check_pool_url(url)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"recipe": "grpo", "seed": "99"}, "--seed 99: not in sweep.seed of params.yaml (0, 1). Add it there"),
        ({"recipe": "grpo", "seed": "007"}, "--seed 007: write it as 7; it names folders."),
        ({"recipe": "grpo", "seed": "-1"}, "--seed -1: must be a whole number, 0 or more."),
        ({"recipe": "grop", "seed": "0"}, "--recipe grop: no such recipe in params.yaml. Did you mean grpo"),
        ({"recipe": "other", "seed": "0"}, "--recipe other: not in sweep.recipe of params.yaml (grpo)."),
    ],
)
def test_an_axis_outside_the_sweep(axes, words):
    p = params(sweep={"seed": [0, 1]}, recipes={"grpo": {}, "other": {}})
    spec = Spec(p.model_dump(mode="json"), ROOT / "dvc.yaml")
    assert refusal(checks.check_axes, p, spec, Job("rl", axes)).startswith(words)


def test_a_gpu_that_is_not_there():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    said = refusal(checks.check_device, params(model={"path": str(BASE), "device": "cuda:1"}))
    assert said == (
        "model.device = 'cuda:1': torch sees no GPU (driver, or a build of torch without CUDA). Choose auto, cpu."
    )


def test_a_browser_that_is_no_program(tmp_path):
    (tmp_path / "b").write_text("")
    for path in (tmp_path / "b", tmp_path / "none", tmp_path):
        assert "no program there" in refusal(checks.check_browser, params(env={"browser": str(path)}))
    checks.check_browser(params(env={"browser": sys.executable}))
    checks.check_browser(params())


def test_the_codec_must_fit_the_tokenizer():
    checks.check_model(params())
    said = refusal(checks.check_model, params(prompt={"codec": "qwen3vl"}))
    assert said.startswith("params.yaml: prompt.max_new_tokens = 28: a click in codec qwen3vl takes ")
    checks.check_model(params(prompt={"codec": "qwen3vl", "max_new_tokens": 256, "system": "full"}))


def test_a_system_prompt_that_leaves_no_room(base):
    config = json.loads((base / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 200
    (base / "config.json").write_text(json.dumps(config))
    checks.check_model(params(base))
    said = refusal(checks.check_model, params(base, prompt={"system": "full"}))
    assert "prompt.system = 'full'" in said and "reads 200" in said


def test_a_tokenizer_that_cannot_spell_the_codec(base):
    """A tokenizer that lower-cases."""
    tree = json.loads((base / "tokenizer.json").read_text())
    tree["normalizer"] = {"type": "Lowercase"}
    (base / "tokenizer.json").write_text(json.dumps(tree))
    assert "cannot write it" in refusal(checks.check_model, params(base))


def test_a_tokenizer_of_another_family(base):
    text = (base / "tokenizer.json").read_text().replace("<|vision_start|>", "<|other|>")
    (base / "tokenizer.json").write_text(text)
    assert "lacks <|vision_start|>; is it a Qwen-VL one?" in refusal(checks.check_model, params(base))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda b: (b / "processor_config.json").unlink(), "missing processor_config.json or preprocessor_config.json"),
        (lambda b: (b / "tokenizer.json").unlink(), "missing tokenizer.json or vocab.json"),
        (lambda b: (b / "tokenizer.json").write_text("{"), "tokenizer.json: not a tokenizer"),
        (lambda b: (b / "config.json").write_text("{"), "config.json: not readable as JSON"),
        (lambda b: (b / "config.json").write_text("[]"), "config.json: must hold a mapping, holds list"),
        (lambda b: (b / "config.json").write_text('{"model_type": "llama"}'), "model_type is 'llama'"),
        (lambda b: (b / "model.safetensors.index.json").write_text("{}"), "names no weights"),
    ],
)
def test_a_model_folder_that_lacks_something(base, damage, words):
    damage(base)
    said = refusal(checks.check_model, params(base))
    assert words in said and said.startswith("params.yaml: model.path = ")


def test_a_model_given_by_an_option_is_blamed_on_the_option(base, tmp_path):
    """evaluate --model: params.yaml has not named that path."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, words in (("gone", "does not exist"), ("file", "is no folder"), ("empty", "has no config.json")):
        said = refusal(checks.check_model, params(tmp_path / name), "--model")
        assert said.startswith(f"--model {tmp_path / name}: {words}. Give the folder of a Qwen3-VL checkpoint or of an")
        assert "params.yaml" not in said
    (base / "config.json").write_text('{"model_type": "llama"}')
    said = refusal(checks.check_model, params(base), "--model")
    assert said.startswith(f"--model {base}: ") and "model_type is 'llama'" in said
    shutil.copy(BASE / "config.json", base)
    said = refusal(checks.check_model, params(base, prompt={"codec": "qwen3vl"}), "--model")
    assert said.startswith(f"--model {base}: prompt.max_new_tokens = 28: ")
    (tmp_path / "empty" / "adapter_config.json").write_text("{}")
    checks.check_model(params(tmp_path / "empty"), "--model")  # loaded with its parent, and refused there


@pytest.mark.parametrize(("cut", "words"), [(-100, "cut short"), (3, "not a whole"), (0, "not a whole"), (20, "not a")])
def test_weights_that_are_cut(base, cut, words):
    file = base / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=f"model.safetensors: {words}"):
        check_folder(base)


def test_weights_with_a_damaged_header_or_more_than_it_says(base):
    file = base / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole + b"x")
    with pytest.raises(CheckpointError, match="longer than its header says"):
        check_weights(file)
    file.write_bytes(whole[:8] + b"x" + whole[9:])
    with pytest.raises(CheckpointError, match="header is damaged"):
        check_weights(file)


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from guiderail.cli import main\n"
        "assert main(['pretrain', '--set', 'nonsense=1']) == 2\n"
        "from guiderail.params import load; from guiderail.stages import checks; checks.check_all(load())\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "transformers", "mlflow", "pandas"} & set(done.stdout.split())
    assert "--set nonsense=1: no such option." in done.stderr
