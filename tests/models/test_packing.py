"""Packed rows against the rows one by one: what a token sees, values, gradients; one pass against a row per step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guiderail import params_train as p
from guiderail.models.lean import LeanText
from guiderail.models.loading import load_policy
from guiderail.models.packing import blocks, plan
from guiderail.models.policy import Policy
from guiderail.models.prompts import PromptBuilder
from guiderail.models.rows import ChunkRow
from guiderail.params import Model, Prompt
from guiderail.train.optim import inject_lora
from tinyvlm import make_model

ROOT = Path(__file__).parents[2]


def make_row(tiny, text: str, answers: list[str], numbers: list[int], temperature: float = 1.0) -> ChunkRow:
    """A chunk: user(text, frame), answer, user(frame), answer, ..."""
    ids, spans, shas = [], [], []
    for i, (answer, n) in enumerate(zip(answers, numbers, strict=True)):
        ids += tiny.ids(text if i == 0 else "")
        answer_ids = [*tiny.policy.tokenizer.encode(answer), 258]
        spans.append((len(ids), len(ids) + len(answer_ids)))
        ids += answer_ids
        shas.append(tiny.frames.paint(n))
    empty = np.zeros(sum(e - s for s, e in spans), np.float32)
    return ChunkRow(np.array(ids), tuple(shas), tuple(spans), empty, tuple(range(len(answers))), temperature)


def per_step(row: ChunkRow) -> list[ChunkRow]:
    """One row per completion with the very same context: the chunk up to it, of which it alone is trained."""
    rows, at = [], 0
    for k, (start, end) in enumerate(row.spans):
        n = end - start
        rows.append(
            ChunkRow(row.ids[:end], row.frames[: k + 1], ((start, end),), row.logprobs[at : at + n], (row.steps[k],))
        )
        at += n
    return rows


@pytest.fixture
def group(tiny):
    """Siblings that part after the prompt, after a step, in mid-answer; a twin; the same words over another frame; a
    second chunk of one; another task."""
    return [
        make_row(tiny, "click OK", ["CLICK(x=0.1)", "TYPE(a)", "DONE"], [1, 2, 3]),
        make_row(tiny, "click OK", ["CLICK(x=0.1)", "TYPE(b)"], [1, 2]),
        make_row(tiny, "click OK", ["CLICK(x=0.1)", "TYPE(a)", "DONE"], [1, 2, 4], 0.7),
        make_row(tiny, "click OK", ["zoom"], [1]),
        make_row(tiny, "click OK", ["zoom"], [1]),
        make_row(tiny, "click OK", ["CLICK(x=0.1)", "TYPE(a)"], [5, 2]),
        make_row(tiny, "click OK; Done: a, b", ["FINISH"], [3]),
        make_row(tiny, "something else altogether", ["x", "y"], [6, 6]),
    ]


def gradients(policy: Policy, rows, frames, weights, **kw) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(log-probs, gradients) of a loss that weighs every token otherwise, and entropy too."""
    out = policy.logprobs(rows, frames, temperature=None, grad=True, entropy=True, **kw)
    aim = torch.linspace(-1.0, 2.0, len(out.logp))
    loss = (out.logp * aim).sum() + 0.1 * out.entropy.sum()
    return out.logp.detach(), list(torch.autograd.grad(loss, weights))


def assert_same(one, other, tolerance: float = 2e-5) -> None:
    """Log-probs within 1e-5 nats, gradients within `tolerance` of each tensor's largest entry."""
    torch.testing.assert_close(one[0], other[0], atol=1e-5, rtol=0)
    for a, b in zip(one[1], other[1], strict=True):
        assert b.abs().max() > 0
        torch.testing.assert_close(a, b, atol=tolerance * float(b.abs().max()), rtol=0)


@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize("mode", ["full", "lora"])
def test_packed_gradients_equal_those_of_rows_one_by_one(processor, tiny, group, monkeypatch, mode, library):
    policy = Policy(make_model(processor), processor)
    if mode == "lora":
        inject_lora(policy.model, p.Lora(r=4, alpha=8), 0)
        for name, x in policy.model.named_parameters():
            x.requires_grad_("lora_" in name)
            if "lora_B" in name:
                torch.nn.init.normal_(x, std=0.05)
    if library:
        monkeypatch.setattr(LeanText, "of", lambda lm: None)
    weights = [x for n, x in policy.model.named_parameters() if x.requires_grad and "visual" not in n]
    padded = gradients(policy, group, tiny.frames, weights)
    packed = gradients(policy, group, tiny.frames, weights, layout="packed")
    assert_same(packed, padded)
    alone = [policy.logprobs([r], tiny.frames, temperature=None).logp for r in group]
    torch.testing.assert_close(packed[0], torch.cat(alone), atol=1e-5, rtol=0)


def test_equal_beginnings_stand_there_once_and_another_frame_is_no_equal(tiny, group):
    def tokens(rows):
        return tiny.policy.pack_flat([(r.ids, r.frames) for r in rows], tiny.frames).layout.tokens

    first, second, _, zoom, twin, other_frame = group[:6]
    assert tokens([zoom, twin]) == len(zoom.ids)
    prompt, step = zoom.spans[0][0], second.spans[1][0]
    assert tokens([first, zoom]) == len(first.ids) + len(zoom.ids) - prompt
    typed = step + len("TYPE(")  # a byte is a token
    assert tokens([first, second]) == len(first.ids) + len(second.ids) - typed
    alike = int(np.flatnonzero(first.ids == 262)[0])  # up to the first image token
    assert tokens([first, other_frame]) == len(first.ids) + len(other_frame.ids) - alike
    out = tiny.policy.logprobs([first, other_frame], tiny.frames, layout="packed")
    n = len("CLICK(x=0.1)")
    assert (out.logp[:n] - out.logp[out.row_index == 1][:n]).abs().max() > 1e-3


def test_one_pass_over_a_chunk_gives_the_gradient_of_one_row_per_step(tiny):
    """On the shipped model: a chunk with several completions, the same contexts one row per completion, and these
    packed, which puts the chunk together again."""
    policy = load_policy(ROOT / "assets/tiny-vlm", Model(device="cpu"))
    builder = PromptBuilder(policy.tokenizer, Prompt(chunk_steps=4), policy.image_tokens, policy.resized)
    context = builder.context("Click on the button with the word OK, then on the link.")
    for i in range(6):
        context.observe(tiny.frames.paint(40 + i), 160, 210)
        ids = builder.completion_ids(f"Action: Click number {i}.\nCLICK(x=0.{i}25, y=0.5)")
        context.complete(ids, [0.0] * len(ids), f"Click number {i}.", "")
    chunks = context.rows()
    assert [len(c.spans) for c in chunks] == [4, 2]
    single = [r for c in chunks for r in per_step(c)]
    weights = [x for n, x in policy.model.named_parameters() if x.requires_grad]
    one_pass = gradients(policy, chunks, tiny.frames, weights)
    steps = [gradients(policy, [r], tiny.frames, weights)[0] for r in single]
    torch.testing.assert_close(one_pass[0], torch.cat(steps), atol=2e-5, rtol=0)
    assert_same(one_pass, gradients(policy, single, tiny.frames, weights), 1e-4)
    assert_same(one_pass, gradients(policy, single, tiny.frames, weights, layout="packed"), 1e-4)

    def tokens(rows):
        return policy.pack_flat([(r.ids, r.frames) for r in rows], tiny.frames).layout.tokens

    assert tokens(single) == tokens(chunks)
    assert sum(len(r.ids) for r in single) > 2.0 * tokens(chunks)


def test_gradient_of_a_trained_vision_tower_is_the_same(processor, tiny, group):
    policy = Policy(make_model(processor), processor)
    policy.model.model.visual.requires_grad_(True)
    weights = [x for n, x in policy.model.named_parameters() if "visual.blocks.0" in n]
    padded = gradients(policy, group, tiny.frames, weights)
    assert_same(gradients(policy, group, tiny.frames, weights, layout="packed"), padded, 1e-3)


ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=6)


@given(rows=ROWS, least=st.integers(1, 4), limit=st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_a_token_sees_its_own_row_up_to_itself(rows, least, limit):
    keys = [np.array(r) for r in rows]
    layout = plan(keys, least)
    flat = layout.flat(keys)
    assert len(flat) == layout.tokens <= sum(map(len, keys))
    for key, places in zip(keys, layout.places, strict=True):
        assert (flat[places] == key).all() and (np.diff(places) > 0).all()
    assert {int(i) for places in layout.places for i in places} == set(range(layout.tokens))
    want = np.zeros((layout.tokens, layout.tokens), dtype=bool)
    for places in layout.places:
        for i, place in enumerate(places):
            want[place, places[: i + 1]] = True
    got, at = np.zeros_like(want), 0
    for b in blocks(layout, torch.zeros(1), limit):
        assert b.start == at
        at = b.end
        columns = np.concatenate([np.arange(a, e) for a, e in b.spans])
        assert b.keys(torch.zeros(1, 1, layout.tokens, 2)).shape[2] == len(columns)
        seen = np.tril(np.ones((b.end - b.start,) * 2, dtype=bool)) if b.mask is None else (b.mask == 0)[0, 0].numpy()
        got[np.ix_(range(b.start, b.end), columns)] = seen
    assert at == layout.tokens
    assert (got == want).all()


def test_nothing_to_pack():
    with pytest.raises(ValueError, match="at least one token"):
        plan([])
    with pytest.raises(ValueError, match="at least one token"):
        plan([np.array([1]), np.array([], dtype=np.int64)])


def test_packed_rows_that_do_not_match_their_frames_are_named(tiny, group):
    from guiderail.models.attention import RowMismatch

    bad = ChunkRow(group[3].ids, (), group[3].spans, group[3].logprobs, (0,))
    with pytest.raises(RowMismatch, match="row 1: 1 image token runs in the ids, 0 frames"):
        tiny.policy.logprobs([group[0], bad], tiny.frames, layout="packed")
