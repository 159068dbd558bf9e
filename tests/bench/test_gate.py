"""The gate of merges: worse only when the whole interval of the paired difference lies below zero."""

import pandas as pd
import pytest

from guiderail.bench import records
from guiderail.bench.gate import judge


def rows(name, wins, n=40, excluded=0):
    """A table of n instances of two templates, the first `wins` won; the last `excluded` not measured."""
    made = []
    for i in range(n):
        seen = i < n - excluded
        made.append(
            {c: pd.NA for c in records.COLUMNS}
            | {"checkpoint": name, "split": "fresh", "template": f"t{i % 2}", "task": f"x/t{i % 2}/{i}/0", "episode": 0}
            | {"success": (i < wins) if seen else pd.NA, "kind": "failure" if seen else "infra_error", "cause": "c"}
        )
    return records.table(made)


def verdict(**wins):
    return judge({n: rows(n, w) for n, w in wins.items()}, "merged", draws=500, confidence=0.95)


def test_far_worse_than_one_parent_is_worse():
    found = verdict(a=30, b=10, merged=12)
    assert found.worse_than == ["a"]
    assert found.differences["a"].mean == pytest.approx(-18 / 40) and found.differences["b"].mean == pytest.approx(
        2 / 40
    )
    assert next(line for line in found.lines() if line.endswith("WORSE")).startswith("a: success 75.0 %")
    assert found.to_json()["worse_than"] == ["a"]


def test_a_small_loss_within_the_interval_passes():
    found = verdict(a=21, merged=20)
    assert found.differences["a"].mean < 0 < found.differences["a"].hi and found.worse_than == []


def test_better_and_equal_pass():
    assert verdict(a=10, b=30, merged=30).worse_than == []


def test_nothing_measured_in_both_is_told():
    found = judge({"a": rows("a", 0, excluded=40), "merged": rows("merged", 5)}, "merged", draws=100, confidence=0.95)
    assert found.unmeasured == ["a"] and found.worse_than == []
