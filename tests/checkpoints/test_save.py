"""Atomic folders and resumable state."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from guiderail.checkpoints.save import BusyError, State, StateError, load_state, publish, save_state


def state(step):
    weights = {"w": torch.arange(6.0).view(2, 3) * step, "v": torch.arange(6.0).view(2, 3).t()}
    return State(step, {"weights": weights, "optimizer": {}}, {"note": "ü", "x": 0.1})


def test_round_trip_is_exact_and_restores_the_generator(tmp_path):
    torch.manual_seed(5)
    want = state(3)
    save_state(tmp_path, want)
    drawn = torch.rand(4)
    torch.manual_seed(6)
    found = load_state(tmp_path)
    assert found.step == 3 and found.meta == want.meta and found.tensors["optimizer"] == {}
    assert all(torch.equal(found.tensors["weights"][k], v) for k, v in want.tensors["weights"].items())
    assert torch.equal(torch.rand(4), drawn)


def test_newest_wins_old_ones_go_and_nothing_is_none(tmp_path):
    assert load_state(tmp_path) is None
    for k in (1, 2, 3, 10):
        save_state(tmp_path, state(k))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state-00000003", "state-00000010"]
    assert load_state(tmp_path).step == 10


@pytest.mark.parametrize("text", ["", "[]", '{"step": 1}', '{"step": "x", "files": {}, "meta": {}}', "\xff"])
def test_a_damaged_head_is_told_by_name(tmp_path, text):
    save_state(tmp_path, state(1))
    (tmp_path / "state-00000001/state.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(StateError, match=r"state.json: damaged \(\w+\); delete .*state-00000001 and resume"):
        load_state(tmp_path)


def test_half_written_state_is_ignored(tmp_path):
    save_state(tmp_path, state(1))
    half = tmp_path / "state-00000002.tmp"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"torn")
    assert load_state(tmp_path).step == 1
    save_state(tmp_path, state(2))
    assert load_state(tmp_path).step == 2 and not half.exists()


def test_flipped_bit_is_refused(tmp_path):
    folder = save_state(tmp_path, state(1))
    file = folder / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(StateError, match=r"weights.safetensors: damaged .* delete"):
        load_state(tmp_path)


def test_no_pickle_on_disk(tmp_path):
    folder = save_state(tmp_path, state(1))
    assert {p.suffix for p in folder.iterdir()} == {".safetensors", ".json"}


def test_publish_never_shows_a_half_and_never_overwrites(tmp_path):
    final = tmp_path / "out"
    with pytest.raises(RuntimeError):
        publish(final, lambda d: (_ for _ in ()).throw(RuntimeError()))
    assert not final.exists()
    publish(final, lambda d: (d / "a").write_text("1") and None)
    assert (final / "a").read_text() == "1" and [p.name for p in tmp_path.iterdir()] == ["out"]
    with pytest.raises(FileExistsError):
        publish(final, lambda d: None)


def test_kill_while_writing_leaves_the_previous_state(tmp_path):
    save_state(tmp_path, state(1))
    code = (
        "import os,signal,sys\nfrom pathlib import Path\nfrom guiderail.checkpoints import save\n"
        "real=save.fsync_tree\nsave.fsync_tree=lambda d: os.kill(os.getpid(),signal.SIGKILL)\n"
        "import torch\nsave.save_state(Path(sys.argv[1]), save.State(2,{'weights':{'w':torch.zeros(3)}},{}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == -signal.SIGKILL
    assert load_state(tmp_path).step == 1


def test_two_writers_at_a_time_do_not_mix(tmp_path):
    final = tmp_path / "x"

    def write(beside):
        (beside / "a").write_text("first")
        with pytest.raises(BusyError, match="another process is writing"):
            publish(final, lambda other: (other / "a").write_text("second"))
        (beside / "b").write_text("first")

    publish(final, write)
    assert {f.name: f.read_text() for f in final.iterdir()} == {"a": "first", "b": "first"}
    assert [f.name for f in tmp_path.iterdir()] == ["x"]
