"""The self-test against a page made of a dict, and against the real pages."""

import asyncio
from types import SimpleNamespace

import pytest

from guiderail.actions.types import Click, Wait
from guiderail.params import Provision
from guiderail.tasks.selftest import random_clicks, run_expert, selftest
from guiderail.tasks.splits import build_manifest, tasks
from guiderail.tasks.suites import get_suite
from guiderail.tasks.types import TaskSpec

BUTTON = {"tag": "button", "id": "", "classes": [], "text": "ok", "attrs": {}, "x": 0.4, "y": 0.4, "w": 0.2, "h": 0.2,
          "words": [{"text": "ok", "x": 0.45, "y": 0.45, "w": 0.1, "h": 0.1}]}  # fmt: skip


class Page:
    """A page with one button. `pays`: reward of pressing it; `idle_pays`: reward of waiting."""

    def __init__(self, pays=1.0, idle_pays=None, shows=True):
        self.pays, self.idle_pays, self.shows = pays, idle_pays, shows

    def _result(self):
        return SimpleNamespace(done=self.done, observation=SimpleNamespace(instruction='Click on the "ok" button.'))

    async def reset(self, task):
        self.done, self.reward = False, 0.0
        return self._result()

    async def step(self, action):
        assert not self.done
        if isinstance(action, Click) and 0.4 <= action.x <= 0.6 and 0.4 <= action.y <= 0.6:
            self.done, self.reward = True, self.pays
        if isinstance(action, Wait) and self.idle_pays is not None:
            self.done, self.reward = True, self.idle_pays
        return self._result()

    async def evaluate(self):
        return self.reward

    async def oracle(self):
        return [BUTTON] if self.shows else []


def specs(n=20, template="click-button"):
    return [TaskSpec("miniwob", template, seed, max_steps=3) for seed in range(n)]


def test_a_sound_page_passes():
    out = asyncio.run(selftest(Page(), specs()))
    assert (out["ok"], out["expert"], out["noop"], out["steps"], out["failed"]) == (True, 1.0, 0.0, 1.0, [])
    assert 0 <= out["random"] < 0.4  # three clicks on 4 % of the screen: 12 %
    assert out["thoughts"] == ['click "ok"']


@pytest.mark.parametrize("page", [Page(pays=0.1), Page(pays=-1.0), Page(idle_pays=1.0)])
def test_a_page_the_expert_misses_or_that_pays_idlers_fails(page):
    out = asyncio.run(selftest(page, specs(2)))
    assert not out["ok"] and out["failed"] == [t.id for t in specs(2)]


def test_an_expert_that_always_declines_fails():
    out = asyncio.run(selftest(Page(shows=False), specs(2)))
    assert (out["ok"], out["expert"]) == (False, 0.0)
    assert out["failed"] == out["declined"] == [t.id for t in specs(2)]


def test_an_instance_with_a_hidden_target_is_replaced():
    class Scattered(Page):
        async def reset(self, task):
            self.shows = task.seed != 0
            return await super().reset(task)

    out = asyncio.run(selftest(Scattered(), specs(2)))
    assert (out["ok"], out["expert"], out["failed"], out["declined"]) == (True, 1.0, [], [specs(1)[0].id])


def test_a_penalty_that_ends_the_episode_while_waiting_is_no_success():
    assert asyncio.run(selftest(Page(idle_pays=-1.0), specs(1)))["noop"] == 0.0


def test_templates_must_not_be_mixed():
    with pytest.raises(ValueError, match="one template"):
        asyncio.run(selftest(Page(), specs(1) + specs(1, "click-link")))
    with pytest.raises(ValueError, match="one template"):
        asyncio.run(selftest(Page(), []))


def test_random_clicks_are_reproducible_and_differ_between_tasks():
    a, b = specs(2)
    assert random_clicks(a) == random_clicks(a) != random_clicks(b)
    assert len(random_clicks(a)) == a.max_steps


@pytest.mark.browser
def test_every_template_passes_on_the_real_pages():
    """Three instances each: the expert succeeds, doing nothing does not, chance seldom does."""
    from guiderail.envs.browser import Browser

    names = list(get_suite("miniwob").templates)
    manifest = build_manifest(
        Provision(templates=names[:-1], heldout=names[-1:], train_instances=3, heldout_instances=3)
    )
    drawn = {n: [t for s in ("train", "heldout") for t in tasks(manifest, s) if t.template == n] for n in names}

    async def run():
        async with Browser.launch() as browser:
            env = await browser.new_env()
            return [await selftest(env, drawn[n]) for n in names]

    out = asyncio.run(run())
    assert [o["template"] for o in out if not o["ok"]] == []
    assert all(o["expert"] == 1.0 and o["noop"] == 0.0 for o in out)
    assert sum(o["random"] for o in out) / len(out) < 0.25
    for o, template in zip(out, get_suite("miniwob").templates.values(), strict=True):
        assert template.steps[0] <= o["steps"] <= template.steps[1]


@pytest.mark.browser
@pytest.mark.parametrize("name", ["click-checkboxes", "login-user-popup"])
def test_the_same_task_gives_the_same_episode(name):
    from guiderail.envs.browser import Browser

    template = get_suite("miniwob").templates[name]
    task = TaskSpec("miniwob", name, 1001, max_steps=template.max_steps)

    async def run():
        async with Browser.launch() as browser:
            return [await run_expert(await browser.new_env(), task) for _ in range(2)]

    first, second = asyncio.run(run())
    assert first == second and first["success"]
