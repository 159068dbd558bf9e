"""A small server that speaks vLLM's routes, with the tiny policy behind them, and can be told to misbehave."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from PIL import Image

from guiderail.models.rows import Prompt
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.types import SamplingParams


class Stub:
    """State of the server. `broken(path, reply)` may change a reply in place; `refusals` are (status, message) given
    instead of the next replies, status 0 breaking the connection off."""

    def __init__(self, policy: Any = None, frames: Any = None, root: Path = Path("/nowhere"), token: str = "") -> None:
        self.engine = HfEngine(policy, frames) if policy else None
        self.policy, self.frames, self.token = policy, frames, token
        self.models: dict[str, str] = {"base": str(root)}
        self.version, self.paused, self.url = "default", False, ""
        self.refusals: list[tuple[int, str]] = []
        self.broken: Callable[[str, Any], None] = lambda path, reply: None
        self.calls: list[tuple[str, Any]] = []
        self.lock = threading.Lock()

    def generate(self, body: dict[str, Any]) -> tuple[int, Any]:
        if body["model"] not in self.models:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        pad, ids, frames = self.policy.image_token_id, [], []
        parts = iter(body.get("content_parts", []))
        for i in body["token_ids"]:  # one pad per image; each pad of an expanded run would be taken for an image
            ids.append(i)
            if i == pad and (part := next(parts, None)):
                png = base64.b64decode(part["url"].partition(",")[2])
                assert self.frames.put(png) == part["uuid"]
                ids += [pad] * (self.policy.image_tokens(*Image.open(io.BytesIO(png)).size) - 1)
                frames.append(part["uuid"])
        p = body["sampling_params"]
        assert p["logit_bias"] == {str(i): -1e30 for i in self.policy.suppressed_ids}
        assert p["stop_token_ids"] == list(self.policy.stop_ids) and p["logprobs"] == 0
        sampling = SamplingParams(p["temperature"], 1.0, p["max_tokens"], p["seed"])
        if ids.count(pad) != sum(self.policy.image_tokens(*self.frames.get(f).size) for f in frames):
            completion = None  # expanded twice: the real server answers all the same
            ids_out, logprobs, reason = [70], [-0.5], "length"
        else:
            with self.lock:
                (completion,) = self.engine.generate([Prompt(tuple(ids), tuple(frames))], [sampling])
            ids_out, logprobs, reason = completion.ids, completion.logprobs, completion.finish_reason
        content = [
            {"token_id": i, "logprob": x, "rank": 1, "top_logprobs": []} for i, x in zip(ids_out, logprobs, strict=True)
        ]
        choice = {
            "index": 0,
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": list(ids_out),
            "logprobs": {"content": content},
            "weight_versions": [{"version": self.version, "start": 0, "end": len(ids_out)}],
        }
        return 200, {"model": body["model"], "prompt_token_ids": ids, "choices": [choice], "output_mode": "tokens"}

    def load(self, body: dict[str, Any]) -> tuple[int, Any]:
        if body["lora_name"] in self.models:
            message = f"The lora adapter '{body['lora_name']}' has already been loaded."
            return 400, {"error": {"message": message, "code": 400}}
        if body["lora_path"] in self.models.values():
            raise AssertionError("a path used again is answered from stale cached keys and values")
        assert (Path(body["lora_path"]) / "adapter_model.safetensors").is_file()
        self.models[body["lora_name"]] = body["lora_path"]
        return 200, "Success: added"

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        route, _, _ = path.partition("?")
        match method, route:
            case "GET", "/v1/models":
                return 200, {"data": [{"id": n, "root": r} for n, r in self.models.items()]}
            case "POST", "/inference/v1/generate":
                assert not self.paused
                return self.generate(body)
            case "POST", "/v1/load_lora_adapter":
                return self.load(body)
            case "POST", "/v1/unload_lora_adapter":
                known = self.models.pop(body["lora_name"], None)
                return (200, "Success") if known else (404, {"error": {"message": "not found"}})
            case "POST", "/pause" | "/resume":
                self.paused = route == "/pause"
                return 200, {"status": "ok"}
            case "POST", "/collective_rpc":
                assert self.paused, "reloading without a pause ends the engine at the next image it knows"
                assert (Path(body["kwargs"]["weights_path"]) / "model.safetensors").is_file()
                return 200, {"results": [None]}
            case "POST", "/update_weight_version":
                self.version = body["new_version"]
                return 200, {"success": True}
            case "GET", "/weight_info":
                return 200, {"weight_version": self.version}
        return 404, {"detail": "Not Found"}


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """Serve `stub` on a free port of the loopback; its `url` says which."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def reply(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            stub.calls.append((self.path, body))
            if stub.token and self.headers.get("Authorization") != f"Bearer {stub.token}":
                return self.send(401, {"error": "Unauthorized"})
            if stub.refusals:
                status, message = stub.refusals.pop(0)
                if status < 0:  # done, but the reply is lost
                    stub.answer(self.command, self.path, body)
                if status <= 0:
                    self.close_connection = True
                    self.connection.close()
                    return None
                return self.send(status, {"error": {"message": message}})
            status, answer = stub.answer(self.command, self.path, body)
            if status == 200:
                stub.broken(self.path, answer)
            return self.send(status, answer)

        def send(self, status: int, answer: Any) -> None:
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = reply

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
