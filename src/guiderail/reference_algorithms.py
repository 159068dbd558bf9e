"""The documentation's page of algorithms: each function's own docstring, and the tests that hold its formula.

Guarantees: a function or test that is gone is an import error or a failing test, never a stale sentence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from guiderail.algorithms import filters, grpo, kl, losses, patch, returns, semi_online, step_wise
from guiderail.bench import calibration, fact_table, sop_metrics, stats

# Title, function, how a recipe asks for it, tests that hold its formula.
ALGORITHMS: tuple[tuple[str, Callable[..., Any], str, tuple[str, ...]], ...] = (
    (
        "Group-relative advantages: GRPO, RLOO, Dr.GRPO",
        grpo.group_advantages,
        "`algorithm: grpo` with `scale`, `baseline`, `ddof`; recipes `grpo`, `rloo`, `dr_grpo`",
        (
            "tests/algorithms/test_grpo.py::test_one_success_of_four_by_hand",
            "tests/algorithms/test_grpo.py::test_leave_one_out_by_hand",
            "tests/algorithms/test_grpo.py::test_equals_trl_and_verl_on_groups_with_spread",
            "tests/algorithms/test_grpo.py::test_infra_error_is_excluded_before_the_baseline",
        ),
    ),
    (
        "Ratios: token and sequence (GSPO)",
        losses.importance_ratio,
        "`ratio`; recipe `gspo`",
        (
            "tests/algorithms/test_losses.py::test_sequence_ratio_by_hand",
            "tests/algorithms/test_losses.py::test_sequence_ratio_equals_gspo_in_numpy",
        ),
    ),
    (
        "The clipped surrogate",
        losses.clipped_surrogate,
        "`clip_low`, `clip_high`, `dual_clip`",
        (
            "tests/algorithms/test_losses.py::test_clip_by_hand",
            "tests/algorithms/test_losses.py::test_equals_verl_and_trl_in_numpy",
            "tests/algorithms/test_losses.py::test_dual_clip_by_hand",
            "tests/algorithms/test_losses.py::test_gradient_equals_finite_differences",
        ),
    ),
    (
        "How tokens add up",
        losses.token_weights,
        "`aggregation`, `aggregation_tokens`",
        (
            "tests/algorithms/test_losses.py::test_weights_by_hand",
            "tests/algorithms/test_losses.py::test_weights_sum_to_one_and_weigh_units_alike",
            "tests/algorithms/test_losses.py::test_constant_weights_by_hand",
        ),
    ),
    (
        "KL to the start",
        kl.kl_estimate,
        "`kl_coef`, `kl_estimator`, `kl_clamp`",
        (
            "tests/algorithms/test_losses.py::test_kl_by_hand_and_zero_at_step_zero",
            "tests/algorithms/test_losses.py::test_k1_and_k3_are_unbiased_in_expectation",
        ),
    ),
    (
        "Truncated importance weights",
        losses.truncated_importance,
        "`importance_cap`",
        (
            "tests/algorithms/test_losses.py::test_truncated_importance_by_hand",
            "tests/train/test_objective.py::test_importance_weights_correct_the_rollout_and_the_clip_bounds_the_update",
        ),
    ),
    (
        "The filter of DAPO",
        filters.keep_groups,
        "`filter_rounds`, `filter_std`; recipe `dapo`",
        (
            "tests/algorithms/test_filters.py::test_equality_is_not_above_and_flat_groups_never_pass",
            "tests/algorithms/test_filters.py::test_refill_by_hand",
        ),
    ),
    (
        "Step-wise advantages",
        step_wise.step_wise_advantages,
        "`algorithm: step_wise`; recipes `step_wise`, `step_wise_prm`",
        (
            "tests/algorithms/test_step_wise.py::test_bucket_by_hand",
            "tests/algorithms/test_step_wise.py::test_return_to_go_by_hand",
            "tests/algorithms/test_step_wise.py::test_outcome_anchored_by_hand",
            "tests/algorithms/test_step_wise.py::test_equals_plain_loops",
        ),
    ),
    (
        "The estimator of gui-rl, for comparison",
        step_wise.reference_step_wise,
        "`step_wise: {credit: reference}`; recipe `gui_rl`",
        ("tests/algorithms/test_step_wise.py::test_the_reference_by_hand",),
    ),
    (
        "Returns of semi-online training",
        returns.segment_returns,
        "`semi_online: {segment, gamma}`",
        (
            "tests/algorithms/test_semi_online.py::test_segment_returns_by_hand",
            "tests/algorithms/test_semi_online.py::test_returns_to_go_of_long_trajectories",
        ),
    ),
    (
        "Semi-online advantages",
        semi_online.semi_online_advantages,
        "`algorithm: semi_online`; recipes `semi_online`, `semi_online_grpo`",
        (
            "tests/algorithms/test_semi_online.py::test_true_trajectory_statistics",
            "tests/algorithms/test_semi_online.py::test_equals_plain_loops",
        ),
    ),
    (
        "What replaces a missed turn",
        patch.patched_turn,
        "`semi_online: {patch, patch_threshold}`",
        ("tests/algorithms/test_semi_online.py::test_patches_by_hand",),
    ),
    (
        "Differences between checkpoints",
        stats.paired_difference,
        "every gain in the report, and the champion's gate",
        ("tests/bench/test_stats.py",),
    ),
    (
        "Scores on recorded trajectories",
        sop_metrics.progress,
        "benchmarks `sop`, `android_control_sop`",
        (
            "tests/bench/test_sop.py::test_progress_by_hand",
            "tests/bench/test_expressible.py::test_ceilings_of_the_evaluation_file",
        ),
    ),
    (
        "How good a judge of steps is",
        calibration.auroc,
        "stage `prm`, `prm.min_auroc`",
        (
            "tests/bench/test_calibration.py::test_by_hand",
            "tests/bench/test_calibration.py::test_auroc_is_the_share_of_pairs",
        ),
    ),
    (
        "What it has to beat: the table of told facts",
        fact_table.looked_up,
        "stage `prm`, beside each judge",
        (
            "tests/bench/test_fact_table.py::test_by_hand",
            "tests/bench/test_fact_table.py::test_beside_a_judge",
        ),
    ),
)


def algorithms_page() -> str:
    """Each algorithm: its docstring, which states formula and source, and the tests that hold it."""
    lines = [
        "# Algorithms",
        "",
        "Every formula lives in one pure function, whose docstring states it with its source; what follows is those "
        "docstrings. The tests named under each compute the same numbers by hand or by independent code.",
        "",
    ]
    for title, function, asked, tests in ALGORITHMS:
        name = f"{function.__module__}.{function.__name__}"
        lines += [f"## {title}", "", f"Asked for by {asked}.", "", f"`{name}`", ""]
        lines += [
            "```text",
            inspect.getdoc(function) or "",
            "```",
            "",
            "Held by:",
            "",
            *(f"- `{t}`" for t in tests),
            "",
        ]
    lines += ["An algorithm of your own is [one file](../howto/recipe.md#an-algorithm)."]
    return "\n".join(lines) + "\n"
