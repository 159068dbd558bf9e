"""A chat-completions server on loopback that says what a test tells it to; every request is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatStub:
    """`answer(body)` gives a list of texts, a status, (status, body text, headers), "hang" or "drop"."""

    def __init__(self, answer: Callable[[dict[str, Any]], Any]) -> None:
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.lock, self.now, self.most = threading.Lock(), 0, 0
        self.over = threading.Event()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with stub.lock:
                    stub.requests.append({"path": self.path, **body})
                    stub.headers.append(dict(self.headers))
                    stub.now += 1
                    stub.most = max(stub.most, stub.now)
                try:
                    said = stub.answer(body)
                    if said == "hang":
                        stub.over.wait(60.0)
                        said = 500
                    if said == "drop":
                        self.close_connection = True
                        self.connection.close()
                        return
                    if isinstance(said, list):
                        choices = [{"message": {"content": t}, "finish_reason": "stop"} for t in said]
                        usage = {"prompt_tokens": 1000, "completion_tokens": 10 * len(said)}
                        said = 200, json.dumps({"model": "stub-1", "choices": choices, "usage": usage}), {}
                    if isinstance(said, int):
                        said = said, "no", {}
                    status, text, headers = said
                    self.send_response(status)
                    for k, v in {"Content-Length": str(len(text.encode())), **headers}.items():
                        self.send_header(k, v)
                    self.end_headers()
                    self.wfile.write(text.encode())
                finally:
                    with stub.lock:
                        stub.now -= 1

            def log_message(self, *args: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: object) -> None: ...

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> ChatStub:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()
