"""Who won: pairs against hand-counted differences, and the sentence in each case."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import synthetic

from guiderail.report import diagnosis, figures, page, style, tables, verdict
from guiderail.report.compare import comparison
from guiderail.report.data import load
from guiderail.report.summary import Bench, distinct, summarise
from guiderail.report.viewer import names


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("verdict")
    params = synthetic.make(root, recipes=("grpo", "rloo", "dapo"), instances=4, keep_frames=False)
    data = load(params, root)
    return root, data, Bench(data, "miniwob"), summarise(data)


def wins(root, recipe):
    rows = pd.read_parquet(root / f"evaluate/{recipe}/seed0/miniwob/episodes.parquet")
    rows = rows[(rows.checkpoint == "rl") & (rows.split == "fresh") & rows.success.notna()]
    return dict(zip(rows.task, rows.success.astype(float), strict=True))


def test_pairs_are_counted_on_the_instances_of_both(world):
    root, _, bench, _ = world
    tree = verdict.versus(bench)
    a, b = wins(root, "dapo"), wins(root, "grpo")
    both = a.keys() & b.keys()
    cell = tree["dapo"]["grpo"]
    assert cell["n"] == len(both) and cell["mean"] == pytest.approx(sum(a[t] - b[t] for t in both) / len(both))
    assert tree["grpo"]["dapo"] == {"mean": -cell["mean"], "lo": -cell["hi"], "hi": -cell["lo"], "n": cell["n"]}
    assert len(verdict.table(tree)) == 6


def test_the_page_has_each_pair_once_and_the_figure_every_gain(world):
    _, data, bench, summary = world
    compared = comparison(data, summary["benchmarks"])
    heading, _, table = verdict.reading(bench, compared, verdict.versus(bench))
    assert heading == "Recipe against recipe" and len(table) == 3
    assert not table["difference"].str.startswith("-").any()  # the better one stands first
    ax = figures.success_bars(bench, summary).axes[0]
    under = [t.get_text() for t in ax.get_xticklabels()]
    assert all(f"\n{r} " in text for text in under for r in data.recipes)


def cell(mean, lo, hi):
    return {"mean": mean, "lo": lo, "hi": hi, "n": 640}


def said(leads, gain):
    """The sentence where `a` solves most, with these leads over `b` and `c`."""
    shares = {"a": 0.569, "b": 0.489, "c": 0.445}
    compared = {r: {"split": "fresh", "success": cell(s, 0, 1), "gain": gain} for r, s in shares.items()}
    return verdict.sentence(compared, {"a": dict(zip("bc", leads, strict=True))}, 0.95)


SURE, OPEN = cell(0.08, 0.051, 0.109), cell(0.08, -0.01, 0.17)


def test_the_sentence():
    up = cell(0.089, 0.061, 0.117)
    assert said((SURE, SURE), up) == (
        "a wins: it solves 56.9 % of the fresh instances, 8.0 points more than b, the next (95 % interval 5.1 to 10.9) "
        "and 8.9 points above SFT (6.1 to 11.7)."
    )
    assert said((OPEN, SURE), cell(0.01, -0.02, 0.04)) == (
        "No recipe wins: a solves most, 56.9 % of the fresh instances, but b cannot be told from it "
        "(+8.0 pp [-1.0, +17.0]); c is behind beyond chance. a is 1.0 points above SFT (-2.0 to +4.0, which may be "
        "chance)."
    )
    assert said((OPEN, OPEN), cell(-0.034, -0.063, -0.006)).endswith("a is 3.4 points below SFT (0.6 to 6.3).")
    alone = {"a": {"split": "fresh", "success": cell(0.5, 0.4, 0.6), "gain": up}}
    assert verdict.sentence(alone, {}, 0.95).startswith("RL (a) solves 50.0 % of the fresh instances, 8.9 points above")
    assert verdict.sentence({}, {}, 0.95) == ""


def test_names_are_listed_as_a_sentence_has_them():
    assert [verdict.listed(n) for n in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_commands_are_quoted_and_name_other_results(tmp_path):
    name = names.evaluated("evaluate/grpo/seed0/miniwob", "rl", "miniwob/it's $(x)/1/0", 2)
    assert names.command(name) == "guiderail replay 'evaluate/grpo/seed0/miniwob/rl/miniwob/it'\"'\"'s $(x)/1/0/2'"
    assert names.command("a", tmp_path) == f"guiderail replay a --results {tmp_path}"


def test_base_and_sft_have_one_interval_whatever_the_recipe(world):
    _, _, _, summary = world
    tree = summary["benchmarks"]["miniwob"]["success"]
    assert tree["grpo"]["sft"] == tree["rloo"]["sft"] == tree["dapo"]["sft"]
    assert json.dumps(tree["grpo"]["base"]) == json.dumps(tree["dapo"]["base"])


def test_marks_of_one_template_never_hide_each_other(world):
    """Base, SFT and three recipes tie on many templates of four instances; each series has its own height in a row."""
    _, _, bench, _ = world
    fig = figures.template_dumbbells(bench, tables.group_table(bench, "template"))
    for ax in fig.axes:
        marks = [m.get_offsets() for m in ax.collections if len(m.get_offsets()) and m.get_label()[0] != "_"]
        assert len(marks) == 5
        rows = [[float(y) for _, y in m] for m in marks]
        for heights in zip(*rows, strict=True):
            assert len({round(y) for y in heights}) == 1 and len(set(heights)) == 5  # one row, five heights
        assert [round(a - b, 6) for a, b in zip(rows[0], rows[1], strict=True)] == [pytest.approx(0.15)] * len(rows[0])


def test_what_no_recipe_changes_is_shown_once(world):
    _, data, bench, summary = world
    assert bench.shared("base") and bench.shared("sft") and not bench.shared("rl")
    tree = summary["benchmarks"]["miniwob"]
    none = {k: pd.DataFrame() for k in ("domains", "templates", "excluded")}
    for k in ("domains", "templates"):
        none[k] = tables.group_table(bench, k[:-1])
    frames = none | {"success": tables.success_table(bench, tree), "gains": tables.gain_table(bench, tree)}
    shown = {h: t for h, _, t in tables.reading(bench, tree, frames)}
    assert shown["Success"][["recipe", "checkpoint"]].value_counts().to_dict() == {
        (r, c): 3 for r, c in [("all", "base"), ("all", "sft"), *((r, "rl") for r in data.recipes)]
    }
    assert shown["Paired gains"]["recipe"].tolist() == ["all"] * 3 + [r for r in data.recipes for _ in "abc"] * 2
    causes = diagnosis.reading(bench, diagnosis.causes(bench), pd.DataFrame(columns=diagnosis.WORSE))[0][2]
    assert set(causes["recipe"][causes["checkpoint"] != "rl"]) == {"all"}
    assert not causes.duplicated(["recipe", "checkpoint", "cause"]).any()
    assert len(frames["success"]) == 3 * 3 * 3  # the CSV has every recipe's rows


def test_episodes_of_every_recipe_count_once(world):
    """46 template-split pairs of 4 instances: base, SFT and three times RL; one changed SFT episode is one's own."""
    _, data, _, _ = world
    assert distinct(data) == 46 * 4 * 5
    rows = data.episodes.copy()
    mine = rows.index[(rows["recipe"] == "rloo") & (rows["checkpoint"] == "sft")][:1]
    rows.loc[mine, "actions"] = "[]"
    other = replace(data, episodes=rows)
    assert distinct(other) == 46 * 4 * 5 + 1 and not Bench(other, "miniwob").shared("sft")


def words(fig):
    return [t.get_text() for t in fig.legends[0].get_texts()]


@pytest.mark.parametrize("narrow", [False, True])
def test_base_sft_and_rl_stand_in_that_order_everywhere(world, narrow):
    """A legend fills its columns one after the other; read row by row it has the order of the bars."""
    _, data, bench, summary = world
    order = ["Base", "SFT", "RL grpo", "RL rloo", "RL dapo"]
    fig = figures.success_bars(bench, summary, narrow)
    columns = 2 if narrow else 5
    assert words(fig) == [x for c in range(columns) for x in order[c::columns]]
    assert [[b.get_label() for b in ax.containers if b.get_label() in order] for ax in fig.axes] == [order] * len(
        fig.axes
    )
    assert len(fig.axes) == (len(bench.splits) if narrow else 1)
    templates = tables.group_table(bench, "template")
    (ax, *_) = diagnosis.heat_map(bench, templates, narrow).axes
    assert [t.get_text().replace("\n", " ") for t in ax.get_xticklabels()] == order
    found = diagnosis.causes(bench)
    assert list(dict.fromkeys(zip(found["recipe"], found["checkpoint"], strict=True)))[:3] == [
        ("grpo", "base"), ("grpo", "sft"), ("grpo", "rl")
    ]  # fmt: skip
    assert list(dict.fromkeys(found["recipe"])) == data.recipes


def test_a_legend_of_seven_has_two_even_rows():
    assert style.by_rows(list("abcdefg"), 4) == list("aebfcgd")  # a b c d above e f g
    assert style.by_rows(list("abc"), 3) == list("abc")


def test_film_strips_can_be_chosen_by_recipe(world):
    _, data, _, _ = world
    found = page.filters(data, [])
    assert found[:6] == [
        ("all", "All"), ("base", "Base"), ("sft", "SFT"), ("rl-0", "RL grpo"), ("rl-1", "RL rloo"), ("rl-2", "RL dapo")
    ]  # fmt: skip
    assert ("rl", "RL") in page.filters(replace(data, recipes=["grpo"]), [])
