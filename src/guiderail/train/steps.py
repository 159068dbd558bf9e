"""Advantages of single steps, from the episodes of an update: what step_wise and semi_online train on.

Guarantees: one number for every step of every episode, in their order; an episode without a measured outcome gets 0 and
takes no part in any baseline; what was not judged or not compared is counted. The formulas are those of
`algorithms.step_wise` and `algorithms.semi_online`; this module only lays episodes out as their arrays and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from guiderail import plugins
from guiderail.algorithms.grouping import BoolArray, FloatArray
from guiderail.algorithms.own import Algorithm, StepTable
from guiderail.algorithms.returns import in_order, segment_returns_in
from guiderail.algorithms.semi_online import semi_online_advantages, trajectory_statistic
from guiderail.algorithms.step_wise import mean_votes, reference_step_wise, step_wise_advantages
from guiderail.params_train import Rl
from guiderail.rollout.types import Episode, StepRecord


@dataclass(frozen=True)
class StepAdvantages:
    """values: float64 [steps] of each episode. metrics: what became of groups, votes and patches, for the curves."""

    values: list[FloatArray]
    metrics: dict[str, float]


def step_advantages(episodes: Sequence[Episode], rewards: FloatArray, rl: Rl) -> StepAdvantages:
    """Advantages under `rl.algorithm` (step_wise, semi_online or a plugin's). rewards: of each episode, nan where not
    measured; semi_online reads the steps' own. Raises ValueError for another algorithm, PluginError for a plugin whose
    advantages cannot be used."""
    steps = [s for e in episodes for s in e.steps]
    owner = np.repeat(np.arange(len(episodes)), [len(e.steps) for e in episodes])
    group = [episodes[i].group for i in owner.tolist()]
    step = np.array([s.step for s in steps], dtype=np.int64)
    measured = ~np.isnan(rewards)[owner]
    if rl.algorithm == "step_wise":
        values, metrics = _step_wise(steps, rewards[owner], group, owner, step, measured, rl)
    elif rl.algorithm == "semi_online":
        values, metrics = _semi_online(steps, group, owner, step, measured, rl)
    elif (own := plugins.find("algorithms", rl.algorithm)) is not None:
        values, metrics = _own(own, rewards[owner], group, owner, step, rl), {}
    else:
        raise ValueError(f"algorithm {rl.algorithm}: its advantages are those of whole episodes")
    cuts = np.cumsum([len(e.steps) for e in episodes])[:-1]
    return StepAdvantages(np.split(values, cuts) if episodes else [], metrics)


def _own(
    algorithm: Algorithm, reward: FloatArray, group: list[str], owner: np.ndarray, step: np.ndarray, rl: Rl
) -> FloatArray:
    number = {name: i for i, name in enumerate(dict.fromkeys(group))}
    table = StepTable(reward, np.array([number[g] for g in group], dtype=np.int64), owner.astype(np.int64), step)
    try:
        return algorithm.of(table, rl.options)
    except Exception as e:
        where = plugins.path_of("algorithms", rl.algorithm)
        raise plugins.PluginError(f"{where}: {type(e).__name__}: {e}") from e


def process_scores(steps: Sequence[StepRecord]) -> FloatArray:
    """Mean valid vote of each step, nan where none is, [n]."""
    votes = np.full((len(steps), max((len(s.votes) for s in steps), default=0)), np.nan)
    for k, s in enumerate(steps):
        votes[k, : len(s.votes)] = s.votes
    return mean_votes(votes)


def _step_wise(
    steps: list[StepRecord],
    outcome: FloatArray,
    group: list[str],
    owner: np.ndarray,
    step: np.ndarray,
    measured: BoolArray,
    rl: Rl,
) -> tuple[FloatArray, dict[str, float]]:
    p, process = rl.step_wise, process_scores(steps)
    unread = np.isnan(process) & np.array([bool(s.parse_error) for s in steps], dtype=np.bool_)
    voted = process[measured & ~np.isnan(process)]
    metrics = {
        "votes": float(sum(len(s.votes) for s in steps)),
        "votes_invalid": float(sum(s.votes_invalid for s in steps)),
        "steps_unvoted": float((measured & np.isnan(process)).sum()),
        "steps_undone": float((measured & unread).sum()),
        "vote_mean": float(voted.mean()) if len(voted) else float("nan"),
    }
    if p.credit == "reference":
        found = reference_step_wise(
            np.where(measured, outcome, 0.0), np.nan_to_num(process), group, step, aborted=~measured
        )
        return found.values, metrics | {"steps_removed": float(found.removed.sum())}
    process = np.where(unread, -1.0, process)  # nobody was asked: what did nothing must not score above a wrong click
    result = step_wise_advantages(
        outcome, process, group, owner, step, measured, coef=p.coef, credit=p.credit, gamma=p.gamma, ddof=rl.ddof
    )
    counts = {"buckets": result.compared, "buckets_small": result.small, "buckets_flat": result.flat}
    return result.values, metrics | {k: float(v) for k, v in counts.items()}


def _semi_online(
    steps: list[StepRecord], group: list[str], owner: np.ndarray, step: np.ndarray, measured: BoolArray, rl: Rl
) -> tuple[FloatArray, dict[str, float]]:
    p, matched = rl.semi_online, matches(steps)
    found = semi_online_advantages(
        step_rewards(steps),
        matched,
        group,
        owner,
        step,
        measured,
        gamma=p.gamma,
        rule=p.segment,
        statistic=p.statistic,
        norm=p.norm,
        episode_weight=p.episode_weight,
        step_weight=p.step_weight,
    )
    names = ("groups_small", "groups_flat", "buckets", "buckets_small", "buckets_flat")
    return found.values, {k: float(getattr(found, k)) for k in names}


def step_rewards(steps: Sequence[StepRecord]) -> FloatArray:
    """Reward of each step of a recorded environment, nan where none was given, [n]."""
    return np.array([np.nan if s.reward is None else s.reward for s in steps], dtype=np.float64)


def matches(steps: Sequence[StepRecord]) -> BoolArray:
    """Whether each step did what the expert did, [n]."""
    return np.array([bool(s.matched) for s in steps], dtype=np.bool_)


def trajectory_returns(episodes: Sequence[Episode], rewards: FloatArray, rl: Rl) -> FloatArray:
    """One number per episode, for filters: its reward, or under semi_online its `statistic` (of "reference_row": the
    first return, as UI-S1 filters by); nan where not measured."""
    if rl.algorithm != "semi_online":
        return rewards
    p, played = rl.semi_online, [i for i, e in enumerate(episodes) if e.steps and not np.isnan(rewards[i])]
    steps = [s for i in played for s in episodes[i].steps]
    owner = np.repeat(np.arange(len(played)), [len(episodes[i].steps) for i in played])
    order = in_order(owner, np.array([s.step for s in steps], dtype=np.int64))
    r = step_rewards(steps)
    returns = segment_returns_in(order, r, matches(steps), p.gamma, p.segment)
    out = np.full(len(episodes), np.nan)
    kind = "first_return" if p.statistic == "reference_row" else p.statistic
    out[played] = trajectory_statistic(r, returns, order, kind)
    return out


def replay_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Curves of rollouts along recordings; empty for others.

    replay_steps: steps in recordings, of all attempts. step_match: share of steps that did what the expert did.
    leading_matches: mean number before the first miss.
    patched: steps whose history was patched, per episode (thought_free: without a thought). step_reward: mean.
    """
    done = [e for e in episodes if e.outcome.reward is not None and any(s.matched is not None for s in e.steps)]
    if not done:
        return {}
    steps = [s for e in done for s in e.steps]
    leading = [next((k for k, s in enumerate(e.steps) if not s.matched), len(e.steps)) for e in done]
    return {
        "replay_steps": float(sum(s.matched is not None for e in episodes for s in e.steps)),
        "step_match": float(np.mean([bool(s.matched) for s in steps])),
        "leading_matches": float(np.mean(leading)),
        "patched": sum(bool(s.patched) for s in steps) / len(done),
        "patched_thought_free": sum(s.patched == "thought_free" for s in steps) / len(done),
        "step_reward": float(np.mean([s.reward for s in steps if s.reward is not None])),
    }
