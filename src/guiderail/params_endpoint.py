"""Endpoints of models from elsewhere in params.yaml: where a judge or a teacher is asked, and at what price."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from guiderail.param_section import Section

KEY_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_address(text: str) -> bool:
    """Whether `text` is an http(s) address of a host and, where it names one, a port, without a key in it."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError when it is none
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.username


class Endpoint(Section):
    """A model behind an OpenAI-compatible address (vLLM, or a provider)."""

    url: str = Field("", description="Base address, e.g. http://127.0.0.1:8000/v1; empty = none.")
    model: str = Field("", description="Name of the model there.")
    key_env: str = Field("OPENAI_API_KEY", description="Environment variable that holds the key; unset = no key.")
    timeout_s: float = Field(120.0, gt=0, le=86_400, description="Limit of one call.")
    retries: int = Field(5, ge=0, le=100, description="Further tries after a lost connection, 429 or 5xx.")
    concurrency: int = Field(8, ge=1, le=4096, description="Calls at a time.")
    price_in: float = Field(0.0, ge=0, description="Price of a million tokens read.")
    price_out: float = Field(0.0, ge=0, description="Price of a million tokens written.")
    currency: str = Field("", pattern=r"^([A-Z]{3})?$", description="Of the prices, e.g. USD.")

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        if value and not is_address(value):
            raise ValueError("must be of the form http://host:port/v1 or https://host/v1, without a key in it")
        return value

    @field_validator("key_env")
    @classmethod
    def _name(cls, value: str) -> str:
        if not KEY_NAME.fullmatch(value):
            raise ValueError("must be the name of an environment variable; the key itself never stands in a file")
        return value
