"""One rollout along a recorded trajectory: the policy acts, and after a miss its history may be patched and it goes on.

Guarantees: the loop of semi-online RL with the same contexts, seeds and records as `rollout.episode`; the step that
missed is kept as sampled, with its own reward; only what follows sees the expert's turn in its place. The verdict, the
reward and the patch are recorded with the step. Success: every step matched, without a patch. An on-policy thought that
comes out blank makes that patch a thought-free one, which its record says. Tokens of such thoughts are in no record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from guiderail.actions.codec import Codec
from guiderail.actions.types import Action, ParseFailure
from guiderail.algorithms.patch import Kind, Turn, patched_turn
from guiderail.envs.replay import ReplayEnv
from guiderail.envs.types import Env, InfraError, Outcome, StepResult
from guiderail.models.prompts import Context, PromptBuilder
from guiderail.rollout.episode import Ask, Job, PngSink, Setting, read_answer, stored
from guiderail.rollout.judging import Judge
from guiderail.rollout.types import Episode, StepRecord
from guiderail.seeds import derive_seed

Reward = Callable[[Any, bool, bool], float]
"""(verdict of the matcher, whether the answer could be read, whether it had a thought) -> reward of the step."""


@dataclass(frozen=True)
class Replay:
    """Plays jobs in `ReplayEnv`s, as the `play` of `collector.collect`.

    patch: where a patched turn's thought comes from (`algorithms.patch`). reward: of a step (`rewards.steps`)."""

    patch: Kind
    reward: Reward

    async def __call__(
        self,
        ask: Ask,
        env: Env,
        job: Job,
        builder: PromptBuilder,
        codec: Codec,
        frames: PngSink,
        setting: Setting,
        judge: Judge | None = None,
    ) -> Episode:
        """Play `job`. Ends: the trajectory's end, a miss beyond the patch budget, a frame that is missing
        (infra_error). Raises TypeError for another environment or with a judge, ValueError where a patch lacks the
        annotated thought it needs or the codec cannot express the expert's action."""
        if not isinstance(env, ReplayEnv) or judge is not None:
            raise TypeError(f"a recorded trajectory is played in a ReplayEnv and without a judge, not in {env!r}")
        task, steps, context, seen, unread = job.task, list[StepRecord](), None, None, ""
        try:
            result = await env.reset(task)
            seen = stored(result.observation, frames)
            context = builder.context(seen.instruction)
            while not result.done:
                context.observe(seen.frame, seen.width, seen.height)
                prompt, sampling = context.prompt(), setting.sampling(job, len(steps), builder.params.max_new_tokens)
                completion, seconds_policy = await ask(job, prompt, sampling)
                here = codec.at(*builder.resized(seen.width, seen.height))
                said = read_answer(here, completion.text)
                context.complete(completion.ids, completion.logprobs, said.thought, said.text)
                started, chunk = time.perf_counter(), context.chunk
                result = await (env.miss() if said.action is None else env.step(said.action))
                found, patched = result.info["match"], ""
                if result.info["decision"] == "patch":
                    turn = await self._turn(result, context, here, ask, job, sampling)
                    patched = self.patch if turn.thought or self.patch == "thought_free" else "thought_free"
                    text = here.render(turn.action, turn.thought)
                    context.patch(builder.completion_ids(text), turn.thought, here.render(turn.action))
                steps.append(
                    StepRecord(
                        step=len(steps),
                        frame=seen.frame,
                        chunk=chunk,
                        prompt_len=len(prompt.ids),
                        completion=completion,
                        sampling=sampling,
                        thought=said.thought,
                        action=said.json,
                        parse_error=said.problem,
                        policy_version=setting.policy_version,
                        seconds_policy=seconds_policy,
                        seconds_env=time.perf_counter() - started,
                        reward=self.reward(found, said.action is not None, bool(said.thought.strip())),
                        matched=found.exact,
                        patched=patched,
                    )
                )
                seen, unread = stored(result.observation, frames), said.problem
            whole = result.raw_reward >= 1.0
            stopped = unread if unread and steps[-1].patched == "" else ""
            cause: Any = "parse_failure" if stopped else "env_done"
            outcome = Outcome("success" if whole else "failure", cause, float(whole), stopped)
        except InfraError as e:
            outcome = Outcome("infra_error", e.cause, None, str(e))
        return Episode(
            id=f"{task.id}/v{setting.policy_version}/{job.sibling}/{job.attempt}",
            group=f"{task.id}/v{setting.policy_version}",
            sibling=job.sibling,
            attempt=job.attempt,
            task=task,
            instruction=seen.instruction if seen else "",
            outcome=outcome,
            steps=tuple(steps),
            rows=tuple(context.rows(setting.temperature)) if context else (),
            last_frame=seen.frame if seen else "",
        )

    async def _turn(
        self, result: StepResult, context: Context, codec: Codec, ask: Ask, job: Job, sampling: Any
    ) -> Turn[Action]:
        """The expert's turn for the history."""
        expert: Action = result.info["expert"]
        if self.patch != "on_policy":
            return patched_turn(self.patch, expert, annotated=result.info["thought"])
        prompt = context.hinted(f"Next: {codec.render(expert)}")
        completion, _ = await ask(job, prompt, replace(sampling, seed=derive_seed("think", sampling.seed)))
        parsed = codec.parse(completion.text)
        thought = "" if isinstance(parsed, ParseFailure) else parsed.thought
        if not thought.strip():
            return patched_turn("thought_free", expert)
        return patched_turn("on_policy", expert, think=lambda: thought)
