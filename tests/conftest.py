"""Shared fixtures; the doubles themselves are in tests/tinyvlm.py."""

from __future__ import annotations

import os
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import settings

from tinyvlm import NumberedFrames, make_model, make_processor, prompt_ids

settings.register_profile("untimed", deadline=None)  # a busy machine is no defect
settings.load_profile("untimed")


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
