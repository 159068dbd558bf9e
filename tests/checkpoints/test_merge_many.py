"""Merges of a small lineage: base -> sft -> two adapters and one full checkpoint; formulas in memory as the oracle."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from peft.utils.merge_utils import ties
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLForConditionalGeneration

from guiderail.checkpoints import manifest as m
from guiderail.checkpoints.effective import Effective
from guiderail.checkpoints.merge import MergeError, merge_lora
from guiderail.checkpoints.merge_many import Recipe, family, merge_models
from guiderail.params_train import Lora, Rl, Sft

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
sys.path.insert(0, str(Path(__file__).parent))
from test_merge import train
from worlds import PROCESSOR, make_model

ADAPTER = Rl(mode="lora", lora=Lora(r=4, alpha=12))


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """base -> sft -> a, b (adapters), c (full); a foreign model; read only."""
    root = tmp_path_factory.mktemp("tree")
    for name, seed in (("base", 0), ("foreign", 1)):
        make_model(PROCESSOR, seed).save_pretrained(root / name)
        PROCESSOR.save_pretrained(root / name)
    train(root / "base", root / "sft", Sft(mode="full"), "sft", ["toy/s/1/0"], root / "work")
    train(root / "sft", root / "a", ADAPTER, "rl", ["toy/a/1/0"], root / "work", seed=1)
    train(root / "sft", root / "b", ADAPTER, "rl", ["toy/b/1/0"], root / "work", seed=2)
    train(root / "sft", root / "c", Rl(mode="full"), "rl", ["toy/c/1/0"], root / "work", seed=3)
    return root


def full(folder: Path) -> dict[str, torch.Tensor]:
    """Full weights; an adapter's by the merge that test_merge holds to PEFT."""
    if not (folder / "adapter_config.json").is_file():
        return load_file(folder / "model.safetensors")
    out = folder.with_name(folder.name + "-folded")
    if not out.exists():
        merge_lora(folder, out)
    return load_file(out / "model.safetensors")


def test_average_of_adapters_and_full_checkpoints(tree, tmp_path):
    made = merge_models([tree / x for x in "abc"], tmp_path / "out", Recipe("average", (1.0, 1.0, 2.0)))
    got, (a, b, c) = load_file(tmp_path / "out/model.safetensors"), (full(tree / x) for x in "abc")
    for n in got:
        assert torch.allclose(got[n], (a[n] + b[n] + 2 * c[n]) / 4, atol=1e-6), n
        if n.startswith("model.visual."):
            assert torch.equal(got[n], a[n]), n
    Qwen3VLForConditionalGeneration.from_pretrained(tmp_path / "out")
    digests = [m.weights_digest(tree / x) for x in ("base", "sft", "a", "b", "c")]
    assert made == m.verify_files(tmp_path / "out") and set(made.ancestors) == set(digests)
    assert made.trained_on.templates == ("a", "b", "c", "s")  # so a benchmark that overlaps any of them is refused
    assert [x["weight"] for x in made.method["models"]] == [1.0, 1.0, 2.0]
    assert family([tree / "a", tree / "b"]).common == digests[1]
    assert family([tree / "a", tree / "base"]).common == digests[0]
    assert family([tree / "a", tmp_path / "out"]).common == digests[2]  # a merge goes on in the lineage


def test_task_arithmetic_from_the_nearest_ancestor_and_from_another(tree, tmp_path):
    a, b, sft, base = (full(tree / x) for x in ("a", "b", "sft", "base"))
    for start, zero, given in (("sft", sft, None), ("base", base, tree / "base")):
        out = tmp_path / start
        made = merge_models([tree / "a", tree / "b"], out, Recipe("task_arithmetic", (1.0, 0.5), 0.8), base=given)
        got = load_file(out / "model.safetensors")
        for n in got:
            want = zero[n] + 0.8 * ((a[n] - zero[n]) + 0.5 * (b[n] - zero[n]))
            assert torch.allclose(got[n], want, atol=1e-6), n
        assert made.method["base"]["path"] == str(tree / start)


def test_ties_trims_by_the_whole_task_vector(tree, tmp_path):
    merge_models([tree / x for x in "abc"], tmp_path / "out", Recipe("ties", (1.0, 1.0, 1.0), 0.9, 0.3))
    got, zero = load_file(tmp_path / "out/model.safetensors"), full(tree / "sft")
    flat = [torch.cat([(full(tree / x)[n] - zero[n]).flatten() for n in got]) for x in "abc"]
    want = 0.9 * ties(flat, torch.ones(3), 0.3)
    found = torch.cat([(got[n] - zero[n]).flatten() for n in got])
    assert (found - want).abs().max() < 1e-5
    assert (want != 0).any()


def test_stored_dtype_is_kept_unless_told(tree, tmp_path):
    for name in ("x", "y"):
        shutil.copytree(tree / "sft", tmp_path / name)
        tensors = {n: (t + (name == "y")).bfloat16() for n, t in load_file(tree / "sft/model.safetensors").items()}
        save_file(tensors, tmp_path / name / "model.safetensors", metadata={"format": "pt"})
        m.write(tmp_path / name, m.read(tree / "sft"))
    both = [tmp_path / "x", tmp_path / "y"]
    merge_models(both, tmp_path / "kept", Recipe("average", (1.0, 1.0)))
    merge_models(both, tmp_path / "wide", Recipe("average", (1.0, 1.0)), dtype=torch.float32)
    kept, wide = (load_file(tmp_path / d / "model.safetensors") for d in ("kept", "wide"))
    assert {t.dtype for t in kept.values()} == {torch.bfloat16} and {t.dtype for t in wide.values()} == {torch.float32}
    n = "model.language_model.norm.weight"
    x, y = (load_file(d / "model.safetensors")[n].float() for d in both)
    assert torch.equal(wide[n], (x + y) / 2)


@pytest.mark.parametrize(
    ("models", "recipe", "base", "words"),
    [
        (["a", "foreign"], Recipe("average", (1.0, 1.0)), None, "no common ancestor by their manifests"),
        (["a", "a"], Recipe("average", (1.0, 1.0)), None, "given twice"),
        (["a"], Recipe("average", (1.0,)), None, "two or more"),
        (["a", "b"], Recipe("average", (1.0,)), None, "1 weights for 2 models"),
        (["a", "b"], Recipe("average", (1.0, -1.0)), None, "sum must be above 0"),
        (["a", "b"], Recipe("ties", (1.0, 1.0)), "foreign", "is not an ancestor of all models"),
        (["a", "b"], Recipe("ties", (1.0, 1.0)), "c", "is not an ancestor of all models"),
        (["a", "sft"], Recipe("task_arithmetic", (1.0, 1.0)), None, "its task vector is 0"),
    ],
)
def test_refused_before_anything_is_written(tree, tmp_path, models, recipe, base, words):
    with pytest.raises(MergeError, match=words):
        merge_models([tree / x for x in models], tmp_path / "out", recipe, base=base and tree / base)
    assert not (tmp_path / "out").exists()


def test_a_changed_file_and_other_shapes_are_refused(tree, tmp_path):
    shutil.copytree(tree / "c", tmp_path / "c")
    tensors = load_file(tmp_path / "c/model.safetensors")
    tensors.pop("model.visual.patch_embed.proj.bias")
    save_file(tensors, tmp_path / "c/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(m.ManifestError, match=r"changed \['model.safetensors'\]"):
        merge_models([tree / "a", tmp_path / "c"], tmp_path / "out", Recipe("average", (1.0, 1.0)))
    m.write(tmp_path / "c", m.read(tmp_path / "c"))
    with pytest.raises(MergeError, match=r"do not hold the same tensors: \['model.visual.patch_embed.proj.bias'\]"):
        merge_models([tree / "a", tmp_path / "c"], tmp_path / "out", Recipe("average", (1.0, 1.0)))


def test_effective_weights_tell_their_forms(tree):
    found = Effective(tree / "a")
    for name, form in found.forms.items():
        tensor = found.tensor(name)
        assert (tuple(tensor.shape), tensor.dtype) == (form.shape, form.dtype)
    assert found.tied
