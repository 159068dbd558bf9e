"""GPUs get numbers: no device is lent twice, and every way for a job to end gives it back."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from guiderail.workflow import gpu_slots
from guiderail.workflow.gpu_slots import SlotError, devices, take

HOLD = "import sys,time; from guiderail.workflow.gpu_slots import take; s = take(int(sys.argv[1]), "
HOLD += "{'CUDA_VISIBLE_DEVICES': sys.argv[2]}); print(','.join(s.devices), flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GUIDERAIL_GPU_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setattr(gpu_slots, "POLL_S", 0.02)
    for name in ("CUDA_VISIBLE_DEVICES", gpu_slots.SLURM):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "locks"


@pytest.fixture
def holder():
    """Start a process that takes GPUs; returns it and what it got."""
    started = []

    def start(count, visible):
        p = subprocess.Popen([sys.executable, "-c", HOLD, str(count), visible], stdout=subprocess.PIPE, text=True)
        started.append(p)
        assert p.stdout is not None
        return p, p.stdout.readline().strip()

    yield start
    for p in started:
        p.kill()
        p.wait()


def test_devices_are_those_visible_or_those_the_driver_lists(tmp_path):
    assert devices({"CUDA_VISIBLE_DEVICES": "3, GPU-ab,5"}) == ["3", "GPU-ab", "5"]
    assert devices({"CUDA_VISIBLE_DEVICES": ""}) == [] == devices({"CUDA_VISIBLE_DEVICES": "-1"})
    assert devices({"CUDA_VISIBLE_DEVICES": "0,-1,1"}) == ["0"] and devices({"CUDA_VISIBLE_DEVICES": "1,1"}) == ["1"]
    assert devices({"PATH": str(tmp_path)}) == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '0\\n1\\n'\n")
    tool.chmod(0o755)
    assert devices({"PATH": str(tmp_path)}) == ["0", "1"]


def test_jobs_of_every_shell_of_a_user_share_the_locks(tmp_path, monkeypatch):
    """A session's runtime folder goes at logout, and cron has none."""
    monkeypatch.delenv(gpu_slots.FOLDER_ENV)
    found = set()
    for runtime, tmp in (("", str(tmp_path)), (str(tmp_path), str(tmp_path)), (str(tmp_path), "/tmp")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        monkeypatch.setenv("TMPDIR", tmp)
        monkeypatch.setattr(tempfile, "tempdir", None)
        found.add(gpu_slots.lock_folder())
    assert len(found) == 1
    monkeypatch.setenv(gpu_slots.SLURM, "7")
    assert gpu_slots.lock_folder() not in found


def test_no_device_is_lent_twice_and_closing_gives_back():
    env = {"CUDA_VISIBLE_DEVICES": "0,1,2"}
    one, two = take(1, env), take(2, env)
    assert one.devices == ("0",) and two.devices == ("1", "2")
    assert two.environment() == {"CUDA_VISIBLE_DEVICES": "1,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    one.close()
    assert take(1, env).devices == ("0",)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_job_gives_its_devices_back(holder, sign):
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    process, got = holder(2, "0,1")
    assert got == "0,1"
    os.kill(process.pid, sign)
    process.wait()
    assert take(2, env).devices == ("0", "1")


def test_a_job_waits_for_all_it_needs_and_keeps_no_half(holder):
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    process, got = holder(1, "0,1")
    assert got == "0"
    found = []
    thread = threading.Thread(target=lambda: found.append(take(2, env)))
    thread.start()
    time.sleep(0.3)
    assert not found
    process.kill()
    process.wait()
    thread.join(10)
    assert found[0].devices == ("0", "1")


def test_nothing_is_lent_where_nobody_asks_or_none_are():
    assert take(0, {"CUDA_VISIBLE_DEVICES": "0"}).devices == ()
    assert take(1, {"PATH": ""}).environment() == {}


def test_each_slurm_job_numbers_its_own(monkeypatch, tmp_path):
    monkeypatch.delenv("GUIDERAIL_GPU_LOCKS")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for job in ("7", "8"):  # two jobs of one node, each with a device that it calls 0
        monkeypatch.setenv(gpu_slots.SLURM, job)
        assert take(1, {"CUDA_VISIBLE_DEVICES": "0"}).devices == ("0",)


def test_more_than_the_machine_has_is_refused():
    with pytest.raises(SlotError, match=r"asks for 3 GPUs, this machine lends 2 \(0, 1\)"):
        take(3, {"CUDA_VISIBLE_DEVICES": "0,1"})


def test_the_job_sees_its_devices_and_holds_them_too(tmp_path, monkeypatch):
    from guiderail.workflow import job

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    slots = take(1)
    show = "import os; print('sees', os.environ['CUDA_VISIBLE_DEVICES'], len(os.listdir('/proc/self/fd')))"
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        assert job.run([sys.executable, "-c", show], tmp_path / "log", slots) == (0, False)
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
    assert "sees 4 " in (tmp_path / "log").read_text()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=slots.files)
    slots.close()
    assert take(1).devices == ("5",)  # its holder is gone, but the job's own process is not
    child.kill()
    child.wait()
    assert take(1).devices == ("4",)
