"""The Docker Engine API as far as the provider uses it: REST over HTTP, JSON bodies, log frames. Paths, fields and
statuses from the published API (v1.45) and what the installed SDK sends. The engine signs nothing; what is checked is
that each path has the negotiated version.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pool.clouds.aliyun import Refusal
from pool.clouds.world import Instance, World

API = "1.45"
LOG = b"cannot open display :0\n"


class DockerEngine(BaseHTTPRequestHandler):
    """Containers boot when they are started, so `World.make` is called in /start. `drafts`: created, not started."""

    protocol_version = "HTTP/1.1"
    world: World

    def log_message(self, *args: Any) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def do_DELETE(self) -> None:
        self.answer("DELETE")

    def answer(self, method: str) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or b"null") if size else None
        url = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(url.query).items()}
        self.world.calls.append((f"{method} {url.path}", body or query))
        try:
            status, reply = self.route(method, url.path, query, body)
        except Refusal as e:
            status, reply = e.status, {"message": str(e)}
        raw = reply if isinstance(reply, bytes) else json.dumps(reply).encode() if reply is not None else b""
        self.send_response(status)
        kind = "application/vnd.docker.raw-stream" if isinstance(reply, bytes) else "application/json"
        self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def route(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if path == "/version":
            return 200, {"ApiVersion": API, "MinAPIVersion": "1.24", "Version": "28.2.2"}
        path = path.removeprefix(f"/v{API}")
        if m := re.fullmatch(r"/images/(.+)/json", path):
            if m[1] != "guiderail/desktop:1":
                raise Refusal(404, "", f"No such image: {m[1]}")
            return 200, {"Id": "sha256:0"}
        if path == "/containers/create":
            return self.create(query["name"], body)
        if path == "/containers/json":
            wanted = json.loads(query.get("filters", "{}"))
            labels = dict(x.split("=", 1) for x in wanted.get("label", []))
            return 200, [{"Id": i.id} for i in self.world.select(labels, wanted.get("id", []))]
        m = re.fullmatch(r"/containers/([^/]+)(/start|/json|/logs|)", path)
        if not m:
            raise Refusal(404, "", f"page not found: {path}")
        found = self.container(m[1])
        if m[2] == "/start":
            return self.start(found)
        if m[2] == "/logs":
            return 200, struct.pack(">BxxxL", 2, len(LOG)) + LOG
        if m[2] == "/json":
            return 200, self.told(found)
        self.world.end(found.id)
        return 204, None

    def container(self, key: str) -> Instance:
        for i in list(self.world.instances.values()):
            if key in (i.id, i.asked["name"]):
                return i
        raise Refusal(404, "", f"No such container: {key}")

    def create(self, name: str, body: dict[str, Any]) -> tuple[int, Any]:
        if self.world.fails("quota"):
            raise Refusal(500, "", "write /var/lib/docker/overlay2: no space left on device")
        with self.world.lock:
            if any(i.asked["name"] == name for i in self.world.instances.values()):
                raise Refusal(409, "", f'Conflict. The container name "/{name}" is already in use by container')
            key = hashlib.sha256(f"{name}{self.world.now()}".encode()).hexdigest()
            host = "127.0.0.1"
            made = Instance(key, host, body["Labels"], {"name": name, **body}, 0.0, self.world.now())
            self.world.instances[key] = made
        return 201, {"Id": key, "Warnings": []}

    def start(self, i: Instance) -> tuple[int, Any]:
        if self.world.fails("error_after_create"):
            raise Refusal(500, "", "failed to create task for container: OCI runtime create failed")
        with self.world.lock:
            if i.asked.get("Started"):
                return 304, None
            ((port, (binding,)),) = i.asked["HostConfig"]["PortBindings"].items()
            assert port.endswith("/tcp") and binding["HostPort"] == "" and port in i.asked["ExposedPorts"]
            i.asked |= {"Started": True, "Port": self.world.free_port(), "ContainerPort": port}
            self.world.boot(i)
        return 204, None

    def told(self, i: Instance) -> dict[str, Any]:
        status = "exited" if i.failed else "running" if i.asked.get("Started") else "created"
        bound = [{"HostIp": "127.0.0.1", "HostPort": str(i.asked["Port"])}] if status == "running" else None
        return {
            "Id": i.id,
            "Name": "/" + i.asked["name"],
            "Created": datetime.fromtimestamp(i.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z"),
            "State": {"Status": status, "ExitCode": 1 if i.failed else 0, "OOMKilled": False, "Error": ""},
            "Config": {"Tty": False, "Labels": i.labels, "Image": i.asked["Image"]},
            "NetworkSettings": {"Ports": {i.asked["ContainerPort"]: bound} if i.asked.get("Started") else {}},
        }
