"""What a stage would track, small: episodes with frames, evaluations, a model; and a door that asks for a token."""

from __future__ import annotations

import http.client
import io
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from PIL import Image

from guiderail.tracking_mlflow import DataSet
from guiderail.tracking_registry import Measured
from guiderail.tracking_traces import TracedEpisode, TracedStep

DIGEST = "ab12" * 16
TASKS = DataSet("tasks of miniwob", DIGEST, "results/provision/tasks.json", "evaluation", {"train": 6, "fresh": 40})


def png(colour: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (160, 224), colour).save(out, "PNG")
    return out.getvalue()


def episode() -> TracedEpisode:
    """A click, then a text that no codec reads."""
    steps = [
        TracedStep(png("red"), 'Action: click "Ok"', '{"kind": "Click"}', "", 0.5),
        TracedStep(png("blue"), "mumble", "", "no call in the text", 0.25),
    ]
    tags = {"checkpoint": "rl", "split": "fresh"}
    return TracedEpisode("rl click-button", "Click on Ok.", "failure", 0.0, steps, tags)


def measured(won: int, of: int = 40, split_hash: str = "h") -> Measured:
    """The first `won` of `of` tasks solved."""
    return Measured("miniwob", "fresh", split_hash, {f"t{i}": float(i < won) for i in range(of)})


def model(folder, name: str = "model"):
    made = folder / name
    made.mkdir(exist_ok=True)
    (made / "manifest.json").write_text("{}")
    (made / "weights.bin").write_bytes(b"w")
    return made


@contextmanager
def door(port: int, token: str):
    """A proxy to 127.0.0.1:`port` that lets only `Authorization: Bearer token` through; yields its address."""

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_any(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Authorization") != f"Bearer {token}":
                return self.answer(401, [], b'{"error_code": "UNAUTHENTICATED", "message": "no token"}')
            to = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            keep = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "authorization", "connection")}
            to.request(self.command, self.path, body, keep)
            said = to.getresponse()
            data = said.read()
            to.close()
            self.answer(said.status, said.getheaders(), data)

        def answer(self, status, headers, data):
            self.send_response(status)
            for k, v in headers:
                if k.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(k, v)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_any

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
