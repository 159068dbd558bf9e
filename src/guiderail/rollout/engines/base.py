"""What every rollout engine offers: token ids in, sampled token ids and their log-probs out.

Guarantees: nothing by itself; the conformance tests in tests/rollout say what an engine must keep: a request's tokens
depend on its prompt, its sampling parameters and the weights only, never on its batch mates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from guiderail.models.rows import Prompt
from guiderail.rollout.types import Completion, SamplingParams


class Engine(Protocol):
    """A batched text generator over multimodal prompts."""

    def generate(self, prompts: Sequence[Prompt], sampling: Sequence[SamplingParams]) -> list[Completion]:
        """One completion per prompt, in order. Blocking; may be called from a worker thread, one call at a time."""
        ...
