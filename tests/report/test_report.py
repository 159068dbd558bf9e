"""The report from a synthetic results tree: figures that agree, pages that cannot be broken into, bytes that repeat."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic

from guiderail.params import Params
from guiderail.report import curves, page, tables
from guiderail.report.build import build
from guiderail.report.data import ReportError, load, read_curves
from guiderail.report.summary import Bench, summarise
from guiderail.report.viewer import names
from guiderail.report.viewer.index import Index
from guiderail.report.viewer.queries import Explorer

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>$\\frac{|`[a](http://x)\u202e\x07"


@dataclass
class Made:
    results: Path
    params: Params
    out: Path


def write(results: Path, params: Params, out: Path) -> None:
    data = load(params, results)
    out.mkdir()
    summary, sections = build(data, out)
    page.write_markdown(out / "report.md", HOSTILE, data, summary, sections)
    page.write_html(out / "index.html", HOSTILE, data, summary, sections)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("report")
    params = synthetic.make(root / "results", instances=3, hostile=HOSTILE)
    write(root / "results", params, root / "out")
    return Made(root / "results", params, root / "out")


def test_summary_has_the_published_layout_and_the_counted_means(made: Made) -> None:
    summary = json.loads((made.out / "summary.json").read_text())
    rows = pd.read_parquet(made.results / "evaluate/grpo/seed0/miniwob/episodes.parquet")
    for checkpoint in ("base", "sft", "rl"):
        for split in ("train", "fresh", "heldout"):
            part = rows[(rows.checkpoint == checkpoint) & (rows.split == split) & rows.success.notna()]
            cell = summary["success"]["grpo"][checkpoint][split]
            assert set(cell) == {"mean", "lo", "hi", "n"}
            assert cell["n"] == len(part) and cell["mean"] == pytest.approx(part.success.astype(float).mean())
            assert cell["lo"] <= cell["mean"] <= cell["hi"]
    fresh = rows[(rows.split == "fresh") & rows.success.notna()]
    wins = {c: dict(zip(p.task, p.success.astype(float), strict=True)) for c, p in fresh.groupby("checkpoint")}
    both = [wins["rl"][t] - wins["sft"][t] for t in wins["sft"] if t in wins["rl"]]
    gain = summary["gain"]["grpo"]["fresh"]
    assert set(gain) == {"mean", "lo", "hi", "n"} and gain["n"] == len(both)
    assert gain["mean"] == pytest.approx(float(np.mean(both)))


def test_excluded_episodes_are_counted_and_enter_no_mean(tmp_path: Path) -> None:
    params = synthetic.make(tmp_path, instances=2, keep_frames=False)
    file = tmp_path / "evaluate/grpo/seed0/miniwob/episodes.parquet"
    rows = pd.read_parquet(file)
    spoiled = (rows.checkpoint == "rl") & (rows.template == "click-tab") & (rows.split == "fresh")
    rows.loc[spoiled, ["success", "reward"]] = pd.NA
    rows.loc[spoiled, ["kind", "cause"]] = ["infra_error", "timeout"]
    rows.to_parquet(file, index=False)
    data = load(params, tmp_path)
    tree = summarise(data)
    assert tree["excluded"]["grpo"]["rl"]["fresh"]["infra_error/timeout"] == 2
    cover = tree["coverage"]["grpo"]["rl"]["fresh"]
    assert cover["planned"] == 40 and cover["measured"] == tree["success"]["grpo"]["rl"]["fresh"]["n"] <= 38
    table = tables.group_table(Bench(data, "miniwob"), "template")
    lost = table[(table.template == "click-tab") & (table.split == "fresh") & (table.checkpoint == "rl")].iloc[0]
    assert lost["n"] == 0 and pd.isna(lost["mean"])


def test_each_strip_names_its_episode_and_how_to_play_it_again(made: Made) -> None:
    data = load(made.params, made.results)
    strips = json.loads((made.results / "evaluate/grpo/seed0/miniwob/metrics.json").read_text())["strips"]
    checkpoint, task, number = strips[0]
    name = f"evaluate/grpo/seed0/miniwob/{checkpoint}/{task}/{number}"
    index = Index(made.results, None, made.results.parent / "index.sqlite")
    index.refresh()
    assert Explorer(index).one(name) is not None  # what the explorer and `guiderail replay` call it
    for page_of in ("report.md", "index.html"):
        text = (made.out / page_of).read_text()
        assert text.count("guiderail replay evaluate/") == len(strips) and f"guiderail replay {name}" in text
    assert names.commands({"run": "evaluate/grpo/seed0/sop"}, made.results) == {"recorded": None, "policy": None}
    assert data.recipes == ["grpo"] and "RL (grpo) solves" in (made.out / "report.md").read_text().split("##")[0]


@pytest.mark.parametrize(
    ("gain", "kind"),
    [
        ((0.1, 0.05, 0.2), "gain"),
        ((0.1, -0.05, 0.2), "open"),
        ((-0.1, -0.2, -0.05), "loss"),
        ((-0.1, -0.2, 0.1), "open"),
    ],
)
def test_only_a_gain_beyond_chance_is_green(made: Made, gain: tuple[float, float, float], kind: str) -> None:
    summary = json.loads((made.out / "summary.json").read_text())
    summary["gain"]["grpo"]["fresh"] = dict(zip(("mean", "lo", "hi"), gain, strict=True)) | {"n": 40}
    (card,) = [c for c in page._cards(summary, load(made.params, made.results)) if "over SFT" in c["name"]]
    assert card["kind"] == kind
    assert ".card.gain { border-top-color: var(--gain)" in page.TEMPLATE.read_text()
    assert ".card.open" not in page.TEMPLATE.read_text()


def test_totals_come_from_provenance_and_metrics(made: Made) -> None:
    summary = json.loads((made.out / "summary.json").read_text())
    assert summary["stages"]["rl/grpo/seed0"] == {
        "seconds": 330.0, "cpu_seconds": None, "peak_memory_bytes": int(8e8 + 330e6), "env_steps": 4000,
        "replay_steps": None, "tokens": 90000, "remembered_steps": None, "remembered_tokens": None,
    }  # fmt: skip
    assert summary["totals"]["seconds"] == 20 + 35 + 95 + 330 + 6 + 110
    assert summary["totals"]["peak_memory_bytes"] == int(8e8 + 330e6)
    assert summary["missing"] == []


def test_memory_is_pss_where_recorded_and_the_report_says_which(tmp_path: Path) -> None:
    params = synthetic.make(tmp_path / "results", instances=1, keep_frames=False)

    def markdown(out: Path) -> str:
        write(tmp_path / "results", params, out)
        return (out / "report.md").read_text()

    text = markdown(tmp_path / "all")
    assert "proportional set sizes (PSS)" in text and "RSS" not in text and "resident" not in text
    file = tmp_path / "results/demos/provenance.json"
    file.write_text(json.dumps({"cost": {"seconds": 1.0, "peak_rss_bytes": 5 * 2**30}}))  # written before PSS was
    data = load(params, tmp_path / "results")
    assert data.used["demos"]["peak_memory_bytes"] == 5 * 2**30 and data.rss_only == ["demos"]
    text = markdown(tmp_path / "mixed")
    assert "For demos only resident set sizes are recorded" in text
    for file in (tmp_path / "results").rglob("provenance.json"):
        file.write_text(json.dumps({"cost": {"seconds": 1.0, "peak_rss_bytes": 2**30}}))
    text = markdown(tmp_path / "old")
    assert "resident set sizes (RSS)" in text and "PSS" not in text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_html_is_one_file_and_hostile_text_stays_text(made: Made) -> None:
    text = (made.out / "index.html").read_text()
    tags = Tags()
    tags.feed(text)
    assert [t for t, _ in tags.seen].count("script") == 1
    assert not [a for _, attrs in tags.seen for a in attrs if a.startswith("on")]
    for tag, attrs in tags.seen:
        for name in ("src", "href"):
            value = attrs.get(name)
            assert value is None or value.startswith(("data:image/", "#", "http://127.0.0.1:8766/?")), (tag, value)
    assert "&lt;script&gt;alert(1)" in text  # shown, so the model's words are there
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    policy = next(a["content"] for t, a in tags.seen if t == "meta" and a.get("http-equiv"))
    import base64

    assert script and policy
    digest = base64.b64encode(hashlib.sha256(script.group(1).encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and policy.startswith("default-src 'none'")


def test_every_section_can_be_reached_and_the_page_has_a_dark_side(made: Made) -> None:
    text = (made.out / "index.html").read_text()
    tags = Tags()
    tags.feed(text)
    ids = {a["id"] for _, a in tags.seen if a.get("id")}
    links = [str(a["href"])[1:] for _, a in tags.seen if str(a.get("href", "")).startswith("#")]
    assert len(ids) == len([1 for _, a in tags.seen if a.get("id")]) and set(links) <= ids
    assert {"success", "why-episodes-fail", "where-rl-is-worse-than-sft", "film-strips", "costs"} <= set(links)
    style = re.sub(r":root \{[^}]*\}", "", text.partition("<style>")[2].partition("</style>")[0])
    assert "prefers-color-scheme: dark" in style and not re.search(r"(color|background): *#", style)


def test_backticks_are_code(made: Made) -> None:
    assert str(page.code("a <b> `x <i>` `")) == "a &lt;b&gt; <code>x &lt;i&gt;</code> `"
    assert tables.prose("a_b `x_y <i>` `") == "a\\_b `x_y <i>` \\`"
    html = (made.out / "index.html").read_text().partition('id="film-strips"')[0]
    assert "`guiderail" not in html and "`provision" not in html


def test_numbers_stand_right_and_words_left() -> None:
    words = pd.DataFrame(
        [["a", "12.3 % [1, 2]", "-1.0 pp [-2, +1]", "base", "no gain", "3"], ["b", "n/a", "", "rl", "5", "4"]]
    )
    assert tables.worded(words) == [True, False, False, True, False, False]
    rule = tables.markdown(words).splitlines()[1]
    assert rule == "| :-- | --: | --: | :-- | --: | --: |"


def test_what_else_changed_is_told_per_task(made: Made) -> None:
    """Only of the template that was looked at; of three instances the second made a file."""
    rows = pd.read_csv(made.out / "side_effects.csv")
    assert set(rows["template"]) == {"click-tab"} and set(rows["split"]) == {"train", "fresh"}
    assert rows["looked at"].tolist() == [3] * 6 and rows["with side effects"].tolist() == [1] * 6
    assert set(rows["unexpected changes"]) == {f"1x made {HOSTILE}"}
    assert "What else changed" in (made.out / "report.md").read_text()


def test_markdown_tables_hold_and_links_exist(made: Made) -> None:
    text = (made.out / "report.md").read_text()
    assert "<script" not in text and "<img" not in text
    for target in re.findall(r"^!\[.*\]\((.*)\)$", text, re.MULTILINE):
        assert (made.out / target).exists(), target
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    assert widths and min(widths) >= 4


def test_svgs_are_well_formed_and_carry_no_date(made: Made) -> None:
    files = sorted((made.out / "figures").glob("*.svg"))
    assert {f.stem for f in files} == {
        "success", "templates", "heat", "episode-ends", "rl-curves", "sft-curves", "stage-seconds",
    }  # fmt: skip
    for f in files:
        ET.fromstring(f.read_text())
        assert "<dc:date>" not in f.read_text()


def test_same_inputs_same_bytes(made: Made, tmp_path: Path) -> None:
    write(made.results, made.params, tmp_path / "again")
    names = sorted(p.relative_to(made.out) for p in made.out.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(tmp_path / "again") for p in (tmp_path / "again").rglob("*") if p.is_file())
    assert [n for n in names if (made.out / n).read_bytes() != (tmp_path / "again" / n).read_bytes()] == []


def test_points_come_from_the_sweep_not_from_the_disk(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.results, tmp_path / "results")
    shutil.copytree(tmp_path / "results/evaluate/grpo", tmp_path / "results/evaluate/left_over")
    assert load(made.params, tmp_path / "results").recipes == ["grpo"]
    more = Params.model_validate({"sweep": {"seed": [0, 7]}})
    with pytest.raises(ReportError, match="guiderail evaluate --recipe grpo --seed 7 --benchmark miniwob"):
        load(more, tmp_path / "results")
    (tmp_path / "results/sft/seed0/curves.jsonl").unlink()
    assert load(made.params, tmp_path / "results").missing == ["sft/seed0/curves.jsonl"]


def test_the_base_counts_once_over_seeds(tmp_path: Path) -> None:
    params = synthetic.make(tmp_path, seeds=(0, 1), instances=1, keep_frames=False)
    tree = summarise(load(params, tmp_path))
    assert tree["coverage"]["grpo"]["base"]["fresh"]["planned"] == 20
    assert tree["coverage"]["grpo"]["sft"]["fresh"]["planned"] == 40


def test_success_csv_matches_the_summary(made: Made) -> None:
    summary = json.loads((made.out / "summary.json").read_text())
    with (made.out / "success.csv").open() as f:
        for row in csv.DictReader(f):
            cell = summary["success"][row["recipe"]][row["checkpoint"]][row["split"]]
            assert float(row["mean"]) == pytest.approx(cell["mean"], abs=1e-5) and int(row["n"]) == cell["n"]


def test_curves_of_a_resumed_run_and_a_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "curves.jsonl"
    file.write_text('{"step": 0, "loss": 2.0}\n{"step": 1, "loss": 9.0}\n{"step": 1, "loss": 1.0, "kl": null}\n')
    frame = read_curves(file)
    assert list(frame["loss"]) == [2.0, 1.0] and "kl" not in frame
    file.write_text('{"step": 0, "lo')
    with pytest.raises(ReportError, match=r"curves.jsonl:1: not JSON"):
        read_curves(file)


def test_smoothing_by_hand() -> None:
    got = curves.smooth(np.array([0.0, 3.0, 6.0, np.nan]), 3)
    assert got.tolist() == [1.5, 3.0, 4.5, 6.0]


@pytest.mark.parametrize(
    ("text", "shown"), [("a|b\nc", "a\\|b c"), ("<b>", "&lt;b&gt;"), ("[x](y)", "\\[x\\](y)"), ("`c`", "\\`c\\`")]
)
def test_markdown_escapes(text: str, shown: str) -> None:
    assert tables.escape_markdown(text) == shown
