"""HTTP client of a vLLM server: completions by token ids, adapters, weights.

Guarantees: a refusal (4xx) is an error with the server's own words and is not repeated; a lost reply, a timeout or a
5xx is asked again a few times and then an error. That is safe: a completion is a function of its request (own seed),
and every other call is made so that doing it twice is doing it once. Knows the wire, not what a right answer is (that
is `vllm`'s affair). One client may be used by several threads.

Routes (vLLM 0.32, `--enable-scale-out`, VLLM_SERVER_DEV_MODE, VLLM_ALLOW_RUNTIME_LORA_UPDATING):
/inference/v1/generate, /v1/models, /v1/load_lora_adapter, /v1/unload_lora_adapter, /pause, /collective_rpc, /resume,
/update_weight_version, /weight_info, /weight_checker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from guiderail.errors import Explained

TOKEN_ENV = "GUIDERAIL_ENGINE_TOKEN"
T = TypeVar("T")


class VllmError(Explained, RuntimeError):
    """The server refused, was lost, or answered what cannot be right. The message says which and what to do."""


class VllmClient:
    """`url`: http://host:port. `token`: sent as bearer token. `timeout`: seconds a call may take; `retries`: how often
    a call is asked again after a lost reply or a 5xx, `wait` seconds (doubling) in between."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout: float = 600.0,
        retries: int = 3,
        wait: float = 0.5,
        connections: int = 64,
    ) -> None:
        self.url = url.rstrip("/")
        self.retries, self.wait = retries, wait
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, limits=limits, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, **query: str) -> Any:
        """The JSON answer (or text) of one call. Raises VllmError."""
        why = ""
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self.wait * 2 ** (attempt - 1))
            try:
                reply = self._http.request(method, path, json=body, params=query)
            except httpx.TransportError as e:  # refused, reset, timed out, broken off
                why = f"{type(e).__name__}: {e}"
                continue
            if reply.status_code >= 500:
                why = f"status {reply.status_code}: {words(reply)}"
                continue
            if reply.status_code >= 300:  # a redirection too: vLLM answers in its own place
                raise VllmError(f"{self.url}{path}: refused with status {reply.status_code}: {words(reply)}")
            try:
                return reply.json() if "json" in reply.headers.get("content-type", "") else reply.text
            except ValueError as e:
                why = f"its answer is no JSON ({e})"
        raise VllmError(
            f"{self.url}{path}: no answer in {self.retries + 1} tries ({why}). If the server died, its log says why; "
            "start the stage again, it goes on from its last checkpoint."
        )

    def _read(self, method: str, path: str, read: Callable[[Any], T], body: dict[str, Any] | None = None) -> T:
        """What `read` finds in the answer of a call. Raises VllmError when it is not there."""
        answer = self.call(method, path, body)
        try:
            return read(answer)
        except (TypeError, KeyError, ValueError, AttributeError):
            told = " ".join(str(answer).split())[:200]
            raise VllmError(
                f"{self.url}{path}: answered {told!r}, which is not what vLLM answers; does engine.url name another "
                "server?"
            ) from None

    def generate(self, request: dict[str, Any]) -> dict[str, Any]:
        """POST /inference/v1/generate."""
        reply = self.call("POST", "/inference/v1/generate", request)
        if not isinstance(reply, dict):
            raise VllmError(f"{self.url}/inference/v1/generate: answered {str(reply)[:200]!r}, not an object")
        return reply

    def models(self) -> dict[str, str]:
        """Served names (the base model's first) -> the folder each was loaded from ("" when the server keeps it)."""
        found = self._read("GET", "/v1/models", lambda x: {str(c["id"]): str(c.get("root") or "") for c in x["data"]})
        if not found:
            raise VllmError(f"{self.url}/v1/models: the server serves no model")
        return found

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load the adapter in `folder` under a name (and from a path) never used before: cached keys and values are
        found again by name and path, so a used one would be answered with those of its former weights."""
        try:
            self.call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except VllmError:
            if self.models().get(name) != str(folder):  # there already: the reply of our first try was lost
                raise

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; one that is not there is fine."""
        if name in self.models():
            try:
                self.call("POST", "/v1/unload_lora_adapter", {"lora_name": name})
            except VllmError:
                if name in self.models():
                    raise

    def reload_weights(self, folder: Path) -> None:
        """Read all weights again from a Hugging Face folder. Pausing first empties every cache (keys and values,
        prefixes, images, image features); reloading without it ends the engine at the next image it knows."""
        self.call("POST", "/pause", mode="abort")
        try:
            self.call("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        finally:
            self.call("POST", "/resume")

    def set_version(self, version: str) -> None:
        """Name the weights; every completion says under which name it was sampled."""
        self.call("POST", "/update_weight_version", {"new_version": version})

    def version(self) -> str:
        """The name of the weights now served."""
        return self._read("GET", "/weight_info", lambda x: str(x["weight_version"]))

    def checksums(self) -> dict[str, str]:
        """sha256 per parameter of the base model as the server holds it (slow for large models)."""
        return self._read("POST", "/weight_checker", lambda x: dict(x["checksums"]), {"action": "checksum"})


def words(reply: httpx.Response) -> str:
    """What an error reply says, shortened."""
    try:
        tree = reply.json()
        error = tree.get("error", tree.get("detail", tree))
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        text = reply.text
    return " ".join(text.split())[:500]
