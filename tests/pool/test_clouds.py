"""What the conformance suite cannot see of the cloud providers: faults that pass, clocks, prices, what is sent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guiderail.actions.types import Click
from guiderail.envs.types import InfraError
from guiderail.pool.providers import probe
from guiderail.pool.providers.aws import user_data
from guiderail.pool.providers.base import (
    LABEL_NAME,
    LABEL_POOL,
    BootFailed,
    Misconfigured,
    ProviderError,
    Unreachable,
    VmSpec,
)
from guiderail.pool.providers.cloud import CloudProvider
from guiderail.tasks.types import TaskSpec
from pool.clouds.world import SECRET_KEY
from pool.conformance.clouds import ENVIRONMENT, Realm, realm

ALL = ("docker", "aws", "volcengine", "aliyun")
APIS = ("aws", "volcengine", "aliyun")


@pytest.fixture
def cloud(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Realm]:
    with realm(request.param, tmp_path, monkeypatch) as r:
        yield r


def on(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cloud", names, indirect=True)


def spec(name: str = "a-1", ttl_s: float = 3600.0) -> VmSpec:
    return VmSpec(name, "pool-a", "run-1", time.time() + ttl_s)


def run(provider: CloudProvider, test: Callable[[CloudProvider], Awaitable[None]]) -> None:
    async def main() -> None:
        await provider.start()
        try:
            await asyncio.wait_for(test(provider), 60)
        finally:
            await provider.stop()

    asyncio.run(main())


def created(cloud: Realm) -> list[dict[str, Any]]:
    """What the API was sent to make machines, dry runs left out."""
    names = ("RunInstances", "POST /v1.45/containers/create")
    calls = [sent for action, sent in cloud.world.calls if action in names]
    return [c for c in calls if c.get("DryRun", "").lower() != "true"]


@on(*ALL)
def test_an_error_after_the_machine_was_made_leaves_one_machine_and_it_is_ours(cloud: Realm) -> None:
    async def test(provider: CloudProvider) -> None:
        cloud.world.arm("error_after_create", 1)()
        vm = await provider.wait_ready(await provider.create(spec()), 20.0)
        assert [x.id for x in await provider.list({LABEL_NAME: "a-1"})] == [vm.id]
        assert list(cloud.world.instances) == [vm.id] and not cloud.world.fails("error_after_create")

    run(cloud.provider(), test)


@on(*APIS)
def test_throttling_for_a_moment_is_borne(cloud: Realm) -> None:
    async def test(provider: CloudProvider) -> None:
        cloud.world.arm("throttled", 2)()
        vm = await provider.create(spec())
        cloud.world.arm("throttled_all", 4)()  # longer than one call bears: the boot goes on all the same
        await provider.wait_ready(vm, 20.0)
        assert cloud.world.times == 0 and len(created(cloud)) == 3

    run(cloud.provider(), test)


@on(*APIS)
@pytest.mark.parametrize("hours", [1.0, -1.0])
def test_a_clock_that_is_wrong_is_named(cloud: Realm, hours: float) -> None:
    cloud.world.clock_ahead_s = hours * 3600
    with pytest.raises(Misconfigured, match="clock is wrong: set it"):
        asyncio.run(cloud.provider().start())


@on(*APIS)
@pytest.mark.parametrize("minutes", [10.0, -10.0])
def test_a_clock_that_is_a_little_off_does_no_harm(cloud: Realm, minutes: float) -> None:
    async def test(provider: CloudProvider) -> None:
        cloud.world.clock_ahead_s = minutes * 60
        wanted = spec(ttl_s=120.0)  # shorter than the clocks differ
        vm = await provider.wait_ready(await provider.create(wanted), 20.0)
        assert vm.labels == wanted.labels() and cloud.world.instances[vm.id].release >= 0
        await asyncio.sleep(0.2)
        assert [x.state for x in await provider.list({LABEL_NAME: "a-1"})] == ["running"]
        await provider.terminate(vm.id)

    run(cloud.provider(), test)


@on(*ALL)
def test_a_half_dead_machine_is_told_by_address_port_and_remedy(cloud: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "ANSWER_S", 0.2)

    async def test(provider: CloudProvider) -> None:
        cloud.world.arm("half_dead")()
        vm = await provider.create(spec())
        made = cloud.world.instances[vm.id]
        host, port = made.host, made.asked.get("Port", cloud.world.port)
        while not (await probe.ping(f"{host}:{port}", "a-1")).startswith("connections are taken"):
            await asyncio.sleep(0.05)
        with pytest.raises(Unreachable) as e:
            await provider.wait_ready(vm, 4.0)
        told = f"a-1 ({vm.id}) at its private address {host}, port {port}: connections are taken, but no answer"
        assert str(e.value).startswith(told) and "env.cloud.address: public" in str(e.value)

    run(cloud.provider(), test)


@on(*APIS)
def test_an_address_out_of_reach_is_told(cloud: Realm) -> None:
    async def test(provider: CloudProvider) -> None:
        vm = await provider.create(spec())
        cloud.world.kill(vm.id)
        with pytest.raises(Unreachable, match=r"no connection \((Connect call failed|Connection refused)") as e:
            await provider.wait_ready(vm, 1.0)
        assert "security group" in str(e.value)

    run(cloud.provider(), test)


@pytest.mark.parametrize(
    ("cloud", "why"),
    [
        ("docker", "state exited, exit code 1, last lines of its log: cannot open display :0"),
        ("aws", "Client.VolumeLimitExceeded: Volume limit exceeded"),
        ("volcengine", "status ERROR"),
        ("aliyun", "status Stopped"),
    ],
    indirect=["cloud"],
)
def test_a_failed_boot_says_why_and_the_machine_is_listed_while_it_costs(cloud: Realm, why: str) -> None:
    async def test(provider: CloudProvider) -> None:
        cloud.world.arm("boot_failure")()
        vm = await provider.create(spec())
        with pytest.raises(BootFailed) as e:
            await provider.wait_ready(vm, 20.0)
        assert why in str(e.value) and not isinstance(e.value, Unreachable)
        listed = [(x.id, x.state) for x in await provider.list({LABEL_NAME: "a-1"})]
        assert listed == ([] if cloud.name == "aws" else [(vm.id, "gone")])  # EC2 has terminated it by itself

    run(cloud.provider(), test)


@on("volcengine", "aliyun")  # moto's instances and containers run at once
def test_a_boot_that_takes_too_long_says_what_was_last_seen(cloud: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pool.clouds.world.PENDING_S", 1e6)

    async def test(provider: CloudProvider) -> None:
        vm = await provider.create(spec())
        with pytest.raises(BootFailed, match=r"was not running within 0.5 s: state booting, private address 127\."):
            await provider.wait_ready(vm, 0.5)
        cloud.world.instances[vm.id].ready = 0.0

    run(cloud.provider(), test)


@on(*APIS)
def test_machines_that_boot_are_looked_at_together(cloud: Realm) -> None:
    async def test(provider: CloudProvider) -> None:
        vms = await asyncio.gather(*(provider.create(spec(f"a-{i}")) for i in range(8)))
        cloud.world.calls.clear()
        await asyncio.gather(*(provider.wait_ready(vm, 20.0) for vm in vms))
        looks = [str(sent) for action, sent in cloud.world.calls if action == "DescribeInstances"]
        assert all(vm.id in looks[0] for vm in vms)
        assert len(await provider.list({LABEL_POOL: "pool-a"})) == 8  # four pages

    run(cloud.provider(), test)


@on(*APIS)
def test_secrets_stay_out_of_errors_and_logs(
    cloud: Realm, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")

    async def test(provider: CloudProvider) -> None:
        cloud.world.arm("echo")()  # an API that answers with what it should not know
        with pytest.raises(ProviderError, match=r"\*\*\*") as e:
            await provider.create(spec())
        assert SECRET_KEY not in str(e.value) and e.value.__cause__ is None

    run(cloud.provider(), test)
    mine = [r.getMessage() for r in caplog.records if r.name.startswith("guiderail")]
    assert SECRET_KEY not in "".join([*mine, *capfd.readouterr()])


@pytest.mark.parametrize("name", APIS)
def test_missing_credentials_are_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with realm(name, tmp_path, monkeypatch) as r:
        monkeypatch.delenv(ENVIRONMENT[name][1])
        with pytest.raises(Misconfigured, match=f"needs {ENVIRONMENT[name][1]} in the environment"):
            asyncio.run(r.provider().start())


@on(*ALL)
def test_an_image_that_is_not_there_is_named(cloud: Realm) -> None:
    image = "ami-00000000" if cloud.name == "aws" else "none:1"
    with pytest.raises(Misconfigured, match=image):
        asyncio.run(cloud.provider(image=image).start())


@on("aliyun", "volcengine")
def test_a_cancelled_create_ends_when_its_request_has(cloud: Realm) -> None:
    """Else the pool would list, see nothing, and the machine would be made afterwards."""
    arrived, go_on, make = threading.Event(), threading.Event(), cloud.world.make

    def slow(*args: Any) -> Any:
        arrived.set()
        go_on.wait(20)
        return make(*args)

    cloud.world.make = slow  # type: ignore[method-assign]

    async def test(provider: CloudProvider) -> None:
        task = asyncio.create_task(provider.create(spec()))
        await asyncio.to_thread(arrived.wait, 20)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=0.2)
        assert not done
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [x.name for x in await provider.list({LABEL_NAME: "a-1"})] == ["a-1"]

    run(cloud.provider(), test)


@on("aws", "aliyun")
def test_a_token_used_with_another_limit_still_gives_its_machine(cloud: Realm) -> None:
    async def test(provider: CloudProvider) -> None:
        first = await provider.create(spec(ttl_s=30000.0))
        again = await provider.create(spec(ttl_s=20000.0))
        assert again.id == first.id and len(cloud.world.instances) == 1 and len(created(cloud)) == 2

    run(cloud.provider(), test)


@on("aws")
def test_the_end_of_a_guest_is_the_end_of_its_instance(cloud: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not just stopped: a stopped instance is still there and its disk costs money."""
    monkeypatch.setattr("guiderail.pool.providers.aws.AwsProvider.min_left_s", 0)

    async def test(provider: CloudProvider) -> None:
        await provider.create(spec(ttl_s=0.0))
        await asyncio.sleep(1.1)
        assert await provider.list({LABEL_NAME: "a-1"}) == []

    run(cloud.provider(), test)


def test_the_guest_timer_survives_a_reboot_and_minds_its_own_clock_only(tmp_path: Path) -> None:
    """user-data under a real sh, with a `shutdown` and a `date` of ours."""
    for name, body in (("shutdown", 'echo "$@" >> "$OUT"'), ("date", 'echo "$NOW"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    out = tmp_path / "out"
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(out), "GUIDERAIL_BOOT_DIR": str(tmp_path / "boot")}
    subprocess.run(["sh"], input=user_data(3600, 10**9), text=True, check=True, env=env | {"NOW": "1000"})
    (script,) = (tmp_path / "boot").iterdir()
    for now in ("2830", "9999999"):  # the next boots
        subprocess.run([str(script)], check=True, env=env | {"NOW": now})
    assert out.read_text().split("\n") == ["-P +60", "-P +30", "-P +0", ""]


@on("aliyun")
def test_a_release_time_is_never_nearer_than_ecs_takes(cloud: Realm) -> None:
    async def test(provider: CloudProvider) -> None:
        cloud.world.clock_ahead_s = 600.0
        for name, ttl in (("a-1", 1.0), ("a-2", 7200.0)):
            await provider.create(spec(name, ttl))
        near, far = (i.release - time.time() for i in cloud.world.instances.values())
        assert 2400 < near < 2800 and 7100 < far < 7201

    run(cloud.provider(), test)


@pytest.mark.parametrize(
    ("cloud", "changed", "price"),
    [
        ("aliyun", {}, (0.42, "CNY", "DescribePrice")),
        ("volcengine", {"spot": True}, (0.11, "CNY", "DescribeSpotPriceHistory")),
        ("aws", {"spot": True}, (0.00001, "USD", "DescribeSpotPriceHistory")),  # what moto says
        ("docker", {}, (0.0, "", "docker: no price set, so none counted")),
        ("aws", {"price_per_hour": 0.5, "currency": "EUR"}, (0.5, "EUR", "env.cloud.price_per_hour in params.yaml")),
    ],
    indirect=["cloud"],
)
def test_a_price_has_a_source(cloud: Realm, changed: dict[str, Any], price: tuple[float, str, str]) -> None:
    async def test(p: CloudProvider) -> None:
        assert (p.price_per_hour, p.currency, p.price_source) == price
        assert (await p.create(spec())).price_per_hour == price[0]

    run(cloud.provider(**{"price_per_hour": 0.0, "currency": "", **changed}), test)


@on("aws", "volcengine")
def test_a_price_that_nobody_tells_is_not_made_up(cloud: Realm) -> None:
    with pytest.raises(Misconfigured, match=r"set env\.cloud\.price_per_hour and env\.cloud\.currency"):
        asyncio.run(cloud.provider(price_per_hour=0.0).start())


@pytest.mark.parametrize(
    ("cloud", "changed", "sent"),
    [
        (
            "aws",
            {"spot": True, "spot_max_price": 0.03, "disk_gb": 40, "address": "public", "security_groups": ["sg-9"]},
            {
                "InstanceMarketOptions.MarketType": "spot",
                "InstanceMarketOptions.SpotOptions.SpotInstanceType": "one-time",
                "InstanceMarketOptions.SpotOptions.MaxPrice": "0.03",
                "BlockDeviceMapping.1.Ebs.VolumeSize": "40",
                "BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
                "NetworkInterface.1.AssociatePublicIpAddress": "true",
                "NetworkInterface.1.SecurityGroupId.1": "sg-9",
                "InstanceInitiatedShutdownBehavior": "terminate",
                "ClientToken": "a-1",
            },
        ),
        (
            "volcengine",
            {"spot": True, "spot_max_price": 0.3, "disk_gb": 40, "address": "public"},
            {
                **{"SpotStrategy": "SpotWithPriceLimit", "SpotPriceLimit": "0.3", "ClientToken": "a-1"},
                **{"Volumes.1.Size": "40", "EipAddress.ReleaseWithInstance": "true", "Count": "1"},
            },
        ),
        (
            "aliyun",
            {"spot": True, "disk_gb": 40, "address": "public"},
            {
                **{"SpotStrategy": "SpotAsPriceGo", "SystemDisk.Size": "40", "InternetMaxBandwidthOut": "100"},
                **{"InstanceChargeType": "PostPaid", "Amount": "1", "ClientToken": "a-1"},
            },
        ),
    ],
    indirect=["cloud"],
)
def test_what_was_asked_for_is_what_is_sent(cloud: Realm, changed: dict[str, Any], sent: dict[str, str]) -> None:
    async def test(provider: CloudProvider) -> None:
        await provider.create(spec())
        assert sent.items() <= created(cloud)[-1].items()

    run(cloud.provider(**changed), test)


@on("volcengine", "aliyun")
def test_a_public_address_is_used_when_asked_for(cloud: Realm) -> None:
    async def test(provider: CloudProvider) -> None:
        vm = await provider.wait_ready(await provider.create(spec()), 20.0)
        assert vm.address.startswith(cloud.world.network)

    run(cloud.provider(address="public"), test)


@on("docker")
def test_a_container_has_its_limits_and_a_port_on_loopback(cloud: Realm) -> None:
    async def test(provider: CloudProvider) -> None:
        vm = await provider.wait_ready(await provider.create(spec()), 20.0)
        assert vm.address.startswith("127.0.0.1:")
        host = created(cloud)[0]["HostConfig"]
        assert (host["NanoCpus"], host["Memory"]) == (2_000_000_000, 4 * 2**30)
        assert host["PortBindings"] == {f"{cloud.world.port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}

    run(cloud.provider(cpus=2.0, memory_gb=4.0), test)


@on("docker")
def test_a_daemon_elsewhere_needs_a_public_address(cloud: Realm) -> None:
    with pytest.raises(Misconfigured, match=r"on another host.*env.cloud.address: public"):
        asyncio.run(cloud.provider(endpoint="tcp://192.0.2.1:2375").start())
    with pytest.raises(Misconfigured, match=r"no Docker daemon at unix:///nowhere\.sock"):
        asyncio.run(cloud.provider(endpoint="unix:///nowhere.sock").start())


@on("aws", "aliyun")
def test_a_new_disk_keeps_machine_and_limit_and_forgets_what_was_on_it(cloud: Realm) -> None:
    async def test(provider: CloudProvider) -> None:
        vm = await provider.wait_ready(await provider.create(spec()), 20.0)
        env = await provider.connect(vm)
        await env.reset(TaskSpec("noop", "count", 1))
        before = cloud.world.instances[vm.id]
        release, process = before.release, before.process
        clean = await provider.reset(vm)
        assert (clean.id, clean.address, dict(clean.labels)) == (vm.id, vm.address, dict(vm.labels))
        assert before.renewed == 1 and before.release == release and before.process is not process
        with pytest.raises(InfraError, match="step before reset"):
            await (await provider.connect(clean)).step(Click(0.5, 0.5))
        assert len(cloud.world.instances) == len(created(cloud)) == 1

    run(cloud.provider(reset="disk"), test)


@on("aws", "aliyun")
@pytest.mark.parametrize("fault", ["reset_failure", "disk_kept"])
def test_a_disk_that_was_not_made_anew_fails_the_reset(cloud: Realm, fault: str) -> None:
    """Also when the API says that it was: whoever still answers to the name has not forgotten the last lease."""

    async def test(provider: CloudProvider) -> None:
        vm = await provider.wait_ready(await provider.create(spec()), 20.0)
        cloud.world.arm(fault)()
        with pytest.raises(BootFailed, match="old server still answers" if fault == "disk_kept" else "is failed|snap"):
            await provider.reset(vm)
        for left in await provider.list({LABEL_NAME: "a-1"}):
            await provider.terminate(left.id)
        assert await provider.list({LABEL_POOL: "pool-a"}) == []

    run(cloud.provider(reset="disk", boot_timeout_s=2.0), test)


@on("aws", "aliyun")
def test_a_new_disk_bears_a_moment_of_throttling(cloud: Realm) -> None:
    async def test(provider: CloudProvider) -> None:
        vm = await provider.wait_ready(await provider.create(spec()), 20.0)
        cloud.world.arm("throttled_all", 4)()
        assert (await provider.reset(vm)).id == vm.id and cloud.world.instances[vm.id].renewed == 1

    run(cloud.provider(reset="disk"), test)


def test_a_timer_that_is_set_again_after_a_new_disk_does_not_start_over(tmp_path: Path) -> None:
    for name, body in (("shutdown", 'echo "$@" >> "$OUT"'), ("date", 'echo "$NOW"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    out = tmp_path / "out"
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(out), "GUIDERAIL_BOOT_DIR": str(tmp_path / "boot")}
    for now in ("1000", "2800", "4601", "500"):  # at first, after half its time, past it, with a clock that lags
        subprocess.run(["sh"], input=user_data(3600, 4600), text=True, check=True, env=env | {"NOW": now})
    assert out.read_text().split("\n") == ["-P +60", "-P +30", "-P +60", "-P +60", ""]


@on(*ALL)
def test_an_address_that_another_machine_has_taken_over_is_not_ours(cloud: Realm) -> None:
    """A spot machine was taken away, and its address went to a machine of another pool."""

    async def test(provider: CloudProvider) -> None:
        vm = await provider.wait_ready(await provider.create(spec()), 20.0)
        env = await provider.connect(vm)
        await env.reset(TaskSpec("noop", "count", 1))
        assert await provider.ready(vm)
        cloud.world.kill(vm.id)
        cloud.world.boot(cloud.world.instances[vm.id])
        while (said := await probe.ping(vm.address, "a-1")).startswith("no connection"):
            await asyncio.sleep(0.02)
        assert "this is machine of nobody yet, not a-1" in said and not await provider.ready(vm)
        assert await probe.ping(vm.address, "b-1", claim=True) == ""
        assert not await provider.ready(vm)
        with pytest.raises(InfraError, match="this is machine b-1, not a-1"):
            await (await provider.connect(vm)).reset(TaskSpec("noop", "count", 1))
        with pytest.raises(Unreachable, match="refuses: this is machine b-1, not a-1"):
            await provider.wait_ready(vm, 1.0)

    run(cloud.provider(), test)


def test_the_probe_tells_a_stranger_from_a_machine() -> None:
    async def main() -> None:
        async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH\r\n")
            writer.close()

        server = await asyncio.start_server(stranger, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        assert "none of ours" in await probe.ping(f"{host}:{port}", "a-1")
        server.close()

    asyncio.run(main())
