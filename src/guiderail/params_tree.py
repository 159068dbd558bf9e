"""All of params.yaml as one model: the sections, the recipes, and what must hold between sections.

Guarantees: a tree that is accepted contradicts itself nowhere that can be known without looking at files; each refusal
is one line that names the key, the value and the remedy. Reads no file: see `params`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import Field, ValidationError, model_validator

from guiderail.param_errors import explain, nearest
from guiderail.param_section import Section
from guiderail.params_chain import (
    NAME,
    PROVIDERS,
    Demos,
    Env,
    Evaluate,
    Merge,
    Model,
    Plugins,
    Prompt,
    Provision,
    Report,
    Sweep,
    Tracking,
)
from guiderail.params_cloud import check_cloud
from guiderail.params_collection import check_collection
from guiderail.params_engine import Engine
from guiderail.params_plan import Plan, Resources
from guiderail.params_prm import Prm
from guiderail.params_train import ALGORITHMS, Rl, Sft, check_read, overridden, recipe_phases
from guiderail.params_trainer import Trainer, check_judges


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
        check_collection(at, rl.collection, rl.importance_cap, self.engine.kind, self.env.slots)
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
        if self.trainer.kind == "ray" and self.engine.kind == "vllm" and self.engine.url and self.trainer.rollout > 1:
            raise ValueError(
                f"trainer.rollout = {self.trainer.rollout}: must be 1 with engine.url, since each process would hand "
                "that one server its own versions of the weights; leave engine.url empty and each starts a server"
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
