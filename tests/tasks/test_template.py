"""Templates: instructions read and reworded, and refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guiderail.tasks.miniwob import TEMPLATES, reword

WORDS = st.text("abcXYZ019.,#?()[]\\$^é♥", min_size=1, max_size=8)


@given(user=WORDS, password=WORDS, wording=st.integers(0, 2))
def test_rewording_keeps_the_facts(user, password, wording):
    template = TEMPLATES["login-user"]
    said = f'Enter the username "{user}" and the password "{password}" into the text fields and press login.'
    assert template.read(template.reword(said, wording)) == {"user": user, "password": password}


def test_a_repeated_placeholder_reads_the_same_text():
    t = TEMPLATES["enter-password"]
    assert t.read('Enter the password "a1" into both text fields and press submit.') == {"text": "a1"}


@pytest.mark.parametrize(
    ("name", "said", "facts"),
    [
        ("click-tab", "Click on Tab #3.", {"number": "3"}),
        ("click-tab", "Switch to Tab #3.", {"number": "3"}),
        ("click-shape", "Find a large red digit and click it", {"what": "large red digit"}),
    ],
)
def test_an_instruction_is_read_in_any_wording(name, said, facts):
    assert TEMPLATES[name].read(said) == facts


def test_reword_by_name():
    assert reword("click-tab", "Click on Tab #3.", 1) == "Open Tab #3."
    assert reword("click-tab", "Click on Tab #3.", 0) == "Click on Tab #3."


@pytest.mark.parametrize("wording", [-1, 3])
def test_a_wording_that_does_not_exist_is_refused(wording):
    with pytest.raises(ValueError, match=f"wording {wording} does not exist; it has 3"):
        reword("click-tab", "Click on Tab #3.", wording)


def test_a_page_outside_the_suite_has_its_own_words_only():
    assert reword("email-inbox", "Delete it.", 0) == "Delete it."
    with pytest.raises(ValueError, match="email-inbox: wording 1 of a page that is not in the suite"):
        reword("email-inbox", "Delete it.", 1)


def test_a_foreign_instruction_is_refused():
    with pytest.raises(ValueError, match=r"click-tab: instruction 'Dance\.' fits none"):
        TEMPLATES["click-tab"].read("Dance.")


def test_an_incomplete_history_is_refused():
    with pytest.raises(ValueError, match="step 2 with a history of 0 actions"):
        TEMPLATES["click-tab"].expert([], "Click on Tab #3.", 2)


def test_the_table_holds_together():
    for name, t in TEMPLATES.items():
        assert name == t.name
        assert t.max_steps == t.steps[1] + 2
        assert t.threshold == 1.0
        assert len(t.wordings) == len(set(t.wordings)) == 3
    assert sum(t.steps[1] > 1 for t in TEMPLATES.values()) >= 9
