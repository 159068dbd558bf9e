"""Records of rollouts: how the engine is asked, what it answers, what an episode was.

Guarantees: token-in/token-out (sampled ids and behaviour log-probs are stored as sampled, never re-tokenised), and the
frame of a step is the one the policy SAW when it emitted the action.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from guiderail.envs.types import Outcome
from guiderail.models.rows import ChunkRow
from guiderail.tasks.types import TaskSpec


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. temperature 0 = greedy; `seed` makes one request reproducible on its own."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 48
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """Sampled ids (stop token included when one was sampled) and their log-probs at the sampling temperature
    after the special-token mask; finish reason "stop" or "length". `weight_version`: the weights that a server says it
    sampled with ("" from an engine inside the trainer's process, which has no others)."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    text: str
    weight_version: str = ""


@dataclass(frozen=True)
class StepRecord:
    """One step of an episode as the policy lived it.

    votes: valid votes of the judge, each +1 or -1 (empty: not judged, or nothing valid); votes_invalid: its other
    answers. In a recorded environment only: reward of the step (None elsewhere), whether it did what the expert did,
    and the kind of patch when the history then holds the expert's turn in its place ("" without).
    """

    step: int
    frame: str  # frame the policy saw
    chunk: int  # index of the context chunk this step belongs to
    prompt_len: int  # tokens before the completion inside the chunk row
    completion: Completion
    sampling: SamplingParams
    thought: str
    action: str  # canonical JSON of the parsed action, "" on parse failure
    parse_error: str
    policy_version: int
    seconds_policy: float
    seconds_env: float
    votes: tuple[int, ...] = ()
    votes_invalid: int = 0
    reward: float | None = None
    matched: bool | None = None
    patched: str = ""


@dataclass(frozen=True)
class Episode:
    """A finished episode: `group` ties GRPO siblings (same task instance), `attempt` counts infra re-samples.

    side_effects: what it changed beside what it was asked for (see `tasks.side_effects`); None: nobody looked.
    """

    id: str
    group: str
    sibling: int
    attempt: int
    task: TaskSpec
    instruction: str
    outcome: Outcome
    steps: tuple[StepRecord, ...]
    rows: tuple[ChunkRow, ...] = field(repr=False, default=())
    last_frame: str = ""
    side_effects: tuple[str, ...] | None = None
