"""Machines that are objects of this process: they die with it. Base of `local_browser` and `noop`.

Guarantees the interface of `base.Provider` over one coroutine, `new_env`: a machine is an environment plus a name and
labels; `create` makes it, so it is ready at once; `terminate` closes it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import replace

from guiderail.envs.types import Env, InfraError
from guiderail.pool.providers.base import BootFailed, Vm, VmSpec


class LocalProvider:
    """Environments of this process as machines. Subclasses give `new_env` and `healthy`."""

    name = "local"
    durable = False
    reset_between_leases = False  # Env.reset(task) starts from a clean page
    hard_ttl = False
    price_per_hour = 0.0
    currency = ""

    def __init__(self) -> None:
        self.vms: dict[str, Vm] = {}
        self.envs: dict[str, Env] = {}
        self.numbers = itertools.count()

    async def new_env(self) -> Env:
        """A fresh environment. May raise anything."""
        raise NotImplementedError

    def healthy(self, env: Env) -> bool:
        """Cheap check (no I/O) that `env` can still be used."""
        raise NotImplementedError

    async def start(self) -> None:
        """Nothing is shared."""

    async def create(self, spec: VmSpec) -> Vm:
        """Make the environment; one that has the name already is returned. Raises BootFailed."""
        for vm in self.vms.values():
            if vm.name == spec.name:
                return vm
        try:
            env = await self.new_env()
        except InfraError as e:
            raise BootFailed(f"{spec.name}: {e}") from e
        vm_id = f"{self.name}-{next(self.numbers)}"
        vm = Vm(vm_id, spec.name, "running", spec.labels(), "local", time.time())
        self.vms[vm_id], self.envs[vm_id] = vm, env
        return vm

    async def wait_ready(self, vm: Vm, timeout_s: float) -> Vm:
        """It is ready since `create`, or broken. Raises BootFailed."""
        if not await self.ready(vm):
            raise BootFailed(f"{vm.name} broke while it started")
        return vm

    async def connect(self, vm: Vm) -> Env:
        """The environment itself. Closing it breaks the machine."""
        if vm.id not in self.envs:
            raise BootFailed(f"{vm.name} is gone")
        return self.envs[vm.id]

    async def ready(self, vm: Vm) -> bool:
        """Whether it is there and healthy."""
        env = self.envs.get(vm.id)
        return env is not None and self.healthy(env)

    async def reset(self, vm: Vm) -> Vm:
        """Close the environment, make another under the same name."""
        spec = VmSpec(vm.name, "")
        await self.terminate(vm.id)
        fresh = await self.create(spec)
        self.vms[fresh.id] = fresh = replace(fresh, labels=vm.labels)
        return fresh

    async def terminate(self, vm_id: str) -> None:
        """Close the environment. Idempotent."""
        self.vms.pop(vm_id, None)
        env = self.envs.pop(vm_id, None)
        if env is not None:
            await env.close()

    async def list(self, labels: Mapping[str, str]) -> list[Vm]:
        """Machines of this process with `labels`."""
        return [vm for vm in self.vms.values() if labels.items() <= vm.labels.items()]

    async def stop(self) -> None:
        """End all machines."""
        for vm_id in list(self.vms):
            await self.terminate(vm_id)
