"""What a policy reads and is trained on, as token ids: prompts and rows.

Guarantees: token-in/token-out (sampled ids and behaviour log-probs are kept as sampled, never re-tokenised). Knows
nothing of episodes, which `guiderail.rollout.types` records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Prompt:
    """A multimodal prompt as token ids.

    `ids` holds expanded image tokens (one id per vision feature); `frames` the sha256 of each image in order.
    """

    ids: tuple[int, ...]
    frames: tuple[str, ...]


@dataclass(frozen=True)
class ChunkRow:
    """One training row: the tokens of a context chunk with its action spans.

    ids: int64 [T], frames: sha256 per image in order, spans: (start, end) of each sampled completion in ids,
    logprobs: float32 [sum of span lengths], behaviour log-probs in span order, steps: step index per span.
    """

    ids: np.ndarray
    frames: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    logprobs: np.ndarray
    steps: tuple[int, ...]
    temperature: float = 1.0
