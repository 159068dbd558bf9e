"""`guiderail serve`: a vLLM server for as long as the command runs, with the options a trainer needs."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path


def command_options(p: argparse.ArgumentParser) -> None:
    """Options of the command."""
    p.add_argument("--model", required=True, metavar="FOLDER", help="Hugging Face folder of a Qwen3-VL checkpoint")
    p.add_argument("--port", type=int, default=8000, help="port on 127.0.0.1 (default: 8000)")
    p.add_argument("--params", default="params.yaml", metavar="FILE", help="parameters (default: params.yaml)")


def run(args: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM; engine, model.dtype, prompt.chunk_steps and rl.lora.r come from params.yaml."""
    from guiderail.params import load
    from guiderail.rollout.engines.vllm_client import TOKEN_ENV
    from guiderail.rollout.engines.vllm_server import vllm_server

    params = load(args.params)
    engine = params.engine.model_copy(update={"url": ""})
    ranks = [params.rl_for(r).lora.r for r in params.recipes]
    with tempfile.TemporaryDirectory(prefix="guiderail-serve-") as scratch:
        log = Path(scratch) / "vllm.log"
        with vllm_server(
            engine,
            Path(args.model),
            Path(scratch),
            dtype=params.model.dtype,
            images=params.prompt.chunk_steps,
            rank=max(ranks, default=params.rl.lora.r),
            port=args.port,
            log=log,
        ) as client:
            say = f"serving {args.model} at {client.url} (log: {log}); the token is the one in {TOKEN_ENV}"
            print(f"{say}, Ctrl-C ends it", file=sys.stderr, flush=True)
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
