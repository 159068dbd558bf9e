"""Seeds by hashing what they are for, so that none depends on a clock, a global generator or the order of work.

Guarantees: the same parts give the same seed on every machine and version; different parts (also differently cut ones,
such as ("a", "bc") and ("ab", "c")) give unrelated seeds.
"""

from __future__ import annotations

import hashlib
import json


def derive_seed(*parts: str | int) -> int:
    """A seed in [0, 2^63) from `parts`: the first 8 bytes of sha256 over their JSON list, top bit cleared."""
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
