"""One episode: observe, ask the policy, parse, act, until something typed ends it.

Guarantees: step t of an episode holds the frame the policy saw when it emitted action t; sampled ids and log-probs
are kept as sampled; an infrastructure or judge fault becomes an outcome without reward, never a failure of the agent.
What the policy samples is decided by its context and a seed from (run seed, policy version, task, sibling, attempt,
step) alone. Does not retry (the collector does) and never executes model text.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from guiderail.actions.codec import Codec
from guiderail.actions.types import Action, Finish, ParseFailure
from guiderail.actions.wire import action_dumps
from guiderail.envs.types import Cause, Env, InfraError, Observation, Outcome, Reports, StepResult
from guiderail.models.prompts import Example, PromptBuilder
from guiderail.models.rows import Prompt
from guiderail.rollout.judging import Judge, Judged, Votes
from guiderail.rollout.types import Completion, Episode, SamplingParams, StepRecord
from guiderail.seeds import derive_seed
from guiderail.tasks.suites import open_ended
from guiderail.tasks.types import TaskSpec

log = logging.getLogger("guiderail.rollout.episode")


@dataclass(frozen=True)
class Job:
    """An episode to play: `order` is its place in the request, `attempt` counts re-samples after infra and judge
    errors."""

    order: int
    task: TaskSpec
    sibling: int
    attempt: int = 0


Exampler = Callable[[TaskSpec, Observation], Example | None]
"""Chooses the demonstration shown before a task, from its first screen."""


@dataclass(frozen=True)
class Setting:
    """What all episodes of one collection share. example: see `Exampler`; None = no demonstration is shown."""

    temperature: float
    run_seed: int
    policy_version: int
    example: Exampler | None = None

    def sampling(self, job: Job, step: int, max_new_tokens: int) -> SamplingParams:
        """Sampling of one step, with its own seed."""
        seed = derive_seed("step", self.run_seed, self.policy_version, job.task.id, job.sibling, job.attempt, step)
        return SamplingParams(temperature=self.temperature, max_new_tokens=max_new_tokens, seed=seed)

    def judge_seed(self, job: Job) -> int:
        """Seed of whoever judges the episode."""
        return derive_seed("judge", self.run_seed, self.policy_version, job.task.id, job.sibling, job.attempt)


class PngSink(Protocol):
    """Where frames go (see `guiderail.models.frames.FrameStore`)."""

    def put(self, png: bytes) -> str:
        """Store PNG bytes, return their sha256."""
        ...


Ask = Callable[[Job, Prompt, SamplingParams], Awaitable[tuple[Completion, float]]]
"""Ask the policy for one completion; gives it with this request's share of the time in seconds."""


class _End(Exception):
    """Ends the episode with `outcome` (internal)."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.cause)
        self.outcome = outcome


@dataclass(frozen=True)
class Said:
    """What a completion means; `problem` says why it means nothing (`action` None)."""

    action: Action | None = None
    thought: str = ""
    text: str = ""
    json: str = ""
    problem: str = ""


def read_answer(codec: Codec, text: str) -> Said:
    """What `text` means in `codec`; total."""
    parsed = codec.parse(text)
    if isinstance(parsed, ParseFailure):
        return Said(problem=parsed.reason)
    try:
        return Said(parsed.action, parsed.thought, codec.render(parsed.action), action_dumps(parsed.action))
    except ValueError as e:  # read, but outside the algebra (a point off the screen, a number that is none)
        return Said(thought=parsed.thought, problem=str(e))


@dataclass(frozen=True)
class _Done:
    """What came of an action: the screen after it, or why it was not done, or the fault of the environment."""

    after: StepResult | None = None
    problem: str = ""
    fault: InfraError | None = None


async def _do(env: Env, action: Action | None) -> _Done:
    if action is None or isinstance(action, Finish):
        return _Done()
    try:
        return _Done(await env.step(action))
    except ValueError as e:  # the action means nothing on this screen
        return _Done(problem=str(e) or "the screen does not support this action")
    except InfraError as e:  # recorded with its step before it ends the episode
        return _Done(fault=e)


async def run_episode(
    ask: Ask,
    env: Env,
    job: Job,
    builder: PromptBuilder,
    codec: Codec,
    frames: PngSink,
    setting: Setting,
    judge: Judge | None = None,
) -> Episode:
    """Play `job` in `env`; every step that did something is shown to `judge`.

    Ends: a Finish action, the environment's own end, the task's step limit, text the codec cannot read or an action the
    screen does not support (parse_failure), InfraError (infra_error), a judge that raises or gives no finite number
    (judge_error).
    Success: raw reward >= task.threshold at the environment's end, or judged so after Finish(success). Where the suite
    is open-ended the judge is asked at the step limit too, and after Finish(failure), which the environment is told
    of: only a model-issued one can make a task that cannot be done a success. Reward: 1 or 0.
    Other exceptions (an engine that fails, an unknown template) propagate: they are defects, not outcomes.
    """
    task, steps, verdicts = job.task, list[StepRecord](), dict[int, Awaitable[Votes]]()
    context, seen, outcome, watch = None, None, None, None
    try:
        result = await env.reset(task)
        seen = stored(result.observation, frames)
        if not seen.instruction.strip():
            raise InfraError(f"{task.id}: the environment gave an empty instruction", "crash")
        context = builder.context(seen.instruction, setting.example(task, seen) if setting.example else None)
        watch = await judge.start(task, seen, env, setting.judge_seed(job)) if judge else None
        for step in range(task.max_steps):
            context.observe(seen.frame, seen.width, seen.height)
            prompt, sampling = context.prompt(), setting.sampling(job, step, builder.params.max_new_tokens)
            completion, seconds_policy = await ask(job, prompt, sampling)
            said = read_answer(codec.at(*builder.resized(seen.width, seen.height)), completion.text)
            context.complete(completion.ids, completion.logprobs, said.thought, said.text)
            started = time.perf_counter()
            done = await _do(env, said.action)
            steps.append(
                StepRecord(
                    step=step,
                    frame=seen.frame,
                    chunk=context.chunk,
                    prompt_len=len(prompt.ids),
                    completion=completion,
                    sampling=sampling,
                    thought=said.thought,
                    action=said.json,
                    parse_error=said.problem or done.problem,
                    policy_version=setting.policy_version,
                    seconds_policy=seconds_policy,
                    seconds_env=time.perf_counter() - started,
                )
            )
            if done.fault is not None:
                raise done.fault
            before, end = seen, None
            if isinstance(said.action, Finish):
                end = await _finished(env, task, said.action)
            elif done.after is None:
                raise _End(Outcome("failure", "parse_failure", 0.0, steps[-1].parse_error))
            else:
                seen = stored(done.after.observation, frames)
                end = _judged(task, done.after.raw_reward, "env_done") if done.after.done else None
            if watch is not None and said.action is not None:
                solved = end.kind == "success" if end and end.reward is not None else None
                shown = Judged(step, before, seen, said.action, said.thought, completion.text, end is not None, solved)
                verdicts[step] = await watch.step(shown)
            if end is not None:
                raise _End(end)
        outcome = Outcome("failure", "step_limit", 0.0)
        if open_ended(task.suite):
            outcome = await _evaluated(env, task, "step_limit")
    except _End as last:
        outcome = last.outcome
    except InfraError as e:
        outcome = Outcome("infra_error", e.cause, None, str(e))
    effects = await _side_effects(env, task) if outcome.reward is not None else None
    votes = dict(zip(verdicts, await asyncio.gather(*verdicts.values()), strict=True))
    return Episode(
        id=f"{task.id}/v{setting.policy_version}/{job.sibling}/{job.attempt}",
        group=f"{task.id}/v{setting.policy_version}",
        sibling=job.sibling,
        attempt=job.attempt,
        task=task,
        instruction=seen.instruction if seen else "",
        outcome=outcome,
        steps=tuple(
            replace(s, votes=votes[s.step].valid, votes_invalid=votes[s.step].invalid) if s.step in votes else s
            for s in steps
        ),
        rows=tuple(context.rows(setting.temperature)) if context else (),
        last_frame=seen.frame if seen else "",
        side_effects=effects,
    )


async def _side_effects(env: Env, task: TaskSpec) -> tuple[str, ...] | None:
    """What else the episode changed. Its outcome stands: a machine that fails now only leaves this unknown."""
    if not open_ended(task.suite) or not isinstance(env, Reports):
        return None
    try:
        lines = await env.side_effects()
    except InfraError as e:
        log.warning("%s: what else changed is not known: %s", task.id, e)
        return None
    return None if lines is None else tuple(lines)


async def _finished(env: Env, task: TaskSpec, action: Finish) -> Outcome:
    """Outcome of a Finish: the judge is asked when the agent claims success, or may be right that it cannot be done."""
    if open_ended(task.suite):
        await env.step(action)
    elif action.status == "failure":
        return Outcome("failure", "agent_fail", 0.0)
    return await _evaluated(env, task, "agent_finish" if action.status == "success" else "agent_fail")


async def _evaluated(env: Env, task: TaskSpec, cause: Cause) -> Outcome:
    """What the judge says of the present state."""
    try:
        raw = await env.evaluate()
    except InfraError:
        raise
    except Exception as e:  # whatever a judge raises is the judge's fault, and is reported as such
        return Outcome("judge_error", "judge", None, f"{type(e).__name__}: {e}")
    return _judged(task, raw, cause)


def _judged(task: TaskSpec, raw: float, cause: Cause) -> Outcome:
    """Success or failure from a raw reward; judge_error when it is no finite number."""
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
        return Outcome("judge_error", "judge", None, f"raw reward {raw!r} is not a finite number")
    if raw >= task.threshold:
        return Outcome("success", cause, 1.0)
    return Outcome("failure", cause, 0.0)


def stored(seen: Observation, frames: PngSink) -> Observation:
    """Keep the frame; refuse bytes that are not what the observation says (digest, size)."""
    if seen.png:
        size = int.from_bytes(seen.png[16:20], "big"), int.from_bytes(seen.png[20:24], "big")  # PNG IHDR
        if size != (seen.width, seen.height) or frames.put(seen.png) != seen.frame:
            raise InfraError(
                f"frame {seen.frame[:12]} of {seen.width}x{seen.height} came with other bytes ({size})", "crash"
            )
    return seen
