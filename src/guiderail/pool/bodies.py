"""Request bodies of the env pool and how they are read: strictly, bounded, every fault named.

Guarantees: a body that is too large, no JSON, or has a missing, unknown or ill-typed field raises `Refused` with the
status, class and sentence to answer. Values inside `task` and `action` are checked by their own codecs.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import orjson
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from guiderail.pool.wire import MAX_BODY

MAX_WAIT_S = 60.0


class Refused(Exception):
    """A request that is answered with an error: HTTP status, class and sentence."""

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


async def read(request: Request, model: type[T]) -> tuple[T, int]:
    """Read and check a body; returns it and a digest of path and bytes. Raises Refused."""
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > MAX_BODY:
            raise Refused(413, "too_large", f"a request body may have {MAX_BODY} bytes")
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError as e:
        raise Refused(400, "bad_json", f"the body is not JSON: {e}") from None
    try:
        return model.model_validate(data), digest(request.url.path, raw)
    except ValidationError as e:
        said = "; ".join(f"{'.'.join(map(str, x['loc'])) or 'body'}: {x['msg']}" for x in e.errors()[:5])
        raise Refused(422, "bad_request", said) from None
