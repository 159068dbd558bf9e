"""Progress without a terminal: a line at once, then one in ten seconds, and one at the end."""

import re

import pytest

import guiderail.progress
from guiderail.progress import left, progress


def test_lines_of_a_log(monkeypatch, capsys):
    now = 100.0
    monkeypatch.setattr(guiderail.progress.time, "monotonic", lambda: now)
    with progress("self-tests", 10, start=2) as shown:
        shown.update(unsound="0")  # at 100 s: the first line
        now = 109.9
        shown.update(unsound="1")  # too soon for another
        now = 110.0
        shown.update(2, loss=0.25)
        shown.update(4, loss=1.0)  # the last of ten, though no time has passed
    assert capsys.readouterr().err.splitlines() == [
        "self-tests 3/10  unsound 0",
        "self-tests 6/10  loss 0.25",
        "self-tests 10/10  loss 1",
    ]


def test_a_log_tells_the_time_left_of_this_attempt(monkeypatch, capsys):
    """20 of 100 were done by an earlier attempt: what counts are 10 in 60 s, so 70 more take 420 s."""
    now = 0.0
    monkeypatch.setattr(guiderail.progress.time, "monotonic", lambda: now)
    with progress("rl@grpo-0", 100) as shown:
        shown.update(20)
        now = 60.0
        shown.update(10, success=0.5)
    assert capsys.readouterr().err.splitlines()[-1] == "rl@grpo-0 30/100  success 0.5  about 7 min left"
    assert [left(s) for s in (0.2, 59, 61, 3600 * 1.5)] == [
        "about 1 s left", "about 59 s left", "about 1 min left", "about 1 h 30 min left"
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [80, 120])
def test_count_and_time_left_stand_on_a_line_of_any_width(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    shown = guiderail.progress._RichProgress("evaluate@semi_online_grpo-0-miniwob", 2448, 0)
    with shown.bar:
        shown.update(1200, success=0.46875, **{"env steps/s": 27.31, "log-prob gap": 1.24e-5})
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err).replace("\r", "\n").strip().splitlines()[-1]
    assert len(last) <= columns and "evaluate@semi_online_grpo-0-miniwob 1200/2448" in last and "success 0.46" in last
    assert re.search(r"[-\d]:[-\d]{2}:[-\d]{2}", last)
