"""The lock of a killed Snakemake does not outlive it; that of a living one does."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from guiderail.workflow import alone

HOLDER = """
    import sys
    from pathlib import Path
    from guiderail.workflow import alone
    folder = Path(sys.argv[1])
    assert alone.enter(folder) is not None
    (folder / "locks" / "0.output.lock").write_text("results/x")
    print("ready", flush=True)
    sys.stdin.read()
"""


def locked(folder: Path) -> list[str]:
    return sorted(f.name for f in (folder / "locks").iterdir())


def test_a_lock_is_taken_away_once_its_owner_was_killed(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None and owner.stdout.readline() == b"ready\n"
    try:
        second = alone.enter(tmp_path)
        assert second is not None and locked(tmp_path) == ["0.output.lock"]  # it lives
        third = alone.enter(tmp_path)
        assert third is not None and locked(tmp_path) == ["0.output.lock"]
    finally:
        owner.kill()
        owner.communicate()
    fourth = alone.enter(tmp_path)
    assert fourth is not None and locked(tmp_path) == ["0.output.lock"]  # the two may have locks of their own
    for held in (second, third, fourth):
        os.close(held)
    last = alone.enter(tmp_path)
    assert last is not None and locked(tmp_path) == []
    os.close(last)
