"""Locks: one holder, gone with it, and no traces."""

import multiprocessing as mp
import os
import signal
import threading

import pytest

from guiderail.params import ParamError
from guiderail.stages.execution import _forget
from guiderail.stages.locks import only_one, output_lock


def hold(path, ready):
    with only_one(path, "busy"):
        ready.set()
        signal.pause()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_second_holder_is_refused_until_the_first_is_gone(tmp_path, sign):
    lock = tmp_path / "root" / "outputs" / "x.lock"
    context = mp.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold, args=(lock, ready))
    process.start()
    assert ready.wait(60)
    with pytest.raises(ParamError, match="busy"), only_one(lock, "busy"):
        pass
    assert lock.exists()  # the refused one has not removed it
    os.kill(process.pid, sign)
    process.join()
    with only_one(lock, "busy"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_file_removed_by_its_last_holder_is_made_again(tmp_path, monkeypatch):
    """Another process removes the file between our open and our lock: what we locked is nobody's."""
    import guiderail.stages.locks as locks

    lock, real, calls = tmp_path / "a" / "l", locks.fcntl.flock, []

    def flock(f, flags):
        if not calls:
            lock.unlink()
        calls.append(1)
        real(f, flags)

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    with only_one(lock, "busy"):
        assert lock.exists() and len(calls) == 2


def test_one_place_has_one_lock_however_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    from pathlib import Path

    a, b = output_lock(Path(".work"), Path("results/x")), output_lock(Path(".work"), tmp_path / "results/../results/x")
    assert a == b != output_lock(Path(".work"), Path("results/y"))


def test_two_attempts_of_a_stage_may_end_at_once(tmp_path):
    """Each removes the folder above them both, if the other has left it empty: neither may fail after its work."""
    barrier, failed = threading.Barrier(2, timeout=60), []

    def end(name):
        for _ in range(200):
            work = tmp_path / ".work" / "sft" / name
            work.mkdir(parents=True, exist_ok=True)
            barrier.wait()
            try:
                _forget(work)
            except OSError as e:
                failed.append(e)
            barrier.wait()

    threads = [threading.Thread(target=end, args=(name,)) for name in ("a", "b")]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == [] and list(tmp_path.iterdir()) == []
