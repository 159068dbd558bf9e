"""What the cloud providers' conformance tests share: parameters, a `Cloud` over a make-believe world, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from guiderail.params import Cloud as CloudParams
from guiderail.pool.providers.base import Provider, Vm
from guiderail.pool.providers.cloud import CloudProvider
from pool.clouds.world import FAULTS, Api, World
from pool.conformance.suite import Cloud

COMMON: dict[str, Any] = {"price_per_hour": 0.25, "currency": "USD", "boot_timeout_s": 20.0}
QUICK = {"poll_s": 0.05}


@contextmanager
def world(root: Path) -> Iterator[World]:
    """A world whose machines are all gone afterwards."""
    made = World(root)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def api(of: World, handler: type[BaseHTTPRequestHandler]) -> Iterator[Api]:
    """The API of a world."""
    served = Api(of, handler)
    try:
        yield served
    finally:
        served.close()


def quick(kind: type[CloudProvider], monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Short pauses, no other behaviour."""
    monkeypatch.setattr("guiderail.pool.providers.cloud.PAUSES_S", (0.02, 0.05))
    for name, value in {**QUICK, **more}.items():
        monkeypatch.setattr(kind, name, value)


def cloud(of: World, kind: type[CloudProvider], params: CloudParams, faults: tuple[str, ...] = FAULTS) -> Cloud:
    """The suite's view of `of`."""

    def provider() -> Provider:
        return kind(params)

    async def kill(vm: Vm) -> None:
        await asyncio.to_thread(of.kill, vm.id)

    arms: dict[str, Callable[[], None]] = {f: of.arm(f) for f in faults}
    return Cloud(provider, kill, arms)
