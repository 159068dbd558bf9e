"""The families' full system prompts: golden files, every action named, every example readable.

After a wanted change of a prompt: `GUIDERAIL_UPDATE_GOLDEN=1 pytest tests/actions/test_system_prompts.py`; read the
diff.
"""

import json
import os
import re
from pathlib import Path

import pytest

from guiderail.actions import agentcpm, generic_v2, openadapt, os_atlas, os_genesis, pyautogui, ui_s1, ui_tars
from guiderail.actions.codec import CODECS, get_codec
from guiderail.actions.prompts_full import SHORT_SYSTEM
from guiderail.actions.types import Parsed

GOLDEN = Path(__file__).parent.parent / "golden"
FAMILIES = sorted(set(CODECS) - {"guiderail", "qwen3vl"})  # these two have golden contexts, see test_prompts.py


@pytest.mark.parametrize("name", FAMILIES)
def test_golden(name):
    codec = get_codec(name)
    assert codec.system_prompt("none") == "" and codec.system_prompt("short") == SHORT_SYSTEM
    prompts = [codec.system_prompt("full"), codec.system_prompt("full", thought=False)]
    text = "\n--- without a thought\n".join(prompts) + "\n"
    path = GOLDEN / f"system_{name}.txt"
    if os.environ.get("GUIDERAIL_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "see the module docstring"


READ_ONLY = {"left_single", "finished"} | {"pyautogui.leftClick", "pyautogui.vscroll", "pyautogui.typewrite"}
NAMES = {
    "agentcpm": set(agentcpm._KEYS) | {"HOME", "BACK", "ENTER", "finish", "impossible"},
    "generic_v2": set(generic_v2.ACTIONS),
    "openadapt": set(openadapt.CALLS),
    "openadapt_json": set(openadapt.OBJECTS),
    "os_atlas": set(os_atlas.ACTIONS),
    "os_genesis": set(os_genesis.ACTIONS),
    "pyautogui": {n.rpartition(".")[2] for n in set(pyautogui.CALLS) - READ_ONLY} | {"DONE", "FAIL"},
    "qwen25vl": set(ui_s1.ACTIONS),
    "ui_s1": set(ui_s1.ACTIONS),
    "ui_tars": set(ui_tars.CALLS) - READ_ONLY | {"finished"},
    "ui_tars15": set(ui_tars.CALLS) - READ_ONLY | {"finished"},
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("thought", [True, False])
def test_the_prompt_names_every_action(name, thought):
    prompt = get_codec(name).system_prompt("full", thought)
    missing = {n for n in NAMES[name] if not re.search(rf"\b{n}\b", prompt)}
    assert missing == (set() if thought or name != "agentcpm" else {"thought"})


def examples(name):
    """Lines of the prompt's list of actions, with numbers for their placeholders, in the family's envelope."""
    wrap = {
        "ui_s1": "<action>{}</action>", "generic_v2": "<ANSWER>{}</ANSWER>", "os_genesis": "action: {}",
        "os_atlas": "actions:\n{}", "openadapt": "Action: {}", "openadapt_json": "Action: {}", "ui_tars": "Action: {}",
        "ui_tars15": "Action: {}", "pyautogui": "```python\n{}\n```",
    }  # fmt: skip
    for line in get_codec(name).system_prompt("full", False).splitlines():
        line = re.split(r"\s{3,}|(?<=[})])\s{2,}", line)[0]
        if name not in wrap or not re.match(r"\{\"|[a-z_.A-Z]+\(|[A-Z_]{4,}( |\Z)", line):
            continue
        if name == "pyautogui" and "dragTo" in line:
            line = f"pyautogui.moveTo(1, 2)\n{line}"
        filled = re.sub(r"(?<![\w\"'=])[xyn][12]?(?![\w\"'=:])", "12", line).replace("seconds", "2")
        yield wrap[name].format(filled)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"agentcpm", "qwen25vl"}))
def test_the_prompt_shows_readable_examples(name):
    codec, shown = get_codec(name).at(100, 100), list(examples(name))
    assert len(shown) >= 6
    for text in shown:
        parsed = codec.parse(text)
        assert isinstance(parsed, Parsed), (text, parsed)
        codec.render(parsed.action)


def test_the_schema_prompts_hold_json():
    tools = get_codec("qwen25vl").system_prompt("full").split("<tools>")[1].split("</tools>")[0]
    properties = json.loads(tools)["function"]["parameters"]["properties"]
    assert set(properties["action"]["enum"]) == set(ui_s1.ACTIONS)
    assert set(properties) == {"action"} | {a for r, o in ui_s1.ACTIONS.values() for a in (*r, *o)}
    for thought in (True, False):
        schema = json.loads(get_codec("agentcpm").system_prompt("full", thought).splitlines()[-1])
        assert set(schema["properties"]) == set(agentcpm._KEYS) - (set() if thought else {"thought"})
