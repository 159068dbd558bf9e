"""`guiderail ui`: the address only once MLflow answers, the reason when it does not. A small program stands in."""

import argparse
import os
import socket
import sys

import pytest

from guiderail import cli_around
from guiderail.errors import InputError
from guiderail.services import ServiceError, free_port

SERVER = """
import http.server, sys, time
class Once(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        assert self.path == "/health"
        self.send_response(200)
        self.end_headers()
port = int(sys.argv[sys.argv.index("--port") + 1])
time.sleep(0.5)
server = http.server.HTTPServer(("127.0.0.1", port), Once)
server.handle_request()
server.server_close()
"""


@pytest.fixture
def ui(tmp_path, monkeypatch):
    """Runs the command with `source` as its MLflow, on `port`."""
    monkeypatch.chdir(tmp_path)

    def run(source, port=None):
        program = tmp_path / "mlflow"
        program.write_text(f"#!{sys.executable}\n{source}")
        os.chmod(program, 0o755)
        monkeypatch.setattr(cli_around.shutil, "which", lambda *_, **__: str(program))
        cli_around._ui(argparse.Namespace(port=port or free_port()))

    return run


def test_the_address_is_said_when_it_answers_and_the_end_when_it_ends(ui, capsys):
    with pytest.raises(ServiceError, match="MLflow has ended"):
        ui(f"print('last words', flush=True)\n{SERVER}")
    starts, address = capsys.readouterr().err.splitlines()
    assert "starts" in starts and address.startswith("runs: http://127.0.0.1:")


def test_one_that_dies_leaves_its_last_lines_and_no_address(ui, capsys):
    with pytest.raises(ServiceError, match=r"(?s)status 3.*no such store"):
        ui("import sys\nprint('no such store')\nsys.exit(3)")
    assert "runs:" not in capsys.readouterr().err


def test_a_port_in_use_is_refused(ui):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(InputError, match="--port"):
            ui("", other.getsockname()[1])
