"""What answers inside a cloud's machine, and how the pool speaks with it (env.cloud.server).

`desktop`: our in-VM server (`pool.vm.server`) on a desktop; it knows whose machine it is, refuses older leases, and may
want a token. `osworld`: OSWorld's own server, as its images have it; it knows neither, so an address that was given to
another machine is not noticed. `noop`: a machine without a screen, to try a pool or an account with.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from guiderail.envs.desktop import DesktopEnv
from guiderail.envs.machine import Machine
from guiderail.envs.machine_wire import Refusal
from guiderail.envs.types import Env, InfraError
from guiderail.pool.providers.base import Vm
from guiderail.pool.providers.probe import ping
from guiderail.pool.providers.probe_http import VM_TOKEN_ENV, ping_desktop, ping_osworld
from guiderail.pool.vm.client import MachineEnv

OWN_LIMIT = 0.9  # a desktop gives up a little before the pool does, since it can say why


class Answers(Protocol):
    """See `probe.ping`."""

    def __call__(self, address: str, name: str, *, claim: bool = False) -> Awaitable[str]:
        """ "" when machine `name` answers at `address`, else what happened."""
        ...


@dataclass(frozen=True)
class Inside:
    """`connect` works a machine's screen (raises OSError); `token`: whether its server may want one."""

    answers: Answers
    connect: Callable[[Vm], Awaitable[Env]]
    token: bool = False

    def secrets(self) -> dict[str, str]:
        """The token's variable and value, when there is one."""
        value = os.environ.get(VM_TOKEN_ENV, "") if self.token else ""
        return {VM_TOKEN_ENV: value} if value else {}


def inside(server: str, call_timeout_s: float) -> Inside:
    """Of `server` (a value of env.cloud.server); a call may take `call_timeout_s`."""
    if server == "noop":
        return Inside(ping, lambda vm: MachineEnv.open(vm.address, vm.name))

    async def connect(vm: Vm) -> Env:
        token, name = (os.environ.get(VM_TOKEN_ENV, ""), vm.name) if server == "desktop" else ("", "")
        limit = call_timeout_s * OWN_LIMIT
        machine = Machine(f"http://{vm.address}", token=token, name=name, call_timeout_s=limit)
        try:
            await machine.hello()
        except (InfraError, Refusal) as e:
            await machine.close()
            raise OSError(str(e)) from e
        except BaseException:
            await machine.close()
            raise
        return DesktopEnv(machine, call_timeout_s=limit)

    return Inside(ping_desktop if server == "desktop" else ping_osworld, connect, token=server == "desktop")
