"""What a provider of machines must offer to the pool: one interface for pages, processes, containers and clouds.

A machine ("VM") is whatever carries one screen. It is known by the provider's `id`, by the `name` that the pool chose
before asking for it, and by labels. The pool guarantees: `start` is awaited once before anything else; every other
method may run for many machines at a time and may be cancelled; a name is used for one machine only; after `create`
failed or was cancelled, whatever carries the name is terminated. A provider guarantees:

- `create` twice with one name makes one machine (pass the name on as the API's client token), and every machine it
  ever made carries the labels from its first moment on, so that `list` finds it even if `create` raised afterwards;
- `terminate` of a machine that is gone, or never was, is fine, and returns when the machine no longer costs money
  or its end can no longer be stopped;
- nothing waits without limit: `wait_ready` ends at its timeout, `reset` within the boot timeout of its parameters and
  two minutes (a cloud's reset boots a machine), every other call within a minute;
- what goes wrong is a `ProviderError` whose class says what the pool should do (see below).

tests/pool/conformance holds the suite that every provider passes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from guiderail.envs.types import Env
from guiderail.errors import Explained

LABEL_POOL = "guiderail-pool"  # which pool made it
LABEL_NAME = "guiderail-name"  # the pool's name for it
LABEL_OWNER = "guiderail-owner"  # the run that pays
LABEL_EXPIRES = "guiderail-expires"  # unix seconds; whoever finds it later may remove it

VmState = Literal["booting", "running", "gone"]


class ProviderError(Explained, RuntimeError):
    """A provider could not do what it was asked. The pool tries again later, with growing pauses."""

    code = "provider_error"
    retry = True


class Throttled(ProviderError):
    """Too many API calls; the same call works later."""

    code = "throttled"


class QuotaExceeded(ProviderError):
    """The account or the zone has no room for another machine now."""

    code = "quota"


class BootFailed(ProviderError):
    """The machine was made but did not come up (it is terminated by the pool)."""

    code = "boot_failed"


class Unreachable(BootFailed):
    """The machine runs, but its address does not answer from here; the text names address and port."""

    code = "unreachable"


class Misconfigured(ProviderError):
    """Credentials, image, region, network or SDK: trying again cannot help. Ends the server with its text."""

    code = "misconfigured"
    retry = False


@dataclass(frozen=True)
class VmSpec:
    """What to create. `name` is unique; `expires` is the hard limit of its life (unix seconds, 0 = none)."""

    name: str
    pool: str
    owner: str = ""
    expires: float = 0.0

    def labels(self) -> dict[str, str]:
        """What the machine must carry: at most 63 letters, digits, `_`, `.`, `-`, as the strictest cloud wants it."""
        known = {LABEL_POOL: self.pool, LABEL_NAME: self.name, LABEL_OWNER: self.owner}
        if self.expires:
            known[LABEL_EXPIRES] = str(int(self.expires))
        return {k: re.sub(r"[^A-Za-z0-9_.-]", "-", v)[:63] for k, v in known.items() if v}


@dataclass(frozen=True)
class Vm:
    """A machine as the provider knows it. `address` ("host:port") may be empty until `wait_ready` has returned."""

    id: str
    name: str
    state: VmState
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    created: float = 0.0  # unix seconds, by the provider's clock
    price_per_hour: float = 0.0  # what this one costs, e.g. the spot price it was won at


class Provider(Protocol):
    """Makes and ends machines."""

    name: str  # as on the command line
    durable: bool  # machines live on when the pool's process dies: they are recovered or swept at its next start
    reset_between_leases: bool  # False: `Env.reset(task)` alone starts from a clean state
    hard_ttl: bool  # the provider itself ends a machine at `VmSpec.expires`
    price_per_hour: float  # the price of the next machine, for plans and budgets
    currency: str

    async def start(self) -> None:
        """Bring up what is shared; check credentials, image, network. An exception here ends the server."""
        ...

    async def create(self, spec: VmSpec) -> Vm:
        """Ask for a machine; returns as soon as it exists, booting or running. Raises ProviderError."""
        ...

    async def wait_ready(self, vm: Vm, timeout_s: float) -> Vm:
        """Wait until it answers at its address; returns it with state running and address.

        Raises BootFailed or Unreachable, saying what was waited for and what was last seen.
        """
        ...

    async def connect(self, vm: Vm) -> Env:
        """A connection that works the screen of a ready machine; closing it leaves the machine. Raises ProviderError.

        One machine has one connection at a time, except that a new pool may connect while its predecessor's is dying.
        """
        ...

    async def ready(self, vm: Vm) -> bool:
        """One quick check (under five seconds) that the machine answers now, and is this one: whatever else has come to
        its address is not. Never raises for a broken machine.
        """
        ...

    async def reset(self, vm: Vm) -> Vm:
        """A clean machine in place of `vm`: itself (snapshot) or another with the same name and labels (recreated; the
        old one is terminated). Ready when returned. After an exception nobody may use either; the pool ends both.
        """
        ...

    async def terminate(self, vm_id: str) -> None:
        """End a machine. Idempotent. Raises ProviderError when it may still be there."""
        ...

    async def list(self, labels: Mapping[str, str]) -> list[Vm]:
        """All machines, not gone, that carry all of `labels`; those whose boot or creation failed included."""
        ...

    async def stop(self) -> None:
        """Give back what is shared (clients, a browser). Machines of a durable provider stay. Idempotent."""
        ...


@runtime_checkable
class Fenced(Protocol):
    """An `Env` whose machine refuses calls made for an older lease. The pool sets the token of the present one."""

    fence: int
