"""TRL's GRPOTrainer on prompts that `trainer_vs_trl.py` wrote, timed step by step. Prints one JSON line.

    TRL_PYTHON run_trl.py FOLDER

FOLDER holds job.json and the frames. Runs in an interpreter with TRL; imports nothing of guiderail.
"""

from __future__ import annotations

# mypy: ignore-errors
# (its imports are of another environment)
import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset, Features, Image, Value
from peft import LoraConfig
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def now() -> tuple[float, float]:
    """(wall, CPU) seconds."""
    return time.perf_counter(), time.process_time()


class Steps(TrainerCallback):
    """Times of whole steps: generation, scoring, gradient, optimiser."""

    def __init__(self) -> None:
        self.took: list[tuple[float, float]] = []

    def on_step_begin(self, *a, **k):
        self.at = now()

    def on_step_end(self, *a, **k):
        self.took.append(tuple(x - y for x, y in zip(now(), self.at, strict=True)))


def main() -> None:
    """Train and report."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    torch.set_num_threads(1)
    model = Qwen3VLForConditionalGeneration.from_pretrained(job["model"], dtype="float32", attn_implementation="sdpa")
    model.model.visual.requires_grad_(False)
    processor = AutoProcessor.from_pretrained(job["model"])
    features = Features({"text": Value("string"), "image": Image()})
    data = Dataset.from_dict(
        {"text": [p["text"] for p in job["prompts"]], "image": [str(folder / p["frame"]) for p in job["prompts"]]},
        features=features,
    )
    data = data.map(
        lambda row: {"prompt": [{"role": "user", "content": row["text"]}]}, remove_columns="text"
    )  # TRL puts the image of column `image` before the text
    lengths: list[int] = []
    prompts: list[int] = []

    def reward(completion_ids, **kwargs):
        lengths.extend(len(c) for c in completion_ids)
        return [float(hashlib.sha256(repr(list(c)).encode()).digest()[0] % 2) for c in completion_ids]

    rows = job["group_size"] * job["groups"]
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=job["micro_batch"],
            gradient_accumulation_steps=rows // job["micro_batch"],
            num_generations=job["group_size"],
            max_completion_length=job["tokens"],
            generation_kwargs={"min_new_tokens": job["tokens"]},
            temperature=job["temperature"],
            top_k=0,
            beta=0.0,
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            max_steps=job["steps"] + 1,
            shuffle_dataset=False,
            logging_steps=10**6,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        lora = LoraConfig(
            r=16, lora_alpha=32, lora_dropout=0.0,
            target_modules=r"model\.language_model\.layers\..*(q|k|v|o|gate|up|down)_proj",
        )  # fmt: skip
        timer = Steps()
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=data,
            processing_class=processor,
            peft_config=lora if job["mode"] == "lora" else None,
            callbacks=[timer],
        )
        generating: list[tuple[float, float]] = []
        plain = trainer._generate_single_turn

        def timed(*a, **k):
            at = now()
            prompts.extend(map(len, a[0]))
            out = plain(*a, **k)
            generating.append(tuple(x - y for x, y in zip(now(), at, strict=True)))
            return out

        trainer._generate_single_turn = timed
        trainer.train()
    trained = sum(x.numel() for x in trainer.model.parameters() if x.requires_grad)
    rows_of_first = slice(0, rows)  # every step has the same prompts
    found = {"steps": timer.took[1:], "generate": generating[1:], "trained": trained}
    print(json.dumps(found | {"tokens": sum(prompts[rows_of_first]) + sum(lengths[rows_of_first])}))


if __name__ == "__main__":
    main()
