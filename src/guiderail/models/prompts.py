"""The one prompt builder: SFT, rollout, training and evaluation write their contexts here and nowhere else.

Layout (Qwen chat format; the system turn is absent for `system: none`):

    <|im_start|>system\n{system}<|im_end|>\n
    <|im_start|>user\n{instruction}\n{frame}<|im_end|>\n<|im_start|>assistant\n{sampled ids}<|im_end|>\n
    <|im_start|>user\n{frame}<|im_end|>\n<|im_start|>assistant\n{sampled ids}<|im_end|>\n
    ...

With an example (a demonstration of another task) its turns stand between the system turn and the first user turn of
every chunk, and its first user turn begins `Example: {its instruction}\n`.

A chunk holds at most K = `prompt.chunk_steps` frames and only ever grows at its end. The next frame starts a new chunk,
re-anchored: its first user turn is `{instruction}\nDone: {past thoughts, last 8, joined by "; "}\n{frame}`.

Guarantees: pieces are tokenised apart and their ids concatenated, so what was sampled is never re-tokenised and no
token crosses a boundary; each prompt of a chunk is a prefix of the chunk's row; spans cover exactly the sampled ids; a
frame stands for as many image tokens as the processor gives it; text from pages, users and models cannot write special
tokens.
Does not decode pixels and does not limit the length of a context.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from guiderail.actions.codec import Codec, get_codec
from guiderail.actions.types import ParseFailure
from guiderail.models.rows import ChunkRow, Prompt
from guiderail.params import Prompt as PromptParams

SUMMARY_STEPS = 8
NO_ACTION = "(no action)"
SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Example:
    """A demonstration shown before the task: its instruction, and (frame sha256, width, height, assistant text) per
    step."""

    instruction: str
    steps: tuple[tuple[str, int, int, str], ...]


class PromptBuilder:
    """Writes contexts as token ids.

    tokenizer: a Qwen-style Hugging Face fast tokenizer (has SPECIAL_TOKENS, else ValueError). params: codec, system and
    chunk_steps are read. image_tokens: (width, height) in pixels -> number of image tokens
    (`ImageSizing.from_processor(processor).tokens`). resized: (width, height) of a frame -> its size as the model sees
    it (`ImageSizing.resized`), in which codecs of absolute pixels read and write.
    """

    def __init__(
        self,
        tokenizer: Any,
        params: PromptParams,
        image_tokens: Callable[[int, int], int],
        resized: Callable[[int, int], tuple[int, int]] = lambda width, height: (width, height),
    ) -> None:
        self.params = params
        self.resized = resized
        self.codec: Codec = get_codec(params.codec)
        self._tokenizer = tokenizer
        special = [_special_id(tokenizer, token) for token in SPECIAL_TOKENS]
        im_start, self.end_id, self._vision_start, self._vision_end, self.image_id = special
        self.reserved_ids = frozenset({im_start, self._vision_start, self._vision_end, self.image_id})
        self.encode = lru_cache(maxsize=16384)(self._encode)
        self._frame = lru_cache(maxsize=256)(lambda width, height: self._frame_ids(image_tokens(width, height)))
        self.user_open = (im_start, *self.encode("user\n"))
        self.turn_close = self.encode("\n")
        self.turn_end = (self.end_id, *self.turn_close)
        self.assistant_open = (*self.turn_end, im_start, *self.encode("assistant\n"))
        system = self.codec.system_prompt(params.system, params.thought)
        self.system_turn = (im_start, *self.encode(f"system\n{system}"), *self.turn_end) if system else ()

    def _encode(self, text: str) -> tuple[int, ...]:
        """Ids of one piece of plain text; "<|im_end|>" and its like in it are letters, never the special token."""
        text = _SURROGATE.sub("\ufffd", text)
        return tuple(self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    def _frame_ids(self, n: int) -> tuple[int, ...]:
        if n < 1:
            raise ValueError(f"image_tokens gave {n} tokens for a frame; a frame needs at least one")
        return (self._vision_start, *(self.image_id,) * n, self._vision_end)

    def frame_ids(self, width: int, height: int) -> tuple[int, ...]:
        """Ids of a frame of `width` x `height` pixels: vision start, one pad per image token, vision end."""
        return self._frame(width, height)

    def codec_for(self, width: int, height: int) -> Codec:
        """The codec for answers to a frame of `width` x `height` pixels."""
        return self.codec.at(*self.resized(width, height))

    def context(self, instruction: str, example: Example | None = None) -> Context:
        """A fresh context, after `example` when one is given. Raises ValueError on an empty instruction."""
        return Context(self, instruction, example)

    def example_ids(self, example: Example) -> tuple[int, ...]:
        """Ids of an example's turns, closed. Raises ValueError on an example without steps."""
        if not example.steps:
            raise ValueError("an example without steps shows nothing; leave it out")
        ids: list[int] = []
        for i, (_, width, height, text) in enumerate(example.steps):
            head = self.encode(f"Example: {example.instruction}\n") if i == 0 else ()
            ids += (*self.user_open, *head, *self.frame_ids(width, height), *self.assistant_open)
            ids += (*self.completion_ids(text), *self.turn_close)
        return tuple(ids)

    def completion_ids(self, text: str) -> tuple[int, ...]:
        """What a policy that writes `text` and stops would have sampled: the text's ids and `<|im_end|>`."""
        return (*self.encode(text), self.end_id)

    def demo_rows(self, instruction: str, steps: Iterable[tuple[str, int, int, str]]) -> list[ChunkRow]:
        """Rows of a demonstration, through the very same Context as a rollout.

        steps: (frame sha256, width, height, assistant text) each; the text must be readable by the codec, else
        ValueError. The rows' `logprobs` are NaN: a demonstration has no behaviour policy.
        """
        context = self.context(instruction)
        for i, (frame, width, height, text) in enumerate(steps):
            codec = self.codec_for(width, height)
            parsed = codec.parse(text)
            if isinstance(parsed, ParseFailure):
                raise ValueError(f"demonstration step {i} is not readable by codec {self.codec.name}: {parsed.reason}")
            context.observe(frame, width, height)
            ids = self.completion_ids(text)
            context.complete(ids, [float("nan")] * len(ids), parsed.thought, codec.render(parsed.action))
        return context.rows()


@dataclass
class _Chunk:
    """Growing state of one chunk; `ids` includes turns not yet answered."""

    ids: list[int]
    frames: list[str] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


class Context:
    """One episode's context: `observe`, `prompt`, `complete`, again and again; `rows` at any time."""

    def __init__(self, builder: PromptBuilder, instruction: str, example: Example | None = None) -> None:
        if not instruction.strip():
            raise ValueError("empty instruction: the environment must give the task's instruction before a prompt")
        self._builder = builder
        self._instruction = instruction
        self._example = builder.example_ids(example) if example else ()
        self._shown = [frame for frame, *_ in example.steps] if example else []
        self._chunks: list[_Chunk] = []
        self._done: list[str] = []
        self._step = 0
        self._open = False

    @property
    def chunk(self) -> int:
        """Index of the current chunk (-1 before the first frame)."""
        return len(self._chunks) - 1

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return self._step

    def observe(self, frame_sha: str, width: int, height: int) -> None:
        """Append a user turn with the frame (`width` x `height` pixels), in a new chunk when the current one is full.

        Raises RuntimeError when the previous frame has not been answered by `complete`.
        """
        if self._open:
            raise RuntimeError(f"step {self._step}: observe() again before complete(): one answer per frame")
        b = self._builder
        frame = b.frame_ids(width, height)
        if not self._chunks or len(self._chunks[-1].frames) - len(self._shown) >= b.params.chunk_steps:
            if self._chunks and not self._chunks[-1].spans:
                self._chunks.pop()  # patched, but nothing was sampled after it
            ids = [*b.system_turn, *self._example, *b.user_open, *self._anchor()]
            self._chunks.append(_Chunk(ids=ids, frames=list(self._shown)))
        else:
            self._chunks[-1].ids.extend(b.user_open)
        chunk = self._chunks[-1]
        chunk.ids.extend(frame)
        chunk.ids.extend(b.assistant_open)
        chunk.frames.append(frame_sha)
        self._open = True

    def _anchor(self) -> tuple[int, ...]:
        """Ids of the text before a chunk's first frame."""
        done = "\nDone: " + "; ".join(self._done[-SUMMARY_STEPS:]) if self._done else ""
        return self._builder.encode(self._instruction + done + "\n")

    def prompt(self) -> Prompt:
        """The current chunk up to and including the opened assistant turn. Raises RuntimeError without a frame."""
        if not self._open:
            raise RuntimeError(f"step {self._step}: prompt() without a frame to answer: call observe() first")
        chunk = self._chunks[-1]
        return Prompt(ids=tuple(chunk.ids), frames=tuple(chunk.frames))

    def complete(
        self, completion_ids: Sequence[int], logprobs: Sequence[float], thought: str, action_text: str
    ) -> None:
        """Append what was sampled, verbatim, with its behaviour log-probs (one per id), and close the turn.

        thought, action_text: as parsed; they go into the summary of later chunks ("" for both on a parse failure).
        A sample that was cut gets its missing `<|im_end|>` outside of the trained span.
        Raises ValueError on no ids, on lengths that differ, and on a turn or image token inside the sample.
        """
        b = self._builder
        if not self._open:
            raise RuntimeError(f"step {self._step}: complete() without a frame: call observe() first")
        if not completion_ids or len(completion_ids) != len(logprobs):
            raise ValueError(
                f"step {self._step}: {len(completion_ids)} sampled ids with {len(logprobs)} log-probs; need one each"
            )
        bad = b.reserved_ids.intersection(completion_ids)
        if bad or b.end_id in completion_ids[:-1]:
            raise ValueError(
                f"step {self._step}: sampled ids hold special tokens {sorted(bad or {b.end_id})} inside; suppress them"
            )
        chunk = self._chunks[-1]
        start = len(chunk.ids)
        chunk.ids.extend(completion_ids)
        chunk.spans.append((start, len(chunk.ids)))
        chunk.ids.extend(b.turn_close if completion_ids[-1] == b.end_id else b.turn_end)
        chunk.logprobs.extend(logprobs)
        chunk.steps.append(self._step)
        self._done.append(" ".join((thought or action_text).split()) or NO_ACTION)
        self._step += 1
        self._open = False

    def patch(self, completion_ids: Sequence[int], thought: str, action_text: str) -> None:
        """Put another turn in the place of the last one, for what follows (semi-online RL).

        The chunk as sampled stays a row of its own, ending with the answer that was replaced; what follows goes into a
        row whose history holds `completion_ids` there, and which trains on nothing before them. Raises RuntimeError
        when no turn has been completed since the last patch, ValueError as `complete`.
        """
        b = self._builder
        last = self._chunks[-1] if self._chunks else None
        if self._open or last is None or not last.spans:
            raise RuntimeError(f"step {self._step}: patch() needs a turn that complete() just closed")
        if not completion_ids or b.reserved_ids.intersection(completion_ids) or b.end_id in completion_ids[:-1]:
            raise ValueError(f"step {self._step}: a patch needs ids of plain text, at most closed by {b.end_id}")
        ids = [*last.ids[: last.spans[-1][0]], *completion_ids]
        ids.extend(b.turn_close if completion_ids[-1] == b.end_id else b.turn_end)
        self._chunks.append(_Chunk(ids=ids, frames=list(last.frames)))
        self._done[-1] = " ".join((thought or action_text).split()) or NO_ACTION

    def hinted(self, hint: str) -> Prompt:
        """The prompt of the turn that `complete` just closed, with a line of text before the answer: asks the policy
        again, told something. Raises RuntimeError when no turn has been completed since the last patch."""
        last = self._chunks[-1] if self._chunks else None
        if self._open or last is None or not last.spans:
            raise RuntimeError(f"step {self._step}: hinted() needs a turn that complete() just closed")
        b = self._builder
        end = last.spans[-1][0] - len(b.assistant_open)
        ids = (*last.ids[:end], *b.encode(f"\n{hint}"), *b.assistant_open)
        return Prompt(ids=ids, frames=tuple(last.frames))

    def rows(self, temperature: float = 1.0) -> list[ChunkRow]:
        """Training rows of the completed steps, one per chunk; a row ends with its last sampled id."""
        rows = []
        for chunk in self._chunks:
            if not chunk.spans:
                continue
            rows.append(
                ChunkRow(
                    ids=np.asarray(chunk.ids[: chunk.spans[-1][1]], dtype=np.int64),
                    frames=tuple(chunk.frames[: len(chunk.frames) - (chunk is self._chunks[-1] and self._open)]),
                    spans=tuple(chunk.spans),
                    logprobs=np.asarray(chunk.logprobs, dtype=np.float32),
                    steps=tuple(chunk.steps),
                    temperature=temperature,
                )
            )
        return rows


def _special_id(tokenizer: Any, token: str) -> int:
    """Id of a special token. Raises ValueError when the tokenizer lacks it."""
    found = tokenizer.get_added_vocab().get(token)
    if found is None:
        raise ValueError(f"tokenizer has no token {token}: a Qwen-VL style tokenizer is needed ({SPECIAL_TOKENS})")
    return int(found)
