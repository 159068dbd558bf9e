"""The aws provider passes the suite, against moto's server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from guiderail.params import Cloud as CloudParams
from guiderail.pool.providers.aws import AwsProvider
from pool.clouds.aws import REGION, Ec2
from pool.clouds.world import ACCESS_KEY, SECRET_KEY
from pool.conformance import clouds
from pool.conformance.suite import Cloud, ProviderConformance


def params(ec2: Ec2, **changed: object) -> CloudParams:
    known = {"region": REGION, "image": ec2.image, "instance_type": "t3.medium", "subnet": ec2.subnet}
    more = {"endpoint": ec2.url, "port": ec2.world.port}
    return CloudParams(**{**clouds.COMMON, **known, **more, **changed})


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


@pytest.fixture
def ec2(tmp_path: Path, keys: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2]:
    clouds.quick(AwsProvider, monkeypatch, min_left_s=0)
    with clouds.world(tmp_path) as world, Ec2(world) as ec2:
        yield ec2


class TestAws(ProviderConformance):
    @pytest.fixture
    def cloud(self, ec2: Ec2) -> Cloud:
        return clouds.cloud(ec2.world, AwsProvider, params(ec2))
