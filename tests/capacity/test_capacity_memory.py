"""Memory and time: one shape worked by hand, activations against autograd, and the known limits of 8-GPU training."""

from dataclasses import replace

import pytest
import torch

from guiderail.capacity.memory import (
    Device,
    activation_bytes,
    kv_bytes,
    layer_bytes,
    learner,
    loading_bytes,
    logit_bytes,
)
from guiderail.capacity.setup import Chunk, Setup
from guiderail.capacity.shapes import KNOWN, Shape
from guiderail.capacity.work import Rates, forecast, step_cost, train_seconds, trajectory_tokens
from guiderail.models.policy import Policy
from guiderail.params_plan import Plan
from guiderail.params_train import Lora, Rl, Sft
from guiderail.train.optim import inject_lora
from tinyvlm import make_model

TOY = Shape(
    hidden=8, ffn=16, layers=2, heads=4, kv_heads=2, head_dim=4, vocab=100, tied=True,
    v_hidden=8, v_ffn=16, v_depth=1, v_heads=2, taps=1,
)  # fmt: skip


def setup_of(shape, **kw):
    chunk = Chunk(head=10, frame=20, answer=5, steps=2)
    plain = Setup(
        shape=shape, width=4, recompute=False, longest=chunk, usual=chunk, screen=(0, 0), actor=1, rollout=1,
        shared=True, vllm=False, concurrent=3, rl=Rl(), online=True,
    )  # fmt: skip
    return replace(plain, **kw)


def test_by_hand():
    s = setup_of(TOY)
    assert s.longest.tokens == 10 + 2 * (20 + 5 + 12) == 84
    # per token and layer: 4h 32, 6q 96, kv 8, 4f 64 = 200 numbers of 4 bytes
    assert layer_bytes(s) == 800 and activation_bytes(s, 84) == 84 * 2 * 800
    assert activation_bytes(replace(s, recompute=True), 84) == 84 * (2 * 8 * 4 + 800)
    assert layer_bytes(replace(s, width=2)) == 2 * (64 + 128 + 24 + 64)
    assert kv_bytes(s, 84) == 2 * 2 * 8 * 4 * 84  # keys and values, layers, width, bytes
    assert logit_bytes(s, 10) == 10 * 100 * 20
    # layer: q 64+..: 8*16 + 2*8*8 + 16*8 + 3*8*16 + 2*8 + 2*4
    assert TOY.layer == 128 + 128 + 128 + 384 + 16 + 8
    assert TOY.text == 100 * 8 + 2 * TOY.layer + 8


def test_learner_by_hand():
    s = setup_of(TOY)
    held, training = learner(s, Sft(micro_batch=3), s.longest, shards=1, trained=1000, reference=True)
    assert held == {"weights": 4 * TOY.total, "reference": 4 * TOY.total, "optimizer": 8000}
    assert training["gradients"] == 4000 and training["activations"] == activation_bytes(s, 3 * 84)
    assert training["logits"] == logit_bytes(s, 3 * 2 * 5)
    held, training = learner(s, Sft(micro_batch=1), s.longest, shards=4, trained=1000, reference=False)
    # train.distributed shards the text model alone: every process holds the vision tower whole
    weights = TOY.text + 4 * TOY.vision
    assert held == {"weights": weights, "optimizer": 2000} and training["gradients"] == 1000
    held, training = learner(s, Sft(micro_batch=1), s.longest, shards=4, trained=TOY.total, reference=True)
    assert held == {"weights": weights, "reference": weights, "optimizer": 2 * weights}
    assert training["gradients"] == weights
    assert training["gathered layers"] == 2 * 4 * max(TOY.layer, 800)


def test_below_float32_the_optimiser_keeps_float32():
    """Two moments and the weight that is moved, 4 bytes each; gradients of 2 bytes become float32 at the step."""
    s = setup_of(TOY, width=2)
    held, training = learner(s, Sft(micro_batch=1), s.longest, shards=1, trained=1000, reference=False)
    assert held == {"weights": 2 * TOY.total, "optimizer": 12_000} and training["gradients"] == 2000
    assert "gradients in float32, at the step" not in training  # the forward needs more
    _, training = learner(s, Sft(micro_batch=1), s.longest, shards=1, trained=10**9, reference=False)
    assert sum(training.values()) == 4 * 10**9


def test_a_model_is_whole_before_it_is_sharded():
    """Each actor loads it and shards it then, the reference after the model."""
    s = setup_of(TOY)
    assert loading_bytes(s, shards=4, reference=False) == 4 * TOY.total
    assert loading_bytes(s, shards=4, reference=True) == 4 * TOY.total + TOY.text + 4 * TOY.vision
    d = Device("actor", 4, {"a": 30}, {"b": 10}, {}, 60, 70)
    assert (d.running, d.total, d.fits) == (40, 70, False)


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_activations_are_what_autograd_keeps(processor, tiny, mode):
    """Within a fifth of what the text model's forward saves, by storage."""
    policy = Policy(make_model(processor), processor)
    c = policy.model.config.text_config
    if mode == "lora":
        inject_lora(policy.model, Lora(r=2, alpha=4), 0)
    for name, x in policy.model.named_parameters():
        x.requires_grad_("lora_" in name if mode == "lora" else not name.startswith("model.visual."))
    weights = {x.untyped_storage().data_ptr() for x in policy.model.parameters()}
    rows = [(tiny.ids("click on it " * 20, (35, 35)), [tiny.frames.paint(n) for n in (1, 2)])]
    packed = policy.pack(rows, tiny.frames)
    seen = {}

    def keep(t):
        if t.untyped_storage().data_ptr() not in weights:
            seen[t.untyped_storage().data_ptr()] = (t.untyped_storage().nbytes(), t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        policy.hidden(packed)
    kept = sum(n for n, _ in seen.values())
    shape = replace(
        TOY, hidden=c.hidden_size, ffn=c.intermediate_size, layers=c.num_hidden_layers, heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads, head_dim=c.head_dim, vocab=c.vocab_size,
    )  # fmt: skip
    told = activation_bytes(setup_of(shape), packed.lengths[0])
    assert kept == pytest.approx(told, rel=0.2)


B2 = Chunk(head=400, frame=2691, answer=150, steps=5)  # a 7B model, 1080p, 150 answer tokens, on an H100


def seven(**kw):
    return setup_of(
        KNOWN["Qwen2.5-VL-7B"], width=2, longest=B2, usual=B2, concurrent=16, rl=Rl(mode="full", epochs=1), **kw
    )


def test_published_anchor_of_a_7b_model():
    """30-step episodes: about 91,000 tokens and 15 GPU-seconds to train, 5.3 environment steps per second to sample."""
    rates = Rates.of(Plan(gpus=8, train_mfu=0.4, prefill_mfu=0.5, decode_share=0.7))
    tokens, answers = trajectory_tokens(seven(), 30)
    assert tokens == pytest.approx(91_000, rel=0.1) and answers == 4500
    assert train_seconds(seven(), rates, 30) == pytest.approx(15, rel=0.35)
    assert 1 / step_cost(seven(), rates).device_s == pytest.approx(5.3, rel=0.35)


def test_littles_law_and_the_slowest_part():
    s = seven(shared=False, actor=4, rollout=4)
    plan = Plan(gpus=8, episode_steps=30, action_s=1.0, reset_s=0.0)
    s = replace(s, rl=Rl(mode="full", epochs=1, groups=8, group_size=8))
    few, many = (forecast(s, plan, slots, overlap=False) for slots in (4, 64))
    assert few.screens == pytest.approx(few.sampler_steps_s * few.wait_s)
    assert few.screen_steps_s == pytest.approx(4 / few.wait_s) and few.bottleneck == "screens"
    assert few.rollout_s == pytest.approx(64 * 30 * few.wait_s / 4)
    assert many.bottleneck == "training"
    assert many.trajectories_h == pytest.approx(3600 * 64 / (many.rollout_s + many.train_s))
    together = forecast(s, plan, 64, overlap=True)
    assert together.trajectories_h == pytest.approx(3600 * 64 / max(many.rollout_s, many.train_s))


def test_passes_of_training():
    rates, base = Rates(1.0, 1.0, 1.0, 1.0), seven()

    def cost(mode, recompute):
        s = replace(base, rl=Rl(mode=mode, epochs=1), recompute=recompute, shape=replace(base.shape, v_depth=0))
        return train_seconds(s, rates, 30, epochs=1)

    one = cost("lora", False) / 2
    assert cost("full", False) / one == pytest.approx(3) and cost("full", True) / one == pytest.approx(4)
    assert cost("lora", True) / one == pytest.approx(3)
