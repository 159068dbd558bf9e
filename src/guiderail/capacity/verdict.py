"""Does it fit, how fast may it be, what to change: the reckoning of one recipe in words.

Guarantees: a run that does not fit has at least one problem, and each names what is too large, by how much, and the
parameters that would change it. What fits by this reckoning may still not fit: it is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

from guiderail.capacity.memory import HEADROOM, Device, kv_bytes, learner, loading_bytes, sampler
from guiderail.capacity.setup import Setup, setup
from guiderail.capacity.shapes import Shape
from guiderail.capacity.work import Forecast, forecast, trajectory_tokens
from guiderail.params import Params
from guiderail.params_plan import Plan

GB = 1e9
INSIDE = "inside vLLM's share"


def counted(n: float) -> str:
    """How many parameters: 8.77 billion, or 2.9 million."""
    return f"{n / 1e9:.2f} billion" if n >= 1e9 else f"{n / 1e6:.1f} million"


def size(b: float) -> str:
    """Bytes with a unit that leaves something to read: 24.75 GB, 37 MB."""
    return f"{b / GB:.2f} GB" if b >= GB / 10 else f"{b / 1e6:.0f} MB" if b >= 5e5 else "0"


@dataclass(frozen=True)
class Report:
    """One recipe, reckoned."""

    recipe: str
    setup: Setup
    devices: tuple[Device, ...]
    forecast: Forecast
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The report in words, problems last."""
        s, f, c = self.setup, self.forecast, self.setup.longest
        told = [f"recipe {self.recipe}: {s.rl.algorithm}, {s.rl.mode}, {counted(s.shape.total)} parameters"]
        told.append(
            f"  chunk: {c.tokens} tokens at most = {c.head} head + {c.steps} x ({c.frame} frame of "
            f"{s.screen[0]}x{s.screen[1]} + {c.answer} answer + marks)"
        )
        for d in self.devices:
            told.append(
                f"  {d.role} x {d.count}: {size(d.total)} of {d.limit / GB:.1f} GB"
                + ("" if d.fits else f", more than {HEADROOM:.0%} of it: DOES NOT FIT")
            )
            parts = [f"{n} {size(b)}" for n, b in d.parts().items()]
            told.append("    " + ", ".join(parts + ([f"loading {size(d.loading)}"] if d.loading else [])))
        tokens, _ = trajectory_tokens(s, 1.0 if s.usual.steps == 1 else float(s.usual.steps))
        told.append(f"  training: about {tokens:.0f} tokens per chunk as answers usually are")
        if s.online:
            told.append(
                f"  screens: {f.screens:.0f} keep the sampler busy ({f.sampler_steps_s:.2f} steps/s x {f.wait_s:.2f} s "
                "between a screen's steps, Little's law)"
            )
        told.append(
            f"  iteration: sampling {f.rollout_s:.0f} s, training {f.train_s:.0f} s; slowest: {f.bottleneck}; at most "
            f"{f.trajectories_h:.0f} trajectories/h"
        )
        told += [f"  note: {n}" for n in self.notes]
        told += [f"  PROBLEM: {x}" for x in self.problems]
        return told


def devices(p: Params, s: Setup, limit: int) -> tuple[Device, ...]:
    """What each kind of device holds: warm-up, then training and sampling, on one device or apart."""
    vision, rl = p.model.train_vision, s.rl
    held, training = learner(s, p.sft, s.longest, shards=1, trained=s.trainable(p.sft, vision), reference=False)
    found = [Device("warm-up (sft)", 1, held, training, {}, limit)]
    held, training = learner(
        s, rl, s.longest, shards=s.actor, trained=s.trainable(rl, vision), reference=rl.kl_coef > 0
    )
    sampling = sampler(s, rl.mode)
    share = round(p.engine.gpu_memory * limit)
    inside = {"weights": s.shape.total * s.width, "keys and values of one": kv_bytes(s, s.longest.tokens)}
    if not s.shared:
        first = loading_bytes(s, shards=s.actor, reference=rl.kl_coef > 0) if s.actor > 1 else 0
        found.append(Device("actor (rl)", s.actor, held, training, {}, limit, first))
        found.append(Device("rollout (rl)", s.rollout, {"weights": s.shape.total * s.width}, {}, sampling, limit))
        if s.vllm and p.plan.gpus:
            found.append(Device(INSIDE, s.rollout, inside, {}, {}, share))
    elif s.vllm and p.plan.gpus:
        found.append(Device("trainer and server (rl)", 1, held | {"vLLM's share": share}, training, {}, limit))
        found.append(Device(INSIDE, 1, inside, {}, {}, share))
    else:
        found.append(Device("trainer and sampler (rl)", 1, held, training, sampling, limit))
    return tuple(found)


def reckon(p: Params, shape: Shape, recipe: str, host_bytes: int) -> Report:
    """Reckon one recipe. host_bytes: memory of this machine, which counts when plan.gpus is 0."""
    s, plan = setup(p, shape, recipe), p.plan
    limit = round(plan.gpu_memory_gb * GB) if plan.gpus else host_bytes
    found = devices(p, s, limit)
    overlap = not s.shared and getattr(getattr(s.rl, "collection", None), "mode", "sync") == "async"
    told = forecast(s, plan, p.env.slots, overlap)
    problems = [_too_large(p, s, d) for d in found if not d.fits]
    problems += _counts(p, s, plan)
    return Report(recipe, s, found, told, tuple(problems), tuple(_notes(p, s, told)))


def _too_large(p: Params, s: Setup, d: Device) -> str:
    """What to change, for the largest part first."""
    largest = max(d.parts(), key=lambda n: d.parts()[n])
    row = "sft" if d.role.startswith("warm-up") else "rl"
    ways = {
        "activations": f"lower prompt.chunk_steps ({p.prompt.chunk_steps}) or {row}.micro_batch, a smaller screen"
        + ("" if s.recompute else ", or model.recompute: true"),
        "logits": f"lower prompt.max_new_tokens ({p.prompt.max_new_tokens}) or {row}.micro_batch",
        "keys and values": f"lower env.slots ({p.env.slots}) or engine.max_seqs ({p.engine.max_seqs})",
        "weights": "more actors (trainer.kind: ray), a smaller model, or model.dtype: bfloat16",
        "vLLM's share": f"lower engine.gpu_memory ({p.engine.gpu_memory})",
    }
    ways |= dict.fromkeys(("optimizer", "gradients"), f"{row}.mode: lora, more actors (trainer.kind: ray)")
    if d.role == INSIDE:
        ways |= dict.fromkeys(d.parts(), f"raise engine.gpu_memory ({p.engine.gpu_memory}), or take a smaller model")
    ways |= {"reference": f"{row}.kl_coef: 0, which needs no frozen copy", "unfolded copy": "engine.kind: vllm"}
    need = d.total / GB - HEADROOM * d.limit / GB
    way = ways.get(largest, "a smaller model or a larger device")
    if d.loading > d.running:
        return (
            f"{d.role}: {d.total / GB:.1f} GB while the model is loaded, which every actor does whole before it is "
            f"sharded, do not fit into {HEADROOM:.0%} of {d.limit / GB:.1f} GB ({need:.1f} too much): a smaller model, "
            "a larger device" + (f", or {row}.kl_coef: 0" if "reference" in d.held else "")
        )
    return (
        f"{d.role}: {d.total / GB:.1f} GB do not fit into {HEADROOM:.0%} of {d.limit / GB:.1f} GB ({need:.1f} too "
        f"much); most is {largest} ({d.parts()[largest] / GB:.1f}): {way}"
    )


def _counts(p: Params, s: Setup, plan: Plan) -> list[str]:
    """GPUs asked for against GPUs there are."""
    found = []
    if plan.gpus and p.resources.rl.gpu > plan.gpus:
        found.append(f"resources.rl.gpu = {p.resources.rl.gpu}, plan.gpus = {plan.gpus}: no node could ever run it")
    if plan.gpus and not s.shared:
        t = p.trainer
        if t.processes > plan.gpus:
            found.append(
                f"trainer.actor + trainer.rollout + trainer.prm = {t.actor} + {t.rollout} + {t.prm}, plan.gpus = "
                f"{plan.gpus}: lower one of them"
            )
        if not t.gpus:
            found.append(
                f"trainer.gpus = 0, plan.gpus = {plan.gpus}: its processes would run on CPUs; set trainer.gpus"
            )
    return found


def _notes(p: Params, s: Setup, f: Forecast) -> list[str]:
    found = []
    if s.online and f.bottleneck == "screens":
        n = s.rl.groups * s.rl.group_size
        short = "env.slots" if p.env.slots < n else "rl.groups or rl.group_size"
        found.append(f"screens are the bottleneck: {f.screens:.0f} would keep the sampler busy; raise {short}")
    if s.online and p.env.slots > s.rl.groups * s.rl.group_size:
        found.append(
            f"env.slots = {p.env.slots}: an iteration has {s.rl.groups * s.rl.group_size} episodes, so some stay idle"
        )
    if f.bottleneck == "training" and not s.recompute and s.rl.epochs > 1:
        found.append(f"training is the bottleneck: rl.epochs = {s.rl.epochs} passes over each trajectory")
    return found
