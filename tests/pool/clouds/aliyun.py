"""Alibaba Cloud ECS 2014-05-26 as far as the provider uses it: RPC over POST, parameters in the query string,
ACS3-HMAC-SHA256 in the Authorization header (recomputed here), JSON back. Shapes from the installed SDK's models.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from pool.clouds.world import ACCESS_KEY, MAX_SKEW_S, SECRET_KEY, Instance, World

EARLIEST_S = 1800.0


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def listed(query: dict[str, str], key: str, *fields: str) -> list[Any]:
    """`Tag.1.Key=..&Tag.1.Value=..` as tuples; `Id.1=..` as values when there are no fields."""
    found, n = [], 1
    while any(f"{key}.{n}{'.' + f if f else ''}" in query for f in fields or ("",)):
        row = tuple(query.get(f"{key}.{n}{'.' + f if f else ''}", "") for f in fields or ("",))
        found.append(row if fields else row[0])
        n += 1
    return found


class Aliyun(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world: World
    earliest_s = EARLIEST_S

    def log_message(self, *args: Any) -> None:
        """Keep quiet."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        action = self.headers.get("x-acs-action", "")
        self.world.calls.append((action, query))
        self.world.expire()
        try:
            self.check(query, body)
            status, reply = 200, getattr(self, action)(query)
        except Refusal as e:
            status = e.status
            reply = {"Code": e.code, "Message": str(e), "HostId": "ecs", "Recommend": ""}
        raw = json.dumps({"RequestId": "7A9F0000-0000-4000-8000-000000000000", **reply}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json;charset=utf-8")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def check(self, query: dict[str, str], body: bytes) -> None:
        """The signature (ACS3), then the clock, then the faults that hold for all calls."""
        given, h = self.headers.get("Authorization", ""), self.headers
        if not given.startswith("ACS3-HMAC-SHA256 "):
            raise Refusal(400, "IncompleteSignature", "The request signature does not conform to Aliyun standards.")
        parts = dict(p.strip().split("=", 1) for p in given.split(" ", 1)[1].split(","))
        if parts["Credential"] != ACCESS_KEY or self.world.fails("bad_credentials"):
            raise Refusal(404, "InvalidAccessKeyId.NotFound", "Specified access key is not found.")
        names = parts["SignedHeaders"].split(";")
        pairs = sorted(query.items())
        canonical = "\n".join(
            [
                "POST",
                urlsplit(self.path).path,
                "&".join(f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}" for k, v in pairs),
                "".join(f"{n}:{h[n].strip()}\n" for n in names),
                parts["SignedHeaders"],
                hashlib.sha256(body).hexdigest(),
            ]
        )
        text = "ACS3-HMAC-SHA256\n" + hashlib.sha256(canonical.encode()).hexdigest()
        if parts["Signature"] != hmac.new(SECRET_KEY.encode(), text.encode(), hashlib.sha256).hexdigest():
            raise Refusal(400, "SignatureDoesNotMatch", f"Specified signature is not matched, StringToSign {text}")
        sent = datetime.fromisoformat(h["x-acs-date"]).timestamp()
        if abs(sent - self.world.now()) > MAX_SKEW_S:
            raise Refusal(400, "InvalidTimeStamp.Expired", "Specified time stamp or date value is expired.")
        if self.world.fails("throttled_all") or (query.get("ClientToken") and self.world.fails("throttled")):
            raise Refusal(400, "Throttling.User", "Request was denied due to user flow control.")

    def DescribeImages(self, q: dict[str, str]) -> dict[str, Any]:
        image = [{"ImageId": q["ImageId"], "Status": "Available"}] if q["ImageId"] == "m-good" else []
        return {"Images": {"Image": image}, "TotalCount": len(image)}

    def DescribePrice(self, q: dict[str, str]) -> dict[str, Any]:
        price = {"OriginalPrice": 0.5, "DiscountPrice": 0.08, "TradePrice": 0.42, "Currency": "CNY"}
        return {"PriceInfo": {"Price": price if q["PriceUnit"] == "Hour" else {}, "Rules": {"Rule": []}}}

    def RunInstances(self, q: dict[str, str]) -> dict[str, Any]:
        if not q["InstanceType"].startswith("ecs."):
            raise Refusal(400, "InvalidInstanceType.ValueNotSupported", "The specified InstanceType is not supported.")
        if not listed(q, "SecurityGroupIds") or not q.get("VSwitchId"):
            raise Refusal(400, "MissingParameter", "VSwitchId and SecurityGroupId are mandatory")
        release = 0.0
        if q.get("AutoReleaseTime"):
            release = datetime.strptime(q["AutoReleaseTime"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
            if release < self.world.now() + self.earliest_s - 1.5:
                raise Refusal(400, "InvalidAutoReleaseTime.Malformed", "The specified AutoReleaseTime is too early.")
        if q.get("DryRun", "").lower() == "true":
            raise Refusal(400, "DryRunOperation", "Request validation has been passed with DryRun flag set.")
        if self.world.fails("echo"):
            raise Refusal(400, "InvalidParameter", f"no such thing: {SECRET_KEY}")
        if self.world.fails("quota"):
            raise Refusal(403, "QuotaExceed.ElasticQuota", "The number of vCPUs assigned to the ECS instances is full.")
        token, asked = q["ClientToken"], {k: v for k, v in q.items() if k != "ClientToken"}
        with self.world.lock:
            made = self.world.instances.get(self.world.tokens.get(token, ""))
            if made is not None and made.asked != asked:
                raise Refusal(400, "IdempotentParameterMismatch", "The request uses the same client token.")
            if made is None:
                made = self.world.make(dict(listed(q, "Tag", "Key", "Value")), asked, release)
                self.world.tokens[token] = made.id
        if self.world.fails("error_after_create"):
            raise Refusal(500, "InternalError", "The request processing has failed due to some unknown error.")
        return {"InstanceIdSets": {"InstanceIdSet": [made.id]}, "OrderId": ""}

    def DescribeInstances(self, q: dict[str, str]) -> dict[str, Any]:
        ids = json.loads(q.get("InstanceIds") or "[]")
        found = self.world.select(dict(listed(q, "Tag", "Key", "Value")), ids)
        start, size = int(q.get("NextToken") or 0), min(int(q.get("MaxResults") or 10), 2)  # two, so that pages show
        page, more = found[start : start + size], start + size < len(found)
        return {
            "Instances": {"Instance": [self.row(i) for i in page]},
            "NextToken": str(start + size) if more else "",
            "TotalCount": len(found),
        }

    def row(self, i: Instance) -> dict[str, Any]:
        status = "Pending" if i.pending() else "Stopped" if i.failed or i.stopped else "Running"
        public = [i.host] if int(i.asked.get("InternetMaxBandwidthOut") or 0) else []
        return {
            "InstanceId": i.id,
            "Status": status,
            "CreationTime": datetime.fromtimestamp(i.created, UTC).strftime("%Y-%m-%dT%H:%MZ"),
            "Tags": {"Tag": [{"TagKey": k, "TagValue": v} for k, v in i.labels.items()]},
            "VpcAttributes": {"PrivateIpAddress": {"IpAddress": [i.host]}, "VSwitchId": i.asked["VSwitchId"]},
            "PublicIpAddress": {"IpAddress": public},
            "OperationLocks": {"LockReason": []},
        }

    def StopInstance(self, q: dict[str, str]) -> dict[str, Any]:
        with self.world.lock:
            found = self.world.instances.get(q["InstanceId"])
            if found is None:
                raise Refusal(404, "InvalidInstanceId.NotFound", "The specified InstanceId does not exist.")
            found.stopped = True
            if self.world.fault != "disk_kept":
                self.world.kill(found.id)
        return {}

    def DescribeDisks(self, q: dict[str, str]) -> dict[str, Any]:
        assert q["DiskType"] == "system"
        return {"Disks": {"Disk": [{"DiskId": f"d-{q['InstanceId']}", "Type": "system"}]}, "TotalCount": 1}

    def ReInitDisk(self, q: dict[str, str]) -> dict[str, Any]:
        with self.world.lock:
            found = self.world.instances[q["DiskId"].removeprefix("d-")]
            if not found.stopped:
                raise Refusal(403, "IncorrectInstanceStatus", "The instance must be stopped.")
            if self.world.fails("reset_failure"):
                raise Refusal(403, "DiskCreatingSnapshot", "A snapshot of the disk is not completed yet.")
            assert q["AutoStartInstance"].lower() == "true"
            self.world.renew(found.id)
        return {}

    def DeleteInstance(self, q: dict[str, str]) -> dict[str, Any]:
        with self.world.lock:
            found = self.world.instances.get(q["InstanceId"])
            if found is None:
                raise Refusal(404, "InvalidInstanceId.NotFound", "The specified InstanceId does not exist.")
            if found.pending():
                raise Refusal(403, "IncorrectInstanceStatus.Initializing", "The instance is being created.")
            if q.get("Force", "").lower() != "true" and not found.failed:
                raise Refusal(403, "IncorrectInstanceStatus", "The instance is not stopped.")
            self.world.end(found.id)
        return {}
