"""Reward of one step of semi-online RL, from its match and its format.

Guarantees: pure; both formulas of UI-S1 under their names. Does not match: see `rewards.match`.
"""

from __future__ import annotations

from typing import Literal

from guiderail.rewards.match import Match

StepRule = Literal["code", "paper"]


def step_reward(found: Match, parsed: bool, thought: bool, rule: StepRule = "code") -> float:
    """Reward in [0, 1] of a step whose text was `parsed` and had a `thought` before the action.

        code:   0.1 f + 0.9 a    a = 1 exact, 0.5 type only, 0.1 another type, 0 not parsed; f = parsed with a thought
        paper:  0.1 f + 0.4 [f] type + 0.5 [f type] exact

    Source: UI-S1 (arXiv 2509.11543); its code gives 0.9 to a right action without a thought, its paper 0.
    """
    f = parsed and thought
    if rule == "paper":
        return 0.1 * f + 0.4 * (f and found.type) + 0.5 * (f and found.type and found.exact)
    if rule != "code":
        raise ValueError(f"rule {rule!r}: must be code or paper")
    action = 0.0 if not parsed else 1.0 if found.exact else 0.5 if found.type else 0.1
    return 0.1 * f + 0.9 * action
