"""EC2: moto's server, and before it what moto leaves out: the header of the signature and its clock, client tokens,
faults, machines that really boot (moto's subnet lies in 127.0.0.0/8), a guest that obeys the timer of its user-data.
"""

from __future__ import annotations

import base64
import io
import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import boto3
from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.server import ThreadedMotoServer
from werkzeug.serving import make_server

from pool.clouds.world import ACCESS_KEY, MAX_SKEW_S, SECRET_KEY, Instance, World

REGION, ACCOUNT = "eu-central-1", "123456789012"
STATUS = {200: "200 OK", 400: "400 Bad Request", 401: "401 Unauthorized", 500: "500 Error", 503: "503 Unavailable"}
Reply = tuple[int, bytes]


def refusal(status: int, code: str, message: str) -> Reply:
    error = f"<Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
    return status, f'<?xml version="1.0"?><Response>{error}<RequestID>0000</RequestID></Response>'.encode()


class Ec2(ThreadedMotoServer):
    """One region. `subnet` and `image` are made at the start."""

    def __init__(self, world: World) -> None:
        super().__init__("127.0.0.1", 0, verbose=False)
        self.world = world
        self.tasks: dict[str, tuple[str, int]] = {}  # root volume replacements -> instance, how far
        self.replies: dict[str, tuple[dict[str, str], Reply]] = {}
        self.moto = DomainDispatcherApplication(create_backend_app)

    def _server_entry(self) -> None:
        class Quiet(MotoRequestHandler):
            def log(self, *args: Any) -> None:
                """Keep quiet."""

        self._server = make_server("127.0.0.1", 0, self.app, True, request_handler=Quiet)
        self._server_ready_event.set()
        self._server.serve_forever(0.05)

    def __enter__(self) -> Ec2:
        self.start()
        host, port = self.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.backend = ec2_backends[ACCOUNT][REGION]
        self.client = boto3.client("ec2", REGION, endpoint_url=self.url, **KEYS)
        vpc = self.client.create_vpc(CidrBlock=f"{self.world.network}.0/24")["Vpc"]["VpcId"]
        self.subnet = self.client.create_subnet(VpcId=vpc, CidrBlock=f"{self.world.network}.0/24")["Subnet"]["SubnetId"]
        self.image = next(iter(self.backend.amis))
        return self

    def __exit__(self, *exc: object) -> None:
        self.backend.reset()
        self.stop()
        assert self._server is not None
        self._server.server_close()

    def app(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        self.world.calls.append((form["Action"], form))
        self.expire()

        def moto() -> Reply:
            told: list[str] = []
            environ["wsgi.input"] = io.BytesIO(body)
            raw = b"".join(self.moto(environ, lambda status, headers, exc=None: told.append(status)))
            return int(told[0].split()[0]), raw

        status, raw = self.check(environ, form) or self.answer(form, moto)
        start(STATUS.get(status, f"{status} X"), [("Content-Type", "text/xml"), ("Content-Length", str(len(raw)))])
        return [raw]

    def check(self, environ: dict[str, Any], form: dict[str, str]) -> Reply | None:
        found = re.match(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/\d{8}/([^/]+)/ec2", environ.get("HTTP_AUTHORIZATION", "")
        )
        if not found or found.groups() != (ACCESS_KEY, REGION) or self.world.fails("bad_credentials"):
            return refusal(401, "AuthFailure", "AWS was not able to validate the provided access credentials")
        sent = datetime.strptime(environ["HTTP_X_AMZ_DATE"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        if abs(sent - self.world.now()) > MAX_SKEW_S:
            return refusal(400, "RequestExpired", "Request has expired.")
        if self.world.fails("throttled_all") or ("ClientToken" in form and self.world.fails("throttled")):
            return refusal(503, "RequestLimitExceeded", "Request limit exceeded.")
        return None

    def answer(self, form: dict[str, str], moto: Callable[[], Reply]) -> Reply:
        if form["Action"] == "RunInstances" and form.get("DryRun") != "true":
            with self.world.lock:
                return self.run(form, moto)
        if "ReplaceRootVolumeTask" in form["Action"]:  # moto has none
            return self.replace(form)
        status, raw = moto()
        if form["Action"] == "TerminateInstances" and status == 200:
            self.world.end(form["InstanceId.1"])
        return status, raw

    def run(self, form: dict[str, str], moto: Callable[[], Reply]) -> Reply:
        if self.world.fails("echo"):
            return refusal(400, "InvalidParameterValue", f"no such thing: {SECRET_KEY}")
        if self.world.fails("quota"):
            return refusal(400, "VcpuLimitExceeded", "You have requested more vCPU capacity than your limit of 0.")
        token = form.get("ClientToken") or f"none-{time.monotonic()}"
        if token in self.replies:
            before, reply = self.replies[token]
            if before != form:
                return refusal(400, "IdempotentParameterMismatch", "The client token was used with other parameters.")
        else:
            reply = moto()
            self.replies[token] = form, reply
            self.boot(form, reply[1].decode())
        if self.world.fails("error_after_create"):
            return refusal(500, "InternalError", "An internal error has occurred.")
        return reply

    def replace(self, form: dict[str, str]) -> Reply:
        """Create...: pending; first Describe...: in-progress, the machine boots from its new volume; then done."""
        name, states = form["Action"], ("pending", "in-progress", "succeeded")
        if name.startswith("Create"):
            assert form["DeleteReplacedRootVolume"] == "true" and form["ClientToken"]
            task = f"replacevol-{form['InstanceId'][2:]}-{len(self.tasks)}"
            self.tasks[task] = form["InstanceId"], 0
        else:
            task = form["ReplaceRootVolumeTaskId.1"]
            self.tasks[task] = self.tasks[task][0], min(2, self.tasks[task][1] + 1)
        vm_id, at = self.tasks[task]
        if at == 1 and not name.startswith("Create"):
            self.world.renew(vm_id)
        state = "failed" if at and self.world.fails("reset_failure") else states[at]
        told = f"<replaceRootVolumeTaskId>{task}</replaceRootVolumeTaskId><instanceId>{vm_id}</instanceId>"
        told += f"<taskState>{state}</taskState>"
        told = (
            f"<replaceRootVolumeTask>{told}</replaceRootVolumeTask>"
            if name.startswith("Create")
            else f"<replaceRootVolumeTaskSet><item>{told}</item></replaceRootVolumeTaskSet>"
        )
        return 200, f'<{name}Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">{told}</{name}Response>'.encode()

    def boot(self, form: dict[str, str], xml: str) -> None:
        """The machine of a moto instance begins to boot, with its user-data."""
        vm_id, host = (re.search(f"<{t}>([^<]+)</{t}>", xml)[1] for t in ("instanceId", "privateIpAddress"))
        left = re.search(r"date \+%s\) \+ (\d+)", base64.b64decode(form.get("UserData", "")).decode())
        release = time.time() + int(left[1]) if left else 0.0
        made = Instance(vm_id, host, {}, form, time.monotonic(), time.time(), release)
        self.world.instances[vm_id] = made
        self.world.boot(made)
        if made.failed:
            instance = self.backend.get_instance(vm_id)
            instance._state.name, instance._state.code = "terminated", 48
            instance.state_reason.code = "Client.VolumeLimitExceeded"
            instance.state_reason.message = "Client.VolumeLimitExceeded: Volume limit exceeded"

    def expire(self) -> None:
        """Guests whose timer has run out power off, and EC2 does what InstanceInitiatedShutdownBehavior says."""
        for i in list(self.world.instances.values()):
            if i.release and time.time() > i.release:
                self.world.end(i.id)
                ends = i.asked.get("InstanceInitiatedShutdownBehavior") == "terminate"
                (self.backend.terminate_instances if ends else self.backend.stop_instances)([i.id])


KEYS = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
