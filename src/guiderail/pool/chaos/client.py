"""One client of the chaos test: `client.py URL TOKEN LOG NAME MODE SUITE/TEMPLATE`. Plays episodes until it is killed,
or whoever started it is gone.

Every action is unique text, so that the machines' own journal tells what was done how often. It logs what it was
given and told: lease, ack, end. MODE typed uses our client; gui_rl sends what gui-rl's client sends and asks again as
it does, without request ids.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from guiderail.actions.types import Type
from guiderail.envs.types import InfraError
from guiderail.pool.client import PoolClient, RemoteEnv
from guiderail.pool.http import Http, TransportError
from guiderail.tasks.types import TaskSpec

STEPS = 4
ALLOCATE_S = 20.0
PAUSE_S = 1.0  # gui-rl's
TRIES = 10


class Log:
    """Lines of JSON, each written in one call: a kill never tears one."""

    def __init__(self, path: str, name: str) -> None:
        self.fd, self.name = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), name

    def __call__(self, kind: str, episode: int, *what: Any) -> None:
        """Write one."""
        os.write(self.fd, json.dumps([round(time.time(), 4), self.name, kind, episode, *what]).encode() + b"\n")


async def typed(client: PoolClient, log: Log, episode: int, task: str) -> str:
    """One episode with our client; returns its outcome."""
    lease = await client.allocate(f"{log.name}-{episode}", ALLOCATE_S)
    log("lease", episode, lease.lease, lease.token)
    env = RemoteEnv(client, lease)
    try:
        suite, template = task.split("/")
        await env.reset(TaskSpec(suite, template, episode))
        for step in range(STEPS):
            marker = f"{log.name}-{episode}-{step}"
            result = await env.step(Type(marker))
            log("ack", episode, marker, result.info.get("machine"), result.raw_reward)
            counted = result.raw_reward if suite == "noop" else result.observation.step
            if counted != step + 1:
                return "wrong_state"
        return "success" if await env.evaluate() == (STEPS if suite == "noop" else 0) else "wrong_state"
    finally:
        await env.close()


class Refusal(Exception):
    """ok: false, or no answer in all tries."""


class GuiRl:
    """gui-rl's way of asking."""

    def __init__(self, url: str, token: str) -> None:
        self.http = Http(f"{url}/t/{token}", {})

    async def post(self, route: str, **fields: Any) -> dict[str, Any]:
        """Ask up to ten times, a second apart; ok: false is final."""
        for left in reversed(range(TRIES)):
            try:
                status, body = await self.http.request("POST", route, json.dumps(fields).encode(), 60.0)
                if status == 200:
                    said: dict[str, Any] = json.loads(body)
                    if not said.get("ok"):
                        raise Refusal(said["class"])
                    return said
            except (TransportError, TimeoutError):
                pass
            if left:
                await asyncio.sleep(PAUSE_S)
        raise Refusal("unreachable")


async def compatible(client: GuiRl, log: Log, episode: int, task: str) -> str:
    """One episode as gui-rl plays it."""
    lease = (await client.post("/allocate", episode_id=f"{log.name}-{episode}"))["lease_id"]
    log("lease", episode, lease, None)
    try:
        await client.post("/reset", lease_id=lease, task_config={"id": f"{task}/{episode}"})
        for step in range(STEPS):
            marker = f"{log.name}-{episode}-{step}"
            await client.post("/heartbeat", lease_id=lease)
            script = f"pyautogui.write({marker!r})"
            said = await client.post("/step", lease_id=lease, action=script, sleep_after_execution=0.0)
            log("ack", episode, marker, said["info"].get("machine"), None)
        await client.post("/evaluate", lease_id=lease)
        return "success"
    finally:
        await client.post("/close", lease_id=lease)


async def play(url: str, token: str, log: Log, mode: str, task: str) -> None:
    """Episode after episode."""
    ours, theirs = PoolClient(url, token), GuiRl(url, token)
    episode, parent = 0, os.getppid()
    while os.getppid() == parent:
        episode += 1
        log("begin", episode)
        try:
            played = compatible(theirs, log, episode, task) if mode == "gui_rl" else typed(ours, log, episode, task)
            outcome = await played
        except InfraError as e:
            outcome = f"infra_error:{e.cause}"
        except Refusal as e:
            outcome = f"infra_error:{e}"
        log("end", episode, outcome)
        if outcome != "success":
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(play(sys.argv[1], sys.argv[2], Log(sys.argv[3], sys.argv[4]), sys.argv[5], sys.argv[6]))
