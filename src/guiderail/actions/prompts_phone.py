"""Full system prompts of the phone families, in our words with each family's own names.

Each constant is a pair: asking for a thought, and not. Golden files hold them. What the models were trained with is
longer and, for AgentCPM and generic_v2, in Chinese.
"""

from __future__ import annotations

import json

Pair = tuple[str, str]
_ROLE = "You operate a phone by looking at its screen. Each turn shows the screen; give the next single action.\n\n"
_PIXELS = "Points are pixels [x, y] of the picture you see, from its left and top edge.\n\n"
_THOUSANDTHS = "Points run from 0 to 1000 on both axes, from the left and top edge of the screen.\n\n"

_MOBILE_USE = """\
{"action": "click", "coordinate": [x, y]}                        tap
{"action": "long_press", "coordinate": [x, y], "time": seconds}  touch and hold
{"action": "swipe", "coordinate": [x1, y1], "coordinate2": [x2, y2]}  move the finger from the first point to the second
{"action": "type", "text": "..."}                                type into the active field
{"action": "key", "text": "..."}                                 press a key by its name
{"action": "system_button", "button": "Back"}                    Back, Home, Menu or Enter
{"action": "open", "text": "..."}                                open an app by its name
{"action": "wait", "time": seconds}                              let time pass
{"action": "answer", "text": "..."}                              answer the user's question
{"action": "terminate", "status": "success"}                     end the task: success or failure
"""
_UI_S1 = _ROLE + _PIXELS + "Actions:\n" + _MOBILE_USE + "\nReply in this form and with nothing else:\n"
UI_S1: Pair = (
    _UI_S1 + "<think>\nwhat you see and what you do next\n</think>\n<action>\none JSON object from the list\n</action>",
    _UI_S1 + "<action>\none JSON object from the list\n</action>",
)

_TOOL = {
    "type": "function",
    "function": {
        "name": "mobile_use",
        "description": "Work a phone by touch while seeing its screen. Points are pixels of the picture you see.",
        "parameters": {
            "type": "object",
            "properties": {
                "action": {
                    "type": "string",
                    "enum": [
                        "click",
                        "long_press",
                        "swipe",
                        "type",
                        "key",
                        "system_button",
                        "open",
                        "wait",
                        "answer",
                        "terminate",
                    ],
                    "description": "What to do: click taps coordinate; long_press holds there for time; swipe moves "
                    "the finger from coordinate to coordinate2; type writes text; key presses the key named by text; "
                    "system_button presses button; open starts the app named by text; wait lets time pass; answer "
                    "gives text to the user; terminate ends the task with status.",
                },
                "coordinate": {"type": "array", "description": "[x, y] in pixels from the left and top edge."},
                "coordinate2": {"type": "array", "description": "[x, y] where a swipe ends."},
                "text": {"type": "string", "description": "For type, key, open and answer."},
                "time": {"type": "number", "description": "Seconds, for long_press and wait."},
                "button": {"type": "string", "enum": ["Back", "Home", "Menu", "Enter"]},
                "status": {"type": "string", "enum": ["success", "failure"], "description": "For terminate."},
            },
            "required": ["action"],
        },
    },
}
_QWEN25VL = f"""\
# Tools

This is the one function that you can call:
<tools>
{json.dumps(_TOOL)}
</tools>

A call is a JSON object with the function's name and arguments inside <tool_call></tool_call> tags:
<tool_call>
{{"name": "mobile_use", "arguments": {{"action": ...}}}}
</tool_call>

# Response format

"""
QWEN25VL: Pair = (
    _QWEN25VL + "First one line `Action: ` with what you do now in a few words, then exactly one <tool_call> block.",
    _QWEN25VL + "Exactly one <tool_call> block and nothing else.",
)

_LOCATION = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 1000},
    "minItems": 2,
    "maxItems": 2,
    "description": "[x, y] from 0 to 1000, from the left and top edge",
}


def _schema(thought: bool) -> str:
    properties = {
        "thought": {"type": "string", "description": "what you see and what you do next"},
        "POINT": {**_LOCATION, "description": "tap here; " + str(_LOCATION["description"])},
        "to": {
            "oneOf": [{"enum": ["up", "down", "left", "right"]}, _LOCATION],
            "description": "with POINT: swipe the finger from there, that way or to that point",
        },
        "duration": {
            "type": "integer",
            "minimum": 0,
            "default": 200,
            "description": "milliseconds: with POINT, how long to touch; alone, how long to wait",
        },
        "PRESS": {"type": "string", "enum": ["HOME", "BACK", "ENTER"], "description": "press this key"},
        "TYPE": {"type": "string", "description": "type this text"},
        "STATUS": {
            "type": "string",
            "enum": ["continue", "finish", "satisfied", "impossible", "interrupt", "need_feedback"],
            "default": "continue",
            "description": "finish: done; satisfied: nothing to do; impossible: cannot be done",
        },
    }
    if not thought:
        del properties["thought"]
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["thought"] if thought else [],
        "additionalProperties": False,
    }
    return json.dumps(schema, separators=(",", ":"))


_AGENTCPM = _ROLE + "Reply with one compact JSON object and nothing else, one action in it, that fits this schema:\n"
AGENTCPM: Pair = (_AGENTCPM + _schema(True), _AGENTCPM + _schema(False))

_OS_ATLAS = f"""\
{_ROLE}{_THOUSANDTHS}Basic actions:
CLICK <point>[[x, y]]</point>
TYPE [text]
SCROLL [UP]                          UP, DOWN, LEFT or RIGHT: the side to see more of

Custom actions:
LONG_PRESS <point>[[x, y]]</point>
OPEN_APP [app name]
PRESS_BACK
PRESS_HOME
PRESS_RECENT
ENTER
WAIT                                 let the screen load
COMPLETE                             the task is done
IMPOSSIBLE                           the task cannot be done

"""
OS_ATLAS: Pair = (
    _OS_ATLAS + "Reply with two sections and nothing else:\nthoughts:\nwhy, in a few words\nactions:\none action",
    _OS_ATLAS + "Reply with one section and nothing else:\nactions:\none action",
)

_OS_GENESIS = f"""\
{_ROLE}{_THOUSANDTHS}Actions:
{{"action_type": "click", "x": x, "y": y}}
{{"action_type": "long_press", "x": x, "y": y}}
{{"action_type": "scroll", "direction": "down"}}         up, down, left or right: the side to see more of
{{"action_type": "type", "text": "..."}}
{{"action_type": "open_app", "app_name": "..."}}
{{"action_type": "navigate_back"}}
{{"action_type": "navigate_home"}}
{{"action_type": "keyboard_enter"}}
{{"action_type": "wait"}}
{{"action_type": "answer", "text": "..."}}
{{"action_type": "status", "goal_status": "successful"}}  successful or infeasible: ends the task

"""
OS_GENESIS: Pair = (
    _OS_GENESIS
    + "Reply with two lines and nothing else:\nLow-level thought: what you do next\naction: one JSON object",
    _OS_GENESIS + "Reply with one line and nothing else:\naction: one JSON object",
)


def _ui_tars(points: str) -> str:
    return f"""\
You operate a device by looking at its screen. Each turn shows the screen; give the next single action.

{points}## Action Space
click(start_box='(x,y)')
left_double(start_box='(x,y)')
right_single(start_box='(x,y)')
hover(start_box='(x,y)')
long_press(start_box='(x,y)', time='1000')                milliseconds
drag(start_box='(x1,y1)', end_box='(x2,y2)')
scroll(start_box='(x,y)', direction='down')               up, down, left or right: the side to see more of
type(content='...')                                       escape \\\\, \\' and \\n; end with \\n to submit
hotkey(key='ctrl a')                                      keys with spaces between
open_app(app_name='...')
press_home()
press_back()
wait()                                                    five seconds
finished()                                                the task is done
call_user()                                               the task cannot be done

## Output Format
"""


_TARS_THOUGHT = "Thought: what you do next, in one sentence\nAction: one call from the list"
UI_TARS: Pair = (_ui_tars(_THOUSANDTHS) + _TARS_THOUGHT, _ui_tars(_THOUSANDTHS) + "Action: one call from the list")
_TARS15 = _ui_tars("Points are pixels (x,y) of the picture you see, from its left and top edge.\n\n")
UI_TARS15: Pair = (_TARS15 + _TARS_THOUGHT, _TARS15 + "Action: one call from the list")

_GENERIC_V2 = f"""\
{_ROLE}{_THOUSANDTHS}Actions:
{{"action": "CLICK", "point": [x, y]}}
{{"action": "DOUBLE_TAP", "point": [x, y]}}
{{"action": "LONGPRESS", "point": [x, y]}}
{{"action": "TYPE", "value": "..."}}
{{"action": "SWIPE", "point1": [x1, y1], "point2": [x2, y2]}}
{{"action": "DRAG", "point1": [x1, y1], "point2": [x2, y2]}}
{{"action": "BACK"}}
{{"action": "HOME"}}
{{"action": "RECENT"}}
{{"action": "ENTER"}}
{{"action": "WAIT", "value": seconds}}
{{"action": "AWAKE", "value": "app name"}}                 opens the app
{{"action": "ANSWER", "value": "..."}}                     answers the user's question
{{"action": "COMPLETE", "return": "..."}}                  the task is done
{{"action": "ABORT", "value": "why"}}                      the task cannot be done

Reply in this form and with nothing else:
"""
GENERIC_V2: Pair = (
    _GENERIC_V2 + "<THINK>\nwhat you see and what you do next\n</THINK>\n<ANSWER>\none JSON object\n</ANSWER>",
    _GENERIC_V2 + "<ANSWER>\none JSON object\n</ANSWER>",
)
