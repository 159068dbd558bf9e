"""Suites: defaults and refusals."""

import pytest

from guiderail.params import ParamError, Provision
from guiderail.tasks.suites import choose, get_suite


def test_defaults():
    suite, train, heldout = choose(Provision())
    assert (suite.name, train, heldout) == ("miniwob", suite.train, suite.heldout)
    assert len(train) + len(heldout) >= 26 and len(heldout) >= 6
    assert not set(train) & set(heldout)


def test_lists_are_taken_in_the_suites_order():
    _, train, heldout = choose(Provision(templates=["enter-text", "click-test"], heldout=["login-user", "click-tab"]))
    assert (train, heldout) == (("click-test", "enter-text"), ("click-tab", "login-user"))


def test_a_default_gives_way_to_the_list_that_is_named():
    _, train, heldout = choose(Provision(heldout=["click-tab"]))
    assert "click-tab" not in train and heldout == ("click-tab",)
    _, train, heldout = choose(Provision(templates=["click-test-2"]))
    assert train == ("click-test-2",) and "click-test-2" not in heldout


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"suite": "minwob"}, r"^provision\.suite = 'minwob': no such suite\. Did you mean miniwob\?$"),
        ({"templates": ["click-buton"]}, r"^provision\.templates = 'click-buton': .* Did you mean click-button"),
        ({"heldout": ["zzz"]}, r"^provision\.heldout = 'zzz': no such template in miniwob\. Known: click-test,"),
        ({"templates": ["click-tab", "click-tab"]}, r"^provision\.templates = 'click-tab': named 2 times"),
        ({"templates": ["click-tab"], "heldout": ["click-tab"]}, r"^provision\.heldout = \['click-tab'\]: also in"),
        ({"wordings": 4}, r"^provision\.wordings = 4: suite miniwob has 3 wordings a template\. Choose 1 to 3\.$"),
        ({"heldout": list(get_suite("miniwob").train)}, r"^provision\.templates = \[\]: nothing is left"),
    ],
)
def test_what_cannot_work_is_refused_by_key_value_and_remedy(params, message):
    with pytest.raises(ParamError, match=message):
        choose(Provision(**params))
