"""The pool's server on cloud machines, started as a stage starts it: it works, and leaves no machine behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guiderail.actions.types import Click
from guiderail.params import Env
from guiderail.pool.client import PoolClient
from guiderail.pool.local import env_pool
from guiderail.tasks.types import TaskSpec
from pool.conformance.clouds import Realm, realm


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Realm]:
    with realm("aliyun", tmp_path / "world", monkeypatch) as r:
        yield r


def test_machines_are_made_worked_cleaned_and_ended(cloud: Realm, tmp_path: Path) -> None:
    """The first two requests are answered with an error after the machine was made."""
    cloud.world.arm("error_after_create", 2)()
    env = Env(provider="aliyun", slots=2, cloud=cloud.params(ttl_h=1.0, budget=5.0))

    seen: list[list[Any]] = []

    async def work(url: str, token: str) -> None:
        async with PoolClient(url, token) as client:
            for _ in range(2):
                async with client.env("test", 60.0) as remote:
                    await remote.reset(TaskSpec("noop", "count", 1))
                    assert (await remote.step(Click(0.5, 0.5))).observation.step == 1
                    seen.append(list(cloud.world.instances.values()))

    with env_pool(env, log=tmp_path / "pool.log") as (url, token):
        asyncio.run(work(url, token))
        for alive in seen:  # while one was lent: cleaning makes a machine anew, and for a moment there is none
            assert 1 <= len(alive) <= 2 and all(i.release and i.labels["guiderail-pool"] for i in alive)
    assert cloud.world.instances == {}
    assert "Traceback" not in (tmp_path / "pool.log").read_text()
