"""Frames of an episode as a video, with nothing but the standard library.

Guarantees: an MP4 file (ISO 14496-12) whose samples are the PNG frames as they are, each shown from its time to the
next; it is written beside its place and renamed, so it is there whole or not at all. Players built on ffmpeg (mpv, VLC)
show it; browsers do not know PNG in MP4.
"""

from __future__ import annotations

import itertools
import os
import struct
from pathlib import Path

SCALE = 1000  # ticks a second
LAST_S = 1.0  # how long the last frame stays


def box(kind: bytes, *parts: bytes) -> bytes:
    """One box of the container."""
    data = b"".join(parts)
    return struct.pack(">I4s", 8 + len(data), kind) + data


def full(kind: bytes, *parts: bytes, flags: int = 0) -> bytes:
    """One box with version 0 and flags."""
    return box(kind, struct.pack(">I", flags), *parts)


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height. Raises ValueError for what is no PNG."""
    if png[:8] != b"\x89PNG\r\n\x1a\n" or png[12:16] != b"IHDR":
        raise ValueError("a frame is not a PNG")
    width, height = struct.unpack(">II", png[16:24])
    return int(width), int(height)


def movie(frames: list[tuple[float, bytes]]) -> bytes:
    """(seconds, PNG) in order of time, as the bytes of a file. Raises ValueError without frames."""
    if not frames:
        raise ValueError("nothing was recorded: there is no frame")
    width, height = size_of(frames[0][1])
    times = [round((t - frames[0][0]) * SCALE) for t, _ in frames]
    times.append(times[-1] + round(LAST_S * SCALE))
    spans = [max(1, b - a) for a, b in itertools.pairwise(times)]
    total = sum(spans)
    head = box(b"ftyp", b"isom", struct.pack(">I", 512), b"isomiso2mp41")
    data = box(b"mdat", *(png for _, png in frames))
    matrix = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    entry = box(
        b"png ",
        struct.pack(">6xH16xHHIIIH32sHh", 1, width, height, 0x480000, 0x480000, 0, 1, b"", 24, -1),
    )
    table = box(
        b"stbl",
        full(b"stsd", struct.pack(">I", 1), entry),
        full(b"stts", struct.pack(">I", len(spans)), *(struct.pack(">II", 1, s) for s in spans)),
        full(b"stsc", struct.pack(">IIII", 1, 1, len(frames), 1)),
        full(b"stsz", struct.pack(">II", 0, len(frames)), *(struct.pack(">I", len(p)) for _, p in frames)),
        full(b"stco", struct.pack(">II", 1, len(head) + 8)),
    )
    media = box(
        b"mdia",
        full(b"mdhd", struct.pack(">IIIIHH", 0, 0, SCALE, total, 0x55C4, 0)),
        full(b"hdlr", struct.pack(">I4s12x", 0, b"vide"), b"frames\0"),
        box(
            b"minf",
            full(b"vmhd", bytes(8), flags=1),
            box(b"dinf", full(b"dref", struct.pack(">I", 1), full(b"url ", flags=1))),
            table,
        ),
    )
    track = box(
        b"trak",
        full(
            b"tkhd",
            struct.pack(">IIIII8xhhhxx", 0, 0, 1, 0, total, 0, 0, 0),
            matrix,
            struct.pack(">II", width << 16, height << 16),
            flags=3,
        ),
        media,
    )
    header = full(
        b"mvhd", struct.pack(">IIIIIH10x", 0, 0, SCALE, total, 0x10000, 0x100), matrix, bytes(24), struct.pack(">I", 2)
    )
    return head + data + box(b"moov", header, track)


def place(out_path: str, root: Path) -> Path:
    """Where a recording may be written: an .mp4 under `root`. Raises ValueError."""
    path = (root / out_path).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ValueError(f"{out_path[:200]!r} is not under {root}, the folder for recordings (--recordings)")
    if path.suffix != ".mp4" or path.is_dir():
        raise ValueError(f"{out_path[:200]!r} is not the name of an .mp4 file")
    return path


def write(path: Path, frames: list[tuple[float, bytes]]) -> None:
    """Write the movie. Raises ValueError, OSError."""
    data = movie(frames)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    os.replace(part, path)
