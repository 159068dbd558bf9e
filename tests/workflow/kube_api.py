"""A Kubernetes API that takes jobs and refuses those a cluster refuses; it runs none, and says that each has failed."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Api(BaseHTTPRequestHandler):
    """Secrets, jobs and pods of one namespace; `server.jobs` holds the bodies of the jobs asked for."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/jobs"):
            wrong = refusal(body)
            if wrong:
                return self._answer({"kind": "Status", "message": wrong}, 422)
            self.server.jobs.append(body)
        self._answer(body, 201)

    def do_GET(self) -> None:
        if self.path.endswith("/status"):
            return self._answer({"status": {"failed": 1}})
        self._answer({"items": []})

    def do_DELETE(self) -> None:
        self._answer({"kind": "Status", "status": "Success"})

    def _answer(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


def refusal(job: dict) -> str:
    """A cluster's rule for extended resources such as GPUs: a whole number, limit and request equal."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    asked, limits = (container["resources"].get(k) or {} for k in ("requests", "limits"))
    for name in {n for n in (*asked, *limits) if n.endswith("/gpu")}:
        if name not in limits:
            return f"resources.limits: Required value: Limit must be set for non overcommitable resources ({name})"
        if asked.get(name, limits[name]) != limits[name]:
            return f"resources.requests: Invalid value: must be equal to {name} limit"
    return ""


@contextmanager
def kube_api(folder: Path) -> Iterator[tuple[list[dict], Path]]:
    """(jobs asked for so far, a kubeconfig that leads here)."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.jobs = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    config = folder / "kubeconfig.json"
    named = {"name": "x", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    config.write_text(
        json.dumps(
            {"apiVersion": "v1", "kind": "Config", "current-context": "x", "clusters": [named]}
            | {"users": [{"name": "x", "user": {}}]}
            | {"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}
        )
    )
    try:
        yield server.jobs, config
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
