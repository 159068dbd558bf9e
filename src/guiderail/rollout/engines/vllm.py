"""The vLLM engine: completions from a server, by token ids, checked as if the server were a stranger.

Guarantees: what is sent is the prompt's own ids with one pad per image (the server expands it, and would expand
expanded ones again, silently), each frame by its sha256; what comes back is refused unless the server's prompt is the
policy's id for id, the completion ends as `HfEngine`'s would, holds no masked token, has a log-prob per token, and was
sampled under the weights asked for. Log-probs are those of the sampling temperature after the special-token mask. Each
request draws from its own seed (not the draws of `HfEngine`). Does not offer top_p below 1, since the server's
log-probs would then be of the cut distribution, which the trainer does not score.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, Protocol

from guiderail.models.policy import MASKED, Policy
from guiderail.models.rows import Prompt
from guiderail.rollout.engines.vllm_client import VllmClient, VllmError
from guiderail.rollout.types import Completion, SamplingParams

MAX_MASKED = 1024  # entries of logit_bias that the server's GPU kernels take
COLDEST, HOTTEST = 0.01, 2.0  # the server raises lower temperatures, and refuses higher ones


class Pngs(Protocol):
    """Where frames are (see `guiderail.models.frames.FrameStore`)."""

    def get_png(self, sha: str) -> bytes:
        """PNG bytes of a frame."""
        ...


class VllmEngine:
    """Generates with the server behind `client`.

    policy: the trainer's, for its vocabulary and text. model: the served name to ask for (an adapter's, or the base
    model's). version: name of the weights that every token must be sampled under. at_once: requests in flight.
    """

    def __init__(
        self, client: VllmClient, policy: Policy, frames: Pngs, *, model: str, version: str, at_once: int = 32
    ) -> None:
        if len(policy.suppressed_ids) > MAX_MASKED:
            raise VllmError(
                f"the policy masks {len(policy.suppressed_ids)} token ids, vLLM takes {MAX_MASKED} at most; "
                "cut the vocabulary's unused rows, or use engine.kind hf"
            )
        self.client, self.policy, self.frames = client, policy, frames
        self.model, self.version, self.at_once = model, version, at_once
        self.mask = {str(i): MASKED for i in policy.suppressed_ids}
        self.vocab = int(policy.model.config.text_config.vocab_size)
        self.tokens = 0  # tokens sampled so far

    def generate(self, prompts: Sequence[Prompt], sampling: Sequence[SamplingParams]) -> list[Completion]:
        """One completion per prompt, in order; temperature 0 is greedy. Raises ValueError on bad sampling parameters,
        VllmError."""
        if len(prompts) != len(sampling):
            raise ValueError(f"{len(prompts)} prompts with {len(sampling)} sampling parameters; give one each")
        for i, s in enumerate(sampling):
            known = s.temperature == 0 or COLDEST <= s.temperature <= HOTTEST
            if not known or s.top_p != 1.0 or s.max_new_tokens < 1:
                raise ValueError(
                    f"request {i}: {s}: needs temperature 0 or {COLDEST} to {HOTTEST}, top_p 1, max_new_tokens >= 1"
                )
        with ThreadPoolExecutor(max(1, min(self.at_once, len(prompts))), "vllm") as threads:
            out = list(threads.map(self._one, range(len(prompts)), prompts, sampling))
        self.tokens += sum(len(c.ids) for c in out)
        return out

    def _one(self, index: int, prompt: Prompt, sampling: SamplingParams) -> Completion:
        reply = self.client.generate(self.request(prompt, sampling))
        try:
            return self._read(index, prompt, sampling, reply)
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as e:
            told = f"{type(e).__name__}: {e}"
            raise VllmError(f"{self.client.url}: request {index}: an answer that is no completion ({told})") from None

    def request(self, prompt: Prompt, sampling: SamplingParams) -> dict[str, Any]:
        """The body of /inference/v1/generate. Raises ValueError when pads and frames of the prompt do not fit."""
        ids = one_pad_per_image(prompt.ids, self.policy.image_token_id)
        if ids.count(self.policy.image_token_id) != len(prompt.frames):
            pads = ids.count(self.policy.image_token_id)
            raise ValueError(f"prompt with {pads} image runs and {len(prompt.frames)} frames; rebuild it")
        body: dict[str, Any] = {
            "model": self.model,
            "token_ids": ids,
            "return_token_ids": True,
            "sampling_params": {
                "temperature": sampling.temperature,
                "max_tokens": sampling.max_new_tokens,
                "seed": sampling.seed,
                "stop_token_ids": list(self.policy.stop_ids),
                "logprobs": 0,  # of the sampled token alone
                "logit_bias": self.mask,
                "detokenize": False,
            },
        }
        if prompt.frames:
            body["content_parts"] = [{"type": "image_url", "url": self._url(f), "uuid": f} for f in prompt.frames]
        return body

    def _url(self, frame: str) -> str:
        return "data:image/png;base64," + base64.b64encode(self.frames.get_png(frame)).decode()

    def _read(self, index: int, prompt: Prompt, sampling: SamplingParams, reply: dict[str, Any]) -> Completion:
        """The completion of a reply, or VllmError with what is wrong about it."""

        def refuse(what: str) -> VllmError:
            return VllmError(f"{self.client.url}: request {index} of model {self.model}: {what}")

        seen, choices = reply.get("prompt_token_ids"), reply.get("choices") or []
        if seen is None or len(choices) != 1:
            raise refuse(f"{len(choices)} choices, prompt_token_ids {'absent' if seen is None else 'present'}")
        if tuple(seen) != prompt.ids:
            raise refuse(
                f"the server read {len(seen)} prompt tokens, the policy {len(prompt.ids)}"
                + ("" if len(seen) != len(prompt.ids) else ", but others")
                + " (image pads expanded twice, or its processor sizes images differently from the policy's)"
            )
        choice = choices[0]
        ids = tuple(int(i) for i in choice.get("token_ids") or ())
        entries = (choice.get("logprobs") or {}).get("content") or []
        versions = sorted({str(v["version"]) for v in choice.get("weight_versions") or ()})
        if versions != [self.version]:
            raise refuse(f"sampled under weights {versions}, asked for {self.version!r}: does another run use it?")
        if [e.get("token_id") for e in entries] != list(ids):
            raise refuse(f"{len(ids)} tokens with {len(entries)} log-probs that are not theirs")
        logprobs = tuple(float(e["logprob"]) for e in entries)
        if any(not math.isfinite(x) or x > 1e-3 for x in logprobs):
            raise refuse(f"a log-prob that is none: {logprobs}")
        if strange := [i for i in ids if not 0 <= i < self.vocab]:
            raise refuse(f"sampled {strange[:3]}, no ids of a vocabulary of {self.vocab}")
        if masked := sorted(set(ids).intersection(self.policy.suppressed_ids)):
            raise refuse(f"sampled the masked tokens {masked}")
        stopped, stops = choice.get("finish_reason") == "stop", [i in self.policy.stop_ids for i in ids]
        whole = bool(ids) and not any(stops[:-1]) and stops[-1] == stopped
        whole = whole and (stopped or (choice.get("finish_reason") == "length" and len(ids) == sampling.max_new_tokens))
        if not whole or len(ids) > sampling.max_new_tokens:
            raise refuse(f"{len(ids)} of {sampling.max_new_tokens} tokens end with {choice.get('finish_reason')!r}")
        text = self.policy.tokenizer.decode(ids[:-1] if stopped else ids, clean_up_tokenization_spaces=False)
        return Completion(ids, logprobs, "stop" if stopped else "length", text, self.version)


def one_pad_per_image(ids: Sequence[int], pad: int) -> list[int]:
    """`ids` with each run of `pad` made one."""
    out: list[int] = []
    for token, run in groupby(ids):
        out += [token] if token == pad else list(run)
    return out
