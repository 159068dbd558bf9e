"""The in-VM server over its wire: OSWorld's routes as its clients use them, ours beside them."""

import asyncio
import io
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from guiderail.actions.types import Answer, Click, Finish, Key, Nav, Open, Type
from guiderail.envs.accessibility import elements
from guiderail.envs.desktop import DesktopEnv
from guiderail.envs.machine import Machine
from guiderail.envs.machine_wire import Refusal
from guiderail.envs.types import InfraError
from guiderail.pool.vm.http import UnixServer, handler_of
from guiderail.pool.vm.journal import Journal
from guiderail.pool.vm.osworld_routes import PREFIX
from guiderail.pool.vm.routes import Routes
from guiderail.pool.vm.slot import Slot
from guiderail.tasks.types import TaskSpec
from pool.vm.here import SIZE, needs_editor, needs_walls, slot

pytestmark = needs_walls
BLANK = TaskSpec("blank", "blank", 0)


@pytest.fixture(scope="module")
def desk() -> Iterator[Slot]:
    with slot() as made:
        yield made


@pytest.fixture(scope="module")
def routes(desk: Slot, tmp_path_factory: pytest.TempPathFactory) -> Routes:
    return Routes(desk, strict=True, journal=Journal(tmp_path_factory.mktemp("journal"), "m"))


@pytest.fixture(scope="module")
def sock(desk: Slot, routes: Routes) -> Iterator[str]:
    server = UnixServer(str(desk.folder / "test.sock"), handler_of(routes, ""))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield str(desk.folder / "test.sock")
    server.shutdown()
    server.server_close()


@pytest.fixture
def http(sock: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url="http://vm", transport=httpx.HTTPTransport(uds=sock), timeout=60) as client:
        yield client


@pytest.fixture
def fresh(desk: Slot) -> None:
    desk.untouched = False
    desk.reset()


def with_machine(sock: str, do: Callable[[Machine], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        machine = Machine("", uds=sock)
        try:
            await machine.hello()
            await do(machine)
        finally:
            await machine.close()

    asyncio.run(main())


def test_osworlds_looking_routes(fresh: None, http: httpx.Client) -> None:
    shot = http.get("/screenshot")
    assert shot.headers["content-type"] == "image/png" and Image.open(io.BytesIO(shot.content)).size == SIZE
    assert Image.open(io.BytesIO(http.get("/screenshot?format=jpeg").content)).format == "JPEG"
    assert http.get("/platform").text == "Linux"
    assert http.get("/cursor_position").json() == [400, 300]
    assert http.post("/screen_size").json() == {"width": 800, "height": 600}
    assert http.post("/desktop_path").json() == {"desktop_path": "/home/user/Desktop"}
    assert http.post("/window_size", data={"app_class_name": "tint2"}).json()["width"] == 800
    assert http.post("/window_size", data={"app_class_name": "nothing"}).status_code == 404
    assert http.post("/wallpaper").status_code == 404
    names = [
        n["name"]
        for n in http.post("/list_directory", json={"path": "/home/user"}).json()["directory_tree"]["children"]
    ]
    assert {"Desktop", "Documents", ".config"} <= set(names)
    assert http.post("/list_directory", json={"path": "/nowhere"}).status_code == 404
    assert "desktop-frame" in http.get("/accessibility").json()["AT"]
    assert http.get("/terminal").json() == {"output": "", "status": "success"}
    for route in ("/start_recording", "/end_recording"):
        assert http.post(route).status_code == 501
    assert http.get("/nothing").status_code == 404 and http.post("/file", data={}).status_code == 400


def test_screenshots_at_the_same_time_are_whole(http: httpx.Client, sock: str) -> None:
    """OSWorld's server writes all of them to one file."""
    found: list[bytes] = []

    def look() -> None:
        with httpx.Client(base_url="http://vm", transport=httpx.HTTPTransport(uds=sock), timeout=60) as client:
            found.extend(client.get("/screenshot").content for _ in range(4))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 16 and len(set(found)) == 1


def test_osworlds_setup_routes(http: httpx.Client) -> None:
    path = "/home/user/Documents/new folder/it's.txt"
    said = http.post("/setup/upload", data={"file_path": path}, files={"file_data": ("x", b"a\r\n--b\x00\xff")})
    assert said.text == "File Uploaded: 8 bytes"
    assert http.post("/file", data={"file_path": path}).content == b"a\r\n--b\x00\xff"
    assert http.post("/file", data={"file_path": "~/none"}).status_code == 404
    assert (
        http.post("/setup/upload", data={"file_path": "relative"}, files={"file_data": ("x", b"")}).status_code == 400
    )
    assert http.post("/setup/upload", data={"file_path": "/usr/x"}, files={"file_data": ("x", b"")}).status_code == 507
    told = http.post("/setup/execute", json={"command": ["python3", "-c", "print(6 * 7)"], "shell": False}).json()
    assert told == {"status": "success", "output": "42\n", "error": "", "returncode": 0}
    told = http.post("/setup/execute", json={"command": "echo $HOME; exit 3", "shell": True}).json()
    assert (told["output"], told["returncode"]) == ("/home/user\n", 3)
    assert http.post("/setup/execute", json={"command": ["no-such-program"]}).status_code == 500
    began = time.monotonic()
    late = http.post("/setup/execute", json={"command": "sleep 50 & sleep 60", "shell": True, "timeout": 0.5})
    assert late.status_code == 500 and "did not end within" in late.json()["message"] and time.monotonic() - began < 10
    wanted = {"command": "true", "shell": True, "verification": {"command_success": "test -d /home/user/Desktop"}}
    assert http.post("/setup/execute_with_verification", json=wanted).json()["verification"] == "passed"
    wanted |= {"verification": {"window_exists": "no such window"}, "max_wait_time": 0.2, "check_interval": 0.1}
    assert http.post("/setup/execute_with_verification", json=wanted).status_code == 500
    assert http.post("/setup/download_file", json={"url": "http://127.0.0.1:1/x", "path": "~/x"}).status_code == 500
    assert http.post("/setup/launch", json={"command": ["sleep", "1"]}).text.endswith("launched successfully")
    assert http.post("/setup/launch", json={"command": 7}).status_code == 400
    for route in ("activate_window", "close_window"):
        assert http.post(f"/setup/{route}", json={"window_name": "none"}).status_code == 404


@needs_editor
def test_a_file_is_opened_activated_and_closed(fresh: None, http: httpx.Client, sock: str, desk: Slot) -> None:
    http.post("/setup/upload", data={"file_path": "~/Desktop/a.txt"}, files={"file_data": ("x", b"hello\n")})
    assert http.post("/setup/open_file", json={"path": "~/Desktop/none.txt"}).status_code == 404
    assert http.post("/setup/open_file", json={"path": "~/Desktop/a.txt"}).status_code == 200
    (window,) = [w for w in http.get("/windows").json()["windows"] if "a.txt" in w["title"]]
    assert window["active"] and window["app"].startswith("mousepad")
    http.post("/setup/open_file", json={"path": "/home/user/Documents"})
    assert not next(w for w in http.get("/windows").json()["windows"] if "a.txt" in w["title"])["active"]
    assert http.post("/setup/activate_window", json={"window_name": "a.txt"}).status_code == 200
    http.post("/look", json={})
    assert next(w for w in http.get("/windows").json()["windows"] if "a.txt" in w["title"])["active"]
    found = elements(http.get("/accessibility").json()["AT"], *SIZE)
    assert any(e["role"] == "menu" and e["name"] == "File" and 0 < e["x"] < 1 for e in found)
    assert any(e["text"].startswith("hello") for e in found)
    assert http.post("/setup/close_window", json={"window_name": "a.txt"}).status_code == 200
    http.post("/look", json={})
    assert not any("a.txt" in w["title"] for w in http.get("/windows").json()["windows"])


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.system('touch /tmp/x')",
        "pyautogui.click(__import__('os').getpid(), 1)",
        "open('/tmp/x', 'w')",
        "exec('1')",
        "pyautogui.screenshot('/tmp/x')",
        "[pyautogui.click(1, 1) for _ in range(9)]",
        "pyautogui.write('a' * 10**9)",
        "from pyautogui import os",
        "x = 1",
        "pyautogui.click(1",
    ],
)
def test_strict_execute_runs_no_code(http: httpx.Client, code: str) -> None:
    said = http.post("/execute", json={"command": ["python", "-c", PREFIX + code], "shell": False})
    assert said.status_code == 403, said.text
    assert http.post("/file", data={"file_path": "/tmp/x"}).status_code == 404


def test_strict_refuses_commands_and_scripts(http: httpx.Client) -> None:
    for command in (["ls"], "ls", ["bash", "-c", "ls"], ["python", "script.py"], ["python", "-c", "x", "y"]):
        assert http.post("/execute", json={"command": command}).status_code == 403
    assert http.post("/run_python", json={"code": "print(1)"}).status_code == 403
    assert http.post("/run_bash_script", json={"script": "ls"}).status_code == 403


def test_strict_execute_does_pyautogui_as_actions(http: httpx.Client) -> None:
    code = f"{PREFIX}pyautogui.moveTo(123, 45); pyautogui.click()"
    said = http.post("/execute", json={"command": ["python", "-c", code], "shell": False})
    assert said.json() == {"status": "success", "output": "", "error": "", "returncode": 0}
    assert http.get("/cursor_position").json() == [123, 45]


def test_not_strict_runs_code(http: httpx.Client, routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of OSWorld's own routes end in an error there."""
    monkeypatch.setattr(routes.osworld, "strict", False)
    told = http.post("/run_python", json={"code": "print(1)\nraise SystemExit(4)"}).json()
    assert (told["status"], told["output"], told["return_code"]) == ("error", "1\n", 4)
    told = http.post("/run_bash_script", json={"script": "pwd; exit 2", "working_dir": "/tmp"}).json()
    assert (told["output"], told["returncode"]) == ("/tmp\n", 2)
    assert http.post("/execute", json={"command": ["echo", "x"]}).json()["output"] == "x\n"


def test_actions_over_the_wire(http: httpx.Client) -> None:
    said = http.post("/act", json={"action": {"kind": "Move", "x": 0.25, "y": 0.5}})
    info = json.loads(said.headers["x-guiderail"])
    assert said.content.startswith(b"\x89PNG") and info["settled"] and info["settle_ms"] < 3000
    assert http.get("/cursor_position").json() == [200, 300]
    for bad in ({"kind": "Key", "keys": ["nokey"]}, {"kind": "Boom"}, {}, {"kind": "Type", "text": "\x02"}):
        assert http.post("/act", json={"action": bad}).status_code == 422
    assert http.post("/act", content=b"{").status_code == 400
    assert http.post("/act", content=b"[]").status_code == 400


def test_older_leases_are_refused_and_all_is_written_down(http: httpx.Client, routes: Routes) -> None:
    move = {"action": {"kind": "Move", "x": 0.1, "y": 0.1}}
    assert http.post("/act", json={**move, "fence": 5}).status_code == 200
    assert http.post("/act", json={**move, "fence": 4}).status_code == 409
    assert http.post("/reset", json={"fence": 4}).status_code == 409
    assert http.post("/act", json=move).status_code == 200
    assert routes.journal is not None
    wrote = Path(f"/proc/self/fd/{routes.journal._fd}").read_text().splitlines()
    assert [json.loads(x)[2:4] for x in wrote][-4:] == [[5, "step"], [4, "refused"], [4, "refused"], [5, "step"]]
    assert http.post("/reset", json={"fence": 6, "screenshot": False}).status_code == 200
    wrote = Path(f"/proc/self/fd/{routes.journal._fd}").read_text().splitlines()
    assert [json.loads(x)[2:4] for x in wrote][-2:] == [
        [6, "clean"],
        [6, "reset"],
    ]  # in this order: it was cleaned first
    routes.fence = 0


def test_the_env_on_it(fresh: None, sock: str) -> None:
    async def play(machine: Machine) -> None:
        env = DesktopEnv(machine, call_timeout_s=30.0)
        with pytest.raises(ValueError, match="step before reset"):
            await env.step(Click(0.5, 0.5))
        with pytest.raises(ValueError, match="no desktop tasks of suite 'nowhere'"):
            await env.reset(TaskSpec("nowhere", "x", 0))
        first = await env.reset(BLANK)
        assert (first.observation.width, first.observation.height) == SIZE and first.observation.instruction
        for bad in (Nav("back"), Key(("nokey",)), Open("nothing"), Type("\x01")):
            with pytest.raises(ValueError):
                await env.step(bad)
        after = await env.step(Key(("super", "e")))  # the window manager's key for the file manager
        assert after.observation.step == 1 and not after.done
        assert (await env.step(Answer("42"))).observation.step == 2
        assert (await env.step(Finish("failure"))).done
        assert (env.said.claim, env.said.answers, env.said.steps) == ("failure", ("42",), 3)
        assert await env.evaluate() == 0.0
        assert any(e["app"] == "pcmanfm" for e in await env.oracle())
        assert (await env.reset(BLANK)).observation.frame == first.observation.frame

    with_machine(sock, play)


def test_the_machines_words(fresh: None, sock: str) -> None:
    async def ask(machine: Machine) -> None:
        before = await machine.tree()
        await machine.write("~/Documents/x.bin", b"\x00" * 3)
        await machine.execute(["ln", "-s", "/etc", "/home/user/link"])
        after = await machine.tree()
        changed = {k: v for k, v in after.items() if before.get(k) != v}
        assert changed.keys() == {"Documents/x.bin", "link"} and changed["link"].digest == "/etc"
        assert changed["Documents/x.bin"].size == 3 and changed["Documents/x.bin"].digest.startswith("709e80c8")
        assert await machine.read("~/Documents/x.bin") == b"\x00" * 3
        with pytest.raises(FileNotFoundError):
            await machine.read("~/none")
        with pytest.raises(FileNotFoundError):
            await machine.list_directory("/none")
        with pytest.raises(Refusal, match="no window 'none'"):
            await machine.activate("none")
        with pytest.raises(Refusal, match="does not start"):
            await machine.execute(["nothing"])
        ran = await machine.execute("echo out; echo err >&2; exit 7", shell=True)
        assert (ran.status, ran.output, ran.error) == (7, "out\n", "err\n")
        assert await machine.platform() == "Linux" and machine.home == "/home/user" and machine.size == SIZE

    with_machine(sock, ask)


def test_a_setup_that_fails_is_no_failure_of_the_agent(sock: str) -> None:
    class Broken:
        instruction, setup_s, judge_s = "x", 0.0, 0.0

        async def setup(self, machine: Machine) -> None:
            await machine.open_file("~/none.txt")

        async def judge(self, machine: Machine, said: object) -> float:
            return 1.0

    async def play(machine: Machine) -> None:
        env = DesktopEnv(machine, book=lambda task: Broken())
        with pytest.raises(InfraError, match=r"setup of .* failed"):
            await env.reset(BLANK)
        with pytest.raises(InfraError, match="broken by"):
            await env.reset(BLANK)

    with_machine(sock, play)
