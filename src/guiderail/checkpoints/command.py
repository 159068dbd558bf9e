"""`guiderail consolidate`: shards of a distributed run as one Hugging Face folder, compared with another if asked."""

from __future__ import annotations

import argparse
from pathlib import Path

DTYPES = ("keep", "float32", "bfloat16", "float16")


def command_options(p: argparse.ArgumentParser) -> None:
    """Options of the command."""
    p.add_argument(
        "shards", metavar="FOLDER", help="torch.distributed.checkpoint, or model_world_size_W_rank_R.pt files"
    )
    p.add_argument("--like", required=True, metavar="FOLDER", help="configuration, tokenizer and processor to take")
    p.add_argument("--out", required=True, metavar="FOLDER", help="folder to make; it must not exist")
    p.add_argument("--dtype", choices=DTYPES, default="keep", help="how to store weights (default: as they are)")
    p.add_argument("--against", metavar="FOLDER", help="compare the result with this folder; exit 1 when they differ")


def run(args: argparse.Namespace) -> None:
    """Consolidate; tell what was written and, with --against, what differs."""
    import torch

    from guiderail.checkpoints.compare import compare
    from guiderail.checkpoints.consolidate import consolidate

    dtype = None if args.dtype == "keep" else getattr(torch, args.dtype)
    found = consolidate(Path(args.shards), Path(args.like), Path(args.out), dtype=dtype)
    print(f"{args.out}: {len(found.files)} files from {len(found.method['sources'])} shards")
    if args.against is None:
        return
    difference = compare(Path(args.out), Path(args.against))
    if difference.equal:
        print(f"equal to {args.against}, bit for bit: {difference.tensors} tensors")
        return
    for fault in difference.faults():
        print(f"  {fault}")
    raise SystemExit(f"{args.out} differs from {args.against}")
