"""MiniWoB++ pages in a real browser: determinism, input, rewards, faults."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from PIL import Image

from guiderail.actions.types import Action, Answer, Click, Drag, Finish, Key, Move, Nav, Open, Scroll, Type, Wait
from guiderail.envs.browser import Browser, BrowserEnv
from guiderail.envs.types import InfraError
from guiderail.tasks.miniwob import TEMPLATES
from guiderail.tasks.types import TaskSpec

pytestmark = pytest.mark.browser
T = TypeVar("T")


def task(template: str, seed: int = 0, wording: int = 0) -> TaskSpec:
    return TaskSpec("miniwob", template, seed, wording=wording)


def with_env(use: Callable[[BrowserEnv], Awaitable[T]], **options: Any) -> T:
    async def main() -> T:
        async with Browser.launch(**options) as browser:
            return await use(await browser.new_env())

    return asyncio.run(main())


async def centre(env: BrowserEnv, **wanted: Any) -> tuple[float, float]:
    """Centre of the one element whose facts equal `wanted`."""
    (hit,) = [f for f in await env.oracle() if all(f[k] == v for k, v in wanted.items())]
    return hit["x"] + hit["w"] / 2, hit["y"] + hit["h"] / 2


async def value(env: BrowserEnv, tag: str) -> str:
    (field,) = [f for f in await env.oracle() if f["tag"] == tag and f["attrs"].get("type") in ("text", "textarea")]
    return field["attrs"]["value"]


def test_the_seed_alone_decides_the_frame() -> None:
    async def frames(env: BrowserEnv) -> list[str]:
        seen = [(await env.reset(task(*t))).observation for t in (("click-button", 3), ("click-button", 4))]
        await env.step(Click(0.3, 0.4))
        await env.step(Type("left over"))
        seen.append((await env.reset(task("click-button", 3))).observation)  # again in place
        await env.reset(task("enter-text", 1))
        seen.append((await env.reset(task("click-button", 3))).observation)  # again after a load
        assert {(o.width, o.height) for o in seen} == {(160, 224)}
        assert Image.open(io.BytesIO(seen[0].png)).size == (160, 224)
        return [o.frame for o in seen]

    first, again = with_env(frames), with_env(frames)
    assert first == again  # another browser draws the same
    assert first[0] == first[2] == first[3] != first[1]


@pytest.mark.parametrize("template", ["chase-circle", "enter-text"])
def test_thinking_time_changes_nothing(template: str) -> None:
    """chase-circle moves by itself; the focused field of enter-text has a blinking caret."""
    actions: list[Action] = [Click(0.2, 0.3), Type("a"), Wait(0.4), Move(0.6, 0.6), Wait(0.2)]

    async def frames(env: BrowserEnv, pause: float) -> list[str]:
        seen = [(await env.reset(task(template, 2))).observation.frame]
        for action in actions:
            await asyncio.sleep(pause)
            seen.append((await env.step(action)).observation.frame)
        return seen

    quick, slow = with_env(lambda e: frames(e, 0)), with_env(lambda e: frames(e, 0.4))
    assert quick == slow
    if template == "chase-circle":
        assert len(set(quick)) == len(quick)  # it did move


def test_right_and_wrong_clicks_are_rewarded() -> None:
    async def use(env: BrowserEnv) -> None:
        start = await env.reset(task("click-test"))
        assert (start.done, start.raw_reward, await env.evaluate()) == (False, 0.0, 0.0)
        miss = await env.step(Click(0.99, 0.99))
        assert (miss.done, miss.raw_reward) == (False, 0.0)
        hit = await env.step(Click(*await centre(env, tag="button")))
        assert (hit.done, hit.raw_reward, hit.observation.step, await env.evaluate()) == (True, 1.0, 2, 1.0)
        await env.reset(task("click-test-2", 5))
        assert await env.evaluate() == 0.0
        wrong = await env.step(Click(*await centre(env, text="TWO")))
        assert (wrong.done, wrong.raw_reward) == (True, -1.0)
        # the last frame is the page, not the START cover (#111 all over)
        pixels = Image.open(io.BytesIO(wrong.observation.png)).convert("RGB")
        assert pixels.getpixel((80, 40)) == (255, 255, 0)

    with_env(use)


@pytest.mark.parametrize("text", ['it\'s "q" \\ <b> & ()#%~', "naïve Ω → 你好 🙂", "MiXed 09"])
def test_typing_reaches_the_field(text: str) -> None:
    async def use(env: BrowserEnv) -> str:
        await env.reset(task("enter-text"))
        await env.step(Click(*await centre(env, tag="input")))
        await env.step(Type(text))
        return await value(env, "input")

    assert with_env(use) == text


def test_newlines_and_chords_edit_a_text_area() -> None:
    async def use(env: BrowserEnv) -> None:
        await env.reset(task("text-editor"))
        await env.reset(task("copy-paste"))
        await env.step(Click(*await centre(env, tag="input")))
        await env.step(Type("two\twords"))  # the tab leaves the field
        areas = [f for f in await env.oracle() if f["tag"] == "textarea"]
        await env.step(Click(areas[0]["x"] + 0.1, areas[0]["y"] + areas[0]["h"] / 2))
        await env.step(Key(("ctrl", "a")))
        await env.step(Type("one\ntwo"))
        assert await value(env, "textarea") == "one\ntwo"
        await env.step(Key(("BackSpace",)))
        await env.step(Key(("shift", "Home")))
        await env.step(Key(("Delete",)))
        assert await value(env, "textarea") == "one\n"

    with_env(use)


def test_a_select_opens_a_list_that_can_be_clicked() -> None:
    async def use(env: BrowserEnv) -> None:
        start = await env.reset(task("choose-list", 7))
        wanted = start.observation.instruction.removeprefix("Select ").removesuffix(" from the list and click Submit.")
        opened = await env.step(Click(*await centre(env, tag="select")))
        assert opened.observation.frame != start.observation.frame
        (row,) = [f for f in await env.oracle() if f["text"] == wanted and f["tag"] == "div"]
        await env.step(Click(row["x"] + row["w"] / 2, row["y"] + row["h"] / 2))
        result = await env.step(Click(*await centre(env, text="Submit")))
        assert (result.done, result.raw_reward) == (True, 1.0)
        first = await env.reset(task("choose-list", 7))
        assert first.observation.frame == start.observation.frame

    with_env(use)


def test_wheel_drag_and_move_reach_the_page() -> None:
    async def use(env: BrowserEnv) -> None:
        start = await env.reset(task("scroll-text", 1))
        area = next(f for f in await env.oracle() if f["tag"] == "textarea")
        down = await env.step(Scroll(area["x"] + area["w"] / 2, area["y"] + area["h"] / 2, 0, 2))
        assert down.observation.frame != start.observation.frame
        before = await env.reset(task("drag-box", 1))
        after = await env.step(Drag(*await centre(env, id="draggableSmall"), 0.5, 0.7))
        assert after.observation.frame != before.observation.frame
        assert await centre(env, id="draggableSmall") == pytest.approx((0.5, 0.7), abs=0.02)
        await env.reset(task("hover-shape", 1))
        still = (await env.step(Move(0.99, 0.99))).observation.frame
        assert isinstance(still, str)

    with_env(use)


def test_wording_changes_the_instruction_and_nothing_else() -> None:
    async def use(env: BrowserEnv) -> None:
        plain = (await env.reset(task("click-test-2", 1))).observation
        worded = [(await env.reset(task("click-test-2", 1, wording=k))).observation for k in (1, 2)]
        assert plain.instruction == "Click button ONE."
        assert [o.instruction for o in worded] == ["Press the button ONE.", "Please hit ONE."]
        solved = TEMPLATES["click-test-2"].expert(await env.oracle(), worded[1].instruction, 0)
        assert solved is not None and (await env.step(solved[0])).done and await env.evaluate() == 1
        with pytest.raises(ValueError, match="wording 3 does not exist"):
            await env.reset(task("click-test-2", 1, wording=3))
        assert {o.frame for o in worded} == {plain.frame}
        shown = await env.reset(task("email-inbox-nl-turk", 1))  # its utterance is a dict
        assert " " in shown.observation.instruction and "{" not in shown.observation.instruction

    with_env(use)


def test_useless_actions_are_the_agents_error() -> None:
    async def use(env: BrowserEnv) -> None:
        with pytest.raises(ValueError, match=r"no page nosuch\.html"):
            await env.reset(task("nosuch"))
        await env.reset(task("click-test"))
        bad: list[Action] = [Nav("back"), Open("x"), Answer("x"), Finish(), Key(("hyper",)), Key(()), Wait(-1)]
        for action in bad:
            with pytest.raises(ValueError):
                await env.step(action)
        assert not (await env.step(Wait(0))).done  # still usable

    with_env(use)


def test_a_crashed_page_is_an_infra_error_and_the_browser_goes_on() -> None:
    async def main() -> None:
        async with Browser.launch() as browser:
            env, other = await browser.new_env(), await browser.new_env()
            await other.reset(task("click-test"))
            await env.reset(task("click-test"))
            env._send("Page.crash")
            with pytest.raises(InfraError) as fault:
                await env.step(Wait(0))
            assert fault.value.cause == "crash"
            with pytest.raises(InfraError):
                await env.reset(task("click-test"))
            await env.close()
            assert not (await other.step(Wait(0))).done
            again = await browser.new_env()
            assert (await again.reset(task("click-test"))).raw_reward == 0.0

    asyncio.run(main())


@pytest.mark.parametrize("when", ["click", "mousemove", "frame"])
def test_a_hanging_page_times_out_and_is_rebuilt(when: str) -> None:
    hang = "() => { while (true) {} }"
    hook = f"requestAnimationFrame({hang})" if when == "frame" else f"document.addEventListener('{when}', {hang})"

    async def main() -> None:
        async with Browser.launch(call_timeout_s=8) as browser:
            env, other = await browser.new_env(), await browser.new_env()
            await other.reset(task("click-test"))
            await env.reset(task("click-test"))
            await env._evaluate(hook + "; 0")
            began = time.monotonic()
            with pytest.raises(InfraError) as fault:
                await env.step(Click(0.9, 0.9))
            assert fault.value.cause == "timeout"
            assert time.monotonic() - began < 14
            await env.close()
            assert not (await other.step(Wait(0))).done
            again = await browser.new_env()
            assert (await again.reset(task("click-test"))).raw_reward == 0.0
            await browser.close()

    asyncio.run(main())


def test_a_dead_browser_is_an_infra_error_at_once() -> None:
    async def main() -> None:
        browser = await Browser.launch()
        env = await browser.new_env()
        await env.reset(task("click-test"))
        assert browser.alive
        browser.channel.cdp.send("Browser.crash")
        with pytest.raises(InfraError) as fault:
            await env.step(Wait(0))
        assert fault.value.cause == "crash" and not browser.alive
        with pytest.raises(InfraError):
            await browser.new_env()
        await env.close()
        await browser.close()
        await browser.close()

    asyncio.run(main())


def test_pages_work_side_by_side() -> None:
    async def main() -> None:
        async with Browser.launch() as browser:
            envs = [await browser.new_env() for _ in range(4)]

            async def episode(env: BrowserEnv, seed: int) -> list[str]:
                seen = [(await env.reset(task("click-checkboxes", seed))).observation.frame]
                for y in (0.3, 0.4, 0.5):
                    seen.append((await env.step(Click(0.06, y))).observation.frame)
                return seen

            together = await asyncio.gather(*(episode(e, i) for i, e in enumerate(envs)))
            alone = [await episode(e, i) for i, e in enumerate(envs)]
            assert together == alone

    asyncio.run(main())


def test_a_cancelled_step_breaks_its_page_only() -> None:
    async def main() -> None:
        async with Browser.launch() as browser:
            env, other = await browser.new_env(), await browser.new_env()
            await env.reset(task("click-test"))
            await other.reset(task("click-test"))
            for delay in (0.0, 0.002, 0.005):
                step = asyncio.ensure_future(env.step(Move(0.5, 0.5)))
                await asyncio.sleep(delay)
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)
                await other.step(Move(0.4, 0.4))
                await env.close()
                env = await browser.new_env()
                await env.reset(task("click-test"))
            assert not (await env.step(Wait(0))).done

    asyncio.run(main())
