"""The registry of suites: which templates a suite has, which it trains on, which it holds out.

Guarantees: a name that does not exist is a ParamError with the parameter's key, the value and the nearest names; the
train and held-out lists a caller gets are disjoint, free of repeats and in the suite's own order.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from guiderail import plugins
from guiderail.params import ParamError, Provision
from guiderail.tasks import osworld_suite
from guiderail.tasks.desktop.suite import TEMPLATES as ON_DESKTOPS
from guiderail.tasks.miniwob import TEMPLATES
from guiderail.tasks.template import Template


@dataclass(frozen=True)
class Suite:
    """Templates under one name; those flagged `heldout` are kept out of training by default.

    open_ended: the screen never ends an episode by itself. The agent does, with a Finish, or its steps are used up; in
    both cases the judge looks at what is there. A Finish(failure) is right where the task cannot be done.
    single: a template has one instance, the same for every seed, so there are no fresh ones.
    pages: HTML of the suite's own pages by template, written as MiniWoB++ writes them; other templates are pages of the
    `miniwob` package, or no pages at all.
    """

    name: str
    templates: Mapping[str, Template]
    open_ended: bool = False
    single: bool = False
    pages: Mapping[str, str] = field(default_factory=dict)

    @property
    def train(self) -> tuple[str, ...]:
        """Default train templates."""
        return tuple(n for n, t in self.templates.items() if not t.heldout)

    @property
    def heldout(self) -> tuple[str, ...]:
        """Default held-out templates."""
        return tuple(n for n, t in self.templates.items() if t.heldout)

    @property
    def wordings(self) -> int:
        """Instruction wordings that every template has (the page's own included)."""
        return min(len(t.wordings) for t in self.templates.values())


SUITES: dict[str, Suite] = {
    "miniwob": Suite("miniwob", TEMPLATES),
    **{name: Suite(name, templates, open_ended=True) for name, templates in ON_DESKTOPS.items()},
}
"""The suites that are always there, by name."""
OSWORLD = "osworld"  # made of the task files in a folder, when it is asked for
DESKTOPS = frozenset((*ON_DESKTOPS, OSWORLD))
"""Suites whose tasks are worked on desktops, not on pages."""


def names() -> tuple[str, ...]:
    """All suites that can be asked for now: those of ours, OSWorld's, and those of loaded plugins."""
    return (*SUITES, OSWORLD, *plugins.names("tasks"))


def own_suite(name: str) -> Suite | None:
    """The suite of the loaded plugin `name`; None when there is none. Raises plugins.PluginError when it cannot be."""
    found = plugins.find("tasks", name)
    if found is None:
        return None
    where = plugins.path_of("tasks", name)
    if name in SUITES or name == OSWORLD:
        raise plugins.PluginError(f"{where}: a suite called {name!r} exists already; rename the file")
    if not isinstance(found, Suite):
        raise plugins.PluginError(f"{where}: SUITE is {type(found).__name__}, must be guiderail.tasks.suites.Suite")
    if found.name != name:
        raise plugins.PluginError(f"{where}: SUITE is called {found.name!r}; it must have the file's name, {name!r}")
    for key, template in found.templates.items():
        if key != template.name:
            raise plugins.PluginError(f"{where}: template {template.name!r} stands under the name {key!r}")
    return found


def get_suite(name: str) -> Suite:
    """The suite `name`. Raises ParamError."""
    if (own := own_suite(name)) is not None:
        return own
    if name == OSWORLD:
        return Suite(OSWORLD, osworld_suite.templates(), open_ended=True, single=True)
    if name not in SUITES:
        raise ParamError(f"provision.suite = {name!r}: no such suite. {_nearest(name, names())}")
    return SUITES[name]


def open_ended(suite: str) -> bool:
    """Whether episodes of the suite called `suite` are ended by the agent; False for a suite that is not listed."""
    if (own := own_suite(suite)) is not None:
        return own.open_ended
    return suite == OSWORLD or (suite in SUITES and SUITES[suite].open_ended)


def choose(params: Provision) -> tuple[Suite, tuple[str, ...], tuple[str, ...]]:
    """The suite of `params` with its train and held-out templates, checked. Raises ParamError.

    Empty lists mean the suite's default; a default never takes what the other list names.
    """
    suite = get_suite(params.suite)
    if params.wordings > suite.wordings:
        raise ParamError(
            f"provision.wordings = {params.wordings}: suite {suite.name} has {suite.wordings} wordings a template. "
            f"Choose 1 to {suite.wordings}."
        )
    train = _named(suite, "provision.templates", params.templates)
    heldout = _named(suite, "provision.heldout", params.heldout)
    both = sorted(set(train) & set(heldout))
    if both:
        raise ParamError(
            f"provision.heldout = {both}: also in provision.templates. A held-out template must not be trained on; "
            "take it out of one of the two."
        )
    train = train or tuple(n for n in suite.train if n not in heldout)
    heldout = heldout or tuple(n for n in suite.heldout if n not in train)
    for key, names in (("templates", train), ("heldout", heldout)):
        if not names:
            raise ParamError(f"provision.{key} = []: nothing is left of the default list. Name at least one template.")
    return suite, train, heldout


def _named(suite: Suite, key: str, names: Sequence[str]) -> tuple[str, ...]:
    """`names` in the suite's order. Raises ParamError on an unknown name or a repeat."""
    for name in names:
        if name not in suite.templates:
            if suite.name == OSWORLD and (why := osworld_suite.why_not(name)):
                raise ParamError(f"{key} = {name!r}: {why}.")
            raise ParamError(f"{key} = {name!r}: no such template in {suite.name}. {_nearest(name, suite.templates)}")
        if names.count(name) > 1:
            raise ParamError(f"{key} = {name!r}: named {names.count(name)} times. Name it once.")
    return tuple(n for n in suite.templates if n in names)


def _nearest(name: str, known: Iterable[str]) -> str:
    """One sentence that offers the names most like `name`, or all of them when none is."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(names)}."
