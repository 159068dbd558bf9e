"""Names of the recorded benchmarks, and the protocol of each (see `bench.recorded`). Free of imports that cost time."""

from __future__ import annotations

from typing import Literal

Protocol = Literal["sop", "high", "low"]
PROTOCOLS: dict[str, Protocol] = {
    "sop": "sop",
    "android_control_sop": "sop",
    "android_control_high": "high",
    "android_control_low": "low",
}
