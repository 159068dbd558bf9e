"""Shards of a real two-process FSDP2 run become the very folder they were sharded from."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from guiderail.checkpoints import manifest as m
from guiderail.checkpoints.compare import Gap, compare
from guiderail.checkpoints.consolidate import consolidate
from guiderail.checkpoints.dcp import DcpFolder
from guiderail.checkpoints.shards import RankFiles, ShardError, rank_files
from guiderail.models.tiny import save
from guiderail.services import free_port
from tinyvlm import make_model

LAYOUTS = ("ranks", "dcp", "plain")


@pytest.fixture(scope="module")
def run(processor, tmp_path_factory):
    """The folder `base`, and its shards as `ranks`, `dcp` and `plain`."""
    at = tmp_path_factory.mktemp("shards")
    save(make_model(processor), processor, str(at / "base"))
    script, port = Path(__file__).with_name("shard_run.py"), str(free_port())
    ranks = [subprocess.Popen([sys.executable, script, str(r), port, at / "base", at]) for r in range(2)]
    assert [p.wait(timeout=600) for p in ranks] == [0, 0]
    return at


@pytest.fixture
def copy(run, tmp_path):
    """Shards that a test may damage."""
    for name in LAYOUTS:
        shutil.copytree(run / name, tmp_path / name)
    return SimpleNamespace(base=run / "base", at=tmp_path, ranks=tmp_path / "ranks", dcp=tmp_path / "dcp")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_folder_comes_back_bit_for_bit(run, tmp_path, layout):
    manifest = consolidate(run / layout, run / "base", tmp_path / "out")
    found = compare(run / "base", tmp_path / "out")
    assert found.equal and found.tensors > 50
    assert (tmp_path / "out" / "model.safetensors").is_file()  # the tied head is written once, as in the base
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    assert m.verify_files(tmp_path / "out") == manifest and len(manifest.method["sources"]) == 2


def test_several_files_load_like_one(run, tmp_path):
    from transformers import Qwen3VLForConditionalGeneration

    consolidate(run / "ranks", run / "base", tmp_path / "out", file_bytes=100_000)
    files = sorted(tmp_path.joinpath("out").glob("*.safetensors"))
    assert len(files) > 3 and compare(run / "base", tmp_path / "out").equal
    _, info = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def test_dtypes_are_kept_unless_told(run, tmp_path):
    for rank in range(2):
        name = f"model_world_size_2_rank_{rank}.pt"
        tensors = torch.load(run / "plain" / name, weights_only=True)
        kept = {n: t.bfloat16() if ".mlp." in n else t for n, t in tensors.items()}
        (tmp_path / "mixed").mkdir(exist_ok=True)
        torch.save(kept, tmp_path / "mixed" / name)
    consolidate(tmp_path / "mixed", run / "base", tmp_path / "kept")
    found = load_file(tmp_path / "kept" / "model.safetensors")
    assert {t.dtype for n, t in found.items() if ".mlp." in n} == {torch.bfloat16}
    assert {t.dtype for n, t in found.items() if ".mlp." not in n} == {torch.float32}
    consolidate(tmp_path / "mixed", run / "base", tmp_path / "half", dtype=torch.float16)
    assert {t.dtype for t in load_file(tmp_path / "half" / "model.safetensors").values()} == {torch.float16}
    assert '"dtype": "float16"' in (tmp_path / "half" / "config.json").read_text()


def test_a_missing_or_cut_rank_is_found_before_anything_is_written(copy):
    second = copy.ranks / "model_world_size_2_rank_1.pt"
    data = second.read_bytes()
    second.write_bytes(data[: len(data) // 2])
    with pytest.raises(ShardError, match=r"rank_1.pt: cut short"):
        consolidate(copy.ranks, copy.base, copy.at / "out")
    second.unlink()
    with pytest.raises(ShardError, match=r"of 2 ranks \[1\] are missing"):
        consolidate(copy.ranks, copy.base, copy.at / "out")
    (copy.ranks / "model_world_size_4_rank_1.pt").touch()
    with pytest.raises(ShardError, match=r"2 world sizes \[2, 4\]"):
        rank_files(copy.ranks)
    assert not (copy.at / "out").exists()


def flip(file, at):
    """Change one bit."""
    data = bytearray(file.read_bytes())
    data[at] ^= 0x40
    file.write_bytes(data)


def test_a_flipped_bit_is_found(copy):
    ranks = copy.ranks / "model_world_size_2_rank_1.pt"
    flip(ranks, ranks.stat().st_size // 2)  # inside a tensor: torch itself loads it
    with pytest.raises(ShardError, match=r"rank_1.pt: damaged, the checksum of"):
        consolidate(copy.ranks, copy.base, copy.at / "out")
    piece = max(copy.dcp.glob("*.distcp"), key=lambda f: f.stat().st_size)
    flip(piece, piece.stat().st_size // 2)
    with pytest.raises(ShardError, match=r"distcp: the piece of .*: damaged"):
        consolidate(copy.dcp, copy.base, copy.at / "out")
    assert not (copy.at / "out").exists()


def test_a_damaged_index_is_refused_or_read(copy):
    index, refused = copy.dcp / ".metadata", 0
    data = index.read_bytes()
    for at in range(20, len(data), len(data) // 60):
        flip(index, at)
        try:
            DcpFolder(copy.dcp)
        except ShardError:  # and nothing else
            refused += 1
        index.write_bytes(data)
    assert refused > 20


def test_copies_of_different_steps_are_refused(tmp_path):
    """HSDP: ranks 0, 2 and 1, 3 hold the same pieces."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "fsdp"))
        whole = torch.arange(12.0).reshape(6, 2)
        for later in (False, True):
            for rank in range(4):
                piece = whole.chunk(2)[rank % 2] + (rank == 3 and later)
                spread = DTensor.from_local(piece, mesh, (Replicate(), Shard(0)), shape=(6, 2), stride=(2, 1))
                torch.save({"x": spread}, tmp_path / f"model_world_size_4_rank_{rank}.pt")
            if not later:
                assert torch.equal(RankFiles(tmp_path, {}).tensor("x"), whole)
        with pytest.raises(ShardError, match=r"x: ranks \[1, 3\] hold copies that differ"):
            RankFiles(tmp_path, {})
    finally:
        dist.destroy_process_group()


def test_ranks_of_different_runs_do_not_go_together(copy, run):
    shutil.copyfile(run / "plain" / "model_world_size_2_rank_1.pt", copy.ranks / "model_world_size_2_rank_1.pt")
    with pytest.raises(ShardError, match="differs between ranks"):
        consolidate(copy.ranks, copy.base, copy.at / "out")


def test_tied_weights_that_differ_are_refused(copy):
    for rank in range(2):
        file = copy.at / "plain" / f"model_world_size_2_rank_{rank}.pt"
        tensors = torch.load(file, weights_only=True)
        tensors["lm_head.weight"] = tensors["model.language_model.embed_tokens.weight"] + 1
        torch.save(tensors, file)
    with pytest.raises(ShardError, match="one tensor by the configuration"):
        consolidate(copy.at / "plain", copy.base, copy.at / "out")


def test_names_that_are_not_the_models_are_refused(copy):
    for rank in range(2):
        file = copy.at / "plain" / f"model_world_size_2_rank_{rank}.pt"
        torch.save(torch.load(file, weights_only=True) | {"value_head.weight": torch.zeros(2)}, file)
    with pytest.raises(ShardError, match="value_head"):
        consolidate(copy.at / "plain", copy.base, copy.at / "out")


class Shell:
    """Unpickling it would run a command."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        import os

        return os.mkdir, (str(self.path),)


def test_pickles_of_anything_but_tensors_are_not_run(copy):
    torch.save({"x": Shell(copy.at / "ran")}, copy.ranks / "model_world_size_2_rank_0.pt")
    with pytest.raises(ShardError, match="not readable as tensors alone"):
        consolidate(copy.ranks, copy.base, copy.at / "out")
    (copy.dcp / ".metadata").write_bytes(pickle.dumps(Shell(copy.at / "ran")))
    with pytest.raises(ShardError, match="mkdir, which no description of tensors needs"):
        consolidate(copy.dcp, copy.base, copy.at / "out")
    assert not (copy.at / "ran").exists()


def test_a_cut_dcp_file_is_found_before_a_tensor_is_read(copy):
    file = next(copy.dcp.glob("__1_*.distcp"))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ShardError, match="cut short"):
        DcpFolder(copy.dcp)
    file.unlink()
    with pytest.raises(ShardError, match="missing"):
        DcpFolder(copy.dcp)


def test_the_command_tells_what_it_made_and_what_differs(run, tmp_path, capsys):
    from guiderail.cli import main

    asked = ["consolidate", str(run / "ranks"), "--like", str(run / "base"), "--against", str(run / "base")]
    assert main([*asked, "--out", str(tmp_path / "a")]) == 0
    assert "from 2 shards\nequal to" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="differs from"):
        main([*asked, "--out", str(tmp_path / "b"), "--dtype", "bfloat16"])
    assert "bfloat16 and float32" in capsys.readouterr().out


def test_an_existing_folder_is_left_alone(run, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError):
        consolidate(run / "ranks", run / "base", tmp_path / "out")


def test_compare_names_what_differs(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run / "base", other)
    tensors = load_file(other / "model.safetensors")
    name = "model.language_model.norm.weight"
    tensors[name][0] += 0.5
    gone = tensors.pop("model.visual.patch_embed.proj.bias")
    save_file(tensors, other / "model.safetensors")
    found = compare(run / "base", other)
    assert found.values == {name: Gap(0.5, 0.5 / tensors[name].numel())}
    assert found.missing == ("model.visual.patch_embed.proj.bias",) and found.extra == () and gone is not None
    assert not found.equal
