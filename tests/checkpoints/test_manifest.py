"""The base model's manifest: shipped, checked on loading, made again by one command; foreign models need none."""

import shutil
from pathlib import Path

import pytest

from guiderail.checkpoints import manifest as m
from guiderail.cli import main
from guiderail.params import Model
from guiderail.params_train import Sft
from guiderail.provenance import manifest_digest
from guiderail.train.start import open_start

BASE = Path(__file__).parents[2] / "assets/tiny-vlm"
CPU = Model(device="cpu")


@pytest.fixture
def base(tmp_path):
    return Path(shutil.copytree(BASE, tmp_path / "base"))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_the_base_that_ships_is_the_one_its_manifest_records():
    """After replacing the weights: `guiderail manifest`."""
    found = m.verify_files(BASE)
    assert found.stage == "pretrain" and found.ancestors == () and found.trained_on == m.TrainedOn()
    assert "model.safetensors" in found.files and "README.md" not in found.files


def test_a_flipped_byte_is_found_when_a_stage_opens_the_base(base, tmp_path, capsys):
    flip(base / "model.safetensors")
    with pytest.raises(m.ManifestError, match=r"changed \['model.safetensors'\]"):
        open_start(base, CPU, Sft(), 0, tmp_path / "work")
    assert main(["manifest", str(base)]) == 0
    assert "manifest.json: 7 files" in capsys.readouterr().out
    open_start(base, CPU, Sft(), 0, tmp_path / "work")


def test_the_card_may_be_edited(base):
    (base / "README.md").write_text("another card")
    m.verify_files(base)


def test_a_model_from_elsewhere_loads_without_a_manifest_and_the_record_says_so(base, tmp_path):
    assert manifest_digest(base) == m.sha256_file(BASE / m.FILE)
    (base / m.FILE).unlink()
    open_start(base, CPU, Sft(), 0, tmp_path / "work")
    assert manifest_digest(base) is None
    assert m.lineage(base) == ((m.weights_digest(base),), m.TrainedOn())


def test_a_checkpoint_of_the_chain_is_not_signed_again(base, capsys):
    m.write(base, m.Manifest(kind="full", stage="sft"))
    before = (base / m.FILE).read_bytes()
    assert main(["manifest", str(base)]) == 1
    assert "a checkpoint of stage sft; a new manifest would lose its lineage" in capsys.readouterr().err
    assert (base / m.FILE).read_bytes() == before


def test_options_of_the_making_are_kept_when_it_is_signed_again(base):
    m.sign_base(base, {"steps": 7})
    assert main(["manifest", str(base)]) == 0
    assert m.read(base).method == {"steps": 7}


def test_a_manifest_that_is_no_text_is_refused(base):
    (base / m.FILE).write_bytes(b"\xff")
    with pytest.raises(m.ManifestError, match="not a manifest this version reads"):
        m.read(base)
