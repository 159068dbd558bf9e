"""Following: rows as the agent's prompts have them, names in order, the vision tower still, resume."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from test_pretrain import PAGE, TOKENIZER, Killed, model

from guiderail.models.prompts import PromptBuilder
from guiderail.params import Params
from guiderail.train.pretrain_data import PageSet
from guiderail.train.pretrain_follow import STATE, Follower, learn_following

CALL = "CLICK(x=0.500, y=0.500)"


def parts(row):
    """(instruction, thoughts that are done, answers) of a row, read from its text."""
    text = TOKENIZER.decode(row.ids)
    asked = text.partition("user\n")[2].partition("\n<|vision_start")[0]
    instruction, _, done = asked.partition("\nDone: ")
    return instruction, done.split("; ") if done else [], re.findall(r"assistant\n(.+?)<\|im_end\|>", text, flags=re.S)


def test_rows_have_the_ids_of_the_agents_prompts():
    """Also those of a chunk that starts in mid-episode, where the done steps are told in words."""
    fresh = anchored = 0
    for seed in range(150):
        row = Follower(TOKENIZER, seed).ordered(0, PAGE)
        if row is None:
            continue
        instruction, done, answers = parts(row)
        if not done:
            steps, chunk, fresh = [], 3, fresh + 1
        elif len(answers) <= len(done):
            steps, chunk, anchored = [f"Action: {t}\n{CALL}" for t in done], len(done), anchored + 1
        else:
            continue
        params = Params().prompt.model_copy(update={"chunk_steps": chunk})
        builder = PromptBuilder(TOKENIZER, params, lambda w, h: 35)
        rows = builder.demo_rows(instruction, [(f"f{i}", 160, 224, a) for i, a in enumerate([*steps, *answers])])
        assert list(rows[-1].ids) == row.ids and len(rows) == 1 + bool(done)
        learned = {i for i, w in enumerate(row.weight) if w > 0}
        assert learned == {i for a, b in rows[-1].spans for i in range(a, b)}
    assert fresh > 20 and anchored > 5


def test_what_is_asked_is_done_in_order():
    """Every thought names something the instruction holds, at or after the place of the one before."""
    several = 0
    for seed in range(150):
        row = Follower(TOKENIZER, seed).ordered(0, PAGE)
        if row is None:
            continue
        instruction, done, answers = parts(row)
        thoughts = [*done, *(re.findall(r"Action: (.+)\n", a)[0] for a in answers)]
        where = []
        for thought in thoughts:
            name = re.sub(r"^click (the )?", "", thought)
            bare = re.sub(r'^\w+ (?=")', "", name).strip('"')
            at = [m.start() for m in re.finditer(re.escape(bare), instruction, flags=re.I)]
            assert at, (instruction, thought)
            where.append(at)
        first = -1
        for at in where:  # the earliest place after the last one: there is an increasing choice
            first = min(a for a in at if a > first)
        several += len(thoughts) > 1
    assert several > 20


def test_a_label_is_never_asked_for_beside_its_box():
    label = [*PAGE, PAGE[4].__class__("word", "yes", 50, 180, 20, 10)]
    for seed in range(200):
        row = Follower(TOKENIZER, seed).ordered(0, label)
        assert row is None or 'click "yes"' not in TOKENIZER.decode(row.ids)


@pytest.fixture
def shards(tmp_path):
    rng = np.random.default_rng(0)
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", rng.integers(0, 256, (4, 140, 768), dtype=np.uint8))
        page = [[t.kind, t.name, t.x, t.y, t.w, t.h] for t in PAGE]
        (tmp_path / f"{name}.json").write_text(json.dumps([page] * 4))
    return tmp_path


def test_a_batch_is_of_like_length_and_over_time_of_all_kinds(shards):
    maker, data = Follower(TOKENIZER, 0), PageSet(shards, ["a"])
    batches = [maker.batch(data, 8) for _ in range(12)]
    assert {len(b) for b in batches} == {8}
    spans = sorted((min(len(r.ids) for r in b), max(len(r.ids) for r in b)) for b in batches)
    assert spans[0][1] < spans[-1][0]  # the shortest batch ends where the longest has not begun
    texts = " ".join(TOKENIZER.decode(r.ids) for b in batches for r in b)
    assert "TYPE(" in texts and "Done: click" in texts and "user\nall\n" in texts


def run(folder, work, stop_at=None):
    """Follow for 6 steps; returns the weights. `stop_at`: die at that step."""
    work.mkdir(exist_ok=True)
    net, said, real, count = model(), [], torch.optim.AdamW.step, 0

    def step(self, *args, **kw):
        nonlocal count
        if count == stop_at:
            raise Killed
        count += 1
        return real(self, *args, **kw)

    with pytest.MonkeyPatch.context() as patch:
        if stop_at is not None:
            patch.setattr(torch.optim.AdamW, "step", step)
        scores = learn_following(
            net, TOKENIZER, folder, work, steps=6, batch=2, lr=1e-3, seed=3, bfloat16=True, shards=["a", "b"],
            say=said.append, save_every=2, held_batches=1,
        )  # fmt: skip
    return net.state_dict(), said, scores


def test_a_killed_training_goes_on_bit_for_bit(shards):
    straight, _, scores = run(shards, shards / "straight")
    with pytest.raises(Killed):
        run(shards, shards / "killed", stop_at=5)
    assert (shards / "killed" / STATE).exists()
    resumed, said, again = run(shards, shards / "killed")
    assert said == ["following: resumed at step 4"] and again == scores
    assert straight.keys() == resumed.keys()
    assert [k for k, v in straight.items() if not torch.equal(v, resumed[k])] == []
    before = model().state_dict()
    moved = {k for k, v in straight.items() if not torch.equal(v, before[k])}
    assert moved and not [k for k in moved if k.startswith("model.visual.")]
