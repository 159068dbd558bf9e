"""Nothing of a browser outlives its owner, however the owner ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from guiderail.envs.guard import descendants, remove
from guiderail.envs.launch import PREFIX, sweep

OWNER = """
import asyncio, os, sys
from guiderail.envs.browser import Browser
from guiderail.tasks.types import TaskSpec
async def main():
    browser = await Browser.launch()
    env = await browser.new_env()
    await env.reset(TaskSpec("miniwob", "click-test", 0))
    print(browser.pid, browser._running.scratch, flush=True)
    await env._send("Runtime.evaluate", {"expression": "while (true) {}"})
asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids: list[int], timeout_s: float = 20) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if not any(alive(p) for p in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.browser
@pytest.mark.parametrize("victim", ["owner", "guard", "owner's group"])
def test_kill_9_leaves_no_process(victim: str) -> None:
    """A page hangs in a loop meanwhile: renderers that would not listen die too."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert owner.stdout is not None
        pid, scratch = owner.stdout.readline().split()
        pids = [int(pid), *descendants(int(pid))]
        assert len(pids) > 3  # guard, browser, zygote, renderer, ...
        if victim == "owner's group":
            os.killpg(owner.pid, signal.SIGKILL)
        else:
            os.kill(owner.pid if victim == "owner" else int(pid), signal.SIGKILL)
        assert gone(pids)
        if victim != "guard":
            assert not Path(scratch).exists()
    finally:
        owner.kill()
        owner.wait()


def test_sweep_removes_what_a_dead_owner_left(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, mine, other = (tmp_path / f"{PREFIX}{dead.pid}-a", tmp_path / f"{PREFIX}{os.getpid()}-b", tmp_path / "other")
    for folder in (left, mine, other):
        folder.mkdir()
    sweep(tmp_path)
    assert (left.exists(), mine.exists(), other.exists()) == (False, True, True)


def test_a_folder_is_removed_but_not_what_its_links_lead_to(tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept", tmp_path / "folder"
    kept.mkdir()
    (kept / "file").touch()
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "f").touch()
    (folder / "a" / "b" / "link").symlink_to(kept)
    (folder / "file-link").symlink_to(kept / "file")
    remove(str(folder))
    assert not folder.exists() and (kept / "file").exists()
    remove(str(folder))  # there is none: nothing to do
