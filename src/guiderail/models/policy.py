"""The policy: a Qwen3-VL model with its processor, and the one forward that rollouts and training share.

Guarantees: sampling and training see the same log-probs, because both use `pack`, `hidden` and `masked_logits` here:
same positions, same vision features, same mask over special tokens, logits only at the positions asked for. Knows
nothing of prompts' wording, of environments or of losses. Rows are padded on the right, so causality alone keeps
padding out of every real token's sight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from guiderail.models import recompute
from guiderail.models.attention import Grid, RowMismatch, image_runs, mrope_positions
from guiderail.models.features import FeatureCache, Features, Frames
from guiderail.models.lean import LeanText
from guiderail.models.packing import Block, Plan, blocks, plan
from guiderail.models.pixels import Pixels
from guiderail.models.rows import ChunkRow
from guiderail.models.sizing import ImageSizing
from guiderail.params_train import Layout

STOP_TOKENS = ("<|im_end|>", "<|endoftext|>")
MASKED = -1e30  # finite, so that p * log p of a masked token is 0 and has a gradient of 0


class LogProbs(NamedTuple):
    """Per span token: log-prob, entropy of its distribution in nats (zeros unless asked for), index of its row, and
    whether it is the likeliest token.
    """

    logp: torch.Tensor
    entropy: torch.Tensor
    row_index: torch.Tensor
    greedy: torch.Tensor


@dataclass
class Packed:
    """Rows ready for the language model, padded on the right; or with `layout` all in one row without padding.

    embeds [B, T, D]; positions [3, B, T]; next_positions per row. layout: where each row's tokens stand, B is then 1.
    """

    embeds: torch.Tensor
    positions: torch.Tensor
    lengths: list[int]
    next_positions: list[int]
    visual_mask: torch.Tensor | None
    deepstack: list[torch.Tensor] | None
    layout: Plan | None = None


class _Laid(NamedTuple):
    """ids [T] of a row, their positions [3, T] and the position of the next token."""

    ids: np.ndarray
    positions: np.ndarray
    following: int


class Policy:
    """A causal vision-language policy.

    `model` is the HF `Qwen3VLForConditionalGeneration` (adapters, if any, are injected into it in place).
    """

    def __init__(self, model: Any, processor: Any, *, cache_bytes: int = 512 << 20) -> None:
        self.model = model
        self.processor = processor
        self.tokenizer = processor.tokenizer
        self.image_token_id = int(model.config.image_token_id)
        self.merge = int(model.config.vision_config.spatial_merge_size)
        self.stop_ids: tuple[int, ...] = tuple(
            i for t in STOP_TOKENS if (i := self.tokenizer.convert_tokens_to_ids(t)) is not None and self._is(i, t)
        )
        if not self.stop_ids:
            raise ValueError(
                f"the tokenizer has none of the stop tokens {STOP_TOKENS}; it is not a Qwen chat tokenizer"
            )
        self.suppressed_ids: tuple[int, ...] = self._suppressed()
        self.features = FeatureCache(model.model.visual, self.preprocess, max_bytes=cache_bytes)
        self._masks: dict[torch.device, torch.Tensor] = {}
        self._sizing = ImageSizing.from_processor(processor)
        self._pixels = Pixels.of(processor)

    def _is(self, token_id: int, token: str) -> bool:
        return bool(self.tokenizer.convert_ids_to_tokens(token_id) == token)

    def _suppressed(self) -> tuple[int, ...]:
        """Ids that are never sampled: special tokens that do not stop, vision tokens, and rows beyond the
        tokenizer."""
        c, vocab = self.model.config, int(self.model.config.text_config.vocab_size)
        ids = {i for i, t in self.tokenizer.added_tokens_decoder.items() if t.special} | set(
            self.tokenizer.all_special_ids
        )
        ids |= {c.image_token_id, c.video_token_id, c.vision_start_token_id, c.vision_end_token_id}
        ids |= set(range(len(self.tokenizer), vocab))
        return tuple(sorted(int(i) for i in ids - set(self.stop_ids) if 0 <= i < vocab))

    @property
    def device(self) -> torch.device:
        """Device of the token embedding."""
        return self.model.get_input_embeddings().weight.device  # type: ignore[no-any-return]

    @property
    def vision_hash(self) -> str:
        """sha256 of the vision tower's weights."""
        return self.features.vision_hash

    def weights_stamp(self) -> tuple[int, ...]:
        """Changes whenever torch counts a write to any parameter; equal stamps mean equal weights."""
        return tuple(x for p in self.model.parameters() for x in (p.data_ptr(), p._version))

    def preprocess(self, image: Any) -> tuple[torch.Tensor, Grid]:
        """Image (PIL or uint8 HWC) -> (pixel values [patches, patch volume], grid (1, h, w) in patches)."""
        if self._pixels is not None:
            return self._pixels(image)
        out = self.processor.image_processor(images=[image], return_tensors="pt")
        t, h, w = out["image_grid_thw"][0].tolist()
        return out["pixel_values"], (t, h, w)

    def image_tokens(self, width: int, height: int) -> int:
        """Image tokens a frame of `width` x `height` pixels takes in a prompt."""
        return self._sizing.tokens(width, height)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Size in pixels of a frame of `width` x `height` as the model sees it."""
        return self._sizing.resized(width, height)

    def pack(
        self, rows: Sequence[tuple[Sequence[int] | np.ndarray, Sequence[str]]], frames: Frames, label: str = "row"
    ) -> Packed:
        """Embed rows of (ids, frame digests).

        Raises RowMismatch naming `label` and index when image tokens and features differ.
        """
        features, laid = self._lay(rows, frames, label)
        lengths = [len(row.ids) for row in laid]
        width = max(lengths)
        ids = np.full((len(rows), width), self.stop_ids[-1], dtype=np.int64)
        positions = np.zeros((3, len(rows), width), dtype=np.int64)
        for i, row in enumerate(laid):
            ids[i, : len(row.ids)], positions[:, i, : len(row.ids)] = row.ids, row.positions
        next_positions = [row.following for row in laid]
        token_ids = torch.from_numpy(ids).to(self.device)
        embeds = self.model.get_input_embeddings()(token_ids)
        visual_mask, deepstack = None, None
        if features:
            data = torch.cat([f.data for f in features], dim=1).to(embeds.device, embeds.dtype)
            visual_mask = token_ids == self.image_token_id
            embeds = embeds.masked_scatter(visual_mask[..., None], data[0])
            deepstack = list(data[1:].unbind(0))
        return Packed(
            embeds, torch.from_numpy(positions).to(self.device), lengths, next_positions, visual_mask, deepstack
        )

    def pack_flat(
        self, rows: Sequence[tuple[Sequence[int] | np.ndarray, Sequence[str]]], frames: Frames, label: str = "row"
    ) -> Packed:
        """As `pack`, all rows in one: no padding, and what rows begin with alike stands there once (`packing.plan`)."""
        features, laid = self._lay(rows, frames, label)
        vocab = int(self.model.config.text_config.vocab_size)
        first: dict[str, int] = {}  # where the cells of each frame begin among those of all frames
        distinct: list[torch.Tensor] = []
        size, at, sources = 0, 0, []
        for row, (_, fs) in zip(laid, rows, strict=True):
            source = np.full(len(row.ids), -1, dtype=np.int64)
            cells = [np.empty(0, dtype=np.int64)]
            for sha, f in zip(fs, features[at : at + len(fs)], strict=True):
                if sha not in first:
                    first[sha], size = size, size + f.cells
                    distinct.append(f.data)
                cells.append(first[sha] + np.arange(f.cells))
            at += len(fs)
            source[row.ids == self.image_token_id] = np.concatenate(cells)
            sources.append(source)
        keys = [np.where(s < 0, row.ids, vocab + s) for row, s in zip(laid, sources, strict=True)]
        layout = plan(keys)
        source = layout.flat(sources)
        embeds = self.model.get_input_embeddings()(torch.from_numpy(layout.flat([r.ids for r in laid])).to(self.device))
        embeds, visual_mask, deepstack = embeds[None], None, None
        if distinct:
            index = torch.from_numpy(source[source >= 0]).to(embeds.device)
            data = torch.cat(distinct, dim=1).to(embeds.device, embeds.dtype).index_select(1, index)
            visual_mask = torch.from_numpy(source >= 0).to(embeds.device)[None]
            embeds = embeds.masked_scatter(visual_mask[..., None], data[0])
            deepstack = list(data[1:].unbind(0))
        positions = torch.from_numpy(layout.flat([r.positions for r in laid]))[:, None].to(embeds.device)
        following = [r.following for r in laid]
        return Packed(embeds, positions, [layout.tokens], following, visual_mask, deepstack, layout)

    def _lay(
        self, rows: Sequence[tuple[Sequence[int] | np.ndarray, Sequence[str]]], frames: Frames, label: str
    ) -> tuple[list[Features], list[_Laid]]:
        """Features of all frames in order, and the rows' ids with their positions."""
        features = self.features.get([s for _, fs in rows for s in fs], frames)
        laid, at = [], 0
        for i, (ids, fs) in enumerate(rows):
            array = np.asarray(ids, dtype=np.int64)
            grids = [f.grid for f in features[at : at + len(fs)]]
            at += len(fs)
            name = f"{label} {i} (frames {[s[:8] for s in fs]})"
            laid.append(_Laid(array, *mrope_positions(array, self.image_token_id, grids, self.merge, name)))
        return features, laid

    def text(self) -> LeanText | None:
        """The lean forward over the weights as they stand, or None when the library's must be used."""
        return LeanText.of(self.model.model.language_model)

    def hidden(self, packed: Packed, *, cache: Any = None, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Last hidden states [B, T, D] (after the final norm). `mask` None = causal over the packed columns, or what a
        packed layout lets its tokens see (which takes neither a cache nor a mask)."""
        text = self.text()
        calls: list[Block] | None = None
        if packed.layout is not None:
            tokens = packed.layout.tokens
            calls = blocks(packed.layout, packed.embeds, *(() if text else (tokens,)))
            if text is None:  # the library takes one mask over everything
                mask = calls[0].mask
        if text is not None:
            rope = text.rope(packed.embeds, packed.positions)
            return text(
                packed.embeds,
                rope,
                cache=cache,
                mask=mask,
                blocks=calls,
                visual_mask=packed.visual_mask,
                deepstack=packed.deepstack,
            )
        lm = self.model.model.language_model
        with recompute.in_library(lm, recompute.wanted(lm, cache)):
            out = lm(
                inputs_embeds=packed.embeds,
                position_ids=packed.positions,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=cache is not None,
                visual_pos_masks=packed.visual_mask,
                deepstack_visual_embeds=packed.deepstack,
            )
        return out.last_hidden_state  # type: ignore[no-any-return]

    def masked_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [N, V] of hidden [N, D] with `suppressed_ids` masked."""
        logits: torch.Tensor = self.model.lm_head(hidden).float()
        mask = self._masks.get(logits.device)
        if mask is None:
            with torch.inference_mode(False):  # made by the engine, used again under autograd
                mask = torch.zeros(logits.shape[-1], dtype=torch.bool)
                mask[list(self.suppressed_ids)] = True
                mask = self._masks[logits.device] = mask.to(logits.device)
        return logits.masked_fill(mask, MASKED)

    def logprobs(
        self,
        rows: Sequence[ChunkRow],
        frames: Frames,
        *,
        temperature: float | None = 1.0,
        grad: bool = False,
        entropy: bool = False,
        layout: Layout = "padded",
    ) -> LogProbs:
        """Log-probs of the sampled tokens of `rows`, in row then span order; one forward, logits at span tokens only.

        temperature: divides the masked logits (0 counts as 1, as in sampling); None = each row's own. grad: build the
        graph. layout: packed = all rows in one, equal beginnings computed once; the same to rounding. Raises
        RowMismatch for a row whose image tokens do not match its frames, ValueError for an empty or leading span.
        """
        with torch.set_grad_enabled(grad):
            inputs, at, targets, scale, row_index = [], [], [], [], []
            for i, row in enumerate(rows):
                if not row.spans or min(s for s, _ in row.spans) < 1 or max(e for _, e in row.spans) > len(row.ids):
                    raise ValueError(f"row {i}: spans {row.spans} do not lie in [1, {len(row.ids)}]; rebuild the row")
                inputs.append(_until_last_span(row, self.image_token_id, f"row {i}"))
                span_at = np.concatenate([np.arange(s, e) for s, e in row.spans])
                at.append(span_at - 1)
                targets.append(row.ids[span_at])
                scale.append(
                    np.full(len(span_at), (row.temperature if temperature is None else temperature) or 1.0, np.float32)
                )
                row_index.append(np.full(len(span_at), i))
            packed = (self.pack if layout == "padded" else self.pack_flat)(inputs, frames)
            index = torch.from_numpy(np.concatenate(row_index)).to(self.device)
            if packed.layout is not None:
                at = [places[tokens] for places, tokens in zip(packed.layout.places, at, strict=True)]
            where = torch.from_numpy(np.concatenate(at)).to(self.device)
            hidden = self.hidden(packed)
            hidden = hidden[index, where] if packed.layout is None else hidden[0].index_select(0, where)
            logits = self.masked_logits(hidden)
            logits = logits / torch.from_numpy(np.concatenate(scale)).to(logits.device)[:, None]
            lse = torch.logsumexp(logits, dim=-1)
            target = torch.from_numpy(np.concatenate(targets)).to(logits.device)
            logp = logits.gather(1, target[:, None]).squeeze(1) - lse
            greedy = logits.detach().argmax(-1) == target
            if not entropy:
                return LogProbs(logp, torch.zeros_like(logp), index, greedy)
            ent = lse - (torch.softmax(logits, dim=-1) * logits).sum(-1)  # H = lse - sum p * logit
            return LogProbs(logp, ent, index, greedy)


def _until_last_span(row: ChunkRow, image_token: int, label: str) -> tuple[np.ndarray, Sequence[str]]:
    """The tokens that predict the row's spans, with their frames: nothing after the last span is run."""
    runs = image_runs(row.ids, image_token)
    if len(runs) != len(row.frames):
        raise RowMismatch(
            f"{label}: {len(runs)} image token runs in the ids, {len(row.frames)} frames listed; rebuild the row"
        )
    end = max(e for _, e in row.spans) - 1
    return row.ids[:end], row.frames[: sum(e <= end for _, e in runs)]
