"""The real vLLM server (CPU or GPU build) with the tiny policy: log-probs, seeds, stops, limits, fresh weights.

Skips, saying why, where no vLLM environment is found (GUIDERAIL_VLLM_PYTHON or .venv-vllm). Starting the server takes
most of the time (about a minute on two quiet cores), so one server serves all tests, in this order.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from guiderail.errors import InputError
from guiderail.models.policy import Policy
from guiderail.models.rows import ChunkRow, Prompt
from guiderail.models.tiny import save
from guiderail.params_engine import Engine
from guiderail.params_train import Lora
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.engines.vllm import VllmEngine
from guiderail.rollout.engines.vllm_client import VllmError
from guiderail.rollout.engines.vllm_server import find_build, vllm_server
from guiderail.rollout.engines.vllm_weights import WeightSync
from guiderail.rollout.types import SamplingParams
from guiderail.train.optim import select_trainable
from tinyvlm import NumberedFrames, make_model, prompt_ids

LORA = Lora(r=8, alpha=16)
GATE = 1e-3  # nats; 1e-5 is what is seen in float32


def build_or_skip():
    try:
        return find_build()
    except InputError as e:
        pytest.skip(f"no vLLM: {e}")


@pytest.fixture(scope="module")
def world(processor, tmp_path_factory):
    build_or_skip()
    work = tmp_path_factory.mktemp("vllm")
    save(make_model(processor, max_position_embeddings=512), processor, str(work / "base"))
    with vllm_server(
        Engine(kind="vllm"), work / "base", work / "scratch", images=2, rank=LORA.r, log=work / "vllm.log"
    ) as client:
        yield SimpleNamespace(
            client=client, work=work, frames=NumberedFrames(), processor=processor, served=next(iter(client.models()))
        )


def policy(world) -> Policy:
    """The served weights in this process, fresh."""
    return Policy(make_model(world.processor, max_position_embeddings=512), world.processor)


def asked(world, n: int, temperature: float = 0.7, tokens: int = 8):
    """Requests of different lengths; every third has two frames."""
    prompts, sampling = [], []
    for i in range(n):
        shas = tuple(world.frames.paint(k) for k in ((2 * i, 2 * i + 1) if i % 3 == 2 else (i,)))
        prompts.append(Prompt(prompt_ids(world.processor, "ab" * (i % 5), (35,) * len(shas)), shas))
        sampling.append(SamplingParams(temperature, max_new_tokens=tokens, seed=2**62 + i))
    return prompts, sampling


def gap(policy, frames, prompts, out, temperature) -> float:
    """Largest |server's log-prob - policy's| in nats."""
    worst = 0.0
    for prompt, c in zip(prompts, out, strict=True):
        ids = np.array(prompt.ids + c.ids)
        row = ChunkRow(ids, prompt.frames, ((len(prompt.ids), len(ids)),), np.zeros(1), (0,), temperature)
        scored = policy.logprobs([row], frames, temperature=None).logp.numpy()
        worst = max(worst, float(np.abs(scored - np.array(c.logprobs)).max()))
    return worst


def engine(world, policy, model=None, version=None, at_once=16):
    version = world.client.version() if version is None else version
    return VllmEngine(world.client, policy, world.frames, model=model or world.served, version=version, at_once=at_once)


@pytest.mark.parametrize("temperature", [0.7, 1.3, 0.0])
def test_logprobs_are_the_trainers_at_the_sampling_temperature(world, temperature):
    mine = policy(world)
    prompts, sampling = asked(world, 12, temperature)
    out = engine(world, mine).generate(prompts, sampling)
    assert gap(mine, world.frames, prompts, out, temperature) < GATE
    if temperature == 0.0:  # greedy has no draws: the very completions of the other engine
        want = HfEngine(mine, world.frames).generate(prompts, sampling)
        assert [(c.ids, c.finish_reason, c.text) for c in out] == [(c.ids, c.finish_reason, c.text) for c in want]


def test_seeds_are_the_requests_own(world):
    mine = policy(world)
    prompts, sampling = asked(world, 8, 1.0)
    together, alone = (engine(world, mine, at_once=n).generate(prompts, sampling) for n in (8, 1))
    assert [c.ids for c in together] == [c.ids for c in alone]
    other = engine(world, mine).generate(
        prompts, [SamplingParams(1.0, max_new_tokens=8, seed=1000 + i) for i in range(8)]
    )
    assert [c.ids for c in other] != [c.ids for c in alone]


def test_a_stop_token_ends_with_its_logprob_and_without_its_text(world):
    mine = policy(world)
    prompts, sampling = asked(world, 24, 2.0, 64)  # so hot that a stop token comes up
    out = engine(world, mine).generate(prompts, sampling)
    stopped = [c for c in out if c.finish_reason == "stop"]
    assert stopped and all(c.ids[-1] in mine.stop_ids and "<|" not in c.text for c in stopped)
    assert gap(mine, world.frames, prompts, out, 2.0) < GATE  # hot: masked ids would carry much mass, if not masked


def test_more_images_than_the_limit_are_refused(world):
    shas = tuple(world.frames.paint(k) for k in range(3))
    prompt = Prompt(prompt_ids(world.processor, "x", (35,) * 3), shas)
    with pytest.raises(VllmError, match="status 400"):
        engine(world, policy(world)).generate([prompt], [SamplingParams()])


def test_expanded_pads_are_caught(world):
    prompts, sampling = (x[:1] for x in asked(world, 1))
    made = engine(world, policy(world))
    right = made.request
    made.request = lambda p, s: right(p, s) | {"token_ids": list(p.ids)}
    with pytest.raises(VllmError, match="prompt tokens, the policy"):
        made.generate(prompts, sampling)


def test_each_adapter_version_is_what_samples(world):
    mine = policy(world)
    named = select_trainable(mine.model, "lora", lora=LORA, train_vision=False, seed=0)
    sync = WeightSync(world.client, world.work / "base", world.work / "adapters", "lora", LORA)
    prompts, sampling = asked(world, 6)
    before, generator = None, torch.Generator().manual_seed(0)
    for version in ("0", "1", "2"):
        name = sync.publish(version, {n: x.detach() for n, x in named.items()})
        out = engine(world, mine, name, version).generate(prompts, sampling)
        assert gap(mine, world.frames, prompts, out, 0.7) < GATE
        assert {c.weight_version for c in out} == {version}
        assert out != before
        if before is not None:  # the same frames and prompts under former weights are scored otherwise
            assert gap(mine, world.frames, prompts, before, 0.7) > 10 * GATE
        before = out
        with torch.no_grad():  # B starts at 0, so version 0 is the base
            for x in named.values():
                x += 0.1 * torch.randn(x.shape, generator=generator)
    assert list(world.client.models()) == [world.served, name]
    with pytest.raises(VllmError, match="under weights"):
        engine(world, mine, name, "1").generate(prompts, sampling)


def test_full_weights_reach_the_server_and_every_cache_is_fresh(world):
    """Vision too: its features of known frames must not outlive it."""
    mine = policy(world)
    named = select_trainable(mine.model, "full", lora=LORA, train_vision=True, seed=0)
    sync = WeightSync(world.client, world.work / "base", world.work / "full", "full", LORA)
    prompts, sampling = asked(world, 6)
    generator = torch.Generator().manual_seed(0)
    sums = world.client.checksums()
    for version in ("10", "11"):
        with torch.no_grad():
            for x in named.values():
                x += 0.1 * x.std(correction=0) * torch.randn(x.shape, generator=generator)
        mine = Policy(mine.model, world.processor)  # forgets the old tower's features
        name = sync.publish(version, {n: x.detach() for n, x in named.items()})
        out = engine(world, mine, name, version).generate(prompts, sampling)
        assert gap(mine, world.frames, prompts, out, 0.7) < GATE
        assert gap(policy(world), world.frames, prompts, out, 0.7) > 10 * GATE
    now = world.client.checksums()
    assert now.keys() == sums.keys() and now != sums
