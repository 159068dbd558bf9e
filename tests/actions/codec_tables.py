"""How the families' tables are checked: canonical texts both ways, real outputs read, malformed ones refused."""

from guiderail.actions.codec import get_codec
from guiderail.actions.types import Parsed, ParseFailure

WIDTH, HEIGHT = 1092, 2408  # a phone's 1080x2400 frame after Qwen2.5-VL's resize


def bound(name):
    """The codec, its pixels (if it has them) those of the frame above."""
    return get_codec(name).at(WIDTH, HEIGHT)


def assert_canonical(codec, action, text, thought=""):
    assert codec.render(action, thought) == text
    assert codec.parse(text) == Parsed(codec.quantise(action), thought)


def assert_reads(codec, text, action, thought=""):
    assert codec.parse(text) == Parsed(action, thought)
    codec.render(action, thought)  # what is read can be written again


def assert_refuses(codec, text, reason):
    result = codec.parse(text)
    assert isinstance(result, ParseFailure), result
    assert reason in result.reason and result.text == text
