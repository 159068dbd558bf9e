"""The numbers a pool runs by."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class PoolConfig:
    """Sizes, times (seconds) and limits. Raises ValueError for what cannot work."""

    slots: int  # machines at most
    call_timeout_s: float = 20.0  # a call that takes longer is hung
    ttl_s: float = 60.0  # a lease lives so long without a sign of its holder
    name: str = "pool"  # the label of its machines: two pools on one account need two names
    owner: str = ""  # the run that pays, for the ledger
    prewarm: int | None = None  # machines kept ready; None = all slots
    max_boots: int = 8  # machines that boot or are made anew at a time
    boot_timeout_s: float = 120.0
    idle_ttl_s: float = 0.0  # an idle machine beyond `prewarm` is ended after so long; 0 = never
    vm_ttl_s: float = 0.0  # hard limit of a machine's life, also at the provider where it has one; 0 = none
    probe_s: float = 5.0  # how often idle machines are asked whether they live
    sweep_s: float = 60.0  # how often the provider is asked for orphans
    budget: float = 0.0  # in the provider's currency; spent = no machine is made any more; 0 = none
    keep: bool = False  # at a graceful end leave machines and leases to the next server

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", self.name):
            raise ValueError(f"name = {self.name!r}: must be 1 to 40 of A-Z, a-z, 0-9, '_', '.' and '-' (a label)")
        if self.slots < 1:
            raise ValueError(f"a pool needs at least one slot, got {self.slots}")
        if self.prewarm is not None and not 0 <= self.prewarm <= self.slots:
            raise ValueError(f"prewarm = {self.prewarm}: must be between 0 and the number of slots, {self.slots}")
        for name in ("call_timeout_s", "ttl_s", "max_boots", "boot_timeout_s", "probe_s", "sweep_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be greater than 0")
        for name in ("idle_ttl_s", "vm_ttl_s", "budget"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be 0 (none) or more")
        if 0 < self.vm_ttl_s <= self.lease_room_s:
            raise ValueError(
                f"vm_ttl_s = {self.vm_ttl_s}: must be more than ttl_s + call_timeout_s = {self.lease_room_s}: no lease "
                "would fit into a machine's life"
            )

    @property
    def lease_room_s(self) -> float:
        """What a machine must have left before its hard limit to be lent."""
        return self.ttl_s + self.call_timeout_s

    @property
    def ready(self) -> int:
        """Machines kept ready."""
        return self.slots if self.prewarm is None else self.prewarm
