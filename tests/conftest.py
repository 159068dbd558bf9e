"""Shared fixtures; the doubles themselves are in tests/tinyvlm.py."""

from __future__ import annotations

import os
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import settings

from tinyvlm import NumberedFrames, make_model, make_processor, prompt_ids

# Files whose tests take a minute or more begin first, so that at the end no worker waits for another.
SLOW = ("test_engines.py", "test_engines_killed.py", "test_engines_alone.py", "test_status.py", "test_profiles.py",
        "test_bounded_memory.py", "test_distributed.py", "test_rl.py")  # fmt: skip

settings.register_profile("untimed", deadline=None)  # a busy machine is no defect
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`SLOW` files first, in that order; the others as they are."""
    rank = {name: i for i, name in enumerate(SLOW)}
    items.sort(key=lambda item: rank.get(item.path.name, len(SLOW)))


@pytest.fixture(scope="session")
def processor():
    return make_processor()


@pytest.fixture(scope="session")
def tiny(processor):
    """(policy, frames, ids): a frozen random policy, a frame maker and a prompt maker. Do not change its weights."""
    from guiderail.models.policy import Policy

    return SimpleNamespace(
        policy=Policy(make_model(processor), processor),
        frames=NumberedFrames(),
        ids=lambda text, cells=(35,): prompt_ids(processor, text, cells),
    )
