"""What differs between two folders: names, shapes, dtypes, values, tied heads."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from guiderail.checkpoints.compare import Gap, compare, gap
from guiderail.checkpoints.effective import EMBEDDING, HEAD

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from worlds import PROCESSOR, make_model

NORM, BIAS = "model.language_model.norm.weight", "model.visual.patch_embed.proj.bias"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "base"
    make_model(PROCESSOR, 0).save_pretrained(folder)
    PROCESSOR.save_pretrained(folder)
    return folder


@pytest.fixture
def other(base, tmp_path):
    """(folder, write tensors into it)"""
    folder = tmp_path / "other"
    shutil.copytree(base, folder)

    def write(change):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return folder, write


def test_gap_by_hand():
    a, b = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.5, 2.0, 4.0])
    assert gap(a, b) == Gap(1.0, 0.375) == gap(a, b, piece=3)
    nan = torch.tensor([1.0, float("nan")])
    assert gap(nan, nan.clone()) is None
    assert gap(nan, torch.tensor([1.0, 2.0])).max == float("inf")
    assert gap(torch.tensor([0.5]), torch.tensor([0.5]).bfloat16()) is None  # the dtype is told apart


def test_equal(base):
    found = compare(base, base)
    assert found.equal and found.faults() == [] and found.max == found.mean == 0.0
    assert found.numbers == sum(t.numel() for t in load_file(base / "model.safetensors").values())


def test_each_kind_of_difference_is_named(base, other):
    folder, write = other

    def change(t):
        t[NORM][0] += 0.5
        t[EMBEDDING] = t[EMBEDDING].double()
        t[BIAS] = t[BIAS][:-1].clone()
        t["model.new.weight"] = torch.zeros(1)
        t.pop("model.visual.pos_embed.weight")

    write(change)
    found = compare(base, folder)
    assert found.missing == ("model.visual.pos_embed.weight",) and found.extra == ("model.new.weight",)
    assert found.dtypes == {EMBEDDING: ("float32", "float64")} and BIAS in found.shapes
    size = load_file(base / "model.safetensors")[NORM].numel()
    assert found.values == {NORM: Gap(0.5, 0.5 / size)} and found.mean == 0.5 / found.numbers
    text = "\n".join(found.faults())
    for words in ("only in the first: model.visual.pos", "only in the second: model.new", "shape of", "float64", NORM):
        assert words in text
    assert NORM not in "\n".join(found.faults(tolerance=0.5))
    assert "dtype" not in "\n".join(found.faults(any_dtype=True))
    json.dumps(found.to_json())


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_a_tied_head_that_is_kept_apart_is_compared_with_the_embedding(base, other, shift):
    folder, write = other
    write(lambda t: t.update({HEAD: t[EMBEDDING].clone() + shift}))
    for a, b in ((base, folder), (folder, base)):
        found = compare(a, b)
        assert not found.missing and not found.extra and "keeps the output head apart" in found.tied
        assert {n: g.max for n, g in found.values.items()} == ({HEAD: pytest.approx(1.0)} if shift else {})


def test_a_head_of_its_own_is_missing_where_the_configuration_ties_nothing(base, other, tmp_path):
    folder, write = other
    write(lambda t: t.update({HEAD: t[EMBEDDING].clone()}))
    untied = tmp_path / "untied"
    shutil.copytree(base, untied)
    config = json.loads((untied / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = False
    (untied / "config.json").write_text(json.dumps(config))
    assert compare(folder, untied).missing == (HEAD,)
