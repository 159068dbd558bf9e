"""provision and demos: what is recorded is what was seen and done; never depending on the number of slots."""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guiderail.actions.wire import action_from_json
from guiderail.params import Env, Params
from guiderail.pool.client import PoolClient
from guiderail.pool.local import env_pool
from guiderail.stages import demos, provision
from guiderail.stages.context import StageContext
from guiderail.tasks import splits
from guiderail.tasks.types import TaskSpec

NAMES = ["click-button", "enter-text", "click-checkboxes"]
PARAMS: dict[str, Any] = {
    "provision": {
        "templates": NAMES,
        "heldout": ["click-link"],
        "train_instances": 2,
        "fresh_instances": 1,
        "heldout_instances": 1,
    },
    "demos": {"per_template": 3, "point_grid": 0.025},
    "env": {"slots": 2},
}


def run_both(root: Path, slots: int, pool: tuple[str, str]) -> Path:
    """Both stages below `root`, with `slots` workers on a running pool; returns the results folder."""
    params = Params.model_validate({**PARAMS, "env": {"slots": slots}})
    tracker = SimpleNamespace(log=lambda metrics, step: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("GUIDERAIL_POOL_TOKEN", pool[1])
        for stage, run in (("provision", provision.run), ("demos", demos.run)):
            out = root / "results" / stage
            out.mkdir(parents=True)
            run(StageContext(params, stage, {}, out, out, root / "work", tracker, pool[0]))  # type: ignore[arg-type]
    return root / "results"


@pytest.fixture(scope="module")
def pool() -> Iterator[tuple[str, str]]:
    with env_pool(Env(slots=2)) as address:
        yield address


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, pool: tuple[str, str]) -> Path:
    return run_both(tmp_path_factory.mktemp("two"), 2, pool)


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.mark.browser
def test_real_pages(results: Path, tmp_path: Path, pool: tuple[str, str]) -> None:
    tests = json.loads((results / "provision" / "selftest.json").read_text())
    assert set(tests) == {*NAMES, "click-link"}
    assert all(t["expert"] == 1.0 and t["noop"] == 0.0 for t in tests.values())

    manifest = splits.load_manifest(results / "provision" / "tasks.json")
    lines = [json.loads(line) for line in (results / "demos" / "demos.jsonl").read_text().splitlines()]
    assert [x["task"]["template"] for x in lines] == sorted(NAMES * 3)
    tested = {t.id for s in ("fresh", "heldout") for t in splits.tasks(manifest, s)}
    ids = [TaskSpec.from_json(x["task"]).id for x in lines]
    assert len(set(ids)) == 9 and not tested & set(ids)
    splits.check_no_overlap(manifest, ids)
    own = {t.id for t in splits.tasks(manifest, "train")}
    assert sum(i in own for i in ids) == 6  # two of three are the manifest's, the third is a further one
    frames = {p.stem: p.read_bytes() for p in (results / "demos" / "frames").iterdir()}
    assert all(hashlib.sha256(png).hexdigest() == sha for sha, png in frames.items())
    assert {s["frame"] for x in lines for s in x["steps"]} == set(frames)
    for line in lines:
        assert line["reward"] == 1.0 and line["steps"]
        for step in line["steps"]:
            action = action_from_json(step["action"])
            for v in (getattr(action, "x", 0.0), getattr(action, "y", 0.0)):
                assert abs(v / 0.025 - round(v / 0.025)) < 1e-6
    typed = [s for x in lines if x["task"]["template"] == "enter-text" for s in x["steps"]]
    assert {s["action"]["kind"] for s in typed} == {"Click", "Type"}

    assert tree(run_both(tmp_path, 1, pool)) == tree(results)


@pytest.mark.browser
def test_recorded_episodes_replay(results: Path, pool: tuple[str, str]) -> None:
    async def main() -> None:
        async with PoolClient(*pool) as client, client.env("replay") as env:
            for text in (results / "demos" / "demos.jsonl").read_text().splitlines():
                line = json.loads(text)
                result = await env.reset(TaskSpec.from_json(line["task"]))
                assert result.observation.instruction == line["instruction"]
                for step in line["steps"]:
                    assert result.observation.frame == step["frame"]  # the frame BEFORE the action
                    result = await env.step(action_from_json(step["action"]))
                assert result.done and await env.evaluate() == line["reward"]

    asyncio.run(main())


def test_instances_are_distinct_and_start_with_the_manifest() -> None:
    params = Params.model_validate(PARAMS).provision
    manifest = splits.build_manifest(params)
    got = [demos.instance(manifest, "click-button", i) for i in range(20)]
    assert got[:2] == [t for t in splits.tasks(manifest, "train") if t.template == "click-button"]
    assert len({t.seed for t in got}) == 20
    assert {splits.namespace_of(t.seed) for t in got} == {"train"}
    # a manifest with more train instances starts with the same ones
    more = splits.build_manifest(params.model_copy(update={"train_instances": 20}))
    assert [t.seed for t in splits.tasks(more, "train") if t.template == "click-button"] == [t.seed for t in got]


def test_a_failing_template_is_named() -> None:
    good = {"ok": True}
    bad = {
        "ok": False,
        "expert": 0.5,
        "noop": 0.0,
        "instances": 2,
        "failed": ["miniwob/click-tab/7/0"],
        "instruction": "Click on Tab #2.",
        "thoughts": ['click "Tab #1"'],
    }
    provision.check({"click-test": good})
    with pytest.raises(provision.SelfTestFailed, match=r"1 of 2 templates fail(.|\n)*click-tab: expert 0.50") as e:
        provision.check({"click-test": good, "click-tab": bad})
    assert "click-test" not in str(e.value)
