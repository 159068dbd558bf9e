"""The policy wrapper against the library's own forward: positions, masks, log-probs, entropy, gradients."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guiderail.models.attention import RowMismatch, SlotCache, mrope_positions
from guiderail.models.loading import CheckpointError, load_policy
from guiderail.models.policy import Policy
from guiderail.models.rows import ChunkRow
from guiderail.params import Model
from tinyvlm import make_model


def make_row(tiny, text: str, answers: list[str], numbers: list[int], temperature: float = 1.0) -> ChunkRow:
    """A chunk: user(text, frame), answer, user(frame), answer, ..."""
    encode = tiny.policy.tokenizer.encode
    ids, spans, shas = [], [], []
    for i, (answer, n) in enumerate(zip(answers, numbers, strict=True)):
        ids += tiny.ids(text if i == 0 else "")
        spans.append((len(ids), len(ids) + len(encode(answer)) + 1))
        ids += [*encode(answer), 258]
        shas.append(tiny.frames.paint(n))
    empty = np.zeros(sum(e - s for s, e in spans), np.float32)
    return ChunkRow(np.array(ids), tuple(shas), tuple(spans), empty, tuple(range(len(answers))), temperature)


def library_logprobs(policy: Policy, frames, row: ChunkRow, temperature: float):
    """One row through `Qwen3VLForConditionalGeneration.forward` with pixels and processor-style inputs."""
    pixels, grids = zip(*[policy.preprocess(frames.get(s)) for s in row.frames], strict=True)
    ids = torch.from_numpy(row.ids)[None]
    out = policy.model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == policy.image_token_id).int(),
        pixel_values=torch.cat(pixels),
        image_grid_thw=torch.tensor(grids),
    )
    logits = out.logits[0].float()
    logits[:, list(policy.suppressed_ids)] = float("-inf")
    logp = torch.log_softmax(logits / temperature, -1)
    at = np.concatenate([np.arange(s, e) for s, e in row.spans])
    entropy = torch.special.entr(logp.exp()).sum(-1)
    return logp[at - 1, row.ids[at]], entropy[at - 1]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_and_entropy_equal_the_library(tiny, temperature):
    rows = [
        make_row(tiny, "click OK", ["CLICK(x=0.1)"], [1]),
        make_row(tiny, "a much longer instruction", ["first", "second answer", "3"], [2, 3, 2]),
        make_row(tiny, "", ["x"], [4]),
    ]
    got = tiny.policy.logprobs(rows, tiny.frames, temperature=temperature, entropy=True)
    with torch.no_grad():
        want = [library_logprobs(tiny.policy, tiny.frames, r, temperature) for r in rows]
    torch.testing.assert_close(got.logp, torch.cat([w[0] for w in want]), atol=2e-5, rtol=0)
    torch.testing.assert_close(got.entropy, torch.cat([w[1] for w in want]), atol=1e-4, rtol=0)
    assert got.row_index.tolist() == [0] * 13 + [1] * (6 + 14 + 2) + [2] * 2
    assert not got.logp.requires_grad


def test_row_temperatures_are_used_when_asked(tiny):
    rows = [make_row(tiny, "a", ["one"], [1], t) for t in (1.0, 0.5)]
    own = tiny.policy.logprobs(rows, tiny.frames, temperature=None).logp
    half = tiny.policy.logprobs(rows, tiny.frames, temperature=0.5).logp
    assert torch.equal(own[4:], half[4:])
    assert (own[:4] - half[:4]).abs().max() > 1e-3


def test_logprobs_depend_on_the_pixels(tiny):
    one, other = make_row(tiny, "a", ["one"], [1]), make_row(tiny, "a", ["one"], [2])
    assert (one.ids == other.ids).all()
    lp = tiny.policy.logprobs([one, other], tiny.frames).logp
    assert (lp[:4] - lp[4:]).abs().max() > 1e-3


def test_gradient_equals_the_library(processor, tiny):
    policy = Policy(make_model(processor), processor)
    row = make_row(tiny, "click", ["abc", "de"], [5, 6])
    got = policy.logprobs([row], tiny.frames, grad=True, entropy=True)
    (got.logp.sum() + got.entropy.sum()).backward()
    weight = policy.model.model.language_model.layers[0].mlp.up_proj.weight
    ours = weight.grad.clone()
    policy.model.zero_grad()
    logp, _ = library_logprobs(policy, tiny.frames, row, 1.0)
    want_logp = torch.autograd.grad(logp.sum(), weight)[0]
    only_logp = policy.logprobs([row], tiny.frames, grad=True).logp
    torch.testing.assert_close(torch.autograd.grad(only_logp.sum(), weight)[0], want_logp, atol=1e-4, rtol=1e-3)
    assert torch.isfinite(ours).all() and (ours - want_logp).abs().max() > 1e-4  # entropy adds a finite gradient


def test_trailing_frame_after_the_last_span_is_not_run(tiny):
    row = make_row(tiny, "a", ["one"], [1])
    longer = ChunkRow(
        np.array([*row.ids, *tiny.ids("")]), (*row.frames, tiny.frames.paint(9)), row.spans, row.logprobs, row.steps
    )
    assert torch.equal(tiny.policy.logprobs([row], tiny.frames).logp, tiny.policy.logprobs([longer], tiny.frames).logp)


def test_mismatch_of_image_tokens_and_features_names_the_row(tiny):
    good = make_row(tiny, "a", ["one"], [1])
    short = ChunkRow(
        np.delete(good.ids, np.flatnonzero(good.ids == 262)[0]), good.frames, ((50, 52),), good.logprobs, (0,)
    )
    with pytest.raises(RowMismatch, match=r"row 1 .*34 image tokens.*35 vision features"):
        tiny.policy.logprobs([good, short], tiny.frames)
    missing = ChunkRow(good.ids, (), good.spans, good.logprobs, (0,))
    with pytest.raises(RowMismatch, match=r"row 0: 1 image token runs in the ids, 0 frames"):
        tiny.policy.logprobs([missing], tiny.frames)
    with pytest.raises(ValueError, match="row 0: spans"):
        tiny.policy.logprobs([ChunkRow(good.ids, good.frames, (), good.logprobs, ())], tiny.frames)


def test_stop_and_suppressed_ids(tiny):
    decode = tiny.policy.tokenizer.convert_ids_to_tokens
    assert [decode(i) for i in tiny.policy.stop_ids] == ["<|im_end|>", "<|endoftext|>"]
    named = [decode(i) for i in tiny.policy.suppressed_ids if i < 264]
    assert sorted(named) == sorted(
        ["<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
    )
    assert set(range(264, 280)) <= set(tiny.policy.suppressed_ids)  # embedding rows no token uses


@given(
    texts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    grids=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_positions_equal_get_rope_index(tiny, texts, grids):
    ids = []
    for i, (h, w) in enumerate(grids):
        ids += [7] * texts[i % len(texts)] + [262] * (h * w)
    ids += [7] * texts[-1]
    thw = [(1, 2 * h, 2 * w) for h, w in grids]
    got, following = mrope_positions(np.array(ids), 262, thw, 2)
    t = torch.tensor(ids)[None]
    want, delta = tiny.policy.model.model.get_rope_index(t, (t == 262).int(), torch.tensor(thw))
    assert (torch.from_numpy(got) == want[:, 0]).all()
    assert following == len(ids) + delta.item()


def test_slot_cache_refuses_to_overflow():
    cache = SlotCache(1, 3)
    cache.update(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 0)
    cache.advance(2)
    with pytest.raises(IndexError, match="3 columns cannot hold 4"):
        cache.update(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, processor):
    path = tmp_path_factory.mktemp("model")
    make_model(processor).save_pretrained(path)
    processor.save_pretrained(path)
    return path


def test_load_policy_gives_the_saved_model(folder, tiny):
    policy = load_policy(folder, Model(path=str(folder), device="cpu"))
    row = make_row(tiny, "click", ["abc"], [1])
    assert torch.equal(policy.logprobs([row], tiny.frames).logp, tiny.policy.logprobs([row], tiny.frames).logp)
    assert policy.features.enabled and policy.vision_hash == tiny.policy.vision_hash
    assert policy.suppressed_ids == tiny.policy.suppressed_ids
    trainable = load_policy(folder, Model(path=str(folder), device="cpu", train_vision=True))
    assert not trainable.features.enabled


def test_loading_shows_no_progress_bar_and_leaves_the_setting(folder, capfd):
    from transformers.utils import logging

    assert logging.is_progress_bar_enabled()
    load_policy(folder, Model(path=str(folder), device="cpu"))
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled()


def test_load_policy_puts_an_adapter_on_its_parent(folder, tiny, tmp_path):
    from peft import LoraConfig, get_peft_model

    targets = r"model\.language_model\..*\.(q_proj|v_proj)"
    peft_model = get_peft_model(
        load_policy(folder, Model(device="cpu")).model, LoraConfig(r=4, lora_alpha=8, target_modules=targets)
    )
    with torch.no_grad():
        for name, p in peft_model.named_parameters():
            if "lora_B" in name:
                p.fill_(0.05)
    peft_model.save_pretrained(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"parents": [{"path": str(folder)}]}))
    policy = load_policy(tmp_path, Model(device="cpu"))
    row = make_row(tiny, "click", ["abc"], [1])
    got = policy.logprobs([row], tiny.frames).logp
    assert (got - tiny.policy.logprobs([row], tiny.frames).logp).abs().max() > 1e-3
    merged = peft_model.merge_and_unload()
    torch.testing.assert_close(
        got, Policy(merged, tiny.policy.processor).logprobs([row], tiny.frames).logp, atol=1e-4, rtol=0
    )
    assert type(policy.model).__name__ == "Qwen3VLForConditionalGeneration"


def test_load_policy_says_what_is_wrong(folder, tmp_path):
    with pytest.raises(CheckpointError, match="no such model folder"):
        load_policy(tmp_path / "nowhere", Model())
    with pytest.raises(CheckpointError, match=r"missing config.json, tokenizer_config.json, .*model.safetensors"):
        load_policy(tmp_path, Model())
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="parent is unknown"):
        load_policy(tmp_path, Model())
    (tmp_path / "manifest.json").write_text(json.dumps({"parents": ["gone/away"]}))
    with pytest.raises(CheckpointError, match="gone/away does not exist"):
        load_policy(tmp_path, Model())
