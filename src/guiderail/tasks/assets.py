"""Files that tasks download, kept once, by content.

Guarantees: a file enters the cache whole or not at all (written beside, fsynced, renamed); it lies under its sha256
and is checked against it on every use, so a damaged or edited copy is fetched again, never handed out; an address whose
content was pinned (`pins`) is refused when the content is another; two processes may fill one cache. Without network
the error names address and cache and says how to bring the file in.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from guiderail.errors import InputError

MAX_ASSET = 512 << 20
TIMEOUT_S = 60.0
CHUNK = 1 << 20


class AssetError(InputError):
    """A file that a task needs cannot be had."""


class AssetCache:
    """The cache in `folder`: blobs/<sha256>, and urls/<sha256 of the address>.json that says which blob an address is.

    `pins`: address -> sha256 it must have. `offline`: never use the network. `allow`: hosts that may be asked
    (empty = any).
    """

    def __init__(
        self,
        folder: Path,
        pins: Mapping[str, str] | None = None,
        *,
        offline: bool = False,
        allow: frozenset[str] = frozenset(),
    ) -> None:
        self.folder, self.pins, self.offline, self.allow = folder, dict(pins or {}), offline, allow

    async def get(self, url: str) -> Path:
        """Path of the file behind `url` (read-only, shared). Raises AssetError."""
        return await asyncio.to_thread(self.fetch, url)

    def fetch(self, url: str) -> Path:
        """`get` for callers without an event loop."""
        known = self._known(url)
        if known is not None:
            return known
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AssetError(f"{url}: must be an http or https address.")
        if self.offline or (self.allow and parts.hostname not in self.allow):
            why = "downloads are off" if self.offline else f"{parts.hostname} is not among the hosts allowed"
            raise AssetError(
                f"{url}: not in the cache {self.folder}, and {why}. Fill the cache on a machine with network."
            )
        return self._download(url)

    def add(self, url: str, data: bytes) -> Path:
        """Put content under an address (for machines without network). Raises AssetError when it is not the pinned."""
        digest = hashlib.sha256(data).hexdigest()
        part = self._part()
        part.write_bytes(data)
        return self._keep(url, part, digest, len(data))

    def _known(self, url: str) -> Path | None:
        """The blob of an address that was fetched before and is still whole."""
        try:
            entry = json.loads(self._entry(url).read_text())
            digest = str(entry["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        blob = self.folder / "blobs" / digest
        if self.pins.get(url, digest) != digest or not blob.is_file() or _sha256(blob) != digest:
            return None
        return blob

    def _download(self, url: str) -> Path:
        part, digest, size = self._part(), hashlib.sha256(), 0
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply, part.open("wb") as f:
                wanted = reply.headers.get("Content-Length")
                while chunk := reply.read(CHUNK):
                    size += len(chunk)
                    if size > MAX_ASSET:
                        raise AssetError(f"{url}: larger than {MAX_ASSET >> 20} MiB.")
                    digest.update(chunk)
                    f.write(chunk)
                f.flush()
                os.fsync(f.fileno())
            if wanted is not None and wanted.isdigit() and int(wanted) != size:
                raise AssetError(f"{url}: cut short: {size} of {wanted} bytes came. Try again.")
            return self._keep(url, part, digest.hexdigest(), size)
        except urllib.error.HTTPError as e:
            raise AssetError(f"{url}: HTTP {e.code} {e.reason}. Without it the task cannot be set up.") from None
        except OSError as e:
            reason = getattr(e, "reason", e)
            raise AssetError(
                f"{url}: cannot be fetched ({reason}) and is not in the cache {self.folder}. Is there network?"
            ) from None
        finally:
            part.unlink(missing_ok=True)

    def _keep(self, url: str, part: Path, digest: str, size: int) -> Path:
        wanted = self.pins.get(url, digest)
        if wanted != digest:
            part.unlink(missing_ok=True)
            raise AssetError(f"{url}: content has sha256 {digest}, the task was made for {wanted}: it was changed.")
        blob = self.folder / "blobs" / digest
        blob.parent.mkdir(parents=True, exist_ok=True)
        part.chmod(0o444)
        part.replace(blob)
        entry = self._entry(url)
        entry.parent.mkdir(parents=True, exist_ok=True)
        beside = self._part()
        beside.write_text(json.dumps({"url": url, "sha256": digest, "size": size}))
        beside.replace(entry)
        return blob

    def _part(self) -> Path:
        folder = self.folder / "parts"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / secrets.token_hex(8)

    def _entry(self, url: str) -> Path:
        return self.folder / "urls" / f"{hashlib.sha256(url.encode()).hexdigest()}.json"


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
