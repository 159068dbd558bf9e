"""The champion's gate on a registry in memory: what versions say of themselves, before and after they are beaten."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from guiderail.tracking_registry import Model, promote
from tracking_world import measured


class Registry:
    """The calls of an MLflow client that the gate makes, over plain dictionaries."""

    def __init__(self):
        self.versions, self.aliases, self.files = [], {}, {}

    def create_registered_model(self, name, description):
        assert "`champion`" in description

    def create_model_version(self, name, source, run_id, tags):
        made = SimpleNamespace(version=str(len(self.versions) + 1), tags=dict(tags), description="", source=source)
        self.versions.append(made)
        return made

    def search_model_versions(self, query):
        digest = re.search("sha256='(.*)'", query)[1]
        return [v for v in self.versions if v.tags["manifest_sha256"] == digest]

    def set_registered_model_alias(self, name, alias, version):
        self.aliases[alias] = version

    def get_model_version_by_alias(self, name, alias):
        from mlflow.exceptions import MlflowException
        from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

        if alias not in self.aliases:
            raise MlflowException("none", RESOURCE_DOES_NOT_EXIST)
        return self.versions[int(self.aliases[alias]) - 1]

    def set_model_version_tag(self, name, version, key, value):
        self.versions[int(version) - 1].tags[key] = value

    def update_model_version(self, name, version, description):
        self.versions[int(version) - 1].description = description

    def download_artifacts(self, run, file, folder):
        path = Path(folder) / file
        path.write_text(self.files[run])
        return str(path)


@pytest.fixture
def evaluate(tmp_path):
    """Lets a recipe that solves `won` of 40 tasks try; gives the registry."""
    registry = Registry()

    def once(recipe, won):
        run = SimpleNamespace(
            client=registry, run=f"run-{recipe}", local=True, alone=nullcontext, tags=lambda tags: None, root=tmp_path,
            artifact=lambda path, to: registry.files.update({f"run-{recipe}": path.read_text()}),
        )  # fmt: skip
        model = Model("m", tmp_path / "results" / recipe, f"{recipe:0<64}", {"recipe": recipe, "seed": "0"})

        def better(old):
            mean = won / 40 - sum(old.values()) / 40
            return mean, mean - 0.1, mean + 0.1, 40

        promote(run, model, measured(won), better)
        return registry

    return once


def test_a_champion_says_what_that_means_and_one_that_was_beaten_says_so(evaluate):
    evaluate("grpo", 10)
    (one,) = evaluate("grpo", 10).versions
    assert re.fullmatch(
        r"grpo-seed0: champion: the first to be measured on fresh of miniwob. "
        r"Since \d{4}-\d\d-\d\d; nothing stood against it on fresh of miniwob",
        one.description,  # the second time changed nothing
    )
    one, two = evaluate("rloo", 30).versions
    assert re.fullmatch(r"grpo-seed0: superseded by version 2 \(rloo-seed0\) on \d{4}-\d\d-\d\d", one.description)
    assert "champion" not in one.tags["gate.miniwob"]
    assert "rloo-seed0: champion: +50.0 points [+40.0, +60.0] against version 1 on fresh" in two.description
    assert "better, beyond the interval, than the champion before it (version 1) on fresh of mini" in two.description
    registry = evaluate("gigpo", 31)
    assert registry.versions[2].description.startswith("gigpo-seed0: not champion: +2.5 points [-7.5, +12.5]")
    assert [v.source for v in registry.versions] == [
        "results/grpo",
        "results/rloo",
        "results/gigpo",
    ]  # no machine's path
    assert registry.aliases["champion"] == "2" and json.loads(registry.files["run-gigpo"])["split"] == "fresh"
