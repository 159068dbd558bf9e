"""Each refusal is one line that names key, value and remedy; what params.yaml ships with is accepted."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from guiderail.actions.codec import CODECS, get_codec
from guiderail.params import ParamError, Params, load, parse

ROOT = Path(__file__).parents[1]

REFUSED = [
    ({"rl": {"group_size": 1}}, "params.yaml: rl.group_size = 1: must be at least 2. Rollouts per task instance."),
    ({"rl": {"lrr": 1}}, "params.yaml: rl.lrr: unknown key. Did you mean lr or lora?"),
    ({"rll": {}}, "params.yaml: rll: unknown key. Did you mean rl?"),
    ({"rl": {"lr": "3e-4"}}, "params.yaml: rl.lr = '3e-4': must be a number (YAML reads 3e-4 as text; write 3.0e-4)."),
    ({"rl": None}, "params.yaml: rl = None: must be a mapping of keys to values."),
    ({"sft": {"epochs": 1.5}}, "params.yaml: sft.epochs = 1.5: must be a whole number."),
    ({"sft": {"epochs": "12"}}, "params.yaml: sft.epochs = '12': must be a whole number."),
    ({"sft": {"lora": {"r": "a"}}}, "params.yaml: sft.lora.r = 'a': must be a whole number."),
    (
        {"prompt": {"codec": "x"}},
        "params.yaml: prompt.codec = 'x': must be one of 'agentcpm', 'generic_v2', 'guiderail', 'openadapt', "
        "'openadapt_json', 'os_atlas', 'os_genesis', 'pyautogui', 'qwen25vl', 'qwen3vl', 'ui_s1', 'ui_tars' or "
        "'ui_tars15'.",
    ),
    (
        {"prompt": {"thought": 1}},
        "params.yaml: prompt.thought = 1: must be true or false. "
        'Ask for and train the "Action: ..." line before the call.',
    ),
    ({"sweep": {"seed": 0}}, "params.yaml: sweep.seed = 0: must be a list. Training seeds."),
    (
        {"prm": {"expert": 0, "noised": 0, "random": 0, "policy": 0}},
        "params.yaml: prm = {'expert': 0, 'noised': 0, 'random': 0, 'policy': 0}: there would be no step to learn "
        "from; raise expert, noised, random or policy.",
    ),
    ({"sweep": {"seed": [0, 0]}}, "params.yaml: sweep.seed = [0, 0]: 0 stands in it 2 times; name it once."),
    ({"sweep": {"seed": [-1]}}, "params.yaml: sweep.seed = [-1]: seeds must be 0 or more."),
    (
        {"sweep": {"recipe": ["grop"]}},
        "params.yaml: sweep.recipe names 'grop', which `recipes` lacks. Did you mean grpo or dr_grpo or rloo?",
    ),
    ({"recipes": {"grpo": {"clip_low": -1}}}, "params.yaml: recipes.grpo.clip_low = -1: must be at least 0."),
    (
        {"rl": {"dual_clip": 0.5}},
        "params.yaml: rl.dual_clip = 0.5: must be 0 (off) or above 1; it is a bound on the ratio.",
    ),
    (
        {"recipes": {"grpo": {"importance_cap": 0.5}}},
        "params.yaml: recipes.grpo.importance_cap = 0.5: must be 0 (off) or at least 1, or rollouts of the current "
        "weights would be cut too.",
    ),
    (
        {"env": {"provider": "aws", "cloud": {"region": "us-east-1", "image": "ami-1"}}},
        "params.yaml: env.provider = 'aws': needs env.cloud.instance_type, env.cloud.subnet.",
    ),
    (
        {"rl": {"collection": {"mode": "async"}}, "recipes": {"grpo": {}}},
        "params.yaml: rl.collection.mode = 'async': trains on rollouts of older weights: set importance_cap to 1 or "
        "more (2 is usual), or collection.max_staleness to 0",
    ),
    (
        {
            "engine": {"kind": "vllm"},
            "recipes": {"grpo": {"importance_cap": 2, "collection": {"mode": "async", "workers": 2}}},
        },
        "params.yaml: recipes.grpo.collection.workers = 2: must be 1 with engine.kind vllm, whose server holds one "
        "version of the weights; raise engine.max_seqs",
    ),
    (
        {"trainer": {"kind": "ray", "actor": 4, "rollout": 3, "prm": 0, "gpus": 8}},
        "params.yaml: trainer = {'kind': 'ray', 'actor': 4, 'rollout': 3, 'prm': 0, 'gpus': 8}: actor + rollout + prm "
        "= 4 + 3 + 0 = 7, but gpus = 8: the parts must add up to all GPUs, so that none is idle or claimed twice.",
    ),
    (
        {"trainer": {"kind": "ray", "rollout": 0}},
        "params.yaml: trainer = {'kind': 'ray', 'rollout': 0}: rollout = 0: at least 1 process is needed, or nothing "
        "trains.",
    ),
    (
        {"trainer": {"kind": "ray", "actor": 4, "rollout": 3, "prm": 1, "gpus": 8}},
        "params.yaml: trainer.prm = 1: no recipe of sweep.recipe asks the process reward model; set it to 0 and give "
        "its share to actor or rollout",
    ),
    (
        {"sweep": {"recipe": ["step_wise_prm"]}, "trainer": {"kind": "ray"}},
        "params.yaml: trainer.prm = 0: recipe 'step_wise_prm' asks the process reward model, which needs at least 1",
    ),
    (
        {"sweep": {"recipe": ["grpo_async"]}, "trainer": {"kind": "ray"}},
        "params.yaml: recipes.grpo_async.collection.mode = 'async': not with trainer.kind = 'ray', which samples and "
        "trains in turn; set it to sync",
    ),
    (
        {"trainer": {"kind": "ray", "rollout": 2}, "engine": {"kind": "vllm", "url": "http://127.0.0.1:8000"}},
        "params.yaml: trainer.rollout = 2: must be 1 with engine.url, since each process would hand that one server "
        "its own versions of the weights; leave engine.url empty and each starts a server",
    ),
    (
        {"rl": {"collection": {"replay": "old/schedule.jsonl"}}, "recipes": {"grpo": {}}},
        "params.yaml: rl.collection.replay = 'old/schedule.jsonl': only mode async follows a schedule; set "
        "collection.mode to async, or leave replay empty",
    ),
    (
        {
            "env": {"slots": 2},
            "recipes": {"grpo": {"importance_cap": 2, "collection": {"mode": "async", "workers": 3}}},
        },
        "params.yaml: recipes.grpo.collection.workers = 3: they share env.slots = 2 screens, at least one each; lower "
        "workers or raise env.slots",
    ),
    (
        {"model": {"device": "cuda:0"}, "trainer": {"kind": "ray"}},
        "params.yaml: model.device = 'cuda:0': with trainer.kind = 'ray' the cluster gives each process its GPU; set "
        "it to auto",
    ),
    (
        {"env": {"provider": "docker"}},
        "params.yaml: env.provider = 'docker': needs env.cloud.image.",
    ),
    (
        {"env": {"provider": "docker", "cloud": {"image": "a:1", "spot": True}}},
        "params.yaml: env.cloud.spot means nothing to provider docker: leave it out.",
    ),
    (
        {"env": {"cloud": {"budget": 5.0}}},
        "params.yaml: env.cloud.budget is set, but provider local_browser has no cloud machines: leave it out, or set "
        "env.provider to one of docker, aws, volcengine, aliyun.",
    ),
    (
        {"env": {"provider": "docker", "cloud": {"image": "a:1", "budget": 5.0}}},
        "params.yaml: env.cloud.currency is empty: name the currency of price_per_hour and budget, e.g. USD.",
    ),
    (
        {"env": {"provider": "docker", "cloud": {"image": "a:1", "currency": "dollar"}}},
        "params.yaml: env.cloud.currency = 'dollar': must match ^([A-Z]{3})?$. Of the prices and the budget, e.g. USD, "
        "CNY.",
    ),
    ({"recipes": {"grpo": {"lrr": 1}}}, "params.yaml: recipes.grpo.lrr: unknown key. Did you mean lr or lora?"),
    ({"sft": {"betas": [0.9, 1.0]}}, "params.yaml: sft.betas.1 = 1.0: must be less than 1."),
    ({"rl": {"betas": [-0.1, 0.9]}}, "params.yaml: rl.betas.0 = -0.1: must be at least 0."),
    ({"rl": {"lr": float("nan")}}, "params.yaml: rl.lr = nan: must be a finite number."),
    ({"env": {"lease_ttl_s": float("inf")}}, "params.yaml: env.lease_ttl_s = inf: must be a finite number."),
    (
        {"recipes": {"grpo": {"entropy_coef": float("inf")}}},
        "params.yaml: recipes.grpo.entropy_coef = inf: must be a finite number.",
    ),
    ({"evaluate": {"checkpoints": []}}, "params.yaml: evaluate.checkpoints = []: must hold at least one."),
    (
        {"evaluate": {"checkpoints": ["rl", "rl"]}},
        "params.yaml: evaluate.checkpoints = ['rl', 'rl']: rl stands in it 2 times; name it once.",
    ),
    (
        {"rl": {"reward_failure": 1.0}},
        "params.yaml: rl.reward_failure = 1.0: must be less than 1. Reward of a failed episode (success = 1).",
    ),
    ({"prompt": {"max_new_tokens": 4097}}, "params.yaml: prompt.max_new_tokens = 4097: must be at most 4096."),
    (
        {"rl": {"clip_low": 1.5}},
        "params.yaml: rl.clip_low = 1.5: must be at most 1.",
    ),
    (
        {"prompt": {"codec": "guidrail"}},
        "params.yaml: prompt.codec = 'guidrail': must be one of 'agentcpm', 'generic_v2', 'guiderail', 'openadapt', "
        "'openadapt_json', 'os_atlas', 'os_genesis', 'pyautogui', 'qwen25vl', 'qwen3vl', 'ui_s1', "
        "'ui_tars' or 'ui_tars15' (did you mean guiderail?).",
    ),
    ({"recipes": {}}, "params.yaml: sweep.recipe names 'grpo', which `recipes` lacks. There are none; add one."),
    ({"recipes": {"grpo": None}}, "params.yaml: recipes.grpo = None: must be a mapping."),
    (
        {"rl": {"lora": {"dropout": 0.1}}},
        "params.yaml: rl.lora.dropout = 0.1: must be 0, or what trains is not what sampled",
    ),
    (
        {"sft": {"mode": "lora", "lora": {"r": 8}}},
        "params.yaml: rl.lora = (r 16, alpha 32): must be sft.lora's (r 8, alpha 32), "
        "since the adapter of the warm-up is trained further",
    ),
    (
        {"model": {"train_vision": True}},
        "params.yaml: rl.mode = 'lora': an adapter holds no vision tower; model.train_vision needs full",
    ),
    ({"sweep": {"seed": [2**31]}}, "params.yaml: sweep.seed = [2147483648]: seeds must be below 2147483648."),
]


@pytest.mark.parametrize(("tree", "line"), REFUSED)
def test_refusal_names_key_value_and_remedy(tree, line):
    with pytest.raises(ParamError) as e:
        parse(tree)
    assert e.value.message == line


def test_a_long_value_does_not_hide_what_is_wrong():
    with pytest.raises(ParamError) as e:
        parse({**yaml.safe_load(WHOLE), "engine": 10**400})
    assert "signs): must be" in e.value.message and len(e.value.message) < 300


def test_every_problem_gets_its_line():
    with pytest.raises(ParamError) as e:
        parse({"rl": {"group_size": 1, "lrr": 2}, "sft": {"epochs": 0}})
    assert len(e.value.message.splitlines()) == 3


@pytest.mark.parametrize("text", ["- a", "just words", "a: [1", "rl: {lr: 1.0e-3"])
def test_not_a_mapping_or_not_yaml(tmp_path, text):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ParamError) as e:
        load(path)
    assert len(e.value.message.splitlines()) == 1
    assert str(path) in e.value.message


def test_missing_file(tmp_path):
    with pytest.raises(ParamError, match="not found"):
        load(tmp_path / "none.yaml")


def refused(path) -> str:
    with pytest.raises(ParamError) as e:
        load(path)
    assert len(e.value.message.splitlines()) == 1
    return e.value.message.removeprefix(f"{path}: ")


WHOLE = (ROOT / "params.yaml").read_text()


def test_a_file_that_is_no_file_or_no_text(tmp_path):
    assert refused(tmp_path) == "cannot be read: Is a directory. Give a file that you may read."
    (tmp_path / "p.yaml").write_bytes(b"rl: \xff")
    assert refused(tmp_path / "p.yaml") == "not UTF-8 text (byte 4); save it as UTF-8"


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}"])
def test_an_empty_file_names_the_command_that_fills_it(tmp_path, text):
    (tmp_path / "p.yaml").write_text(text)
    assert refused(tmp_path / "p.yaml").startswith("empty. `guiderail preset default --force` writes all parameters")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rl: {lr: 0.1}\nsft: {}\nrl: {}\n", "key 'rl' stands in line 1 and in line 3; keep one"),
        ("sft: {lora: {r: 1, r: 2}}", "key 'r' stands in line 1 and in line 1; keep one"),
        ("a: &x [*x]", "not plain keys and values: Circular reference detected."),
        ("2024-01-01: 1", "not plain keys and values: keys must be str"),
        ("[" * 5000, "nested too deeply to be read"),
    ],
)
def test_yaml_that_says_something_twice_or_nothing_plain(tmp_path, text, words):
    (tmp_path / "p.yaml").write_text(text)
    assert refused(tmp_path / "p.yaml").startswith(words)


@pytest.mark.parametrize(
    ("line", "named"), [("  group_size: 8", "rl.group_size"), ("    dropout: 0.0", "sft.lora.dropout")]
)
def test_every_key_is_demanded(tmp_path, line, named):
    """As DVC does for the keys it interpolates and the sections it tracks."""
    whole = WHOLE.splitlines()
    del whole[next(i for i, x in enumerate(whole) if x.startswith(line))]
    (tmp_path / "p.yaml").write_text("\n".join(whole))
    assert refused(tmp_path / "p.yaml").startswith(f"missing: {named}. Every parameter must be in it")


def test_missing_sections_are_named_up_to_five(tmp_path):
    (tmp_path / "p.yaml").write_text("tracking: {enabled: true}")
    found = refused(tmp_path / "p.yaml")
    assert found.startswith("missing: sweep, model, prompt, env, provision and 19 more.")


def test_recipe_overrides_single_keys():
    params = parse({"rl": {"lr": 0.5, "clip_low": 0.1}, "recipes": {"grpo": {"lr": 0.25}}})
    assert params.rl_for("grpo").lr == 0.25
    assert params.rl_for("grpo").clip_low == 0.1
    assert params.rl.lr == 0.5


def test_recipe_overrides_sections_key_by_key_and_phases_one_by_one():
    params = parse(
        {
            "rl": {"semi_online": {"gamma": 0.25, "patch_threshold": 3}, "lora": {"r": 4, "alpha": 8}},
            "recipes": {
                "grpo": {},
                "both": {
                    "clip_low": 0.1,
                    "phases": [
                        {"algorithm": "semi_online", "iterations": 3, "semi_online": {"patch_threshold": -1}},
                        {"iterations": 5, "clip_low": 0.3},
                    ],
                },
            },
        }
    )
    one, two = params.phases_for("both")
    assert (one.algorithm, one.iterations, one.clip_low, two.algorithm, two.iterations, two.clip_low) == (
        "semi_online", 3, 0.1, "grpo", 5, 0.3
    )  # fmt: skip
    assert (one.semi_online.gamma, one.semi_online.patch_threshold, two.semi_online.patch_threshold) == (0.25, -1, 3)
    assert params.rl_for("both") == two and params.phases_for("grpo") == [params.rl]


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"step_wise": {"coef": 0.5}}, "recipes.x.step_wise: algorithm grpo does not read it (only step_wise)"),
        ({"algorithm": "semi_online", "scale": "none"}, "recipes.x.scale: algorithm semi_online does not read it"),
        ({"algorithm": "semi_online", "ddof": 0}, "recipes.x.ddof: algorithm semi_online does not read it"),
        ({"algorithm": "semi_online", "reward_failure": -1.0}, "does not read it (only grpo and step_wise)"),
        (
            {"algorithm": "step_wise", "ddof": 0, "step_wise": {"credit": "outcome_anchored"}},
            "recipes.x.ddof: credit outcome_anchored does not read it",
        ),
        ({"algorithm": "step_wise", "step_wise": {"credit": "reference"}}, "compares +1 with -1: set it to -1"),
        ({"algorithm": "step_wise", "step_wise": {"credit": "bucket", "gamma": 0.5}}, "bucket does not read gamma"),
        (
            {"algorithm": "step_wise", "reward_failure": -1.0, "step_wise": {"credit": "reference", "coef": 0.5}},
            "reference does not read coef = 0.5",
        ),
        ({"algorithm": "step_wise", "step_wise": {"judge": "oracle"}}, "recipes.x.step_wise.judge = 'oracle'"),
        ({"algorithm": "semi_online", "semi_online": {"patch_threshold": -2}}, "patch_threshold = -2"),
        (
            {"algorithm": "semi_online", "semi_online": {"episode_weight": 0.0, "step_weight": 0.0}},
            "every advantage would be 0",
        ),
        ({"phases": [{}]}, "recipes.x.phases = [{}]: must be a list of two or more mappings"),
        ({"phases": [{}, {"phases": []}]}, "a phase cannot have phases"),
        ({"phases": [{}, {"lrr": 1}]}, "recipes.x.phases[1].lrr: unknown key. Did you mean lr or lora?"),
        ({"phases": [{}, {"mode": "full"}]}, "mode and lora must be those of the first phase"),
        ({"phases": [{}, {"semi_online": {"gamma": 0.1}}]}, "recipes.x.phases[1].semi_online: algorithm grpo"),
    ],
)
def test_a_recipe_sets_what_its_algorithm_reads(recipe, words):
    with pytest.raises(ParamError) as e:
        parse({"recipes": {"grpo": {}, "x": recipe}})
    assert words in e.value.message


def test_schema_file_is_current_and_accepts_params_yaml():
    schema = json.loads((ROOT / "workflow/schemas/params.schema.json").read_text())
    assert {k: v for k, v in schema.items() if k != "$schema"} == json.loads(json.dumps(Params.model_json_schema()))
    jsonschema.validate(yaml.safe_load((ROOT / "params.yaml").read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"rl": {"lrr": 1}}, schema)


@pytest.mark.parametrize("name", sorted(CODECS))
def test_every_codec_may_be_named(name):
    assert parse({"prompt": {"codec": name}}).prompt.codec == name == get_codec(name).name


def test_params_yaml_is_complete():
    """DVC interpolates and tracks single keys, so none may be left to a default."""
    shipped = yaml.safe_load((ROOT / "params.yaml").read_text())
    full = load(ROOT / "params.yaml").model_dump(mode="json")
    assert shipped == full


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: (
            st.lists(x, max_size=3)
            | st.dictionaries(st.sampled_from(["rl", "sweep", "seed", "lr", "recipes", "grpo"]), x, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_parse_is_total(tree):
    """Any tree gives Params or a ParamError, never another exception."""
    try:
        assert isinstance(parse(tree), Params)
    except ParamError as e:
        assert e.message
