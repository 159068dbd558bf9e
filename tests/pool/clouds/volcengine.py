"""Volcengine ECS 2020-04-01 as far as the provider uses it: GET with everything in the query string, HMAC-SHA256 in
the Authorization header (recomputed here), JSON with ResponseMetadata back. Shapes from the installed SDK's models.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from pool.clouds.aliyun import Refusal, listed
from pool.clouds.world import ACCESS_KEY, MAX_SKEW_S, SECRET_KEY, Instance, World


def signed(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Volcengine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world: World

    def log_message(self, *args: Any) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        action = query.get("Action", "")
        self.world.calls.append((action, query))
        about = {"RequestId": "20260101000000", "Action": action, "Version": "2020-04-01", "Service": "ecs"}
        try:
            self.check(query)
            status, reply = 200, {"ResponseMetadata": about, "Result": getattr(self, action)(query)}
        except Refusal as e:
            status, reply = e.status, {"ResponseMetadata": {**about, "Error": {"Code": e.code, "Message": str(e)}}}
        raw = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def check(self, query: dict[str, str]) -> None:
        """The signature, then the clock, then the faults that hold for all calls."""
        given, h = self.headers.get("Authorization", ""), self.headers
        if not given.startswith("HMAC-SHA256 "):
            raise Refusal(401, "MissingAuthenticationToken", "The request is missing an authentication token.")
        parts = dict(p.strip().split("=", 1) for p in given.split(" ", 1)[1].split(","))
        key, *scope = parts["Credential"].split("/")
        if key != ACCESS_KEY or self.world.fails("bad_credentials"):
            raise Refusal(401, "InvalidAccessKey", "The AccessKey is invalid.")
        names = parts["SignedHeaders"].split(";")
        pairs = sorted(query.items())
        canonical = "\n".join(
            [
                "GET",
                urlsplit(self.path).path,
                "&".join(f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}" for k, v in pairs),
                "".join(f"{n}:{h[n].strip()}\n" for n in names),
                parts["SignedHeaders"],
                hashlib.sha256(b"").hexdigest(),
            ]
        )
        text = "\n".join(["HMAC-SHA256", h["X-Date"], "/".join(scope), hashlib.sha256(canonical.encode()).hexdigest()])
        secret = SECRET_KEY.encode()
        for part in scope:
            secret = signed(secret, part)
        if parts["Signature"] != signed(secret, text).hex():
            raise Refusal(403, "SignatureDoesNotMatch", "The request signature we calculated does not match.")
        sent = datetime.strptime(h["X-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        if abs(sent - self.world.now()) > MAX_SKEW_S:
            raise Refusal(400, "InvalidTimestamp", "The X-Date of the request is expired.")
        if self.world.fails("throttled_all") or (query.get("ClientToken") and self.world.fails("throttled")):
            raise Refusal(429, "FlowLimitExceeded", "Request was rejected because the request speed is exceeded.")

    def DescribeImages(self, q: dict[str, str]) -> dict[str, Any]:
        there = q["ImageIds.1"] == "image-good"
        return {"Images": [{"ImageId": "image-good", "Status": "available"}] if there else [], "TotalCount": int(there)}

    def DescribeSpotPriceHistory(self, q: dict[str, str]) -> dict[str, Any]:
        of = {"InstanceTypeId": q["InstanceTypeId"], "ZoneId": q["ZoneId"]}
        old = {**of, "SpotPrice": 0.9, "Timestamp": "2026-01-01T00:00:00Z"}
        return {"SpotPrices": [old, {**of, "SpotPrice": 0.11, "Timestamp": "2026-01-02T00:00:00Z"}]}

    def RunInstances(self, q: dict[str, str]) -> dict[str, Any]:
        needed = ("ZoneId", "ImageId", "InstanceTypeId", "NetworkInterfaces.1.SubnetId")
        for name in (*needed, "NetworkInterfaces.1.SecurityGroupIds.1"):
            if not q.get(name):
                raise Refusal(400, f"MissingParameter.{name}", f"The required parameter {name} is missing.")
        if q.get("DryRun", "").lower() == "true":
            raise Refusal(412, "DryRunOperation", "Request would have succeeded, but the DryRun parameter is set.")
        if self.world.fails("echo"):
            raise Refusal(400, "InvalidParameter", f"no such thing: {SECRET_KEY}")
        if self.world.fails("quota"):
            raise Refusal(403, "QuotaExceeded.MaximumVcpu", "The vCPU quota of PostPaid instances is exceeded.")
        token = q["ClientToken"]
        with self.world.lock:
            made = self.world.instances.get(self.world.tokens.get(token, ""))
            if made is None:
                made = self.world.make(dict(listed(q, "Tags", "Key", "Value")), q)
                self.world.tokens[token] = made.id
        if self.world.fails("error_after_create"):
            raise Refusal(500, "InternalError", "The request has failed due to an unknown error.")
        return {"InstanceIds": [made.id]}

    def DescribeInstances(self, q: dict[str, str]) -> dict[str, Any]:
        labels = {k: v for k, v in listed(q, "TagFilters", "Key", "Values.1")}
        found = self.world.select(labels, listed(q, "InstanceIds"))
        start, size = int(q.get("NextToken") or 0), min(int(q.get("MaxResults") or 10), 2)  # two, so that pages show
        more = start + size < len(found)
        rows = [self.row(i) for i in found[start : start + size]]
        return {"Instances": rows, "NextToken": str(start + size) if more else "", "TotalCount": len(found)}

    def row(self, i: Instance) -> dict[str, Any]:
        public = i.asked.get("EipAddress.BandwidthMbps")
        return {
            "InstanceId": i.id,
            "Status": "CREATING" if i.pending() else "ERROR" if i.failed else "RUNNING",
            "CreatedAt": datetime.fromtimestamp(i.created, UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00"),
            "Tags": [{"Key": k, "Value": v} for k, v in i.labels.items()],
            "NetworkInterfaces": [{"PrimaryIpAddress": i.host, "SubnetId": i.asked["NetworkInterfaces.1.SubnetId"]}],
            "EipAddress": {"IpAddress": i.host, "AllocationId": "eip-1"} if public else None,
        }

    def DeleteInstance(self, q: dict[str, str]) -> dict[str, Any]:
        with self.world.lock:
            found = self.world.instances.get(q["InstanceId"])
            if found is None:
                raise Refusal(404, "InvalidInstance.NotFound", "The specified instance does not exist.")
            if found.pending():
                raise Refusal(409, "InvalidInstance.InvalidInstanceStatus", "The instance is being created.")
            self.world.end(found.id)
        return {}
