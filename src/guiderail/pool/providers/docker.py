"""Containers of a Docker daemon, here or on another host, through docker (the extra `docker`).

Guarantees: a container has the pool's name (so a name makes one) and labels from its creation on; one that exited is
still listed. The image must be there: nothing is pulled behind anybody's back. The server's port is published on
127.0.0.1, or with env.cloud.address: public on all addresses of the daemon's host; GUIDERAIL_VM_TOKEN, where it is
set, is passed on to the container. The engine has no hard limit of a
container's life: the pool's sweeper ends what expired. Costs nothing unless params.yaml says so. DOCKER_HOST,
DOCKER_TLS_VERIFY and DOCKER_CERT_PATH are read as by the docker command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from guiderail.pool.providers.base import (
    BootFailed,
    Misconfigured,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Vm,
    VmSpec,
    VmState,
)
from guiderail.pool.providers.cloud import CloudProvider, Seen
from guiderail.pool.providers.cloud_calls import ApiFault

STATES: dict[str, VmState] = {"created": "booting", "running": "running", "restarting": "booting"}
FULL = ("no space left", "cannot allocate memory", "address pools", "too many open files", "resource temporarily")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOG_LINES = 5


class DockerProvider(CloudProvider):
    """Containers."""

    name = "docker"
    poll_s = 0.5

    def open(self) -> None:
        """Client, daemon, image."""
        try:
            import docker
            from docker.errors import ImageNotFound
            from docker.utils import kwargs_from_env
        except ImportError as e:
            raise Misconfigured(f"provider docker needs its SDK ({e}): pip install 'guiderail[docker]'") from e
        options = kwargs_from_env()
        if self.cloud.endpoint:
            options = {k: v for k, v in options.items() if k == "tls"} | {"base_url": self.cloud.endpoint}
        where = options.get("base_url", "unix:///var/run/docker.sock")
        self.host = urlsplit(where).hostname or "127.0.0.1" if "://" in where and "unix" not in where else "127.0.0.1"
        if self.host not in LOOPBACK and self.cloud.address == "private":
            raise Misconfigured(
                f"the daemon at {where} is on another host, where a port on 127.0.0.1 is out of reach: set "
                "env.cloud.address: public (on a network that you trust)"
            )
        try:
            self.client: Any = docker.APIClient(**options, version="auto", timeout=25)
        except Exception as e:
            raise Misconfigured(f"no Docker daemon at {where}: {e}") from e
        try:
            self.client.inspect_image(self.cloud.image)
        except ImageNotFound as e:
            raise Misconfigured(f"image {self.cloud.image} is not there: docker pull {self.cloud.image}") from e

    def quote(self) -> tuple[float, str, str]:
        """A container of one's own daemon costs nothing."""
        return 0.0, self.cloud.currency, "docker: no price set, so none counted"

    def run(self, spec: VmSpec, token: str) -> Vm:
        """Create and start; a container that has the name already is started."""
        c, port = self.cloud, f"{self.cloud.port}/tcp"
        bind = "127.0.0.1" if c.address == "private" else "0.0.0.0"
        host = self.client.create_host_config(
            port_bindings={port: (bind, None)},
            mem_limit=int(c.memory_gb * 2**30) or None,
            nano_cpus=int(c.cpus * 1e9) or None,
            network_mode=c.subnet or None,
            shm_size="1g",
            init=True,
        )
        try:
            self.client.create_container(
                c.image,
                name=token,
                labels=spec.labels(),
                host_config=host,
                ports=[(c.port, "tcp")],
                environment=self.inside.secrets(),
            )
        except Exception as e:
            if _status(e) != 409:
                raise
        self.client.start(token)
        return self._seen(self.client.inspect_container(token)).vm

    def find(self, labels: Mapping[str, str], ids: Sequence[str] = ()) -> list[Seen]:
        """Containers in any state, then each one's details."""
        filters: dict[str, Any] = {"label": [f"{k}={v}" for k, v in labels.items()]} if labels else {}
        filters |= {"id": list(ids)} if ids else {}
        found = []
        for row in self.client.containers(all=True, filters=filters):
            try:
                found.append(self._seen(self.client.inspect_container(row["Id"])))
            except Exception as e:
                if _status(e) != 404:  # ended between the two calls
                    raise
        return found

    def _seen(self, told: Mapping[str, Any]) -> Seen:
        state, labels = told["State"], told["Config"]["Labels"] or {}
        bound = (told["NetworkSettings"].get("Ports") or {}).get(f"{self.cloud.port}/tcp") or []
        created = datetime.fromisoformat(told["Created"]).timestamp()
        known = STATES.get(state["Status"], "gone")
        vm = self.vm(told["Id"], labels, known, self.host if bound else "", created)
        if bound:
            vm = self.vm(told["Id"], labels, known, "", created, address=f"{self.host}:{bound[0]['HostPort']}")
        why = f"state {state['Status']}"
        if known == "gone":
            killed = ", out of memory" if state.get("OOMKilled") else ""
            why += f", exit code {state.get('ExitCode')}{killed}, {state.get('Error') or 'last lines of its log'}: "
            why += self._log(told["Id"])
        return Seen(vm, why, ended=state["Status"] == "removing")

    def _log(self, vm_id: str) -> str:
        try:
            raw: bytes = self.client.logs(vm_id, tail=LOG_LINES)
        except Exception as e:
            return f"no log ({e})"
        return " | ".join(raw.decode(errors="replace").split("\n")).strip(" |")

    def delete(self, vm_id: str) -> None:
        """Kill and remove, volumes included; one that is being removed is as good as gone."""
        try:
            self.client.remove_container(vm_id, force=True, v=True)
        except Exception as e:
            if _status(e) not in (404, 409):
                raise

    def explain(self, error: Exception) -> ProviderError:
        """By status, and by the daemon's words where it has no code for them."""
        status, text = _status(error), f"docker: {getattr(error, 'explanation', None) or error}"
        if any(words in text.lower() for words in FULL):
            return QuotaExceeded(text)
        kinds: dict[int, type[ProviderError]] = {400: Misconfigured, 401: Misconfigured, 403: Misconfigured}
        kinds |= {404: Misconfigured, 409: BootFailed, 429: Throttled}
        return kinds.get(status, ApiFault)(text)


def _status(error: Exception) -> int:
    """HTTP status in an exception of the SDK; 0 when there was no reply."""
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)
