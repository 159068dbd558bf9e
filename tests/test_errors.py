"""What the machine refuses is told in one line; other errors are not dressed up."""

import errno
import os
import resource
import subprocess
import sys

import pytest
import torch

from guiderail.checkpoints.tensors import write_tensors
from guiderail.errors import refused_by_machine


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "results/x: the disk is full. Free some space, then run the same command again"),
        (errno.EACCES, "results/x: permission denied. Give yourself the right to write there, or work elsewhere"),
        (errno.ENOTDIR, "results/x: a file stands where a folder should be. Move it away"),
    ],
)
def test_the_line_names_place_fault_and_remedy(code, words):
    assert refused_by_machine(OSError(code, "x", "results/x")).startswith(words)


def test_without_a_name_the_line_begins_with_the_fault():
    assert refused_by_machine(OSError(errno.ENOSPC, "x")).startswith("the disk is full.")


@pytest.mark.parametrize("e", [FileNotFoundError(errno.ENOENT, "x", "y"), ConnectionError("refused"), OSError("?")])
def test_what_may_be_our_fault_keeps_its_traceback(e):
    assert refused_by_machine(e) is None


def test_a_full_disk_under_safetensors_is_an_error_of_the_system(tmp_path):
    """A limit on file size stands in for the full disk: the library reports both alike."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError) as e:
            write_tensors({"w": torch.zeros(10_000)}, tmp_path / "w.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (e.value.errno, e.value.filename) == (errno.EFBIG, str(tmp_path / "w.safetensors"))
    assert "ulimit -f" in refused_by_machine(e.value)


def test_a_listing_whose_reader_is_gone_ends_quietly():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "guiderail", "preset"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
