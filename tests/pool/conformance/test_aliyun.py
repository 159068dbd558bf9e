"""The aliyun provider passes the suite, against a server that speaks ECS's wire format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from guiderail.params import Cloud as CloudParams
from guiderail.pool.providers.aliyun import AliyunProvider
from pool.clouds.aliyun import Aliyun
from pool.clouds.world import ACCESS_KEY, SECRET_KEY, Api, World
from pool.conformance import clouds
from pool.conformance.suite import Cloud, ProviderConformance


def params(api: Api, of: World, **changed: object) -> CloudParams:
    known = {"region": "cn-hangzhou", "image": "m-good", "instance_type": "ecs.g7.large", "subnet": "vsw-1"}
    more = {"security_groups": ["sg-1"], "endpoint": api.url, "port": of.port}
    return CloudParams(**{**clouds.COMMON, **known, **more, **changed})


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", SECRET_KEY)


class TestAliyun(ProviderConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path, keys: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
        clouds.quick(AliyunProvider, monkeypatch, min_release_s=0.0)
        monkeypatch.setattr(Aliyun, "earliest_s", -60.0)  # the suite cannot wait for half an hour
        with clouds.world(tmp_path) as world, clouds.api(world, Aliyun) as api:
            yield clouds.cloud(world, AliyunProvider, params(api, world))
