"""Ask a model behind an OpenAI-compatible address (`POST <url>/chat/completions`): vLLM, or a provider.

Guarantees: the key comes from the environment, is sent only over TLS or to this machine, and stands in no message (an
answer that repeats it is masked); lost connections, time-outs, 408, 409, 425, 429 and 5xx are tried again with growing
pauses (Retry-After is obeyed), any other refusal is an `EndpointError` at once; at most `concurrency` calls are under
way, from however many event loops it is asked. Tokens and their price are counted, also of answers nobody can use.
Does not stream, cache or read the answers.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from guiderail.errors import Explained
from guiderail.params_endpoint import Endpoint as EndpointParams

AGAIN = {408, 409, 425, 429}
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
SHOWN = 300
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class EndpointError(Explained, RuntimeError):
    """The endpoint gave no answer; the text names the address, what it said and the remedy."""


@dataclass(frozen=True)
class Reply:
    """Answers to one request, why each ended, and what the request cost in tokens."""

    texts: tuple[str, ...]
    finish: tuple[str, ...]
    model: str
    tokens_in: int
    tokens_out: int


def text_part(text: str) -> dict[str, Any]:
    """A piece of text in a message."""
    return {"type": "text", "text": text}


def image_part(png: bytes) -> dict[str, Any]:
    """A PNG in a message, as a data URL."""
    data = base64.b64encode(png).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


class Endpoint:
    """One endpoint, usable from any event loop: calls run in a thread of its own until `close`."""

    def __init__(self, params: EndpointParams, where: str) -> None:
        """where: the parameter it comes from, for messages. Raises EndpointError when no call could ever work."""
        if not params.url or not params.model:
            raise EndpointError(f"{where}: url and model are needed to ask an endpoint; set both in params.yaml")
        self.params, self.where = params, where
        self._key = os.environ.get(params.key_env, "").strip()
        host = urlsplit(params.url).hostname or ""
        if self._key and params.url.startswith("http:") and host not in LOOPBACK:
            raise EndpointError(
                f"{where}.url = {params.url!r}: the key in {params.key_env} would cross the network in clear text; use "
                f"https, or unset {params.key_env} if the server needs none"
            )
        self.calls = self.failed = self.tokens_in = self.tokens_out = 0
        self._trust = host not in LOOPBACK  # a proxy of the environment is for addresses elsewhere
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="endpoint", daemon=True)
        self._thread.start()
        self._client: httpx.AsyncClient | None = None
        self._gate: asyncio.Semaphore | None = None

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all calls and the thread. Idempotent."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _shut(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    @property
    def price(self) -> float:
        """What the calls so far cost, in `params.currency`."""
        return self.price_of(self.tokens_in, self.tokens_out)

    def price_of(self, tokens_in: int, tokens_out: int) -> float:
        """Price of so many tokens read and written."""
        return (tokens_in * self.params.price_in + tokens_out * self.params.price_out) / 1e6

    async def chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float,
        max_tokens: int,
        n: int = 1,
        seed: int | None = None,
    ) -> Reply:
        """`n` answers to `messages`. A server may give fewer; it never gives more. Raises EndpointError."""
        body: dict[str, Any] = {"model": self.params.model, "messages": list(messages), "temperature": temperature}
        body |= {"max_tokens": max_tokens, "n": n} | ({} if seed is None else {"seed": seed % 2**31})
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ask(body, n), self._loop))

    async def _ask(self, body: dict[str, Any], n: int) -> Reply:
        if self._client is None or self._gate is None:
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            limits = httpx.Limits(max_connections=self.params.concurrency)
            self._client = httpx.AsyncClient(
                headers=headers, timeout=self.params.timeout_s, limits=limits, trust_env=self._trust
            )
            self._gate = asyncio.Semaphore(self.params.concurrency)
        url, problem = f"{self.params.url.rstrip('/')}/chat/completions", ""
        async with self._gate:
            for attempt in range(self.params.retries + 1):
                pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
                try:
                    answer = await self._client.post(url, json=body)
                    if answer.status_code == 200:
                        return self._read(answer, n)
                    problem = f"HTTP {answer.status_code}: {self._safe(answer.text)}"
                    if answer.status_code not in AGAIN and answer.status_code < 500:
                        break
                    with contextlib.suppress(ValueError):  # a date, or nothing: the pause stays
                        pause = min(LONGEST_PAUSE_S, max(pause, float(answer.headers.get("retry-after", "0"))))
                except (httpx.TransportError, _Unreadable) as e:
                    problem = f"{type(e).__name__.lstrip('_')}: {self._safe(str(e))}"
                self.failed += 1
                if attempt < self.params.retries:
                    await asyncio.sleep(pause)
        hint = f" Is {self.params.key_env} set, and right?" if "HTTP 401" in problem or "HTTP 403" in problem else ""
        raise EndpointError(
            f"{self.where}: {url} (model {self.params.model}) gave no answer: {problem}.{hint} Check the address, the "
            "model's name and the server's log; what was answered before is kept."
        )

    def _read(self, answer: httpx.Response, n: int) -> Reply:
        try:
            data = answer.json()
            choices = data["choices"][:n]
            texts = tuple(c["message"].get("content") or "" for c in choices)
            finish = tuple(str(c.get("finish_reason")) for c in choices)
            usage = data.get("usage") or {}
            spent = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
            if not texts or not all(isinstance(t, str) for t in texts):
                raise ValueError("no choices with text")
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as e:
            raise _Unreadable(f"not a chat completion ({e}): {self._safe(answer.text)}") from None
        self.calls += 1
        self.tokens_in, self.tokens_out = self.tokens_in + spent[0], self.tokens_out + spent[1]
        return Reply(texts, finish, str(data.get("model") or self.params.model), *spent)

    def _safe(self, text: str) -> str:
        """Text of the server, short, on one line and without the key."""
        text = text.replace(self._key, "***") if self._key else text
        return " ".join(text[: 4 * SHOWN].split())[:SHOWN]


class _Unreadable(Exception):
    """Status 200 with a body that is no chat completion."""
