"""Pretraining: rows as the agent's prompts have them, labels, the shortcuts against the library, resume."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from guiderail.models import tiny
from guiderail.models.features import vision_forward
from guiderail.models.prompts import PromptBuilder
from guiderail.params import ParamError, Params
from guiderail.stages.pretrain_options import DEFAULTS, read_options
from guiderail.train.pages import Target
from guiderail.train.pretrain import STATE, train
from guiderail.train.pretrain_data import PageSet
from guiderail.train.pretrain_model import GRID_THW, FoldedPatches, text_forward
from guiderail.train.pretrain_rows import FORMS, KINDS, LETTERS, WRITE, RowMaker, dense_labels, letter_labels, slot_of

TOKENIZER = tiny.build_tokenizer()
PAGE = [
    Target("word", "OK", 80, 105, 20, 10),
    Target("word", "hq7", 40, 150, 24, 10),
    Target("textbox", "textbox", 60, 60, 100, 20),
    Target("textbox", "textbox", 60, 90, 100, 20),
    Target("checkbox", "yes", 20, 180, 12, 12),
    Target("shape", "red box", 120, 200, 20, 20),
    Target("x", "X", 140, 56, 12, 12),
]
ORACLES = json.loads((Path(__file__).parents[1] / "tasks" / "oracles.json").read_text())


def model(layers=1, seed=0):
    torch.set_num_threads(1)
    return tiny.build_model(TOKENIZER, hidden=48, layers=layers, vision_layers=3, seed=seed)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("form", ["pointing", "pair", "typing"])
def test_rows_have_the_ids_of_the_agents_prompts(form, seed):
    maker = RowMaker(TOKENIZER, seed)
    row = maker.pair(0, PAGE, 1, PAGE) if form == "pair" else getattr(maker, form)(0, PAGE)
    text = TOKENIZER.decode(row.ids)
    (instruction,) = re.findall(r"user\n(.+)\n<\|vision_start", text)
    answers = re.findall(r"assistant\n(.+?)<\|im_end\|>", text, flags=re.S)
    assert len(answers) == len(row.pages)
    builder = PromptBuilder(TOKENIZER, Params().prompt, lambda w, h: 35)
    (want,) = builder.demo_rows(instruction, [(f"f{i}", 160, 224, a) for i, a in enumerate(answers)])
    assert list(want.ids) == row.ids
    assert len(row.weight) == len(row.ids)
    learned = {i for i, w in enumerate(row.weight) if w > 0}
    assert learned == {i for a, b in want.spans for i in range(a, b)}


def test_instructions_are_worded_unlike_the_benchmarks():
    name = r'(".*"|the textbox|textbox \d+|the X|the \w+ \w+|the (checkbox|radio) ".*")'
    forms = [re.escape(f).replace(r"\{\}", name) for f in FORMS]
    forms += [re.escape(f).replace(r"\{\}", '".*"') + '( (by|near|beside|not) ".*")?' for f in WRITE]
    asked = {o["instruction"] for o in ORACLES}
    assert len(asked) > 20
    for text in asked:
        assert not [f for f in forms if re.fullmatch(f, text.rstrip("."), flags=re.I)], text
    assert re.fullmatch(forms[0], 'find "OK"')


def test_slots_follow_the_vision_towers_order():
    assert [slot_of(0, 0), slot_of(16, 0), slot_of(0, 16), slot_of(32, 0), slot_of(0, 32)] == [0, 1, 2, 4, 20]
    assert slot_of(159, 223) == 139 == slot_of(160, 224)


def test_dense_labels_name_what_each_quarter_shows():
    kinds, rows = dense_labels(TOKENIZER, PAGE[:1] + PAGE[5:6], lambda s: TOKENIZER(s)["input_ids"])
    one = TOKENIZER.convert_tokens_to_ids
    # (80, 105): column 5, row 6 of 16 pixels: token row 3, column 2, right upper quarter
    at = (3 * 5 + 2) * 4 + 1
    box = (6 * 5 + 3) * 4 + 1  # (120, 200): column 7, row 12
    assert {int(i): KINDS[kinds[i]] for i in np.flatnonzero(kinds)} == {at: "word", box: "shape"}
    found = {int(r[0]): r[1:].tolist() for r in rows}
    assert found[at] == [one("OK"), one("O"), one("K"), -100, one("x=0.500"), one("y=0.475")]
    assert found[box] == [
        one("red"),
        one("box"),
        -100,
        -100,
        one("x=0.750"),
        one("y=0.900"),
    ]


def test_letters_are_labelled_where_they_are_drawn():
    labels = letter_labels([Target("word", "ll", 32, 8, 32, 10)])  # two equal letters, centres at x = 24 and 40
    assert [(int(s), LETTERS[k]) for s, k in np.argwhere(labels > 0)] == [(1, "l"), (4, "l")]
    assert letter_labels([Target("textbox", "textbox", 32, 8, 32, 10)]).sum() == 0


def test_folded_patches_unfold_to_the_same_output():
    visual = model().model.visual.eval()
    conv, original = visual.patch_embed.proj, visual.patch_embed
    one = torch.rand(140, 3, 1, 256, generator=torch.Generator().manual_seed(0)) * 2 - 2
    both = one.expand(-1, -1, 2, -1).reshape(140, -1)
    folded = FoldedPatches(conv)
    with torch.no_grad():
        visual.patch_embed = folded
        folded.proj.weight.add_(torch.randn(folded.proj.weight.shape) * 0.02)
        folded.proj.bias.add_(0.1)
        quick = vision_forward(visual, one.reshape(140, 768), GRID_THW)
        visual.patch_embed = original
        assert not torch.allclose(vision_forward(visual, both, GRID_THW), quick, atol=1e-3)
        folded.unfold_into(conv)
        torch.testing.assert_close(vision_forward(visual, both, GRID_THW), quick, atol=1e-5, rtol=0)
        library = visual(both, grid_thw=torch.tensor([GRID_THW])).pooler_output
    torch.testing.assert_close(torch.as_tensor(library).view(quick[0, 0].shape), quick[0, 0], atol=1e-5, rtol=0)


def test_text_forward_is_the_librarys_forward():
    net = model(layers=2).eval()
    maker = RowMaker(TOKENIZER, 0)
    rows = [maker.pair(0, PAGE, 1, PAGE), maker.pointing(2, PAGE)]
    pixels = torch.rand(3, 140, 1536, generator=torch.Generator().manual_seed(0)) * 2 - 2
    with torch.no_grad():
        got, targets, _ = text_forward(net, rows, vision_forward(net.model.visual, pixels.view(-1, 1536), GRID_THW))
        want, ids_wanted = [], []
        for row in rows:
            ids = torch.tensor([row.ids])
            logits = net(
                input_ids=ids,
                pixel_values=pixels[row.pages].view(-1, 1536),
                image_grid_thw=torch.tensor([GRID_THW] * len(row.pages)),
                mm_token_type_ids=(ids == net.config.image_token_id).int(),
            ).logits[0]
            at = [i for i, w in enumerate(row.weight) if w > 0]
            want.append(logits[[i - 1 for i in at]])
            ids_wanted += [row.ids[i] for i in at]
    torch.testing.assert_close(got, torch.cat(want), atol=1e-4, rtol=0)
    assert targets.tolist() == ids_wanted


class Killed(Exception):
    pass


def run(folder, work, stop_at=None):
    """Train 10 steps; returns the weights. `stop_at`: die when that many steps are done and saved."""
    work.mkdir(exist_ok=True)
    net = model()

    def say(line):
        said.append(line)

    said: list[str] = []
    real = torch.optim.AdamW.step
    count = 0

    def step(self, *args, **kw):
        nonlocal count
        if count == stop_at:
            raise Killed
        count += 1
        return real(self, *args, **kw)

    with pytest.MonkeyPatch.context() as patch:
        if stop_at is not None:
            patch.setattr(torch.optim.AdamW, "step", step)
        train(
            net, TOKENIZER, folder, work, steps=10, batch=3, lr=1e-3, listing=0.5, read_first=4, glyph_steps=2, seed=3,
            say=say, available=lambda: ["a", "b"], save_every=5, held_batches=1,
        )  # fmt: skip
    return net.state_dict(), said


@pytest.fixture
def shards(tmp_path):
    rng = np.random.default_rng(0)
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", rng.integers(0, 256, (4, 140, 768), dtype=np.uint8))
        page = [[t.kind, t.name, t.x, t.y, t.w, t.h] for t in PAGE]
        (tmp_path / f"{name}.json").write_text(json.dumps([page] * 4))
    return tmp_path


def test_a_killed_training_goes_on_bit_for_bit(shards):
    straight, _ = run(shards, shards / "straight")
    with pytest.raises(Killed):
        run(shards, shards / "killed", stop_at=2 + 7)  # after 2 steps of glyphs and 7 of pages: two are lost
    assert (shards / "killed" / STATE).exists()
    resumed, said = run(shards, shards / "killed")
    assert said == ["resumed at step 5"]
    assert straight.keys() == resumed.keys() and "patch_embed.proj.weight" in " ".join(straight)
    assert [k for k, v in straight.items() if not torch.equal(v, resumed[k])] == []
    assert not torch.equal(straight["lm_head.weight"], model().state_dict()["lm_head.weight"])


def test_no_shard_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no shard of pages"):
        PageSet(tmp_path, [])


def test_white_is_zero(shards):
    np.save(shards / "a.npy", np.full((4, 140, 768), 255, dtype=np.uint8))
    assert PageSet(shards, ["a"]).patches([1, 3]).abs().max() == 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"minutes": "5"}, "no such option. Did you mean steps. Options: shards"),
        ({"steps": "many"}, "must be a whole number"),
        ({"lr": "fast"}, "must be a number"),
        ({"shards": "1"}, "must be at least 2"),
        ({"listing": "1"}, "must be below 1"),
    ],
)
def test_a_wrong_option_is_told(given, told):
    with pytest.raises(ParamError, match=told):
        read_options(given)


def test_options_are_read():
    assert read_options({"steps": "7", "lr": "2e-3"}) == DEFAULTS | {"steps": 7, "lr": 2e-3}
