"""The docker provider passes the suite, against a server that speaks the engine's API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from guiderail.params import Cloud as CloudParams
from guiderail.pool.providers.docker import DockerProvider
from pool.clouds.docker_engine import DockerEngine
from pool.clouds.world import Api, World
from pool.conformance import clouds
from pool.conformance.suite import Cloud, ProviderConformance

FAULTS = ("quota", "boot_failure", "error_after_create", "half_dead")  # a daemon has neither limits nor credentials


def params(api: Api, of: World, **changed: object) -> CloudParams:
    more = {"image": "guiderail/desktop:1", "endpoint": api.url, "boot_timeout_s": 20.0}
    return CloudParams(**{**more, **changed})


class TestDocker(ProviderConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
        clouds.quick(DockerProvider, monkeypatch)
        with clouds.world(tmp_path) as world, clouds.api(world, DockerEngine) as api:
            yield clouds.cloud(world, DockerProvider, params(api, world), FAULTS)
