"""What tasks and judges may ask of a machine under test: OSWorld's in-VM protocol as an interface.

Guarantees nothing itself; an implementation (`envs.vm_guest`) bounds every call in time and size and raises
`GuestError` when the machine does not answer as the protocol says. Whatever a guest returns is data from a place where
an agent did as it liked: never run, never trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

Command = str | list[str]


class GuestError(RuntimeError):
    """The guest answered with an error, too much, or nothing that the protocol knows."""


class GuestFileMissing(GuestError):
    """There is no such file in the guest."""


@dataclass(frozen=True)
class Executed:
    """What came of a command in the guest."""

    returncode: int
    output: str
    error: str = ""


class Guest(Protocol):
    """One machine under test. All methods may raise GuestError."""

    async def execute(self, command: Command, shell: bool = False) -> Executed:
        """Run a command of the task (never of the model) to its end."""
        ...

    async def launch(self, command: Command, shell: bool = False) -> None:
        """Start a program and leave it running."""
        ...

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file; folders are made."""
        ...

    async def read(self, path: str) -> bytes:
        """A file's bytes. Raises GuestFileMissing."""
        ...

    async def open(self, path: str) -> None:
        """Open a file with its application."""
        ...

    async def window(self, verb: str, name: str, strict: bool = False, by_class: bool = False) -> None:
        """verb "activate" or "close": the window of that title (part of it unless strict) or class."""
        ...

    async def wallpaper(self, path: str | None = None) -> bytes:
        """Set the wallpaper to a file in the guest (given), or get the present one's bytes."""
        ...

    async def tree(self, path: str) -> dict[str, Any] | None:
        """A folder as {"type", "name", "children"}; None when it is not there."""
        ...

    async def accessibility(self) -> str:
        """The accessibility tree as XML."""
        ...

    async def terminal(self) -> str:
        """Text of the focused terminal, "" when there is none."""
        ...

    async def screen_size(self) -> dict[str, int]:
        """{"width", "height"}."""
        ...

    async def window_size(self, app_class: str) -> dict[str, int] | None:
        """Size of the window of a class; None when there is none."""
        ...
