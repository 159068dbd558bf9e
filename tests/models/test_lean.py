"""The lean text forward against the library's: values, gradients, adapters, caches, and when it steps back."""

from __future__ import annotations

import pytest
import torch

from guiderail import params_train as p
from guiderail.models.attention import SlotCache
from guiderail.models.lean import LeanText
from guiderail.models.policy import Policy
from guiderail.train.optim import inject_lora
from tinyvlm import make_model


@pytest.fixture
def policy(processor):
    """Grouped queries (4 heads on 2), with adapters whose B is not 0."""
    policy = Policy(make_model(processor), processor)
    inject_lora(policy.model, p.Lora(r=4, alpha=8), 0)
    torch.manual_seed(1)
    for name, x in policy.model.named_parameters():
        x.requires_grad_("lora_" in name)
        if "lora_B" in name:
            torch.nn.init.normal_(x, std=0.05)
    return policy


def packed_of(policy, tiny):
    rows = [("a", (35,), 1), ("click on it", (35, 35), 2)]
    made = [(tiny.ids(t, c), [tiny.frames.paint(n + i) for i in range(len(c))]) for t, c, n in rows]
    return policy.pack(made, tiny.frames)


def both(policy, packed, monkeypatch, **kw):
    """Hidden states of the lean forward and of the library's."""
    assert policy.text() is not None
    lean = policy.hidden(packed, **kw)
    with monkeypatch.context() as m:
        m.setattr(LeanText, "of", lambda lm: None)
        return lean, policy.hidden(packed, **kw)


def test_values_and_gradients_equal_the_library(policy, tiny, monkeypatch):
    packed = packed_of(policy, tiny)
    got, want = both(policy, packed, monkeypatch)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    weights = [x for n, x in policy.model.named_parameters() if "lora_" in n]
    aim = torch.randn(got.shape, generator=torch.Generator().manual_seed(0))
    mine, theirs = (torch.autograd.grad((h * aim).sum(), weights) for h in (got, want))
    for a, b in zip(mine, theirs, strict=True):
        assert b.abs().max() > 1e-3
        torch.testing.assert_close(a, b, atol=1e-4 * float(b.abs().max()), rtol=1e-4)


def test_cached_steps_equal_the_library(policy, tiny, monkeypatch):
    packed = packed_of(policy, tiny)
    out = []
    for known in (True, False):
        with monkeypatch.context() as m, torch.no_grad():
            if not known:
                m.setattr(LeanText, "of", lambda lm: None)
            cache, width = SlotCache(3, packed.embeds.shape[1] + 1), packed.embeds.shape[1]
            policy.hidden(packed, cache=cache)
            cache.advance(width)
            mask = torch.zeros(2, 1, 1, width + 1)
            mask[0, ..., packed.lengths[0] : width] = torch.finfo(torch.float32).min
            column = type(packed)(packed.embeds[:, 3:4], packed.positions[..., -1:] + 1, [], [], None, None)
            out.append(policy.hidden(column, cache=cache, mask=mask))
    torch.testing.assert_close(out[0], out[1], atol=1e-5, rtol=1e-5)


def test_steps_back_from_what_it_does_not_know(policy):
    lm = policy.model.model.language_model
    hook = lm.layers[1].mlp.register_forward_hook(lambda *a: None)
    assert policy.text() is None
    hook.remove()
    assert policy.text() is not None
    lm.layers[0].forward = lm.layers[0].forward
    assert policy.text() is None
