"""Whether real desktops can be started here, and one to work on."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from guiderail.pool.vm import packages, sandbox
from guiderail.pool.vm.launch import scratch_root
from guiderail.pool.vm.sandbox import Limits
from guiderail.pool.vm.settle import Rule
from guiderail.pool.vm.slot import Slot, make

LACKING = packages.missing()
NO_DESKTOP = f"no desktop packages ({', '.join(LACKING)}): guiderail doctor --install desktop" if LACKING else ""
NO_WALLS = NO_DESKTOP or sandbox.refusal()
NO_EDITOR = NO_WALLS or ("" if shutil.which("mousepad") else "mousepad is not installed")
needs_desktop = pytest.mark.skipif(bool(NO_DESKTOP), reason=NO_DESKTOP or "-")
needs_walls = pytest.mark.skipif(bool(NO_WALLS), reason=NO_WALLS or "-")
needs_editor = pytest.mark.skipif(bool(NO_EDITOR), reason=NO_EDITOR or "-")
SIZE = (800, 600)
SMALL = Limits(memory_mb=1024, home_mb=48, tmp_mb=16, processes=120)


@contextmanager
def slot(*, walls: bool = True, limits: Limits = SMALL) -> Iterator[Slot]:
    """A desktop of this process; nothing of it is left afterwards."""
    folder = Path(tempfile.mkdtemp(dir=scratch_root(SIZE)))
    try:
        made = make(folder, SIZE, limits, Rule(), walls=walls)
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
