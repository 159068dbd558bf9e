"""The cloud providers pass the suite: aws against moto's server, the others against servers of ours that speak the
wire format of the official SDK.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from guiderail.pool.providers.aliyun import AliyunProvider
from guiderail.pool.providers.aws import AwsProvider
from pool.clouds.aliyun import Aliyun
from pool.conformance.clouds import realm
from pool.conformance.suite import Cloud, ProviderConformance


class TestDocker(ProviderConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
        with realm("docker", tmp_path, monkeypatch) as r:
            yield r.cloud()


class TestAws(ProviderConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
        monkeypatch.setattr(AwsProvider, "min_left_s", 0)  # the suite cannot wait for a minute
        with realm("aws", tmp_path, monkeypatch) as r:
            yield r.cloud()


class TestVolcengine(ProviderConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
        with realm("volcengine", tmp_path, monkeypatch) as r:
            yield r.cloud()


class TestAliyun(ProviderConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
        monkeypatch.setattr(AliyunProvider, "min_release_s", 0.0)
        monkeypatch.setattr(Aliyun, "earliest_s", -60.0)  # nor for half an hour
        with realm("aliyun", tmp_path, monkeypatch) as r:
            yield r.cloud()
