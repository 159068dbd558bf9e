"""Each refusal is one line that names key, value and remedy; what params.yaml ships with is accepted."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

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
    ({"prompt": {"codec": "x"}}, "params.yaml: prompt.codec = 'x': must be one of 'guiderail' or 'qwen3vl'."),
    (
        {"prompt": {"thought": 1}},
        "params.yaml: prompt.thought = 1: must be true or false. "
        'Ask for and train the "Action: ..." line before the call.',
    ),
    ({"sweep": {"seed": 0}}, "params.yaml: sweep.seed = 0: must be a list. Training seeds."),
    ({"sweep": {"seed": [0, 0]}}, "params.yaml: sweep.seed = [0, 0]: 0 stands in it 2 times; name it once."),
    ({"sweep": {"seed": [-1]}}, "params.yaml: sweep.seed = [-1]: seeds must be 0 or more."),
    (
        {"sweep": {"recipe": ["grop"]}},
        "params.yaml: sweep.recipe names 'grop', which `recipes` lacks. Did you mean grpo?",
    ),
    ({"recipes": {"grpo": {"clip_low": -1}}}, "params.yaml: recipes.grpo.clip_low = -1: must be at least 0."),
    (
        {"env": {"provider": "aws", "cloud": {"region": "us-east-1", "image": "ami-1"}}},
        "params.yaml: env.provider = 'aws': needs env.cloud.instance_type, env.cloud.subnet.",
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
]


@pytest.mark.parametrize(("tree", "line"), REFUSED)
def test_refusal_names_key_value_and_remedy(tree, line):
    with pytest.raises(ParamError) as e:
        parse(tree)
    assert e.value.message == line


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


def test_recipe_overrides_single_keys():
    params = parse({"rl": {"lr": 0.5, "clip_low": 0.1}, "recipes": {"grpo": {"lr": 0.25}}})
    assert params.rl_for("grpo").lr == 0.25
    assert params.rl_for("grpo").clip_low == 0.1
    assert params.rl.lr == 0.5


def test_schema_file_is_current_and_accepts_params_yaml():
    schema = json.loads((ROOT / "workflow/schemas/params.schema.json").read_text())
    assert {k: v for k, v in schema.items() if k != "$schema"} == json.loads(json.dumps(Params.model_json_schema()))
    jsonschema.validate(yaml.safe_load((ROOT / "params.yaml").read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"rl": {"lrr": 1}}, schema)


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
