"""Time: what a trajectory costs to sample and to train, how many screens keep the sampler busy, what is slowest.

Guarantees: pure arithmetic on a Setup and the rates of plan; each function states its formula. Floating-point
operations are multiply-adds times two; attention counts the causal half. Left out: queues, the last slow episode of an
iteration, weight hand-over, judges elsewhere; so rates are upper bounds of a healthy run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from guiderail.capacity.memory import kv_bytes
from guiderail.capacity.setup import TURN, Setup
from guiderail.params_plan import Plan


@dataclass(frozen=True)
class Rates:
    """Operations and bytes per second that one device reaches."""

    train: float
    prefill: float
    decode: float
    bandwidth: float

    @classmethod
    def of(cls, plan: Plan) -> Rates:
        """Of a GPU, or of this machine's CPUs (which are bound by operations throughout)."""
        if plan.gpus == 0:
            ops = plan.cpu_gflops * 1e9
            return cls(ops, ops, ops, math.inf)
        peak = plan.gpu_tflops * 1e12
        return cls(
            peak * plan.train_mfu, peak * plan.prefill_mfu, peak, plan.gpu_bandwidth_tbs * 1e12 * plan.decode_share
        )


def token_ops(s: Setup, context: float) -> float:
    """Forward of one token through the text layers with `context` tokens before it: 2 per weight of the linear layers,
    4 * q per layer and token attended."""
    weights = s.shape.layers * sum(a * b for a, b in s.shape.linears().values())
    return 2.0 * weights + 4.0 * s.shape.layers * s.shape.q * context


def head_ops(s: Setup) -> float:
    """Output head at one token."""
    return 2.0 * s.shape.hidden * s.shape.vocab


def frame_ops(s: Setup) -> float:
    """Vision tower on one frame, every patch attending to all."""
    h, f, patches = s.shape.v_hidden, s.shape.v_ffn, s.usual.frame * s.shape.merge**2
    block = 2.0 * (4 * h * h + (3 if s.shape.bias else 2) * h * f) + 4.0 * h * patches
    return patches * s.shape.v_depth * block


def trajectory_tokens(s: Setup, steps: float) -> tuple[float, float]:
    """(tokens of all chunks, answer tokens) of a trajectory of `steps`."""
    chunks, c = math.ceil(steps / s.usual.steps), s.usual
    return chunks * c.head + steps * (c.frame + c.answer + TURN), steps * c.answer


def train_seconds(s: Setup, rates: Rates, steps: float, epochs: float | None = None) -> float:
    """Of all actors together, per trajectory: one scoring forward (two with a reference), then per epoch forward and
    backward: 3 forwards' worth for full training, 2 where only adapters need gradients, one more with recompute."""
    tokens, answers = trajectory_tokens(s, steps)
    forward = tokens * token_ops(s, s.usual.tokens / 2) + answers * head_ops(s)
    passes = (3.0 if s.rl.mode == "full" else 2.0) + (1.0 if s.recompute else 0.0)
    scored = 2.0 if s.rl.kl_coef > 0 else 1.0
    times = (s.rl.epochs if epochs is None else epochs) * passes + (scored if epochs is None else 0.0)
    frames = steps * frame_ops(s)
    return (forward * times + frames) / rates.train


@dataclass(frozen=True)
class StepCost:
    """One environment step of the sampler: device seconds, and the seconds one episode waits for its answer."""

    device_s: float
    latency_s: float


def step_cost(s: Setup, rates: Rates) -> StepCost:
    """Append-only contexts with kept keys and values: a step reads its own frame and text (and, once a chunk, the
    head), then writes the answer token by token. A decoding step reads all text weights once for all sequences at a
    time, and each one's keys and values."""
    c, batch = s.usual, max(1, s.concurrent)
    fresh = c.frame + TURN + c.head / c.steps
    prefill = (fresh * token_ops(s, c.tokens / 2) + frame_ops(s)) / rates.prefill
    read = (s.shape.text * s.width + batch * kv_bytes(s, c.tokens // 2)) / rates.bandwidth
    compute = batch * (token_ops(s, c.tokens / 2) + head_ops(s)) / rates.decode
    token = max(read, compute)
    return StepCost(prefill + c.answer * token / batch, prefill + c.answer * token)


@dataclass(frozen=True)
class Forecast:
    """What to expect. screens: how many keep the samplers busy (Little 1961: L = lambda * W). *_s: of one iteration."""

    sampler_steps_s: float
    screen_steps_s: float
    wait_s: float
    screens: float
    rollout_s: float
    train_s: float
    trajectories_h: float
    bottleneck: str


def forecast(s: Setup, plan: Plan, slots: int, overlap: bool) -> Forecast:
    """overlap: samplers go on while the trainer trains (asynchronous, on devices of their own)."""
    rates, steps = Rates.of(plan), plan.episode_steps
    cost, n = step_cost(s, rates), s.rl.groups * s.rl.group_size
    sampler = s.rollout / cost.device_s
    wait = cost.latency_s + ((plan.action_s + plan.reset_s / steps) if s.online else 0.0)
    busy = min(slots, n) if s.online else n
    by_screens = busy / wait if s.online else math.inf
    rollout = n * steps / min(sampler, by_screens)
    train = n * train_seconds(s, rates, steps) / s.actor
    iteration = max(rollout, train) if overlap else rollout + train
    bottleneck = "training" if rollout < train else "screens" if by_screens < sampler else "sampling"
    return Forecast(sampler, by_screens, wait, sampler * wait, rollout, train, 3600.0 * n / iteration, bottleneck)
