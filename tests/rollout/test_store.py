"""The rollout store: what is written is read back, parts are whole or absent, pandas reads either form."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guiderail.envs.types import Outcome
from guiderail.models.rows import ChunkRow
from guiderail.rollout.store import EPISODES, ROWS, STEPS, read_episodes, stored_parts, write_episodes
from guiderail.rollout.types import Completion, Episode, SamplingParams, StepRecord
from guiderail.seeds import derive_seed
from guiderail.tasks.types import TaskSpec

OUTCOMES = [
    Outcome("success", "env_done", 1.0),
    Outcome("failure", "parse_failure", 0.0, 'no call in "x\n"'),
    Outcome("infra_error", "crash", None, "gone"),
    Outcome("judge_error", "judge", None, "nan"),
]


def episode(n: int, text: str = "CLICK", steps: int = 2, logprob: float = -0.1) -> Episode:
    records = tuple(
        StepRecord(
            step=t,
            frame=f"{t:064x}",
            chunk=t // 2,
            prompt_len=40 + t,
            completion=Completion((1, 2, 300), (logprob, logprob / 3, 0.0), "stop", text),
            sampling=SamplingParams(0.7, 0.9, 12, derive_seed(n, t)),
            thought=text,
            action='{"kind":"Click"}',
            parse_error="",
            policy_version=4,
            seconds_policy=0.25,
            seconds_env=0.125,
            votes=((), (1,), (-1, 1))[(n + t) % 3],
            votes_invalid=n % 2,
            reward=(None, 0.55)[t % 2],
            matched=(None, True, False)[(n + t) % 3],
            patched=("", "on_policy")[n % 2],
        )
        for t in range(steps)
    )
    row = ChunkRow(
        ids=np.arange(50), frames=("f0", "f1"), spans=((40, 43), (47, 50)),
        logprobs=np.array([logprob] * 6, np.float32), steps=(0, 1), temperature=0.7,
    )  # fmt: skip
    task = TaskSpec("fake", "numbers", n, "heldout", 2, "form", 9, 0.5)
    rows = (row,) if steps else ()
    effects = (None, (), ("made x", text))[n % 3]
    return Episode(f"id{n}", f"g{n // 2}", n % 2, n % 3, task, text, OUTCOMES[n % 4], records, rows, "last", effects)


def same(a: Episode, b: Episode) -> bool:
    def plain(e: Episode) -> Episode:
        return dataclasses.replace(e, rows=())

    return plain(a) == plain(b) and all(
        (x.ids == y.ids).all() and x.ids.dtype == y.ids.dtype == np.int64
        and x.logprobs.tobytes() == y.logprobs.tobytes()
        and (x.frames, x.spans, x.steps, x.temperature) == (y.frames, y.spans, y.steps, y.temperature)
        for x, y in zip(a.rows, b.rows, strict=True)
    )  # fmt: skip


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=4), st.floats(-50, 0, allow_nan=False))
@settings(max_examples=25, deadline=None)
def test_round_trip(tmp_path_factory, texts, logprob):
    folder = tmp_path_factory.mktemp("store")
    wrote = [episode(i, t, steps=i, logprob=logprob) for i, t in enumerate(texts)]
    write_episodes(folder, wrote)
    read = read_episodes(folder)
    assert len(read) == len(wrote) and all(same(a, b) for a, b in zip(wrote, read, strict=True))


def test_columns_are_those_documented(tmp_path):
    write_episodes(tmp_path, [episode(0), episode(2)])
    episodes, steps, rows = (pd.read_parquet(tmp_path / f"{n}.parquet") for n in ("episodes", "steps", "rows"))
    assert list(episodes.columns) == EPISODES.names and list(steps.columns) == STEPS.names and list(rows) == ROWS.names
    assert episodes.reward.isna().tolist() == [False, True]  # an infra error has no reward, not 0
    assert episodes.n_tokens.tolist() == [6, 6] and episodes.task_id[0] == "fake/numbers/0/2"
    assert steps.frame[1] == f"{1:064x}" and steps.ids[0].tolist() == [1, 2, 300] and len(steps) == 4
    assert rows.span_start[0].tolist() == [40, 47]


def test_a_table_of_an_older_version_has_no_side_effects(tmp_path):
    write_episodes(tmp_path, [episode(2)])
    file = tmp_path / "episodes.parquet"
    assert pd.read_parquet(file).side_effects[0].tolist() == ["made x", "CLICK"]
    pq.write_table(pq.read_table(file).drop_columns(["side_effects"]), file)
    assert read_episodes(tmp_path)[0].side_effects is None


def test_parts_append_replace_and_count_only_when_whole(tmp_path):
    write_episodes(tmp_path, [episode(0), episode(1)], part=0)
    write_episodes(tmp_path, [episode(2)], part=3)
    write_episodes(tmp_path, [episode(4)], part=3)  # an iteration done again after a kill
    assert stored_parts(tmp_path) == [0, 3]
    assert [e.id for e in read_episodes(tmp_path)] == ["id0", "id1", "id4"]
    assert [e.id for e in read_episodes(tmp_path, 3)] == ["id4"]
    assert pd.read_parquet(tmp_path / "episodes.parquet").id.tolist() == ["id0", "id1", "id4"]
    with pytest.raises(FileNotFoundError):
        read_episodes(tmp_path / "none")


def test_a_kill_while_writing_leaves_no_part(tmp_path, monkeypatch):
    replace = os.replace

    def killed(source, target):
        if "episodes.parquet" in str(target):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_episodes(tmp_path, [episode(0)], part=0)
    assert stored_parts(tmp_path) == [] and read_episodes(tmp_path) == []
    assert not [p for p in tmp_path.rglob("*.tmp")]


def test_ids_must_differ(tmp_path):
    with pytest.raises(ValueError, match="2 episodes with 1 different ids"):
        write_episodes(tmp_path, [episode(0), episode(0)])
    assert not list(tmp_path.iterdir())


def test_seeds():
    import hashlib

    assert derive_seed("a", 1) == int(hashlib.sha256(b'["a",1]').hexdigest()[:16], 16) // 2
    assert derive_seed("a", "bc") != derive_seed("ab", "c") and derive_seed("1") != derive_seed(1)
    assert min(derive_seed(i) for i in range(2000)) >= 0 and max(derive_seed(i) for i in range(2000)) < 2**63
