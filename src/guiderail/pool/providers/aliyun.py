"""Machines of Alibaba Cloud ECS, through alibabacloud-ecs20140526 (the extra `aliyun`).

Guarantees: RunInstances has a client token and labels as tags; pay-as-you-go or spot. The hard limit is ECS's own
(AutoReleaseTime): it holds whatever becomes of pool and guest. ECS takes no time less than half an hour ahead by its
clock, so a nearer one is moved to MIN_RELEASE_S from now; the pool ends such a machine itself. Prices come from
DescribePrice unless params.yaml sets one. Credentials: ALIBABA_CLOUD_ACCESS_KEY_ID, ALIBABA_CLOUD_ACCESS_KEY_SECRET.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from guiderail.pool.providers.base import (
    LABEL_NAME,
    BootFailed,
    Misconfigured,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Vm,
    VmSpec,
    VmState,
)
from guiderail.pool.providers.cloud import CloudProvider, Seen
from guiderail.pool.providers.cloud_calls import ApiFault, Busy, classify

MIN_RELEASE_S = 2760.0  # half an hour, a quarter that clocks may differ by (more is refused by the API), and one minute
STATES: dict[str, VmState] = {"Pending": "booting", "Starting": "booting", "Running": "running"}
CODES: dict[type[ProviderError], tuple[str, ...]] = {
    Throttled: ("Throttling",),
    QuotaExceeded: (
        *("QuotaExceed", "OperationDenied.NoStock", "InvalidResourceType.NotSupported", "Zone.NotOnSale"),
        *("InvalidInstanceType.ZoneNotSupported", "InvalidVSwitchId.IpNotEnough", "OperationDenied.ZoneNotSupported"),
        *("SpotPriceLimitLow", "InvalidSpotPriceLimit.LowerThanPublicPrice", "Account.Arrearage"),
    ),
    Busy: ("IncorrectInstanceStatus", "LastTokenProcessing", "IdempotentProcessing"),
    Misconfigured: (
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "IncompleteSignature", "InvalidTimeStamp", "Forbidden"),
        *("NoPermission", "InvalidImageId", "InvalidInstanceType", "InvalidVSwitchId", "InvalidSecurityGroupId"),
        *("InvalidRegionId", "InvalidParameter", "MissingParameter", "InvalidAutoReleaseTime", "InvalidSecurityToken"),
        *("InvalidInternetMaxBandwidthOut", "OperationDenied.ImageNotValid", "UnauthorizedRAM"),
    ),
}


class AliyunProvider(CloudProvider):
    """ECS instances."""

    name = "aliyun"
    hard_ttl = True
    secret_names = ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET")
    min_release_s = MIN_RELEASE_S

    def open(self) -> None:
        """Client and image; a dry run of RunInstances looks at the rest."""
        try:
            from alibabacloud_ecs20140526 import models
            from alibabacloud_ecs20140526.client import Client
            from alibabacloud_tea_openapi.models import Config
        except ImportError as e:
            raise Misconfigured(f"provider aliyun needs its SDK ({e}): pip install 'guiderail[aliyun]'") from e
        scheme, _, host = self.cloud.endpoint.rpartition("://")
        self.models = models
        self.client: Any = Client(
            Config(
                access_key_id=self.secrets["ALIBABA_CLOUD_ACCESS_KEY_ID"],
                access_key_secret=self.secrets["ALIBABA_CLOUD_ACCESS_KEY_SECRET"],
                region_id=self.cloud.region,
                endpoint=host or f"ecs.{self.cloud.region}.aliyuncs.com",
                protocol=scheme or "https",
                connect_timeout=5_000,
                read_timeout=20_000,
            )
        )
        c = self.cloud
        ask = models.DescribeImagesRequest(region_id=c.region, image_id=c.image)
        if not self.client.describe_images(ask).body.images.image:
            raise Misconfigured(f"image {c.image} is not there in {c.region}")
        try:
            self.client.run_instances(self.wanted(VmSpec("check", "check"), "", dry_run=True))
        except Exception as e:
            if _code(e) != "DryRunOperation":
                raise

    def quote(self) -> tuple[float, str, str]:
        """DescribePrice of an hour."""
        c, m = self.cloud, self.models
        disk = m.DescribePriceRequestSystemDisk(category="cloud_essd", size=c.disk_gb) if c.disk_gb else None
        asked = m.DescribePriceRequest(
            region_id=c.region,
            zone_id=c.zone or None,
            resource_type="instance",
            instance_type=c.instance_type,
            image_id=c.image,
            price_unit="Hour",
            period=1,
            amount=1,
            system_disk=disk,
            spot_strategy="SpotAsPriceGo" if c.spot else None,
        )
        price = self.client.describe_price(asked).body.price_info.price
        return float(price.trade_price), str(price.currency), "DescribePrice"

    def wanted(self, spec: VmSpec, token: str, *, dry_run: bool = False) -> Any:
        """The RunInstances request."""
        c, m = self.cloud, self.models
        spot: dict[str, Any] = {}
        if c.spot:
            spot = {"spot_strategy": "SpotWithPriceLimit" if c.spot_max_price else "SpotAsPriceGo"}
            spot |= {"spot_price_limit": c.spot_max_price} if c.spot_max_price else {}
        if c.address == "public":
            spot |= {"internet_max_bandwidth_out": 100, "internet_charge_type": "PayByTraffic"}
        if c.disk_gb:
            spot["system_disk"] = m.RunInstancesRequestSystemDisk(size=str(c.disk_gb))
        if spec.expires:
            spot["auto_release_time"] = _utc(max(spec.expires, time.time() + self.min_release_s))
        return m.RunInstancesRequest(
            region_id=c.region,
            zone_id=c.zone or None,
            image_id=c.image,
            instance_type=c.instance_type,
            v_switch_id=c.subnet,
            security_group_ids=list(c.security_groups),
            instance_name=spec.name,
            instance_charge_type="PostPaid",
            amount=1,
            client_token=token or None,
            dry_run=dry_run or None,
            tag=[m.RunInstancesRequestTag(key=k, value=v) for k, v in spec.labels().items()],
            **spot,
        )

    def run(self, spec: VmSpec, token: str) -> Vm:
        """RunInstances; a token that was used with other values (a release time moved) is looked up by its name."""
        try:
            reply = self.client.run_instances(self.wanted(spec, token)).body
        except Exception as e:
            if _code(e) != "IdempotentParameterMismatch":
                raise
            for seen in self.find({LABEL_NAME: spec.name}):
                return seen.vm
            raise ApiFault(f"ECS knows client token {token} but not yet the instance made with it") from None
        return self.vm(reply.instance_id_sets.instance_id_set[0], spec.labels(), "booting", "", time.time())

    def find(self, labels: Mapping[str, str], ids: Sequence[str] = ()) -> list[Seen]:
        """DescribeInstances, all pages."""
        m, found, mark = self.models, [], None
        while True:
            asked = m.DescribeInstancesRequest(
                region_id=self.cloud.region,
                instance_ids=json.dumps(list(ids)) if ids else None,
                tag=[m.DescribeInstancesRequestTag(key=k, value=v) for k, v in labels.items()] or None,
                max_results=100,
                next_token=mark,
            )
            body = self.client.describe_instances(asked).body
            found += [self._seen(i) for i in body.instances.instance]
            mark = body.next_token
            if not mark:
                return found

    def _seen(self, i: Any) -> Seen:
        private = i.vpc_attributes.private_ip_address.ip_address if i.vpc_attributes else []
        hosts = (i.public_ip_address.ip_address if self.cloud.address == "public" else private) or []
        tags = {t.tag_key: t.tag_value for t in (i.tags.tag if i.tags else [])}
        created = datetime.fromisoformat(i.creation_time).timestamp()  # minutes, no seconds
        locks = [x.lock_reason for x in i.operation_locks.lock_reason] if i.operation_locks else []
        vm = self.vm(i.instance_id, tags, STATES.get(i.status, "gone"), hosts[0] if hosts else "", created)
        return Seen(vm, ", ".join([f"status {i.status}", *locks]))

    def delete(self, vm_id: str) -> None:
        """DeleteInstance, running or not."""
        try:
            self.client.delete_instance(self.models.DeleteInstanceRequest(instance_id=vm_id, force=True))
        except Exception as e:
            if not _code(e).startswith("InvalidInstanceId.NotFound"):
                raise

    def renew(self, vm_id: str, memo: dict[str, str]) -> str:
        """Power off (billing goes on, so the place is kept), ReInitDisk of the system disk, which starts it again."""
        m, move = self.models, memo.get("move", "stop")
        if move == "stop":
            self.client.stop_instance(
                m.StopInstanceRequest(instance_id=vm_id, force_stop=True, stopped_mode="KeepCharging")
            )
            memo["move"] = "stopping"
        asked = m.DescribeInstancesRequest(region_id=self.cloud.region, instance_ids=json.dumps([vm_id]))
        status = next((i.status for i in self.client.describe_instances(asked).body.instances.instance), "gone")
        if status == "gone":
            raise BootFailed(f"ECS {self.cloud.region}: {vm_id} is gone while its disk was to be made anew")
        if move == "stopping" and status == "Stopped":
            of = m.DescribeDisksRequest(region_id=self.cloud.region, instance_id=vm_id, disk_type="system")
            disks = self.client.describe_disks(of).body.disks.disk
            if not disks:
                raise BootFailed(f"ECS {self.cloud.region}: {vm_id} shows no system disk")
            self.client.re_init_disk(m.ReInitDiskRequest(disk_id=disks[0].disk_id, auto_start_instance=True))
            memo["move"] = "starting"
        return "" if move == "starting" and status == "Running" else f"{memo['move']}, status {status}"

    def explain(self, error: Exception) -> ProviderError:
        """By ECS's error code."""
        code, text = _code(error), f"ECS {self.cloud.region}: {_code(error)}: {getattr(error, 'message', error)}"
        if code.startswith("InvalidTimeStamp"):
            return Misconfigured(f"{text}; this computer's clock is wrong: set it (NTP)")
        status = getattr(error, "status_code", None)
        kind = classify(code, CODES) if code else None
        refused = isinstance(status, int) and 400 <= status < 500
        return (kind or (BootFailed if refused else ApiFault))(text)


def _utc(seconds: float) -> str:
    """As AutoReleaseTime wants it; ECS cuts the seconds off unless they are 00."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _code(error: Exception) -> str:
    """ECS's code in an exception of the SDK; "" when there was no reply."""
    inner = getattr(error, "inner_exception", None) or error
    code = getattr(inner, "code", "") or ""
    return str(code) if getattr(inner, "status_code", None) else ""
