"""The in-process engine: a batched decode loop over the policy's own language model.

Guarantees: log-probs equal `Policy.logprobs` on the resulting rows (tested, 1e-4 in float32), because positions,
features, mask and forward are the policy's. Each request draws from its own generator, so its noise does not depend
on batch mates (float rounding of a different batch shape, about 1e-6, remains). Identical prompts are prefilled once
and their cache is expanded. Not for serving: one call at a time, no paging.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from guiderail.models.attention import SlotCache
from guiderail.models.features import Frames
from guiderail.models.inputs import Packed
from guiderail.models.policy import Policy
from guiderail.models.rows import Prompt
from guiderail.rollout.types import Completion, SamplingParams


def draw(probs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Inverse-CDF sampling. probs: float64 [B, V] (any positive scale), uniform: float64 [B] in [0, 1). Returns int64
    [B].

    Picks the first index whose cumulated mass exceeds uniform * total, so an entry of probability 0 is never picked.
    """
    cdf = probs.cumsum(-1)
    target = uniform.clamp(max=1 - 2.0**-40)[:, None] * cdf[:, -1:]
    return torch.searchsorted(cdf, target, right=True).squeeze(1).clamp(max=probs.shape[-1] - 1)


def nucleus(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero all but the smallest set of most likely tokens whose mass reaches top_p.

    probs [B, V], top_p [B] (>= 1 keeps all).
    """
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = ordered.masked_fill(before >= top_p[:, None], 0.0)
    return torch.where(top_p[:, None] >= 1.0, probs, torch.zeros_like(probs).scatter(-1, index, kept))


class HfEngine:
    """Generates with `policy` in this process. `frames` gives the pixels behind a prompt's frame digests."""

    def __init__(self, policy: Policy, frames: Frames, *, max_batch: int = 256) -> None:
        self.policy = policy
        self.frames = frames
        self.max_batch = max_batch
        self.tokens = 0  # tokens sampled so far

    def generate(self, prompts: Sequence[Prompt], sampling: Sequence[SamplingParams]) -> list[Completion]:
        """One completion per prompt. temperature 0 is greedy (log-probs then at temperature 1); log-probs are before
        top_p.

        Raises RowMismatch naming the prompt whose image tokens do not match its frames, ValueError on bad sampling
        parameters.
        """
        if len(prompts) != len(sampling):
            raise ValueError(f"{len(prompts)} prompts with {len(sampling)} sampling parameters; give one each")
        for i, s in enumerate(sampling):
            if s.temperature < 0 or not 0 < s.top_p <= 1 or s.max_new_tokens < 1:
                raise ValueError(f"request {i}: {s} needs temperature >= 0, 0 < top_p <= 1, max_new_tokens >= 1")
        out: list[Completion] = []
        with torch.inference_mode():
            for i in range(0, len(prompts), self.max_batch):
                out += self._generate(prompts[i : i + self.max_batch], sampling[i : i + self.max_batch])
        return out

    def _generate(self, prompts: Sequence[Prompt], sampling: Sequence[SamplingParams]) -> list[Completion]:
        policy, device, n = self.policy, self.policy.device, len(prompts)
        steps = max(s.max_new_tokens for s in sampling)
        distinct = {p: k for k, p in enumerate(dict.fromkeys(prompts))}
        which = torch.tensor([distinct[p] for p in prompts], device=device)
        packed = policy.pack([(p.ids, p.frames) for p in distinct], self.frames, label="prompt")
        width = packed.embeds.shape[1]
        cache = SlotCache(policy.model.config.text_config.num_hidden_layers, width + steps)
        hidden = policy.hidden(packed, cache=cache)
        cache.advance(width)
        lengths = torch.tensor(packed.lengths, device=device)
        hidden = hidden[torch.arange(len(distinct), device=device), lengths - 1][which]
        if len(distinct) < n:
            cache.select(which)
        position = torch.tensor(packed.next_positions, device=device)[which]
        dtype = packed.embeds.dtype
        mask = torch.zeros(n, 1, 1, width + steps, dtype=dtype, device=device)
        pad = torch.arange(width, device=device)[None] >= lengths[which][:, None]
        mask[:, 0, 0, :width].masked_fill_(pad, torch.finfo(dtype).min)

        noise = np.stack([np.random.default_rng(s.seed).random(steps) for s in sampling])
        uniform = torch.from_numpy(noise).to(device)
        temperature = torch.tensor([s.temperature for s in sampling], device=device)
        top_p = torch.tensor([s.top_p for s in sampling], device=device, dtype=torch.float64)
        limit = np.array([s.max_new_tokens for s in sampling])
        stop = torch.tensor(policy.stop_ids, device=device)
        alive = np.arange(n)  # request of each batch row
        ids = np.zeros((n, steps), dtype=np.int64)
        logps = np.zeros((n, steps), dtype=np.float32)
        count = np.zeros(n, dtype=np.int64)
        stopped = np.zeros(n, dtype=bool)
        embed = policy.model.get_input_embeddings()
        text = policy.text()
        if text is not None:  # rotary factors of all steps at once
            ahead = position[:, None] + torch.arange(steps, device=device)
            cos, sin = text.rope(packed.embeds, ahead.expand(3, -1, -1))
        for step in range(steps):
            logits = policy.masked_logits(hidden)
            rows = torch.from_numpy(alive).to(device)
            token, logp = _sample(logits, temperature[rows], top_p[rows], uniform[rows, step])
            ids[alive, step], logps[alive, step] = token.cpu().numpy(), logp.cpu().numpy()
            count[alive] += 1
            stopped[alive] = torch.isin(token, stop).cpu().numpy()
            keep = ~stopped[alive] & (count[alive] < limit[alive])
            if not keep.any():
                break
            if not keep.all():
                kept = torch.from_numpy(np.flatnonzero(keep)).to(device)
                alive, token, position, mask = alive[keep], token[kept], position[kept], mask[kept]
                cache.select(kept)
                if text is not None:
                    cos, sin = cos[kept], sin[kept]
            column, seen = embed(token)[:, None], mask[..., : cache.length + 1]
            if text is not None:
                rope = cos[:, step : step + 1], sin[:, step : step + 1]
                hidden = text(column, rope, cache=cache, mask=seen)[:, 0]
            else:
                packed = Packed(column, position.expand(3, -1)[..., None], [], [], None, None)
                hidden = policy.hidden(packed, cache=cache, mask=seen)[:, 0]
            cache.advance(1)
            position = position + 1
        self.tokens += int(count.sum())
        return [self._completion(ids[i, : count[i]], logps[i, : count[i]], bool(stopped[i])) for i in range(n)]

    def _completion(self, ids: np.ndarray, logps: np.ndarray, stopped: bool) -> Completion:
        tokens = tuple(int(t) for t in ids)
        text = self.policy.tokenizer.decode(tokens[:-1] if stopped else tokens, clean_up_tokenization_spaces=False)
        return Completion(tokens, tuple(float(x) for x in logps), "stop" if stopped else "length", text)


def _sample(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Next token [B] and its log-prob [B] from masked float32 logits [B, V]."""
    greedy = temperature == 0
    logits = logits / torch.where(greedy, torch.ones_like(temperature), temperature)[:, None]
    logp = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    probs = logp.double().exp()
    if bool((top_p < 1).any()):
        probs = nucleus(probs, top_p)
    token = torch.where(greedy, logits.argmax(-1), draw(probs, uniform))
    return token, logp.gather(1, token[:, None]).squeeze(1)
