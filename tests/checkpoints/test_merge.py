"""Adapters, merging, lineage and verification on a small random Qwen3-VL, with PEFT and transformers as oracles."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

from guiderail.checkpoints import manifest as m
from guiderail.checkpoints import verify as v
from guiderail.checkpoints.merge import MergeError, interpolate, merge_linear, merge_lora
from guiderail.checkpoints.weights import WeightsError, adapter_deltas, rewrite, save_full
from guiderail.models.folder import CheckpointError, check_folder
from guiderail.models.loading import load_policy
from guiderail.params import Model
from guiderail.params_train import Lora, Rl, Sft
from guiderail.train.optim import TrainableError
from guiderail.train.start import load_reference, open_start, write_checkpoint

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from worlds import PROCESSOR, NumberedFrames, demo_rows, make_model

MODEL = Model(device="cpu")
TASKS = {"suite": "toy", "hash": "h" * 64}
LORA = Lora(r=4, alpha=12)
FULL, ADAPTER = Sft(mode="full"), Rl(mode="lora", lora=LORA)


def nudge(opened, scale=0.05, seed=0):
    """Stand-in for training: move every trained tensor by noise."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for x in opened.learner.named.values():
            x.add_(scale * torch.randn(x.shape, generator=g))


def train(start, out, optim, stage, trained, work, seed=0):
    opened = open_start(start, MODEL, optim, 0, work)
    nudge(opened, seed=seed)
    write_checkpoint(out, opened, optim, stage=stage, seed=0, tasks=TASKS, trained=trained, recipe="r")
    return opened


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """base -> sft (full) -> rl (adapter) -> merged; read only."""
    root = tmp_path_factory.mktemp("chain")
    make_model(PROCESSOR, 0).save_pretrained(root / "base")
    PROCESSOR.save_pretrained(root / "base")
    train(root / "base", root / "sft", FULL, "sft", ["toy/a/1/0", "toy/b/2/0"], root / "work")
    opened = train(root / "sft", root / "rl", ADAPTER, "rl", ["toy/a/9/0"], root / "work")
    merge_lora(root / "rl", root / "merged", "r", 0)
    return root, opened.policy


@pytest.fixture
def copy(chain, tmp_path, monkeypatch):
    """A copy to damage; relative parent paths point into it."""
    shutil.copytree(chain[0], tmp_path / "c")
    for name in ("sft", "rl", "merged"):
        file = tmp_path / "c" / name / "manifest.json"
        file.write_text(file.read_text().replace(str(chain[0]), str(tmp_path / "c")))
    return tmp_path / "c"


def flip(file: Path, at: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def probe():
    frames = NumberedFrames()
    return demo_rows(frames, n=4, steps=2), frames


def logits(model, policy, row, frames):
    """The library's own forward, pixels included."""
    pixels = [policy.preprocess(frames.get(f)) for f in row.frames]
    ids = torch.from_numpy(row.ids)[None]
    grid = torch.tensor([g for _, g in pixels])
    types = (ids == policy.image_token_id).int()
    with torch.no_grad():
        out = model(
            input_ids=ids, pixel_values=torch.cat([p for p, _ in pixels]), image_grid_thw=grid, mm_token_type_ids=types
        )
    return out.logits[0]


def test_merged_equals_peft_on_the_parent_through_from_pretrained(chain):
    root, policy = chain
    rows, frames = probe()
    base = Qwen3VLForConditionalGeneration.from_pretrained(root / "sft")
    want = PeftModel.from_pretrained(base, root / "rl").eval()
    got = Qwen3VLForConditionalGeneration.from_pretrained(root / "merged").eval()
    plain = Qwen3VLForConditionalGeneration.from_pretrained(root / "sft").eval()
    for row in rows:
        a, b, c = (logits(x, policy, row, frames) for x in (want, got, plain))
        assert (a - b).abs().max() < 1e-4
        assert (b - c).abs().max() > 1e-2  # the adapter did something
    AutoProcessor.from_pretrained(root / "merged")


def test_merged_weights_by_hand(chain):
    root, _ = chain
    base, merged = load_file(root / "sft/model.safetensors"), load_file(root / "merged/model.safetensors")
    adapter = load_file(root / "rl/adapter_model.safetensors")
    assert base.keys() == merged.keys()
    for name, w in base.items():
        key = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{key}.lora_A.weight" in adapter:
            b, a = adapter[f"{key}.lora_B.weight"], adapter[f"{key}.lora_A.weight"]
            assert torch.allclose(merged[name], w + 12 / 4 * (b @ a), atol=1e-6)
            assert not torch.equal(merged[name], w)
        else:
            assert torch.equal(merged[name], w), name  # vision, norms, embeddings: bit for bit


def test_full_checkpoint_holds_the_trained_tensors_and_the_parents_vision(chain, tmp_path):
    root, _ = chain
    base, sft = load_file(root / "base/model.safetensors"), load_file(root / "sft/model.safetensors")
    same = {n for n in base if torch.equal(base[n], sft[n])}
    assert same == {n for n in base if n.startswith("model.visual.")}
    opened = open_start(root / "base", MODEL, FULL, 0, tmp_path)
    nudge(opened)
    reloaded = dict(load_policy(root / "sft", MODEL).model.named_parameters())
    assert all(torch.equal(x, reloaded[n]) for n, x in opened.learner.named.items())


def test_manifest_tells_the_lineage_and_what_was_trained_on(chain):
    root, _ = chain
    sft, rl, merged = (m.verify_files(root / n) for n in ("sft", "rl", "merged"))
    digests = [m.weights_digest(root / n) for n in ("base", "sft", "rl")]
    assert (sft.kind, rl.kind, merged.kind) == ("full", "lora", "merged")
    assert sft.ancestors == (digests[0],) and rl.ancestors == tuple(digests[:2]) and merged.ancestors == tuple(digests)
    assert rl.parent == rl.start == m.Link(path=str(root / "sft"), sha256=digests[1])
    assert merged.trained_on.instances == ("toy/a/1/0", "toy/a/9/0", "toy/b/2/0")
    assert merged.trained_on.templates == ("a", "b") and merged.trained_on.split_hash == "h" * 64
    assert m.trained_ids([root / "base", root / "merged"]) == {"toy/a/1/0", "toy/a/9/0", "toy/b/2/0"}
    assert json.loads((root / "rl/manifest.json").read_text())["recipe"] == "r"


def test_verify_passes_and_records(chain):
    root, _ = chain
    rows, frames = probe()
    found = v.verify(root / "merged", v.reference_policy(root / "rl", MODEL, None), rows, frames, MODEL, 1e-4)
    assert found["passed"] and found["max_abs_logit_difference"] < 1e-4 and found["same_argmax"] == 1.0
    assert found["probe_tokens"] == sum(len(r.ids) for r in rows)


def test_verify_refuses_a_flipped_byte_and_weights_that_are_not_the_policy(copy):
    rows, frames = probe()
    reference = v.reference_policy(copy / "rl", MODEL, None)
    tensors = load_file(copy / "merged/model.safetensors")
    name = "model.language_model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name] * 1.01
    save_file(tensors, copy / "merged/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(m.ManifestError, match=r"changed \['model.safetensors'\]"):
        v.verify(copy / "merged", reference, rows, frames, MODEL, 1e-4)
    m.write(copy / "merged", m.read(copy / "merged"))  # someone signs the wrong weights
    with pytest.raises(v.VerifyError, match="logits differ by"):
        v.verify(copy / "merged", reference, rows, frames, MODEL, 1e-4)
    with pytest.raises(v.VerifyError, match="no probe rows"):
        v.verify(copy / "merged", reference, [], frames, MODEL, 1e-4)


@pytest.mark.parametrize("file", ["rl/adapter_model.safetensors", "rl/adapter_config.json"])
def test_merge_refuses_a_flipped_byte_in_the_adapter(copy, tmp_path, file):
    flip(copy / file, at=-2)
    with pytest.raises(m.ManifestError, match=r"rl: files are not the recorded ones: changed"):
        merge_lora(copy / "rl", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_merge_refuses_a_foreign_parent(copy, tmp_path):
    make_model(PROCESSOR, 1).save_pretrained(copy / "sft")
    with pytest.raises(m.ManifestError, match=r"parent .*sft is foreign: weights \w{12}, recorded \w{12}"):
        merge_lora(copy / "rl", tmp_path / "out")
    shutil.rmtree(copy / "sft")
    with pytest.raises(m.ManifestError, match=r"parent .*sft does not exist; restore it"):
        merge_lora(copy / "rl", tmp_path / "out")


def test_missing_extra_and_unmarked_files(copy):
    (copy / "rl/extra.txt").write_text("x")
    (copy / "rl/adapter_config.json").unlink()
    with pytest.raises(m.ManifestError, match=r"missing \['adapter_config.json'\]; not listed \['extra.txt'\]"):
        m.verify_files(copy / "rl")
    with pytest.raises(m.ManifestError, match=r"missing; .* is not a checkpoint of guiderail"):
        m.read(copy / "base")
    file = copy / "sft/manifest.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(m.ManifestError, match="not a manifest this version reads"):
        m.read(copy / "sft")


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_linear_merge_by_hand_and_verified(chain, tmp_path, weight):
    root, _ = chain
    merge_linear(root / "rl", tmp_path / "out", weight)
    start, end = load_file(root / "sft/model.safetensors"), load_file(root / "merged/model.safetensors")
    got = load_file(tmp_path / "out/model.safetensors")
    for n in start:
        assert torch.allclose(got[n], (1 - weight) * start[n] + weight * end[n], atol=1e-6), n
        if n.startswith("model.visual."):
            assert torch.equal(got[n], start[n])
    if weight in (0.0, 1.0):
        assert all(torch.equal(got[n], (start, end)[int(weight)][n]) for n in start)
    rows, frames = probe()
    reference = v.reference_policy(root / "rl", MODEL, weight)
    assert v.verify(tmp_path / "out", reference, rows, frames, MODEL, 1e-4)["passed"]


def test_linear_merge_of_full_checkpoints(chain, tmp_path):
    root, _ = chain
    train(root / "sft", tmp_path / "rl", Rl(mode="full"), "rl", [], tmp_path / "work")
    merge_linear(tmp_path / "rl", tmp_path / "out", 0.5)
    a, b, c = (load_file(p / "model.safetensors") for p in (root / "sft", tmp_path / "rl", tmp_path / "out"))
    assert all(torch.allclose(c[n], (a[n] + b[n]) / 2, atol=1e-6) for n in c)
    rows, frames = probe()
    assert v.verify(tmp_path / "out", v.reference_policy(tmp_path / "rl", MODEL, 0.5), rows, frames, MODEL, 1e-4)[
        "passed"
    ]


def test_linear_merge_refuses_another_lineage(copy, tmp_path):
    found = m.read(copy / "rl")
    m.write(copy / "rl", found.model_copy(update={"ancestors": ("0" * 64,)}))
    with pytest.raises(MergeError, match="not an ancestor"):
        merge_linear(copy / "rl", tmp_path / "out", 0.5)


def test_full_end_is_copied(chain, tmp_path):
    root, _ = chain
    merge_lora(root / "sft", tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == (root / "sft/model.safetensors").read_bytes()


def test_an_adapter_trained_further_stays_on_its_parent(chain, tmp_path):
    root, _ = chain
    opened = train(root / "rl", tmp_path / "rl2", ADAPTER, "rl", ["toy/c/5/0"], tmp_path / "work", seed=1)
    found = m.read(tmp_path / "rl2")
    assert found.parent.path == str(root / "sft") and found.start.path == str(root / "rl")
    assert found.trained_on.templates == ("a", "b", "c")
    merge_lora(tmp_path / "rl2", tmp_path / "out")
    rows, frames = probe()
    assert v.verify(tmp_path / "out", opened.policy, rows, frames, MODEL, 1e-4)["passed"]
    merge_linear(tmp_path / "rl2", tmp_path / "half", 0.5)
    assert v.verify(tmp_path / "half", v.reference_policy(tmp_path / "rl2", MODEL, 0.5), rows, frames, MODEL, 1e-4)[
        "passed"
    ]


def test_full_training_from_an_adapter_folds_it_first(chain, tmp_path):
    root, policy = chain
    half = tmp_path / "start.tmp"  # a kill in the middle of folding leaves this
    half.mkdir()
    shutil.copyfile(root / "base" / "config.json", half / "config.json")
    (half / "model.safetensors").write_bytes(b"cut")
    opened = open_start(root / "rl", MODEL, Rl(mode="full"), 0, tmp_path)
    assert opened.parent == tmp_path / "start" and not half.exists()
    rows, frames = probe()
    for row in rows:
        assert torch.allclose(
            v.probe_logits(opened.policy, row, frames), v.probe_logits(policy, row, frames), atol=1e-4
        )
    write_checkpoint(tmp_path / "out", opened, Rl(mode="full"), stage="rl", seed=0, tasks=TASKS, trained=[])
    assert m.read(tmp_path / "out").kind == "full"
    assert torch.allclose(
        v.probe_logits(load_policy(tmp_path / "out", MODEL), rows[0], frames),
        v.probe_logits(policy, rows[0], frames),
        atol=1e-4,
    )


def test_a_kill_while_folding_leaves_nothing_that_the_next_run_takes_for_the_start(chain, tmp_path, monkeypatch):
    from guiderail.train import start

    root, _ = chain

    def killed(checkpoint, out, dtype):
        (out / "config.json").write_text("{}")
        (out / "model.safetensors").write_bytes(b"cut")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(start, "fold", killed)
        open_start(root / "rl", MODEL, Rl(mode="full"), 0, tmp_path)
    open_start(root / "rl", MODEL, Rl(mode="full"), 0, tmp_path)


def test_reference_is_frozen_and_equal_bit_for_bit(chain):
    root, _ = chain
    rows, frames = probe()
    reference = load_reference(root / "rl", MODEL)
    assert not any(p.requires_grad for p in reference.model.parameters())
    a, b = (p.logprobs(rows, frames).logp for p in (reference, load_policy(root / "rl", MODEL)))
    assert torch.equal(a, b)


def test_dropout_in_rl_is_refused(chain, tmp_path):
    with pytest.raises(TrainableError, match="must be 0"):
        open_start(chain[0] / "sft", MODEL, Rl(lora=Lora(dropout=0.1)), 0, tmp_path)


def test_rewrite_refuses_what_does_not_fit_and_keeps_shards_and_dtype(chain, tmp_path):
    root, _ = chain
    with pytest.raises(WeightsError, match="has no tensor"):
        rewrite(root / "sft", tmp_path / "a", {"nope": lambda t: t})
    with pytest.raises(WeightsError, match="shape"):
        rewrite(root / "sft", tmp_path / "b", {"model.language_model.norm.weight": lambda t: t[:-1]})
    with pytest.raises(WeightsError, match=r"norm.weight: holds numbers that are not finite in torch.float32"):
        rewrite(root / "sft", tmp_path / "d", {"model.language_model.norm.weight": lambda t: t * float("nan")})
    model = make_model(PROCESSOR, 0).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="300KB")
    PROCESSOR.save_pretrained(tmp_path / "sharded")
    rewrite(tmp_path / "sharded", tmp_path / "c", {"model.language_model.norm.weight": lambda t: t.float() + 1})
    assert (
        len(list((tmp_path / "c").glob("*.safetensors"))) == len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    )
    got = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path / "c", dtype="auto")
    assert got.dtype == torch.bfloat16
    assert torch.equal(got.model.language_model.norm.weight, model.model.language_model.norm.weight + 1)


def test_an_index_that_names_a_file_elsewhere_is_refused(chain, tmp_path):
    root, _ = chain
    shutil.copytree(root / "base", tmp_path / "base")
    file = (tmp_path / "base/model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    for name in (str(file), "../elsewhere.safetensors"):
        index = {"weight_map": dict.fromkeys(load_file(file), name)}
        (tmp_path / "base/model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(CheckpointError, match="not a file of this folder"):
            rewrite(tmp_path / "base", tmp_path / "out", {})
        with pytest.raises(CheckpointError, match="not a file of this folder"):
            check_folder(tmp_path / "base")


def test_odd_adapters_are_refused(copy):
    file = copy / "rl/adapter_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "use_rslora": True}))
    with pytest.raises(WeightsError, match="only plain LoRA"):
        adapter_deltas(copy / "rl")


def test_interpolate_by_hand():
    assert interpolate(torch.tensor([1.0]), torch.tensor([3.0]), 0.25).item() == 1.5
    same = torch.tensor([0.1, 1e-30])
    assert torch.equal(interpolate(same, same.clone(), 0.3), same)


@pytest.fixture(scope="module")
def half_chain(tmp_path_factory):
    """base stored in float16 -> sft (full) -> rl (adapter), both trained in float32."""
    root = tmp_path_factory.mktemp("half")
    make_model(PROCESSOR, 0).half().save_pretrained(root / "base")
    PROCESSOR.save_pretrained(root / "base")
    train(root / "base", root / "sft", FULL, "sft", [], root / "work")
    train(root / "sft", root / "rl", ADAPTER, "rl", [], root / "work")
    return root


def test_nothing_is_rounded_to_the_dtype_of_a_float16_base(half_chain, tmp_path):
    root = half_chain
    opened = open_start(root / "base", MODEL, FULL, 0, tmp_path)
    nudge(opened)
    base, sft = load_file(root / "base/model.safetensors"), load_file(root / "sft/model.safetensors")
    assert {t.dtype for t in base.values()} == {torch.float16} and {t.dtype for t in sft.values()} == {torch.float32}
    assert all(torch.equal(sft[n], x) for n, x in opened.learner.named.items())
    assert all(torch.equal(sft[n], base[n].float()) for n in base if n not in opened.learner.named)
    assert Qwen3VLForConditionalGeneration.from_pretrained(root / "sft", dtype="auto").dtype == torch.float32
    merge_lora(root / "rl", tmp_path / "out", dtype=torch.float32)
    rows, frames = probe()
    found = v.verify(tmp_path / "out", v.reference_policy(root / "rl", MODEL, None), rows, frames, MODEL, 1e-4)
    assert found["max_abs_logit_difference"] < 1e-4


def test_an_adapter_on_a_float16_base_is_merged_in_the_dtype_asked_for(half_chain, tmp_path):
    root = half_chain
    opened = train(root / "base", tmp_path / "rl", ADAPTER, "rl", [], tmp_path / "work")
    merge_lora(tmp_path / "rl", tmp_path / "out", dtype=torch.float32)
    rows, frames = probe()
    v.verify(tmp_path / "out", opened.policy, rows, frames, MODEL, 1e-4)
    merge_lora(tmp_path / "rl", tmp_path / "rounded")  # in the parent's dtype, float16
    with pytest.raises(v.VerifyError, match="logits differ by"):
        v.verify(tmp_path / "rounded", opened.policy, rows, frames, MODEL, 1e-4)


def test_weights_trained_in_a_narrower_dtype_do_not_narrow_the_others(chain, tmp_path):
    """A float32 base trained in bfloat16: its vision tower stays float32."""
    root, _ = chain
    narrow = {"model.language_model.norm.weight": torch.full((48,), 0.3, dtype=torch.bfloat16)}
    save_full(root / "base", tmp_path / "out", narrow)
    base, got = load_file(root / "base/model.safetensors"), load_file(tmp_path / "out/model.safetensors")
    name = "model.visual.patch_embed.proj.weight"
    assert torch.equal(got[name], base[name])
    assert torch.equal(got["model.language_model.norm.weight"], narrow["model.language_model.norm.weight"].float())


def test_the_index_of_widened_shards_tells_their_size(tmp_path):
    make_model(PROCESSOR, 0).half().save_pretrained(tmp_path / "sharded", max_shard_size="200KB")
    rewrite(tmp_path / "sharded", tmp_path / "out", {}, torch.float32)
    before, after = (
        json.loads((tmp_path / d / "model.safetensors.index.json").read_text()) for d in ("sharded", "out")
    )
    assert after["metadata"]["total_size"] == 2 * before["metadata"]["total_size"]
    assert after["weight_map"] == before["weight_map"]
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "float32"
