"""The judge: combination and infeasible rules, and a child process whose faults are never a score."""

import asyncio

import pytest
from guests import FakeGuest

from guiderail.tasks.assets import AssetCache
from guiderail.tasks.guest import Executed
from guiderail.tasks.judges.judge import JudgeError, Limits, combine, judge
from guiderail.tasks.osworld_parse import parse_task
from guiderail.tasks.osworld_setup import Place, SetupError, run_steps

FILE = "/home/user/a.txt"
CONTAINS = {
    "func": "file_contains",
    "result": {"type": "vm_file", "path": FILE, "dest": "a.txt"},
    "expected": {"type": "rule", "rules": {"expected": ["yes"]}},
}
URL = "http://x.test/gold.xlsx"


def task(evaluator, config=()):
    return parse_task({"id": "t", "instruction": "do", "config": list(config), "evaluator": evaluator}, "d/t.json")


def ask(evaluator, tmp_path, files=None, said="", limits=Limits(), **more):
    cache = AssetCache(tmp_path / "cache", offline=True)
    for url, data in more.get("assets", {}).items():
        cache.add(url, data)
    guest = FakeGuest(files, more.get("outputs"))
    return asyncio.run(judge(task(evaluator), guest, cache, tmp_path / "scratch", said, limits))


@pytest.mark.parametrize(
    ("scores", "conj", "wanted"),
    [
        ([1, 1], "and", 1),
        ([1, 0], "and", 0),
        ([1, 0.5], "and", 0.75),
        ([0, 0.4], "or", 0.4),
        ([1, 0], "or", 1),
        ([0.3], "and", 0.3),
    ],
)
def test_combination(scores, conj, wanted):
    assert combine([float(s) for s in scores], conj) == wanted


def test_only_a_fail_of_the_model_makes_an_infeasible_task_a_success(tmp_path):
    for said, wanted in (("failure", 1.0), ("success", 0.0), ("", 0.0)):  # "": the steps ran out
        assert ask({"func": "infeasible"}, tmp_path, said=said) == wanted
    assert ask(CONTAINS, tmp_path, {FILE: b"yes"}, said="failure") == 0


def test_a_file_of_the_guest(tmp_path):
    assert ask(CONTAINS, tmp_path / "1", {FILE: b"oh yes"}) == 1
    assert ask(CONTAINS, tmp_path / "2", {FILE: b"no"}) == 0
    assert ask(CONTAINS, tmp_path / "3") == 0


def test_result_and_expected_of_one_name_do_not_hide_each_other(tmp_path):
    evaluator = {  # upstream lets the second overwrite the first
        "func": "compare_text_file",
        "result": {"type": "vm_file", "path": FILE, "dest": "same.txt"},
        "expected": {"type": "cloud_file", "path": URL, "dest": "same.txt"},
    }
    assert ask(evaluator, tmp_path / "1", {FILE: b"a"}, assets={URL: b"b"}) == 0
    assert ask(evaluator, tmp_path / "2", {FILE: b"b"}, assets={URL: b"b"}) == 1


def test_what_setup_brought_along_is_not_the_agents_to_change(tmp_path):
    evaluator = {
        "func": "compare_text_file",
        "result": {"type": "vm_file", "path": FILE, "dest": "a.txt"},
        "expected": {"type": "setup_file", "path": "a.txt"},
    }
    for name, mine, wanted in (("1", b"as it was", 1), ("2", b"changed", 0)):
        (tmp_path / name / "scratch" / "files").mkdir(parents=True)
        (tmp_path / name / "scratch" / "files" / "a.txt").write_bytes(b"as it was")
        assert ask(evaluator, tmp_path / name, {FILE: mine}) == wanted
    with pytest.raises(ValueError, match="inside its folder"):
        task({**evaluator, "expected": {"type": "setup_file", "path": "../secret"}})


def test_a_folder_that_is_missing_is_not_an_empty_one(tmp_path):
    empty = {
        "func": "check_moved_jpgs",
        "result": {"type": "list_directory", "path": "/home/user/x"},
        "expected": {"type": "rule", "rules": {"expected": []}},
    }
    assert ask(empty, tmp_path) == 0


def test_or_of_two(tmp_path):
    rule = {"type": "rule", "rules": {"expected": ["no"]}}
    evaluator = {
        "func": ["file_contains"] * 2,
        "conj": "or",
        "result": [CONTAINS["result"]] * 2,
        "expected": [CONTAINS["expected"], rule],
    }
    assert ask(evaluator, tmp_path, {FILE: b"no"}) == 1


def table(rules):
    return {
        "func": "compare_table",
        "result": {"type": "vm_file", "path": FILE, "dest": "a.xlsx"},
        "expected": {"type": "cloud_file", "path": URL, "dest": "gold.xlsx"},
        "options": {"rules": rules},
    }


def test_a_broken_file_scores_nought_when_the_guest_made_it_and_is_our_fault_otherwise(tmp_path):
    import io

    import openpyxl

    good = io.BytesIO()
    openpyxl.Workbook().save(good)
    rule = [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]
    assert ask(table(rule), tmp_path / "1", {FILE: b"junk"}, assets={URL: good.getvalue()}) == 0
    assert ask(table(rule), tmp_path / "2", {FILE: good.getvalue()}, assets={URL: good.getvalue()}) == 1
    with pytest.raises(JudgeError, match=r"gold\.xlsx"):
        ask(table(rule), tmp_path / "3", {FILE: good.getvalue()}, assets={URL: b"junk"})
    with pytest.raises(JudgeError, match="no such rule"):
        ask(
            table([{"type": "magic", "sheet_idx0": 0, "sheet_idx1": 0}]),
            tmp_path / "4",
            {FILE: good.getvalue()},
            assets={URL: good.getvalue()},
        )
    with pytest.raises(JudgeError, match="not in the cache"):
        ask(table(rule), tmp_path / "5", {FILE: good.getvalue()})


def test_a_judge_out_of_time_or_memory_has_no_score(tmp_path):
    slow = {
        "func": "check_list",
        "result": {"type": "vm_file", "path": FILE, "dest": "a.txt"},
        "expected": {"type": "rule", "rules": {"expect": ["(a+)+$"]}},
    }
    with pytest.raises(JudgeError):
        ask(slow, tmp_path / "1", {FILE: b"a" * 60 + b"b"}, limits=Limits(seconds=3))
    with pytest.raises(JudgeError):
        ask(CONTAINS, tmp_path / "2", {FILE: b"y" * (30 << 20)}, limits=Limits(memory=32 << 20))


def test_steps(tmp_path):
    guest = FakeGuest(outputs={"['diff']": Executed(0, "text", ""), "['bad']": Executed(3, "", "no such thing")})
    cache = AssetCache(tmp_path / "cache", offline=True)
    cache.add(URL, b"gold")
    (tmp_path / "n.txt").write_text("own")
    place = Place(guest, cache, tmp_path / "steps", tmp_path, 640, 480)
    config = [
        {"type": "download", "parameters": {"files": [{"url": URL, "path": "setup.sh"}]}},
        {"type": "upload_file", "parameters": {"files": [{"local_path": "n.txt", "path": FILE}]}},
        {"type": "execute", "parameters": {"command": ["diff"], "stdout": "diff.out"}},
        {"type": "execute", "parameters": {"command": "click {SCREEN_WIDTH_HALF} {SCREEN_HEIGHT}", "shell": "true"}},
        {"type": "activate_window", "parameters": {"window_name": "x"}},
    ]
    steps = task(CONTAINS, config).config
    assert asyncio.run(run_steps(steps, place, strict=True)) == []
    assert guest.files == {"/home/user/setup.sh": b"gold", FILE: b"own"}
    assert (tmp_path / "steps" / "diff.out").read_text() == "text"
    assert ("execute", "click 320 480") in guest.calls
    bad = task(
        CONTAINS,
        [
            {"type": "command", "parameters": {"command": ["bad"]}},
            {"type": "close_window", "parameters": {"window_name": "missing"}},
        ],
    ).config
    with pytest.raises(SetupError, match=r"step 0 \(command\).*no such thing"):
        asyncio.run(run_steps(bad, place, strict=True))
    told = asyncio.run(run_steps(bad, place, strict=False))
    assert [t.split(":")[0] for t in told] == ["step 0 (command)", "step 1 (close_window)"]


def test_a_climbing_name_never_reaches_the_disk(tmp_path):
    from guiderail.tasks.judges.getters import Source

    with pytest.raises(ValueError, match="leaves"):
        Source(FakeGuest(), AssetCache(tmp_path), tmp_path / "s", tmp_path).file("../x")
