"""Typed, strict parameters: params.yaml in, frozen pydantic models out.

Guarantees: an unknown or missing key, a wrong type or a value that cannot work is refused with one line per problem
that names the key, the value and the remedy. A file must hold every key: DVC tracks and interpolates single keys, so
one left to a default would be a change that re-runs nothing. Knows nothing of stages; each section is handed to the
part that consumes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from guiderail import plugins
from guiderail.param_errors import explain, nearest
from guiderail.param_section import Section
from guiderail.params_cloud import Cloud, check_cloud
from guiderail.params_collection import check_collection
from guiderail.params_desktop import Desktop
from guiderail.params_engine import Engine
from guiderail.params_plan import Plan, Resources
from guiderail.params_prm import Prm
from guiderail.params_train import ALGORITHMS, Rl, Sft, check_read, overridden, recipe_phases
from guiderail.params_trainer import Trainer, check_judges
from guiderail.yaml_file import YamlError, read_yaml

NAME = re.compile(r"[a-z0-9_]+")


class ParamError(SystemExit):
    """Bad parameters. Its text is what the user reads; exit status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


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


def _default_recipes() -> dict[str, dict[str, Any]]:
    return {
        "grpo": {},
        "rloo": {"baseline": "leave_one_out", "scale": "none"},
        "dr_grpo": {"scale": "none", "aggregation": "constant"},
        "gspo": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "row_mean"},
        "dapo": {"filter_rounds": 4},
        "grpo_async": {"importance_cap": 2.0, "collection": {"mode": "async"}},
        "step_wise": {"algorithm": "step_wise", "reward_failure": -1.0},
        "step_wise_prm": {"algorithm": "step_wise", "reward_failure": -1.0, "step_wise": {"judge": "prm"}},
        "gui_rl": {
            "algorithm": "step_wise",
            "reward_failure": -1.0,
            "clip_high": 0.2,
            "step_wise": {"credit": "reference"},
        },
        "semi_online": {"algorithm": "semi_online"},
        "semi_online_grpo": {"phases": [{"algorithm": "semi_online", "iterations": 20}, {"iterations": 20}]},
    }


class Params(Section):
    """All of params.yaml."""

    sweep: Sweep = Sweep()
    model: Model = Model()
    prompt: Prompt = Prompt()
    env: Env = Env()
    provision: Provision = Provision()
    demos: Demos = Demos()
    sft: Sft = Sft()
    prm: Prm = Prm()
    rl: Rl = Rl()
    engine: Engine = Engine()
    trainer: Trainer = Trainer()
    recipes: dict[str, dict[str, Any]] = Field(default_factory=_default_recipes)
    merge: Merge = Merge()
    evaluate: Evaluate = Evaluate()
    plugins: Plugins = Plugins()
    report: Report = Report()
    tracking: Tracking = Tracking()
    resources: Resources = Resources()
    plan: Plan = Plan()

    @model_validator(mode="after")
    def _cloud_fits(self) -> Params:
        check_cloud(self.env.provider, self.env.cloud)
        return self

    @model_validator(mode="after")
    def _names_known(self) -> Params:
        _known("env.provider", self.env.provider, PROVIDERS, "providers", self.plugins.providers)
        _known("rl.algorithm", self.rl.algorithm, ALGORITHMS, "algorithms", self.plugins.algorithms)
        return self

    @model_validator(mode="after")
    def _recipes_exist(self) -> Params:
        for recipe in self.sweep.recipe:
            if recipe not in self.recipes:
                raise ValueError(
                    f"sweep.recipe names {recipe!r}, which `recipes` lacks. {nearest(recipe, self.recipes)}"
                )
        for name, changes in self.recipes.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"recipes.{name}: a recipe's name may hold a-z, 0-9 and _ only")
            self._recipe_fits(name, changes)
        return self

    def _recipe_fits(self, name: str, changes: dict[str, Any]) -> None:
        """Raise ValueError on a recipe that cannot be, with the key it is about."""
        try:
            phases = recipe_phases(changes)
        except ValueError as e:
            raise ValueError(f"recipes.{name}.phases = {changes['phases']!r}: {e}") from None
        found: list[Rl] = []
        for number, own in enumerate(phases):
            where = f"{name}.phases[{number}]" if len(phases) > 1 else name
            try:
                found.append(self._rl(own))
            except ValidationError as e:
                lines = (explain(x, Rl, f"recipes.{where}") for x in e.errors() if x["loc"][0] in own)
                raise ValueError("\n".join(lines)) from None
            where_algorithm = f"recipes.{where}.algorithm"
            _known(where_algorithm, found[-1].algorithm, ALGORITHMS, "algorithms", self.plugins.algorithms)
            check_read(where, own, found[-1])
            self._fits(where, own, found[-1])
        if any((p.mode, p.lora) != (found[0].mode, found[0].lora) for p in found):
            raise ValueError(
                f"recipes.{name}.phases: mode and lora must be those of the first phase: one model is trained"
            )

    def _fits(self, recipe: str, own: dict[str, Any], rl: Rl) -> None:
        """Raise ValueError when sections contradict each other; without it a stage would find out hours later."""
        where = {k: f"recipes.{recipe}.{k}" if k in own else f"rl.{k}" for k in ("mode", "lora")}
        if rl.lora.dropout > 0:
            raise ValueError(
                f"{where['lora']}.dropout = {rl.lora.dropout}: must be 0, or what trains is not what sampled"
            )
        for key, mode in (("sft.mode", self.sft.mode), (where["mode"], rl.mode)):
            if self.model.train_vision and mode == "lora":
                raise ValueError(f"{key} = 'lora': an adapter holds no vision tower; model.train_vision needs full")
        at = f"recipes.{recipe}" if "collection" in own else "rl"
        check_collection(at, rl.collection, rl.importance_cap, self.engine.kind)
        one, two = self.sft.lora, rl.lora
        if self.sft.mode == rl.mode == "lora" and (one.r, one.alpha) != (two.r, two.alpha):
            raise ValueError(
                f"{where['lora']} = (r {two.r}, alpha {two.alpha}): must be sft.lora's (r {one.r}, alpha {one.alpha}), "
                "since the adapter of the warm-up is trained further"
            )

    def judges_of(self, recipe: str) -> set[str]:
        """Judges that the step_wise phases of `recipe` ask: progress, prm, endpoint."""
        return {rl.step_wise.judge for rl in self.phases_for(recipe) if rl.algorithm == "step_wise"}

    def wants_prm(self, recipe: str) -> bool:
        """Whether `recipe` trains with the process reward model."""
        return "prm" in self.judges_of(recipe)

    @model_validator(mode="after")
    def _trainer_fits(self) -> Params:
        check_judges(self.trainer, [r for r in self.sweep.recipe if self.wants_prm(r)])
        if self.trainer.kind == "ray" and self.model.device.startswith("cuda:"):
            raise ValueError(
                f"model.device = {self.model.device!r}: with trainer.kind = 'ray' the cluster gives each process its "
                "GPU; set it to auto"
            )
        for name in self.sweep.recipe if self.trainer.kind == "ray" else []:
            if any(rl.collection.mode == "async" for rl in self.phases_for(name)):
                raise ValueError(
                    f"recipes.{name}.collection.mode = 'async': not with trainer.kind = 'ray', which samples and "
                    "trains in turn; set it to sync"
                )
        return self

    @model_validator(mode="after")
    def _others_reached(self) -> Params:
        """Raise ValueError when a model from elsewhere is to be asked and nothing says where."""
        asks = {
            f"recipes.{name}.step_wise.voting.endpoint": rl.step_wise.voting.endpoint
            for name in self.sweep.recipe
            for rl in self.phases_for(name)
            if rl.algorithm == "step_wise" and rl.step_wise.judge == "endpoint"
        }
        if self.sft.cot.source == "teacher":
            asks["sft.cot.endpoint"] = self.sft.cot.endpoint
        for where, endpoint in asks.items():
            if not endpoint.url or not endpoint.model:
                raise ValueError(f"{where}: url and model are needed, for a model there is to be asked")
        if self.sft.cot.source == "none" and self.prompt.thought:
            raise ValueError(
                "sft.cot.source = 'none': prompt.thought is true, so rollouts ask for a line that the warm-up would "
                "never show; set prompt.thought: false, or take the thoughts of expert or teacher"
            )
        if self.sft.cot.source == "teacher" and not self.prompt.thought:
            raise ValueError("sft.cot.source = 'teacher': prompt.thought is false, so what it writes would go unused")
        return self

    def phases_for(self, recipe: str) -> list[Rl]:
        """RL parameters of `recipe`, one per phase (most recipes have one): `rl` with the recipe's overrides."""
        return [self._rl(own) for own in recipe_phases(self.recipes[recipe])]

    def rl_for(self, recipe: str) -> Rl:
        """RL parameters of a recipe of one phase (of the last phase, where it has more)."""
        return self.phases_for(recipe)[-1]

    def _rl(self, own: dict[str, Any]) -> Rl:
        return Rl.model_validate_json(json.dumps(overridden(self.rl.model_dump(), own)), strict=True)


def _known(key: str, value: str, ours: Sequence[str], kind: str, own: Sequence[str]) -> None:
    """Raise ValueError unless `value` is a name of ours or of a plugin that params.yaml names."""
    if value in ours or value in own:
        return
    near = nearest(value, [*ours, *own])
    raise ValueError(f"{key} = {value!r}: must be one of {', '.join(ours)}, or be listed in plugins.{kind}. {near}")


def parse(raw: object, source: str = "params.yaml") -> Params:
    """Check a tree of plain values. Raises ParamError with one line per problem, each beginning with `source`."""
    try:
        text = json.dumps(raw, default=str)
    except (TypeError, ValueError, RecursionError) as e:  # a key that is no text, or a mapping that holds itself
        raise ParamError(f"{source}: not plain keys and values: {e}.") from None
    try:
        return Params.model_validate_json(text, strict=True)
    except ValidationError as e:
        lines = [line for x in e.errors() for line in explain(x, Params).splitlines()]
        raise ParamError("\n".join(f"{source}: {line}" for line in lines)) from None


def load(path: str | Path = "params.yaml") -> Params:
    """Read and check parameters, every key must be there; load the plugins they name and no others. Raises ParamError
    with one line per problem."""
    try:
        raw = read_yaml(path)
    except YamlError as e:
        raise ParamError(str(e)) from None
    if raw is None or raw == {}:
        raise ParamError(f"{path}: empty. `guiderail preset default --force` writes all parameters into it.")
    if not isinstance(raw, dict):
        raise ParamError(f"{path}: must be a mapping of sections (sweep, model, rl, ...), not {type(raw).__name__}.")
    params = parse(raw, str(path))
    missing = _missing(raw, params.model_dump(mode="json"))
    if missing:
        named = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ParamError(
            f"{path}: missing: {named}. Every parameter must be in it (DVC tracks each). Add them, or let "
            "`guiderail preset NAME --force` write a whole file."
        )
    load_plugins(params, str(path))
    return params


def load_plugins(params: Params, source: str = "params.yaml") -> None:
    """Load the plugins of `params`, and check the options of their algorithms. Raises ParamError."""
    try:
        plugins.activate(params.plugins.model_dump())
    except plugins.PluginError as e:
        raise ParamError(f"{source}: {e}") from None
    for recipe in params.recipes:
        for rl in params.phases_for(recipe):
            own = plugins.find("algorithms", rl.algorithm)
            unknown = sorted(set(rl.options) - set(own.options)) if own is not None else []
            if unknown:
                raise ParamError(f"{source}: recipes.{recipe}.options.{unknown[0]}: {nearest(unknown[0], own.options)}")


def _missing(raw: Mapping[str, Any], full: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys of `full` that `raw` lacks; an absent section counts once."""
    found: list[str] = []
    for key, value in full.items():
        if key not in raw:
            found.append(f"{prefix}{key}")
        elif isinstance(value, dict) and f"{prefix}{key}" != "recipes":
            found += _missing(raw[key], value, f"{prefix}{key}.")
    return found
