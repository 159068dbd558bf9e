"""MiniWoB++ pages in a headless Chromium: one browser, many pages, one screen each.

Guarantees: a page lives in virtual time, which passes only inside `reset` and `step` (step_ms each), so frames depend on the
task's seed and the actions alone, not on how long anybody thinks; the last frame of an episode shows the page as the agent
left it (the START cover is hidden); every fault of page or browser surfaces as InfraError within the call timeout, after
which the env is closed for good and `Browser.new_env` gives a new one.
Not guaranteed: native popups (the list of a <select>) are not drawn; use keys there.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Any

from guiderail.actions.types import Action, Wait
from guiderail.envs import chromium, keys, launch, page, plan, scripts
from guiderail.envs.cdp import CdpError, Json
from guiderail.envs.types import InfraError, Observation, StepResult
from guiderail.tasks.types import TaskSpec

EPOCH_S = 1_700_000_000  # what Date says when a page is made
LOAD_MS = 100  # virtual time a page gets after its last fetch while loading
TICK_MS = 0.01  # frame times must differ


class Browser:
    """One Chromium. Make it with `launch`; use as `async with await Browser.launch() as browser`."""

    def __init__(self, running: launch.Running, found: chromium.Chromium, step_ms: int, call_timeout_s: float) -> None:
        self._running = running
        self._frames = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.cdp = running.connection
        self.found = found
        self.step_ms = step_ms
        self.call_timeout_s = call_timeout_s
        self.begin_frame = running.begin_frame

    @classmethod
    def launch(cls, path: str | None = None, *, step_ms: int = 300, call_timeout_s: float = 20.0) -> _Launch:
        """Start a browser: `await Browser.launch()` or `async with Browser.launch() as browser`.

        `step_ms`: virtual milliseconds a page lives after an action; `call_timeout_s`: limit of each env call.
        Raises chromium.BrowserNotFound, or InfraError when it does not start.
        """
        return _Launch(path, step_ms, call_timeout_s)

    @property
    def pid(self) -> int:
        """Process id of the guard that holds the browser's processes."""
        return self._running.guard.pid

    @property
    def alive(self) -> bool:
        """Whether the browser can still be talked to."""
        return not self.cdp.closed.is_set()

    async def new_env(self) -> BrowserEnv:
        """A fresh page in its own context (and process). Raises InfraError."""
        async with deadline("new page", self.call_timeout_s):
            context = (await self.cdp.send("Target.createBrowserContext", {"disposeOnDetach": True}))[
                "browserContextId"
            ]
            wanted: Json = {
                "url": "about:blank",
                "browserContextId": context,
                "width": scripts.WIDTH,
                "height": scripts.HEIGHT,
            }
            if self.begin_frame:
                wanted["enableBeginFrameControl"] = True
            target = (await self.cdp.send("Target.createTarget", wanted))["targetId"]
            session = (await self.cdp.send("Target.attachToTarget", {"targetId": target, "flatten": True}))["sessionId"]
            env = BrowserEnv(self, context, target, session)
            await env.prepare()
            return env

    async def frame(self, session: str, params: Json, timeout_s: float) -> Json:
        """One beginFrame, alone in this browser: two pages drawing at once crash it. A page that does not draw is dropped."""

        async def alone() -> Json:
            async with self._frames:
                future = self.cdp.send("HeadlessExperimental.beginFrame", params, session)
                done, _ = await asyncio.wait([future], timeout=timeout_s)
                if not done:
                    self.cdp.send("Runtime.terminateExecution", session=session)
                    await asyncio.wait([future], timeout=2)
                    raise InfraError("the page did not draw a frame in time", "timeout")
                return future.result()

        task = asyncio.ensure_future(
            alone()
        )  # shielded: a cancelled caller must not let the next frame overlap this one
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """End the browser and all its processes, remove its files. Idempotent."""
        await self._running.stop()

    async def __aenter__(self) -> Browser:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


class _Launch:
    """A launch that may be awaited or entered."""

    def __init__(self, path: str | None, step_ms: int, call_timeout_s: float) -> None:
        self._args = (path, step_ms, call_timeout_s)
        self._browser: Browser | None = None

    async def _start(self) -> Browser:
        path, step_ms, call_timeout_s = self._args
        found = await asyncio.to_thread(chromium.find, path)
        self._browser = Browser(await launch.start(found), found, step_ms, call_timeout_s)
        return self._browser

    def __await__(self) -> Any:
        return self._start().__await__()

    async def __aenter__(self) -> Browser:
        return await self._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._browser is not None:
            await self._browser.close()


@contextlib.asynccontextmanager
async def deadline(what: str, seconds: float) -> AsyncIterator[None]:
    """Turn a time-out or a refused command into InfraError."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise InfraError(f"{what}: no answer within {seconds:g} s", "timeout") from None
    except CdpError as e:
        raise InfraError(f"{what}: {e}", "crash") from e


class BrowserEnv:
    """One page as an `envs.types.Env`. Not for use by two tasks at once."""

    def __init__(self, browser: Browser, context: str, target: str, session: str) -> None:
        self._browser = browser
        self._context, self._target, self._session = context, target, session
        self._template = ""
        self._instruction = ""
        self._step = 0
        self._ticks = 0.0
        self._broken = ""
        self._closed = False

    # -- Env ----------------------------------------------------------------------------------------------------------
    async def reset(self, task: TaskSpec) -> StepResult:
        """Start the episode of `task`; the page is loaded only when the template changes. Raises ValueError, InfraError."""
        url = page.page_url(task.template)
        async with self._call(f"reset {task.id}"):
            self._send("Input.dispatchMouseEvent", keys.mouse("Moved", scripts.WIDTH - 1, scripts.HEIGHT - 1))
            said = None
            if self._template == task.template and task.template not in page.RELOAD:
                said = await self._evaluate(page.start_script(task.seed))
            if said is None:
                self._template = ""
                await self._load(url)
                said = await self._evaluate(page.start_script(task.seed))
            if said is None:
                raise InfraError(f"{url} did not become a task page", "crash")
            self._template, self._step = task.template, 0
            self._instruction = page.reword(said, task.wording)
            await self._live(self._browser.step_ms)
            return await self._result()

    async def step(self, action: Action) -> StepResult:
        """Do `action`, let the page live step_ms, return the screen.

        Raises ValueError, with nothing done, for an action that a page has no use for (Open, Answer, Nav, Finish, an unknown
        key): that is the agent's error, not an infrastructure error.
        """
        if not self._template:
            raise ValueError("step before reset")
        events, budget = plan.events(action), self._browser.step_ms
        if isinstance(action, Wait):
            budget += int(1000 * action.seconds)
        async with self._call(f"step {type(action).__name__}"):
            await self._input(events)
            await self._live(budget)
            self._step += 1
            return await self._result()

    async def evaluate(self) -> float:
        """The page's raw reward: 0 until it says otherwise."""
        async with self._call("evaluate"):
            return float((await self._evaluate(scripts.STATE))[1])

    async def oracle(self) -> list[dict[str, Any]]:
        """Facts of every visible element except the instruction, in document order.

        Keys: tag, id, classes, text (own text), inner (all text), attrs (attributes; type, value, checked, ... are live),
        x, y, w, h (top-left corner and size as fractions of the screen; may lie outside it), words ({text, x, y, w, h} of
        own text), parent (index into this list or -1), hit (a click on the centre lands on it), focused, color, background.
        """
        async with self._call("oracle"):
            facts: list[dict[str, Any]] = await self._evaluate(scripts.ORACLE)
            return facts

    async def close(self) -> None:
        """Drop the page and its context. Idempotent; never raises for a page that is gone."""
        if self._closed:
            return
        self._closed = True
        cdp = self._browser.cdp
        ends = [
            cdp.send("Runtime.terminateExecution", session=self._session),
            cdp.send("Target.closeTarget", {"targetId": self._target}),
            cdp.send("Target.disposeBrowserContext", {"browserContextId": self._context}),
        ]
        await asyncio.wait(ends[1:], timeout=5)
        cdp.forget(self._session)

    # -- inside -------------------------------------------------------------------------------------------------------
    async def prepare(self) -> None:
        """Set up the fresh page (`Browser.new_env` does this)."""
        cdp, sid = self._browser.cdp, self._session
        cdp.on("Page.javascriptDialogOpening", lambda _: self._dismiss(), sid)
        ready = [
            self._send("Page.enable"),
            self._send("Page.addScriptToEvaluateOnNewDocument", {"source": scripts.PRELUDE}),
            self._send("Emulation.setFocusEmulationEnabled", {"enabled": True}),
            self._send("Emulation.setVirtualTimePolicy", {"policy": "pause", "initialVirtualTime": EPOCH_S}),
        ]
        if not self._browser.begin_frame:
            size: Json = {"width": scripts.WIDTH, "height": scripts.HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            ready.append(self._send("Emulation.setDeviceMetricsOverride", size))
        self._ticks = float((await asyncio.gather(*ready))[3]["virtualTimeTicksBase"])

    def _dismiss(self) -> None:
        self._send("Page.handleJavaScriptDialog", {"accept": True})

    def _send(self, method: str, params: Json | None = None) -> asyncio.Future[Json]:
        return self._browser.cdp.send(method, params, self._session)

    @contextlib.asynccontextmanager
    async def _call(self, what: str) -> AsyncGenerator[None, None]:
        """Deadline around one call; an env that failed (or was cancelled) half way is broken for good."""
        if self._broken or self._closed:
            raise InfraError(f"{what}: this page is {self._broken or 'closed'}; ask the browser for a new one", "crash")
        try:
            async with deadline(what, self._browser.call_timeout_s):
                yield
        except BaseException as e:
            self._broken = f"broken by {type(e).__name__}: {e}"
            raise

    async def _evaluate(self, script: str) -> Any:
        """Value of `script` in the page. Raises InfraError when it throws."""
        answer = await self._send("Runtime.evaluate", {"expression": script, "returnByValue": True, "silent": True})
        if "exceptionDetails" in answer:
            raise InfraError(f"script error in page: {answer['result'].get('description', '')[:300]}", "crash")
        return answer["result"].get("value")

    async def _input(self, events: list[plan.Event]) -> None:
        """Send input events in order and wait until the page has taken them all."""
        pending: list[asyncio.Future[Json]] = []
        for event in events:
            if event is not plan.DRAW:
                pending.append(self._send(*event))
                continue
            await self._frame()
            while (await asyncio.wait(pending, timeout=0.003))[1]:  # the frame was ahead of the event: draw another
                await self._frame()
        if pending:
            await asyncio.gather(*pending)

    async def _live(self, budget_ms: int, policy: str = "advance") -> None:
        """Let the page live `budget_ms` of virtual time."""
        if budget_ms <= 0:
            return
        expired = self._browser.cdp.once("Emulation.virtualTimeBudgetExpired", self._session)
        self._send("Emulation.setVirtualTimePolicy", {"policy": policy, "budget": budget_ms})
        await expired
        self._ticks += budget_ms

    async def _load(self, url: str) -> None:
        answer = await self._send("Page.navigate", {"url": url})
        if answer.get("errorText"):
            raise InfraError(f"{url}: {answer['errorText']}", "crash")
        while not await self._evaluate(scripts.READY):
            await self._live(LOAD_MS, "pauseIfNetworkFetchesPending")

    async def _frame(self, screenshot: bool = False) -> bytes:
        """Draw; returns PNG bytes when asked for."""
        if not self._browser.begin_frame:
            if not screenshot:
                return b""
            return base64.b64decode((await self._send("Page.captureScreenshot", {"format": "png"}))["data"])
        for _ in range(5):
            self._ticks += TICK_MS
            params: Json = {"frameTimeTicks": self._ticks, "interval": TICK_MS / 2}
            if screenshot:
                params["screenshot"] = {"format": "png"}
            answer = await self._browser.frame(self._session, params, self._browser.call_timeout_s / 2)
            if not screenshot:
                return b""
            if "screenshotData" in answer:
                return base64.b64decode(answer["screenshotData"])
        raise InfraError("the page drew no picture", "crash")

    async def _result(self) -> StepResult:
        png = await self._frame(screenshot=True)
        done, reward, reason = await self._evaluate(scripts.STATE)
        digest = hashlib.sha256(png).hexdigest()
        observation = Observation(digest, scripts.WIDTH, scripts.HEIGHT, self._instruction, self._step, png)
        return StepResult(observation, bool(done), float(reward), {"reason": reason} if reason else {})
