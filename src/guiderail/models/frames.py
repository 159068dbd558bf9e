"""Frames by content: PNG bytes stored once under their sha256, pixels decoded late.

Guarantees: a file that exists is whole however its writer ended (written beside, renamed), and after a crash of the
machine too when the store is durable (fsynced before the rename); `get_png(put(b)) == b`, the same bytes are stored
once, and bytes that do not match their name are refused. Safe for several processes writing one folder and for
several threads sharing one store. Does not delete anything and does not re-encode.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

_PNG = b"\x89PNG\r\n\x1a\n"
_SHA = re.compile(r"[0-9a-f]{64}")


class FrameStore:
    """Content-addressed PNG frames in a folder (`<sha256>.png`), or in memory when `dir` is None.

    dir: created when missing. cache: decoded images kept (least recently used go first). durable: fsync every frame;
    leave it out where frames can be made again, an fsync may take longer than a step of the environment.
    """

    def __init__(self, dir: str | Path | None = None, cache: int = 64, *, durable: bool = True) -> None:
        self.dir = Path(dir) if dir is not None else None
        self._memory: dict[str, bytes] = {}
        self._known: set[str] = set()
        self._images: OrderedDict[str, np.ndarray] = OrderedDict()
        self._cache = cache
        self._durable = durable
        self._lock = threading.Lock()
        if self.dir is not None:
            self.dir.mkdir(parents=True, exist_ok=True)

    def put(self, png: bytes) -> str:
        """Store PNG bytes; returns their sha256 hex digest. Raises ValueError when they are no PNG."""
        if not png.startswith(_PNG):
            raise ValueError(f"frame of {len(png)} bytes is not a PNG (starts with {bytes(png[:8])!r})")
        sha = hashlib.sha256(png).hexdigest()
        if self.dir is None:
            self._memory.setdefault(sha, bytes(png))
        elif sha not in self._known:
            path = self.path(sha)
            if not path.exists():
                _write_atomically(path, png, self._durable)
            self._known.add(sha)
        return sha

    def path(self, sha: str) -> Path:
        """Where the frame lies (or would lie). Raises ValueError for an in-memory store or a malformed digest."""
        if self.dir is None:
            raise ValueError("this FrameStore keeps frames in memory: it has no paths; give it a folder")
        if not _SHA.fullmatch(sha):
            raise ValueError(f"{sha!r} is not a sha256 hex digest")
        return self.dir / f"{sha}.png"

    def get_png(self, sha: str) -> bytes:
        """PNG bytes of a frame. Raises KeyError when it is not stored, ValueError when the file is damaged."""
        if self.dir is None:
            if sha not in self._memory:
                raise KeyError(f"frame {sha} is not in this in-memory store ({len(self._memory)} frames)")
            return self._memory[sha]
        path = self.path(sha)
        try:
            png = path.read_bytes()
        except FileNotFoundError:
            raise KeyError(f"frame {sha} is not in {self.dir}") from None
        if hashlib.sha256(png).hexdigest() != sha:
            raise ValueError(f"{path}: content does not match its name; delete the file and make the frame again")
        return png

    def get_array(self, sha: str) -> np.ndarray:
        """Pixels as uint8 RGB [height, width, 3], read-only (shared with the cache)."""
        with self._lock:
            if sha in self._images:
                self._images.move_to_end(sha)
                return self._images[sha]
        array = decoded(self.get_png(sha))
        array.setflags(write=False)
        with self._lock:
            self._images[sha] = array
            while len(self._images) > self._cache:
                self._images.popitem(last=False)
        return array

    def get_image(self, sha: str) -> Image.Image:
        """The frame as an RGB PIL image (a copy: the caller may draw on it)."""
        return Image.fromarray(self.get_array(sha))

    def get(self, sha: str) -> Image.Image:
        """Same as `get_image`."""
        return self.get_image(sha)

    def __contains__(self, sha: object) -> bool:
        if not isinstance(sha, str) or not _SHA.fullmatch(sha):
            return False
        return sha in self._memory if self.dir is None else self.path(sha).exists()

    def __iter__(self) -> Iterator[str]:
        if self.dir is None:
            return iter(sorted(self._memory))
        return iter(sorted(p.stem for p in self.dir.glob("*.png") if _SHA.fullmatch(p.stem)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def decoded(png: bytes) -> np.ndarray:
    """uint8 RGB pixels [height, width, 3] of a PNG."""
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))


def _write_atomically(path: Path, data: bytes, durable: bool) -> None:
    """Write beside, fsync when `durable`, rename; a writer that dies leaves no half file under the final name."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".frame-", suffix=".tmp")
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data)
            if durable:
                f.flush()
                os.fsync(f.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
