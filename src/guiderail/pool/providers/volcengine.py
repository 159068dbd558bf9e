"""Machines of Volcengine ECS, through volcenginesdkecs of volcengine-python-sdk (the extra `volcengine`).

Guarantees: RunInstances has a client token and labels as tags; pay-as-you-go or spot. ECS has no release time for
pay-as-you-go machines, so there is no hard limit at the provider: the pool's sweeper ends what expired, and an
expiry label tells everybody else. Prices: spot from DescribeSpotPriceHistory, on demand from params.yaml. Credentials:
VOLCENGINE_ACCESS_KEY and VOLCENGINE_SECRET_KEY. Error codes: those of the API reference that the pool must tell apart;
any other is judged by its HTTP status.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from guiderail.pool.providers.base import (
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

STATES: dict[str, VmState] = {
    "CREATING": "booting",
    "STARTING": "booting",
    "REBOOTING": "booting",
    "RUNNING": "running",
}
CODES: dict[type[ProviderError], tuple[str, ...]] = {
    Throttled: ("FlowLimitExceeded", "AccountFlowLimitExceeded", "Throttling", "TooManyRequests", "RequestLimit"),
    QuotaExceeded: ("QuotaExceeded", "LimitExceeded", "InsufficientStock", "Insufficient", "SoldOut", "InvalidBalance"),
    Busy: ("InvalidInstance.InvalidInstanceStatus", "InvalidInstanceStatus", "OperationConflict"),
    Misconfigured: (
        *("InvalidCredential", "InvalidAccessKey", "SignatureDoesNotMatch", "InvalidTimestamp", "AccessDenied"),
        *("MissingAuthenticationToken", "InvalidSecretToken", "InvalidImage", "InvalidInstanceType", "InvalidSubnet"),
        *("InvalidSecurityGroup", "InvalidZone", "InvalidParameter", "MissingParameter", "InvalidActionOrVersion"),
    ),
}


class VolcengineProvider(CloudProvider):
    """ECS instances of Volcengine."""

    name = "volcengine"
    secret_names = ("VOLCENGINE_ACCESS_KEY", "VOLCENGINE_SECRET_KEY")

    def open(self) -> None:
        """Client and image; a dry run of RunInstances looks at the rest."""
        try:
            import volcenginesdkcore
            import volcenginesdkecs
        except ImportError as e:
            raise Misconfigured(f"provider volcengine needs its SDK ({e}): pip install 'guiderail[volcengine]'") from e
        config = volcenginesdkcore.Configuration()
        config.ak, config.sk = (self.secrets[n] for n in self.secret_names)
        config.region = self.cloud.region
        config.auto_retry = False
        config.connect_timeout, config.read_timeout = 5.0, 20.0
        if self.cloud.endpoint:
            scheme, _, host = self.cloud.endpoint.rpartition("://")
            config.scheme, config.host = scheme or "https", host
        self.sdk = volcenginesdkecs
        self.client: Any = volcenginesdkecs.ECSApi(volcenginesdkcore.ApiClient(config))
        images = self.client.describe_images(self.sdk.DescribeImagesRequest(image_ids=[self.cloud.image])).images
        if not images or images[0].status != "available":
            raise Misconfigured(f"image {self.cloud.image} is not available in {self.cloud.region}")
        try:
            self.client.run_instances(self.wanted(VmSpec("check", "check"), "", dry_run=True))
        except Exception as e:
            if _code(e)[0] != "DryRunOperation":
                raise

    def quote(self) -> tuple[float, str, str]:
        """The last spot price of the type in the zone. Raises Misconfigured for on-demand."""
        if not self.cloud.spot:
            raise Misconfigured(
                "ECS's API does not tell on-demand prices: set env.cloud.price_per_hour and env.cloud.currency "
                "(https://www.volcengine.com/pricing?product=ECS)"
            )
        asked = self.sdk.DescribeSpotPriceHistoryRequest(
            instance_type_id=self.cloud.instance_type, zone_id=self.cloud.zone
        )
        prices = self.client.describe_spot_price_history(asked).spot_prices
        if not prices:
            raise Misconfigured("ECS told no spot price: set env.cloud.price_per_hour and env.cloud.currency")
        return float(max(prices, key=lambda p: p.timestamp).spot_price), "CNY", "DescribeSpotPriceHistory"

    def wanted(self, spec: VmSpec, token: str, *, dry_run: bool = False) -> Any:
        """The RunInstances request."""
        c, s = self.cloud, self.sdk
        more: dict[str, Any] = {}
        if c.spot:
            more["spot_strategy"] = "SpotWithPriceLimit" if c.spot_max_price else "SpotAsPriceGo"
            more |= {"spot_price_limit": c.spot_max_price} if c.spot_max_price else {}
        if c.address == "public":
            more["eip_address"] = s.EipAddressForRunInstancesInput(
                bandwidth_mbps=100, charge_type="PayByTraffic", isp="BGP", release_with_instance=True
            )
        if c.disk_gb:
            disk = s.VolumeForRunInstancesInput(size=c.disk_gb, volume_type="ESSD_PL0", delete_with_instance="true")
            more["volumes"] = [disk]
        network = s.NetworkInterfaceForRunInstancesInput(subnet_id=c.subnet, security_group_ids=list(c.security_groups))
        return s.RunInstancesRequest(
            zone_id=c.zone,
            image_id=c.image,
            instance_type_id=c.instance_type,
            network_interfaces=[network],
            instance_name=spec.name,
            instance_charge_type="PostPaid",
            count=1,
            client_token=token or None,
            dry_run=dry_run or None,
            tags=[s.TagForRunInstancesInput(key=k, value=v) for k, v in spec.labels().items()],
            **more,
        )

    def run(self, spec: VmSpec, token: str) -> Vm:
        """RunInstances."""
        made = self.client.run_instances(self.wanted(spec, token)).instance_ids[0]
        return self.vm(made, spec.labels(), "booting", "", time.time())

    def find(self, labels: Mapping[str, str], ids: Sequence[str] = ()) -> list[Seen]:
        """DescribeInstances, all pages."""
        s, found, mark = self.sdk, [], None
        while True:
            asked = s.DescribeInstancesRequest(
                instance_ids=list(ids) or None,
                tag_filters=[s.TagFilterForDescribeInstancesInput(key=k, values=[v]) for k, v in labels.items()]
                or None,
                max_results=100,
                next_token=mark,
            )
            page = self.client.describe_instances(asked)
            found += [self._seen(i) for i in page.instances or []]
            mark = page.next_token
            if not mark:
                return found

    def _seen(self, i: Any) -> Seen:
        if self.cloud.address == "public":
            host = i.eip_address.ip_address if i.eip_address else ""
        else:
            host = i.network_interfaces[0].primary_ip_address if i.network_interfaces else ""
        tags = {t.key: t.value for t in i.tags or []}
        created = datetime.fromisoformat(i.created_at).timestamp()
        vm = self.vm(i.instance_id, tags, STATES.get(i.status, "gone"), host or "", created)
        return Seen(vm, f"status {i.status}", ended=i.status in ("DELETING", "DELETED"))

    def delete(self, vm_id: str) -> None:
        """DeleteInstance."""
        try:
            self.client.delete_instance(self.sdk.DeleteInstanceRequest(instance_id=vm_id))
        except Exception as e:
            if not re.fullmatch(r"InvalidInstance(Id)?\.NotFound", _code(e)[0]):
                raise

    def explain(self, error: Exception) -> ProviderError:
        """By ECS's error code, else by the status."""
        code, message, status = _code(error)
        text = f"Volcengine ECS {self.cloud.region}: {code}: {message}"
        if code == "InvalidTimestamp":
            return Misconfigured(f"{text}; this computer's clock is wrong: set it (NTP)")
        by_status = {401: Misconfigured, 403: Misconfigured, 429: Throttled}.get(status)
        refused = BootFailed if 400 <= status < 500 else ApiFault
        return ((classify(code, CODES) if code else None) or by_status or refused)(text)


def _code(error: Exception) -> tuple[str, str, int]:
    """(code, message, HTTP status) of an exception of the SDK; status 0 when there was no reply.

    An error inside a reply of status 200 is told by the SDK as the text of a dict in `reason`.
    """
    body, status = getattr(error, "body", None), int(getattr(error, "status", 0) or 0)
    try:
        told = json.loads(body or "{}")["ResponseMetadata"]["Error"]
        return str(told["Code"]), str(told.get("Message", "")), status
    except (ValueError, KeyError, TypeError):
        reason = str(getattr(error, "reason", "") or error)
        found = re.search(r"'Code': '([^']+)'", reason)
        return (found[1], reason, 400) if found else ("", f"{type(error).__name__}: {reason}", status)
