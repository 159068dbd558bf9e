"""guiderail's trainer against TRL's GRPOTrainer: tokens per second on one model, one budget, one machine, in one run.

    python benchmarks/trainer_vs_trl.py --trl-python PATH [--groups 16] [--steps 3] [--rounds 2] [--mode lora|full]
        [--layout padded|packed]

TRL lives in an interpreter of its own:
    python3.11 -m venv DIR && DIR/bin/pip install -r benchmarks/peers/trl_requirements.txt

Made comparable: the same checkpoint in float32 with sdpa attention, vision tower frozen, the same adapters (or all
text weights); the same `--groups` prompts with a frame each, as the same token ids (the processor's chat template);
`--group-size` completions of exactly `--tokens` tokens each (stop tokens are barred on both sides) at temperature 0.7;
rewards from a hash of the completion; no KL; one AdamW step on all rows, in forwards of `--micro-batch` rows. TRL runs
without gradient checkpointing (its default, which costs it another forward) and without evaluation, saving or logging.
One thread each. Frames are new to both in every step; that the vision features of a frame are then computed once, for
all siblings and passes, is ours. So is a pass that scores all rows before the update (the gate), which TRL leaves out.
Tokens = prompt and completion tokens of all rows of a step. A step is sampling and training; "train" is without
sampling. The two take turns; each process's first step is not counted. CPU seconds depend least on what else the
machine does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

PEERS = Path(__file__).resolve().parent / "peers"
LIMIT_S = 3600.0


def write_job(folder: Path, args: argparse.Namespace) -> None:
    """Frames and prompts of a run."""
    prompts = []
    for i in range(args.groups):
        draw_at = np.random.default_rng(i)
        image = Image.new("RGB", (160, 210), "white")
        draw = ImageDraw.Draw(image)
        for k in range(4):
            x, y = (int(v) for v in draw_at.integers(0, (100, 170)))
            draw.rectangle([x, y, x + 50, y + 22], outline="black", fill=(int(draw_at.integers(256)), 200, 220))
            draw.text((x + 4, y + 4), f"ok {i}{k}", fill="black")
        image.save(folder / f"{i}.png")
        prompts.append({"text": f"Click on the box with the words ok {i}2.", "frame": f"{i}.png"})
    keys = ("groups", "group_size", "tokens", "micro_batch", "steps", "mode", "layout")
    job = {k: getattr(args, k) for k in keys} | {"temperature": 0.7, "model": str(Path(args.model).resolve())}
    (folder / "job.json").write_text(json.dumps(job | {"prompts": prompts}))


def run(python: str, script: str, folder: Path) -> dict[str, Any]:
    """What one side reports. Ends with its words when it fails."""
    command = [python, str(PEERS / script), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise SystemExit(f"{script} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def seconds(found: dict[str, Any], kind: int) -> tuple[float, float]:
    """Median (step, train) seconds; kind 0 by the clock, 1 of CPU."""
    whole = [s[kind] for s in found["steps"]]
    train = [s[kind] - g[kind] for s, g in zip(found["steps"], found["generate"], strict=True)]
    return statistics.median(whole), statistics.median(train)


def main() -> None:
    """Measure and print."""
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--trl-python", required=True)
    a.add_argument("--model", default="assets/tiny-vlm")
    a.add_argument("--mode", choices=("lora", "full"), default="lora")
    a.add_argument("--layout", choices=("padded", "packed"), default="padded")
    a.add_argument("--groups", type=int, default=16)
    a.add_argument("--group-size", type=int, default=8)
    a.add_argument("--tokens", type=int, default=24)
    a.add_argument("--micro-batch", type=int, default=16)
    a.add_argument("--steps", type=int, default=3)
    a.add_argument("--rounds", type=int, default=2)
    args = a.parse_args()
    sides = {"guiderail": (sys.executable, "run_grpo.py"), "TRL": (args.trl_python, "run_trl.py")}
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        write_job(Path(name), args)
        for n in range(args.rounds):
            found = {k: run(*side, Path(name)) for k, side in list(sides.items())[:: -1 if n % 2 else 1]}
            ours, theirs = found["guiderail"], found["TRL"]
            for what in ("tokens", "trained"):
                if ours[what] != theirs[what]:
                    raise SystemExit(f"not the same work: {what} {ours[what]} and {theirs[what]}")
            for side in sides:
                (wall, _), (step, train) = (seconds(found[side], kind) for kind in (0, 1))
                print(
                    f"round {n}: {side:>9}  {found[side]['tokens'] / wall:6.0f} tokens/s by the clock; per CPU second "
                    f"{found[side]['tokens'] / step:6.0f} (step), {found[side]['tokens'] / train:6.0f} (train)",
                    flush=True,
                )
            for kind, clock in enumerate(("clock", "CPU")):
                pairs = zip(seconds(ours, kind), seconds(theirs, kind), ("step", "train"), strict=True)
                for mine, other, part in pairs:
                    ratios.setdefault(f"{part}, {clock}", []).append(other / mine)
    print(f"{ours['tokens']} tokens and {ours['trained']} trained weights a step; guiderail / TRL:")
    for part, values in ratios.items():
        print(f"  {part}: {statistics.median(values):.2f}")


if __name__ == "__main__":
    main()
