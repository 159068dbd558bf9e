"""Hand trained weights to a vLLM server before each collection.

Guarantees: after `publish(version)` returns, completions asked for under the name it gives are sampled with exactly
the given tensors and no cached key, value or prefix of older ones: an adapter goes into a folder and a name never used
before (both are part of the server's cache key), full weights empty all caches. Image features outlive an adapter
update, since adapters never touch the vision tower. The former version's adapter and files are removed once the new
one serves. Weights travel as safetensors files, so trainer and server must see one disk; a full update of a large
model costs writing and reading it once.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from torch import Tensor

from guiderail.checkpoints.weights import save_adapter, save_full
from guiderail.checkpoints.widen import head_dim, widen_tensors, with_head
from guiderail.params_train import Lora
from guiderail.rollout.engines.vllm_client import VllmClient
from guiderail.rollout.engines.vllm_server import served_folder


class WeightSync:
    """Versions of one policy on one server.

    parent: folder of the policy's untrained tensors (the server may serve a twin with wider heads). folder: where
    versions are written; emptied first.
    """

    def __init__(
        self, client: VllmClient, parent: Path, folder: Path, mode: Literal["full", "lora"], lora: Lora
    ) -> None:
        self.client, self.mode, self.lora = client, mode, lora
        self.folder = folder.absolute()
        self.base, self.served = served_folder(client)
        self.narrow, self.wide = head_dim(parent), head_dim(self.served)
        self.version, self.name, self.at = "", "", Path()
        shutil.rmtree(self.folder, ignore_errors=True)

    def publish(self, version: str, weights: Mapping[str, Tensor]) -> str:
        """Serve `weights` (trained tensors by parameter name) as `version`; returns the model name to ask for.

        Does nothing when `version` is being served. Raises VllmError, WeightsError, OSError.
        """
        if version == self.version:
            return self.name
        old, old_at = self.name, self.at
        name = f"guiderail-v{version}-{secrets.token_hex(4)}"
        at = self.folder / name
        tensors = widen_tensors(weights, self.narrow, self.wide)
        if self.mode == "lora":
            save_adapter(at, tensors, self.lora, self.served)
            self.client.load_adapter(name, at)
        else:
            save_full(self.served, at, with_head(tensors, self.served))
            self.client.reload_weights(at)
        self.client.set_version(version)
        self.version, self.name, self.at = version, name if self.mode == "lora" else self.base, at
        if old:
            if self.mode == "lora":
                self.client.unload_adapter(old)
            shutil.rmtree(old_at)
        return self.name
