"""One rank of a two-process FSDP2 run on CPU: shards the model in FOLDER and saves it in every layout.

`python shard_run.py RANK PORT FOLDER OUT`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import Qwen3VLForConditionalGeneration

if __name__ == "__main__":
    rank, port, folder, out = int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    model.lm_head.to(torch.float32)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    for layer in [*model.model.language_model.layers, *model.model.visual.blocks]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    sharded = model.state_dict()
    (out / "ranks").mkdir(exist_ok=True)
    torch.save(sharded, out / "ranks" / f"model_world_size_2_rank_{rank}.pt")
    dcp.save({"model": sharded, "optim": {"step": torch.tensor(3.0)}, "epoch": 7}, checkpoint_id=str(out / "dcp"))
    (out / "plain").mkdir(exist_ok=True)  # as without DTensors: pieces along axis 0, what does not divide whole
    plain = {n: t.full_tensor() for n, t in sharded.items()}
    plain = {n: t.chunk(2)[rank].clone() if t.ndim and t.shape[0] % 2 == 0 else t for n, t in plain.items()}
    torch.save(plain, out / "plain" / f"model_world_size_2_rank_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
