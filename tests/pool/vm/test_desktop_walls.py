"""What programs of a desktop try, and must not get."""

import os
import platform
import socket
import threading
import time
from pathlib import Path

import psutil
import pytest

from guiderail.pool.vm import seccomp, watchdog
from guiderail.pool.vm.guest import GuestError, Ran, run, start
from guiderail.pool.vm.programs import read_file
from guiderail.pool.vm.slot import Slot
from guiderail.pool.vm.x11 import X11
from pool.vm.here import SMALL, needs_walls, slot

pytestmark = needs_walls
PY = ["/usr/bin/python3", "-I", "-S", "-c"]


@pytest.fixture(scope="module")
def desk():
    with slot() as made:
        yield made


def sh(desk: Slot, script: str, timeout: float = 20.0) -> Ran:
    return run(desk.guest, ["/bin/sh", "-c", script], timeout=timeout)


def works(desk: Slot) -> bool:
    """The control has not suffered: it starts programs, sees and moves."""
    desk.x.sync()
    return sh(desk, "echo alive").output == b"alive\n" and desk.windows.managed()


def test_the_control_cannot_be_killed_from_inside(desk: Slot) -> None:
    sh(
        desk,
        "pkill -9 -f python; pkill -9 -f guiderail; pkill -9 Xvfb; pkill -9 bwrap; kill -9 1; kill -STOP 1; kill -2 1",
    )
    for signal in (1, 2, 3, 9, 10, 15, 17, 19):
        run(desk.guest, [*PY, f"import os; os.kill(1, {signal})"])
    assert works(desk)
    tries = [(i, desk.x.resource_base + i) for i in range(4)]
    client = X11(str(desk.folder / "x" / "X0"))  # as any program inside may connect
    for _, resource in tries:
        client.kill_client(resource)
    client.sync()
    client.close()
    assert works(desk)
    sh(desk, "kill -9 -1")  # all that they may kill, themselves and the session
    desk.untouched = False
    desk.reset()
    assert works(desk)


def test_the_first_process_cannot_be_traced_or_read(desk: Slot) -> None:
    trace = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.ptrace(16, 1, 0, 0), ctypes.get_errno())"
    assert run(desk.guest, [*PY, trace]).output.split() == [b"-1", b"1"]  # PTRACE_ATTACH: EPERM
    assert sh(desk, "ls /proc/1/fd; cat /proc/1/environ; head -c1 /proc/1/mem; ls /proc/1/root/").output == b""
    status = sh(desk, "cat /proc/self/status").output.decode()
    assert (
        "NoNewPrivs:\t1" in status and "CapEff:\t0000000000000000" in status and "CapBnd:\t0000000000000000" in status
    )
    assert sh(desk, "unshare -Ur true").status != 0


def test_files_of_the_host_are_not_there_and_nothing_can_be_written_outside(desk: Slot, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host")
    secret.chmod(0o644)
    tmp_path.chmod(0o755)
    seen = sh(
        desk, f"cat {secret} /etc/shadow /root/.bashrc {Path(__file__)} {desk.folder}/server.sock; ls {Path.home()}"
    )
    assert b"host" not in seen.output and b"import" not in seen.output
    for place in ("/usr/x", "/usr/local/x", "/etc/x", "/x", "/dev/x", "/bin/x", "/home/x", "/proc/sys/kernel/hostname"):
        assert sh(desk, f"echo 1 > {place}").status != 0, place
    assert sh(desk, "rm -f /tmp/.X11-unix/X0; mv /tmp/.X11-unix /tmp/y").status != 0 and works(desk)
    sh(desk, "ln -s /etc/shadow ~/link; ln -s /proc/1/root ~/root")
    with pytest.raises(Exception, match="No such file"):
        read_file(desk, "~/link")
    assert sh(desk, "ls ~/root/").output == b""


def test_there_is_no_network_not_even_to_this_computer(desk: Slot) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as abstract:
        name = f"\0guiderail-test-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        code = f"""
import socket
for family, where in ((2, ("1.1.1.1", 53)), (2, ("127.0.0.1", {listener.getsockname()[1]})), (1, {name!r})):
    s = socket.socket(family)
    s.settimeout(3)
    try:
        s.connect(where)
        print("connected to", where)
    except OSError as e:
        print(type(e).__name__)
"""
        assert b"connected" not in run(desk.guest, [*PY, code]).output
    assert sh(desk, "getent hosts example.org").status != 0


def test_a_fork_bomb_stops_and_a_reset_ends_it(desk: Slot) -> None:
    grow = " while n < 2000:\n  n += 1\n  if os.fork() == 0:\n   os.execvp('sleep', ['sleep', '99'])\n"
    bomb = f"import os\nn = 0\ntry:\n{grow}except OSError as e:\n print(n, e.errno)"
    told = run(desk.guest, [*PY, bomb], timeout=30)
    assert told.output.split()[1:] == [b"11"] and int(told.output.split()[0]) <= SMALL.processes
    assert len(desk.guest.processes()) <= SMALL.processes + 5
    desk.untouched = False
    desk.reset()
    assert works(desk) and not any(p.name == "sleep" for p in desk.guest.processes())


def test_the_disk_cannot_be_filled(desk: Slot) -> None:
    caps = {"~": SMALL.home_mb, "/tmp": SMALL.tmp_mb, "/dev/shm": SMALL.tmp_mb, "/run/user/1000": 64, "/var/tmp": 64}
    for place, megabytes in caps.items():
        fill = "for i in $(seq 20); do dd if=/dev/zero of=$1/f$i bs=1M count=10 2>/dev/null || break; done"
        count = "du -sm $1 | cut -f1; rm -f $1/f*"
        real = place.replace("~", desk.guest.home)
        used = run(desk.guest, ["/bin/sh", "-c", f"{fill}; {count}", "sh", real], timeout=60).output.split()
        assert 1 < int(used[-1]) <= megabytes + 1, place


def test_memory_is_watched(desk: Slot) -> None:
    hog = start(desk.guest, [*PY, "x = bytearray(300 << 20); import time; time.sleep(60)"])
    end = time.monotonic() + 20
    while not (note := watchdog.check(desk, 200)):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert "python3" in note and hog.wait(5.0) == -9 and desk.notes == [note] and works(desk)


def test_slots_do_not_see_each_other(desk: Slot) -> None:
    with slot() as other:
        assert sh(desk, "ls /tmp/.X11-unix").output.split() == [b"X0"]
        sh(desk, "echo mine > /tmp/mine")
        assert sh(other, "ls /tmp").output == b"" and sh(other, "cat /tmp/mine").status != 0
        start(desk.guest, ["mousepad"])
        end = time.monotonic() + 20
        while not any(w.kind == "normal" for w in desk.windows.all()):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert not any(w.kind == "normal" for w in other.windows.all())
        if os.geteuid() == 0:
            assert desk.uid is not None and desk.uid >= 1_900_000_000
            here = [p for p in psutil.Process(desk.processes_of_ours[1].pid).children(recursive=True) if p.is_running()]
            assert here and {p.uids().real for p in here} == {desk.uid}


def test_when_the_sandbox_dies_calls_say_so(desk: Slot) -> None:
    with slot() as victim:
        victim.processes_of_ours[1].kill()
        with pytest.raises(GuestError, match="sandbox"):
            for _ in range(50):
                run(victim.guest, ["/bin/true"])
                time.sleep(0.05)
        assert works(desk)


def test_calls_from_many_threads_do_not_mix(desk: Slot) -> None:
    """One descriptor closed twice would give a thread another's socket."""
    failed: list[object] = []

    def work(number: int) -> None:
        try:
            for i in range(12):
                wanted = f"{number}-{i}".encode() * 1000
                assert run(desk.guest, ["/bin/cat"], data=wanted).output == wanted
                desk.x.pointer()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == []


def test_nothing_that_programs_can_write_to_outlives_a_reset(desk: Slot) -> None:
    find = "find / -xdev -writable 2>/dev/null; for m in / $(cut -d' ' -f5 /proc/self/mountinfo); do test -w $m"
    places = sh(desk, f"{find} && test -d $m && echo $m; done").output.decode().split()
    emptied = ("/home/user", "/tmp", "/var/tmp", "/dev/shm", "/run/user/1000", "/proc", "/dev/")
    assert [p for p in places if not p.startswith(emptied)] == []
    deep = "import os\nos.chdir('/home/user')\nfor _ in range(3000):\n os.mkdir('d' * 20)\n os.chdir('d' * 20)"
    wide = "\nfor i in range(50):\n os.makedirs(f'/home/user/w/{i}')\n open(f'/home/user/w/{i}/' + 'f' * 250, 'w')"
    odd = "\nopen(b'/home/user/no\\xfftext', 'w')\nos.mkfifo('/home/user/fifo')\nos.chmod('/home/user/w', 0)"
    assert run(desk.guest, [*PY, deep + wide + odd]).status == 0
    desk.untouched = False
    desk.reset()
    left = sh(desk, "ls -A ~").output.decode().split()
    assert left and not {"w", "fifo", "d" * 20} & set(left) and works(desk)


def test_the_kernel_keeps_nothing_for_a_later_program(desk: Slot) -> None:
    """What lives in an ipc namespace or a keyring ends with neither its program nor a reset: it cannot be made."""
    calls = seccomp.REFUSED[platform.machine()][1]
    code = "import ctypes, sys; c = ctypes.CDLL(None, use_errno=True)\nfor n in sys.argv[1:]:\n"
    code += " print(c.syscall(int(n), 0, 0, 0, 0, 0), ctypes.get_errno())"
    told = run(desk.guest, [*PY, code, *map(str, calls.values())]).output.decode().splitlines()
    assert told == ["-1 38"] * len(calls)  # ENOSYS


def test_memory_that_is_shared_is_watched_too(desk: Slot) -> None:
    fill = "import mmap, time; m = mmap.mmap(-1, 300 << 20); m.write(bytes(300 << 20)); time.sleep(60)"
    hog = start(desk.guest, [*PY, fill])
    end = time.monotonic() + 20
    while not (note := watchdog.check(desk, 200)):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert "python3" in note and hog.wait(5.0) == -9 and works(desk)
    desk.notes.clear()


def test_too_many_files_end_the_programs_that_make_them(desk: Slot) -> None:
    """An empty file counts against no size, and takes the kernel's memory."""
    before = desk.guest.files()
    maker = start(desk.guest, [*PY, "import os\ni = 0\nwhile True:\n os.symlink('x', f'/tmp/{i}')\n i += 1"])
    end = time.monotonic() + 20
    while not (note := watchdog.check_files(desk, before + 3000)):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert "files" in note and maker.wait(5.0) == -9
    desk.untouched = False
    desk.reset()
    assert desk.guest.files() < before + 100 and works(desk)
