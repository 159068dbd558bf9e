"""How far long work has come, on stderr: a bar on a terminal, else a plain line now and then.

Guarantees: count and time left are on the line at any width of the terminal (the bar goes first, then the end of the
figures); the time left counts from the first step seen, so work of an earlier attempt does not make it too short.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """A running counter."""

    def update(self, advance: int = 1, **stats: float | str) -> None:
        """Move on by `advance`; `stats` are shown beside the bar (e.g. loss=0.31)."""
        ...


def _show(stats: dict[str, float | str]) -> str:
    return "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in stats.items())


TOLD_FROM_S = 30.0
"""A plain line tells the time left from here on: before, it would be a guess."""
WIDE = 110
"""Columns of a terminal from which there is room for a bar."""


def left(seconds: float) -> str:
    """A time to wait in words, e.g. `about 4 min left`."""
    if seconds < 60:
        return f"about {max(1, round(seconds))} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 60 else f"about {minutes // 60} h {minutes % 60:02d} min left"


class _PlainProgress:
    """One line every few seconds, for logs and pipes."""

    def __init__(self, label: str, total: int, start: int, every_s: float = 10.0) -> None:
        self.label, self.total, self.done, self.every = label, total, start, every_s
        self.last = 0.0
        self.first: tuple[float, int] | None = None

    def update(self, advance: int = 1, **stats: float | str) -> None:
        self.done += advance
        now = time.monotonic()
        began, before = self.first = self.first or (now, self.done)
        if now - self.last >= self.every or self.done >= self.total:
            self.last = now
            told = [f"{self.label} {self.done}/{self.total}", _show(stats)]
            if before < self.done < self.total and now - began >= TOLD_FROM_S:
                told.append(left((now - began) / (self.done - before) * (self.total - self.done)))
            print("  ".join(filter(None, told)), file=sys.stderr, flush=True)


class _RichProgress:
    """A rich bar, for terminals."""

    def __init__(self, label: str, total: int, start: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        console = Console(stderr=True)
        whole = Column(no_wrap=True)
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        wide = [BarColumn(bar_width=24), TimeElapsedColumn(table_column=whole)] if console.width >= WIDE else []
        self.bar = Bar(
            TextColumn("{task.description}", table_column=whole),
            MofNCompleteColumn(table_column=whole),
            *wide,
            TimeRemainingColumn(table_column=whole),
            TextColumn("{task.fields[stats]}", table_column=rest),
            console=console,
            expand=True,
        )
        self.task = self.bar.add_task(label, total=total, completed=start, stats="")

    def update(self, advance: int = 1, **stats: float | str) -> None:
        self.bar.update(self.task, advance=advance, stats=_show(stats))


@contextmanager
def progress(label: str, total: int, start: int = 0) -> Iterator[Progress]:
    """Show `total` units of work: a bar on a terminal, else a plain line on stderr every ten seconds."""
    if sys.stderr.isatty():
        shown = _RichProgress(label, total, start)
        with shown.bar:
            yield shown
    else:
        yield _PlainProgress(label, total, start)
