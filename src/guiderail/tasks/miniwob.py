"""The MiniWoB++ templates guiderail trains and tests on: one row a page, and its expert.

Guarantees: every template here passes its self-test (expert succeeds, doing nothing does not), works with real mouse
and keyboard events in virtual time, and shows its targets without scrolling. Pages come from the `miniwob` package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from guiderail.actions.types import Action
from guiderail.tasks.experts import choosing, pointing, typing
from guiderail.tasks.experts.pointing import once
from guiderail.tasks.experts.scene import Decision
from guiderail.tasks.template import Template

_BUTTON = ('Click on the "{text}" button.', 'Press the button "{text}".', 'Please hit "{text}".')
_SELECT = ("Select {names} and click Submit.", "Check {names}, then press Submit.", "Choose {names} and submit.")
_ENTER = (
    'Enter "{text}" into the text field and press Submit.',
    'Type "{text}" into the textbox, then click Submit.',
    'Write "{text}" and submit it.',
)
_LOGIN = (
    'Enter the username "{user}" and the password "{password}" into the text fields and press login.',
    'Log in as "{user}" with the password "{password}".',
    'Sign in: user "{user}", password "{password}".',
)
_SWITCH = (
    'Switch between the tabs to find and click on the link "{text}".',
    'Find the link "{text}" in one of the tabs and click it.',
    'Open the link "{text}", whichever tab it is in.',
)

_TEMPLATES = (
    # one click
    Template("click-test", "click", (1, 1), 3, once(pointing.only_button),
             ("Click the button.", "Press the button.", "Hit the only button.")),
    Template("click-button", "click", (1, 1), 3, once(pointing.button), _BUTTON),
    Template("click-link", "click", (1, 1), 3, once(pointing.link),
             ('Click on the link "{text}".', 'Follow the link "{text}".', 'Open the link called "{text}".')),
    Template("click-tab", "click", (1, 1), 3, once(pointing.tab),
             ("Click on Tab #{number}.", "Open Tab #{number}.", "Switch to Tab #{number}.")),
    Template("click-dialog", "click", (1, 1), 3, once(pointing.close),
             ('Close the dialog box by clicking the "x".', "Close the dialog.", 'Click the "x" of the dialog.')),
    Template("focus-text", "click", (1, 1), 3, once(pointing.textbox),
             ("Focus into the textbox.", "Click the textbox.", "Put the cursor into the textbox.")),
    Template("click-color", "visual", (1, 1), 3, once(pointing.colour_box),
             ("Click on the {colour} colored box.", "Click the {colour} box.", "Choose the box that is {colour}.")),
    Template("click-widget", "visual", (1, 1), 3, once(pointing.widget),
             ('Click on a "{kind}" widget.', 'Click any "{kind}".', 'Find a "{kind}" and click it.')),
    Template("grid-coordinate", "visual", (1, 1), 3, once(pointing.grid_point),
             ("Click on the grid coordinate ({x},{y}).", "Click the point ({x},{y}).", "Mark ({x},{y}) on the grid.")),
    Template("click-shape", "visual", (1, 1), 3, once(pointing.shape),
             ("Click on a {what}", "Find a {what} and click it", "Choose a {what}")),
    Template("identify-shape", "visual", (1, 1), 3, once(pointing.figure_name),
             ("Click the button that best describes the figure below.", "What is the figure? Click its name.",
              "Name the figure.")),
    # several clicks
    Template("click-option", "form", (2, 2), 4, choosing.options, _SELECT),
    Template("click-checkboxes", "form", (1, 7), 9, choosing.options, _SELECT),
    Template("click-button-sequence", "form", (2, 2), 4, choosing.sequence,
             ("Click button {first}, then click button {second}.", "Press {first} and then {second}.",
              "First {first}, second {second}.")),
    Template("odd-or-even", "form", (4, 4), 6, choosing.parity,
             ("Mark the numbers below as odd or even and press submit when done.",
              "Say of each number if it is odd or even.", "Odd or even? Mark each number and submit.")),
    Template("click-collapsible-nodelay", "search", (2, 2), 4, choosing.expand,
             ("Expand the section below and click submit.", "Open the section, then submit.",
              "Unfold it and press Submit.")),
    Template("click-tab-2", "search", (1, 3), 5, choosing.tabs, _SWITCH),
    Template("click-collapsible-2-nodelay", "search", (2, 4), 6, choosing.sections,
             ('Expand the sections below, to find and click on the link "{text}".',
              'Find the link "{text}" in one of the sections and click it.',
              'Open the link "{text}", wherever it is.')),
    Template("navigate-tree", "search", (1, 6), 8, choosing.tree,
             ('Navigate through the file tree. Find and click on the folder or file named "{text}".',
              'Find "{text}" in the tree and click it.', 'Open "{text}".')),
    # typing
    Template("enter-text", "text", (3, 3), 5, typing.fields("text"), _ENTER),
    Template("enter-text-2", "text", (3, 3), 5, typing.cased,
             ('Type "{text}" in all {case} case letters in the text input and press Submit.',
              'Enter "{text}" in {case} case, then click Submit.', 'Write "{text}" in {case} case and submit it.')),
    Template("enter-password", "text", (5, 5), 7, typing.fields("text", "text"),
             ('Enter the password "{text}" into both text fields and press submit.',
              'Set the password "{text}" and verify it, then submit.', 'Use "{text}" as the password, twice.')),
    Template("login-user", "text", (5, 5), 7, typing.fields("user", "password"), _LOGIN),
    Template("simple-arithmetic", "text", (3, 3), 5, typing.arithmetic,
             ("Solve the math problem and type your answer into the textbox. Press submit when done.",
              "Type the answer, then click Submit.", "Work it out and submit the answer.")),
    Template("read-table", "text", (3, 3), 5, typing.lookup,
             ("Enter the value of {key} into the text field and press Submit.",
              "What is the {key}? Type it, then click Submit.", "Copy the {key} from the table and submit it.")),
    # held out of training by default: their skills are those of a page above, their looks or words are not
    Template("click-test-2", "click", (1, 1), 3, once(pointing.button),
             ("Click button {text}.", "Press the button {text}.", "Please hit {text}."), heldout=True),
    Template("click-dialog-2", "click", (1, 1), 3, once(pointing.dialog_button),
             ('Click the button in the dialog box labeled "{text}".', 'Press "{text}" in the dialog.',
              'Answer the dialog with "{text}".'), heldout=True),
    Template("focus-text-2", "click", (1, 1), 3, once(pointing.textbox),
             ("Focus into the {ordinal} input textbox.", "Click the {ordinal} textbox.",
              "Put the cursor into the {ordinal} textbox."), heldout=True),
    Template("unicode-test", "click", (1, 1), 3, once(pointing.button), _BUTTON, heldout=True),
    Template("click-tab-2-easy", "search", (1, 1), 3, choosing.tabs, _SWITCH, heldout=True),
    Template("click-checkboxes-transfer", "form", (1, 4), 6, choosing.options, _SELECT, heldout=True),
    Template("enter-text-dynamic", "text", (3, 3), 5, typing.fields("text"), _ENTER, heldout=True),
    Template("login-user-popup", "text", (5, 7), 9, typing.login_with_popup, _LOGIN, heldout=True),
)  # fmt: skip

TEMPLATES: dict[str, Template] = {t.name: t for t in _TEMPLATES}
"""All templates by name."""


def expert(template: str) -> Callable[[Sequence[Mapping[str, Any]], str, int, Sequence[Action]], Decision | None]:
    """The expert of `template`: (oracle, instruction, step, history) -> (action, thought) or None. Raises KeyError."""
    return TEMPLATES[template].expert


def check_wording(template: str, wording: int) -> None:
    """Check that `template` has wording number `wording`; every page has its own, 0. Raises ValueError."""
    if wording and template not in TEMPLATES:
        raise ValueError(f"{template}: wording {wording} of a page that is not in the suite; it has its own only (0)")
    if wording:
        TEMPLATES[template].check_wording(wording)


def reword(template: str, instruction: str, wording: int) -> str:
    """`instruction` of a page in wording number `wording` (0 = the page's own words, of any page).

    Raises ValueError when there is no such wording or the instruction is not the template's.
    """
    check_wording(template, wording)
    return TEMPLATES[template].reword(instruction, wording) if wording else instruction
