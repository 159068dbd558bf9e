"""The policy: a Qwen3-VL model with its processor, and the one forward that rollouts and training share.

Guarantees: sampling and training see the same log-probs, because both use `pack`, `hidden` and `masked_logits` here:
same positions, same vision features (`inputs`), same mask over special tokens, logits only at the positions asked for.
Knows nothing of prompts' wording, of environments or of losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from guiderail.models import recompute
from guiderail.models.attention import Grid
from guiderail.models.features import FeatureCache, Frames
from guiderail.models.inputs import Packed, Row, flat, lay, padded
from guiderail.models.lean import LeanText
from guiderail.models.logprobs import LogProbs, ask, read
from guiderail.models.packing import Block, blocks
from guiderail.models.pixels import Pixels
from guiderail.models.rows import ChunkRow
from guiderail.models.sizing import ImageSizing
from guiderail.params_train import Layout

STOP_TOKENS = ("<|im_end|>", "<|endoftext|>")
MASKED = -1e30  # finite, so that p * log p of a masked token is 0 and has a gradient of 0


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

    def pack(self, rows: Sequence[Row], frames: Frames, label: str = "row") -> Packed:
        """Embed rows of (ids, frame digests), padded on the right.

        Raises RowMismatch naming `label` and index when image tokens and features differ.
        """
        laid = lay(rows, self.features, frames, self.image_token_id, self.merge, label)
        return padded(laid, self.model.get_input_embeddings(), self.image_token_id, self.stop_ids[-1])

    def pack_flat(self, rows: Sequence[Row], frames: Frames, label: str = "row") -> Packed:
        """As `pack`, all rows in one: no padding, and what rows begin with alike stands there once (`packing.plan`)."""
        laid = lay(rows, self.features, frames, self.image_token_id, self.merge, label)
        vocab = int(self.model.config.text_config.vocab_size)
        return flat(laid, self.model.get_input_embeddings(), self.image_token_id, vocab)

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
            asked = ask(rows, self.image_token_id, temperature)
            packed = (self.pack if layout == "padded" else self.pack_flat)(asked.inputs, frames)
            index = torch.from_numpy(asked.row_index).to(self.device)
            where = torch.from_numpy(asked.places(packed.layout)).to(self.device)
            hidden = self.hidden(packed)
            hidden = hidden[index, where] if packed.layout is None else hidden[0].index_select(0, where)
            logits = self.masked_logits(hidden)
            logits = logits / torch.from_numpy(asked.scale).to(logits.device)[:, None]
            return read(logits, torch.from_numpy(asked.targets).to(logits.device), index, entropy)
