"""What the caches beside DVC are keyed by: nothing that changes a result may find the old one."""

import json
from types import SimpleNamespace

import pytest
from PIL import Image

from guiderail.bench import evaluate as bench
from guiderail.bench.recorded import android_trials
from guiderail.params import AndroidControl, Evaluate, Params
from guiderail.stages import evaluate_recorded, prm
from guiderail.stages.evaluate import Player

READ = [  # the single parameters that dvc.yaml lists for both stages
    {"env": {"step_ms": 301}},
    {"env": {"desktop": {"width": 1281}}},
    {"env": {"desktop": {"height": 721}}},
    {"model": {"dtype": "bfloat16"}},
    {"prompt": {"max_new_tokens": 29}},
]
KINDS = {
    "evaluate": lambda ctx, folder: Player(ctx, bench.Subject("base", folder), [], None).identity({"hash": "h"}),
    "prm": lambda ctx, folder: prm.identity(ctx, "h", folder),
}


@pytest.mark.parametrize("change", READ, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_that_dvc_tracks_changes_the_key(tmp_path, monkeypatch, kind, change):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(bench, "code_digest", lambda *parts: "code")

    def key(own):
        tree = Params().model_dump(mode="json")
        tree["model"]["path"] = str(tmp_path)
        for section, values in own.items():
            for name, value in values.items():
                tree[section][name] = tree[section][name] | value if isinstance(value, dict) else value
        ctx = SimpleNamespace(params=Params.model_validate_json(json.dumps(tree)), seed=0)
        return KINDS[kind](ctx, tmp_path)

    assert key({}) == key({}) and key(change) != key({})


def test_screenshots_are_part_of_the_key(tmp_path, monkeypatch):
    """Grey screens, the real ones, and others under the same names and of the same size are not the same test."""
    monkeypatch.setattr(bench, "code_digest", lambda *parts: "code")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    shots = tmp_path / "shots"
    shots.mkdir()
    wait = {"action_content": {"action": "wait"}, "check_options": {"action": "wait"}, "screenshot": "/x/7_0.png"}
    row = {"goal": "g", "is_successful": True, "episode_id": 7, "steps": [wait | {"step_instruction": "wait"}]}
    (tmp_path / "ac.jsonl").write_text(json.dumps(row) + "\n")

    def key(**told):
        trials = android_trials(
            Evaluate(android_control=AndroidControl(path=str(tmp_path / "ac.jsonl"), **told)), "high"
        )
        ctx = SimpleNamespace(params=Params())
        return evaluate_recorded.identity(ctx, bench.Subject("base", tmp_path / "model"), trials)

    blank, found = key(blank=True), []
    for grey in (1, 2):
        Image.new("L", (1080, 2400), grey).save(shots / "7_0.png")
        found += [key(frames=str(shots)), key(frames=str(shots))]
    assert found[0] == found[1] and found[2] == found[3] and found[0] != found[2]
    assert blank == key(blank=True) and blank not in found


def test_the_digest_of_code_takes_files_as_well_as_folders(tmp_path, monkeypatch):
    (tmp_path / "envs").mkdir()
    for name in ("__init__.py", "seeds.py", "envs/a.py"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(bench.guiderail, "__file__", str(tmp_path / "__init__.py"))
    before = bench.code_digest(("envs", "seeds.py"))
    (tmp_path / "seeds.py").write_text("# another")
    assert bench.code_digest(("envs", "seeds.py")) != before
