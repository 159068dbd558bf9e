"""Test doubles: a random Qwen3-VL of a few hundred thousand parameters with a byte tokenizer, and numbered
frames."""

from __future__ import annotations

import hashlib
import io

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
VOCAB_ROWS = 280  # 256 bytes + 8 specials + 16 rows no token uses, as in real checkpoints


def make_processor():
    """Qwen3VLProcessor with a byte-level tokenizer; frames of 160x210 become 160x224 (35 image tokens)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import Qwen2TokenizerFast, Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    fast = Qwen2TokenizerFast(tokenizer_object=tok, eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token=None)
    size = {"shortest_edge": 1024, "longest_edge": 160 * 224}
    args = {
        "patch_size": 16,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=size, **args),
        tokenizer=fast,
        video_processor=Qwen3VLVideoProcessor(),
    )


def make_model(processor, seed: int = 0, **text):
    """Randomly initialised Qwen3VLForConditionalGeneration in eval mode; weights large enough that logits differ."""
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    def token(t: str) -> int:
        return processor.tokenizer.convert_tokens_to_ids(t)

    rope = {"rope_theta": 10000.0, "rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    base = {
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    config = Qwen3VLConfig(
        text_config={
            **base, "intermediate_size": 96, "vocab_size": VOCAB_ROWS, "max_position_embeddings": 2048,
            "tie_word_embeddings": True, "rope_parameters": rope, **text,
        },
        vision_config={
            "depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_position_embeddings": 64,
            "out_hidden_size": base["hidden_size"], "patch_size": 16, "deepstack_visual_indexes": [0, 1],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = Qwen3VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.mul_(4.0)
    for p in model.model.visual.parameters():
        p.requires_grad_(False)
    return model


class NumberedFrames:
    """Frames in memory; `paint(n)` gives a distinct 160x210 picture per number."""

    def __init__(self) -> None:
        self.images, self.png, self.number = {}, {}, {}

    def paint(self, n: int, size: tuple[int, int] = (160, 210)) -> str:
        from PIL import Image, ImageDraw

        image = Image.new("RGB", size, (200, 200 - n % 100, 100 + n % 100))
        draw = ImageDraw.Draw(image)
        draw.rectangle(
            [n * 7 % 120, n * 13 % 150, n * 7 % 120 + 30, n * 13 % 150 + 20], fill=(n * 37 % 256, n * 91 % 256, 0)
        )
        draw.text((5, 190), str(n), fill=(0, 0, 0))
        out = io.BytesIO()
        image.save(out, "PNG")
        sha = hashlib.sha256(out.getvalue()).hexdigest()
        self.images[sha], self.png[sha], self.number[sha] = image, out.getvalue(), n
        return sha

    def put(self, png: bytes) -> str:
        from PIL import Image

        sha = hashlib.sha256(png).hexdigest()
        self.images.setdefault(sha, Image.open(io.BytesIO(png)).convert("RGB"))
        self.png[sha] = png
        return sha

    def get_png(self, sha: str) -> bytes:
        return self.png[sha]

    def get(self, sha: str):
        return self.images[sha]


def prompt_ids(processor, text: str, cells: tuple[int, ...] = (35,)) -> tuple[int, ...]:
    """Chat-like ids: a user turn with one image block per entry of `cells`, ready for the assistant."""
    t = processor.tokenizer
    image = "".join(f"<|vision_start|>{'<|image_pad|>' * n}<|vision_end|>" for n in cells)
    return tuple(
        t.encode(f"<|im_start|>user\n{text}{image}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)
    )
