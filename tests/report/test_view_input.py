"""What `guiderail view` refuses in one line, and what it leaves as it is."""

import pytest

from guiderail.cli import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_is_none(here, capsys, port):
    assert main(["view", "--port", port]) == 1
    assert "0 to 65535" in capsys.readouterr().err


def test_a_file_that_is_no_index_is_not_overwritten(here, capsys):
    (here / "notes.txt").write_text("mine, and long enough to be read")
    assert main(["view", "--port", "99999", "--index", "notes.txt"]) == 1
    assert "is no index" in capsys.readouterr().err
    assert (here / "notes.txt").read_text() == "mine, and long enough to be read"
    assert main(["view", "--port", "99999", "--index", "."]) == 1
    assert "is a folder" in capsys.readouterr().err
