"""The hf engine's batching across episodes against loops of single generates: its own, and transformers' `generate`.

`python benchmarks/hf_batching.py [--episodes 32] [--rounds 3]` prints completions per second of all three, back to back
and in turns, and the medians of the rounds' ratios, by wall clock and by this process's CPU seconds (one thread; the
latter hardly change when the machine is busy). Prompts are those of 32 episodes at their first step (every episode its
own task and frame, as when a collection starts); vision features are computed afresh in every round by all.

- single: the engine, one prompt a call; same seeds, and the tokens must be the same.
- transformers: what one would write without the engine: processor, `model.generate` with sampling at the same
  temperature, the same masked ids, log-probs from its scores. It draws other tokens, so each prompt is given the number
  of tokens that the engine sampled.

Not measured: environments, and the wait for the slowest member of a batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from guiderail.models.frames import FrameStore
from guiderail.models.loading import load_policy
from guiderail.models.policy import Policy
from guiderail.models.prompts import PromptBuilder
from guiderail.models.rows import Prompt as PromptIds
from guiderail.params import Model, Prompt
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.types import SamplingParams

KINDS = ("batched", "single", "transformers")


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


def library(policy: Policy, frames: FrameStore, prompts: list[PromptIds], lengths: list[int]) -> list[Any]:
    """transformers' own loop: (ids, log-probs) per prompt, `lengths` tokens each."""
    found = []
    for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        images = policy.processor.image_processor(images=[frames.get(f) for f in prompt.frames], return_tensors="pt")
        ids = torch.tensor([prompt.ids])
        torch.manual_seed(i)
        with torch.inference_mode():
            out = policy.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                mm_token_type_ids=(ids == policy.image_token_id).long(),
                **images,
                do_sample=True,
                temperature=0.7,
                top_k=0,
                top_p=1.0,
                min_new_tokens=length,
                max_new_tokens=length,
                eos_token_id=list(policy.stop_ids),
                pad_token_id=policy.stop_ids[-1],
                suppress_tokens=list(policy.suppressed_ids),
                return_dict_in_generate=True,
                output_scores=True,
            )
            new = out.sequences[0, ids.shape[1] :]
            logp = torch.stack(out.scores, 1)[0].log_softmax(-1).gather(1, new[:, None])
        found.append((new.tolist(), logp[:, 0].tolist()))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="assets/tiny-vlm")
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    policy = load_policy(Path(args.model), Model())
    builder = PromptBuilder(policy.tokenizer, Prompt(), policy.image_tokens, policy.resized)
    ratios: dict[tuple[str, str], list[float]] = {(k, c): [] for k in KINDS[1:] for c in ("wall", "cpu")}
    for round in range(-1, args.rounds):  # the first warms up
        frames = FrameStore(None)
        prompts = []
        for i in range(args.episodes):
            context = builder.context(f"click on the box {i}")
            context.observe(paint(frames, 1000 * (round + 1) + i), 160, 210)
            prompts.append(context.prompt())
        sampling = [SamplingParams(0.7, max_new_tokens=Prompt().max_new_tokens, seed=i) for i in range(len(prompts))]
        engine = HfEngine(policy, frames)
        lengths = [len(c.ids) for c in engine.generate(prompts, sampling)]
        ways: dict[str, Callable[[], Any]] = {
            "batched": lambda e=engine, p=prompts, s=sampling: e.generate(p, s),  # type: ignore[misc]
            "single": lambda e=engine, p=prompts, s=sampling: [  # type: ignore[misc]
                c for a, b in zip(p, s, strict=True) for c in e.generate([a], [b])
            ],
            "transformers": lambda f=frames, p=prompts, n=lengths: library(policy, f, p, n),  # type: ignore[misc]
        }
        kept: dict[str, Any] = {}
        spent: dict[tuple[str, str], float] = {}
        for kind in KINDS if round % 2 else KINDS[::-1]:
            policy.features.clear()
            frames._images.clear()  # decoded pixels: every way decodes its own
            wall, cpu = time.perf_counter(), time.process_time()
            kept[kind] = ways[kind]()
            spent[kind, "cpu"] = time.process_time() - cpu
            spent[kind, "wall"] = time.perf_counter() - wall
        if [c.ids for c in kept["single"]] != [c.ids for c in kept["batched"]]:
            raise SystemExit("the two did not sample the same tokens")
        if [len(ids) for ids, _ in kept["transformers"]] != lengths:
            raise SystemExit("transformers did not sample as many tokens")
        if round >= 0:
            for key, found in ratios.items():
                found.append(spent[key] / spent["batched", key[1]])
            n, tokens = len(prompts), sum(lengths)
            rates = ", ".join(
                f"{k} {n / spent[k, 'wall']:.1f}/s ({1000 * spent[k, 'cpu'] / n:.1f} ms CPU each)" for k in KINDS
            )
            print(f"round {round}: {n} completions of {tokens / n:.1f} tokens: {rates}", flush=True)
    for kind, clock in ratios:
        found = ratios[kind, clock]
        print(
            f"{kind} / batched, {clock} seconds, {args.episodes} episodes: {statistics.median(found):.2f} "
            f"({min(found):.2f} to {max(found):.2f}, {len(found)} rounds)"
        )


if __name__ == "__main__":
    main()
