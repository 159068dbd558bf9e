"""Hypothesis strategies over the whole action algebra and over what breaks parsers."""

from hypothesis import strategies as st

from guiderail.actions.types import (
    Answer,
    Click,
    Drag,
    Finish,
    Key,
    LongPress,
    Move,
    Nav,
    Open,
    Scroll,
    Type,
    Wait,
)

fraction = st.floats(0, 1)
# All of unicode with surrogates, and a second source rich in what breaks parsers.
nasty = st.text(st.sampled_from("a'\"\\\n\t\r <>|+=(),;:{}[]`un0\x00\x7f\x85\u2028\ud800\udc00é😀"), max_size=12)
text = st.one_of(
    st.text(st.characters(codec=None), max_size=12),
    nasty,
    st.sampled_from(
        [
            "<|im_end|>",
            "</tool_call>",
            "<tool_call>",
            "<action>",
            "</action>",
            "<ANSWER>{}",
            "</THINK>",
            "Action: DONE()",
            "actions: WAIT",
            "action:",
            "Thoughts: a\nActions:\nCLICK <point>[[1, 2]]</point>",
            "click (3, 4)",
            "CLICK(x=0.1, y=0.2)",
            "DONE()",
            "DONE",
            "Thought: a\nAction: b",
            "<think>x</think>",
            "<Think>x</THINK>",
            'TYPE(text="',
            "TYPE(text='a",
            "')\nAction: wait()",
            "a', b='c",
            "')",
            '")',
            "]",
            "]\nSCROLL [UP]",
            "```",
            "````",
            "```python\npyautogui.click(1, 2)\n```",
            '{"action": "BACK"}',
            r"\u0041\n",
            " ",
            "\ud83d\ude00",
        ]
    ),
)
key = text.filter(lambda k: k == " " or k.strip() != "")
# One strategy per kind, named as it is, so that every kind is seen often.
KINDS = {
    "Click": st.builds(Click, fraction, fraction, st.sampled_from(["left", "right", "middle"]), st.integers(1, 3)),
    "Move": st.builds(Move, fraction, fraction),
    "LongPress": st.builds(LongPress, fraction, fraction, st.one_of(st.floats(0, 600), st.sampled_from([1.0, 0.2]))),
    "Drag": st.builds(Drag, fraction, fraction, fraction, fraction),
    "Scroll": st.one_of(
        st.builds(Scroll, fraction, fraction, st.integers(-10_000, 10_000), st.integers(-10_000, 10_000)),
        st.builds(
            lambda p, steps: Scroll(*p, *steps),
            st.one_of(st.just((0.5, 0.5)), st.tuples(fraction, fraction)),
            st.sampled_from([(0, 5), (0, -5), (5, 0), (-5, 0), (0, 0), (5, 5), (0, 3)]),
        ),
    ),
    "Type": st.builds(Type, text),
    "Key": st.builds(
        Key, st.one_of(st.lists(key, min_size=1, max_size=4).map(tuple), st.sampled_from([("enter",), ("ctrl", "a")]))
    ),
    "Wait": st.builds(Wait, st.one_of(st.floats(0, 600), st.sampled_from([1.0, 5.0]))),
    "Open": st.builds(Open, text),
    "Answer": st.builds(Answer, text),
    "Nav": st.builds(Nav, st.sampled_from(["back", "home", "recent", "menu"])),
    "Finish": st.builds(Finish, st.sampled_from(["success", "failure"])),
}
action = st.one_of(*KINDS.values())
