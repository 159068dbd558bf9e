"""env.cloud of params.yaml: the machines of a cloud provider, and which keys each provider reads and needs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from guiderail.param_section import Section


class Cloud(Section):
    """Machines of a cloud provider. Secrets come from the environment alone (README, "Cloud machines")."""

    region: str = Field("", description="Region, e.g. eu-central-1, cn-beijing, cn-hangzhou.")
    zone: str = Field("", description="Zone; aws: empty = the subnet's.")
    image: str = Field("", description="Image to boot; docker: name:tag or name@sha256:...")
    instance_type: str = Field("", description="Instance type, e.g. t3.medium; not for docker.")
    subnet: str = Field("", description="Subnet; aliyun: VSwitch; docker: name of a network.")
    security_groups: list[str] = Field(default_factory=list, description="Ids of security groups.")
    address: Literal["private", "public"] = Field(
        "private", description="Which address the pool uses; docker: private = a port on 127.0.0.1, public = on all."
    )
    port: int = Field(5000, ge=1, le=65535, description="Port of the server inside the machine.")
    server: Literal["desktop", "osworld", "noop"] = Field(
        "desktop",
        description="What answers there: our in-VM server, OSWorld's own, or a machine without a screen (for trials).",
    )
    disk_gb: int = Field(0, ge=0, description="System disk; 0 = as the image has it.")
    cpus: float = Field(0.0, ge=0, description="docker: CPUs of a container; 0 = no limit.")
    memory_gb: float = Field(0.0, ge=0, description="docker: memory of a container; 0 = no limit.")
    reset: Literal["recreate", "disk"] = Field(
        "recreate",
        description="Between leases: a new machine, or (aws, aliyun) the same one with its system disk made anew.",
    )
    spot: bool = Field(False, description="Spot machines: cheaper, may be taken away at any time.")
    spot_max_price: float = Field(0.0, ge=0, description="Most to pay for an hour of a spot machine; 0 = no limit.")
    price_per_hour: float = Field(0.0, ge=0, description="Price of one machine; 0 = ask the provider where it tells.")
    currency: str = Field("", pattern=r"^([A-Z]{3})?$", description="Of the prices and the budget, e.g. USD, CNY.")
    budget: float = Field(0.0, ge=0, description="Make no more machines when so much is spent; 0 = no budget.")
    ttl_h: float = Field(6.0, gt=0, description="Hard limit of a machine's life in hours.")
    boot_timeout_s: float = Field(300.0, gt=0)
    endpoint: str = Field("", description="Address of the API, for a private cloud; docker: empty = DOCKER_HOST.")


CLOUDS: dict[str, tuple[str, ...]] = {  # provider -> keys of env.cloud that it cannot do without
    "docker": ("image",),
    "aws": ("region", "image", "instance_type", "subnet"),
    "volcengine": ("region", "zone", "image", "instance_type", "subnet", "security_groups"),
    "aliyun": ("region", "image", "instance_type", "subnet", "security_groups"),
}
CAN_RENEW = ("aws", "aliyun")
NOT_DOCKER = ("region", "zone", "instance_type", "security_groups", "disk_gb", "spot", "spot_max_price")


def check_cloud(provider: str, cloud: Cloud) -> None:
    """A cloud provider must have what it needs, and nobody a key that nothing would read. Raises ValueError."""
    plain = Cloud()
    changed = [k for k in Cloud.model_fields if getattr(cloud, k) != getattr(plain, k)]
    if provider not in CLOUDS:
        if changed:
            raise ValueError(
                f"env.cloud.{changed[0]} is set, but provider {provider} has no cloud machines: leave it out, or set "
                f"env.provider to one of {', '.join(CLOUDS)}."
            )
        return
    if missing := [f"env.cloud.{k}" for k in CLOUDS[provider] if not getattr(cloud, k)]:
        raise ValueError(f"env.provider = {provider!r}: needs {', '.join(missing)}.")
    unread = NOT_DOCKER if provider == "docker" else ("cpus", "memory_gb")
    if wrong := [k for k in unread if k in changed]:
        raise ValueError(f"env.cloud.{wrong[0]} means nothing to provider {provider}: leave it out.")
    if cloud.reset == "disk" and provider not in CAN_RENEW:
        raise ValueError(f"env.cloud.reset: disk is for {' and '.join(CAN_RENEW)}: leave it out for {provider}.")
    if cloud.spot_max_price and not cloud.spot:
        raise ValueError("env.cloud.spot_max_price is set: it needs env.cloud.spot: true.")
    if (cloud.price_per_hour or cloud.budget) and not cloud.currency:
        raise ValueError("env.cloud.currency is empty: name the currency of price_per_hour and budget, e.g. USD.")
