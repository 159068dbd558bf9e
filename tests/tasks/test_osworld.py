"""OSWorld's task files: all of upstream's load, what is wrong is told by file and field, what is lacking is counted."""

import copy
import json
import os
from pathlib import Path

import pytest

from guiderail.tasks.judges.registry import METRICS, missing
from guiderail.tasks.osworld import TaskFileError
from guiderail.tasks.osworld_files import load_folder, load_lists, load_task
from guiderail.tasks.osworld_needs import needs, report
from guiderail.tasks.osworld_parse import parse_task
from guiderail.tasks.osworld_words import FUNCS

DATA = Path(os.environ.get("GUIDERAIL_OSWORLD", "nowhere"))
URL = "https://huggingface.co/datasets/x/y/resolve/main/a.xlsx"
TASK = {
    "id": "01b269ae",
    "snapshot": "libreoffice_calc",
    "instruction": "Fill the blanks.",
    "source": "x",
    "config": [
        {"type": "download", "parameters": {"files": [{"url": URL, "path": "/home/user/a.xlsx"}]}},
        {"type": "open", "parameters": {"path": "/home/user/a.xlsx"}},
    ],
    "trajectory": "trajectories/",
    "related_apps": ["libreoffice_calc"],
    "evaluator": {
        "postconfig": [{"type": "sleep", "parameters": {"seconds": 0.5}}],
        "func": "compare_table",
        "result": {"type": "vm_file", "path": "/home/user/a.xlsx", "dest": "a.xlsx"},
        "expected": {"type": "cloud_file", "path": URL, "dest": "gold.xlsx"},
        "options": {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]},
    },
    "proxy": False,
    "fixed_ip": False,
    "possibility_of_env_change": "low",
}


def changed(path, value):
    """TASK with the field at a dotted path set (value ... deletes it)."""
    data = copy.deepcopy(TASK)
    *way, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    at = data
    for p in way:
        at = at[p]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return data


def test_a_task_as_upstream_writes_it():
    task = parse_task(TASK, "examples/libreoffice_calc/01b269ae.json")
    assert task.name == "libreoffice_calc/01b269ae"
    assert [s.type for s in task.steps] == ["download", "open", "sleep"]
    (check,) = task.checks
    assert (check.func, check.result["dest"], check.expected["type"]) == ("compare_table", "a.xlsx", "cloud_file")
    assert not missing(task)
    found = needs(task)
    assert (found.downloads, found.hosts, found.chrome, found.covered) == (1, (), False, True)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("instruction", ..., "instruction"),
        ("instruction", " ", "instruction"),
        ("instruction", 3, "instruction"),
        ("id", "a/b", "id"),
        ("related_apps", ["mousepod"], "related_apps: 'mousepod'.*Did you mean mousepad"),
        ("proxy", "yes", "proxy"),
        ("config.0.type", "downlod", r"config\[0\].type: 'downlod'.*Did you mean download"),
        ("config.0.parameters.files", [], r"config\[0\].parameters.files"),
        ("config.0.parameters.files.0.url", "file:///etc/passwd", r"config\[0\].parameters.files\[0\].url"),
        ("config.0.parameters.files.0.path", ..., r"config\[0\].parameters.files\[0\].path"),
        ("config.1.parameters", [], r"config\[1\].parameters"),
        ("config", [{"type": "launch", "parameters": {"command": []}}], r"config\[0\].parameters.command"),
        ("config", [{"type": "sleep", "parameters": {"seconds": -1}}], r"config\[0\].parameters.seconds"),
        ("config", [{"type": "sleep", "parameters": {"seconds": 1e9}}], r"config\[0\].parameters.seconds"),
        (
            "config",
            [{"type": "upload_file", "parameters": {"files": [{"local_path": "../x", "path": "/a"}]}}],
            "config",
        ),
        ("config", [{"type": "upload_file", "parameters": {"files": [{"local_path": "x", "path": "a"}]}}], "config"),
        (
            "config",
            [{"type": "execute", "parameters": {"command": "ls", "stdout": "/etc/cron.d/x"}}],
            r"config\[0\].parameters.stdout",
        ),
        ("evaluator.func", "compare_tabel", "evaluator.func: 'compare_tabel'.*Did you mean compare_table"),
        ("evaluator.func", [], "evaluator.func"),
        ("evaluator.func", ["compare_table", "exact_match"], "evaluator.result: must be a list"),
        ("evaluator.conj", "xor", "evaluator.conj"),
        ("evaluator.result", ..., "evaluator.result"),
        ("evaluator.result.type", "vm_fiel", "evaluator.result.type: 'vm_fiel'.*Did you mean vm_file"),
        ("evaluator.result.dest", ..., "evaluator.result.dest"),
        ("evaluator.result.dest", "../../a.xlsx", r"evaluator.result\[0\]"),
        ("evaluator.expected.dest", "/etc/passwd", r"evaluator.expected\[0\]"),
        ("evaluator.options", [1], "evaluator.options"),
        ("evaluator", [], "evaluator"),
    ],
)
def test_what_is_wrong_is_told_by_file_and_field(path, value, field):
    with pytest.raises(TaskFileError, match=f"^task.json: {field}"):
        parse_task(changed(path, value), "task.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"a"', "[" * 100_000, b"\xff\xfe{"])
def test_what_is_no_task_file_is_refused(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TaskFileError, match=r"t\.json"):
        load_task(path)


def test_a_folder_without_tasks_or_with_a_list_that_leaves_it(tmp_path):
    with pytest.raises(TaskFileError, match="no task files"):
        load_folder(tmp_path)
    (tmp_path / "examples" / "os").mkdir(parents=True)
    (tmp_path / "examples" / "os" / "a.json").write_text(json.dumps(TASK))
    (tmp_path / "all.json").write_text(json.dumps({"os": ["a"]}))
    assert load_lists(tmp_path) == {"all": ["os/a.json"]}
    for ids in (["b"], ["../../a"]):
        (tmp_path / "all.json").write_text(json.dumps({"os": ids}))
        with pytest.raises(TaskFileError, match=r"all\.json"):
            load_lists(tmp_path)


def test_what_we_lack_is_listed():
    task = parse_task(changed("config.0", {"type": "login", "parameters": {"platform": "googledrive"}}), "a/b.json")
    assert missing(task) == ["step login"]
    assert needs(task).accounts == ("google",)
    assert "a/b  step login" in report([task])


def test_every_metric_we_claim_is_a_word_and_a_function():
    import importlib

    assert METRICS.keys() <= FUNCS
    for name in METRICS.values():
        module, _, function = name.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.skipif(not DATA.is_dir(), reason="GUIDERAIL_OSWORLD does not name a folder of OSWorld's tasks")
def test_all_of_upstreams_tasks_load_and_most_are_covered():
    tasks = load_folder(DATA)
    lists = load_lists(DATA)
    assert len(tasks) == 370
    assert len(lists["test_all"]) == 369
    assert lists["train_nochrome"] == lists["test_nochrome"]  # upstream trains on its test list
    found = [needs(t) for t in tasks]
    assert sum(n.proxy for n in found) == 52
    assert sum(n.fixed_ip for n in found) == 8
    assert sum(n.infeasible for n in found) == 30
    assert sum(n.covered for n in found) >= 0.6 * 370


def suite_params(**more):
    from guiderail.params import Provision

    return Provision(suite="osworld", **more)


def test_a_folder_of_tasks_is_a_suite(tmp_path, monkeypatch):
    from guiderail.params import ParamError
    from guiderail.tasks import splits
    from guiderail.tasks.suites import choose, open_ended

    monkeypatch.delenv("GUIDERAIL_OSWORLD", raising=False)
    with pytest.raises(ParamError, match="GUIDERAIL_OSWORLD"):
        choose(suite_params())
    folder = tmp_path / "examples" / "os"
    folder.mkdir(parents=True)
    for i in range(9):
        (folder / f"t{i}.json").write_text(json.dumps(TASK))
    (folder / "login.json").write_text(
        json.dumps(changed("config.0", {"type": "login", "parameters": {"platform": "x"}}))
    )
    monkeypatch.setenv("GUIDERAIL_OSWORLD", str(tmp_path))
    suite, train, heldout = choose(suite_params())
    assert {*train, *heldout} == {f"os.t{i}" for i in range(9)} and train and heldout
    assert suite.single and open_ended("osworld")
    manifest = splits.build_manifest(suite_params(fresh_instances=5, train_instances=5))
    assert [len(manifest["splits"][s]) for s in ("train", "fresh", "heldout")] == [len(train), 0, len(heldout)]
    with pytest.raises(ParamError, match=r"login\.json: not implemented: step login"):
        choose(suite_params(templates=["os.login"]))
    bad = tmp_path / "2" / "examples" / "os"
    bad.mkdir(parents=True)
    (bad / "b.json").write_text(json.dumps(changed("evaluator.func", "compare_tabel")))
    monkeypatch.setenv("GUIDERAIL_OSWORLD", str(tmp_path / "2"))
    with pytest.raises(ParamError, match=r"b\.json: evaluator\.func: 'compare_tabel'.*Did you mean compare_table"):
        choose(suite_params())
