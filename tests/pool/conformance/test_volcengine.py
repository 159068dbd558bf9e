"""The volcengine provider passes the suite, against a server that speaks ECS's wire format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from guiderail.params import Cloud as CloudParams
from guiderail.pool.providers.volcengine import VolcengineProvider
from pool.clouds.volcengine import Volcengine
from pool.clouds.world import ACCESS_KEY, SECRET_KEY, Api, World
from pool.conformance import clouds
from pool.conformance.suite import Cloud, ProviderConformance


def params(api: Api, of: World, **changed: object) -> CloudParams:
    known = {"region": "cn-beijing", "zone": "cn-beijing-a", "image": "image-good", "instance_type": "ecs.g3i.large"}
    more = {"subnet": "subnet-1", "security_groups": ["sg-1"], "endpoint": api.url, "port": of.port}
    return CloudParams(**{**clouds.COMMON, **known, **more, **changed})


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLCENGINE_ACCESS_KEY", ACCESS_KEY)
    monkeypatch.setenv("VOLCENGINE_SECRET_KEY", SECRET_KEY)


class TestVolcengine(ProviderConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path, keys: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
        clouds.quick(VolcengineProvider, monkeypatch)
        with clouds.world(tmp_path) as world, clouds.api(world, Volcengine) as api:
            yield clouds.cloud(world, VolcengineProvider, params(api, world))
