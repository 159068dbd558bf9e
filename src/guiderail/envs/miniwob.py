"""One MiniWoB++ page as an environment.

Guarantees: the page lives in virtual time, which passes only inside `reset` and `step` (step_ms each), so frames depend
on the task's seed and the actions alone, not on how long anybody thinks; the last frame of an episode shows the page as
the agent left it (the START cover is hidden); every fault of the page surfaces as InfraError within the call timeout,
and an env that failed once (or was cancelled inside a call) is broken for good: close it, ask the browser for another.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncGenerator
from typing import Any

from guiderail.actions.types import Action, Wait
from guiderail.envs import keys, page, plan, scripts
from guiderail.envs.cdp import Json
from guiderail.envs.channel import Channel, deadline
from guiderail.envs.types import InfraError, Observation, StepResult
from guiderail.tasks.types import TaskSpec

EPOCH_S = 1_700_000_000  # what Date says when a page is made
LOAD_MS = 100  # virtual time a page gets after its last fetch while loading
TICK_MS = 0.01  # frame times must differ
PAST_MS = 1  # a timer due exactly when a step's time ends has always fired


class BrowserEnv:
    """One page as an `envs.types.Env`. Not for use by two tasks at once."""

    def __init__(self, channel: Channel, context: str, target: str, session: str) -> None:
        self._channel = channel
        self._context, self._target, self._session = context, target, session
        self._url = ""
        self._instruction = ""
        self._step = 0
        self._ticks = 0.0
        self._broken = ""
        self._closed = False

    @classmethod
    async def open(cls, channel: Channel) -> BrowserEnv:
        """A fresh page in its own context, and so its own process. Raises InfraError."""
        cdp = channel.cdp
        async with deadline("new page", channel.call_timeout_s):
            context = (await cdp.send("Target.createBrowserContext", {"disposeOnDetach": True}))["browserContextId"]
            wanted: Json = {"url": "about:blank", "browserContextId": context}
            wanted |= {"width": scripts.WIDTH, "height": scripts.HEIGHT}
            if channel.begin_frame:
                wanted["enableBeginFrameControl"] = True
            target = (await cdp.send("Target.createTarget", wanted))["targetId"]
            session = (await cdp.send("Target.attachToTarget", {"targetId": target, "flatten": True}))["sessionId"]
            env = cls(channel, context, target, session)
            await env._prepare()
            return env

    # -- Env ----------------------------------------------------------------------------------------------------------
    async def reset(self, task: TaskSpec) -> StepResult:
        """Start the episode of `task`; the page is loaded when the template changes (or must be).

        Raises ValueError, with nothing done, for a template without a page or without the task's wording, InfraError.
        """
        url = page.page_of(task)
        page.check_wording(task)
        async with self._call(f"reset {task.id}"):
            self._send("Input.dispatchMouseEvent", keys.mouse("Moved", scripts.WIDTH - 1, scripts.HEIGHT - 1))
            said = None
            if self._url == url and task.template not in page.RELOAD:
                said = await self._evaluate(page.start_script(task.seed))
            if said is None:
                self._url = ""
                await self._load(url)
                said = await self._evaluate(page.start_script(task.seed))
            if said is None:
                raise InfraError(f"{url} did not become a task page", "crash")
            self._url, self._step = url, 0
            self._instruction = page.reword(task, said)
            await self._live(self._channel.step_ms + PAST_MS)
            return await self._result()

    async def step(self, action: Action) -> StepResult:
        """Do `action`, let the page live step_ms, return the screen.

        Raises ValueError, with nothing done, for an action that a page has no use for (LongPress, Open, Answer, Nav,
        Finish, an unknown key; see `plan.events`): that is the agent's error, not an infrastructure error.
        """
        if not self._url:
            raise ValueError("step before reset")
        events, budget = plan.events(action), self._channel.step_ms + PAST_MS
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

        Keys: tag, id, classes, text (own text), inner (all text), attrs (attributes; type, value, checked, ... live),
        x, y, w, h (top-left corner and size as fractions of the screen; may lie outside it), words ({text, x, y, w, h}
        of own text), parent (index into this list or -1), hit (a click on the centre lands on it), focused, color,
        background.
        """
        async with self._call("oracle"):
            facts: list[dict[str, Any]] = await self._evaluate(scripts.ORACLE)
            return facts

    async def close(self) -> None:
        """Drop the page and its context. Idempotent; never raises for a page that is gone."""
        if self._closed:
            return
        self._closed = True
        cdp = self._channel.cdp
        ends = [
            cdp.send("Runtime.terminateExecution", session=self._session),
            cdp.send("Target.closeTarget", {"targetId": self._target}),
            cdp.send("Target.disposeBrowserContext", {"browserContextId": self._context}),
        ]
        await asyncio.wait(ends[1:], timeout=5)
        cdp.forget(self._session)

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _prepare(self) -> None:
        cdp, sid = self._channel.cdp, self._session
        cdp.on("Page.javascriptDialogOpening", lambda _: self._dismiss(), sid)
        ready = [
            self._send("Page.enable"),
            self._send("Page.addScriptToEvaluateOnNewDocument", {"source": scripts.PRELUDE}),
            self._send("Emulation.setFocusEmulationEnabled", {"enabled": True}),
            self._send("Emulation.setVirtualTimePolicy", {"policy": "pause", "initialVirtualTime": EPOCH_S}),
        ]
        if not self._channel.begin_frame:
            size: Json = {"width": scripts.WIDTH, "height": scripts.HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            ready.append(self._send("Emulation.setDeviceMetricsOverride", size))
        self._ticks = float((await asyncio.gather(*ready))[3]["virtualTimeTicksBase"])

    def _dismiss(self) -> None:
        self._send("Page.handleJavaScriptDialog", {"accept": True})

    def _send(self, method: str, params: Json | None = None) -> asyncio.Future[Json]:
        return self._channel.cdp.send(method, params, self._session)

    @contextlib.asynccontextmanager
    async def _call(self, what: str) -> AsyncGenerator[None, None]:
        """Deadline around one call; an env that failed (or was cancelled) half way is broken for good."""
        if self._broken or self._closed:
            raise InfraError(f"{what}: this page is {self._broken or 'closed'}; ask the browser for a new one", "crash")
        try:
            async with deadline(what, self._channel.call_timeout_s):
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
            while (await asyncio.wait(pending, timeout=0.01))[1]:  # the frame was ahead of the event: draw another
                await self._frame()
        if pending:
            await asyncio.gather(*pending)

    async def _live(self, budget_ms: int, policy: str = "advance") -> None:
        """Let the page live `budget_ms` of virtual time."""
        expired = self._channel.cdp.once("Emulation.virtualTimeBudgetExpired", self._session)
        self._send("Emulation.setVirtualTimePolicy", {"policy": policy, "budget": budget_ms})
        await expired
        self._ticks += budget_ms

    async def _load(self, url: str) -> None:
        answer = await self._send("Page.navigate", {"url": url})
        if answer.get("errorText"):
            raise InfraError(f"{url}: {answer['errorText']}", "crash")
        while not await self._evaluate(scripts.LOADED):
            await self._live(LOAD_MS, "pauseIfNetworkFetchesPending")

    async def _frame(self, screenshot: bool = False) -> bytes:
        """Draw; returns PNG bytes when asked for."""
        if not self._channel.begin_frame:
            if not screenshot:
                return b""
            return base64.b64decode((await self._send("Page.captureScreenshot", {"format": "png"}))["data"])
        for _ in range(5):
            self._ticks += TICK_MS
            params: Json = {"frameTimeTicks": self._ticks, "interval": TICK_MS / 2}
            if screenshot:
                params["screenshot"] = {"format": "png"}
            answer = await self._channel.frame(self._session, params)
            if not screenshot:
                return b""
            if "screenshotData" in answer:
                return base64.b64decode(answer["screenshotData"])
        raise InfraError("the page drew no picture", "crash")

    async def _result(self) -> StepResult:
        png, (done, reward, reason) = await asyncio.gather(self._frame(screenshot=True), self._evaluate(scripts.STATE))
        digest = hashlib.sha256(png).hexdigest()
        observation = Observation(digest, scripts.WIDTH, scripts.HEIGHT, self._instruction, self._step, png)
        return StepResult(observation, bool(done), float(reward), {"reason": reason} if reason else {})
