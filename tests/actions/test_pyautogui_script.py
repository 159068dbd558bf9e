"""pyautogui scripts: what the reference agent sends becomes the action it means; the rest is named; nothing is run."""

import builtins

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guiderail.actions.pyautogui_script import CALLS, OffScreen, Pointer, read_script
from guiderail.actions.types import Click, Drag, Key, Move, Scroll, Type, Wait, to_pixel

W, H = 1920, 1080


def at(x: int, y: int) -> tuple[float, float]:
    return (x + 0.5) / W, (y + 0.5) / H


def read(code: str) -> list[object]:
    return list(read_script(code, Pointer(W, H)))


@pytest.mark.parametrize(
    ("code", "actions"),
    [
        ("pyautogui.click(10, 20)", [Click(*at(10, 20))]),
        ("import pyautogui\nimport time\npyautogui.click(x=10, y=20, button='right')", [Click(*at(10, 20), "right")]),
        ("pyautogui.rightClick(1, 2)", [Click(*at(1, 2), "right")]),
        ("pyautogui.middleClick(1, 2)", [Click(*at(1, 2), "middle")]),
        ("pyautogui.doubleClick(1, 2)", [Click(*at(1, 2), "left", 2)]),
        ("pyautogui.click(1, 2, clicks=3)", [Click(*at(1, 2), "left", 3)]),
        ("pyautogui.moveTo(0, 0)", [Move(*at(0, 0))]),
        ("pyautogui.moveTo(5, 6); pyautogui.click()", [Move(*at(5, 6)), Click(*at(5, 6))]),
        ("pyautogui.moveTo(5, 6)\npyautogui.dragTo(7, 8, duration=0.5)", [Move(*at(5, 6)), Drag(*at(5, 6), *at(7, 8))]),
        ("pyautogui.mouseDown(5, 6)\npyautogui.moveTo(7, 8)\npyautogui.mouseUp()", [Drag(*at(5, 6), *at(7, 8))]),
        ("pyautogui.scroll(-3)", [Scroll(*at(960, 540), dy=3)]),  # pyautogui's minus is down, where dy is positive
        ("pyautogui.hscroll(2, 5, 6)", [Scroll(*at(5, 6), dx=2)]),
        ("pyautogui.typewrite('it\\'s <b>\\\\')", [Type("it's <b>\\")]),
        ("pyautogui.press('enter')", [Key(("enter",))]),
        ("pyautogui.press('tab', presses=2)", [Key(("tab",)), Key(("tab",))]),
        ("pyautogui.hotkey('ctrl', 'a')", [Key(("ctrl", "a"))]),
        ("pyautogui.keyDown('ctrlleft')\npyautogui.press('c')\npyautogui.keyUp('ctrlleft')", [Key(("ctrl", "c"))]),
        ("time.sleep(0.5)", [Wait(0.5)]),
        ("", []),
    ],
)
def test_scripts(code: str, actions: list[object]) -> None:
    assert read(code) == actions


@settings(deadline=None)
@given(st.integers(0, W - 1), st.integers(0, H - 1))
def test_a_pixel_comes_back_as_itself(x: int, y: int) -> None:
    (click,) = read(f"pyautogui.click({x}, {y})")
    assert isinstance(click, Click) and to_pixel(click.x, click.y, W, H) == (x, y)


def test_the_reference_agents_edge_is_clamped_and_farther_is_off() -> None:
    # relative 999 and 1000 of 999 (gui-rl.md 2): 1920 and 1921 on a screen of 1920
    assert read("pyautogui.click(1920, 1080)") == read("pyautogui.click(1921, 1081)") == [Click(*at(1919, 1079))]
    for code in ("pyautogui.click(1923, 5)", "pyautogui.click(-1, 5)", "pyautogui.click(5, 99999)"):
        with pytest.raises(OffScreen, match="off the screen"):
            read(code)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("os.system('x')", "os.system is not read"),
        ("import os", "only calls"),
        ("import pyautogui as p", "only calls"),
        ("from pyautogui import click", "only calls"),
        ("pyautogui.screenshot()", "pyautogui.screenshot is not read"),
        ("pyautogui.click(__import__('os'), 2)", "malformed"),
        ("pyautogui.click(1+1j, 2)", "must be a finite number"),
        ("pyautogui.click(True, 2)", "must be a finite number"),
        ("pyautogui.click(1e999, 2)", "must be a finite number"),
        ("x = 1", "only calls"),
        ("pyautogui.click(1, 2", "not Python"),
        ("pyautogui.typewrite(5)", "must be a string"),
        ("pyautogui.typewrite('a\nb')", "not Python"),
        ("pyautogui.click(*[1, 2])", "pyautogui.click"),
        ("pyautogui.click(**{'x': 1})", "pyautogui.click"),
        ("(" * 5000, "not Python"),
        ("pyautogui.click(1, 2, clicks=9)", "1 to 3"),
        ("getattr(pyautogui, 'click')(1, 2)", "only calls"),
        ("pyautogui.click(1, 1)\n" * 257, "257 actions or lines; a script may have 256"),
        (";".join(["pyautogui.click(1, 1)"] * 257), "257 actions or lines"),
        ("pyautogui.press(['a', 'b', 'c'], presses=100)", "300 actions or lines"),
        ("pyautogui.press([" + "'a', " * 20_000 + "], presses=100)", "2000000 actions or lines"),  # took 25 s
        ("pyautogui.write([" + "'a', " * 20_000 + "])", "20000 actions or lines"),
    ],
)
def test_everything_else_is_named(code: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        read(code)


def test_a_refused_script_leaves_the_pointer() -> None:
    pointer = Pointer(W, H)
    with pytest.raises(ValueError):
        read_script("pyautogui.moveTo(1, 1)\npyautogui.keyDown('a')\npyautogui.nothing()", pointer)
    assert (pointer.x, pointer.y, pointer.held) == (960, 540, [])


@settings(deadline=None)
@given(
    st.text(max_size=60) | st.builds("{}({!r}, {!r})".format, st.sampled_from(sorted(CALLS)), st.text(), st.floats())
)
def test_any_text_is_actions_or_a_value_error(code: str) -> None:
    banned = {n: getattr(builtins, n) for n in ("eval", "exec")}
    try:
        for name in banned:
            setattr(builtins, name, lambda *a, **k: pytest.fail("text was executed"))
        read(code)
    except ValueError:
        pass
    finally:
        for name, function in banned.items():
            setattr(builtins, name, function)
