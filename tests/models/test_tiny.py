"""The tiny model's tokenizer and processor, and its way to disk and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

from guiderail.models import tiny
from guiderail.models.sizing import ImageSizing

TOKENIZER = tiny.build_tokenizer()
PROCESSOR = tiny.build_processor(TOKENIZER)


def pieces(text: str) -> list[str]:
    return [TOKENIZER.decode([i]) for i in TOKENIZER(text, add_special_tokens=False)["input_ids"]]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_every_text_comes_back(text):
    ids = TOKENIZER(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize(
    "word", ["submit", "Submit", "SUBMIT", "lorem", "Lorem", "James", "magenta", "x=0.475", "y=1.000"]
)
def test_words_and_points_are_one_token(word):
    assert pieces(word) == [word]


def test_a_click_is_made_of_phrases_words_and_points():
    text = 'Action: click "Submit"\nCLICK(x=0.475, y=0.250)'
    assert pieces(text) == ["Action: ", 'click "', "Submit", '"\n', "CLICK(", "x=0.475", ", ", "y=0.250", ")"]


def test_a_word_inside_another_is_spelled():
    assert pieces("cancelx") == list("cancelx")


def test_frames_are_not_resized_and_white_is_zero():
    values = np.random.default_rng(0).integers(0, 256, (224, 160, 3), dtype=np.uint8)
    out = PROCESSOR.image_processor(images=[Image.fromarray(values)], return_tensors="np")
    assert out["image_grid_thw"].tolist() == [[1, 14, 10]]
    assert ImageSizing.from_processor(PROCESSOR).tokens(160, 224) == 35
    got = np.asarray(out["pixel_values"]).reshape(7, 5, 2, 2, 3, 2, 16, 16)  # token row, col, quarter, colour, time
    # [7, 2, 16, 5, 2, 16, 3] pixels -> the same axes
    want = ((values / 255 - 1) / 0.5).reshape(7, 2, 16, 5, 2, 16, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    for time in range(2):
        np.testing.assert_allclose(got[:, :, :, :, :, time], want, atol=1e-6)
    white = PROCESSOR.image_processor(images=[Image.new("RGB", (160, 224), "white")], return_tensors="np")
    assert np.abs(np.asarray(white["pixel_values"])).max() == 0


def test_saved_and_loaded_are_equal(tmp_path, capfd):
    model = tiny.build_model(TOKENIZER, hidden=48, layers=1, vision_layers=3)
    tiny.save(model, PROCESSOR, str(tmp_path))
    assert capfd.readouterr() == ("", "")  # no progress bar
    loaded = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path, local_files_only=True)
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(v, after[k]) for k, v in before.items())
    processor = AutoProcessor.from_pretrained(tmp_path, local_files_only=True)
    text = '<|im_start|>user\nclick "Ok"  é\n'
    assert processor.tokenizer(text)["input_ids"] == TOKENIZER(text)["input_ids"]
    assert list(processor.image_processor.image_mean) == [1.0] * 3
    assert processor.tokenizer.eos_token == "<|im_end|>"


@pytest.mark.parametrize("sizes", [{"hidden": 100}, {"vision_layers": 2}])
def test_sizes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(ValueError, match="multiple of 48"):
        tiny.build_model(TOKENIZER, **sizes)
