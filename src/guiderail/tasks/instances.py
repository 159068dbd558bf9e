"""Seeds of task instances: hashed, and each with the namespace it belongs to in its low bits.

Guarantees: train, fresh, held-out and RL instances can never share a seed, whatever is hashed.
"""

from __future__ import annotations

import hashlib
import json

NAMESPACES = {"train": 0, "fresh": 1, "heldout": 2, "rl": 3}
NAMESPACE_BITS = 2
SEED_BITS = 48
"""Seeds stay below 2**50, exact in JavaScript's numbers."""


def derive(*parts: str | int, bits: int = SEED_BITS) -> int:
    """A number in [0, 2**bits) from `parts`: the leading bits of the sha256 of their JSON list."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest, "big") >> (256 - bits)


def instance_seed(namespace: str, *parts: str | int) -> int:
    """A page seed whose two low bits are the number of `namespace` and whose other bits are hashed from `parts`."""
    return derive(namespace, *parts) << NAMESPACE_BITS | NAMESPACES[namespace]


def namespace_of(seed: int) -> str:
    """The namespace a page seed belongs to."""
    return list(NAMESPACES)[seed & (1 << NAMESPACE_BITS) - 1]
