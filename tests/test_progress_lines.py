"""Progress without a terminal: a line at once, then one in ten seconds, and one at the end."""

import guiderail.progress
from guiderail.progress import progress


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
