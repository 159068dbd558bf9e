"""A folder of recorded episodes, and an engine that answers from a table."""

import json
import time

from guiderail.actions.types import Click, Type
from guiderail.actions.wire import action_to_json
from guiderail.rollout.types import Completion
from guiderail.tasks.types import TaskSpec
from tinyvlm import NumberedFrames

HERE, THERE = Click(0.5, 0.6), Type("Ann")


class Words:
    """An engine that says what `answers[instruction][step]` lists, and notes how many it was asked at once."""

    def __init__(self, tokenizer, answers):
        self.tokenizer, self.answers, self.batches, self.prompts = tokenizer, answers, [], []

    def generate(self, prompts, sampling):
        time.sleep(0.01)
        self.batches.append(len(prompts))
        out = []
        for p in prompts:
            said = self.tokenizer.decode(p.ids)
            self.prompts.append(said)
            goal = said.split("<|im_start|>user\n")[1].split("\n")[0]
            text = self.answers[goal][said.count("<|im_start|>assistant") - 1]
            ids = (*self.tokenizer.encode(text), self.tokenizer.convert_tokens_to_ids("<|im_end|>"))
            out.append(Completion(ids, tuple(-i / 3 for i in range(len(ids))), "stop", text))
        return out


def write(folder):
    """recorded/ of a demos stage: three fresh episodes and a held-out one, of two steps each. Returns `folder`."""
    frames = NumberedFrames()
    (folder / "frames").mkdir(parents=True)
    with (folder / "demos.jsonl").open("w") as f:
        for k, split in enumerate(["fresh", "fresh", "fresh", "heldout"]):
            steps = []
            for i, action in enumerate((HERE, THERE)):
                sha = frames.paint(10 * k + i)
                (folder / "frames" / f"{sha}.png").write_bytes(frames.png[sha])
                boxes = [[0.4, 0.55, 0.6, 0.65]] if i == 0 else []
                steps.append({"frame": sha, "action": action_to_json(action), "thought": "t", "boxes": boxes})
            task = TaskSpec("miniwob", "enter-text", k, split).to_json()
            f.write(json.dumps({"task": task, "instruction": f"goal {k}", "steps": steps, "reward": 1.0}) + "\n")
    return folder
