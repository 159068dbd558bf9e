"""Evaluation: what is planned, what is refused, what is counted, what is remembered. No model and no browser."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from guiderail.bench import evaluate, records
from guiderail.bench.evaluate import Subject, check_subject, choose_strips, costs, last_attempts, measure, plan
from guiderail.bench.metrics import metrics
from guiderail.checkpoints import manifest as manifests
from guiderail.checkpoints.manifest import Manifest, TrainedOn
from guiderail.envs.types import Outcome
from guiderail.params import Evaluate, Provision
from guiderail.rollout.types import Completion, Episode, SamplingParams, StepRecord
from guiderail.tasks import splits
from guiderail.tasks.types import TaskSpec

SMALL = Provision(
    templates=["click-test", "click-button"], heldout=["click-test-2"], train_instances=3, fresh_instances=3,
    heldout_instances=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def manifest() -> splits.Manifest:
    return splits.build_manifest(SMALL)


def episode(task: TaskSpec, kind: str, cause: str = "env_done", *, sibling: int = 0, attempt: int = 0) -> Episode:
    reward = {"success": 1.0, "failure": 0.0}.get(kind)
    step = StepRecord(
        0, hashlib.sha256(task.id.encode()).hexdigest(), 0, 9, Completion((1, 2, 3), (-0.1,) * 3, "stop", "x"),
        SamplingParams(0.0), 'click "ok"', '{"kind":"Click","x":0.5,"y":0.5}', "", 0, 0.2, 0.1,
    )  # fmt: skip
    return Episode(
        f"{task.id}/{sibling}/{attempt}", task.id, sibling, attempt, task, "Click.", Outcome(kind, cause, reward),  # type: ignore[arg-type]
        (step,), last_frame=step.frame,
    )  # fmt: skip


def test_plan_plays_every_instance_and_greedy_never_repeats(manifest: splits.Manifest) -> None:
    jobs = plan(manifest, "miniwob", Evaluate())
    assert len(jobs) == 3 * 2 + 3 * 2 + 3 and {n for _, n in jobs} == {0}
    assert len(plan(manifest, "miniwob", Evaluate(episodes=2))) == 10
    assert len(plan(manifest, "miniwob", Evaluate(episodes=5))) == 15
    sampled = plan(manifest, "miniwob", Evaluate(episodes=5, temperature=1.0))
    assert len(sampled) == 25 and len(set(sampled)) == 25 and {n for _, n in sampled} == {0, 1}


def test_plan_refuses_another_suite(manifest: splits.Manifest) -> None:
    with pytest.raises(ValueError, match="suite 'miniwob'"):
        plan(manifest, "osworld", Evaluate())


def checkpoint(folder: Path, trained: TrainedOn) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    manifests.write(folder, Manifest(kind="full", stage="sft", trained_on=trained))
    return folder


def test_train_instances_are_allowed(manifest: splits.Manifest, tmp_path: Path) -> None:
    ids = tuple(t.id for t in splits.tasks(manifest, "train"))
    trained = TrainedOn(suite="miniwob", templates=("click-test",), instances=ids)
    assert set(check_subject(manifest, checkpoint(tmp_path / "c", trained)).instances) == set(ids)


@pytest.mark.parametrize("split", ["fresh", "heldout"])
def test_tested_instances_are_refused(manifest: splits.Manifest, tmp_path: Path, split: str) -> None:
    ids = (splits.tasks(manifest, split)[0].id,)
    with pytest.raises(splits.OverlapError, match=ids[0]):
        check_subject(manifest, checkpoint(tmp_path / "c", TrainedOn(suite="miniwob", instances=ids)))


def test_trained_heldout_template_is_refused(manifest: splits.Manifest, tmp_path: Path) -> None:
    trained = TrainedOn(suite="miniwob", templates=("click-test-2",))
    with pytest.raises(splits.OverlapError, match="click-test-2"):
        check_subject(manifest, checkpoint(tmp_path / "c", trained))
    check_subject(manifest, checkpoint(tmp_path / "d", TrainedOn(suite="other", templates=("click-test-2",))))


def test_a_flipped_byte_is_refused_and_a_foreign_model_is_not(manifest: splits.Manifest, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", TrainedOn())
    (folder / "model.safetensors").write_bytes(b"weighta")
    with pytest.raises(manifests.ManifestError, match=r"changed.*model\.safetensors"):
        check_subject(manifest, folder)
    (folder / manifests.FILE).unlink()
    assert check_subject(manifest, folder) == TrainedOn()


def test_last_attempt_counts_and_earlier_errors_are_named(manifest: splits.Manifest) -> None:
    a, b = splits.tasks(manifest, "fresh")[:2]
    played = [
        episode(a, "infra_error", "crash"), episode(a, "success", attempt=1),
        episode(b, "infra_error", "timeout"), episode(b, "infra_error", "crash", attempt=1),
    ]  # fmt: skip
    rows, again = last_attempts(played, "rl")
    assert again == {"infra_error/crash": 1, "infra_error/timeout": 1}
    assert len(rows) == 2 and records.outcomes(rows) == {a.id: 1.0}
    assert records.excluded(rows) == {"infra_error/crash": 1}


def test_repeats_of_an_instance_are_one_value(manifest: splits.Manifest) -> None:
    a = splits.tasks(manifest, "fresh")[0]
    rows, _ = last_attempts([episode(a, "success"), episode(a, "failure", sibling=1)], "rl")
    assert list(rows["episode"]) == [0, 1] and records.outcomes(rows) == {a.id: 0.5}


def test_strips_show_both_outcomes_of_different_templates(manifest: splits.Manifest) -> None:
    tasks = [t for s in ("train", "fresh", "heldout") for t in splits.tasks(manifest, s)]
    rows, _ = last_attempts(
        [episode(t, "success" if t.template != "click-test-2" else "failure") for t in tasks], "sft"
    )
    chosen = choose_strips(rows, 2)
    picked = {
        (r["template"], r["kind"], r["split"]) for r in rows.to_dict("records") if ("sft", r["task"], 0) in chosen
    }
    assert len(chosen) == 2 and {k for _, k, _ in picked} == {"success", "failure"}
    assert all(s != "train" for *_, s in picked) and choose_strips(rows, 0) == []


def played(manifest: splits.Manifest, calls: list[int], fail: bool = False) -> Any:
    def play(folder: Path) -> tuple[list[Episode], float]:
        calls.append(1)
        if fail:
            raise RuntimeError("killed")
        made = [episode(t, "success") for s in ("fresh", "heldout") for t in splits.tasks(manifest, s)]
        for e in made:
            (folder / f"{e.last_frame}.png").write_bytes(b"png")
        return made, 1.5

    return play


def test_results_are_remembered_by_identity(manifest: splits.Manifest, tmp_path: Path) -> None:
    calls: list[int] = []
    subject = Subject("base", tmp_path)
    first = measure(subject, {"w": 1}, tmp_path / "cache", 2, played(manifest, calls))
    again = measure(subject, {"w": 1}, tmp_path / "cache", 2, played(manifest, calls))
    assert (first.remembered, again.remembered, len(calls)) == (False, True, 1)
    assert again.rows.equals(first.rows) and again.strips == first.strips and len(again.strips) == 2
    assert len(list(again.frames.glob("*.png"))) == 2 and again.env_steps == 9 and again.tokens == 27
    assert costs([first]) == costs([again]) == {"env_steps": 9, "replay_steps": 0, "tokens": 27}
    assert costs([first, again]) == {"env_steps": 18, "replay_steps": 0, "tokens": 54} and costs([])["tokens"] == 0
    measure(subject, {"w": 2}, tmp_path / "cache", 2, played(manifest, calls))
    measure(Subject("sft", tmp_path), {"w": 1}, tmp_path / "cache", 2, played(manifest, calls))
    assert len(calls) == 3


def test_a_killed_evaluation_leaves_nothing_to_remember(manifest: splits.Manifest, tmp_path: Path) -> None:
    calls: list[int] = []
    with pytest.raises(RuntimeError, match="killed"):
        measure(Subject("rl", tmp_path), 1, tmp_path / "cache", 1, played(manifest, calls, fail=True))
    assert not measure(Subject("rl", tmp_path), 1, tmp_path / "cache", 1, played(manifest, calls)).remembered


def test_code_digest_follows_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "__init__.py").write_text("")
    monkeypatch.setattr(evaluate.guiderail, "__file__", str(tmp_path / "__init__.py"))
    before = evaluate.code_digest()
    (tmp_path / "envs" / "page.js").write_text("x")
    assert evaluate.code_digest() != before


def test_metrics_by_hand(manifest: splits.Manifest, tmp_path: Path) -> None:
    tasks = splits.tasks(manifest, "fresh")
    results = {}
    for name, wins in (("sft", 2), ("rl", 5)):
        made = [episode(t, "success" if i < wins else "failure") for i, t in enumerate(tasks)]
        rows, again = last_attempts(made, name)
        results[name] = evaluate.Result(rows, again, 6, 18, 1.0, tmp_path, [])
    found = metrics(results, Evaluate(bootstrap=200))
    cell = found["checkpoints"]["rl"]["splits"]["fresh"]
    assert cell["success"]["mean"] == pytest.approx(5 / 6) and (cell["planned"], cell["coverage"]) == (6, 1.0)
    assert set(found["gains"]) == {"sft->rl"}
    assert found["gains"]["sft->rl"]["fresh"]["mean"] == pytest.approx(0.5)
    assert sum(t["n"] for t in cell["templates"].values()) == 6
    json.dumps(found, allow_nan=False)
