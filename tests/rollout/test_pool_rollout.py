"""Collecting through the env pool's server: over HTTP with screenless environments, and on real pages."""

from __future__ import annotations

import numpy as np
import pytest

from guiderail.actions.codec import get_codec
from guiderail.actions.types import Click, Parsed
from guiderail.models.frames import FrameStore
from guiderail.models.prompts import PromptBuilder
from guiderail.params import Env
from guiderail.params import Prompt as PromptParams
from guiderail.pool.local import env_pool
from guiderail.rollout.collector import collect
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.types import Completion
from guiderail.tasks.types import TaskSpec

OPTIONS = {"temperature": 1.0, "run_seed": 0, "policy_version": 0, "max_infra_retries": 1, "slots": 4}


class Says:
    """Says the text listed for the task named in the instruction, at every step."""

    def __init__(self, tokenizer, texts: dict[str, str]) -> None:
        self.tokenizer, self.texts = tokenizer, texts

    def generate(self, prompts, sampling):
        out = []
        for prompt in prompts:
            said = self.tokenizer.decode(prompt.ids)
            text = next(t for name, t in self.texts.items() if f"/{name}/" in said)
            ids = (*self.tokenizer.encode(text), 258)
            out.append(Completion(ids, (-0.5,) * len(ids), "stop", text))
        return out


class ClickAnything:
    """Reads a click at the middle in any text, so that a random model plays whole episodes."""

    def at(self, width, height):
        return self

    def parse(self, text):
        return Parsed(Click(0.5, 0.5), "try")

    def render(self, action, thought=""):
        return get_codec("guiderail").render(action, thought)


def builder_of(policy) -> PromptBuilder:
    return PromptBuilder(policy.tokenizer, PromptParams(chunk_steps=2, max_new_tokens=8), policy.image_tokens)


def test_over_http_without_a_screen(tiny):
    texts = {"good": "DONE()", "crash": 'TYPE(text="!crash")', "long": "CLICK(x=0.5, y=0.5)"}
    names = ["good", "crash", "broken", "long"]
    tasks = [(TaskSpec("noop", name, 3, max_steps=3, threshold=0.0), s) for name in names for s in range(2)]
    frames = FrameStore(None)
    with env_pool(Env(slots=4), provider="noop") as pool:
        episodes, stats = collect(
            Says(tiny.policy.tokenizer, texts), pool, tasks, builder_of(tiny.policy), frames=frames, **OPTIONS
        )
    got = {(e.task.template, e.outcome.kind, e.outcome.cause, len(e.steps)) for e in episodes}
    assert got == {
        ("good", "success", "agent_finish", 1),
        ("crash", "infra_error", "crash", 1),
        ("broken", "infra_error", "crash", 0),
        ("long", "failure", "step_limit", 3),
    }
    assert len(episodes) == 2 + 4 + 4 + 2 and stats.errors == {"crash": 8}
    assert all(s.frame in frames for e in episodes for s in e.steps)


@pytest.mark.browser
def test_on_real_pages_rows_score_as_sampled(tiny):
    tasks = [(TaskSpec("miniwob", t, 5, max_steps=2), s) for t in ("click-button", "click-test") for s in range(2)]
    frames = FrameStore(None)
    with env_pool(Env(slots=4)) as pool:
        engine = HfEngine(tiny.policy, frames)
        builder = builder_of(tiny.policy)
        episodes, _ = collect(engine, pool, tasks, builder, ClickAnything(), frames=frames, **OPTIONS)
    assert [e.outcome.kind in ("success", "failure") for e in episodes] == [True] * 4
    assert all(e.instruction.strip() and len(e.steps) in (1, 2) for e in episodes)
    first = [e.steps[0].frame for e in episodes]
    assert first[0] == first[1] != first[2] == first[3]  # siblings start from the same screen
    rows = [r for e in episodes for r in e.rows]
    scored = tiny.policy.logprobs(rows, frames).logp.numpy()
    np.testing.assert_allclose(scored, np.concatenate([r.logprobs for r in rows]), atol=1e-4, rtol=0)
