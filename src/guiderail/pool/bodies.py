"""Request bodies of the env pool and how they are read: strictly, bounded, every fault named.

Guarantees: a body that is too large, no JSON, or has a missing, unknown or ill-typed field raises `Refused` with the
status, class and sentence to answer. Values inside `task` and `action` are checked by their own codecs.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, TypeVar

import orjson
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect

from guiderail.actions.types import Action
from guiderail.pool.wire import MAX_BODY

MAX_WAIT_S = 60.0
BODY_S = 30.0  # until a body must have come


class Refused(ValueError):
    """A request that is answered with an error: HTTP status, class and sentence. Nothing was done."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Body(BaseModel):
    """Base of request bodies: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Allocate(Body):
    """Who wants a slot, for how long, how long it will wait."""

    holder: str = Field(min_length=1, max_length=200)
    ttl_s: float | None = Field(None, gt=0, le=3600)
    wait_s: float = Field(10.0, ge=0, le=MAX_WAIT_S)
    request_id: str = Field("", max_length=64)


class Ref(Body):
    """A lease and its fencing token."""

    lease: str = Field(max_length=64)
    token: int


class Heartbeat(Body):
    """Leases to keep alive."""

    leases: list[Ref] = Field(max_length=10_000)


class Call(Ref):
    """A call that must be done at most once."""

    request_id: str = Field(min_length=1, max_length=64)


class Reset(Call):
    """Start a task."""

    task: dict[str, Any]


class Step(Call):
    """Do an action."""

    action: dict[str, Any]


T = TypeVar("T", bound=Body)


def digest(path: str, raw: bytes) -> int:
    """64 bits that tell one request from another, the same in every process."""
    return int.from_bytes(hashlib.blake2b(path.encode() + b"\0" + raw, digest_size=8).digest(), "big", signed=True)


async def read_raw(request: Request) -> bytes:
    """The bytes of a body. Raises Refused (408, 413)."""
    raw = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                raw += part
                if len(raw) > MAX_BODY:
                    raise Refused(413, "too_large", f"a request body may have {MAX_BODY} bytes")
    except TimeoutError:
        raise Refused(408, "too_slow", f"the body did not come within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise Refused(400, "bad_json", "the connection was closed before the body had come") from None
    return bytes(raw)


def parsed(raw: bytes) -> Any:
    """JSON. Raises Refused (400)."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as e:
        raise Refused(400, "bad_json", f"the body is not JSON: {e}") from None


async def read_json(request: Request) -> dict[str, Any]:
    """A body that is an object. Raises Refused."""
    data = parsed(await read_raw(request))
    if not isinstance(data, dict):
        raise Refused(400, "bad_json", f"the body must be a JSON object, not {type(data).__name__}")
    return data


async def read(request: Request, model: type[T]) -> tuple[T, int]:
    """Read and check a body; returns it and a digest of path and bytes. Raises Refused."""
    raw = await read_raw(request)
    data = parsed(raw)
    try:
        return model.model_validate(data), digest(request.url.path, raw)
    except ValidationError as e:
        said = "; ".join(f"{'.'.join(map(str, x['loc'])) or 'body'}: {x['msg']}" for x in e.errors()[:5])
        raise Refused(422, "bad_request", said) from None


def on_screen(action: Action) -> Action:
    """The action, if its points are on the screen. Raises Refused: a model's odd number is its codec's business."""
    for name in ("x", "y", "x2", "y2"):
        value = getattr(action, name, 0.0)
        if not 0.0 <= value <= 1.0:
            kind = type(action).__name__
            raise Refused(422, "off_screen", f"{kind}.{name} = {value:g} is off the screen: points go from 0 to 1")
    return action
