"""Experts against recorded pages (whose reward was 1) and against small pages written by hand."""

import json
import re
from pathlib import Path

import pytest

from guiderail.actions.types import Click, Type
from guiderail.tasks.experts.moves import THOUGHT_FORMS
from guiderail.tasks.experts.scene import snap
from guiderail.tasks.miniwob import TEMPLATES, expert

EPISODES = json.loads(Path(__file__).with_name("oracles.json").read_text(encoding="utf-8"))


def fact(tag, x=0.0, y=0.3, w=0.2, h=0.05, text="", id="", classes=(), **attrs):
    """One oracle fact; its words stand side by side in its box."""
    words = text.split()
    width = w / max(1, len(words))
    return {
        "tag": tag, "id": id, "classes": list(classes), "text": text,
        "attrs": {k.replace("_", "-"): v for k, v in attrs.items()},
        "x": x, "y": y, "w": w, "h": h,
        "words": [{"text": t, "x": x + i * width, "y": y, "w": width, "h": h} for i, t in enumerate(words)],
    }  # fmt: skip


def thoughts(template, instruction, *oracles):
    """Thoughts of the expert on a page that looks like oracles[i] at step i."""
    history, out = [], []
    for i, oracle in enumerate(oracles):
        decision = expert(template)(oracle, instruction, i, history)
        if decision is None:
            out.append(None)
            break
        history.append(snap(decision[0]))
        out.append(decision[1])
    return out


def test_every_template_is_recorded():
    assert {e["template"] for e in EPISODES} == set(TEMPLATES)


@pytest.mark.parametrize("episode", EPISODES, ids=lambda e: e["template"])
def test_recorded_episode_is_replayed(episode):
    template = TEMPLATES[episode["template"]]
    history = []
    for step, seen in enumerate(episode["steps"]):
        action, thought = template.expert(seen["oracle"], episode["instruction"], step, history)
        assert thought == seen["thought"]
        assert THOUGHT_FORMS.fullmatch(thought)
        history.append(snap(action))
    assert template.steps[0] <= len(history) <= template.steps[1] <= template.max_steps - 2


@pytest.mark.parametrize("episode", EPISODES, ids=lambda e: e["template"])
def test_clicks_land_on_what_the_thought_names(episode):
    """Also after rounding: the point lies in an element that shows the words of the thought."""
    template, history = TEMPLATES[episode["template"]], []
    for step, seen in enumerate(episode["steps"]):
        action, thought = template.expert(seen["oracle"], episode["instruction"], step, history)
        action = snap(action)
        history.append(action)
        named = re.fullmatch(r'click "(.+)"', thought)
        if named:
            under = [
                f for f in seen["oracle"]
                if f["x"] <= action.x <= f["x"] + f["w"] and f["y"] <= action.y <= f["y"] + f["h"]
            ]  # fmt: skip
            assert any(f["text"].startswith(named[1]) for f in under), thought
        written = re.fullmatch(r'type "(.*)"', thought)
        if written:
            assert action == Type(written[1])


@pytest.mark.parametrize("wording", range(3))
@pytest.mark.parametrize("episode", EPISODES, ids=lambda e: e["template"])
def test_every_wording_says_the_same(episode, wording):
    template, oracle = TEMPLATES[episode["template"]], episode["steps"][0]["oracle"]
    reworded = template.reword(episode["instruction"], wording)
    assert (reworded == episode["instruction"]) == (wording == 0)
    assert template.expert(oracle, reworded, 0) == template.expert(oracle, episode["instruction"], 0)


def test_checkboxes_go_top_to_bottom_whatever_the_order_asked():
    page = [
        f for i, name in enumerate(("aa", "bb", "cc"))
        for f in (fact("label", 0.0, 0.3 + 0.1 * i, 0.5, 0.06, name),
                  fact("input", 0.05, 0.31 + 0.1 * i, 0.05, 0.04, type="checkbox"))
    ] + [fact("button", 0.0, 0.8, 0.4, 0.1, "Submit", id="subbtn")]  # fmt: skip
    assert thoughts("click-checkboxes", "Select cc, aa and click Submit.", page, page, page) == [
        'click the checkbox "aa"', 'click the checkbox "cc"', 'click "Submit"',
    ]  # fmt: skip
    assert thoughts("click-checkboxes", "Select nothing and click Submit.", page) == ['click "Submit"']


def test_a_half_hidden_button_is_clicked_where_it_shows():
    """TWO (drawn later) hides the words of ONE; only ONE's left edge is free."""
    page = [fact("button", 0.3, 0.5, 0.25, 0.2, "ONE"), fact("button", 0.375, 0.45, 0.25, 0.3, "TWO")]
    action, thought = expert("click-test-2")(page, "Click button ONE.", 0, [])
    assert thought == 'click "ONE"'
    assert snap(action) == action
    assert 0.3 < action.x < 0.375 and 0.5 < action.y < 0.7


def test_a_hidden_button_is_declined():
    page = [fact("button", 0.3, 0.5, 0.25, 0.2, "ONE"), fact("button", 0.29, 0.49, 0.27, 0.22, "TWO")]
    assert expert("click-test-2")(page, "Click button ONE.", 0, []) is None


@pytest.mark.parametrize(
    ("what", "thought"),
    [("large red shape", "click the red square"), ("triangle", "click the blue triangle"), ("small item", 'click "b"'),
     ("green digit", 'click "7"'), ("b", 'click "b"'), ("large letter", 'click "Q"')],
)  # fmt: skip
def test_shapes_are_told_apart(what, thought):
    page = [
        fact("text", 0.1, 0.3, 0.03, 0.05, "b", fill="rgb(255, 0, 0)", font_size="10px"),
        fact("text", 0.3, 0.4, 0.06, 0.1, "7", fill="rgb(0, 128, 0)", font_size="20px"),
        fact("text", 0.5, 0.5, 0.06, 0.1, "Q", fill="rgb(255, 0, 0)", font_size="20px"),
        fact("rect", 0.2, 0.6, 0.125, 0.095, fill="rgb(255, 0, 0)"),
        fact("polygon", 0.4, 0.7, 0.0625, 0.048, fill="rgb(0, 0, 255)"),
    ]
    assert thoughts("click-shape", f"Click on a {what}", page) == [thought]


@pytest.mark.parametrize(("problem", "answer"), [("3 - 6 = ", "-3"), ("7 x 6 = ", "42"), ("9 + 9 = ", "18")])
def test_arithmetic(problem, answer):
    page = [
        fact("div", 0.0, 0.3, 0.5, 0.1, problem, id="math-problem"),
        fact("input", 0.6, 0.3, 0.3, 0.1, type="text"),
        fact("button", 0.2, 0.6, 0.5, 0.1, "Submit", id="subbtn"),
    ]
    said = "Solve the math problem and type your answer into the textbox. Press submit when done."
    assert thoughts("simple-arithmetic", said, page, page, page) == [
        "click the textbox", f'type "{answer}"', 'click "Submit"',
    ]  # fmt: skip


def test_parity_of_negative_numbers():
    page = [fact("button", 0.4, 0.8, 0.3, 0.1, "Submit", id="submit")]
    for i, n in enumerate(("-3", "-2", "0")):
        y = 0.3 + 0.15 * i
        page += [fact("button", 0.1, y, 0.2, 0.1, "Odd", classes=["odd"]),
                 fact("div", 0.4, y, 0.2, 0.1, n, classes=["display-number"]),
                 fact("button", 0.7, y, 0.2, 0.1, "Even", classes=["even"])]  # fmt: skip
    said = "Mark the numbers below as odd or even and press submit when done."
    assert thoughts("odd-or-even", said, *[page] * 4) == [
        'click "Odd"', 'click "Even"', 'click "Even"', 'click "Submit"',
    ]  # fmt: skip


def test_a_popup_is_cancelled_and_the_field_clicked_again():
    form = [
        fact("input", 0.1, 0.3, 0.6, 0.08, type="text"),
        fact("input", 0.1, 0.5, 0.6, 0.08, type="password"),
        fact("button", 0.1, 0.7, 0.4, 0.1, "OK", id="subbtn"),
    ]
    popup = [*form, fact("button", 0.5, 0.4, 0.3, 0.08, "Cancel", id="popup-cancel")]
    said = 'Enter the username "vina" and the password "US" into the text fields and press login.'
    assert thoughts("login-user-popup", said, form, popup, form, form, form, form, form) == [
        "click textbox 1", 'click "Cancel"', "click textbox 1", 'type "vina"',
        "click textbox 2", 'type "US"', 'click "OK"',
    ]  # fmt: skip


def test_searching_opens_each_tab_once_and_gives_up():
    tabs = [fact("a", 0.1 + 0.2 * i, 0.3, 0.15, 0.05, f"Tab #{i + 1}") for i in range(3)]
    said = 'Switch between the tabs to find and click on the link "sed".'
    assert thoughts("click-tab-2", said, tabs, tabs, tabs) == ['click "Tab #2"', 'click "Tab #3"', None]
    shown = [*tabs, fact("span", 0.1, 0.6, 0.1, 0.05, "sed", classes=["alink"])]
    assert thoughts("click-tab-2", said, tabs, shown) == ['click "Tab #2"', 'click "sed"']


def test_the_first_two_words_stand_for_a_long_label():
    page = [fact("button", 0.1, 0.5, 0.6, 0.1, "Press me right now")]
    action, thought = expert("click-test")(page, "Click the button.", 0, [])
    assert thought == 'click "Press me"'
    assert (action.x, action.y) == pytest.approx((0.25, 0.55))


def test_off_screen_elements_are_not_clicked():
    page = [fact("button", 0.1, 1.2, 0.3, 0.1, "ok"), fact("button", 0.1, 0.8, 0.3, 0.1, "ok")]
    action, _ = expert("click-button")(page, 'Click on the "ok" button.', 0, [])
    assert action == Click(pytest.approx(0.25), pytest.approx(0.85))


def test_one_click_experts_stop_after_it():
    page = [fact("button", 0.1, 0.5, 0.3, 0.1, "ok")]
    assert expert("click-button")(page, 'Click on the "ok" button.', 1, [Click(0.9, 0.9)]) is None
