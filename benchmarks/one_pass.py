"""What a trajectory costs to train on: rows of chunks against one row per step with a window of past frames.

    python benchmarks/one_pass.py [--steps 30] [--chunk 8] [--windows 3 5] [--scale 4] [--rounds 3]

First table: one trajectory of `--steps` steps. Its frames have the token count of 1280x720 (880) divided by `--scale`
along each side; its answers are thoughts and clicks of the embedded codec. "chunk 8": rows of up to 8 frames with 8
answers trained in one forward, as guiderail trains. "window 5": one row per step, which shows the last 5 frames with
the answers between them and trains the last answer alone, as the reference systems do. Both have the same prompts
otherwise, the same frozen vision features (computed beforehand), logits at answer tokens alone, and at most `--budget`
tokens per forward. Tokens are the rows' own; seconds are CPU seconds of one thread, forward and backward, in turns,
and the ratio is the median of the rounds' ratios.

Second table: a group of siblings, padded against packed (rl.layout): no padding, equal beginnings computed once.
Siblings start at one frame, and every later step of theirs is their own.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from guiderail.models.frames import FrameStore
from guiderail.models.loading import load_policy
from guiderail.models.policy import Policy
from guiderail.models.prompts import SUMMARY_STEPS, Context, PromptBuilder
from guiderail.models.rows import ChunkRow
from guiderail.params import Model, Prompt
from guiderail.params_train import Layout, Lora
from guiderail.train.batch import microbatches
from guiderail.train.optim import select_trainable

INSTRUCTION = "Open the settings, turn on the dark theme, and save."
Step = tuple[str, str, str]  # frame digest, thought, action


def opened(path: str, pixels: int, mode: str) -> Policy:
    """The policy, with frames of up to `pixels` pixels left as large as they are, ready to train."""
    policy = load_policy(Path(path), Model(device="cpu"))
    images = policy.processor.image_processor
    images.size = type(images.size)(**{**dict(images.size), "longest_edge": pixels})
    policy = Policy(policy.model, policy.processor)
    select_trainable(policy.model, "lora" if mode == "lora" else "full", lora=Lora(), train_vision=False, seed=0)
    return policy


def trajectory(frames: FrameStore, steps: int, width: int, height: int, number: int, shared: int = 0) -> list[Step]:
    """Steps with a frame each; the first `shared` are the same for every `number`."""
    made = []
    for i in range(steps):
        own = np.random.default_rng([i, 0 if i < shared else number + 1])
        out = io.BytesIO()
        blocks = own.integers(0, 255, (6, 10, 3), dtype=np.uint8)
        Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST).save(out, "PNG")
        own = np.random.default_rng([i, number + 1])  # the answer to a shared frame is the sibling's own
        x, y = (int(v) for v in own.integers(0, 40, 2))
        thought = f"Click the {['left', 'right', 'upper', 'lower'][x % 4]} button."
        made.append((frames.put(out.getvalue()), thought, f"CLICK(x={x / 40:.3f}, y={y / 40:.3f})"))
    return made


def fill(context: Context, builder: PromptBuilder, steps: list[Step], size: tuple[int, int]) -> list[ChunkRow]:
    """Rows of `steps` in `context`."""
    for frame, thought, action in steps:
        context.observe(frame, *size)
        ids = builder.completion_ids(f"Action: {thought}\n{action}")
        context.complete(ids, [0.0] * len(ids), thought, action)
    return context.rows()


def chunk_rows(policy: Policy, steps: list[Step], size: tuple[int, int], chunk: int) -> list[ChunkRow]:
    """One row per `chunk` steps."""
    builder = PromptBuilder(policy.tokenizer, Prompt(chunk_steps=chunk), policy.image_tokens, policy.resized)
    return fill(builder.context(INSTRUCTION), builder, steps, size)


def window_rows(policy: Policy, steps: list[Step], size: tuple[int, int], window: int) -> list[ChunkRow]:
    """One row per step: the last `window` frames, the steps before them as text, the last answer trained."""
    builder = PromptBuilder(policy.tokenizer, Prompt(chunk_steps=window), policy.image_tokens, policy.resized)
    rows = []
    for t in range(len(steps)):
        first = max(0, t + 1 - window)
        done = [thought for _, thought, _ in steps[:first]][-SUMMARY_STEPS:]
        context = builder.context(INSTRUCTION + ("\nDone: " + "; ".join(done) if done else ""))
        (row,) = fill(context, builder, steps[first : t + 1], size)
        start, end = row.spans[-1]
        rows.append(ChunkRow(row.ids, row.frames, ((start, end),), row.logprobs[start - end :], (t,)))
    return rows


def parts_of(rows: list[ChunkRow], budget: int, layout: Layout) -> list[list[int]]:
    """Row indices per forward of at most `budget` tokens (at least one row)."""
    if layout == "packed":  # as one stretch of rows after the other
        parts: list[list[int]] = [[]]
        for i, row in enumerate(rows):
            if parts[-1] and sum(len(rows[k].ids) for k in parts[-1]) + len(row.ids) > budget:
                parts.append([])
            parts[-1].append(i)
        return parts
    return microbatches(rows, range(len(rows)), max(1, budget // max(len(r.ids) for r in rows)))


def train_once(policy: Policy, rows: list[ChunkRow], frames: FrameStore, budget: int, layout: Layout) -> float:
    """CPU seconds of forward and backward over all rows."""
    started = time.process_time()
    for part in parts_of(rows, budget, layout):
        out = policy.logprobs([rows[i] for i in part], frames, grad=True, layout=layout)
        (-out.logp.sum()).backward()  # type: ignore[no-untyped-call]
    seconds = time.process_time() - started
    policy.model.zero_grad(set_to_none=True)
    return seconds


def timed(
    policy: Policy, frames: FrameStore, kinds: dict[str, tuple[list[ChunkRow], Layout]], budget: int, rounds: int
) -> dict[str, list[float]]:
    """Seconds of each kind per round; the kinds take turns, the first round is not kept."""
    policy.features.get([f for rows, _ in kinds.values() for r in rows for f in r.frames], frames)
    took: dict[str, list[float]] = {k: [] for k in kinds}
    for k in range(rounds + 1):
        for name in list(kinds)[:: -1 if k % 2 else 1]:
            seconds = train_once(policy, kinds[name][0], frames, budget, kinds[name][1])
            if k:
                took[name].append(seconds)
    return took


def computed(policy: Policy, rows: list[ChunkRow], frames: FrameStore, budget: int, layout: Layout) -> int:
    """Tokens that the forwards run over, padding included."""
    total = 0
    for part in parts_of(rows, budget, layout):
        inputs = [(rows[i].ids[: rows[i].spans[-1][1] - 1], rows[i].frames) for i in part]
        embeds = (policy.pack if layout == "padded" else policy.pack_flat)(inputs, frames).embeds
        total += embeds.shape[0] * embeds.shape[1]
    return total


def main() -> None:
    """Measure and print."""
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", default="assets/tiny-vlm")
    a.add_argument("--mode", choices=("lora", "full"), default="lora")
    a.add_argument("--steps", type=int, default=30)
    a.add_argument("--chunk", type=int, default=8)
    a.add_argument("--windows", type=int, nargs="+", default=[3, 5])
    a.add_argument("--scale", type=int, default=4, help="1280x720 is divided by it along each side")
    a.add_argument("--budget", type=int, default=4096, help="tokens per forward")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--siblings", type=int, default=8)
    a.add_argument("--lengths", type=int, nargs="*", default=[1, 3, 8], help="episode lengths of the second table")
    args = a.parse_args()
    torch.set_num_threads(1)
    size = (1280 // args.scale, 720 // args.scale)
    policy, frames = opened(args.model, 2 * size[0] * size[1], args.mode), FrameStore(None)
    print(f"frames {size[0]}x{size[1]}: {policy.image_tokens(*size)} tokens; mode {args.mode}")

    steps = trajectory(frames, args.steps, *size, number=0)
    kinds: dict[str, tuple[list[ChunkRow], Layout]] = {}
    chunk = f"chunk {args.chunk}"
    kinds[chunk] = chunk_rows(policy, steps, size, args.chunk), "padded"
    kinds |= {f"window {w}": (window_rows(policy, steps, size, w), "padded") for w in args.windows}
    answers = [np.concatenate([r.ids[s:e] for r in rows for s, e in r.spans]) for rows, _ in kinds.values()]
    if not all(np.array_equal(answers[0], other) for other in answers):
        raise SystemExit("the kinds do not train the same tokens")
    took = timed(policy, frames, kinds, args.budget, args.rounds)
    print(f"\n{args.steps} steps, {len(answers[0])} trained tokens")
    print("            rows  tokens  seconds  tokens x  seconds x")
    base = sum(len(r.ids) for r in kinds[chunk][0])
    for name, (rows, _) in kinds.items():
        tokens = sum(len(r.ids) for r in rows)
        ratio = statistics.median(x / y for x, y in zip(took[name], took[chunk], strict=True))
        seconds = statistics.median(took[name])
        print(f"{name:>10}  {len(rows):4d}  {tokens:6d}  {seconds:7.2f}  {tokens / base:8.2f}  {ratio:9.2f}")

    print(f"\n{args.siblings} siblings, chunk {args.chunk}")
    print("steps  rows  tokens padded  packed  seconds padded  packed  tokens x  seconds x")
    for length in args.lengths:
        rows = [
            r
            for n in range(args.siblings)
            for r in chunk_rows(policy, trajectory(frames, length, *size, number=n, shared=1), size, args.chunk)
        ]
        both: dict[str, tuple[list[ChunkRow], Layout]] = {"padded": (rows, "padded"), "packed": (rows, "packed")}
        took = timed(policy, frames, both, args.budget, args.rounds)
        run = {k: computed(policy, rows, frames, args.budget, layout) for k, (_, layout) in both.items()}
        ratio = statistics.median(x / y for x, y in zip(took["padded"], took["packed"], strict=True))
        s = {k: statistics.median(v) for k, v in took.items()}
        wide = f"{run['padded']:13d}  {run['packed']:6d}"
        took_s = f"{s['padded']:14.2f}  {s['packed']:6.2f}"
        print(f"{length:5d}  {len(rows):4d}  {wide}  {took_s}  {run['padded'] / run['packed']:8.2f}  {ratio:9.2f}")


if __name__ == "__main__":
    main()
