"""The tiny Qwen3-VL: its tokenizer, its processor and its untrained weights.

Guarantees: a real `Qwen3VLForConditionalGeneration` with a Qwen3-VL processor that saves and loads like any Hugging
Face checkpoint; the tokenizer round-trips every text (bytes underneath, whole tokens for common words, coordinates and
phrases on top).
Does not train anything: see `guiderail.train.pretrain`.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from guiderail.models.quiet import no_progress_bars
from guiderail.models.words import all_words

SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
GRID = 0.025  # points are drawn on this grid: 41 tokens an axis
BINS = 41
PHRASES = [
    "system\n", "user\n", "assistant\n", "Work the screen.", "Action: ", 'click "', 'type "', "click the ", "click ",
    '"\n', "CLICK(", 'TYPE(text="', '")', ", ", ")", "DONE()", "FAIL()", "\nDone: ", "; ",
]  # fmt: skip
FRAME = (160, 224)  # width, height of the screen it works: multiples of 32, so that frames are never resized

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' or 'image' in c %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level tokenizer with whole tokens for words, grid points ("x=0.475") and phrases of the action language."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    points = [f"{a}={k * GRID:.3f}" for a in "xy" for k in range(BINS)]
    tok.add_tokens([AddedToken(s, normalized=False) for s in [*PHRASES, *points]])
    tok.add_tokens([AddedToken(w, normalized=False, single_word=True) for w in all_words()])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tok,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_processor(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLProcessor:
    """Qwen3-VL processor that cuts a 160x224 frame into 140 patches, 35 image tokens.

    Pixel values are (v / 255 - 1) / 0.5: white is 0, so that ink is the signal.
    """
    pixels = FRAME[0] * FRAME[1]
    size = {"shortest_edge": 32 * 32, "longest_edge": pixels}
    kw: dict[str, Any] = {
        "size": size,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [1.0] * 3,
        "image_std": [0.5] * 3,
    }
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**kw),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**kw),
        chat_template=CHAT_TEMPLATE,
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast, *, hidden: int = 144, layers: int = 4, vision_layers: int = 4, seed: int = 0
) -> Qwen3VLForConditionalGeneration:
    """Untrained weights: `layers` text layers and `vision_layers` vision blocks of width `hidden`.

    hidden: a multiple of 48, else ValueError. vision_layers: at least 3 (features of block 2 go into the text model).
    """
    ids = tokenizer.convert_tokens_to_ids
    if hidden % 48 or vision_layers < 3:
        raise ValueError(f"hidden={hidden}, vision_layers={vision_layers}: need a multiple of 48, and 3 or more")
    heads = hidden // 48
    text = {
        "hidden_size": hidden,
        "intermediate_size": hidden * 3,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 48,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "mrope_section": [8, 8, 8],
            "mrope_interleaved": True,
        },
        "eos_token_id": ids("<|im_end|>"),
        "pad_token_id": ids("<|endoftext|>"),
        "bos_token_id": None,
    }
    vision = {
        "depth": vision_layers,
        "hidden_size": hidden,
        "intermediate_size": hidden * 3,
        "num_heads": heads,
        "num_position_embeddings": 256,
        "out_hidden_size": hidden,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "deepstack_visual_indexes": [2],
    }
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=True,
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
    )
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.visual.patch_embed.proj.weight, std=0.03)
    model.generation_config.eos_token_id = ids("<|im_end|>")
    model.generation_config.pad_token_id = ids("<|endoftext|>")
    return model


def save(model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor, path: str) -> None:
    """Write one Hugging Face folder: safetensors weights, config, processor, tokenizer."""
    with no_progress_bars():
        model.save_pretrained(path, safe_serialization=True)
    processor.save_pretrained(path)
