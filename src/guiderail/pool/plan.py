"""What a cloud provider is about to be asked for, and what it costs: told before anything is made.

Guarantees: credentials, image and network are checked by the provider's own API, and the price has a source (the API
or params.yaml); nothing is made here. Consent is a budget or a yes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from guiderail.errors import Explained
from guiderail.params import Env
from guiderail.pool.providers import make_cloud

LIMITS = {
    "aws": "a timer inside the machine, which EC2 answers by terminating it; the pool ends it too",
    "aliyun": "ECS itself (AutoReleaseTime); the pool ends it too",
    "volcengine": "the pool only: the provider has none",
    "docker": "the pool only: the provider has none",
}


class NotConfirmed(Explained, RuntimeError):
    """Machines would cost money and nobody said yes."""


@dataclass(frozen=True)
class Plan:
    """`price` of one machine per hour in `currency`, as told by `source`."""

    env: Env
    price: float
    currency: str
    source: str

    def text(self) -> str:
        """Some lines for a person."""
        c, n = self.env.cloud, self.env.slots
        keeper = LIMITS[self.env.provider]

        def money(x: float) -> str:
            return f"{x:.4g} {self.currency}" if self.price else "nothing"

        kind = f"{c.instance_type}, {'spot' if c.spot else 'on demand'}" if c.instance_type else "containers"
        where = " ".join(x for x in (c.region, c.zone, c.subnet and f"subnet {c.subnet}") if x) or c.endpoint or "here"
        most = f" (spot, at most {money(c.spot_max_price)})" if c.spot_max_price else ""
        budget = f"{c.budget:g} {c.currency}; once it is spent no machine is made" if c.budget else "none"
        rows = [
            ("machines", f"up to {n} (env.slots): {kind}, image {c.image}"),
            ("where", f"{where}; {c.address} address, port {c.port}"),
            ("price", f"{money(self.price)} per machine and hour{most}, {money(self.price * n)} per hour for {n}"),
            ("source", self.source),
            ("limit", f"{c.ttl_h:g} h of life each, so {money(self.price * n * c.ttl_h)} for {n}; kept by {keeper}"),
            ("budget", budget),
        ]
        return f"provider {self.env.provider} would make\n" + "\n".join(f"  {k:<9} {v}" for k, v in rows)


def plan(env: Env) -> Plan:
    """Ask the provider. Raises ProviderError (what is wrong with credentials, image, network or price)."""

    async def ask() -> Plan:
        provider = make_cloud(env.provider, env.cloud)
        try:
            await provider.start()
        finally:
            await provider.stop()
        return Plan(env, provider.price_per_hour, provider.currency, provider.price_source)

    return asyncio.run(ask())


def check_consent(made: Plan, yes: bool) -> None:
    """Raises NotConfirmed unless `yes`, or a budget in the currency of the price is set."""
    c = made.env.cloud
    if c.budget and made.price and c.currency != made.currency:
        raise NotConfirmed(f"env.cloud.budget is in {c.currency}, but the price in {made.currency}: set the same one")
    if not yes and not c.budget:
        raise NotConfirmed(
            "nothing was made. Run `guiderail provision --yes` to accept this, or set env.cloud.budget in params.yaml, "
            "which the engines need too (they cannot be asked)"
        )
