"""The state judge against recorded pages along the expert's way, and against steps that lead elsewhere."""

import asyncio
import gc
import json
from pathlib import Path

import pytest

from guiderail.actions.types import Click, Finish, Type
from guiderail.envs.types import Observation
from guiderail.rewards.progress import LONGEST, ProgressJudge, plan, progress
from guiderail.rollout.judging import Judged, Votes
from guiderail.tasks.experts.scene import snap
from guiderail.tasks.miniwob import TEMPLATES
from guiderail.tasks.types import TaskSpec

EPISODES = json.loads((Path(__file__).parents[1] / "tasks" / "oracles.json").read_text(encoding="utf-8"))
NOWHERE = Click(0.985, 0.985)


def recorded(name):
    """(template, instruction, pages, the expert's rounded actions) of a recorded episode."""
    e = next(e for e in EPISODES if e["template"] == name)
    template, pages, actions = TEMPLATES[name], [s["oracle"] for s in e["steps"]], []
    for k, page in enumerate(pages):
        actions.append(snap(template.expert(page, e["instruction"], k, actions)[0]))
    return template, e["instruction"], pages, actions


@pytest.mark.parametrize("name", [e["template"] for e in EPISODES if len(e["steps"]) > 1])
def test_every_step_of_the_expert_is_progress(name):
    template, said, pages, actions = recorded(name)
    for k in range(len(actions) - 1):
        assert progress(template, pages[k], pages[k + 1], said, actions[:k], actions[k]) == (True, True), k


@pytest.mark.parametrize("name", [e["template"] for e in EPISODES])
def test_a_click_on_nothing_is_no_progress(name):
    """The page stays as it was, whatever the expert counts by (its own clicks, what is checked, what is typed)."""
    template, said, pages, actions = recorded(name)
    for k, page in enumerate(pages):
        assert progress(template, page, page, said, actions[:k], NOWHERE) == (False, False)
        assert progress(template, page, page, said, actions[:k], Type("of no use")) == (False, False)


def test_plan_ends():
    template, said, pages, actions = recorded("login-user")
    assert [type(a).__name__ for a in plan(template, pages[0], said, [])] == ["Click", "Type", "Click", "Type", "Click"]
    assert len(plan(template, pages[-1], said, actions[:-1])) == 1
    assert all(len(plan(TEMPLATES[e["template"]], e["steps"][0]["oracle"], e["instruction"], [])) < LONGEST
               for e in EPISODES)  # fmt: skip


def test_order_counts_where_the_task_says_so():
    template, said, pages, actions = recorded("click-button-sequence")
    assert progress(template, pages[0], pages[0], said, [], actions[1]) == (False, False)
    template, said, pages, actions = recorded("click-checkboxes")
    last = actions[-2]  # a box, before Submit
    assert progress(template, pages[0], pages[0], said, [], last) == (True, True)
    assert progress(template, pages[0], pages[0], said, [last], last) == (False, False)  # ticked again


def test_typing_before_the_field_has_the_focus_is_no_progress():
    template, said, pages, actions = recorded("enter-text")
    assert progress(template, pages[0], pages[0], said, [], actions[1]) == (False, False)
    assert progress(template, pages[1], pages[1], said, actions[:1], Type("another text")) == (False, False)


def test_what_the_page_reveals_is_progress_by_itself():
    """Another way to the same end: the link is visible, though no step of the plan was done."""
    template, said, pages, _ = recorded("click-collapsible-2-nodelay")
    assert progress(template, pages[0], pages[-1], said, [], NOWHERE) == (True, False)
    assert progress(template, pages[0], [], said, [], NOWHERE) == (False, False)  # an empty page is not the end


class Page:
    def __init__(self, pages):
        self.pages = list(pages)

    async def oracle(self):
        return self.pages.pop(0)


def votes(name, steps):
    """Votes of the judge on (action, page after, ended, success) steps from the first recorded page."""
    _, said, pages, _ = recorded(name)
    env, seen = Page([pages[0], *(after for _, after, ended, _ in steps if not ended)]), Observation("f", 1, 1, said, 0)

    async def go():
        watch = await ProgressJudge().start(TaskSpec("miniwob", name, 1), seen, env, 0)
        return [await (await watch.step(Judged(k, seen, seen, a, "", "", ended, success)))
                for k, (a, _, ended, success) in enumerate(steps)]  # fmt: skip

    return asyncio.run(go())


def test_the_page_has_the_last_word():
    _, _, pages, actions = recorded("enter-text")
    good = [(actions[0], pages[1], False, None), (NOWHERE, pages[1], False, None), (actions[1], pages[2], False, None)]
    assert votes("enter-text", [*good, (NOWHERE, None, True, True)]) == [
        Votes((1,)), Votes((-1,)), Votes((1,)), Votes((1,))
    ]  # fmt: skip
    assert votes("enter-text", [*good, (actions[2], None, True, False)])[-1] == Votes((-1,))
    assert votes("enter-text", [(Finish("success"), None, True, None)]) == [Votes()]  # nobody could tell


@pytest.mark.filterwarnings("error")
def test_an_episode_that_is_stopped_leaves_no_vote_unasked(recwarn):
    """A stage that ends by a signal drops its episodes: a coroutine would complain of that on the terminal."""
    _, said, pages, actions = recorded("enter-text")
    seen = Observation("f", 1, 1, said, 0)

    async def stopped():
        watch = await ProgressJudge().start(TaskSpec("miniwob", "enter-text", 1), seen, Page(pages), 0)
        await watch.step(Judged(0, seen, seen, actions[0], "", "", False, None))
        two = [await watch.step(Judged(k, seen, seen, NOWHERE, "", "", True, True)) for k in (1, 2)]
        return await asyncio.gather(*two)

    assert asyncio.run(stopped()) == [Votes((1,)), Votes((1,))]
    gc.collect()
    assert [str(w.message) for w in recwarn] == []


def test_a_vote_is_plus_or_minus_one():
    with pytest.raises(ValueError, match="a vote"):
        Votes((0,))
