"""The hf engine's batching across episodes against a loop of single generates, same prompts, seeds and weights.

`python benchmarks/hf_batching.py [--episodes 32] [--rounds 3]` prints completions per second of both, back to back and
in turns, and the median of the rounds' ratios. Prompts are those of 32 episodes at their first step (every episode its
own task and frame, as when a collection starts); vision features are computed afresh in every round by both.
Not measured: environments, and the wait for the slowest member of a batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from guiderail.models.frames import FrameStore
from guiderail.models.loading import load_policy
from guiderail.models.prompts import PromptBuilder
from guiderail.models.rows import Prompt as PromptIds
from guiderail.params import Model, Prompt
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.types import SamplingParams


def paint(frames: FrameStore, number: int) -> str:
    """A page of its own: a few boxes and words."""
    import io

    draw_at = np.random.default_rng(number)
    image = Image.new("RGB", (160, 210), "white")
    draw = ImageDraw.Draw(image)
    for k in range(4):
        x, y = (int(v) for v in draw_at.integers(0, (100, 170)))
        draw.rectangle([x, y, x + 50, y + 22], outline="black", fill=(int(draw_at.integers(256)), 200, 220))
        draw.text((x + 4, y + 4), f"ok {number}{k}", fill="black")
    out = io.BytesIO()
    image.save(out, "PNG")
    return frames.put(out.getvalue())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="assets/tiny-vlm")
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    policy = load_policy(Path(args.model), Model())
    builder = PromptBuilder(policy.tokenizer, Prompt(), policy.image_tokens, policy.resized)
    ratios, kept = [], {}
    for round in range(-1, args.rounds):  # the first warms up
        frames = FrameStore(None)
        prompts = []
        for i in range(args.episodes):
            context = builder.context(f"click on the box {i}")
            context.observe(paint(frames, 1000 * (round + 1) + i), 160, 210)
            prompts.append(context.prompt())
        sampling = [SamplingParams(0.7, max_new_tokens=Prompt().max_new_tokens, seed=i) for i in range(len(prompts))]
        seconds = {}
        for kind in ("batched", "single") if round % 2 else ("single", "batched"):
            policy.features.clear()
            started = time.perf_counter()
            kept[kind] = generate(HfEngine(policy, frames), prompts, sampling, batched=kind == "batched")
            seconds[kind] = time.perf_counter() - started
        if [c.ids for c in kept["single"]] != [c.ids for c in kept["batched"]]:
            raise SystemExit("the two did not sample the same tokens")
        if round >= 0:
            ratios.append(seconds["single"] / seconds["batched"])
            rates = {k: f"{len(prompts) / s:.1f}/s" for k, s in seconds.items()}
            print(f"round {round}: single {rates['single']}, batched {rates['batched']}, ratio {ratios[-1]:.2f}")
    print(f"batched / single, {args.episodes} episodes: {statistics.median(ratios):.2f} (median of {len(ratios)})")


def generate(engine: HfEngine, prompts: list[PromptIds], sampling: list[SamplingParams], *, batched: bool) -> Any:
    """All completions, in one batch or one by one."""
    if batched:
        return engine.generate(prompts, sampling)
    return [c for p, s in zip(prompts, sampling, strict=True) for c in engine.generate([p], [s])]


if __name__ == "__main__":
    main()
