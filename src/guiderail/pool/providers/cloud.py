"""What the clouds have in common: everything of `base.Provider` over six blocking calls of an SDK.

A subclass gives `open`, `quote`, `run`, `find`, `delete` and `explain`; they run in threads. Guarantees: `create` has
one client token per name and asks again with it when the outcome of a call is unknown; a cancelled `create` ends only
when its request has, so that whoever lists afterwards sees what it made; machines that boot are looked at together,
one API call per POLL_S whatever their number; secrets come from the environment and are cut out of every error text.
Does not sweep, count money or end a machine that failed to boot: the pool does. A reset (env.cloud.reset) is a new
machine under the old name, or the same one (id, address, spot place, hard limit) with its system disk made anew from
the image, where the cloud has that; either takes as long as a boot.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from guiderail.envs.types import Env
from guiderail.params_cloud import Cloud
from guiderail.pool.providers.base import (
    LABEL_EXPIRES,
    LABEL_NAME,
    LABEL_OWNER,
    LABEL_POOL,
    BootFailed,
    Misconfigured,
    Throttled,
    Unreachable,
    Vm,
    VmSpec,
    VmState,
)
from guiderail.pool.providers.cloud_calls import PAUSES_S, ApiFault, Busy, CloudCalls
from guiderail.pool.providers.inside import inside

BATCH = 100  # ids in one describe call: the limit of aliyun and volcengine
SEEN_S = 30.0  # so long after create a machine may not show in lists yet
END_S = 35.0  # how long terminate waits for a machine that cannot be ended yet (it is still being made)
HINTS = {
    "private": "a private address answers only inside the machines' network: run the pool there or set "
    "env.cloud.address: public; else look at the security group and at the machine's own server",
    "public": "look at the security group (it must let this computer in on that port) and at the machine's own server",
}


@dataclass(frozen=True)
class Seen:
    """A machine as a describe call shows it, and why it is not running. `ended`: terminated, costs nothing."""

    vm: Vm
    why: str = ""
    ended: bool = False


class CloudProvider(CloudCalls):
    """See the module."""

    durable = True
    reset_between_leases = True
    hard_ttl = False
    secret_names: tuple[str, ...] = ()  # environment variables that must be set
    poll_s = 2.0

    def __init__(self, cloud: Cloud, *, call_timeout_s: float = 20.0) -> None:
        super().__init__()
        self.cloud, self.inside = cloud, inside(cloud.server, call_timeout_s)
        self.price_per_hour, self.currency = cloud.price_per_hour, cloud.currency
        self.price_source = "env.cloud.price_per_hour in params.yaml"
        self._looking: tuple[set[str], asyncio.Task[dict[str, Seen]]] | None = None

    # ---- what a subclass gives; all blocking

    @abstractmethod
    def open(self) -> None:
        """Make the client, check credentials, image and network. Raises what the SDK raises, or Misconfigured."""

    def quote(self) -> tuple[float, str, str]:
        """Price per hour by the provider's API, currency, source. Raises Misconfigured when it tells none."""
        raise Misconfigured(
            f"provider {self.name} cannot be asked for prices: set env.cloud.price_per_hour and env.cloud.currency"
        )

    @abstractmethod
    def run(self, spec: VmSpec, token: str) -> Vm:
        """Make one machine with `spec.labels()`; the same token gives the same machine."""

    @abstractmethod
    def find(self, labels: Mapping[str, str], ids: Sequence[str] = ()) -> list[Seen]:
        """Machines with all `labels`, and one of `ids` unless that is empty."""

    @abstractmethod
    def delete(self, vm_id: str) -> None:
        """End a machine; one that is not there is fine. Raises Busy while it cannot be ended."""

    def renew(self, vm_id: str, memo: dict[str, str]) -> str:
        """One move towards a running machine whose system disk is as its image; "" = there, else what is awaited.

        Called again and again with the same `memo` (it has a fresh `token`); for env.cloud.reset: disk.
        """
        raise Misconfigured(f"provider {self.name} cannot make a disk anew: leave out env.cloud.reset")

    # ---- base.Provider

    async def start(self) -> None:
        """Read the secrets, make the client, check everything, learn the price. Raises ProviderError."""
        missing = [n for n in self.secret_names if not os.environ.get(n)]
        if missing:
            raise Misconfigured(f"provider {self.name} needs {' and '.join(missing)} in the environment")
        self.secrets = {n: os.environ[n] for n in self.secret_names} | self.inside.secrets()
        await self.call(self.open)
        if not self.price_per_hour:
            self.price_per_hour, self.currency, self.price_source = await self.call(self.quote)

    async def create(self, spec: VmSpec) -> Vm:
        """Ask for a machine. Raises ProviderError."""
        return await self._create(spec, spec.name)

    async def _create(self, spec: VmSpec, name: str) -> Vm:
        token = name if len(name) <= 64 else hashlib.sha256(name.encode()).hexdigest()
        for last in (False, True):
            try:
                return await self.call(lambda: self.run(spec, token), to_the_end=True)
            except ApiFault:
                if last:
                    raise
                await asyncio.sleep(PAUSES_S[0])
        raise AssertionError

    async def wait_ready(self, vm: Vm, timeout_s: float) -> Vm:
        """Wait for its address, then for an answer there. Raises BootFailed, Unreachable."""
        start, last, why, heard, known = time.monotonic(), vm, "the API did not show it", "", False
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        seen = await self._look(vm.id)
                    except (Throttled, ApiFault) as e:
                        why = str(e)
                        continue
                    if seen is None or seen.ended or seen.vm.state == "gone":
                        if seen is None and not known and time.monotonic() - start < SEEN_S:
                            continue
                        raise BootFailed(f"{vm.name} ({vm.id}) ended while it booted: {seen.why if seen else why}")
                    last, known, why = seen.vm, True, seen.why
                    if last.address and last.state == "running":
                        heard = await self.inside.answers(last.address, last.name, claim=True)
                        if not heard:
                            return last
        except TimeoutError:
            if last.address and last.state == "running":
                raise self.unreachable(last, heard) from None
            raise BootFailed(
                f"{vm.name} ({vm.id}) was not running within {timeout_s:g} s: state {last.state}, "
                f"{self.cloud.address} address {last.address or 'none yet'}" + (f" ({why})" if why else "")
            ) from None

    def unreachable(self, vm: Vm, why: str) -> Unreachable:
        """The error that names address, port and what to do."""
        host, _, port = vm.address.rpartition(":")
        where = f"{vm.name} ({vm.id}) at its {self.cloud.address} address {host}, port {port}"
        return Unreachable(f"{where}: {why or 'no answer'}; {HINTS[self.cloud.address]}")

    async def connect(self, vm: Vm) -> Env:
        """Connect to its server. Raises Unreachable."""
        try:
            return await self.inside.connect(vm)
        except OSError as e:
            raise self.unreachable(vm, f"{type(e).__name__}: {e}") from e

    async def ready(self, vm: Vm) -> bool:
        """Whether its server answers now, and is still this machine's."""
        return bool(vm.address) and not await self.inside.answers(vm.address, vm.name)

    async def reset(self, vm: Vm) -> Vm:
        """A clean one under its name, with its labels and hard limit. Raises ProviderError."""
        if self.cloud.reset == "disk":
            return await self._renewed(vm)
        await self.terminate(vm.id)
        of = vm.labels.get
        spec = VmSpec(vm.name, of(LABEL_POOL, ""), of(LABEL_OWNER, ""), float(of(LABEL_EXPIRES, 0)))
        fresh = await self._create(spec, f"{vm.name}-{hashlib.sha256(vm.id.encode()).hexdigest()[:12]}")
        return await self.wait_ready(fresh, self.cloud.boot_timeout_s)

    async def _renewed(self, vm: Vm) -> Vm:
        """The same machine; never before the server that ran on the old disk is gone."""
        memo, why = {"token": secrets.token_hex(16)}, ""
        end = time.monotonic() + self.cloud.boot_timeout_s
        try:
            async with asyncio.timeout(self.cloud.boot_timeout_s):
                while True:
                    with suppress(Throttled, ApiFault, Busy):  # the next move asks again
                        why = await self.call(lambda: self.renew(vm.id, memo), to_the_end=True)
                        if not why and await self.inside.answers(vm.address, vm.name):
                            break
                        why = why or "the old server still answers"
                    await asyncio.sleep(self.poll_s)
        except TimeoutError:
            raise BootFailed(
                f"{vm.name} ({vm.id}): no new disk within {self.cloud.boot_timeout_s:g} s: {why}"
            ) from None
        return await self.wait_ready(vm, max(1.0, end - time.monotonic()))

    async def terminate(self, vm_id: str) -> None:
        """End it, waiting END_S while it is still being made. Raises ProviderError."""
        end = time.monotonic() + END_S
        while True:
            try:
                return await self.call(lambda: self.delete(vm_id), to_the_end=True)
            except Busy:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(self.poll_s)

    async def list(self, labels: Mapping[str, str]) -> list[Vm]:
        """Machines with `labels`, those that stopped included."""
        return [s.vm for s in await self.call(lambda: self.find(labels)) if not s.ended]

    # ---- inside

    async def _look(self, vm_id: str) -> Seen | None:
        """The machine at the next common look."""
        if self._looking is None:
            ids: set[str] = set()
            self._looking = ids, asyncio.create_task(self._look_at(ids))
            self._looking[1].add_done_callback(lambda t: t.cancelled() or t.exception())
        ids, task = self._looking
        ids.add(vm_id)
        return (await asyncio.shield(task)).get(vm_id)

    async def _look_at(self, ids: set[str]) -> dict[str, Seen]:
        await asyncio.sleep(self.poll_s)
        self._looking = None
        wanted, found = sorted(ids), []
        for i in range(0, len(wanted), BATCH):
            batch = wanted[i : i + BATCH]
            found += await self.call(lambda batch=batch: self.find({}, batch))  # type: ignore[misc]
        return {s.vm.id: s for s in found}

    def vm(self, vm_id: str, labels: Mapping[str, str], state: VmState, host: str, created: float, **more: Any) -> Vm:
        """A Vm from what the API tells."""
        ours = {k: v for k, v in labels.items() if k.startswith("guiderail-")}
        address = f"{host}:{self.cloud.port}" if host else ""
        name = ours.get(LABEL_NAME, vm_id)
        return replace(Vm(vm_id, name, state, ours, address, created, self.price_per_hour), **more)
