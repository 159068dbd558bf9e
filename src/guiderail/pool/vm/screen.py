"""The picture: pixels from Xvfb's framebuffer file, or by an X request where there is none; PNG and JPEG of it.

Guarantees: `FrameFile` costs no round trip to the X server and shows the pointer; `RequestFrame` works on any X server
and shows no pointer. A frame is bytes of 4 per pixel, blue first, rows without gaps. `png` is a pure function of the
pixels (one fixed filter, one fixed compression level), so equal screens give equal bytes and equal hashes.
"""

from __future__ import annotations

import io
import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from guiderail.pool.vm.x11 import X11

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

XWD_FIELDS = 25
PNG_LEVEL = 1


class Frames(Protocol):
    """A source of frames of `width` x `height` pixels."""

    width: int
    height: int

    def grab(self) -> bytes:
        """The screen now."""
        ...

    def same(self, frame: bytes) -> bool:
        """Whether the screen now is `frame`."""
        ...


class FrameFile:
    """Xvfb's `-fbdir` file (X window dump format, 32 bits per pixel), mapped read-only."""

    def __init__(self, file: Path) -> None:
        """Raises OSError, ValueError for a file of another kind."""
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        fields = struct.unpack_from(f">{XWD_FIELDS}I", self._map)
        self.width, self.height, bits, stride = fields[4], fields[5], fields[11], fields[12]
        if bits != 32 or stride != 4 * self.width or fields[7] != 0:
            raise ValueError(
                f"{file}: {bits} bits per pixel, rows of {stride} bytes: only 32-bit little-endian is read"
            )
        self._start = fields[0] + 12 * fields[19]
        self._end = self._start + stride * self.height

    def grab(self) -> bytes:
        """A copy of the pixels."""
        return self._map[self._start : self._end]

    def same(self, frame: bytes) -> bool:
        """See `Frames`; without a copy."""
        import numpy as np

        there = np.frombuffer(self._map, np.uint32, (self._end - self._start) // 4, self._start)
        return np.array_equal(there, np.frombuffer(frame, np.uint32))


class RequestFrame:
    """GetImage of the root window."""

    def __init__(self, x: X11) -> None:
        self.x, self.width, self.height = x, x.width, x.height

    def grab(self) -> bytes:
        """The pixels as the X server sends them."""
        return self.x.image()[: 4 * self.width * self.height]

    def same(self, frame: bytes) -> bool:
        """See `Frames`."""
        return self.grab() == frame


def rgb(frame: bytes, width: int, height: int) -> NDArray[np.uint8]:
    """(height, width, 3), red first."""
    import numpy as np

    return np.frombuffer(frame, np.uint8).reshape(height, width, 4)[:, :, 2::-1]


def png(frame: bytes, width: int, height: int) -> bytes:
    """PNG, 8-bit RGB, unfiltered rows: desktops are flat, and a filter costs more than it saves."""
    import numpy as np  # here, so that a slot's X server is on its way before this takes its time

    pixels = np.frombuffer(frame, np.uint8).reshape(height, width, 4)
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    for channel in range(3):  # one at a time: five times as fast as all three in one copy
        rows[:, 1 + channel :: 3] = pixels[:, :, 2 - channel]
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(rows.data, PNG_LEVEL)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def jpeg(frame: bytes, width: int, height: int, quality: int = 90) -> bytes:
    """JPEG by Pillow. Raises ImportError where there is none."""
    import numpy as np
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(rgb(frame, width, height))).save(out, "JPEG", quality=quality)
    return out.getvalue()
