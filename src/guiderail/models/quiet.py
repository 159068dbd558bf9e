"""Reading and writing weights without the progress bars of transformers.

Guarantees: bars are as they were before when the block is left. Silences bars alone, no warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """`with no_progress_bars(): model.save_pretrained(...)`."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
