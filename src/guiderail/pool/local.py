"""An env pool for the length of a block: our own on this machine, or somebody's that runs already.

Guarantees: leaving the block in any way stops a pool that was started here, browser included; an attached pool is left
running. The token of our own pool is made fresh and handed over by the environment, never on a command line.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from guiderail import plugins
from guiderail.params import Env
from guiderail.params_cloud import CLOUDS
from guiderail.pool.wire import TOKEN_ENV
from guiderail.services import ServiceError, service, tail


@contextmanager
def env_pool(
    env: Env,
    attach_url: str | None = None,
    *,
    provider: str | None = None,
    log: Path | None = None,
    owner: str = "",
    costs: Callable[[dict[str, Any]], None] | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield (url, token). With `attach_url` nothing is started and the token is read from GUIDERAIL_POOL_TOKEN.

    `provider` overrides `env.provider` (tests); `owner`: the run that pays; `costs` gets the ledger's totals of our own
    pool at the end of the block (those of an attached one are others' too).
    Raises ServiceError when the pool does not start or has no token.
    """
    if attach_url:
        token = os.environ.get(TOKEN_ENV, "")
        if not token:
            raise ServiceError(f"to attach to the env pool at {attach_url}, put its token into {TOKEN_ENV}")
        yield attach_url.rstrip("/"), token
        return
    token = secrets.token_urlsafe(32)
    cmd = [sys.executable, "-m", "guiderail.pool.server", "--port", "{port}"]
    cmd += ["--provider", provider or env.provider, "--slots", str(env.slots), "--step-ms", str(env.step_ms)]
    cmd += ["--call-timeout", str(env.call_timeout_s), "--ttl", str(env.lease_ttl_s)]
    cmd += ["--gui-rl", "off", "--owner", owner, *plugins.command_line()]
    cmd += ["--browser", env.browser] if env.browser else []
    cmd += cloud_options(env) if env.provider in CLOUDS else []
    cmd += ["--desktop", env.desktop.model_dump_json()] if (provider or env.provider) == "local_desktop" else []
    ready = "http://127.0.0.1:{port}/healthz"
    for last in (False, False, True):
        with ExitStack() as stack:
            try:
                s = stack.enter_context(
                    service(cmd, "env-pool", ready_url=ready, timeout=180.0, env={TOKEN_ENV: token}, log=log)
                )
            except ServiceError as e:
                if last or "address already in use" not in str(e):
                    raise
                continue
            if _get(f"{s.url}/v1/status", token) is not None:  # else another server took the port before ours did
                try:
                    yield s.url, token
                finally:
                    if costs is not None and (totals := _get(f"{s.url}/v1/costs", token)) is not None:
                        costs(totals)
                return
            if last:
                raise ServiceError(f"what answers at {s.url} is not our env pool; end of its log:\n{tail(s.log)}")


def cloud_options(env: Env) -> list[str]:
    """The server's options for machines of a cloud. Holds no secret: those go by the environment."""
    c = env.cloud
    return [
        *("--cloud", c.model_dump_json(), "--budget", str(c.budget), "--vm-ttl", str(c.ttl_h * 3600)),
        *("--boot-timeout", str(c.boot_timeout_s)),
    ]


def _get(url: str, token: str) -> dict[str, Any] | None:
    """A JSON answer, None when there is none or our token is not known there."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10.0) as reply:
            data: dict[str, Any] = json.loads(reply.read())
            return data
    except (OSError, ValueError):
        return None
