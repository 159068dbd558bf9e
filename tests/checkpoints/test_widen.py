"""Wider heads, same function: against the library's own model, base and adapter."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from guiderail.checkpoints.weights import WeightsError
from guiderail.checkpoints.widen import head_dim, is_tied, served_width, widen_folder, widen_tensors
from guiderail.models.tiny import save
from guiderail.params_train import Lora
from guiderail.train.optim import inject_lora
from tinyvlm import NumberedFrames, make_model, prompt_ids


@pytest.fixture(scope="module")
def folders(processor, tmp_path_factory):
    base = tmp_path_factory.mktemp("widen")
    save(make_model(processor), processor, str(base / "narrow"))
    widen_folder(base / "narrow", base / "wide", 32)
    return SimpleNamespace(narrow=base / "narrow", wide=base / "wide")


def load(folder):
    from transformers import Qwen3VLForConditionalGeneration

    return Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


def logits(model, processor):
    """The library's own forward over a prompt with two images, none of our code in it."""
    frames = NumberedFrames()
    out = processor.image_processor(images=[frames.get(frames.paint(n)) for n in (1, 2)], return_tensors="pt")
    ids = torch.tensor([prompt_ids(processor, "two", (35, 35))])
    kinds = (ids == model.config.image_token_id).int()
    with torch.no_grad():
        return model(input_ids=ids, mm_token_type_ids=kinds, **out).logits


def test_the_widened_model_computes_the_same(folders, processor):
    narrow, wide = load(folders.narrow), load(folders.wide)
    assert (head_dim(folders.narrow), head_dim(folders.wide)) == (16, 32)
    assert is_tied(folders.narrow) and not is_tied(folders.wide)
    q = wide.model.language_model.layers[0].self_attn.q_proj.weight
    assert q.shape == (4 * 32, 48)
    want, got = logits(narrow, processor), logits(wide, processor)
    assert want.abs().max() > 1  # not all alike
    torch.testing.assert_close(got, want, atol=2e-4, rtol=1e-4)


def test_a_widened_adapter_changes_it_by_the_same(folders, processor):
    models = [load(folders.narrow), load(folders.wide)]
    for model in models:
        inject_lora(model, Lora(r=4, alpha=8), 0)
    trained = {n: x for n, x in models[0].named_parameters() if ".lora_" in n}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for x in trained.values():
            x.copy_(torch.randn(x.shape, generator=generator) * 0.2)
        for n, x in widen_tensors(trained, 16, 32).items():
            dict(models[1].named_parameters())[n].copy_(x)
    want, got = (logits(m, processor) for m in models)
    assert (want - logits(load(folders.narrow), processor)).abs().max() > 0.1
    torch.testing.assert_close(got, want, atol=2e-4, rtol=1e-4)


def test_widths_are_the_kernels(tmp_path):
    assert [served_width(w) for w in (16, 48, 64, 128)] == [32, 64, 64, 128]
    with pytest.raises(WeightsError, match="width 300"):
        served_width(300)


def test_rotary_embeddings_that_do_not_fit_are_refused(folders, tmp_path):
    config = json.loads((folders.narrow / "config.json").read_text())
    config["text_config"]["rope_parameters"]["mrope_interleaved"] = False
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="cannot be widened"):
        widen_folder(tmp_path, tmp_path / "out", 32)
