"""Why episodes fail, where RL is worse, where numbers come from and what they cannot show: by hand on changed rows."""

from __future__ import annotations

import json
from urllib.parse import parse_qsl

import pandas as pd
import pytest
import synthetic

from guiderail.report import diagnosis, figures, limits, origins, page
from guiderail.report.data import load
from guiderail.report.origins import results_folder
from guiderail.report.style import CAUSE
from guiderail.report.summary import Bench, summarise
from guiderail.report.viewer.index import Index
from guiderail.report.viewer.queries import Explorer
from guiderail.report.viewer.query import Query

FILE = "evaluate/grpo/seed0/miniwob/episodes.parquet"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """RL loses both fresh instances of click-tab by typing until the steps run out; SFT solves them."""
    root = tmp_path_factory.mktemp("diagnosis")
    params = synthetic.make(root, instances=2, keep_frames=False)
    rows = pd.read_parquet(root / FILE)
    tab = (rows.template == "click-tab") & (rows.split == "fresh")
    for checkpoint, win in (("sft", True), ("rl", False)):
        own = tab & (rows.checkpoint == checkpoint)
        rows.loc[own, "success"], rows.loc[own, "reward"] = win, float(win)
        rows.loc[own, "kind"], rows.loc[own, "cause"] = ("success", "env_done") if win else ("failure", "step_limit")
        rows.loc[own, "actions"] = json.dumps([json.dumps({"kind": "Type", "text": "x"})])
    rows.to_parquet(root / FILE, index=False)
    data = load(params, root)
    return rows, data, Bench(data, "miniwob")


def test_where_rl_is_worse_and_what_it_does_there(world):
    _, _, bench = world
    (row,) = [
        r for r in diagnosis.worse(bench).to_dict("records") if (r["template"], r["split"]) == ("click-tab", "fresh")
    ]
    assert (row["sft"], row["rl"], row["mean"], row["n"], row["lost"]) == (1.0, 0.0, -1.0, 2, 2)
    assert row["what RL does there"] == "2x steps ran out; last act: type"
    assert (diagnosis.worse(bench)["mean"] < 0).all()


def test_the_page_shows_the_largest_loss_first_and_no_small_templates():
    def row(template, mean, lo, hi, n):
        return dict(
            zip(diagnosis.WORSE, ("grpo", "fresh", template, 0.5, 0.5 + mean, mean, lo, hi, n, 1, "1x"), strict=True)
        )

    lost = pd.DataFrame([row("a", -0.5, -0.9, 0.2, 6), row("b", -0.3, -0.5, -0.1, 40), row("c", -0.1, -0.2, 0.1, 40)])
    heading, note, table = diagnosis._lost(lost, False, lambda r: f"http://x/?template={r['template']}")
    assert list(table["new failures"]) == ["1 of 32", "1 of 24"]  # RL fails 0.8 and 0.6 of 40
    assert "`guiderail view`" in note and "`http://x/?template=b`" in note and "instances that both fail" in note
    assert [c.address for c in table["look"]] == ["http://x/?template=b", "http://x/?template=c"]
    assert heading == "Where RL is worse than SFT" and "1 of 2 are beyond chance" in note
    assert "1 with fewer than 10 paired instances are left out" in note
    assert list(table["template"]) == ["b, fresh", "c, fresh"] and list(table["beyond chance"]) == ["yes", "no"]
    assert list(table["difference"]) == ["-30.0 pp [-50.0, -10.0]", "-10.0 pp [-20.0, +10.0]"] and "recipe" not in table
    _, said, nothing = diagnosis._lost(lost[:1], True, lambda r: "")
    assert said.startswith("On no template") and nothing.empty


def test_the_explorer_shows_the_failures_that_a_link_names(world, tmp_path):
    rows, data, bench = world
    link = diagnosis.look(bench, "grpo", "fresh", "click-tab")
    base, _, asked = link.partition("/?")
    assert base == "http://127.0.0.1:8766"
    index = Index(results_folder(data), None, tmp_path / "index.sqlite")
    index.refresh()
    found = Explorer(index).page(Query.parse(parse_qsl(asked)))
    tab = (rows.template == "click-tab") & (rows.split == "fresh") & (rows.checkpoint == "rl")
    assert found["total"] == (tab & (rows.kind == "failure")).sum() == 2
    assert " " not in diagnosis.look(bench, "g", "fresh", "it's <b>)&x") and "<" not in link


def test_one_cause_has_one_name(world):
    _, _, bench = world
    assert [label for key, label, _ in figures.ENDS if key.split("/")[-1] in CAUSE] == [
        n[0].upper() + n[1:] for n in CAUSE.values()
    ]
    assert figures._end("failure", "agent_fail") == "failure/agent_fail"
    shown = diagnosis.reading(bench, diagnosis.causes(bench), diagnosis.worse(bench))[0][2]
    assert set(shown["cause"]) <= set(CAUSE.values()) and "meaning" not in shown
    assert all(f"`{key}`" in page.NAMES for key in CAUSE)


def test_causes_are_counted(world):
    rows, _, bench = world
    found = diagnosis.causes(bench)
    for checkpoint in ("base", "sft", "rl"):
        failed = rows[(rows.checkpoint == checkpoint) & (rows.kind == "failure")]
        own = found[found.checkpoint == checkpoint]
        assert dict(zip(own.cause, own.episodes, strict=True)) == failed.cause.value_counts().to_dict()
        assert own.share.sum() == pytest.approx(1.0)


def test_limits_follow_the_data(world):
    _, data, _ = world

    def told(summary):
        return {heading: " ".join(said) for heading, said in limits.limits(data, summary)}

    said = told(summarise(data))
    assert list(said) == ["Chance", "Tasks", "Episodes", "Records"]
    assert "(base)" in said["Episodes"] and "without a result" not in said["Episodes"]
    assert said["Chance"].startswith("One training seed") and "6 held-out templates" in said["Tasks"]
    assert "One suite (miniwob)" in said["Tasks"] and "only 2 instances" in said["Tasks"]
    many = json.loads(json.dumps(summarise(data)))
    for cell in many["benchmarks"]["miniwob"]["gain"]["grpo"].values():
        cell |= {"mean": 0.2, "lo": 0.19, "hi": 0.21}
    assert "holds zero" not in told(many)["Chance"] and "wider than" not in told(many)["Chance"]
    for split in ("fresh", "heldout"):
        many["benchmarks"]["miniwob"]["gain"]["grpo"][split] |= {"lo": -0.1}
    found = told(many)["Chance"]
    assert "2 of 3 gains of RL over SFT may be chance, since the interval holds zero: grpo (fresh, heldout)." in found
    assert "2 of 3 of their intervals are wider than 10 points, the widest 31 (grpo (heldout))" in found
    many["benchmarks"]["miniwob"]["coverage"]["grpo"]["rl"]["fresh"] = {"planned": 40, "measured": 38, "share": 0.95}
    assert "2 of 40 (rl grpo, fresh)" in told(many)["Episodes"]


def test_origins_come_from_the_records():
    made = {"rl/grpo/seed0": {"params": {"rl": {"lr": 0.5, "groups": 16}, }, "digest": "d" * 64,
            "git": {"commit": "a" * 40, "dirty": True}, "dvc_lock_sha256": "b" * 64,
            "inputs": {"src/guiderail/train": "1", "results/demos": "2"}}}  # fmt: skip
    assert origins.changed_params(made).to_dict("records") == [
        {"parameter": "rl.lr", "value": "0.5", "default": "0.0005"}
    ]
    changed = origins.changed_params(made, {"recipe": ["grpo", "rloo"], "seed": [0], "benchmark": ["miniwob"]})
    assert list(changed["parameter"]) == ["rl.lr", "sweep.recipe"] and changed["value"][1] == '["grpo", "rloo"]'
    assert origins.data_hashes(made).to_dict("records") == [
        {"data": "results/demos", "sha256": "2", "read by": "1 outputs"}
    ]
    assert origins.table(made).to_dict("records") == [
        {
            "output": "rl/grpo/seed0",
            "commit": "aaaaaaaaaaaa with changes in files not recorded",
            "dvc.lock": "b" * 12,
            "digest": "d" * 12,
        }
    ]
    assert origins.table({"x": {}}).iloc[0]["commit"] == "not recorded"
    named = {"git": {"commit": "a" * 40, "dirty": True, "changed": ["params.yaml", "b", "c", "d"]}}
    assert origins.table({"x": named}).iloc[0]["commit"] == "aaaaaaaaaaaa with changes in params.yaml, b, c and 1 more"


def test_the_page_names_the_commit_of_the_report(world, monkeypatch):
    _, data, _ = world
    state = {"commit": "c" * 40, "dirty": True, "changed": ["params.yaml"]}
    monkeypatch.setattr(origins, "git_state", lambda: state)
    (_, note, _), *_ = origins.reading(data)
    assert "This report was made by commit cccccccccccc with changes in params.yaml" in note
