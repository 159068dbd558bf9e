"""The desk between the stage, which keeps browsers, records and curves, and the processes that train.

Guarantees: a question of the trainers is handled once, in the stage's process, one after the other, and its answer goes
to all of them that wait for it; an error there is raised in the trainers. A question left by trainers that are gone is
answered into the void. Only the last answers are kept: those who ask keep the processes of a group closer together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import ray

KEPT = 8


class Abandoned(RuntimeError):
    """The stage ended the training; the reason is raised there."""


class Desk:
    """The actor. Keys name questions: (group of processes, name, number)."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[tuple[Any, str, Any]] = asyncio.Queue()
        self._answers: dict[Any, asyncio.Future[tuple[bool, Any]]] = {}
        self._given: deque[Any] = deque()

    def _answer(self, key: Any) -> asyncio.Future[tuple[bool, Any]]:
        return self._answers.setdefault(key, asyncio.get_running_loop().create_future())

    async def ask(self, key: Any, name: str, payload: Any) -> tuple[bool, Any]:
        """Put a question; (handled, answer)."""
        waiting = self._answer(key)
        await self._asked.put((key, name, payload))
        return await waiting

    async def hear(self, key: Any) -> tuple[bool, Any]:
        """The answer to a question that another process of the group puts."""
        return await self._answer(key)

    async def next(self) -> tuple[Any, str, Any]:
        """The next question; for the stage."""
        return await self._asked.get()

    async def answer(self, key: Any, handled: bool, value: Any) -> None:
        """Answer it."""
        self._answer(key).set_result((handled, value))
        self._given.append(key)
        if len(self._given) > KEPT:
            self._answers.pop(self._given.popleft(), None)


def start_desk() -> Any:
    """A desk on this machine's node, as long as this process lives."""
    return ray.remote(num_cpus=0, max_concurrency=10_000)(Desk).remote()


class Line:
    """A trainer's line to the desk. `rank` 0 puts the questions; those of all ranks are numbered alike."""

    def __init__(self, desk: Any, group: str, rank: int) -> None:
        self.desk, self.group, self.rank = desk, group, rank
        self.numbers = {"together": 0, "alone": 0}

    def _key(self, kind: str) -> tuple[str, str, int]:
        self.numbers[kind] += 1
        return (self.group, kind, self.numbers[kind])

    def together(self, name: str, payload: Any) -> Any:
        """The answer, in all processes, to a question that all of them reach; `payload` is rank 0's. Raises
        Abandoned."""
        key = self._key("together")
        if self.rank == 0:
            return _taken(ray.get(self.desk.ask.remote(key, name, payload)))
        return _taken(ray.get(self.desk.hear.remote(key)))

    def alone(self, name: str, payload: Any) -> Any:
        """The answer to a question of rank 0; other ranks ask nothing and get None. Raises Abandoned."""
        if self.rank != 0:
            return None
        return _taken(ray.get(self.desk.ask.remote(self._key("alone"), name, payload)))

    def report(self, name: str, payload: Any) -> None:
        """Tell the stage something from any rank. Raises Abandoned."""
        _taken(ray.get(self.desk.ask.remote((self.group, f"report-{self.rank}", 0), name, payload)))


def _taken(reply: tuple[bool, Any]) -> Any:
    handled, value = reply
    if not handled:
        raise Abandoned(str(value))
    return value


def serve(desk: Any, handlers: dict[str, Callable[[Any], Any]], ended: Callable[[], bool], poll_s: float = 0.5) -> None:
    """Answer questions until `ended()`. What a handler raises is told to the trainers (as Abandoned) and raised."""
    asked = desk.next.remote()
    while not ended():
        ready, _ = ray.wait([asked], timeout=poll_s)
        if not ready:
            continue
        key, name, payload = ray.get(asked)
        asked = desk.next.remote()
        try:
            value = handlers[name](payload)
        except BaseException as e:
            ray.get(desk.answer.remote(key, False, f"{type(e).__name__}: {e}"))
            raise
        ray.get(desk.answer.remote(key, True, value))
