"""Step-level batches: episodes laid out as arrays and back, against the worked numbers of the two reference systems."""

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest

from guiderail.envs.types import Outcome
from guiderail.models.rows import ChunkRow
from guiderail.params import Params
from guiderail.params_train import Rl, SemiOnline, StepWise
from guiderail.rollout.types import Completion, Episode, SamplingParams, StepRecord
from guiderail.tasks.types import TaskSpec
from guiderail.train.batch import make_batch, rewards_of
from guiderail.train.metrics import Totals, joined, rollout_metrics
from guiderail.train.steps import step_advantages, trajectory_returns

SEMI = Rl(algorithm="semi_online")
STEP = Rl(algorithm="step_wise", reward_failure=-1.0)


def step(k, votes=(), invalid=0, reward=None, matched=None, patched=""):
    completion = Completion((1, 2), (-0.5, -0.5), "stop", "x")
    return StepRecord(
        k, "f" * 64, 0, 5, completion, SamplingParams(), "", "", "", 0, 0.0, 0.0, tuple(votes), invalid, reward,
        matched, patched,
    )  # fmt: skip


def episode(group, sibling, steps, outcome="failure", chunk=3):
    """An episode whose rows hold `chunk` steps of two tokens each."""
    reward = {"success": 1.0, "failure": 0.0}.get(outcome)
    rows = tuple(
        ChunkRow(
            np.arange(40), ("f",) * len(part), tuple((10 * i + 4, 10 * i + 6) for i in range(len(part))),
            np.full(2 * len(part), -0.5, np.float32), tuple(s.step for s in part), 1.0,
        )
        for part in (steps[i : i + chunk] for i in range(0, len(steps), chunk))
    )  # fmt: skip
    cause = "env_done" if reward is not None else "crash"
    task = TaskSpec("toy", "t", int(group))
    return Episode(
        f"{group}/{sibling}", group, sibling, 0, task, "go", Outcome(outcome, cause, reward), tuple(steps), rows
    )


def recorded(group, sibling, rewards, matched, patched=None):
    kinds = patched or [""] * len(rewards)
    steps = [step(k, reward=r, matched=m, patched=p) for k, (r, m, p) in enumerate(zip(rewards, matched, kinds))]
    return episode(group, sibling, steps, "success" if all(matched) else "failure")


@pytest.fixture
def three():
    """Oracle B of the reference: three rollouts of a recording, none patched."""
    return [
        recorded("1", 0, [1, 1, 1], [True] * 3),
        recorded("1", 1, [1, 0.55], [True, False]),
        recorded("1", 2, [0.19], [False]),
    ]


def advantages(episodes, rl):
    return np.concatenate(step_advantages(episodes, rewards_of(episodes, rl.reward_failure), rl).values)


def test_semi_online_gives_the_references_numbers(three):
    rl = SEMI.model_copy(update={"semi_online": SemiOnline(statistic="reference_row")})
    wanted = [1.596205, 1.316376, 0.609270, 0.634905, -1.403414, -2.753341]
    assert advantages(three, rl) == pytest.approx(wanted, abs=2e-6)
    mean = rl.model_copy(update={"semi_online": SemiOnline(statistic="reference_row", norm="mean_norm")})
    assert advantages(three, mean) == pytest.approx([0.98, 0.685, 0.21, 0.23, -0.715, -1.39], abs=1e-9)


@pytest.mark.parametrize(
    ("statistic", "of_trajectory"),
    [
        ("sum", [1.010503, -0.021349, -0.989154]),
        ("first_return", [0.986935, 0.025635, -1.012570]),
        ("last_return", [1.034907, -0.073922, -0.960985]),
    ],
)
def test_semi_online_compares_whole_trajectories(three, statistic, of_trajectory):
    rl = SEMI.model_copy(update={"semi_online": SemiOnline(statistic=statistic, step_weight=0.0)})
    assert advantages(three, rl) == pytest.approx(np.repeat(of_trajectory, [3, 2, 1]), abs=2e-6)


def test_semi_online_filters_by_the_trajectorys_return(three):
    """R_0 of oracle B is 1.75, 1, .19 (population deviation .637); an error has none."""
    rl = SEMI.model_copy(update={"semi_online": SemiOnline(statistic="first_return")})
    broken = episode("1", 3, [], "infra_error")
    found = trajectory_returns([*three, broken], rewards_of([*three, broken], 0.0), rl)
    assert found[:3] == pytest.approx([1.75, 1.0, 0.19]) and math.isnan(found[3])
    assert np.std(found[:3]) == pytest.approx(0.6370, abs=5e-5)
    assert (trajectory_returns(three, rewards_of(three, 0.0), STEP) == [1.0, 0.0, 0.0]).all()


def test_rows_get_the_advantages_of_their_steps(three):
    """Token by token, rows of one step included; what is all 0 is left out."""
    cut = [episode("1", 0, list(three[0].steps), "success", chunk=2), *three[1:]]
    values = step_advantages(cut, rewards_of(cut, 0.0), SEMI).values
    batch = make_batch(cut, SEMI)
    assert batch.episode == [0, 0, 1, 2] and [len(v) for v in batch.by_step] == [2, 1, 2, 1]
    assert batch.token_advantage([0, 1]).tolist() == pytest.approx(np.repeat(values[0], 2).tolist(), abs=1e-6)
    only_steps = SEMI.model_copy(update={"semi_online": SemiOnline(episode_weight=0.0)})
    batch = make_batch(cut, only_steps)
    assert batch.episode == [0, 1, 2]  # step 2 has no sibling: its row of one step is gone
    assert batch.token_advantage([1]).tolist()[2:] == pytest.approx([-0.707106] * 2, abs=2e-6)


def test_step_wise_return_to_go_by_hand():
    """Two rollouts of two steps, o = +1 and -1, votes (+1, -1) and (-1, none), coef 0.5, gamma 0.5.

    r-to-go, last step:  1 + .5 * -1 = .5;  -1 + 0 = -1         -> +-(1.5 / 2) / (std = 1.5 / sqrt 2)
    first step:  .5 * 1 + .5 * .5 = .75;  .5 * -1 + .5 * -1 = -1   -> +-(1.75 / 2) / (1.75 / sqrt 2)
    """
    a = episode("1", 0, [step(0, (1, 1)), step(1, (-1,))], "success")
    b = episode("1", 1, [step(0, (-1,), invalid=2), step(1)])
    rl = STEP.model_copy(update={"step_wise": StepWise(coef=0.5, gamma=0.5, credit="return_to_go")})
    found = step_advantages([a, b], rewards_of([a, b], -1.0), rl)
    half = math.sqrt(0.5)
    assert np.concatenate(found.values) == pytest.approx([half, half, -half, -half], abs=1e-5)
    assert {k: found.metrics[k] for k in ("votes", "votes_invalid", "steps_unvoted", "buckets", "buckets_flat")} == {
        "votes": 4, "votes_invalid": 2, "steps_unvoted": 1, "buckets": 2, "buckets_flat": 0,
    }  # fmt: skip
    assert found.metrics["vote_mean"] == pytest.approx((1 - 1 - 1) / 3)


def test_a_step_that_could_not_be_done_is_a_bad_one():
    """Both fail: a wrong click (vote -1), and text that nobody could read, which no judge is asked about: equal, so no
    advantage; one that a judge said nothing valid of stays 0. Outcome -1: r = -2, -2, -1, siblings' means -1.5, -1.5,
    -2.
    """
    wrong, silent = episode("1", 0, [step(0, (-1,))]), episode("1", 2, [step(0, invalid=1)])
    unread = episode("1", 1, [replace(step(0), parse_error="no call")])
    for credit in ("outcome_anchored", "return_to_go", "bucket"):
        rl = STEP.model_copy(update={"step_wise": StepWise(credit=credit)})
        found = step_advantages([wrong, unread], rewards_of([wrong, unread], -1.0), rl)
        assert np.concatenate(found.values).tolist() == [0.0, 0.0]
    three = [wrong, unread, silent]
    found = step_advantages(three, rewards_of(three, -1.0), STEP)
    assert np.concatenate(found.values) == pytest.approx([-0.5, -0.5, 1.0])
    assert (found.metrics["steps_undone"], found.metrics["steps_unvoted"]) == (1, 2)


def test_a_group_with_votes_that_differ_is_not_dropped():
    """All fail, so outcomes are flat; votes of the first group differ, those of the second do not."""
    played = [episode(g, i, [step(0, (v,))]) for g, i, v in (("1", 0, 1), ("1", 1, -1), ("2", 0, -1), ("2", 1, -1))]
    found = rollout_metrics(played, make_batch(played, STEP), 1.0)
    assert (found["groups"], found["groups_flat"], found["groups_dropped"]) == (2, 2, 1)


def test_reference_credit_is_gui_rls():
    """r = o + p; bucket 0: 1 + 1, -1 - 1, aborted 0: mean 0, std sqrt(8 / 3); bucket 1 has one row: raw r."""
    a = episode("1", 0, [step(0, (1,)), step(1, (1, -1))], "success")
    b = episode("1", 1, [step(0, (-1,))])
    gone = episode("1", 2, [step(0, (1,))], "infra_error")
    rl = STEP.model_copy(update={"step_wise": StepWise(credit="reference")})
    found = step_advantages([a, b, gone], rewards_of([a, b, gone], -1.0), rl)
    x = 2 / (math.sqrt(8 / 3) + 1e-6)
    assert np.concatenate(found.values) == pytest.approx([x, 1.0, -x, 0.0])
    assert found.metrics["steps_removed"] == 1


@pytest.mark.parametrize("rl", [STEP, SEMI, *(STEP.model_copy(update={"step_wise": StepWise(credit=c)})
                                              for c in ("bucket", "outcome_anchored"))])  # fmt: skip
def test_order_and_errors_change_nobodys_advantage(rl):
    rng = np.random.default_rng(5)

    def one(i):
        n = int(rng.integers(1, 5))
        good = rng.random(n) < 0.6
        steps = [step(k, [1 if rng.random() < 0.5 else -1], reward=float(g), matched=bool(g))
                 for k, g in enumerate(good)]  # fmt: skip
        return episode(str(i // 4), i % 4, steps, "success" if good.all() else "failure")

    episodes = [one(i) for i in range(12)]

    def by_id(some):
        values = step_advantages(some, rewards_of(some, rl.reward_failure), rl).values
        return {e.id: v.tolist() for e, v in zip(some, values, strict=True)}

    base = by_id(episodes)
    assert any(any(v) for v in base.values())
    assert by_id([episodes[i] for i in rng.permutation(12)]) == base
    lost = dataclasses.replace(episode("0", 9, list(episodes[0].steps), "infra_error"), id="lost")
    more = by_id([*episodes[:5], lost, *episodes[5:]])
    assert not any(more.pop("lost")) and more == base


def test_equal_rewards_give_exactly_nothing():
    same = [recorded("1", i, [0.19], [False]) for i in range(7)]
    batch = make_batch(same, SEMI)
    assert batch.rows == [] and batch.metrics["groups_flat"] == 1 and batch.groups.groups_flat == 1
    votes = [episode("1", i, [step(0, (1,))]) for i in range(7)]
    assert make_batch(votes, STEP).rows == []


def test_curves_of_recordings():
    kinds = ["", "thought_free", "on_policy"]
    episodes = [
        recorded("1", 0, [1, 0.5, 0.1], [True, False, False], kinds),
        recorded("1", 1, [1, 1], [True, True]),
        episode("1", 2, [step(0, reward=1.0, matched=True)], "infra_error"),
    ]
    m = rollout_metrics(episodes, make_batch(episodes, SEMI), 1.0)
    wanted = {"step_match": 3 / 5, "leading_matches": 1.5, "patched": 1.0, "patched_thought_free": 0.5}
    assert {k: m[k] for k in wanted} == wanted
    assert m["step_reward"] == pytest.approx(3.6 / 5) and m["replay_steps"] == 6 and m["env_steps"] == 6
    assert "step_match" not in rollout_metrics([episode("1", 0, [step(0)])], make_batch([], STEP), 1.0)


def test_totals_of_phases():
    a = Totals(2, 8, 20, 20, 100, first_success=0.25, last_success=0.5, trained_on=["x"], sampling={"used": 3})
    b = Totals(3, 8, 30, 0, 50, first_success=0.5, last_success=0.75, trained_on=["y"])
    both = joined([a, b])
    assert (both.iterations, both.episodes, both.env_steps, both.replay_steps, both.tokens) == (5, 16, 50, 20, 150)
    assert (both.first_success, both.last_success, both.trained_on) == (0.25, 0.75, ["x", "y"])
    assert both.sampling == {"used": 3} and joined([a]) is a


def test_shipped_recipes_train_steps():
    p = Params()
    assert p.rl_for("gui_rl").step_wise.credit == "reference" and p.rl_for("gui_rl").step_wise.judge == "progress"
    assert [rl.algorithm for rl in p.phases_for("semi_online_grpo")] == ["semi_online", "grpo"]
