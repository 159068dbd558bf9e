"""The client's end: constants for a stock server whatever the text, a stock server as the client meets it, the tree."""

import ast
import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guiderail.actions.types import Click, Drag, Key, LongPress, Move, Nav, Scroll, Type, Wait
from guiderail.envs import stock
from guiderail.envs.accessibility import elements
from guiderail.envs.desktop_tasks import Said, blank, find
from guiderail.envs.machine import Machine
from guiderail.envs.machine_wire import Refusal
from guiderail.envs.types import InfraError
from guiderail.tasks.types import TaskSpec

PNG = b"\x89PNG\r\n\x1a\n"


def called(code: str) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """The calls of pyautogui and time in `code`, their arguments as literals."""
    found = []
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Call(ast.Attribute(ast.Name("pyautogui" | "time"), name), positional, keywords):
                args = [ast.literal_eval(a) for a in positional]
                found.append((name, args, {str(k.arg): ast.literal_eval(k.value) for k in keywords}))
    return found


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (Click(0.5, 0.5), [("click", [500, 250], {"clicks": 1, "button": "left"})]),
        (Click(2.0, -1.0, "right", 2), [("click", [999, 0], {"clicks": 2, "button": "right"})]),
        (Move(0.1, 0.2), [("moveTo", [100, 100], {})]),
        (LongPress(0.1, 0.2, 1.5), [("mouseDown", [100, 100], {}), ("sleep", [1.5], {}), ("mouseUp", [], {})]),
        (Drag(0, 0, 1, 1), [("moveTo", [0, 0], {}), ("dragTo", [999, 499, 0.5], {"button": "left"})]),
        (Scroll(0.5, 0.5, 2, -3), [("moveTo", [500, 250], {}), ("vscroll", [3], {}), ("hscroll", [2], {})]),
        (Type("it's"), [("write", ["it's"], {})]),
        (Key(("Ctrl", "C")), [("hotkey", ["ctrl", "c"], {})]),
        (Key(("super",)), [("hotkey", ["win"], {})]),
    ],
)
def test_actions_become_constant_calls(action: Any, wanted: Any) -> None:
    code = stock.render(action, 1000, 500)
    assert called(code) == wanted


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_text_is_one_literal_whatever_it_holds(text: str) -> None:
    code = stock.render(Type(text), 100, 100)
    assert code.isascii() and "\r" not in code
    wanted = text.replace("\r\n", "\n")
    tree = ast.parse(code)
    first = tree.body[0]
    if isinstance(first, ast.Assign):  # by XTEST: the text is a constant, the program one that we wrote
        assert ast.literal_eval(first.value) == wanted and code.endswith(stock.XTEST_TYPE)
    else:
        assert called(code) == [("write", [wanted], {})]


@pytest.mark.parametrize("text", ["a<b", "naïve", "a\nb", "€", "it's < 5", "x > y"])
def test_what_pyautogui_types_wrong_goes_another_way(text: str) -> None:
    assert "pyautogui" not in stock.render(Type(text), 100, 100)


@pytest.mark.parametrize(
    "action", [Click(0, 0, "left", 9), Key(("nokey",)), Nav("back"), LongPress(0, 0, 999), Key(("é",))]
)
def test_what_it_cannot_do_is_refused(action: Any) -> None:
    with pytest.raises(ValueError):
        stock.render(action, 100, 100)


class Stock(BaseHTTPRequestHandler):
    """OSWorld's server in miniature: what it answers, and what it was asked."""

    asked: list[tuple[str, str, Any]] = []  # noqa: RUF012
    returncode = 0
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        is_json = self.headers.get("Content-Type", "").startswith("application/json")
        self.asked.append((self.command, self.path, json.loads(body) if is_json else body))
        answers: dict[str, tuple[int, bytes, str]] = {
            "/screen_size": (200, b'{"width": 1920, "height": 1080}', "application/json"),
            "/desktop_path": (200, b'{"desktop_path": "/home/user/Desktop"}', "application/json"),
            "/screenshot": (200, PNG, "image/png"),
            "/file": (404, b'{"error": "File not found"}', "application/json"),
        }
        ran = {"status": "success", "output": "o", "error": "Traceback: no display", "returncode": self.returncode}
        answers["/execute"] = answers["/setup/execute"] = (200, json.dumps(ran).encode(), "application/json")
        status, data, kind = answers.get(self.path, (404, b"<html>404 Not Found</html>", "text/html"))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Stock.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stock)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_stock_server_is_spoken_to_in_its_own_words(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guiderail.envs.machine.STOCK_QUIET_S", 0.05)

    async def main() -> None:
        machine = Machine(url)
        await machine.hello()
        assert (machine.ours, machine.size, machine.home) == (False, (1920, 1080), "/home/user")
        assert (await machine.act(Click(0.5, 0.5))).png == PNG
        await machine.act(Wait(0.01))
        with pytest.raises(ValueError):
            await machine.act(Wait(1e6))
        sent = [body for _, path, body in Stock.asked if path == "/execute"]
        assert [b["command"][:2] for b in sent] == [["python3", "-c"]] and "click(960, 540" in sent[0]["command"][2]
        assert (await machine.execute(["true"])).output == "o"
        with pytest.raises(FileNotFoundError):
            await machine.read("/x")
        with pytest.raises(Refusal):
            await machine.reset()
        with pytest.raises(Refusal):
            await machine.launch(["x"])  # 404: a server too old for it
        Stock.returncode = 1
        with pytest.raises(InfraError, match="no display"):  # OSWorld's client goes on as if it had been done
            await machine.act(Click(0.1, 0.1))
        Stock.returncode = 0
        await machine.close()

    asyncio.run(main())


def test_a_machine_that_is_not_there_is_an_infrastructure_error() -> None:
    async def main() -> None:
        machine = Machine("http://127.0.0.1:9")
        with pytest.raises(InfraError):
            await machine.hello()
        await machine.close()

    asyncio.run(main())


def test_windows_of_a_stock_server() -> None:
    listing = "0x03400003  0 1234  10 20 640 480 mousepad.Mousepad  host Untitled 1 - Mousepad\nnonsense\n"
    (window,) = stock.windows(listing)
    assert (window["id"], window["box"], window["app"]) == (0x3400003, [10, 20, 640, 480], "mousepad.Mousepad")
    assert window["title"] == "Untitled 1 - Mousepad" and window["pid"] == 1234


def test_elements_of_a_tree() -> None:
    ns = "https://accessibility.ubuntu.example.org/ns/"
    box = 'cp:screencoord="({}, {})" cp:size="({}, {})" st:showing="true"'
    xml = f"""<desktop-frame xmlns:cp="{ns}component" xmlns:st="{ns}state"><application name="app">
    <push-button name="OK" {box.format(10, 20, 30, 40)}>text</push-button>
    <label name="half" {box.format(-10, 90, 20, 20)}/><label name="off" {box.format(500, 0, 9, 9)}/>
    <label name="hidden" cp:screencoord="(1, 1)" cp:size="(1, 1)"/></application></desktop-frame>"""
    first, second = elements(xml, 100, 100)
    assert (first["role"], first["name"], first["text"], first["app"]) == ("push-button", "OK", "text", "app")
    assert (first["x"], first["y"], first["w"], first["h"]) == (0.1, 0.2, 0.3, 0.4)
    assert (second["x"], second["w"], second["h"]) == (0.0, 0.1, 0.1)
    with pytest.raises(ValueError, match="document type"):
        elements('<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', 100, 100)
    with pytest.raises(ValueError, match="not XML"):
        elements("<x", 100, 100)


def test_books() -> None:
    assert find(TaskSpec("blank", "blank", 0)).instruction
    with pytest.raises(ValueError, match="no template 'x'"):
        blank(TaskSpec("blank", "x", 0))
    with pytest.raises(ValueError, match="there are: blank"):
        find(TaskSpec("nowhere", "x", 0))
    assert Said().heard(Click(0, 0)).steps == 1
