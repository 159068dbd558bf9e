"""Memory of a process tree: shared pages once, and what happens where PSS cannot be read."""

import builtins
import subprocess
import sys

import psutil
import pytest

from guiderail.stages import meter

MIB = 2**20
SHARED = """
import mmap, os, sys, time
shared = mmap.mmap(-1, 100 * 2**20)
shared.write(b"x" * len(shared))
for _ in range(3):
    if os.fork() == 0:
        shared[:: mmap.PAGESIZE]  # touch every page
        print(flush=True)
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""


@pytest.fixture
def family():
    """A process and three children that share 100 MiB."""
    with subprocess.Popen([sys.executable, "-c", SHARED], stdout=subprocess.PIPE) as p:
        for _ in range(3):
            assert p.stdout.readline()
        tree = psutil.Process(p.pid)
        members = [tree, *tree.children(recursive=True)]
        yield tree
        for m in members:
            m.kill()


def test_shared_pages_count_once_in_pss_and_four_times_in_rss(family):
    pss, rss = meter.tree_memory(family)
    assert rss > 400 * MIB
    assert 100 * MIB < pss < 200 * MIB


def test_pss_agrees_with_the_sum_over_all_mappings(family):
    own = psutil.Process(family.pid).memory_full_info().pss
    assert meter.pss(family.pid) == pytest.approx(own, rel=0.01)


def test_unreadable_pss_falls_back_to_rss(family, monkeypatch):
    real = builtins.open
    hidden = {family.pid}

    def refusing(path, *args, **kw):
        if any(str(path) == f"/proc/{pid}/smaps_rollup" for pid in hidden):
            raise PermissionError(path)
        return real(path, *args, **kw)

    monkeypatch.setattr(builtins, "open", refusing)
    mixed, rss = meter.tree_memory(family)
    assert mixed > 100 * MIB + family.memory_info().rss * 0.7  # the parent with all of its pages, the children shared
    hidden |= {p.pid for p in family.children()}
    assert meter.tree_memory(family) == (None, rss)


def test_cost_leaves_pss_out_where_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(meter, "pss", lambda pid: None)
    with meter.Meter(tmp_path / "cost.json") as m:
        pass
    cost = m.stop()
    assert "peak_pss_bytes" not in cost and cost["peak_rss_bytes"] > MIB


def test_sampling_is_at_most_once_a_second_and_slower_when_it_is_dear(tmp_path, monkeypatch):
    waits = []
    clock = iter(range(0, 1000, 2))  # every look at the clock is two seconds after the one before
    m = meter.Meter(tmp_path / "cost.json")
    monkeypatch.setattr(m._done, "wait", lambda s: waits.append(s) or True)
    m._sample()
    monkeypatch.setattr(meter.time, "monotonic", lambda: next(clock))
    m._sample()
    assert waits[0] >= 1.0 and waits[1] == pytest.approx(40.0)
