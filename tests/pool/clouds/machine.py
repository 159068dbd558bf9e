"""A machine of our make-believe clouds: `python -I -S machine.py NOOP.PY FOLDER HOST PORT ok|mute`.

The server of guiderail.pool.vm.noop at an address of its own in 127.0.0.0/8; `mute` takes connections (the kernel
does) and never answers.
"""

import importlib.util
import signal
import socket
import sys
from pathlib import Path


def main(noop_file: str, folder: str, host: str, port: str, how: str) -> None:
    """Serve until killed."""
    spec = importlib.util.spec_from_file_location("noop", noop_file)
    noop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(noop)
    listener = socket.create_server((host, int(port)))
    if how == "mute":
        signal.pause()
    noop.serve(noop.Machine(Path(folder)), listener, 0.0)


main(*sys.argv[1:])
