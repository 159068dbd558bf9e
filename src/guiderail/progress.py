"""How far long work has come, on stderr: a bar on a terminal, else a plain line now and then."""

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


class _PlainProgress:
    """One line every few seconds, for logs and pipes."""

    def __init__(self, label: str, total: int, start: int, every_s: float = 10.0) -> None:
        self.label, self.total, self.done, self.every = label, total, start, every_s
        self.last = 0.0

    def update(self, advance: int = 1, **stats: float | str) -> None:
        self.done += advance
        now = time.monotonic()
        if now - self.last >= self.every or self.done >= self.total:
            self.last = now
            print(f"{self.label} {self.done}/{self.total}  {_show(stats)}".rstrip(), file=sys.stderr, flush=True)


class _RichProgress:
    """A rich bar, for terminals."""

    def __init__(self, label: str, total: int, start: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[stats]}"),
            console=Console(stderr=True),
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
