"""What a command is, and what `guiderail --help` says about each stage: free of imports that cost time."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command around the chain: what its help says, what adds its options, what runs it."""

    text: str
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


@dataclass(frozen=True)
class StageHelp:
    """One stage as its help page tells it. `axes`: options that choose the point of the matrix; `uses`: services."""

    title: str
    does: str
    reads: str
    writes: str
    params: str
    next: str
    axes: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()

    def page(self, name: str) -> str:
        """The body of `guiderail <name> --help`."""
        example = " ".join([f"guiderail {name}", *(f"--{a} {AXES[a][1]}" for a in self.axes)])
        rows = [
            ("reads", self.reads),
            ("writes", self.writes),
            ("parameters", f"{self.params} (params.yaml)"),
            ("example", example),
            ("then", self.next),
        ]
        return self.does + "\n\n" + "\n".join(f"  {k:<11} {v}" for k, v in rows)


AXES = {
    "recipe": ("a key of `recipes` in params.yaml", "grpo"),
    "seed": ("training seed, a whole number", "0"),
    "benchmark": ("one of sweep.benchmark in params.yaml", "miniwob"),
}

STAGES = {
    "provision": StageHelp(
        "choose tasks and splits, test them",
        "Write the hashed manifest of task instances (train, fresh, held-out) and try each template with its scripted\n"
        "expert, with no action and with random clicks.",
        "the pages of the suite",
        "results/provision/ (tasks.json, selftest.json)",
        "provision, env",
        "guiderail demos",
        uses=("env-pool",),
    ),
    "demos": StageHelp(
        "record expert demonstrations",
        "Let the scripted experts solve train tasks in the browser and record what they saw, thought and did.",
        "results/provision/tasks.json",
        "results/demos/ (demos.jsonl, frames/; recorded/ for benchmark sop)",
        "demos, env",
        "guiderail sft --seed 0",
        uses=("env-pool",),
    ),
    "sft": StageHelp(
        "warm up on demonstrations",
        "Supervised training on the demonstrations, thought line included.\n"
        "Goes on from its last checkpoint after a kill.",
        "results/demos/, model.path",
        "results/sft/seedS/ (checkpoint/, curves.jsonl, metrics.json)",
        "sft, prompt, model",
        "guiderail prm --recipe grpo --seed 0",
        axes=("seed",),
    ),
    "prm": StageHelp(
        "train a judge of steps",
        "Train a small process reward model on steps that the state judge labels; measure it on held-out templates.\n"
        "A recipe that asks none gets an empty output in a second. Goes on from its last checkpoint after a kill.",
        "results/sft/seedS/checkpoint, results/provision/tasks.json, model.path",
        "results/prm/R/seedS/ (judge/, metrics.json, steps.jsonl, judged.jsonl)",
        "prm, rl.step_wise, recipes.R, prompt, model, env",
        "guiderail rl --recipe grpo --seed 0",
        axes=("recipe", "seed"),
        uses=("env-pool",),
    ),
    "rl": StageHelp(
        "train by reinforcement",
        "Roll out groups of episodes, in the browser or along the demonstrations, and improve the policy (GRPO,\n"
        "step-wise and semi-online recipes, in one or several phases).\n"
        "Goes on from its last checkpoint after a kill.",
        "results/sft/seedS/checkpoint, results/provision/tasks.json, results/demos/",
        "results/rl/R/seedS/ (checkpoint/, curves.jsonl, metrics.json, rollouts/)",
        "rl, recipes.R, engine, prompt, model, env",
        "guiderail merge --recipe grpo --seed 0",
        axes=("recipe", "seed"),
        uses=("env-pool", "engine"),
    ),
    "merge": StageHelp(
        "make one checkpoint of adapter and base",
        "Merge into one Hugging Face folder (safetensors, processor, manifest) and verify it: reload, logits, hashes.",
        "results/rl/R/seedS/checkpoint, results/sft/seedS/checkpoint",
        "results/merge/R/seedS/model/",
        "merge",
        "guiderail evaluate --recipe grpo --seed 0 --benchmark miniwob",
        axes=("recipe", "seed"),
    ),
    "evaluate": StageHelp(
        "measure success",
        "Run base, SFT and RL checkpoints on train, fresh and held-out tasks, with confidence intervals.\n"
        "Benchmarks: miniwob (pages), sop (recorded episodes), android_control_sop, _high, _low (a file of them).\n"
        "Any checkpoint, without the chain: guiderail evaluate --model FOLDER --benchmark miniwob\n"
        "Refuses tasks that the checkpoint was trained on.",
        "results/merge/R/seedS/model, results/sft/seedS/checkpoint, results/provision/tasks.json",
        "results/evaluate/R/seedS/B/ (episodes.parquet, metrics.json, frames/)",
        "evaluate, prompt, model, env",
        "guiderail report",
        axes=("recipe", "seed", "benchmark"),
        uses=("env-pool",),
    ),
    "report": StageHelp(
        "tables, curves and film strips",
        "Put the whole sweep into tables and figures.",
        "results/",
        "results/report/ (report.md, *.csv, figures/, summary.json)",
        "report, sweep",
        "open results/report/report.md, or `guiderail ui`",
    ),
}
