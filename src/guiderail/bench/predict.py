"""A policy as the `predict` of a recorded benchmark: its own contexts, many trajectories in one batch.

Guarantees: prompts are those of rollouts (one builder); a trajectory's own past answers are kept as sampled ids, never
re-tokenised; a frame that is not there is an InfraError of its trajectory. What shares a batch depends on timing, and
with it the last bits of a log-prob, as with any server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Protocol

from guiderail.actions.codec import Codec, NotExpressible
from guiderail.actions.types import Action
from guiderail.bench.sop import Prediction, Query
from guiderail.envs.types import InfraError
from guiderail.models.prompts import NO_ACTION, Context, PromptBuilder
from guiderail.models.rows import Prompt
from guiderail.rollout.engines.base import Engine
from guiderail.rollout.episode import read_answer
from guiderail.rollout.types import Completion, SamplingParams
from guiderail.seeds import derive_seed

_Asked = tuple[Prompt, SamplingParams, "Future[Completion]"]
LINGER_S = 0.02
"""How long a batch waits for another request."""


class Sink(Protocol):
    """Where frames go that the engine looks at."""

    def put(self, png: bytes) -> str:
        """Store PNG bytes, return their sha256."""
        ...


class Batcher:
    """Requests from many threads to an engine that takes one call at a time. A context manager."""

    def __init__(self, engine: Engine, most: int = 64) -> None:
        self._engine, self._most = engine, most
        self._queue: SimpleQueue[_Asked | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)

    def __enter__(self) -> Batcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()

    def ask(self, prompt: Prompt, sampling: SamplingParams) -> Completion:
        """Wait for the completion. Raises what the engine raises."""
        answer: Future[Completion] = Future()
        self._queue.put((prompt, sampling, answer))
        return answer.result()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = [first], False
            while len(batch) < self._most:
                try:
                    more = self._queue.get(timeout=LINGER_S)
                except Empty:
                    break
                if more is None:
                    last = True
                    break
                batch.append(more)
            self._answer(batch)
            if last:
                return

    def _answer(self, batch: list[_Asked]) -> None:
        try:
            found = self._engine.generate([p for p, _, _ in batch], [s for _, s, _ in batch])
        except Exception as e:  # every one of them is told; the engine may be broken for good
            for *_, answer in batch:
                answer.set_exception(e)
            return
        for (*_, answer), completion in zip(batch, found, strict=True):
            answer.set_result(completion)


class PolicyPredict:
    """The `predict` of `bench.sop.run`.

    png: bytes of a frame by its name (KeyError or OSError when it is not there). seed: of the run; it matters with a
    temperature above 0.
    """

    def __init__(
        self,
        batcher: Batcher,
        builder: PromptBuilder,
        frames: Sink,
        png: Callable[[str], bytes],
        temperature: float,
        seed: int,
    ) -> None:
        self._batcher, self._builder, self._frames, self._png = batcher, builder, frames, png
        self._temperature, self._seed = temperature, seed
        self._said: dict[tuple[str, int], tuple[int, ...]] = {}

    def __call__(self, query: Query) -> Prediction:
        """Ask for the action of a step. Raises InfraError on a missing frame."""
        context = self._builder.context(query.instruction or query.goal)
        for k, past in enumerate(query.history):
            codec, _ = self._see(context, query, past.frame)
            ids = self._said.get((query.episode, k)) if past.text else None
            said = read_answer(codec, past.text or _written(codec, past.action))
            ids = ids or self._builder.completion_ids(past.text or _written(codec, past.action))
            context.complete(ids, [0.0] * len(ids), said.thought, said.text)
        codec, frame = self._see(context, query, query.frame)
        seed = derive_seed("recorded", self._seed, query.episode, query.step)
        sampling = SamplingParams(self._temperature, 1.0, self._builder.params.max_new_tokens, seed)
        started = time.perf_counter()
        completion = self._batcher.ask(context.prompt(), sampling)
        seconds = time.perf_counter() - started
        self._said[query.episode, query.step] = completion.ids
        said = read_answer(codec, completion.text)
        return Prediction(
            said.action,
            completion.text,
            said.problem,
            said.thought,
            completion.ids,
            completion.logprobs,
            frame,
            seconds,
        )

    def _see(self, context: Context, query: Query, name: str) -> tuple[Codec, str]:
        try:
            sha = self._frames.put(self._png(name))
        except (KeyError, OSError) as e:
            raise InfraError(f"episode {query.episode}: frame {name} is missing ({e})") from e
        context.observe(sha, query.width, query.height)
        return self._builder.codec_for(query.width, query.height), sha


def _written(codec: Codec, action: Action | None) -> str:
    """An expert's action as the policy's format has it; what it has no form for is told as no action."""
    try:
        return codec.render(action) if action is not None else NO_ACTION
    except NotExpressible:
        return NO_ACTION
