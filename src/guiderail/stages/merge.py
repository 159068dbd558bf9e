"""merge: what RL left becomes one Hugging Face folder that anybody can load, verified on frames of the demonstrations.

Reads results/rl/R/seedS/checkpoint, its lineage and results/demos (params merge, model, prompt). Writes the folder
with processor, manifest.json and verify.json, and registers it with the tracker as candidate and under the alias
R-seedS.
"""

from __future__ import annotations

import torch

from guiderail.checkpoints.merge import merge_linear, merge_lora
from guiderail.checkpoints.verify import reference_policy, verify
from guiderail.provenance import manifest_digest
from guiderail.stages import paths
from guiderail.stages.context import StageContext
from guiderail.stages.promotion import registered_name
from guiderail.train.demos import load_demos
from guiderail.train.start import write_json

PROBE_EPISODES = 8


def run(ctx: StageContext, recipe: str, seed: str) -> None:
    """Merge one recipe and seed."""
    p = ctx.params
    end = paths.rl(recipe, seed) / "checkpoint"
    linear, dtype = p.merge.method == "linear", getattr(torch, p.model.dtype)
    if linear:
        merged = merge_linear(end, ctx.out, p.merge.weight, recipe, ctx.seed, dtype)
    else:
        merged = merge_lora(end, ctx.out, recipe, ctx.seed, dtype)

    reference = reference_policy(end, p.model, p.merge.weight if linear else None)
    demos = load_demos(paths.demos(), reference, p.prompt, limit=PROBE_EPISODES)
    found = verify(ctx.out, reference, demos.rows, demos.frames, p.model, p.merge.tolerance)

    write_json(ctx.out / "verify.json", found)
    ctx.tracker.log({"merge.max_abs_logit_difference": found["max_abs_logit_difference"]}, 0)
    digest = manifest_digest(ctx.out) or ""
    ctx.tracker.register_model(ctx.out, registered_name(merged.trained_on.suite), digest)
    ctx.say(
        f"logits within {found['max_abs_logit_difference']:.2g} of adapter and base on {len(demos.rows)} probe rows"
    )
