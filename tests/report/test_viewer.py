"""The explorer's index, questions and answers over HTTP, on a small store whose numbers are known."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
import viewer_world
from fastapi.testclient import TestClient
from PIL import Image
from viewer_world import HOSTILE, RUN

from guiderail.report.viewer import episode, export, server
from guiderail.report.viewer.index import Index
from guiderail.report.viewer.queries import Explorer
from guiderail.report.viewer.query import BadQuery, Query, match
from guiderail.report.viewer.reading import disagreement

GROUP = "miniwob/click-button/7/0/v0"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("viewer")
    viewer_world.make(root / "results")
    index = Index(root / "results", root / ".work")
    assert index.refresh() == 3 and index.problems == {}
    client = TestClient(server.build_app(index), base_url="http://127.0.0.1")
    return SimpleNamespace(root=root, index=index, explorer=Explorer(index), client=client)


def keys(world, *pairs):
    return [e["key"] for e in world.explorer.page(Query.parse(pairs))["episodes"]]


def test_counts_and_facets(world):
    page = world.explorer.page(Query.parse([]))
    assert page["total"] == page["all"] == 10
    assert page["facets"]["kind"] == [["rollout", 5], ["evaluation", 4], ["demo", 1]]
    assert dict(page["facets"]["outcome"]) == {"success": 5, "failure": 5}
    chosen = world.explorer.page(Query.parse([("outcome", "failure"), ("kind", "rollout")]))
    assert chosen["total"] == 3 and dict(chosen["facets"]["outcome"]) == {"failure": 3, "success": 2}
    assert dict(chosen["facets"]["kind"]) == {"rollout": 3, "evaluation": 2}  # what choosing it would give


def test_filters_sort_pages(world):
    assert len(keys(world, ("steps_min", "2"))) == 5 and len(keys(world, ("reward_max", "0"))) == 5
    assert keys(world, ("outcome", "no such")) == [] and keys(world, ("disagreement_min", "0")) == []
    best = keys(world, ("kind", "rollout"), ("sort", "-advantage"))
    assert best[0].endswith("/v0/2/0") and best[-1].endswith("click-drag/7/0/v0/0/0")  # unknown ones last, both ways
    assert keys(world, ("kind", "rollout"), ("sort", "advantage"))[-1].endswith("click-drag/7/0/v0/0/0")
    whole = keys(world)
    paged = [k for n in (1, 2, 3, 4) for k in keys(world, ("size", "3"), ("page", str(n)))]
    assert paged == whole and len(set(whole)) == 10


@pytest.mark.parametrize(
    "pairs", [("nonsense", "1"), ("sort", "id; DROP TABLE cells"), ("steps_min", "nan"), ("page", "x")]
)
def test_bad_questions_are_refused_by_name(world, pairs):
    with pytest.raises(BadQuery, match=pairs[0].split("_")[0]):
        Query.parse([pairs])
    assert world.client.get(f"/api/episodes?{pairs[0]}={quote(pairs[1])}").status_code == 400


def test_full_text_finds_instruction_and_action(world):
    assert len(keys(world, ("q", "hello wor"))) == 5  # typed by the failures
    assert keys(world, ("q", "click Ok"), ("kind", "demo")) == ["demos/miniwob/click-button/7/0"]
    assert keys(world, ("q", 'drag "OR 1=1" NEAR('), ("kind", "demo")) == []
    both = keys(world, ("q", "hello"), ("steps_min", "2"), ("sort", "-steps"))
    assert sorted(both) == sorted(keys(world, ("q", "hello")))
    assert match('say "hi" OR x*') == '"say"* "hi"* "OR"* "x"*'


def test_an_episode_has_all_that_was_stored_and_says_what_was_not(world):
    found = world.client.get(f"/api/episode?key={RUN}/{GROUP}/0/0").json()
    (step,) = found["steps"]
    assert step["tokens"]["behaviour"] == [-0.1, -2.0, -0.01] and step["advantage"] == 0.5
    assert step["tokens"]["trainer"] == pytest.approx([-0.1, -1.9, -0.01]) and step["tokens"]["texts"] is None
    assert step["sampling"]["seed"] == str(2**62 + 1) and step["votes"] is None and "votes" in found["missing"]
    command = f"guiderail replay {RUN}/{GROUP}/0/0 --results {world.root / 'results'}"
    assert found["replay"] == {"recorded": command, "policy": f"{command} --policy"}
    other = world.client.get(f"/api/episode?key={RUN}/{GROUP}/1/0").json()
    assert other["steps"][3]["parse_error"] == "no call in the text" and other["steps"][3]["action"] is None
    assert "trainer" in other["missing"] and other["steps"][0]["tokens"]["trainer"] is None
    evaluated = world.client.get("/api/episode?key=evaluate/grpo/seed0/miniwob/rl/miniwob/click-button/7/0/0").json()
    assert evaluated["steps"][0]["tokens"]["behaviour"] == [-0.1, -2.0, -0.01]
    assert "trainer" in evaluated["missing"] and "tokens" not in evaluated["missing"]
    assert {o["key"].split("/")[0] for o in evaluated["others"]} == {"evaluate", "rl", "demos"}


def test_what_an_episode_changed_beside_its_task(world):
    """Two files, none, and nobody looked: three answers that must not be taken for one another."""
    at = "evaluate/grpo/seed0/miniwob"

    def of(key):
        found = world.client.get(f"/api/episode?key={at}/{key}/7/0/0").json()
        return found["side_effects"], "side_effects" in found["missing"]

    assert of("sft/miniwob/click-drag") == (list(viewer_world.EFFECTS), False)
    assert of("rl/miniwob/click-button") == ([], False)
    assert of("sft/miniwob/click-button") == (None, True)


def test_it_answers_while_a_source_is_being_read(tmp_path, monkeypatch):
    """Episodes that are in the index and not yet counted (the first look at a run that goes on) are left out, whole."""
    viewer_world.make(tmp_path / "results")
    index = Index(tmp_path / "results", None, tmp_path / "index.sqlite")
    index.refresh()
    explorer = Explorer(index)
    monkeypatch.setattr("guiderail.report.viewer.index._count", lambda db: None)
    viewer_world.more(tmp_path / "results", 5)
    assert index.refresh() == 1
    explorer.warm()
    for pairs, total in (([], 10), ([("q", "click")], 10), ([("q", "click"), ("steps_min", "1")], 10)):
        page = explorer.page(Query.parse(pairs))
        assert page["total"] == total, pairs
    monkeypatch.undo()
    viewer_world.more(tmp_path / "results", 6)
    index.refresh()
    assert explorer.page(Query.parse([("q", "click")]))["total"] == 12


def test_it_says_how_far_the_index_is(tmp_path, monkeypatch):
    viewer_world.make(tmp_path / "results")
    index = Index(tmp_path / "results", None, tmp_path / "index.sqlite")
    client = TestClient(server.build_app(index), base_url="http://127.0.0.1")  # no lifespan: nothing is indexed yet
    assert client.get("/api/episodes").json()["indexing"] == [0, 0]
    seen, put = [], index._put

    def slow(db, source):
        seen.append(client.get("/api/state").json()["indexing"])
        put(db, source)

    monkeypatch.setattr(index, "_put", slow)
    index.refresh()
    assert seen == [[0, 3], [1, 3], [2, 3]]
    assert client.get("/api/state").json()["indexing"] is client.get("/api/episodes").json()["indexing"] is None


def test_the_same_task_elsewhere_is_counted_and_listed(world):
    task = "miniwob/click-button/7/0"
    found, many = world.explorer.same_task(task, f"{RUN}/{GROUP}/0/0", None, limit=4)
    assert many == 6 and [f["kind"] for f in found] == ["evaluation", "evaluation", "demo", "rollout"]
    found, many = world.explorer.same_task(task, f"{RUN}/{GROUP}/0/0", GROUP)
    assert many == len(found) == 3 and {f["kind"] for f in found} == {"evaluation", "demo"}
    assert len(keys(world, ("task", task))) == 7 and keys(world, ("task", "x")) == []
    assert len(keys(world, ("task", task), ("q", "hello"))) == 3
    assert len(keys(world, ("task", task), ("kind", "demo"))) == 1


def test_a_list_says_why_a_frame_is_not_there(world, tmp_path):
    assert world.client.get("/api/episodes").json()["no_frame"] == {}
    shutil.copytree(world.root / "results", tmp_path / "results")
    for folder in (tmp_path / "results").rglob("frames"):
        shutil.rmtree(folder)
    index = Index(tmp_path / "results", None, tmp_path / "index.sqlite")
    index.refresh()
    client = TestClient(server.build_app(index), base_url="http://127.0.0.1")
    found = client.get("/api/episodes?kind=rollout").json()
    assert list(found["no_frame"]) == ["rollout"] and "guiderail replay" in found["no_frame"]["rollout"]
    assert not any(e["frame_there"] for e in found["episodes"])


def test_group_and_comparison(world):
    rows = world.client.get(f"/api/group?run={RUN}&group={GROUP}").json()["episodes"]
    assert [(r["sibling"], r["reward"], r["advantage"]) for r in rows] == [
        (0, 1, 0.5),
        (1, 0, -0.5),
        (2, 1, 0.5),
        (3, 0, -0.5),
    ]
    a, b = (f"evaluate/grpo/seed0/miniwob/{c}/miniwob/click-button/7/0/0" for c in ("sft", "rl"))
    found = world.client.get(f"/api/compare?a={a}&b={b}").json()
    assert found["difference"] == {"step": 1, "what": "one of them has ended"}
    assert world.client.get(f"/api/compare?a={a}&b={a}").json()["difference"] is None
    s0, s1 = (f"{RUN}/{GROUP}/{n}/0" for n in (0, 1))
    assert world.client.get(f"/api/compare?a={s0}&b={s1}").json()["difference"]["what"] == "they act differently"


def test_a_judge_is_measured_against_the_outcome_by_hand():
    assert disagreement([1.0, None, 0.0], True) == 0.25  # mean 0.5 -> 0.75 against 1
    assert disagreement([-1.0], True) == 1.0 and disagreement([1.0], None) is None and disagreement([], False) is None


def test_the_index_follows_the_files(tmp_path):
    viewer_world.make(tmp_path / "results")
    index = Index(tmp_path / "results", tmp_path / ".work")
    explorer = Explorer(index)
    index.refresh()
    before = index.changes()
    assert index.refresh() == 0 and index.changes() == before
    viewer_world.more(tmp_path / "results", 1)
    assert index.refresh() == 1 and index.changes() > before
    assert explorer.page(Query.parse([("iteration_min", "0"), ("template", "click-new")]))["total"] == 1
    (tmp_path / "results/rl/grpo/seed0/rollouts/episodes.parquet/part-00002.parquet").write_bytes(b"not parquet")
    index.refresh()
    assert list(index.problems) == [
        str((tmp_path / "results").resolve() / "rl/grpo/seed0/rollouts/episodes.parquet/part-00002.parquet")
    ]
    shutil.rmtree(tmp_path / "results/evaluate")
    index.refresh()
    assert explorer.page(Query.parse([]))["total"] == 7 and explorer.page(Query.parse([("q", "hello")]))["total"] == 3
    (tmp_path / "broken.sqlite").write_bytes(b"no database")
    anew = Index(tmp_path / "results", tmp_path / ".work", tmp_path / "broken.sqlite")
    assert anew.refresh() == 4 and len(anew.problems) == 1  # three parts, one of them unreadable, and demos
    assert Explorer(anew).page(Query.parse([]))["total"] == 7


def test_an_attempt_is_live_until_it_is_published(tmp_path):
    viewer_world.make(tmp_path / "made")
    attempt = tmp_path / ".work/rl/abc"
    attempt.mkdir(parents=True)
    (tmp_path / "results").mkdir()
    shutil.move(tmp_path / "made/rl/grpo/seed0/rollouts", attempt / "rollouts")
    (attempt / "record.json").write_text(json.dumps({"stage": "rl", "axes": {"recipe": "grpo", "seed": "0"}}))
    index = Index(tmp_path / "results", tmp_path / ".work")
    index.refresh()
    client = TestClient(server.build_app(index), base_url="http://localhost")
    assert client.get("/api/state").json()["live"] == [RUN]
    key = f"live/{RUN}/{GROUP}/0/0"
    assert client.get(f"/api/episode?key={key}").json()["replay"]["policy"] is None
    (tmp_path / "results/rl/grpo/seed0").mkdir(parents=True)
    shutil.move(attempt / "rollouts", tmp_path / "results/rl/grpo/seed0/rollouts")
    index.refresh()
    assert client.get(f"/api/episode?key={key}").json()["key"] == f"{RUN}/{GROUP}/0/0"  # old links find it


def test_only_reading_only_loopback_only_own_files(world):
    c = world.client
    assert c.post("/api/state").status_code == 405
    assert c.get("/api/state", headers={"Host": "evil.example"}).status_code == 421
    assert c.get("/api/state", headers={"Host": "127.0.0.1.evil.example"}).status_code == 421
    for path in (
        "/frame/" + "0" * 64 + ".png",
        "/frame/..%2f..%2fx.png",
        "/static/..%2fserver.py",
        "/static/x.js",
        "/api/episode?key=x",
    ):
        assert c.get(path).status_code == 404, path
    reply = c.get("/")
    assert "script-src 'self'" in reply.headers["content-security-policy"]
    assert "unsafe" not in reply.headers["content-security-policy"]


def test_a_wider_server_demands_its_token(world):
    token = "t" * 24
    c = TestClient(server.build_app(world.index, token), base_url="http://box.example", follow_redirects=False)
    assert c.get("/").status_code == c.get("/api/state?token=wrong").status_code == 401
    assert c.get("/api/state", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    moved = c.get(f"/episode?key=a%2Fb&token={token}")
    assert moved.status_code == 303 and moved.headers["location"] == "/episode?key=a%2Fb"
    assert "httponly" in moved.headers["set-cookie"].lower() and c.get("/api/state").status_code == 200


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def test_exports_hold_everything_and_nothing_runs(world):
    key = f"{RUN}/miniwob/click-drag/7/0/v0/0/0"
    text = world.client.get(f"/export/html?key={key}").text
    tags = Tags()
    tags.feed(text)
    names = [t for t, _ in tags.seen]
    assert "script" not in names and names.count("img") == 5 and "&lt;script&gt;window.owned=1" in text
    assert all(a["src"].startswith("data:image/png;base64,") for t, a in tags.seen if t == "img")
    assert "\u202e" not in text and "\\u202e" in text
    gif = Image.open(io.BytesIO(world.client.get(f"/export/gif?key={key}").content))
    assert gif.format == "GIF" and gif.n_frames == 5
    found = episode.load(world.explorer.one(key), lambda sha: False) | {"replay": {"recorded": "x", "policy": None}}
    picture = re.search(r'src="data:image/png;base64,([^"]+)"', export.html(found, lambda sha: None))
    assert Image.open(io.BytesIO(base64.b64decode(picture[1]))).size[0] > 100  # a card that says it is not there


def test_hostile_text_survives_storage_and_json(world):
    key = "evaluate/grpo/seed0/miniwob/rl/miniwob/click-drag/7/0/0"
    assert world.client.get(f"/api/episode?key={key}").json()["steps"][0]["text"] == HOSTILE
    assert server.encode({"a": [float("nan"), "\ud800"]}) == b'{"a": [null, "\\ud800"]}'


def test_columns_of_the_store_are_those_we_read(world):
    there = set(pq.read_schema(world.root / "results/rl/grpo/seed0/rollouts/steps.parquet/part-00000.parquet").names)
    assert {"frame", "text", "action", "parse_error", "seconds_policy", "seconds_env", "ids", "logprobs"} <= there
    assert Path(server.STATIC / "index.html").exists()
