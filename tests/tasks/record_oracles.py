"""Record what pages look like along their expert's way, for tests without a browser (into oracles.json beside this).

Run `python tests/tasks/record_oracles.py` again when a page, the oracle's format or a template changes.
"""

import asyncio
import json
from pathlib import Path

from guiderail.envs.browser import Browser
from guiderail.tasks.experts.scene import snap
from guiderail.tasks.miniwob import TEMPLATES
from guiderail.tasks.types import TaskSpec

FIELDS = ("tag", "id", "classes", "text", "inner", "x", "y", "w", "h", "words")
ATTRS = ("type", "data-type", "data-color", "fill", "font-size")
SEED = 1017


def slim(fact):
    """The parts of a fact that experts read, coordinates to four decimals."""
    out = {k: fact[k] for k in FIELDS}
    out["inner"] = "" if fact["text"] else fact["inner"][:40]
    out["attrs"] = {k: v for k, v in fact["attrs"].items() if k in ATTRS}
    for box in (out, *out["words"]):
        box.update({k: round(box[k], 4) for k in "xywh"})
    return out


async def main():
    """Run every expert once and keep the oracles of the episodes that succeed."""
    episodes = []
    async with Browser.launch() as browser:
        env = await browser.new_env()
        for t in TEMPLATES.values():
            result = await env.reset(TaskSpec("miniwob", t.name, SEED, max_steps=t.max_steps))
            instruction, history, steps = result.observation.instruction, [], []
            while not result.done:
                oracle = await env.oracle()
                action, thought = t.expert(oracle, instruction, len(history), history)
                history.append(snap(action))
                steps.append({"oracle": [slim(f) for f in oracle], "thought": thought})
                result = await env.step(history[-1])
            assert result.raw_reward >= t.threshold, t.name
            episodes.append({"template": t.name, "seed": SEED, "instruction": instruction, "steps": steps})
    path = Path(__file__).with_name("oracles.json")
    path.write_text(
        "[" + ",\n".join(json.dumps(e, separators=(",", ":"), ensure_ascii=False) for e in episodes) + "]\n"
    )


if __name__ == "__main__":
    asyncio.run(main())
