"""What an engine must keep: log-probs are the policy's, draws belong to the request, special tokens never appear."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guiderail.models.attention import RowMismatch
from guiderail.models.policy import Policy
from guiderail.models.rows import ChunkRow, Prompt
from guiderail.rollout.engines.hf import HfEngine, draw, nucleus
from guiderail.rollout.types import SamplingParams
from tinyvlm import make_model


def prompts(tiny) -> list[Prompt]:
    """Seven prompts of different lengths; 1 and 2 are identical (siblings), 5 holds two frames."""
    p = tiny.frames.paint
    made = [
        Prompt(tiny.ids(t), (p(n),))
        for t, n in [("a", 1), ("click on OK", 2), ("click on OK", 2), ("xyz" * 9, 3), ("b", 4)]
    ]
    return [*made, Prompt(tiny.ids("two", (35, 35)), (p(5), p(6))), Prompt(tiny.ids("small", (6,)), (p(7, (96, 64)),))]


def row_of(prompt, completion, temperature) -> ChunkRow:
    start, end = len(prompt.ids), len(prompt.ids) + len(completion.ids)
    logprobs = np.array(completion.logprobs, np.float32)
    return ChunkRow(np.array(prompt.ids + completion.ids), prompt.frames, ((start, end),), logprobs, (0,), temperature)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.0, 0.6)])
def test_logprobs_equal_the_policys(tiny, temperature, top_p):
    engine, asked = HfEngine(tiny.policy, tiny.frames), prompts(tiny)
    sampling = [SamplingParams(temperature, top_p, max_new_tokens=6 + i, seed=i) for i in range(len(asked))]
    out = engine.generate(asked, sampling)
    for prompt, completion in zip(asked, out, strict=True):
        row = row_of(prompt, completion, temperature)
        alone = tiny.policy.logprobs([row], tiny.frames, temperature=None).logp
        np.testing.assert_allclose(completion.logprobs, alone.numpy(), atol=1e-4, rtol=0)
    assert len({c.ids for c in out}) == len(out)  # siblings with different seeds differ
    assert engine.tokens == sum(len(c.ids) for c in out)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_tokens_do_not_depend_on_batch_mates(tiny, temperature):
    engine, asked = HfEngine(tiny.policy, tiny.frames), prompts(tiny)
    sampling = [SamplingParams(temperature, max_new_tokens=8, seed=100 + i) for i in range(len(asked))]
    together = engine.generate(asked, sampling)
    order = [4, 2, 6, 0, 1, 5, 3]
    shuffled = engine.generate([asked[i] for i in order], [sampling[i] for i in order])
    assert [c.ids for c in shuffled] == [together[i].ids for i in order]
    split = HfEngine(tiny.policy, tiny.frames, max_batch=2).generate(asked, sampling)
    for i, (p, s) in enumerate(zip(asked, sampling, strict=True)):
        alone = engine.generate([p], [s])[0]
        assert alone.ids == together[i].ids == split[i].ids
        np.testing.assert_allclose(alone.logprobs, together[i].logprobs, atol=1e-4, rtol=0)


def test_seed_reproduces_and_matters(tiny):
    engine, asked = HfEngine(tiny.policy, tiny.frames), prompts(tiny)[:1]
    a, b, c = (engine.generate(asked, [SamplingParams(max_new_tokens=10, seed=s)])[0] for s in (5, 5, 6))
    assert a == b and a.ids != c.ids


def test_greedy_is_the_argmax_of_the_policy(tiny):
    engine, asked = HfEngine(tiny.policy, tiny.frames), prompts(tiny)[:2]
    for p, c in zip(asked, engine.generate(asked, [SamplingParams(0.0, max_new_tokens=5)] * 2), strict=True):
        ids = list(p.ids)
        for token in c.ids:
            packed = tiny.policy.pack([(ids, p.frames)], tiny.frames)
            with torch.no_grad():
                logits = tiny.policy.masked_logits(tiny.policy.hidden(packed)[:, -1])
            assert token == logits.argmax().item()
            ids.append(token)


def test_special_ids_are_never_sampled_and_stop_ends(processor, tiny):
    policy = Policy(make_model(processor, seed=3), processor)
    with torch.no_grad():  # a model that wants nothing but special tokens
        policy.model.lm_head.weight = torch.nn.Parameter(policy.model.lm_head.weight.clone())
        policy.model.lm_head.weight[list(policy.suppressed_ids)] *= 50
        policy.model.lm_head.weight[policy.stop_ids[0]] *= 3
    engine = HfEngine(policy, tiny.frames)
    asked = prompts(tiny)[:4] * 8
    out = engine.generate(asked, [SamplingParams(1.0, max_new_tokens=20, seed=i) for i in range(len(asked))])
    assert not {t for c in out for t in c.ids} & set(policy.suppressed_ids)
    stopped = [c for c in out if c.finish_reason == "stop"]
    assert stopped and len(stopped) < len(out)
    assert all(c.ids[-1] in policy.stop_ids for c in stopped)
    assert not any(t in policy.stop_ids for c in out for t in (c.ids[:-1] if c in stopped else c.ids))
    assert all(len(c.ids) == 20 for c in out if c.finish_reason == "length")
    assert all("<|" not in c.text for c in out)


def test_sampling_follows_the_distribution(tiny):
    engine, asked = HfEngine(tiny.policy, tiny.frames), prompts(tiny)[0]
    n = 4000
    out = []
    for i in range(0, n, 250):
        out += engine.generate(
            [asked] * 250, [SamplingParams(0.5, max_new_tokens=1, seed=7919 * j) for j in range(i, i + 250)]
        )
    with torch.no_grad():
        hidden = tiny.policy.hidden(tiny.policy.pack([(asked.ids, asked.frames)], tiny.frames))[:, -1]
        want = torch.softmax(tiny.policy.masked_logits(hidden)[0] / 0.5, -1).numpy()
    for token in np.argsort(want)[-5:]:
        seen = sum(c.ids[0] == token for c in out) / n
        assert abs(seen - want[token]) < 4.5 * math.sqrt(want[token] * (1 - want[token]) / n)
    chi = [(sum(c.ids[0] == t for c in out) - n * p) ** 2 / (n * p) for t, p in enumerate(want) if n * p >= 5]
    assert sum(chi) < len(chi) + 5 * math.sqrt(2 * len(chi))


@given(st.lists(st.integers(0, 5), min_size=2, max_size=8).filter(any), st.floats(0, 1, exclude_max=True))
@settings(max_examples=200, deadline=None)
def test_draw_is_the_inverse_cdf(weights, u):
    picked = draw(torch.tensor([weights], dtype=torch.float64), torch.tensor([u], dtype=torch.float64)).item()
    assert weights[picked] > 0
    assert sum(weights[:picked]) <= u * sum(weights) + 1e-9 and u * sum(weights) <= sum(weights[: picked + 1]) + 1e-9


def test_nucleus_keeps_the_smallest_sufficient_set():
    probs = torch.tensor([[0.1, 0.5, 0.15, 0.25]] * 3, dtype=torch.float64)
    got = nucleus(probs, torch.tensor([0.6, 1.0, 0.3], dtype=torch.float64))
    assert got.tolist() == [[0, 0.5, 0, 0.25], [0.1, 0.5, 0.15, 0.25], [0, 0.5, 0, 0]]


def test_bad_requests_are_named(tiny):
    engine, asked = HfEngine(tiny.policy, tiny.frames), prompts(tiny)[:2]
    with pytest.raises(ValueError, match="2 prompts with 1 sampling"):
        engine.generate(asked, [SamplingParams()])
    with pytest.raises(ValueError, match=r"request 1: .*temperature >= 0"):
        engine.generate(asked, [SamplingParams(), SamplingParams(temperature=-1)])
    bad = Prompt(tiny.ids("x", (34,)), asked[0].frames)
    with pytest.raises(RowMismatch, match=r"prompt 1 .*34 image tokens"):
        engine.generate([asked[0], bad], [SamplingParams(), SamplingParams()])
    assert engine.generate([], []) == []
