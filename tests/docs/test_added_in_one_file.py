"""A task, a provider and an algorithm are each added in one file by following its page: the page's own code is run."""

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from pages import block, settings, written

from guiderail import plugins
from guiderail.algorithms.own import StepTable
from guiderail.bench.evaluate import code_digest
from guiderail.params import Env, ParamError, load
from guiderail.pool.local import env_pool
from guiderail.stages.provision import check, run_selftests, selftest_tasks
from guiderail.tasks.splits import build_manifest
from guiderail.train.steps import step_advantages
from guiderail.workflow.presets import merged
from pool.conformance.suite import Cloud, ProviderConformance

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))  # worlds
ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty project folder; no plugin stays loaded."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    plugins.activate({})


def follow(folder: Path, page: str) -> Path:
    """params.yaml of the repository with what the page says put in."""
    tree = yaml.safe_load((ROOT / "params.yaml").read_text())
    tree["provision"] |= {"templates": [], "heldout": []}
    for text in settings(page)[-1:]:
        tree = merged(tree, yaml.safe_load(text))
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.browser
def test_a_task(here):
    written(here, "howto/task.md", "plugins/tasks/count_dots.py")
    before = code_digest()
    params = load(follow(here, "howto/task.md"))
    manifest = build_manifest(params.provision)
    assert manifest["train_templates"] == ["count-dots"] and manifest["heldout_templates"] == ["count-dots-2"]
    assert code_digest() != before  # a remembered evaluation without the file is another one
    tasks = selftest_tasks(manifest, 3)
    with env_pool(Env(slots=1)) as (url, token):
        found = asyncio.run(run_selftests(url, token, tasks, 1, 1, lambda _: None))
    check({r["template"]: r for r in found})
    assert [(r["template"], r["expert"], r["noop"], r["instances"]) for r in found] == [
        ("count-dots", 1.0, 0.0, 3),
        ("count-dots-2", 1.0, 0.0, 3),
    ]
    assert found[0]["instruction"] == "Press the number of dots."


exec(  # the page's own test; its class is collected here
    compile(block("howto/provider.md", "tests/test_two_halves.py"), "docs/howto/provider.md", "exec"),
    namespace := {"__name__": __name__},
)


class TestProvider(namespace["TestTwoHalves"]):  # type: ignore[name-defined]
    @pytest.fixture(autouse=True)
    def _file(self, here):
        written(here, "howto/provider.md", "plugins/providers/two_halves.py")


def test_the_provider_is_lent_by_a_pool(here):
    from guiderail.actions.types import Click
    from guiderail.pool.client import PoolClient
    from guiderail.tasks.types import TaskSpec

    assert issubclass(TestProvider, ProviderConformance) and Cloud
    written(here, "howto/provider.md", "plugins/providers/two_halves.py")
    params = load(follow(here, "howto/provider.md"))

    async def play(url: str, token: str) -> list[float]:
        rewards = []
        async with PoolClient(url, token) as client, client.env("t") as env:
            for x in (0.2, 0.8):
                await env.reset(TaskSpec("two_halves", "bright", 3))
                rewards.append((await env.step(Click(x, 0.5))).raw_reward)
        return rewards

    with env_pool(params.env.model_copy(update={"slots": 1})) as (url, token):
        assert asyncio.run(play(url, token)) == [-1.0, 1.0]


def test_an_algorithm_trains(here):
    from worlds import RL, make_policy, run_rl

    written(here, "howto/recipe.md", "plugins/algorithms/best_of_group.py")
    params = load(follow(here, "howto/recipe.md"))
    rl = params.rl_for("best")
    assert (rl.algorithm, rl.options) == ("best_of_group", {"discount": 0.8})
    small = RL.model_copy(update={"algorithm": rl.algorithm, "options": rl.options, "iterations": 1, "mode": "full"})
    _, log, totals, policy = run_rl(here, small)
    assert totals.optimizer_steps >= 1 and log.rows[0]["rows_kept"] > 0 and np.isfinite(log.rows[0]["loss"])
    before = make_policy().model.state_dict()
    assert any((before[k] != v).any() for k, v in policy.model.state_dict().items())


def test_its_formula_by_hand(here):
    written(here, "howto/recipe.md", "plugins/algorithms/best_of_group.py")
    plugins.activate({"algorithms": ["best_of_group"]})
    # one group of three episodes: two steps and a success, one step and a failure, one step not measured
    table = StepTable(
        np.array([1.0, 1.0, 0.0, np.nan]), np.zeros(4, np.int64), np.array([0, 0, 1, 2]), np.array([0, 1, 0, 0])
    )
    found = plugins.find("algorithms", "best_of_group").of(table, {"discount": 0.5})
    assert found.tolist() == [0.5, 1.0, -1.0, 0.0]


PLAIN = "from guiderail.algorithms.own import Algorithm\nALGORITHM = Algorithm(lambda t, o: {}, {{'a': 1.0}})\n"


@pytest.mark.parametrize(
    ("source", "wanted", "words"),
    [
        (None, {"plugins": {"algorithms": ["mine"]}}, "there is no plugins/algorithms/mine.py. Put the file there"),
        ("x = (\n", {"plugins": {"algorithms": ["mine"]}}, "plugins/algorithms/mine.py:1: SyntaxError"),
        ("x = 1\ny = z\n", {"plugins": {"algorithms": ["mine"]}}, "mine.py:2: NameError"),
        ("x = 1\n", {"plugins": {"algorithms": ["mine"]}}, "mine.py: defines no ALGORITHM"),
        (None, {"plugins": {"algorithms": ["../mine"]}}, "give the file's name without .py"),
        (
            PLAIN,
            {"rl": {"algorithm": "mine"}},
            "rl.algorithm = 'mine': must be one of grpo, step_wise, semi_online, or",
        ),
        (PLAIN, {"env": {"provider": "mine"}}, "or be listed in plugins.providers"),
        (
            PLAIN,
            {"plugins": {"algorithms": ["mine"]}, "recipes": {"r": {"algorithm": "mine", "options": {"b": 1.0}}}},
            "recipes.r.options.b: There are: a.",
        ),
        (None, {"recipes": {"r": {"options": {"b": 1.0}}}}, "recipes.r.options: algorithm grpo does not read it"),
    ],
)
def test_what_is_wrong_is_told(here, source, wanted, words):
    if source:
        path = here / "plugins/algorithms/mine.py"
        path.parent.mkdir(parents=True)
        path.write_text(source.format("t.reward"))
    tree = merged(yaml.safe_load((ROOT / "params.yaml").read_text()), wanted)
    tree["recipes"] = {"grpo": {}} | wanted.get("recipes", {})
    (here / "params.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ParamError) as e:
        load("params.yaml")
    assert words in str(e.value), e.value


@pytest.mark.parametrize("answer", ["t.reward[:-1]", "t.reward * float('inf')", "1 / 0"])
def test_advantages_that_cannot_be_used_name_the_file(here, answer):
    from worlds import RL, World, make_policy

    path = here / "plugins/algorithms/mine.py"
    path.parent.mkdir(parents=True)
    path.write_text(PLAIN.format(answer))
    plugins.activate({"algorithms": ["mine"]})
    rl = RL.model_copy(update={"algorithm": "mine"})
    world = World(make_policy(), rl)
    episodes, _ = world.collect(world.tasks(0), 0)
    with pytest.raises(plugins.PluginError, match=r"plugins/algorithms/mine.py: "):
        step_advantages(episodes, np.ones(len(episodes)), rl)


def test_a_plugin_is_read_again_only_when_it_changed(here):
    path = here / "plugins/algorithms/mine.py"
    path.parent.mkdir(parents=True)
    path.write_text("ALGORITHM = object()\n")
    plugins.activate({"algorithms": ["mine"]})
    first = plugins.find("algorithms", "mine")
    plugins.activate({"algorithms": ["mine"]})
    assert plugins.find("algorithms", "mine") is first
    assert plugins.command_line() == ["--plugin", "algorithms/mine"]
    path.write_text("ALGORITHM = object() \n")
    plugins.activate_words(["algorithms/mine"])
    assert plugins.find("algorithms", "mine") is not first
    plugins.activate({})
    assert plugins.find("algorithms", "mine") is None and plugins.digests() == {}
