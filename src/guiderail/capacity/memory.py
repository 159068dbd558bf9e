"""Memory of each device, part by part.

Guarantees: each part states its formula; what is held all the time is added, what training and sampling hold by turns
counts as the larger of the two. Estimates, not measurements: weights, gradients and optimiser are exact counts,
activations follow what the text model's forward saves (tested against autograd on the small model), fragmentation and
the runtime's own are covered by HEADROOM alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from guiderail.capacity.setup import Chunk, Setup
from guiderail.params_train import Rl, Tuning

HEADROOM = 0.92  # of a device that a plan may use
GATHERED = 2  # FSDP: layers that are whole at a time (the one at work, the next one on its way)


@dataclass(frozen=True)
class Device:
    """One kind of device: its role, how many there are, bytes by part, and what it has. loading: before it begins."""

    role: str
    count: int
    held: dict[str, int]
    training: dict[str, int]
    sampling: dict[str, int]
    limit: int
    loading: int = 0

    @property
    def running(self) -> int:
        """Bytes needed once it has begun."""
        return sum(self.held.values()) + max(sum(self.training.values()), sum(self.sampling.values()))

    @property
    def total(self) -> int:
        """Bytes needed."""
        return max(self.running, self.loading)

    @property
    def fits(self) -> bool:
        """Whether it does, with headroom."""
        return self.total <= HEADROOM * self.limit

    def parts(self) -> dict[str, int]:
        """All parts by name, in order."""
        return self.held | self.training | self.sampling


def layer_bytes(s: Setup) -> int:
    """What one text layer saves for the backward pass, per token.

    Numbers, h hidden, q and kv widths of all heads, f ffn. float32: inputs and outputs of both norms (4h), queries and
    keys before their norm (q + kv), rotated queries, keys and values repeated to all heads (3q), attention out and its
    copy (2q), gate, silu(gate), up and their product (4f). Below float32 the library's norms keep float32 copies beside
    their result: 8h, 3(q + kv) + 5q.
    """
    h, q, kv, f = s.shape.hidden, s.shape.q, s.shape.kv, s.shape.ffn
    if s.width == 4:
        return 4 * (4 * h + 6 * q + kv + 4 * f)
    return s.width * (8 * h + 8 * q + 3 * kv + 4 * f)


def activation_bytes(s: Setup, tokens: int) -> int:
    """Saved for the backward pass of `tokens`: every layer, or with recompute its input and one layer whole."""
    one = layer_bytes(s)
    per = s.shape.layers * s.shape.hidden * s.width + one if s.recompute else s.shape.layers * one
    return per * tokens


def logit_bytes(s: Setup, spans: int) -> int:
    """Logits at `spans` answer tokens: as they come, in float32, masked, scaled, and their gradient."""
    return spans * s.shape.vocab * (s.width + 4 * 4)


def kv_bytes(s: Setup, tokens: int) -> int:
    """Keys and values of `tokens`: 2 * layers * kv width."""
    return 2 * s.shape.layers * s.shape.kv * s.width * tokens


def feature_bytes(s: Setup, frames: int) -> int:
    """Vision features of `frames` (with one more per deepstack layer), and the tower at work on one of them."""
    patches = s.longest.frame * s.shape.merge**2
    tower = patches * s.width * (6 * s.shape.v_hidden + 2 * s.shape.v_ffn)
    return frames * s.longest.frame * (1 + s.shape.taps) * s.shape.hidden * s.width + tower


def learner(
    s: Setup, tuning: Tuning | Rl, chunk: Chunk, *, shards: int, trained: int, reference: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """(held all the time, held while training) of one of `shards` processes. AdamW keeps two float32 numbers per
    trained one, and below float32 a copy of the weight, which it moves (`train.optim`). Text is sharded; every process
    holds the vision tower whole (`train.distributed`), and what is trained of it too."""
    w = s.width
    weights = s.shape.text * w // shards + s.shape.vision * w
    seen = s.shape.vision if trained == s.shape.total else 0
    own = (trained - seen) // shards + seen
    held = {"weights": weights}
    if reference:
        held["reference"] = weights
    held["optimizer"] = own * (2 * 4 if w == 4 else 3 * 4)
    rows = tuning.micro_batch
    training = {
        "gradients": own * w,
        "activations": activation_bytes(s, rows * chunk.tokens),
        "logits": logit_bytes(s, rows * chunk.steps * chunk.answer),
        "vision": feature_bytes(s, rows * chunk.steps),
    }
    if shards > 1:
        largest = max(s.shape.layer, s.shape.vocab * s.shape.hidden)
        training["gathered layers"] = GATHERED * largest * w
    if w < 4 and (more := own * 4 - sum(training.values())) > 0:
        training["gradients in float32, at the step"] = more
    return held, training


def loading_bytes(s: Setup, *, shards: int, reference: bool) -> int:
    """Of a process that shards its model, before it has: the model whole, or the reference whole beside its shard."""
    whole = s.shape.total * s.width
    return whole + ((s.shape.text // shards + s.shape.vision) * s.width if reference else 0)


def sampler(s: Setup, mode: str) -> dict[str, int]:
    """Held while sampling: keys and values of all sequences at a time at full length; with hf and adapters a copy of
    the weights they are folded into."""
    found = {"keys and values": kv_bytes(s, s.concurrent * s.longest.tokens)}
    if not s.vllm and mode == "lora":
        found["unfolded copy"] = s.shape.layers * s.width * sum(a * b for a, b in s.shape.linears().values())
    return found
