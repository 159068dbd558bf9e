"""The OpenAPI document of the typed API, made from the request bodies themselves.

Bodies are read by `bodies.read` and not by FastAPI (which costs more than the rest of a step), so the document is put
together here; a test holds it against the routes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from guiderail import __version__
from guiderail.actions.wire import KINDS
from guiderail.pool.bodies import Allocate, Body, Call, Heartbeat, Ref, Reset, Step
from guiderail.pool.wire import JSON_TYPE, RESULT_TYPE

# class -> status and when
ERRORS: dict[str, tuple[tuple[int, ...], str]] = {
    "bad_json": ((400,), "the body is not JSON"),
    "unauthorized": ((401,), "no token, or a wrong one"),
    "budget_exhausted": ((403,), "no machine is there or coming, and none may be bought any more"),
    "provision_failed": ((403,), "no machine is there, and the provider says that trying again cannot help"),
    "not_found": ((404,), "no such route"),
    "unknown_lease": ((404,), "no such lease was ever given out, or it ended very long ago"),
    "method_not_allowed": ((405,), "the route has another method"),
    "too_slow": ((408,), "the body did not come in time; nothing was done"),
    "lease_ended": ((409,), "the lease was yours but is over: expired, revoked, closed or fenced by a restart"),
    "stale_token": ((409,), "the fencing token is not the lease's"),
    "busy": ((409,), "another call is running on the lease"),
    "request_reused": ((409,), "the request id was used for something else, or its reply is no longer kept"),
    "not_reset": ((409,), "nothing runs on the lease yet"),
    "episode_over": ((409,), "the environment has ended the episode"),
    "used_up": ((422,), "the machine has had its episode and cannot reset itself; nothing was done: take a new lease"),
    "too_large": ((413,), "the body is larger than a pool reads"),
    "bad_request": ((422,), "a field is missing, unknown or wrong; nothing was done"),
    "off_screen": ((422,), "a point of the action is off the screen; nothing was done"),
    "unknown_key": ((422,), "no keyboard has such a key; nothing was done"),
    "internal": ((500,), "a fault of the server"),
    "judge_error": ((500,), "the judge could not judge; the lease lives"),
    "infra_error": ((502, 504), "the machine crashed or did not answer in time (`cause`); the lease is over"),
    "no_slot": ((503,), "no machine became free in time"),
    "draining": ((503,), "the server is shutting down"),
    "storage": ((503,), "the server cannot write its state; nothing was done"),
}
RESULT = (
    "4 bytes, big-endian: length of a JSON header; the header {frame, width, height, instruction, step, done, "
    "raw_reward, info, png}; then `png` bytes of PNG whose sha256 is `frame`"
)
ROUTES: dict[str, tuple[type[Body], str, str]] = {
    "/v1/allocate": (Allocate, "Wait for a machine and lease it.", "{lease, token, slot, ttl_s, call_timeout_s}"),
    "/v1/heartbeat": (Heartbeat, "Keep leases alive.", "{alive: [lease], lost: {lease: class}}"),
    "/v1/reset": (Reset, "Start a task.", ""),
    "/v1/step": (Step, "Do an action, once per request_id.", ""),
    "/v1/evaluate": (Call, "Judge the present state.", "{raw_reward}"),
    "/v1/side_effects": (Call, "What changed beside what was asked for; null where nobody looks.", "{lines}"),
    "/v1/oracle": (Call, "Facts for scripted experts.", "{elements}"),
    "/v1/close": (Ref, "Give the lease back.", "{}"),
}
READS = {"/v1/status": "Counts.", "/v1/costs": "The ledger's totals."}


@cache
def document() -> dict[str, Any]:
    """The document."""
    schemas: dict[str, Any] = {}
    for body, _, _ in ROUTES.values():
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[body.__name__] = schema
    schemas["Error"] = {
        "type": "object",
        "required": ["error", "message"],
        "properties": {
            "error": {"type": "string", "enum": list(ERRORS), "description": _classes()},
            "message": {"type": "string"},
            "cause": {"type": "string", "enum": ["crash", "timeout"], "description": "with infra_error"},
            "boot_s": {"type": "number", "description": "with no_slot: so long may the boot take that is under way"},
        },
    }
    schemas["Step"]["properties"]["action"]["description"] = f"{{kind: one of {', '.join(KINDS)}, and its fields}}"
    error = {"description": "refused", "content": {JSON_TYPE: {"schema": {"$ref": "#/components/schemas/Error"}}}}
    paths: dict[str, Any] = {}
    for path, (body, about, reply) in ROUTES.items():
        schema = {"$ref": f"#/components/schemas/{body.__name__}"}
        kind, said = (JSON_TYPE, {"type": "object"}) if reply else (RESULT_TYPE, {"type": "string", "format": "binary"})
        answers = {"200": {"description": reply or RESULT, "content": {kind: {"schema": said}}}, "default": error}
        body_of = {"required": True, "content": {JSON_TYPE: {"schema": schema}}}
        paths[path] = {"post": {"summary": about, "requestBody": body_of, "responses": answers}}
    for path, about in READS.items():
        good = {"description": about, "content": {JSON_TYPE: {"schema": {"type": "object"}}}}
        paths[path] = {"get": {"summary": about, "responses": {"200": good, "default": error}}}
    free = {"200": {"description": "it lives", "content": {JSON_TYPE: {"schema": {"type": "object"}}}}}
    paths["/healthz"] = {"get": {"summary": "Whether the server answers.", "security": [], "responses": free}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "guiderail env pool", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
        },
    }


def _classes() -> str:
    return "; ".join(f"{code} ({'/'.join(map(str, statuses))}): {when}" for code, (statuses, when) in ERRORS.items())
