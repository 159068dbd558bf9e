"""Token ids as text, for the heat line.

Guarantees: read with the tokenizer that lies with the run's own checkpoints or those before them, or not at all (the
page then shows ids); a token is shown alone, so bytes that make a character only together appear as U+FFFD.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any


class Tokens:
    """Tokenizers of a results folder, loaded when first needed."""

    def __init__(self, results: Path) -> None:
        self.results = results

    def add_texts(self, episode: dict[str, Any]) -> None:
        """Put `texts` beside the ids of every step that has tokens; None when there is no tokenizer."""
        stepped = [s["tokens"] for s in episode["steps"] if s["tokens"]]
        tokenizer = _load(self._file(episode)) if stepped else None
        for tokens in stepped:
            tokens["texts"] = (
                [tokenizer.decode([i], skip_special_tokens=False) for i in tokens["ids"]] if tokenizer else None
            )

    def _file(self, episode: dict[str, Any]) -> Path | None:
        run = episode["run"].removeprefix("live/")
        seed = episode["seed"]
        places = [self.results / run, self.results / "sft" / f"seed{seed}"]
        return next((f for p in places if (f := p / "checkpoint" / "tokenizer.json").is_file()), None)


@lru_cache(maxsize=4)
def _load(file: Path | None) -> Any:
    if file is None:
        return None
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(file))
