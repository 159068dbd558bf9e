"""Consolidating and merging hold about one file and one tensor of each source, not all; writing is atomic."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from guiderail.checkpoints import consolidate as c
from guiderail.checkpoints import manifest as m

BLOCKS, FILE = 24, 16 << 20


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """A model of about 110 MB in float32 whose largest tensor has 2 MB: configuration, and two ranks' shards of it."""
    at = tmp_path_factory.mktemp("big")
    text = {
        "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": BLOCKS, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1000, "tie_word_embeddings": True,
    }  # fmt: skip
    vision = {"depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 512}
    vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True)
    config.architectures = ["Qwen3VLForConditionalGeneration"]
    (at / "like").mkdir()
    config.save_pretrained(at / "like")
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(config)
    shapes = {n: t.shape for n, t in model.state_dict().items() if n != "lm_head.weight"}
    whole = {n: torch.full(s, float(i % 7)) for i, (n, s) in enumerate(shapes.items())}
    (at / "shards").mkdir()
    for rank in range(2):
        half = {n: t.chunk(2)[rank].clone() if t.shape[0] % 2 == 0 else t for n, t in whole.items()}
        torch.save(half, at / "shards" / f"model_world_size_2_rank_{rank}.pt")
    return at, whole


def measured(what: str, at: Path) -> tuple[int, int]:
    script = Path(__file__).with_name("big_run.py")
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}  # what is freed goes back at once: held is what is counted
    done = subprocess.run([sys.executable, script, what, at], capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stderr
    grown, size = done.stdout.split()
    return int(grown), int(size)


def test_consolidating_holds_one_file(big):
    at, whole = big
    grown, size = measured("consolidate", at)
    largest = max(t.nbytes for t in whole.values())
    assert size > 6 * FILE  # else the bound would mean nothing
    assert grown < 2 * FILE + 4 * largest + (8 << 20), (
        f"{grown >> 20} MB of {size >> 20} MB"
    )  # safetensors copies a file
    assert len(list((at / "out").glob("*.safetensors"))) >= 6


def test_ties_holds_one_file_and_one_tensor_of_each(big, tmp_path):
    _, whole = big
    for number, name in enumerate(("base", "a", "b")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        names, where, part = sorted(whole), {}, 0
        while names:
            tensors, held = {}, 0
            while names and held < FILE:
                n = names.pop()
                tensors[n], held = whole[n] + number, held + whole[n].nbytes
            part += 1
            where |= dict.fromkeys(tensors, f"model-{part:05d}.safetensors")
            save_file(tensors, folder / f"model-{part:05d}.safetensors", metadata={"format": "pt"})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
        start = m.Link.to(tmp_path / "base") if number else None
        older = (start.sha256,) if start else ()
        m.write(folder, m.Manifest(kind="full", stage="rl" if number else "pretrain", start=start, ancestors=older))
    grown, size = measured("ties", tmp_path)
    largest = max(t.nbytes for t in whole.values())
    assert size > 6 * FILE
    assert grown < 3 * FILE + 16 * largest + (8 << 20), f"{grown >> 20} MB of {size >> 20} MB"


def test_a_write_that_fails_leaves_nothing_and_the_next_one_succeeds(big, tmp_path, monkeypatch):
    at, _ = big
    written = []

    def failing(tensors, file, metadata=None):
        written.append(file)
        if len(written) == 3:
            raise OSError(28, "No space left on device", str(file))
        real(tensors, file, metadata)

    real = c.write_tensors
    monkeypatch.setattr(c, "write_tensors", failing)
    with pytest.raises(OSError, match="No space left"):
        c.consolidate(at / "shards", at / "like", tmp_path / "out", file_bytes=FILE)
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    c.consolidate(at / "shards", at / "like", tmp_path / "out", file_bytes=FILE)
    assert m.verify_files(tmp_path / "out") and not list(tmp_path.glob("*.tmp"))
