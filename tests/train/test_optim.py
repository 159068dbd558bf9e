"""Trainable names, schedules, AdamW and its state."""

import math

import pytest
import torch
from worlds import make_policy

from guiderail.params_train import Lora, Sft
from guiderail.train.optim import (
    Learner,
    TrainableError,
    check_trainable,
    folded,
    learning_rate,
    lora_targets,
    select_trainable,
)

LORA = Lora(r=4, alpha=8)
SEVEN = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


def names(model, mode, **kw):
    return select_trainable(model, mode, lora=LORA, seed=0, **{"train_vision": False, **kw})


def test_lora_trains_exactly_the_language_models_linears():
    model = make_policy().model
    wanted = [f"model.language_model.layers.{i}.{n}" for i in range(3) for n in SEVEN]
    assert lora_targets(model) == wanted
    found = names(model, "lora")
    assert sorted(found) == sorted(f"{t}.lora_{ab}.default.weight" for t in wanted for ab in "AB")
    assert [n for n, p in model.named_parameters() if p.requires_grad and "lora_" not in n] == []


def test_full_trains_everything_but_vision():
    model = make_policy().model
    everything = {n for n, _ in model.named_parameters()}
    found = set(names(model, "full"))
    assert {n for n in everything - found} == {n for n in everything if n.startswith("model.visual.")} != set()
    assert set(names(model, "full", train_vision=True)) == everything


def test_fresh_adapter_changes_nothing_and_comes_from_the_seed():
    policy, twin, other = make_policy(), make_policy(), make_policy()
    ids = torch.arange(20)[None]
    before = policy.model(input_ids=ids).logits
    a = names(policy.model, "lora")
    torch.manual_seed(99)  # a global generator must not matter
    b = names(twin.model, "lora")
    c = select_trainable(other.model, "lora", lora=LORA, train_vision=False, seed=1)
    assert torch.equal(policy.model(input_ids=ids).logits, before)
    assert all(torch.equal(a[n], b[n]) for n in a) and not all(torch.equal(a[n], c[n]) for n in a)


def test_loaded_adapter_is_trained_further_or_refused():
    model = make_policy().model
    first = names(model, "lora")
    with torch.no_grad():
        next(iter(first.values())).fill_(7.0)
    again = names(model, "lora")
    assert again.keys() == first.keys() and (next(iter(again.values())) == 7.0).all()
    with pytest.raises(TrainableError, match=r"r \[4\]"):
        select_trainable(model, "lora", lora=Lora(r=8, alpha=8), train_vision=False, seed=0)
    with pytest.raises(TrainableError, match="alpha"):
        select_trainable(model, "lora", lora=Lora(r=4, alpha=4), train_vision=False, seed=0)
    with pytest.raises(TrainableError, match="full weights"):
        names(model, "full")


def test_refusals():
    with pytest.raises(TrainableError, match="mode = full"):
        names(make_policy().model, "lora", train_vision=True)
    p = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(TrainableError, match=r"unexpected \['b'\], missing \['c'\]"):
        check_trainable({"a": p, "b": p}, ["a", "c"])
    with pytest.raises(TrainableError, match="no linear layer"):
        lora_targets(torch.nn.Linear(2, 2))


def rates(total, **kw):
    sft = Sft(lr=2.0, **kw)
    return [learning_rate(i, total, sft) for i in range(total)]


def test_schedules_by_hand():
    assert rates(5, schedule="constant", warmup=0.0) == [2.0] * 5
    assert rates(4, schedule="linear", warmup=0.0) == [2.0, 1.5, 1.0, 0.5]
    assert rates(6, schedule="constant", warmup=0.5) == pytest.approx([2 / 3, 4 / 3, 2, 2, 2, 2])
    assert rates(4, schedule="cosine", warmup=0.0) == pytest.approx([2, 1 + math.sqrt(0.5), 1, 1 - math.sqrt(0.5)])
    assert rates(10, schedule="cosine", warmup=1.0)[-1] == 2.0
    assert all(r > 0 for r in rates(40, schedule="cosine", warmup=0.05))


def test_step_clips_decays_matrices_alone_and_refuses_nan():
    w, b = torch.nn.Parameter(torch.full((2, 2), 3.0)), torch.nn.Parameter(torch.full((2,), 3.0))
    learner = Learner({"w": w, "b": b}, Sft(weight_decay=0.5, grad_clip=1.0))
    w.grad, b.grad = torch.full((2, 2), 3.0), torch.full((2,), 4.0)
    assert learner.step(0.1) == pytest.approx(math.sqrt(4 * 9 + 2 * 16))
    # the first step of Adam moves by lr whatever the gradient's size; decay shrinks the matrix first by lr * 0.5
    assert torch.allclose(w, torch.full((2, 2), 3.0 * (1 - 0.05) - 0.1), atol=1e-5)
    assert torch.allclose(b, torch.full((2,), 2.9), atol=1e-5)
    assert w.grad is None
    w.grad, b.grad = torch.full((2, 2), float("nan")), torch.zeros(2)
    with pytest.raises(FloatingPointError, match=r"\['w'"):
        learner.step(0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_small_steps_add_up_in_every_dtype(dtype):
    """100 steps of 1e-6 against a constant gradient are -1e-4 on average; rounded to bfloat16 one by one they are 0."""
    start = (torch.randn(100, 100, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype)
    w = torch.nn.Parameter(start.clone())
    learner = Learner({"w": w}, Sft(weight_decay=0.0))
    for _ in range(100):
        w.grad = torch.ones_like(w)
        learner.step(1e-6)
    assert w.dtype == dtype and w.grad is None
    assert float((w.detach().double() - start.double()).mean()) == pytest.approx(-1e-4, rel=0.02)


def test_what_only_samples_keeps_no_float32_copies():
    w = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    learner = Learner({"w": w}, Sft())
    learner.load({"w": torch.full((2, 2), 3.0)}, {})
    assert w.tolist() == [[3.0, 3.0]] * 2 and learner.master == {} and learner.state() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_round_trip_and_foreign_state(dtype):
    def make():
        torch.manual_seed(0)
        named = {"w": torch.nn.Parameter(torch.randn(3, 2).to(dtype)), "b": torch.nn.Parameter(torch.randn(3))}
        return Learner(named, Sft())

    def step(learner, k):
        for x in learner.named.values():
            x.grad = torch.full_like(x, 0.1 * (k + 1))
        learner.step(1e-2)

    one, two = make(), make()
    assert one.state() == {}
    for k in range(4):
        step(one, k)
    for k in range(2):
        step(two, k)
    weights, state = {n: x.clone() for n, x in two.weights().items()}, {n: x.clone() for n, x in two.state().items()}
    three = make()
    three.load(weights, state)
    for k in range(2, 4):
        step(three, k)
    assert all(torch.equal(a, b) for a, b in zip(one.weights().values(), three.weights().values(), strict=True))
    assert all(torch.equal(one.state()[k], three.state()[k]) for k in one.state())
    with pytest.raises(ValueError, match="attempt folder"):
        three.load({"w": weights["w"]}, state)


def test_folded_adapter_computes_the_same_and_leaves_no_trace():
    policy = make_policy()
    trained = names(policy.model, "lora")
    with torch.no_grad():
        for i, p in enumerate(trained.values()):
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i)) * 0.1)
    ids = torch.arange(20)[None]
    before = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    plain = policy.model(input_ids=ids).logits
    with pytest.raises(RuntimeError, match="stop"), folded(policy.model):
        inside = policy.model(input_ids=ids).logits
        raise RuntimeError("stop")
    assert torch.allclose(inside, plain, atol=1e-5) and not torch.equal(inside, plain)
    assert torch.equal(policy.model(input_ids=ids).logits, plain)
    assert all(torch.equal(p, before[n]) for n, p in policy.model.named_parameters())
    assert {n for n, p in policy.model.named_parameters() if p.requires_grad} == set(trained)
