"""A make-believe cloud for each provider, ready for its tests: world, API, credentials, parameters, short pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from guiderail.params_cloud import Cloud as CloudParams
from guiderail.pool.providers import make_cloud
from guiderail.pool.providers.base import Vm
from guiderail.pool.providers.cloud import CloudProvider
from pool.clouds.aliyun import Aliyun
from pool.clouds.aws import REGION, Ec2
from pool.clouds.docker_engine import DockerEngine
from pool.clouds.volcengine import Volcengine
from pool.clouds.world import ACCESS_KEY, FAULTS, SECRET_KEY, Api, World
from pool.conformance.suite import Cloud

ENVIRONMENT = {
    "aws": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "volcengine": ("VOLCENGINE_ACCESS_KEY", "VOLCENGINE_SECRET_KEY"),
    "aliyun": ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"),
}
PARAMS: dict[str, dict[str, Any]] = {
    "docker": {"image": "guiderail/desktop:1"},
    "aws": {"region": REGION, "instance_type": "t3.medium"},
    "volcengine": {
        **{"region": "cn-beijing", "zone": "cn-beijing-a", "image": "image-good", "instance_type": "ecs.g3i.large"},
        **{"subnet": "subnet-1", "security_groups": ["sg-1"]},
    },
    "aliyun": {
        **{"region": "cn-hangzhou", "image": "m-good", "instance_type": "ecs.g7.large"},
        **{"subnet": "vsw-1", "security_groups": ["sg-1"]},
    },
}
PRICE = {"price_per_hour": 0.25, "currency": "USD"}
NO_SUCH_FAULT = {"docker": ("throttled", "bad_credentials")}  # a daemon has neither


@dataclass
class Realm:
    """One provider's cloud."""

    name: str
    world: World
    known: dict[str, Any]

    def params(self, **changed: Any) -> CloudParams:
        """Parameters that work here, with changes."""
        return CloudParams(**{**self.known, **changed})

    def provider(self, **changed: Any) -> CloudProvider:
        """A new provider on this world."""
        return make_cloud(self.name, self.params(**changed))

    def cloud(self) -> Cloud:
        """The conformance suite's view."""

        async def kill(vm: Vm) -> None:
            await asyncio.to_thread(self.world.kill, vm.id)

        faults = [f for f in FAULTS if f not in NO_SUCH_FAULT.get(self.name, ())]
        return Cloud(self.provider, kill, {f: self.world.arm(f) for f in faults})


@contextmanager
def realm(name: str, root: Path, monkeypatch: pytest.MonkeyPatch, **known_more: Any) -> Iterator[Realm]:
    """The cloud of provider `name` (with `known_more` in env.cloud); all its machines are gone afterwards."""
    for module in ("cloud", "cloud_calls"):
        monkeypatch.setattr(f"guiderail.pool.providers.{module}.PAUSES_S", (0.02, 0.05))
    monkeypatch.setattr("guiderail.pool.providers.cloud.CloudProvider.poll_s", 0.05)
    monkeypatch.setattr("guiderail.pool.providers.docker.DockerProvider.poll_s", 0.05)
    for variable, value in zip(ENVIRONMENT.get(name, ()), (ACCESS_KEY, SECRET_KEY), strict=False):
        monkeypatch.setenv(variable, value)
    for variable in ("AWS_SESSION_TOKEN", "DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(variable, raising=False)
    world = World(root)
    known = {
        **PARAMS[name],
        "boot_timeout_s": 20.0,
        "port": world.port,
        "server": "noop",
        **({} if name == "docker" else PRICE),
        **known_more,
    }
    with ExitStack() as stack:
        stack.callback(world.close)
        if name == "aws":
            ec2 = stack.enter_context(Ec2(world))
            yield Realm(name, world, known | {"endpoint": ec2.url, "image": ec2.image, "subnet": ec2.subnet})
        else:
            api = Api(world, {"docker": DockerEngine, "volcengine": Volcengine, "aliyun": Aliyun}[name])
            stack.callback(api.close)
            yield Realm(name, world, known | {"endpoint": api.url})
