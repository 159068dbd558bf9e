"""Recomputing layers gives the same values and gradients, in the lean forward and the library's, and saves memory."""

import pytest
import torch

from guiderail import params_train as p
from guiderail.models import recompute
from guiderail.models.lean import LeanText
from guiderail.models.policy import Policy
from guiderail.train.optim import inject_lora
from tinyvlm import make_model


@pytest.fixture
def policy(processor):
    policy = Policy(make_model(processor), processor)
    inject_lora(policy.model, p.Lora(r=4, alpha=8), 0)
    torch.manual_seed(1)
    for name, x in policy.model.named_parameters():
        x.requires_grad_("lora_" in name)
        if "lora_B" in name:
            torch.nn.init.normal_(x, std=0.05)
    return policy


def saved_bytes(run):
    """(result, bytes that autograd keeps for the backward pass, each storage once)"""
    seen = {}

    def keep(t):
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        out = run()
    return out, sum(seen.values())


@pytest.mark.parametrize("library", [False, True])
def test_same_gradients_and_less_is_kept(policy, tiny, monkeypatch, library):
    if library:
        monkeypatch.setattr(LeanText, "of", lambda lm: None)
    lm = policy.model.model.language_model
    packed = policy.pack([(tiny.ids("click on it", (35, 35)), [tiny.frames.paint(n) for n in (1, 2)])], tiny.frames)
    weights = [x for n, x in policy.model.named_parameters() if "lora_" in n]
    found = []
    for on in (False, True):
        recompute.switch(lm, on)
        hidden, kept = saved_bytes(lambda: policy.hidden(packed))
        grads = torch.autograd.grad(hidden.square().sum(), weights)
        found.append((hidden.detach(), grads, kept))
    (h0, g0, k0), (h1, g1, k1) = found
    assert torch.equal(h0, h1)
    assert all(torch.equal(a, b) for a, b in zip(g0, g1, strict=True)) and max(float(a.abs().max()) for a in g0) > 0
    assert k1 < 0.6 * k0
    assert not any(x.gradient_checkpointing for x in lm.layers)  # the library's layers are as they were


def test_nothing_changes_without_gradients_or_with_a_cache(policy):
    lm = policy.model.model.language_model
    recompute.switch(lm, True)
    assert recompute.wanted(lm, None) and not recompute.wanted(lm, object())
    with torch.no_grad():
        assert not recompute.wanted(lm, None)
