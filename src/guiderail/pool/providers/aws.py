"""Machines of Amazon EC2, through boto3 (the extra `aws`).

Guarantees: RunInstances has a client token, and labels as tags on instance and volumes, so what was made is found and
found once; on-demand or one-time spot. The hard limit: the machine powers itself off at its time (a timer that
user-data sets, again at each boot, on the machine's own clock) and is terminated by that
(InstanceInitiatedShutdownBehavior). It needs cloud-init in the image and a guest that is not frozen; EC2 has no limit
of its own, so the pool's sweeper stays the second net. Prices: spot from DescribeSpotPriceHistory; on demand from
params.yaml, since EC2's API has none. Credentials: environment only (AWS_ACCESS_KEY_ID and so on), no profiles.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
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
from guiderail.pool.providers.cloud_calls import ApiFault, classify

STATES: dict[str, VmState] = {"pending": "booting", "running": "running"}
CODES: dict[type[ProviderError], tuple[str, ...]] = {
    Throttled: ("RequestLimitExceeded", "Throttling", "TooManyRequests", "EC2ThrottledException"),
    QuotaExceeded: (
        *("InstanceLimitExceeded", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "VolumeLimitExceeded"),
        *("InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientFreeAddressesInSubnet"),
        *("SpotMaxPriceTooLow", "InsufficientCapacity", "InsufficientAddressCapacity"),
    ),
    Misconfigured: (
        *("AuthFailure", "UnauthorizedOperation", "InvalidClientTokenId", "SignatureDoesNotMatch", "OptInRequired"),
        *("RequestExpired", "InvalidAMIID", "InvalidSubnet", "InvalidGroup", "InvalidParameter", "InvalidBlockDevice"),
        *("MissingParameter", "Unsupported", "Blocked", "PendingVerification", "UnrecognizedClientException"),
    ),
}


def user_data(left: int, expires: int) -> str:
    """A script for cloud-init that powers the machine off after `left` seconds of its own clock.

    It runs again on a root volume made anew; then `expires` (unix seconds) keeps it from starting over, as far as the
    machine's clock is right. A clock that is wrong never makes it later than `left`.
    """
    return f"""#!/bin/sh
# The machine's time is over after {left} s, whatever becomes of who started it; the timer is set at each boot.
end=$(( $(date +%s) + {left} ))
[ {expires} -gt "$(date +%s)" ] && [ {expires} -lt "$end" ] && end={expires}
script=${{GUIDERAIL_BOOT_DIR:-/var/lib/cloud/scripts/per-boot}}/guiderail-ttl
mkdir -p "$(dirname "$script")"
cat > "$script" <<END
#!/bin/sh
left=\\$(( ($end - \\$(date +%s) + 59) / 60 ))
shutdown -P +\\$(( left > 0 ? left : 0 ))
END
chmod +x "$script"
sh "$script"
"""


class AwsProvider(CloudProvider):
    """EC2 instances."""

    name = "aws"
    hard_ttl = True
    secret_names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    min_left_s = 60  # the timer counts minutes

    def open(self) -> None:
        """Client, image, subnet, and a dry run of RunInstances that shows whether we may."""
        try:
            import boto3
            from botocore.config import Config
        except ImportError as e:
            raise Misconfigured(f"provider aws needs boto3 ({e}): pip install 'guiderail[aws]'") from e
        token = os.environ.get("AWS_SESSION_TOKEN")
        self.secrets |= {"AWS_SESSION_TOKEN": token} if token else {}
        self.client: Any = boto3.client(
            "ec2",
            region_name=self.cloud.region,
            endpoint_url=self.cloud.endpoint or None,
            aws_access_key_id=self.secrets["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.secrets["AWS_SECRET_ACCESS_KEY"],
            aws_session_token=token,
            config=Config(
                connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 1}, max_pool_connections=16
            ),
        )
        images = self.client.describe_images(ImageIds=[self.cloud.image])["Images"]
        if not images or images[0].get("State", "available") != "available":
            raise Misconfigured(f"image {self.cloud.image} is not available in {self.cloud.region}")
        self.root_device = images[0].get("RootDeviceName", "/dev/sda1")
        self.client.describe_subnets(SubnetIds=[self.cloud.subnet])
        try:
            self.client.run_instances(**self.wanted(VmSpec("check", "check")), DryRun=True)
        except Exception as e:
            if _code(e) != "DryRunOperation":
                raise

    def quote(self) -> tuple[float, str, str]:
        """The last spot price of the type in the zone. Raises Misconfigured for on-demand."""
        if not self.cloud.spot:
            raise Misconfigured(
                "EC2's API does not tell on-demand prices: set env.cloud.price_per_hour and env.cloud.currency "
                "(https://aws.amazon.com/ec2/pricing/on-demand/)"
            )
        zone = {"AvailabilityZone": self.cloud.zone} if self.cloud.zone else {}
        found = self.client.describe_spot_price_history(
            InstanceTypes=[self.cloud.instance_type], ProductDescriptions=["Linux/UNIX"], MaxResults=1, **zone
        )["SpotPriceHistory"]
        if not found:
            raise Misconfigured("EC2 told no spot price: set env.cloud.price_per_hour and env.cloud.currency")
        return float(max(found, key=lambda p: p["Timestamp"])["SpotPrice"]), "USD", "DescribeSpotPriceHistory"

    def wanted(self, spec: VmSpec) -> dict[str, Any]:
        """Arguments of RunInstances."""
        c, tags = self.cloud, [{"Key": k, "Value": v} for k, v in spec.labels().items()]
        network = {"DeviceIndex": 0, "SubnetId": c.subnet, "AssociatePublicIpAddress": c.address == "public"}
        if c.security_groups:
            network["Groups"] = list(c.security_groups)
        wanted: dict[str, Any] = {
            **{"ImageId": c.image, "InstanceType": c.instance_type, "MinCount": 1, "MaxCount": 1},
            "NetworkInterfaces": [network],
            "InstanceInitiatedShutdownBehavior": "terminate",
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [*tags, {"Key": "Name", "Value": spec.name}]},
                {"ResourceType": "volume", "Tags": tags},
            ],
        }
        if spec.expires:
            wanted["UserData"] = user_data(max(self.min_left_s, int(spec.expires - time.time())), int(spec.expires))
        if c.zone:
            wanted["Placement"] = {"AvailabilityZone": c.zone}
        if c.disk_gb:
            disk = {"VolumeSize": c.disk_gb, "DeleteOnTermination": True}
            wanted["BlockDeviceMappings"] = [{"DeviceName": self.root_device, "Ebs": disk}]
        if c.spot:
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            options |= {"MaxPrice": f"{c.spot_max_price:g}"} if c.spot_max_price else {}
            wanted["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        return wanted

    def run(self, spec: VmSpec, token: str) -> Vm:
        """RunInstances."""
        try:
            made = self.client.run_instances(**self.wanted(spec), ClientToken=token)["Instances"][0]
        except Exception as e:
            # user-data counts the seconds from now, so asking again differs from the first time
            if _code(e) != "IdempotentParameterMismatch":
                raise
            made = self._by_token(spec, token)
        return self._seen(made).vm

    def _by_token(self, spec: VmSpec, token: str) -> dict[str, Any]:
        for i in self._instances([{"Name": f"tag:{LABEL_NAME}", "Values": [spec.name]}]):
            if i.get("ClientToken") == token:
                return i
        raise ApiFault(f"EC2 knows client token {token} but not yet the instance made with it")

    def _instances(self, filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
        pages = self.client.get_paginator("describe_instances").paginate(Filters=filters)
        return [i for p in pages for r in p["Reservations"] for i in r["Instances"]]

    def find(self, labels: Mapping[str, str], ids: Sequence[str] = ()) -> list[Seen]:
        """DescribeInstances by filters, which do not mind ids that are not there."""
        filters = [{"Name": f"tag:{k}", "Values": [v]} for k, v in labels.items()]
        filters += [{"Name": "instance-id", "Values": list(ids)}] if ids else []
        return [self._seen(i) for i in self._instances(filters)]

    def _seen(self, i: Mapping[str, Any]) -> Seen:
        public = self.cloud.address == "public"
        host = i.get("PublicIpAddress" if public else "PrivateIpAddress", "") or ""
        state, reason = i["State"]["Name"], i.get("StateReason", {})
        tags = {t["Key"]: t["Value"] for t in i.get("Tags", [])}
        vm = self.vm(i["InstanceId"], tags, STATES.get(state, "gone"), host, i["LaunchTime"].timestamp())
        why = f"{state}, {reason.get('Code', '')}: {reason.get('Message', '')}" if reason.get("Message") else state
        return Seen(vm, why, ended=state in ("shutting-down", "terminated"))

    def delete(self, vm_id: str) -> None:
        """TerminateInstances."""
        try:
            self.client.terminate_instances(InstanceIds=[vm_id])
        except Exception as e:
            if not _code(e).startswith("InvalidInstanceID"):
                raise

    def renew(self, vm_id: str, memo: dict[str, str]) -> str:
        """CreateReplaceRootVolumeTask: back to the launch state; the old volume is deleted, EC2 reboots the machine."""
        if "task" not in memo:
            made = self.client.create_replace_root_volume_task(
                InstanceId=vm_id, ClientToken=memo["token"], DeleteReplacedRootVolume=True
            )
            memo["task"] = made["ReplaceRootVolumeTask"]["ReplaceRootVolumeTaskId"]
        told = self.client.describe_replace_root_volume_tasks(ReplaceRootVolumeTaskIds=[memo["task"]])
        state = next((t["TaskState"] for t in told["ReplaceRootVolumeTasks"]), "pending")
        if state.startswith("fail"):
            raise BootFailed(
                f"EC2 {self.cloud.region}: replacing the root volume of {vm_id}: {memo['task']} is {state}"
            )
        return "" if state == "succeeded" else f"replacing the root volume is {state}"

    def explain(self, error: Exception) -> ProviderError:
        """By EC2's error code."""
        code = _code(error)
        text = f"EC2 {self.cloud.region}: {error}"
        if not code:
            return ApiFault(f"{text} ({type(error).__name__})")
        if code == "RequestExpired":
            return Misconfigured(f"{text}; this computer's clock is wrong: set it (NTP)")
        server = error.response["ResponseMetadata"].get("HTTPStatusCode", 0) >= 500  # type: ignore[attr-defined]
        kind = classify(code, CODES) or (ApiFault if server else BootFailed)
        return kind(text)


def _code(error: Exception) -> str:
    """EC2's code in a botocore ClientError; "" for anything else."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
