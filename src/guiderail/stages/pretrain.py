"""Stage pretrain: random pages -> the tiny base model that ships in assets/tiny-vlm.

Reads nothing but its options (`--set key=value`); renders its own pages; writes a Hugging Face folder (float16
weights, manifest.json) with a model card that states what was measured. Goes on from its last shard and checkpoint
after a kill. Not part of the DAG: its output is committed.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from guiderail.checkpoints.manifest import sign_base
from guiderail.envs import chromium
from guiderail.models import tiny
from guiderail.stages.context import StageContext
from guiderail.stages.pretrain_options import read_options
from guiderail.train.pages import PER_SHEET, write_shard
from guiderail.train.pretrain import train
from guiderail.train.pretrain_follow import learn_following

MEASURED = {
    "click": "click: the named thing is hit",
    "point": "point: one coordinate within one grid step",
    "text": "text: next token of answers (copied words, thoughts, calls)",
    "follow_click": "following, any words: the thing named is hit",
    "follow_text": "following, any words: next token of thoughts and calls",
    "dense_kind": "dense: what kind of thing a quarter token shows",
    "dense_name": "dense: the whole word (about 900 candidates)",
    "dense_c1": "dense: its first letter",
    "recall": "dense: letters found in single patches",
}
CARD = """---
license: apache-2.0
pipeline_tag: image-text-to-text
library_name: transformers
---
# tiny-vlm: a Qwen3-VL of {millions:.1f} million parameters that points at words

A real `Qwen3VLForConditionalGeneration` (4 text layers, 4 vision blocks, width {hidden}, patch 16, merge 2) with its
own tokenizer ({vocab} tokens: bytes, whole tokens for common words, the points of a 41 x 41 grid). It sees a 160x224
screen as 35 image tokens. Weights are stored in float16 and meant to be loaded as float32.

**What it is for**: the embedded default of guiderail, so that the whole chain (SFT, RL, merge, evaluation) runs on two
CPU cores. It reads short words and points at them, roughly; it has never seen a benchmark page and does not know any
benchmark's instructions.

**How it was made**: `guiderail pretrain{options}`: {pages} random pages drawn by Chromium
(`src/guiderail/train/pages.js`); {glyph_steps} steps of single patches (which letters does a patch show), then {steps}
steps of pages: a dense loss on the vision output (what each quarter of an image token shows, and where) and, mostly
from step {read_first} on, next-token loss on pointing and copying (up to step {joint_from} with the vision tower
standing still, then together). Last come {follow_steps} steps of the text model alone: instructions of random words
with one to five names anywhere among them, to be followed in order, or a quoted text to type.

**Measured** on {held} draws from {held_out} held-out random pages, teacher-forced:

| what | accuracy |
|---|---|
{table}

`click` is a point within one grid step (4 x 5.6 pixels) on both axes. {time}
"""


def run(ctx: StageContext) -> None:
    """Render pages, train, write the folder. Raises ParamError on bad options, BrowserNotFound without a Chromium."""
    options = read_options(ctx.options)
    whole = {k: int(v) for k, v in options.items()}
    torch.set_num_threads(ctx.params.model.threads)
    tokenizer = tiny.build_tokenizer()
    processor = tiny.build_processor(tokenizer)
    model = tiny.build_model(tokenizer, seed=whole["seed"])
    folder: Path = ctx.work / "pages"
    folder.mkdir(exist_ok=True)
    browser = chromium.find(ctx.params.env.browser or None).path
    per = whole["sheets"] * PER_SHEET
    with ctx.progress(whole["shards"], "pages") as bar:
        for k in range(whole["shards"]):
            write_shard(folder / f"pages-{k:04d}", k * per, whole["sheets"], processor.image_processor, browser)
            bar.update()

    def shards() -> list[str]:
        return sorted(p.stem for p in folder.glob("pages-????.json"))

    began = time.perf_counter()
    scores = train(
        model,
        tokenizer,
        folder,
        ctx.work,
        steps=whole["steps"],
        batch=whole["batch"],
        lr=options["lr"],
        listing=options["listing"],
        read_first=whole["read_first"],
        joint_from=whole["joint_from"],
        glyph_steps=whole["glyph_steps"],
        seed=whole["seed"],
        bfloat16=whole["bfloat16"] > 0,
        say=ctx.say,
        available=shards,
    )
    scores |= learn_following(
        model,
        tokenizer,
        folder,
        ctx.work,
        steps=whole["follow_steps"],
        batch=whole["batch"],
        lr=options["follow_lr"],
        seed=whole["seed"],
        bfloat16=whole["bfloat16"] > 0,
        shards=shards(),
        say=ctx.say,
    )
    minutes = (time.perf_counter() - began) / 60
    ctx.tracker.log({f"heldout/{name}": value for name, value in scores.items()}, whole["steps"])
    tiny.save(model.half(), processor, str(ctx.out))
    card = CARD.format(
        millions=sum(p.numel() for p in model.parameters()) / 1e6,
        hidden=model.config.text_config.hidden_size,
        vocab=len(tokenizer),
        pages=whole["shards"] * per,
        held=8 * 64,
        held_out=per,
        options="".join(f" --set {k}={v}" for k, v in ctx.options.items()),
        glyph_steps=whole["glyph_steps"],
        steps=whole["steps"],
        read_first=whole["read_first"],
        joint_from=whole["joint_from"],
        follow_steps=whole["follow_steps"],
        table="\n".join(f"| {MEASURED[k]} | {v:.2f} |" for k, v in scores.items() if k in MEASURED),
        time=f"The last part of the training, since its last start, took {minutes:.0f} minutes.",
    )
    (ctx.out / "README.md").write_text(card)
    sign_base(ctx.out, options)
