"""Sections of params.yaml: the sweep, the model, prompts, environments, tasks, benchmarks, the report, tracking.

Guarantees: each section refuses values that cannot work by themselves; what sections demand of each other stands in
`params`. The sections of training, judges, engines and machines are in `params_*` of their own.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from guiderail import plugins
from guiderail.param_section import Section
from guiderail.params_cloud import Cloud
from guiderail.params_desktop import Desktop

NAME = re.compile(r"[a-z0-9_]+")


def _once(values: list[Any]) -> None:
    """Raise ValueError when a value stands in a list twice."""
    for v in values:
        if values.count(v) > 1:
            raise ValueError(f"{v} stands in it {values.count(v)} times; name it once")


class Sweep(Section):
    """Matrix axes of the chain; every combination is a job."""

    recipe: list[str] = Field(["grpo"], min_length=1, description="Recipes to train, keys of `recipes`.")
    seed: list[int] = Field([0], min_length=1, description="Training seeds.")
    benchmark: list[str] = Field(["miniwob"], min_length=1, description="Benchmarks to evaluate on.")

    @field_validator("recipe", "seed", "benchmark")
    @classmethod
    def _axis(cls, values: list[Any]) -> list[Any]:
        _once(values)
        for v in values:
            if isinstance(v, int) and not 0 <= v < 2**31:
                raise ValueError("seeds must be 0 or more" if v < 0 else "seeds must be below 2147483648")
            if isinstance(v, str) and not NAME.fullmatch(v):
                raise ValueError(f"{v!r}: names on an axis may hold a-z, 0-9 and _ only (they become folder names)")
        return values


class Model(Section):
    """The starting checkpoint and how it is run."""

    path: str = Field("assets/tiny-vlm", description="Hugging Face folder of a Qwen3-VL checkpoint.")
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N.")
    threads: int = Field(1, ge=1, le=1024, description="CPU threads per process.")
    train_vision: bool = Field(False, description="Train the vision tower too (turns the feature cache off).")
    recompute: bool = Field(
        False, description="Training keeps no inner results of text layers but makes them again: less memory, slower."
    )


class Prompt(Section):
    """How a context is written; one builder for every stage."""

    codec: Literal[
        "agentcpm",
        "generic_v2",
        "guiderail",
        "openadapt",
        "openadapt_json",
        "os_atlas",
        "os_genesis",
        "pyautogui",
        "qwen25vl",
        "qwen3vl",
        "ui_s1",
        "ui_tars",
        "ui_tars15",
    ] = "guiderail"
    system: Literal["none", "short", "full"] = Field("short", description="System prompt: full lists all actions.")
    chunk_steps: int = Field(3, ge=1, le=64, description="Frames per append-only chunk before it is re-anchored.")
    thought: bool = Field(True, description='Ask for and train the "Action: ..." line before the call.')
    max_new_tokens: int = Field(28, ge=4, le=4096)


PROVIDERS = ("local_browser", "local_desktop", "docker", "aws", "volcengine", "aliyun")


class Env(Section):
    """The environment pool."""

    provider: str = Field(
        "local_browser",
        description=f"{', '.join(PROVIDERS)}, or a file listed in plugins.providers.",
        json_schema_extra={"anyOf": [{"enum": list(PROVIDERS)}, {"pattern": "^[a-z][a-z0-9_]*$"}]},
    )
    slots: int = Field(32, ge=1, le=1024, description="Pages in parallel.")
    browser: str = Field("", description="Path of a Chromium; empty = find one.")
    step_ms: int = Field(300, ge=0, le=60_000, description="Virtual milliseconds a page lives after an action.")
    call_timeout_s: float = Field(20.0, gt=0, le=86_400)
    lease_ttl_s: float = Field(60.0, gt=0, le=86_400)
    max_infra_retries: int = Field(
        3, ge=0, le=100, description="Re-samples of an episode after an infrastructure error."
    )
    cloud: Cloud = Cloud()
    desktop: Desktop = Desktop()


class Provision(Section):
    """Task instances and splits."""

    suite: str = "miniwob"
    templates: list[str] = Field(default_factory=list, description="Train templates; empty = the suite's default.")
    heldout: list[str] = Field(default_factory=list, description="Held-out templates; empty = the suite's default.")
    train_instances: int = Field(
        6, ge=1, le=100_000, description="Fixed train instances per template (evaluation split a)."
    )
    fresh_instances: int = Field(
        40, ge=1, le=100_000, description="Fresh instances per train template (evaluation split b)."
    )
    heldout_instances: int = Field(
        10, ge=1, le=100_000, description="Instances per held-out template (evaluation split c)."
    )
    task_seed: int = 0
    wordings: int = Field(1, ge=1, description="Instruction wording variants per instance (1 = the page's own).")
    selftest_instances: int = Field(
        1, ge=0, le=1000, description="Instances per template for expert/no-op/random checks."
    )


class Demos(Section):
    """Expert demonstrations."""

    per_template: int = Field(8, ge=1, le=100_000, description="Demonstrations per train template.")
    recorded: int = Field(
        4, ge=0, le=100_000, description="Expert episodes per fresh and held-out template, for benchmark sop alone."
    )
    point_grid: float = Field(0.025, gt=0, le=0.1, description="Demonstrated points are rounded to this grid.")


class Merge(Section):
    """How checkpoints become one Hugging Face folder."""

    method: Literal["lora", "linear"] = Field("lora", description="linear: interpolate start and end of the lineage.")
    weight: float = Field(1.0, ge=0, le=1, description="linear: share of the trained end (1 = the end itself).")
    tolerance: float = Field(
        1e-4,
        gt=0,
        le=10,
        description="Bound on probe logits, merged against adapter + base; model.dtype float16: 1e-2, bfloat16: 1e-1.",
    )


class AndroidControl(Section):
    """Trajectories of benchmarks android_control_*, in the format of UI-S1's files."""

    path: str = Field("", description="JSONL file.")
    frames: str = Field("", description="Folder of its screenshots, by file name.")
    swipes: Literal["", "gesture", "scroll"] = Field(
        "", description="What swipe coordinates are, where the file does not tell."
    )
    blank: bool = Field(False, description="Show grey screens instead of screenshots (a run of the text alone).")


class Evaluate(Section):
    """Benchmark runs."""

    temperature: float = Field(0.0, ge=0, le=100)
    episodes: int = Field(
        0, ge=0, le=100_000, description="Episodes per split and template (android_control: trajectories); 0 = all."
    )
    checkpoints: list[Literal["base", "sft", "rl"]] = Field(["base", "sft", "rl"], min_length=1)
    retrieval: list[Literal["base", "sft", "rl"]] = Field(
        [],
        description="Checkpoints to run again, each task after the nearest demonstration of a train task.",
    )
    retrieval_steps: int = Field(3, ge=1, le=64, description="Steps of it that are shown.")
    retrieval_text: float = Field(
        0.7, ge=0, le=1, description="Weight of the instructions' likeness; the rest is that of the first screens."
    )
    bootstrap: int = Field(2000, ge=100, le=1_000_000)
    confidence: float = Field(0.95, gt=0.5, lt=1)
    film_strips: int = Field(6, ge=0, le=1000, description="Episodes drawn as film strips per checkpoint.")
    android_control: AndroidControl = AndroidControl()

    @field_validator("checkpoints", "retrieval")
    @classmethod
    def _distinct(cls, values: list[str]) -> list[str]:
        _once(values)
        return values

    @model_validator(mode="after")
    def _compared(self) -> Evaluate:
        lost = [c for c in self.retrieval if c not in self.checkpoints]
        if lost:
            raise ValueError(
                f"retrieval names {lost[0]!r}, which checkpoints lacks: it is compared with the run without"
            )
        return self


class Plugins(Section):
    """Files of your own under plugins/, by name; see plugins/README.md."""

    tasks: list[str] = Field([], description="Suites: plugins/tasks/NAME.py.")
    providers: list[str] = Field([], description="Providers of machines: plugins/providers/NAME.py.")
    algorithms: list[str] = Field([], description="RL algorithms: plugins/algorithms/NAME.py.")

    @field_validator("tasks", "providers", "algorithms")
    @classmethod
    def _named(cls, values: list[str]) -> list[str]:
        _once(values)
        for v in values:
            if not plugins.NAME.fullmatch(v):
                raise ValueError(f"{v!r}: give the file's name without .py: a-z, 0-9 and _, a letter first")
        return values


class Report(Section):
    """The report."""

    title: str = "guiderail report"


class Tracking(Section):
    """MLflow. `MLFLOW_TRACKING_URI` in the environment wins over the default store."""

    enabled: bool = True
    experiment: str = "guiderail"
    required: bool = Field(False, description="Fail a stage when something of it did not reach MLflow; else say so.")
    traces: int = Field(
        2, ge=0, le=1000, description="Episodes shown as traces: of each evaluated checkpoint, and whenever RL saves."
    )
    system_metrics: bool = Field(True, description="CPU, memory, disk, network and GPU of the machine, every 10 s.")
    upload_model: bool = Field(False, description="Send merged weights to the artifact store; else a reference.")
    explorer: str = Field("http://127.0.0.1:8766", description="Where `guiderail view` answers, for links.")
