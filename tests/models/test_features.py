"""Vision features: equal to the library's own forward, cached by frame and weights, bounded, off when trainable."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision

from guiderail.models.features import FeatureCache, _rotate, vision_forward, weights_hash
from guiderail.models.policy import Policy
from tinyvlm import NumberedFrames, make_model


def library_features(model, pixels, grids):
    out = model.model.get_image_features(torch.cat(pixels), torch.tensor(grids), return_dict=True)
    return out.pooler_output, out.deepstack_features


@pytest.mark.parametrize("size", [(160, 210), (96, 64), (64, 160)])
def test_equals_the_library_forward(tiny, size):
    frames = NumberedFrames()
    images = [frames.get(frames.paint(n, size)) for n in range(5)]
    prepared = [tiny.policy.preprocess(i) for i in images]
    grid = prepared[0][1]
    pooled, deep = library_features(tiny.policy.model, [p for p, _ in prepared], [g for _, g in prepared])
    ours = vision_forward(tiny.policy.model.model.visual, torch.cat([p for p, _ in prepared]), grid)
    assert ours.shape == (5, 3, grid[1] * grid[2] // 4, 48)
    for i in range(5):
        torch.testing.assert_close(ours[i, 0], pooled[i], atol=1e-5, rtol=0)
        for level in range(2):
            torch.testing.assert_close(ours[i, 1 + level], deep[level][i], atol=1e-5, rtol=0)
    assert (ours[0] - ours[1]).abs().max() > 1e-2  # the pictures differ, so must their features


def test_rotation_is_the_librarys_to_the_bit():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, 140, 2, 24, generator=generator)
    angle = torch.randn(140, 12, generator=generator).repeat(1, 2)
    wanted = apply_rotary_pos_emb_vision(q, k, angle.cos(), angle.sin())
    found = _rotate(torch.stack((q, k), 2), angle.cos(), angle.sin()).unbind(2)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert not torch.equal(found[0], q)


def test_cache_mixed_sizes_in_asked_order(tiny):
    frames = NumberedFrames()
    shas = [frames.paint(1), frames.paint(2, (96, 64)), frames.paint(3), frames.paint(4, (96, 64))]
    cache = FeatureCache(tiny.policy.model.model.visual, tiny.policy.preprocess, batch_patches=150)  # one frame a batch
    got = cache.get([*shas, shas[0]], frames)
    assert [f.cells for f in got] == [35, 6, 35, 6, 35]
    for sha, f in zip(shas, got, strict=False):
        pixels, grid = tiny.policy.preprocess(frames.get(sha))
        pooled, _ = library_features(tiny.policy.model, [pixels], [grid])
        torch.testing.assert_close(f.data[0], pooled[0], atol=1e-5, rtol=0)
    assert (cache.misses, cache.hits) == (4, 0)
    again = cache.get(shas, frames)
    assert (cache.misses, cache.hits) == (4, 4)
    assert all(a.data is b.data for a, b in zip(again, got, strict=False))


def test_cache_is_bounded_in_bytes_and_drops_the_oldest(tiny):
    frames = NumberedFrames()
    one = 3 * 35 * 48 * 4
    cache = FeatureCache(tiny.policy.model.model.visual, tiny.policy.preprocess, max_bytes=2 * one)
    a, b, c = (frames.paint(n) for n in range(3))
    cache.get([a, b], frames)
    cache.get([a], frames)  # a is now younger than b
    cache.get([c], frames)
    assert cache.bytes == 2 * one
    cache.get([a, c], frames)
    assert cache.misses == 3
    cache.get([b], frames)
    assert cache.misses == 4


def test_weight_change_is_never_served_stale(processor):
    frames = NumberedFrames()
    policy = Policy(make_model(processor), processor)
    sha = frames.paint(1)
    before = policy.features.get([sha], frames)[0].data
    hash_before = policy.vision_hash
    with torch.no_grad():
        policy.model.model.visual.blocks[0].mlp.linear_fc2.weight.mul_(2)
    assert policy.vision_hash != hash_before
    after = policy.features.get([sha], frames)[0].data
    assert (after - before).abs().max() > 1e-3


def test_off_and_differentiable_when_trainable(processor):
    frames = NumberedFrames()
    policy = Policy(make_model(processor), processor)
    for p in policy.model.model.visual.parameters():
        p.requires_grad_(True)
    assert not policy.features.enabled
    f = policy.features.get([frames.paint(1)], frames)[0]
    f.data.sum().backward()
    assert policy.features.bytes == 0
    assert policy.model.model.visual.patch_embed.proj.weight.grad.abs().max() > 0


def test_weights_hash_sees_every_byte(tiny):
    visual = copy.deepcopy(tiny.policy.model.model.visual)
    same = weights_hash(visual)
    assert same == weights_hash(tiny.policy.model.model.visual) == tiny.policy.vision_hash
    with torch.no_grad():
        visual.merger.linear_fc2.bias[-1] += 1e-7
    assert weights_hash(visual) != same


def test_features_of_another_process_are_taken_under_the_same_weights_only(processor, tiny):
    frames = NumberedFrames()
    shas = [frames.paint(i) for i in range(2)]
    made = tiny.policy.features.get(shas, frames)
    vision, known = tiny.policy.features.known([*shas, "0" * 64])
    assert vision == tiny.policy.vision_hash and sorted(known) == sorted(shas)
    twin, other = (Policy(make_model(processor, seed), processor) for seed in (0, 1))
    twin.features.adopt(vision, known)
    other.features.adopt(vision, known)
    assert torch.equal(twin.features.get(shas, frames)[1].data, made[1].data) and twin.features.misses == 0
    other.features.get(shas, frames)
    assert other.features.misses == 2
