"""engine of params.yaml: what writes the rollouts, this process or a vLLM server."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from guiderail.param_section import Section
from guiderail.params_endpoint import is_address


class Engine(Section):
    """The rollout engine of rl. All but `kind` are knobs of the machine: changing them re-runs nothing."""

    kind: Literal["hf", "vllm"] = Field("hf", description="hf: in the trainer's process; vllm: a server of its own.")
    python: str = Field(
        "", description="vllm: python of its environment; empty = GUIDERAIL_VLLM_PYTHON, else .venv-vllm/bin/python."
    )
    url: str = Field("", description="vllm: a server that runs already; empty = the stage starts one.")
    max_seqs: int = Field(32, ge=1, le=4096, description="vllm: completions at a time.")
    gpu_memory: float = Field(0.5, gt=0, le=1, description="vllm on a GPU: share of its memory (the trainer's apart).")
    cpu_cache_gb: int = Field(1, ge=1, le=4096, description="vllm on a CPU: GiB of its key/value cache.")
    start_timeout_s: float = Field(1200.0, gt=0, le=86_400, description="vllm: how long it may take to be ready.")

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        if value and not is_address(value):
            raise ValueError("must be of the form http://host:port, without a key in it")
        return value
