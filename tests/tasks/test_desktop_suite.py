"""The desktop suite: templates make checked tasks, train and held-out values are apart, experts read all wordings."""

import pytest

from guiderail.actions.types import Finish
from guiderail.tasks.desktop.every import combinations, every
from guiderail.tasks.desktop.experts import EXPERTS
from guiderail.tasks.desktop.office_experts import OFFICE_EXPERTS
from guiderail.tasks.desktop.suite import SOURCES, TEMPLATES, make
from guiderail.tasks.desktop.template import sources
from guiderail.tasks.experts.scene import Scene
from guiderail.tasks.instances import instance_seed, namespace_of
from guiderail.tasks.judges.registry import missing
from guiderail.tasks.osworld import TaskFileError
from guiderail.tasks.side_effects import changed, unasked
from guiderail.tasks.suites import get_suite, open_ended
from guiderail.tasks.types import TaskSpec

ALL = [(suite, name) for suite, found in TEMPLATES.items() for name in sorted(found)]


def spec(suite, name, namespace, i=0, wording=0):
    return TaskSpec(suite, name, instance_seed(namespace, name, i), "train", wording)


def test_the_suite():
    suite = get_suite("desktop")
    assert len(suite.templates) >= 20
    assert suite.open_ended and open_ended("desktop") and not open_ended("miniwob") and not open_ended("noop")
    assert suite.train and suite.heldout
    assert SOURCES["desktop"].keys() == EXPERTS.keys()
    assert suite.wordings == 3


def test_the_office_suite_is_one_of_its_own():
    """What is drawn from `desktop` does not depend on whether LibreOffice is there."""
    suite = get_suite("desktop_office")
    apps = [SOURCES["desktop_office"][n].own["domain"] for n in suite.templates]
    assert apps.count("calc") >= 2 and apps.count("writer") >= 2
    assert suite.open_ended and suite.train and suite.heldout and suite.wordings == 3
    assert not suite.templates.keys() & get_suite("desktop").templates.keys()
    assert len(get_suite("desktop").templates) == 27
    assert SOURCES["desktop_office"].keys() == OFFICE_EXPERTS.keys()


@pytest.mark.parametrize(("suite", "name"), ALL)
def test_instances_are_whole_tasks_with_values_of_their_split(suite, name):
    pools = SOURCES[suite][name].own["params"]
    for namespace in ("train", "fresh", "heldout", "rl"):
        task = spec(suite, name, namespace)
        assert namespace_of(task.seed) == namespace
        made = make(task)
        assert make(task) == made
        assert missing(made.task) == []
        assert "{" not in made.task.instruction
        side = "train" if namespace in ("train", "rl") else "heldout"
        for key, pool in pools.items():
            assert made.values[key] in pool[side]
        needed = [f["local_path"] for s in made.task.config if s.type == "upload_file" for f in s.parameters["files"]]
        assert set(needed) <= made.files.keys()


@pytest.mark.parametrize(("suite", "name"), ALL)
def test_every_wording_says_the_same_and_the_expert_ends(suite, name):
    template = TEMPLATES[suite][name]
    first = template.read(make(spec(suite, name, "train", wording=0)).task.instruction)
    for wording in range(3):
        assert template.read(make(spec(suite, name, "train", wording=wording)).task.instruction) == first
    everything = [
        {
            "role": role,
            "name": text,
            "text": "",
            "states": ["showing"],
            "app": "a",
            "x": 0.1,
            "y": 0.1,
            "w": 0.1,
            "h": 0.1,
        }
        for role in ("icon", "push-button", "check-box")
        for text in (
            "Replace all in:",
            "Replace All",
            "Close",
            "Save",
            "+",
            "*",
            "-",
            "OK",
            "archive",
            f"{first.get('file')}.txt",
        )
    ]
    done, instruction = [], make(spec(suite, name, "train")).task.instruction
    while (decision := template.expert(everything, instruction, len(done), done)) is not None:
        done.append(decision[0])
        assert "\n" not in decision[1]
    assert isinstance(done[-1], Finish)
    assert template.steps[0] <= len(done) <= template.steps[1] < template.max_steps


def test_every_instance_once():
    for name, count in (("editor-print", 10), ("calc-add", 72), ("editor-new-file", 104), ("files-rename", 46)):
        tasks = every("desktop", name)
        values = [tuple(sorted(make(t).values.items())) for t in tasks]
        assert len(tasks) == len(set(values)) == count == len({t.id for t in tasks})
        assert {t.wording for t in tasks} == {0, 1, 2}
        assert every("desktop", name, 5) == tasks[:5] and {t.split for t in tasks[:2]} == {"train", "fresh"}
    assert sum(combinations(s, side) for s in SOURCES["desktop"].values() for side in ("train", "heldout")) == 1191


def test_an_expert_that_does_not_see_its_target_stops():
    policy = EXPERTS["files-delete"]
    assert policy(Scene(()), {"file": "alpha"}, []) is None


def test_train_and_heldout_values_must_be_apart(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"guiderail": {"params": {"w": {"train": ["a"], "heldout": ["a"]}}}}')
    with pytest.raises(TaskFileError, match=r"guiderail\.params\.w"):
        sources(tmp_path)
    path.write_text("{}")
    with pytest.raises(TaskFileError, match="guiderail: missing"):
        sources(tmp_path)


def test_side_effects():
    class Entry:
        def __init__(self, digest, kind="file"):
            self.kind, self.digest = kind, digest

    before = {"a.txt": Entry("1"), "b.txt": Entry("2"), ".cache/x": Entry("3"), "work": Entry("", "folder")}
    after = {
        "a.txt": Entry("9"),
        "c.txt": Entry("2"),
        ".cache/x": Entry("4"),
        "work": Entry("", "folder"),
        "work/n": Entry("5"),
        "work/.~lock.a.docx#": Entry("6"),
    }
    lines = changed(before, after)
    assert lines == ["changed a.txt", "removed b.txt", "made c.txt", "made work/n"]
    assert unasked(lines, ["a.txt", "work"]) == ["removed b.txt", "made c.txt"]
