"""A real desktop: what is typed, clicked and reset is what was meant. Each test is a trap that somebody fell into."""

import contextlib
import shutil
import string
import struct
import threading
import time

import psutil
import pytest

from guiderail.actions.types import Click, Drag, Key, Move, Open, Scroll, Type, Wait
from guiderail.pool.vm import programs, sandbox
from guiderail.pool.vm.guest import run, start
from guiderail.pool.vm.slot import Slot
from guiderail.pool.vm.x11 import X11, XError
from pool.vm.here import NO_EDITOR, needs_editor, needs_walls, slot

pytestmark = needs_walls
# ruff: noqa: RUF001
# every printable ASCII character, then what pyautogui drops or types wrong: 200 characters
FOREIGN = '<a>|it\'s "q" \\n naïve café ÄÖÜß ñ § ° µ ¿¡ Ω → € … „“ – 你好世界 日本 한국 привет עברית 😀🚀 ∑√∞≤ '
TORTURE = (string.printable[:95] + FOREIGN * 2)[:200]


@pytest.fixture(scope="module")
def desk():
    with slot() as made:
        yield made


@pytest.fixture
def clean(desk: Slot) -> Slot:
    desk.untouched = False  # programs are started here behind the server's back
    desk.reset()
    return desk


def typed_into_editor(desk: Slot, text: str) -> str:
    """What the editor holds after `text` was typed into a new file."""
    desk.act(Type(text))
    desk.settle()
    desk.act(Key(("ctrl", "s")))
    end = time.monotonic() + 20
    while any(w.title.startswith("*") for w in desk.windows.all()):  # not saved yet
        assert time.monotonic() < end
        time.sleep(0.02)
    return run(desk.guest, ["/bin/cat", "/home/user/typed.txt"]).output.decode()


def editor_with_file(desk: Slot) -> None:
    run(desk.guest, ["/bin/sh", "-c", ": > /home/user/typed.txt"])
    start(desk.guest, ["mousepad", "/home/user/typed.txt"])
    end = time.monotonic() + 20
    while not any("typed.txt" in w.title for w in desk.windows.all()):
        assert time.monotonic() < end
        time.sleep(0.02)
    desk.settle()


@needs_editor
def test_every_character_arrives(clean: Slot) -> None:
    editor_with_file(clean)
    assert typed_into_editor(clean, TORTURE).rstrip("\n") == TORTURE


@pytest.mark.skipif(shutil.which("galculator") is None, reason="galculator is not installed")
def test_a_digit_typed_twice_is_two_digits(clean: Slot) -> None:
    """Its keys are toggle buttons with a timer: 12+23 in one action came to 15. Also over actions, and by chord."""
    start(clean.guest, ["galculator"])
    end = time.monotonic() + 20
    while not any(w.app.startswith("galculator") for w in clean.windows.all()):
        assert time.monotonic() < end
        time.sleep(0.02)
    clean.settle()
    clean.act(Type("12+23="))
    clean.act(Type("+5"))
    clean.act(Key(("5",)))
    clean.settle()
    clean.act(Type("5"))
    clean.act(Key(("enter",)))
    clean.settle()
    assert ">590<" in programs.accessibility(clean)  # 35 + 555


@needs_editor
def test_more_foreign_characters_than_keycodes_arrive(clean: Slot) -> None:
    editor_with_file(clean)
    text = "".join(chr(0x4E00 + i) for i in range(len(clean.input.keyboard.free) + 30))
    assert typed_into_editor(clean, text).rstrip("\n") == text


@needs_editor
def test_lines_tabs_and_capslock(clean: Slot) -> None:
    editor_with_file(clean)
    clean.act(Key(("capslock",)))
    assert typed_into_editor(clean, "One Two\n\tthree\r\nFOUR").rstrip("\n") == "One Two\n\tthree\nFOUR"
    assert clean.x.pointer()[2] & 0x2, "CapsLock is as it was"


@needs_editor
def test_chords_clicks_drags_and_wheel(clean: Slot) -> None:
    editor_with_file(clean)
    clean.act(Type("one\n" * 80))
    clean.act(Key(("Ctrl", "Home")))
    clean.settle()
    top = clean.frames.grab()
    clean.act(Scroll(0.5, 0.5, dy=5))
    assert clean.settle().frame != top
    clean.act(Scroll(0.5, 0.5, dy=-5))
    clean.act(Key(("ctrl", "A")))  # a capital in a chord means the key
    clean.act(Key(("delete",)))
    clean.settle()
    x, y, width, _ = next(w.box for w in clean.windows.all() if "typed" in w.title)
    at = ((x + width / 2) / 800, (y - 8) / 600)
    clean.act(Drag(*at, at[0] + 0.05, at[1] + 0.05))
    clean.settle()
    moved = next(w.box for w in clean.windows.all() if "typed" in w.title)
    assert (moved[0] - x, moved[1] - y) == (pytest.approx(40, abs=3), pytest.approx(30, abs=3))
    before = clean.frames.grab()
    clean.act(Click(0.02, 0.02, "right"))  # the desktop's menu, which takes the keyboard
    assert clean.settle().frame != before
    clean.act(Key(("escape",)))
    clean.settle()
    clean.act(Click((x + 40 + width / 2) / 800, (y + 30 + 100) / 600))
    clean.settle()
    assert typed_into_editor(clean, "x").rstrip("\n") == "x"


def test_open_starts_the_application_and_refuses_others(clean: Slot) -> None:
    if NO_EDITOR:
        pytest.skip(NO_EDITOR)
    clean.act(Open("Mousepad"))
    end = time.monotonic() + 20
    while not any(w.app.lower().startswith("mousepad") for w in clean.windows.all()):
        assert time.monotonic() < end
        time.sleep(0.02)
    with pytest.raises(ValueError, match="no application 'rm -rf'"):
        clean.act(Open("rm -rf"))


@pytest.mark.parametrize(
    "action",
    [Key(("hyper",)), Key(()), Type("a\x00b"), Click(0.5, 0.5, "left", 9), Wait(3600), Scroll(0.5, 0.5, dy=9999)],
)
def test_what_means_nothing_is_refused_before_anything_is_done(clean: Slot, action: object) -> None:
    before = clean.frames.grab()
    with pytest.raises(ValueError):
        clean.act(action)  # type: ignore[arg-type]
    assert clean.frames.grab() == before


def test_points_off_the_screen_land_on_its_edge(clean: Slot) -> None:
    clean.act(Move(7.0, -3.0))
    assert clean.x.pointer()[:2] == (799, 0)


def test_a_reset_is_pixel_identical_and_leaves_nothing(clean: Slot) -> None:
    before = clean.settle().frame
    start(clean.guest, ["/bin/sh", "-c", "trap '' TERM HUP; while true; do sleep 1; done"])
    hidden = "mkdir -p ~/.secret/deep /tmp/x; echo 1 > ~/.secret/deep/f; echo 2 > /tmp/x/y; echo 3 > /dev/shm/z"
    gone = "chmod 000 ~/.secret/deep; ln -s /etc ~/link; rm -rf ~/Desktop; echo 4 > /run/user/1000/w; chmod 000 ~"
    assert run(clean.guest, ["/bin/sh", "-c", f"{hidden}; {gone}"]).status == 0
    clean.act(Key(("capslock",)))
    clean.act(Type("ж"))
    clean.x.set_numbers(clean.x.root, "GUIDERAIL_LEFT", 6, [1])
    clean.act(Move(0.1, 0.9))
    for _ in range(2):
        clean.untouched = False
        clean.reset()
        assert clean.settle().frame == before
    names = sorted({p.name for p in clean.guest.processes()})
    assert "sh" not in names and "sleep" not in names
    left = "ls -A /tmp /dev/shm; test -e ~/.secret || test -e ~/link || test -e /run/user/1000/w || echo gone; ls ~"
    told = run(clean.guest, ["/bin/sh", "-c", left]).output.decode().split()
    assert "gone" in told and "Desktop" in told and not {"x", "z"} & set(told)
    assert clean.x.numbers(clean.x.root, "GUIDERAIL_LEFT") == []
    assert clean.x.keyboard() == clean.input.keyboard.original and not clean.x.pointer()[2] & 0x2


def test_nothing_that_the_x_server_was_told_outlives_a_reset(clean: Slot) -> None:
    """It keeps more than properties and keys: most of all windows of clients that asked to be outlived by them."""
    before, mods = clean.settle().frame, clean.x.ask(119, 0)[32:]  # GetModifierMapping
    client = X11(str(clean.folder / "x" / "X0"))
    window, boxed = client.resource_base + 1, (50, 50, 300, 200, 0, 1, 0, 0x202, 0xFF0000, 1)
    client.send(1, 0, struct.pack("<IIhhHHHHIIII", window, client.root, *boxed))  # red, override-redirect
    client.send(8, 0, struct.pack("<I", window))  # MapWindow
    client.send(112, 1)  # SetCloseDownMode RetainPermanent
    client.send(116, 10, struct.pack("<10Bxx", 3, 2, 1, *range(4, 11)))  # SetPointerMapping: left is right
    client.send(118, 1, bytes(8))  # SetModifierMapping: shift is none
    client.send(107, 0, struct.pack("<hhBBxx", 1, 1, 1, 0))  # SetScreenSaver
    client.send(102, 0, struct.pack("<II", 1 << 7, 0))  # ChangeKeyboardControl: no auto-repeat
    client.send(111, 1)  # SetAccessControl
    client.sync()
    client.close()
    clean.settle()
    assert clean.frames.grab() != before
    clean.untouched = False
    clean.reset()
    assert clean.settle().frame == before
    assert clean.x.ask(117, 0)[32:42] == bytes(range(1, 11))  # GetPointerMapping
    assert clean.x.ask(119, 0)[32:] == mods and any(mods)
    assert clean.x.ask(110, 0)[1] == 0  # ListHosts: everybody may connect
    assert clean.x.ask(103, 0)[1] == 1  # GetKeyboardControl: keys repeat
    assert struct.unpack_from("<HH", clean.x.ask(108, 0), 8) == (600, 600)  # GetScreenSaver


def test_a_forged_list_of_windows_holds_nobody_up(clean: Slot) -> None:
    clean.x.set_numbers(clean.x.root, "_NET_CLIENT_LIST", 33, range(0x900000, 0x900000 + 50_000))
    began = time.monotonic()
    assert clean.windows.all() == [] and time.monotonic() - began < 3.0


def test_memory_of_the_x_server_is_limited(clean: Slot) -> None:
    """What programs have it keep is counted nowhere else; it may end, this computer's memory may not."""
    with slot() as victim:
        client = X11(str(victim.folder / "x" / "X0"))
        server = psutil.Process(victim.processes_of_ours[0].pid).children(recursive=True)[-1]
        assert server.name() == "Xvfb"
        with contextlib.suppress(XError):
            for i in range(1, 60):  # 32 MB each
                client.send(53, 24, struct.pack("<IIHH", client.resource_base + 2 * i, client.root, 4096, 2048))
                gc = client.resource_base + 2 * i + 1
                client.send(55, 0, struct.pack("<III", gc, client.resource_base + 2 * i, 0))
                client.send(70, 0, struct.pack("<IIhhHH", client.resource_base + 2 * i, gc, 0, 0, 4096, 2048))
                client.sync()
                with contextlib.suppress(psutil.NoSuchProcess):
                    assert server.memory_info().rss < sandbox.X_SERVER_MB << 20
        client.close()
    assert clean.windows.managed()


def test_a_window_that_never_answers_a_ping_is_waited_for_three_times(clean: Slot) -> None:
    client = X11(str(clean.folder / "x" / "X0"))  # a client of our own, that says it takes pings and never answers
    window = client.resource_base + 1
    client.send(1, 0, struct.pack("<IIhhHHHHII", window, client.root, 10, 10, 200, 100, 0, 1, 0, 0))  # CreateWindow
    client.set_numbers(window, "WM_PROTOCOLS", 4, [client.atom("_NET_WM_PING")])
    client.send(8, 0, struct.pack("<I", window))  # MapWindow
    client.sync()
    end = time.monotonic() + 10
    while clean.windows.active() != window:
        assert time.monotonic() < end
        time.sleep(0.01)
    for _ in range(3):
        began = time.monotonic()
        assert clean.windows.ping(window) is False
        assert 0.4 < time.monotonic() - began < 2.0
    began = time.monotonic()
    assert clean.windows.ping(window) is False and time.monotonic() - began < 0.2
    client.close()


def test_a_program_that_never_stops_drawing_does_not_hold_the_step(clean: Slot) -> None:
    start(clean.guest, ["/bin/sh", "-c", "while :; do :; done"])
    began = time.monotonic()
    assert clean.settle().ok is False
    assert time.monotonic() - began < 2 * clean.rule.limit_s


def test_the_panel_starts_when_the_desktops_are_told(clean: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that starts before sleeps a second before it asks again: most of the time that a reset took."""
    told: dict[str, list[int]] = {}

    def noted(guest: object, argv: list[str]) -> object:
        told[argv[0]] = clean.x.numbers(clean.x.root, "_NET_NUMBER_OF_DESKTOPS")
        return start(guest, argv)  # type: ignore[arg-type]

    monkeypatch.setattr("guiderail.pool.vm.slot.start", noted)
    clean.untouched = False
    clean.reset()
    assert told == {"openbox": [], "pcmanfm": [1], "tint2": [1]}


def test_a_slot_outlives_the_thread_that_used_it(clean: Slot) -> None:
    """bwrap --die-with-parent ends with the creating thread: resets come from threads that end at once."""
    clean.untouched = False
    thread = threading.Thread(target=clean.reset)
    thread.start()
    thread.join()
    time.sleep(0.3)
    assert clean.windows.managed() and all(p.poll() is None for p in clean.processes_of_ours)
