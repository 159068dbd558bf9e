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


# -- with env.cloud.reset: disk, of which only the reset differs ---------------------------------------------
@pytest.mark.parametrize("name", ["aws", "aliyun"])
def test_a_new_disk_passes_the_suite(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with realm(name, tmp_path, monkeypatch, reset="disk") as r:
        ProviderConformance().test_reset_gives_one_clean_machine(r.cloud())
        (made,) = [sent for action, sent in r.world.calls if action == "RunInstances" and "DryRun" not in sent]
        assert made["ClientToken"]  # one call, also with the reset
