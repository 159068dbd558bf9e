"""The system prompts: the short one, and long ones (actions, response format) for models not trained on the format.

Plain constants; `guiderail.models.prompts` golden files hold them. `*_FORMAT` is keyed by "ask for a thought line".
"""

from __future__ import annotations

import json
from typing import Literal

SystemKind = Literal["none", "short", "full"]
SHORT_SYSTEM = "Work the screen."

GUIDERAIL_FULL = """\
You operate a computer by looking at its screen. Each turn shows the current screen; reply with the next single action.

Points are fractions of the screen: x=0.000 is the left edge, x=1.000 the right, y=0.000 the top, y=1.000 the bottom.

Actions:
CLICK(x=0.500, y=0.500)                      press and release the left button
DOUBLE_CLICK(x=0.500, y=0.500)               two clicks
RIGHT_CLICK(x=0.500, y=0.500)                press and release the right button
MOVE(x=0.500, y=0.500)                       move the pointer only
LONG_PRESS(x=0.500, y=0.500, seconds=1)      hold there
DRAG(x=0.200, y=0.500, x2=0.800, y2=0.500)   press at the first point, release at the second
SCROLL(x=0.500, y=0.500, dx=0, dy=3)         turn the wheel by notches; positive dy scrolls down, positive dx right
TYPE(text="...")                             type into the focused field; escape \\\\ \\" \\n \\t
KEY(keys="ctrl+a")                           press keys together
WAIT(seconds=1)                              let time pass
OPEN(app="...")                              open an application
ANSWER(text="...")                           give the answer to a question
NAV(button="back")                           phone button: back, home, recent or menu
DONE()                                       the task is done
FAIL()                                       the task cannot be done

"""
GUIDERAIL_FORMAT = {
    True: """\
Reply with two lines and nothing else:
Action: <what you do now, in a few words>
<one call from the list>""",
    False: "Reply with one call from the list and nothing else.",
}

_QWEN_TOOL = {
    "type": "function",
    "function": {
        "name": "computer_use",
        "description": "Work a computer with mouse and keyboard while seeing its screen. "
        "The screen's resolution is 1000x1000.",
        "parameters": {
            "type": "object",
            "properties": {
                "action": {
                    "type": "string",
                    "enum": [
                        "key",
                        "type",
                        "mouse_move",
                        "left_click",
                        "long_press",
                        "left_click_drag",
                        "right_click",
                        "middle_click",
                        "double_click",
                        "triple_click",
                        "scroll",
                        "hscroll",
                        "wait",
                        "terminate",
                        "answer",
                        "open",
                        "system_button",
                    ],
                    "description": "What to do: key presses keys together; type writes text into the focused field; "
                    "mouse_move and the clicks act at coordinate; long_press holds there for time; "
                    "left_click_drag drags from start_coordinate to coordinate; scroll and hscroll turn the wheel at "
                    "coordinate by pixels; wait lets time pass; "
                    "terminate ends the task with status; answer gives text as the answer; open starts the app named "
                    "by text; system_button presses a phone's button.",
                },
                "keys": {"type": "array", "description": "Key names, for key."},
                "text": {"type": "string", "description": "For type, answer and open."},
                "coordinate": {"type": "array", "description": "[x, y] from the left and top edge, 0 to 1000."},
                "start_coordinate": {"type": "array", "description": "[x, y] where left_click_drag begins."},
                "pixels": {"type": "number", "description": "Wheel notches: scroll up and hscroll right are positive."},
                "time": {"type": "number", "description": "Seconds, for wait and long_press."},
                "button": {"type": "string", "enum": ["Back", "Home", "Recent", "Menu"]},
                "status": {"type": "string", "enum": ["success", "failure"], "description": "For terminate."},
            },
            "required": ["action"],
        },
    },
}
QWEN3VL_FULL = f"""\
# Tools

This is the one function that you can call:
<tools>
{json.dumps(_QWEN_TOOL)}
</tools>

A call is a JSON object with the function's name and arguments inside <tool_call></tool_call> tags:
<tool_call>
{{"name": "computer_use", "arguments": {{"action": ...}}}}
</tool_call>

# Response format

"""
QWEN3VL_FORMAT = {
    True: "First one line `Action: ` with what you do now in a few words, then exactly one <tool_call> block and "
    "nothing else. When the task is done, or cannot be done, call action terminate.",
    False: "Exactly one <tool_call> block and nothing else. When the task is done, or cannot be done, call action "
    "terminate.",
}
