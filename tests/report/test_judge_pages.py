"""Process reward model and retrieval in the report: numbers of the sources, and nothing where nothing ran."""

import json

import numpy as np
import pandas as pd
import pytest
import synthetic

from guiderail.bench.calibration import Judged, calibration
from guiderail.bench.fact_table import beside
from guiderail.report import judges, page, retrieval
from guiderail.report.build import build
from guiderail.report.data import load
from guiderail.report.summary import Bench


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    root = tmp_path_factory.mktemp("plain")
    return root, synthetic.make(root, instances=2, keep_frames=False, seeds=(0, 1))


def written(params, root, out):
    out.mkdir()
    data = load(params, root)
    summary, sections = build(data, out)
    page.write_markdown(out / "report.md", "t", data, summary, sections)
    page.write_html(out / "index.html", "t", data, summary, sections)
    return data, json.loads((out / "summary.json").read_text())


def test_both(plain, tmp_path):
    root, params = plain
    for seed in (0, 1):
        file = root / f"evaluate/grpo/seed{seed}/miniwob/episodes.parquet"
        rows = pd.read_parquet(file)
        rows = rows[~rows["checkpoint"].str.endswith("_demo")]
        more = rows[rows["checkpoint"] != "rl"].copy()
        more["checkpoint"] = more["checkpoint"] + "_demo"
        more.loc[more["success"].notna(), "success"] = True  # retrieval solves everything
        pd.concat([rows, more]).to_parquet(file, index=False)
    rng = np.random.default_rng(0)
    drawn = enumerate(rng.random(50))
    judged = [Judged(float(p), bool(p > 0.4), f"t{i % 2}", "policy", "act", f"e{i}") for i, p in drawn]
    found = calibration(judged, bins=10, draws=100, confidence=0.95)
    found |= beside(judged, np.full(50, 0.5), bins=10, draws=100, confidence=0.95)
    folder = root / "prm/grpo/seed0/judge"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "calibration.json").write_text(json.dumps(found))
    data, summary = written(params, root, tmp_path / "out")

    assert summary["prm"]["grpo"]["0"]["auroc"]["mean"] == 1.0 and summary["prm"]["grpo"]["0"]["n"] == 50
    table = pd.read_csv(tmp_path / "out/prm.csv")
    assert table["template"].tolist() == ["all", "t0", "t1"] and table["n"].tolist() == [50, 25, 25]
    assert table["facts_auroc"].tolist() == [0.5] * 3 and table["over_facts"].tolist()[:1] == [0.5]
    assert (tmp_path / "out/figures/prm-reliability.svg").exists()
    text, html = (tmp_path / "out/report.md").read_text(), (tmp_path / "out/index.html").read_text()
    assert "## Process reward model" in text and "Judge of steps" in html and "prm/grpo/seed0" in text
    assert "+0.500" in text and "facts alone" in text

    older = {k: v for k, v in found.items() if k not in ("facts", "over_facts")}  # measured before the table was
    (folder / "calibration.json").write_text(json.dumps(older))
    table = judges.table(load(params, root))
    assert table["auroc"].tolist()[0] == 1.0 and table["facts_auroc"].isna().all() and table["over_facts"].isna().all()
    assert "facts alone" in judges.reading(table)[2].columns

    bench = Bench(data, "miniwob")
    cells = summary["retrieval"]["grpo"]
    assert set(cells) == {"base", "sft"} and bench.checkpoints == ["base", "sft", "rl"]  # other tables stay as they are
    for checkpoint, splits in cells.items():
        for split, cell in splits.items():
            assert cell["with"]["mean"] == 1.0 and cell["with"]["lo"] < 1.0
            known = summary["success"]["grpo"][checkpoint][split]
            assert [cell["without"][k] for k in ("mean", "n")] == [known[k] for k in ("mean", "n")]
            assert cell["gain"]["mean"] == pytest.approx(1.0 - cell["without"]["mean"])
    for checkpoint in ("base", "sft"):  # the base has no training seed and counts once
        measured = bench.rows("grpo", checkpoint, "fresh")["success"].notna().sum()
        assert cells[checkpoint]["fresh"]["gain"]["n"] == measured
    _, note, shown = retrieval.reading(bench, summary["retrieval"])
    assert list(shown.columns) == ["fine-tuning", "split", "without retrieval", "with retrieval", "difference", "n"]
    assert shown["fine-tuning"].tolist() == ["none (base)"] * 3 + ["SFT"] * 3 and "never of the same instance" in note
    assert len(pd.read_csv(tmp_path / "out/retrieval.csv")) == 2 * 3 * 3


def test_neither_appears_where_nothing_ran(tmp_path):
    params = synthetic.make(tmp_path, instances=2, keep_frames=False)
    data = load(params, tmp_path)
    assert data.prm == {} and retrieval.matrix(Bench(data, "miniwob")) == {}
    assert not [name for name in data.used if name.startswith("prm")]
