"""`guiderail check`: every preset passes without a GPU; what cannot fit or run is refused, with what to change."""

from pathlib import Path

import pytest

from guiderail.cli import main
from guiderail.params import ParamError, parse
from guiderail.stages import capacity_check
from guiderail.workflow import presets

ROOT = Path(__file__).parents[2]
LARGE = ["qwen3vl-4b-1gpu", "qwen3vl-8b-8gpu-grpo", "qwen3vl-8b-8gpu-prm", "ui-s1-7b-8gpu"]


@pytest.fixture(autouse=True)
def root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # no GPU here, whatever runs the tests


def test_every_preset_passes(capsys):
    assert main(["check", "--preset", "all"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line in presets.names()] == presets.names()
    assert out.count("\n  ok\n") == len(presets.names()) - len(LARGE) and "PROBLEM" not in out
    assert out.count("\n  ok, as a plan for another machine, with 8 GPUs: this one has none\n") == 3
    assert out.count("\n  ok, as a plan for another machine, with 1 GPU: this one has none\n") == 1
    assert "  UI-S1's semi-online RL on eight GPUs of 80 GB, with Qwen3-VL-8B in place of its Qwen2.5-VL-7B.\n" in out
    assert "Little's law" in out and "trajectories/h" in out


def changed(name, **sections):
    """A preset with keys changed, `section={"key": value}`."""
    tree = presets.preset(name).model_dump(mode="json")
    return parse(presets.merged(tree, sections))


def problems(p):
    _, reports = capacity_check.check(p)
    return [x for r in reports for x in r.problems]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"recompute": False}}, "most is activations"),
        ({"plan": {"gpu_memory_gb": 24.0}}, "do not fit into 92% of 24.0 GB"),
        ({"trainer": {"kind": "local"}}, "most is optimizer (98.3): rl.mode: lora"),  # 8.19 G numbers of 12 bytes
        ({"trainer": {"kind": "local"}, "rl": {"mode": "lora"}}, "lower env.slots (32)"),
        ({"trainer": {"gpus": 0}}, "trainer.gpus = 0, plan.gpus = 8: its processes would run on CPUs"),
        ({"engine": {"kind": "vllm", "gpu_memory": 0.2}}, "raise engine.gpu_memory (0.2)"),
        ({"sft": {"mode": "full"}, "plan": {"gpu_memory_gb": 70.0}}, "warm-up"),
        ({"plan": {"gpus": 4}}, "plan.gpus = 4"),
        ({"rl": {"micro_batch": 16}}, "rl.micro_batch"),
    ],
)
def test_what_does_not_fit_is_told_with_what_to_change(change, words):
    found = problems(changed("qwen3vl-8b-8gpu-grpo", **change))
    assert any(words in x for x in found), found


def test_exit_status(tmp_path, capsys):
    path = tmp_path / "params.yaml"
    p = changed("qwen3vl-4b-1gpu", plan={"gpu_memory_gb": 16.0})
    path.write_text(presets.render(p, "x"))
    with pytest.raises(SystemExit) as e:
        main(["check", "--params", str(path)])
    assert e.value.code == 1 and "WILL NOT RUN" in capsys.readouterr().out
    path.write_text(presets.render(changed("default", model={"path": "models/llama"}), "x"))
    assert main(["check", "--params", str(path)]) == 2
    assert "no model of that name is known (Qwen3-VL-2B" in capsys.readouterr().err


def test_early_refusals_of_the_stages_are_refusals_here():
    with pytest.raises(ParamError, match="suite desktop needs desktops"):
        capacity_check.check(changed("qwen3vl-4b-1gpu", env={"provider": "local_browser"}))
    with pytest.raises(ParamError, match="no such suite"):
        capacity_check.check(changed("default", provision={"suite": "minwob", "templates": []}))


@pytest.mark.parametrize(
    ("change", "visible", "words"),
    [
        ({"model": {"device": "cuda"}}, "", "a plan for another machine, with 1 GPU: this one has none"),
        ({"model": {"device": "cuda:3"}}, "0,1", "a plan for another machine, with 4 GPUs: this one has 2"),
        ({"model": {"device": "cuda:1"}}, "0,1", ""),
        ({"plan": {"gpus": 2}}, "0", "a plan for another machine, with 2 GPUs: this one has 1"),
        ({"trainer": {"kind": "ray", "actor": 1, "rollout": 1, "gpus": 2}}, "0,1", ""),
        ({}, "", ""),
    ],
)
def test_gpus_that_are_not_here_make_it_a_plan_for_another_machine(change, visible, words, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert capacity_check.elsewhere(changed("default", **change)) == words


def test_a_gpu_without_a_number_of_gpus_is_reckoned_as_this_machine_and_told_so(tmp_path, capsys):
    path = tmp_path / "params.yaml"
    path.write_text(presets.render(changed("default", model={"device": "cuda"}), "x"))
    assert main(["check", "--params", str(path)]) == 0
    out = capsys.readouterr().out
    assert "plan.gpus = 0: memory and speed below are those of this machine's CPUs" in out
    assert out.endswith("ok, as a plan for another machine, with 1 GPU: this one has none\n")


def test_a_class_that_cannot_be_trained_is_refused_though_its_size_is_known():
    with pytest.raises(ParamError, match=r"of Qwen2.5-VL the size is known.*Qwen3-VL-8B in place of"):
        capacity_check.check(changed("ui-s1-7b-8gpu", model={"path": "models/Qwen2.5-VL-7B-Instruct"}))


def test_a_model_that_is_not_here_yet_is_a_note_not_a_problem():
    told, reports = capacity_check.check(presets.preset("qwen3vl-8b-8gpu-grpo"))
    assert any("not here yet" in line for line in told) and not any(r.problems for r in reports)


@pytest.mark.parametrize("name", LARGE)
def test_presets_render_to_whole_files(name, tmp_path):
    presets.write(name, tmp_path / "params.yaml")
    assert presets.current(tmp_path / "params.yaml") == name


def test_hyper_parameters_of_the_launch_scripts():
    """Against the values of the scripts, one by one."""
    common = {
        "lr": 1e-6, "schedule": "constant", "weight_decay": 0.1, "grad_clip": 1.0, "clip_low": 0.2, "clip_high": 0.2,
        "betas": (0.9, 0.95), "entropy_coef": 0.0, "iterations": 1000, "save_every": 20, "temperature": 1.0,
        "epochs": 1, "group_size": 8, "reward_failure": -1.0, "warmup": 0.0,
    }  # fmt: skip
    own = {
        "qwen3vl-8b-8gpu-grpo": {"groups": 4, "kl_coef": 0.0, "algorithm": "grpo"},
        "qwen3vl-8b-8gpu-prm": {"groups": 8, "kl_coef": 0.01, "kl_estimator": "k3", "algorithm": "step_wise"},
    }
    for name, more in own.items():
        p = presets.preset(name)
        rl = p.rl_for(p.sweep.recipe[0])
        assert {k: getattr(rl, k) for k in common | more} == common | more, name
        assert (p.prompt.chunk_steps, p.env.desktop.width, p.env.desktop.height, p.sweep.seed) == (
            3,
            1920,
            1080,
            [1234],
        )
    grpo, prm = (presets.preset(n) for n in own)
    assert (grpo.prompt.max_new_tokens, grpo.env.slots, grpo.trainer.actor, grpo.trainer.rollout) == (512, 32, 4, 4)
    assert (prm.prompt.max_new_tokens, prm.env.slots, prm.trainer.actor, prm.trainer.rollout) == (1024, 64, 4, 3)
    voting = prm.rl_for("gui_rl_prm").step_wise.voting
    assert (voting.votes, voting.temperature, voting.max_new_tokens) == (1, 0.6, 4096)
    p = presets.preset("ui-s1-7b-8gpu")
    rl, semi = p.rl_for("ui_s1"), p.rl_for("ui_s1").semi_online
    assert (rl.lr, rl.weight_decay, rl.kl_coef, rl.kl_clamp, rl.dual_clip) == (1e-6, 0.01, 1e-4, 10.0, 3.0)
    assert (rl.groups, rl.group_size, rl.filter_std, rl.filter_rounds) == (8, 8, 0.3, 10)
    assert (semi.gamma, semi.patch_threshold, semi.norm) == (0.5, 2, "mean_std_norm")
    assert (p.prompt.chunk_steps, p.prompt.max_new_tokens, p.prompt.codec) == (2, 512, "ui_s1")
