"""Counts from a configuration are those of models that transformers builds; known ones have their published size."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from guiderail.capacity.shapes import KNOWN, known, read_shape

ROOT = Path(__file__).parents[2]


def test_the_tiny_models_count_is_that_of_its_file():
    shape = read_shape(ROOT / "assets/tiny-vlm")
    with safe_open(ROOT / "assets/tiny-vlm/model.safetensors", framework="pt") as f:
        sizes = {n: torch.Size(f.get_slice(n).get_shape()).numel() for n in f.keys()}  # noqa: SIM118
    assert shape.total == sum(sizes.values())
    assert shape.vision == sum(s for n, s in sizes.items() if n.startswith("model.visual."))
    assert shape.sizing.tokens(160, 224) == 35


@pytest.mark.parametrize("name", ["Qwen3-VL-2B", "Qwen2.5-VL-7B"])
def test_the_count_is_that_of_the_model_transformers_builds(name):
    from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig, Qwen3VLConfig

    s = KNOWN[name]
    text = {
        "hidden_size": s.hidden, "intermediate_size": s.ffn, "num_hidden_layers": s.layers, "vocab_size": s.vocab,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "tie_word_embeddings": s.tied,
    }  # fmt: skip
    vision = {
        "hidden_size": s.v_hidden, "intermediate_size": s.v_ffn, "depth": s.v_depth, "num_heads": s.v_heads,
        "out_hidden_size": s.hidden, "patch_size": s.patch,
    }  # fmt: skip
    if s.bias:
        config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=s.tied)
    else:
        text |= {"head_dim": s.head_dim}
        vision |= {"deepstack_visual_indexes": list(range(s.taps)), "num_position_embeddings": s.v_positions}
        config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=s.tied)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    model.tie_weights()
    assert s.total == sum(p.numel() for p in model.parameters())
    assert s.vision == sum(p.numel() for n, p in model.named_parameters() if n.startswith("model.visual."))


def test_published_sizes():
    """In 10^9, as the models' cards say."""
    assert {n: round(s.total / 1e9, 2) for n, s in KNOWN.items()} == {
        "Qwen3-VL-2B": 2.13, "Qwen3-VL-4B": 4.44, "Qwen3-VL-8B": 8.77, "Qwen3-VL-32B": 33.36, "Qwen2.5-VL-7B": 8.29,
    }  # fmt: skip


def test_adapters_by_hand():
    # 2B: per layer r * (in + out): q 2048+2048, k, v 2048+1024, o 2048+2048, gate, up, down 2048+6144
    assert KNOWN["Qwen3-VL-2B"].adapter(16) == 28 * 16 * (4096 + 3072 + 3072 + 4096 + 3 * 8192)


def test_names():
    assert known("models/Qwen3-VL-4B-Thinking") is KNOWN["Qwen3-VL-4B"] is known("Qwen/Qwen3-VL-4B")
    assert known("models/Qwen3-VL-4BX") is None


@pytest.mark.parametrize(
    ("name", "screen", "tokens"),
    [
        ("Qwen3-VL-8B", (1920, 1080), 2040),
        ("Qwen3-VL-8B", (1280, 720), 880),
        ("Qwen3-VL-8B", (3840, 2160), 8160),
        ("Qwen2.5-VL-7B", (1080, 2400), 3354),
        ("Qwen2.5-VL-7B", (1920, 1080), 2691),
    ],
)
def test_tokens_of_a_screen(name, screen, tokens):
    assert KNOWN[name].sizing.tokens(*screen) == tokens
