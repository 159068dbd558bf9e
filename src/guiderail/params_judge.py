"""How judges of steps are asked for their votes, in params.yaml."""

from __future__ import annotations

from pydantic import Field

from guiderail.param_section import Section
from guiderail.params_endpoint import Endpoint


class Voting(Section):
    """How a judge of steps that is a model is asked."""

    votes: int = Field(1, ge=1, le=64, description="Votes a step (m).")
    temperature: float = Field(1.0, gt=0, le=100, description="Of the judge's sampling.")
    max_new_tokens: int = Field(1024, ge=8, le=100_000, description="Longest answer of endpoint.")
    batch: int = Field(64, ge=1, le=4096, description="prm: steps read at once.")
    endpoint: Endpoint = Endpoint()
