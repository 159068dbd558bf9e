"""Before anything that costs money is made: which machines, their price and its source, and a yes or a budget."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from guiderail.params import Env, Params
from guiderail.params_cloud import CLOUDS, check_cloud
from guiderail.pool.options import provider_of
from guiderail.pool.plan import NotConfirmed, Plan, check_consent, plan
from guiderail.pool.providers import CLOUD_NAMES
from guiderail.pool.providers.cloud import CloudProvider
from guiderail.pool.server import parse
from pool.conformance.clouds import Realm, realm

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cloud(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Realm]:
    with realm(getattr(request, "param", "aliyun"), tmp_path / "world", monkeypatch) as r:
        yield r


def env(cloud: Realm, **changed: Any) -> Env:
    return Env(provider=cloud.name, slots=4, cloud=cloud.params(**changed))  # type: ignore[arg-type]


def test_the_plan_tells_machines_price_and_limit(cloud: Realm) -> None:
    told = plan(env(cloud, price_per_hour=0.0, ttl_h=2.0, budget=9.0, currency="CNY")).text().splitlines()
    assert told == [
        "provider aliyun would make",
        "  machines  up to 4 (env.slots): ecs.g7.large, on demand, image m-good",
        f"  where     cn-hangzhou subnet vsw-1; private address, port {cloud.world.port}",
        "  price     0.42 CNY per machine and hour, 1.68 CNY per hour for 4",
        "  source    DescribePrice",
        "  limit     2 h of life each, so 3.36 CNY for 4; kept by ECS itself (AutoReleaseTime); the pool ends it too",
        "  budget    9 CNY; once it is spent no machine is made",
    ]
    assert cloud.world.instances == {}


@pytest.mark.parametrize("cloud", ["docker"], indirect=True)
def test_a_plan_for_nothing(cloud: Realm) -> None:
    told = plan(env(cloud)).text()
    assert "price     nothing per machine and hour" in told and "containers, image guiderail/desktop:1" in told


def test_consent_is_a_yes_or_a_budget_in_the_same_currency(cloud: Realm) -> None:
    without, with_one = env(cloud), env(cloud, budget=5.0)
    with pytest.raises(NotConfirmed, match=r"guiderail provision --yes.*set env\.cloud\.budget"):
        check_consent(Plan(without, 0.1, "USD", ""), yes=False)
    check_consent(Plan(without, 0.1, "USD", ""), yes=True)
    check_consent(Plan(with_one, 0.1, "USD", ""), yes=False)
    with pytest.raises(NotConfirmed, match="in USD, but the price in CNY"):
        check_consent(Plan(with_one, 0.1, "CNY", ""), yes=True)


def test_provision_makes_nothing_without_consent(cloud: Realm, tmp_path: Path) -> None:
    """The real command: it tells the plan, and ends with status 1 before the pool is started."""
    params = tmp_path / "params.yaml"
    tree = yaml.safe_load((ROOT / "params.yaml").read_text())
    tree["env"] |= {"provider": "aliyun", "cloud": cloud.params().model_dump()}
    tree["tracking"]["enabled"] = False
    params.write_text(yaml.safe_dump(tree))
    for name in ("dvc.yaml", "src", "assets", "workflow", "plugins"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = subprocess.run(
        [sys.executable, "-m", "guiderail", "provision", "--params", str(params)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert "price     0.25 USD per machine and hour, 8 USD per hour for 32" in done.stderr
    assert "guiderail provision: nothing was made. Run `guiderail provision --yes`" in done.stderr
    assert "Traceback" not in done.stderr and cloud.world.instances == {}
    assert [sent for action, sent in cloud.world.calls if action == "RunInstances" and "DryRun" not in sent] == []


def test_the_names_on_the_command_line_are_those_of_the_parameters() -> None:
    assert tuple(CLOUDS) == CLOUD_NAMES


@pytest.mark.parametrize("cloud", ["docker", "volcengine"], indirect=True)
def test_a_disk_is_made_anew_only_where_the_provider_can(cloud: Realm) -> None:
    with pytest.raises(ValueError, match=r"env\.cloud\.reset: disk is for aws and aliyun"):
        check_cloud(cloud.name, cloud.params(reset="disk"))


def test_a_server_takes_its_cloud_from_params_or_json(cloud: Realm, tmp_path: Path) -> None:
    tree = Params().model_dump(mode="json")
    tree["env"] |= {"provider": "aliyun", "cloud": cloud.params().model_dump(mode="json")}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(tree))
    for given in (str(tmp_path / "p.yaml"), cloud.params().model_dump_json()):
        provider = provider_of(parse(["--provider", "aliyun", "--cloud", given]))
        assert isinstance(provider, CloudProvider) and provider.cloud == cloud.params()
    with pytest.raises(ValueError, match=r"provider aws needs env\.cloud"):
        provider_of(parse(["--provider", "aws"]))
