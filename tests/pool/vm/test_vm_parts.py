"""Parts of the in-VM server that need no desktop: forms, tokens, pictures, the settle rule, applications, cookies."""

import contextlib
import io
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from PIL import Image

from guiderail.pool.vm import home, pace, packages, sandbox
from guiderail.pool.vm.desktop import Desktop, command_of
from guiderail.pool.vm.direct_guest import DirectGuest
from guiderail.pool.vm.guest import GuestError, run
from guiderail.pool.vm.http import Refused, Request, Response, TcpServer, as_json, handler_of
from guiderail.pool.vm.keymap import _in_long_runs, keysym, spare
from guiderail.pool.vm.osworld_routes import script_of
from guiderail.pool.vm.screen import FrameFile, png
from guiderail.pool.vm.server import main as serve
from guiderail.pool.vm.settle import Rule, settle
from guiderail.pool.vm.unwalled import write_cookies
from guiderail.pool.vm.x11 import XError, read_cookie


def echo(request: Request) -> Response:
    if request.path == "/boom":
        raise RuntimeError("a fault")
    if request.path == "/no":
        raise Refused(418, "no", "teapot")
    files = {k: v.hex() for k, v in request.files.items()}
    return as_json({"fields": request.fields, "files": files, "query": dict(request.query)})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = TcpServer(("127.0.0.1", 0), handler_of(echo, "a-token"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("data", [b"", b"x", b"\r\n", b"\r\n--boundary", b"--" * 99, bytes(range(256)) * 300])
def test_forms_carry_any_bytes(url: str, data: bytes) -> None:
    form = {"file_path": 'a "b" \u00fc.txt'}
    said = httpx.post(url, data=form, files={"file_data": ("x", data)}, headers={"Authorization": "Bearer a-token"})
    assert said.json() == {"fields": form, "files": {"file_data": data.hex()}, "query": {}}
    said = httpx.post(f"{url}/?q=1&q=2", data={"a": "1 & 2", "b": ""}, headers={"Authorization": "Bearer a-token"})
    assert said.json() == {"fields": {"a": "1 & 2", "b": ""}, "files": {}, "query": {"q": "2"}}


def test_tokens_faults_and_bodies(url: str) -> None:
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"Authorization": "Bearer a-tokem"}).status_code == 401
    with httpx.Client(headers={"Authorization": "Bearer a-token"}) as client:
        told = client.get(f"{url}/boom")
        assert (told.status_code, told.json()["kind"], told.json()["message"]) == (
            500,
            "fault",
            "RuntimeError: a fault",
        )
        assert client.get(f"{url}/no").json() == {"status": "error", "message": "no", "kind": "teapot"}
        assert client.get(url).status_code == 200, "the connection lives on"
        assert client.post(url, headers={"Content-Type": "multipart/form-data"}, content=b"x").status_code == 400
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as s:
        s.sendall(b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("sent", "status", "closed"),
    [
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer a-token\r\n\r\n", b"200", False),
        (b"GET / HTTP/1.1\r\nauthorization:Bearer a-token\r\nCONNECTION: Close\r\n\r\n", b"200", True),
        (b"GET / HTTP/1.0\r\nAuthorization: Bearer a-token\r\n\r\n", b"200", True),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"413", True),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"413", True),
        (b"GET /\r\n\r\n", b"400", True),
        (b"GET / HTTP/1.1\r\nnonsense\r\n\r\n", b"400", True),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", b"400", True),
        (b"GET /" + b"x" * (1 << 17) + b" HTTP/1.1\r\n\r\n", b"400", True),
    ],
)
def test_lines_of_http(url: str, sent: bytes, status: bytes, closed: bool) -> None:
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 10) as s:
        s.sendall(sent)
        said = s.recv(1000)
        assert said.startswith(b"HTTP/1.1 " + status)
        assert (b"Connection: close" in said) is closed
        s.settimeout(0.2 if not closed else 10)
        with pytest.raises(TimeoutError) if not closed else contextlib.suppress(ConnectionResetError):
            assert s.recv(1) == b""


def test_who_waits_for_a_go_gets_one(url: str) -> None:
    """curl asks before it sends a large file."""
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 10) as s:
        head = b"POST / HTTP/1.1\r\nAuthorization: Bearer a-token\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        s.sendall(head)
        assert s.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(b"abc")
        assert s.recv(100).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("guiderail.pool.vm.server", {"http.client", "ssl", "email", "hashlib", "numpy", "asyncio"}),
        ("guiderail.pool.vm.init", {"typing", "shutil", "contextlib"}),
        ("guiderail.envs.guard", {"typing", "shutil", "contextlib"}),
    ],
)
def test_what_every_slot_runs_is_lean(module: str, heavy: set[str]) -> None:
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import {module}; print(*sys.modules)"
    source = str(Path(home.__file__).parents[3])
    told = subprocess.run([sys.executable, "-I", "-S", "-c", code, source], capture_output=True, text=True, check=True)
    assert not heavy & set(told.stdout.split())


def test_another_address_needs_a_token(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("GUIDERAIL_VM_TOKEN", raising=False)
    assert serve(["--host", "0.0.0.0", "--display", ":99"]) == 2
    assert "GUIDERAIL_VM_TOKEN" in capsys.readouterr().err
    assert serve(["--display", "elsewhere:0"]) == 3
    assert serve(["--display", ":4093"]) == 3 and "no X server" in capsys.readouterr().err


def test_png_is_what_pillow_reads() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (37, 53, 4), dtype=np.uint8)
    seen = np.asarray(Image.open(io.BytesIO(png(pixels.tobytes(), 53, 37))))
    assert np.array_equal(seen, pixels[:, :, 2::-1])
    assert png(pixels.tobytes(), 53, 37) == png(pixels.tobytes(), 53, 37)


def test_frame_file_reads_an_x_window_dump(tmp_path: Path) -> None:
    width, height, colours = 5, 3, 2
    fields = [0] * 25
    fields[0], fields[4], fields[5], fields[11], fields[12], fields[19] = 160, width, height, 32, 4 * width, colours
    body = bytes(range(4 * width * height))
    file = tmp_path / "fb"
    file.write_bytes(struct.pack(">25I", *fields).ljust(160, b"\0") + b"c" * 12 * colours + body)
    frames = FrameFile(file)
    assert (frames.width, frames.height, frames.grab()) == (width, height, body)
    fields[11] = 16
    file.write_bytes(struct.pack(">25I", *fields).ljust(160, b"\0") + body)
    with pytest.raises(ValueError, match="16 bits per pixel"):
        FrameFile(file)


class World:
    """Programs and a screen that follow a script of (until, pixels, wants, used, active) by looks."""

    def __init__(self, *script: tuple[int, bytes, bool, float, int]) -> None:
        self.script, self.look, self.pinged = list(script), 0, list[int]()

    def now(self) -> tuple[int, bytes, bool, float, int]:
        return next((s for s in self.script if self.look < s[0]), self.script[-1])

    def grab(self) -> bytes:
        self.look += 1
        return self.now()[1]

    def same(self, frame: bytes) -> bool:
        self.look += 1
        return self.now()[1] == frame

    def work(self) -> tuple[bool, float]:
        return self.now()[2], self.now()[3]

    def active(self) -> int:
        return self.now()[4]

    def ping(self, window: int) -> bool:
        self.pinged.append(window)
        return True


RULE = Rule(quiet_s=0.03, limit_s=1.0)


def settled(world: World) -> tuple[bool, int]:
    found = settle(RULE, world, world, world.active, world.ping)
    return found.ok, world.look


def test_a_still_screen_settles_at_once() -> None:
    world = World((99, b"a", False, 0.0, 7))
    ok, looks = settled(world)
    assert ok and looks <= 6 and world.pinged == [7]


def test_pixels_alone_do_not_suffice() -> None:
    """A program that computes without drawing (an office program behind its empty window) is waited for."""
    ok, looks = settled(World((20, b"a", True, 0.0, 7), (99, b"b", False, 0.0, 7)))
    assert ok and looks > 20
    used = [(i, b"a", False, 0.03 * i, 7) for i in range(1, 20)]  # never seen running, but its clock runs
    assert settled(World(*used, (99, b"a", False, 0.6, 7)))[1] > 19


def test_a_window_that_comes_meanwhile_is_asked_too() -> None:
    world = World((2, b"a", False, 0.0, 7), (99, b"a", False, 0.0, 8))
    world.active = lambda: 7 if world.look == 0 else 8  # type: ignore[method-assign]
    assert settled(world)[0] and world.pinged == [7, 8]


def test_a_dialog_gets_the_time_that_its_button_takes() -> None:
    """Neither pixels nor processor tell of it, and then the dialog closes: its successor needs only the rule's time."""
    world = World((12, b"a", False, 0.0, 7), (13, b"b", False, 0.0, 8), (99, b"b", False, 0.0, 8))
    found = settle(RULE, world, world, world.active, world.ping, lambda window: 0.3 if window == 7 else 0.0)
    assert (found.ok, found.frame, world.pinged) == (True, b"b", [7, 8]) and 12 < world.look < 25


def test_a_screen_that_never_rests_ends_at_the_limit() -> None:
    world = World(*((i, bytes([i % 250]), False, 0.0, 0) for i in range(1, 400)))
    assert settled(world)[0] is False and world.pinged == []


def test_only_programs_that_show_their_keys_are_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, did = [100.0], []
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: slept(s)))

    def slept(seconds: float) -> None:
        did.append("sleep")
        now[0] += seconds

    hand = pace.Pace(lambda: did.append("barrier"))
    hand.begin("mousepad.Mousepad")
    for key in (10, 10, 10):
        hand.again(key)
    assert did == []
    hand.begin("galculator.Galculator")
    hand.again(11)
    assert did == []  # another key
    hand.again(11)
    assert did == ["barrier", "sleep", "barrier"] and now[0] == pytest.approx(100.11)
    now[0] += 0.2
    hand.again(11)
    assert len(did) == 3  # slow enough by itself
    for _ in range(1000):
        hand.again(11)
    assert now[0] < 100.4 + pace.LIMIT_S  # an action ends, whatever is typed


def test_applications_are_chosen_by_name_and_never_pasted_together(tmp_path: Path) -> None:
    (tmp_path / "org.x.Editor.desktop").write_text(
        "[Desktop Entry]\nType=Application\nName=Text Editor\nExec=edit %U\n"
    )
    (tmp_path / "editor-prefs.desktop").write_text("[Desktop Entry]\nName=Preferences\nExec=edit --prefs\n")
    (tmp_path / "broken.desktop").write_text("nonsense")
    for name in ("org.x.editor", "Editor", "text editor", "edit", " EDIT "):
        assert command_of(name, tmp_path) == ["edit"]
    assert command_of("preferences", tmp_path) == ["edit", "--prefs"]
    for bad in ("edit; rm -rf /", "edit --prefs", "/bin/sh", "", "%U"):
        with pytest.raises(ValueError, match="there are: Preferences, Text Editor"):
            command_of(bad, tmp_path)


def test_only_osworlds_own_form_is_a_script() -> None:
    assert script_of(["python", "-c", "import pyautogui; import time; pyautogui.FAILSAFE = False; x"]) == "x"
    assert script_of(["/usr/bin/python3", "-c", "y"]) == "y"
    for other in (["python", "x.py"], ["bash", "-c", "x"], "python -c x", None, ["python", "-c", 1], []):
        assert script_of(other) is None


def test_keysyms_by_keysymdef() -> None:
    wanted = {"a": 0x61, "<": 0x3C, "é": 0xE9, "€": 0x10020AC, "😀": 0x101F600, "\n": 0xFF0D, "\t": 0xFF09}
    assert {c: keysym(c) for c in wanted} == wanted
    assert spare([0, 0]) and spare([0x1008FF13, 0]) and not spare([0x61, 0])
    assert _in_long_runs([3, 5, 6, 7, 9, 10]) == [5, 6, 7, 9, 10, 3]


def test_cookies_of_any_family_are_read(tmp_path: Path) -> None:
    """python-xlib passes over FamilyWild."""
    file = tmp_path / "Xauthority"
    write_cookies(file, b"0123456789abcdef", 7)
    assert read_cookie(file, 7) == b"0123456789abcdef" and read_cookie(file, 8) == b""
    name = b"MIT-MAGIC-COOKIE-1"
    wild = struct.pack(">HHHH", 0xFFFF, 0, 0, len(name)) + name + struct.pack(">H", 3) + b"abc"
    file.write_bytes(wild)
    assert read_cookie(file, 3) == b"abc"


def test_run_ends_in_time_and_keeps_so_much(tmp_path: Path) -> None:
    guest = DirectGuest({"PATH": "/usr/bin:/bin"}, str(tmp_path))
    done = run(guest, ["/bin/sh", "-c", "cat; echo err >&2; exit 3"], data=b"x" * 500_000)
    assert (done.status, len(done.output), done.error, done.late) == (3, 500_000, b"err\n", False)
    assert run(guest, ["/bin/sh", "-c", "echo a; sleep 30 & exit 0"], timeout=20).output == b"a\n"
    assert run(guest, ["/bin/sleep", "30"], timeout=0.2).late
    assert len(run(guest, ["/bin/cat", "/dev/zero"], timeout=20, limit=100_000).output) == 100_000
    with pytest.raises(GuestError, match="no-such-program"):
        run(guest, ["no-such-program"])
    guest.close()


def test_the_home_is_laid_out_within_itself() -> None:
    order = home.layout({"mousepad": "/usr/share/applications/mousepad.desktop"})
    assert all(p.startswith(sandbox.HOME) for p in order["files"])
    assert (
        "launcher_item_app = /usr/share/applications/mousepad.desktop"
        in order["files"][f"{sandbox.HOME}/.config/tint2/tint2rc"]
    )
    json.dumps(order)
    assert "clock" not in str(order), "a clock would make equal desktops differ"


def test_packages_that_lack_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.shutil, "which", lambda name, path=None: None)
    assert packages.missing()[:2] == ["bubblewrap", "xvfb"]
    assert packages.not_installed(("a", "b")) == ["a", "b"]


def test_a_machines_own_desktop_is_not_ours_to_reset() -> None:
    with pytest.raises(GuestError, match="reset by the machine's provider"):
        Desktop.reset(object())  # type: ignore[arg-type]
    assert issubclass(XError, RuntimeError)


def test_the_accessibility_tree_can_be_read_whatever_programs_call_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program says what it likes over its bus; the desktop's python, which has the library, is not needed here."""
    import xml.etree.ElementTree as ET

    from guiderail.tasks.judges.safe import parse_xml

    states = SimpleNamespace(contains=lambda s: False)
    node = SimpleNamespace(
        get_role_name=lambda: "²rôle\x01<>", get_name=lambda: "a\x00\udcff\ufffe<&", get_state_set=lambda: states,
        get_component_iface=lambda: None, get_value_iface=lambda: None, get_action_iface=lambda: 1,
        get_text_iface=lambda: 1,
    )  # fmt: skip
    action = SimpleNamespace(
        get_n_actions=lambda n: 2, get_action_name=lambda n, i: ("9 ²x", "ß:<")[i],
        get_action_description=lambda n, i: "\x02\udc00d",
    )  # fmt: skip
    text = SimpleNamespace(get_text=lambda n, a, b: "\x0bt]]>", get_character_count=lambda n: 9)
    anything = type("States", (), {"__getattr__": lambda self, name: name})()
    fake = SimpleNamespace(Action=action, Text=text, StateType=anything)
    gi = SimpleNamespace(require_version=lambda *a: None)
    monkeypatch.setitem(sys.modules, "gi", gi)
    monkeypatch.setitem(sys.modules, "gi.repository", SimpleNamespace(Atspi=fake, GLib=SimpleNamespace(Error=OSError)))
    source = Path(sandbox.__file__).with_name("atspi.py").read_text().removesuffix("main(sys.argv[1])\n")
    space: dict[str, object] = {"__name__": "atspi"}
    exec(compile(source, "atspi.py", "exec"), space)  # our own file, without its last line
    told = ET.tostring(space["element"](node), encoding="unicode")  # type: ignore[operator]
    read = parse_xml(told.encode(), "tree.xml")
    assert read.get("name") == "a<&" and read.text == "t]]>"
