"""Metrics over archives, e-books and tags of music files. Archives are read in memory, part by part, never unpacked."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from guiderail.tasks.judges import images, pdf, tables, text
from guiderail.tasks.judges.methods import holds
from guiderail.tasks.judges.safe import (
    MAX_BYTES,
    MAX_PARTS,
    MAX_UNPACKED,
    Unreadable,
    member,
    open_zip,
    parse_xml,
    read_bytes,
)

Rules = Mapping[str, Any]
_BY_TYPE: dict[str, Callable[[str, str], float]] = {
    "text": text.compare_text_file,
    "pdf": pdf.compare_pdfs,
    "image": images.compare_images,
    "table": tables.compare_table,
}


def _parts(path: str) -> dict[str, bytes]:
    """Files of a zip or tar, name -> bytes. Raises Unreadable."""
    if not tarfile.is_tarfile(path):
        with open_zip(path) as archive:
            return {i.filename: member(archive, i.filename, path) for i in archive.infolist() if not i.is_dir()}
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(path) as tar:
            for info in tar:
                total += info.size
                if len(found) > MAX_PARTS or total > MAX_UNPACKED or info.size > MAX_BYTES:
                    raise Unreadable(path, "too much in it")
                if info.isfile() and (f := tar.extractfile(info)) is not None:
                    found[info.name.removeprefix("./")] = f.read(MAX_BYTES)
    except (tarfile.TarError, EOFError, OSError) as e:
        raise Unreadable(path, f"no archive: {e}") from None
    return found


def compare_archive(
    result: str | None, expected: str | None, file_path: str = "", file_type: str = "text", **options: Any
) -> float:
    """Mean similarity of the files of two archives (under `file_path`), 0 when their names differ.

    file_type: text, pdf, image: how files are compared (as the metric of that kind does).
    """
    if result is None or expected is None:
        return 0.0
    if file_type not in _BY_TYPE:
        raise ValueError(f"compare_archive: file_type {file_type!r}: not supported")
    one, two = ({k: v for k, v in _parts(p).items() if k.startswith(file_path)} for p in (result, expected))
    if one.keys() != two.keys() or not two:
        return 0.0
    scores = []
    with tempfile.TemporaryDirectory(dir=Path(result).parent) as folder:
        for i, name in enumerate(sorted(two)):
            pair = []
            for side, parts in (("one", one), ("two", two)):
                place = Path(folder) / f"{side}{i}{Path(name).suffix}"
                place.write_bytes(parts[name])
                pair.append(str(place))
            scores.append(_BY_TYPE[file_type](*pair, **options))
    return sum(scores) / len(scores)


def compare_zip_files(result: str | None, expected: str | None) -> float:
    """1 when two ZIP files hold the same files with the same bytes."""
    if result is None or expected is None:
        return 0.0
    one, two = ({k: hashlib.sha256(v).digest() for k, v in _parts(p).items()} for p in (result, expected))
    return float(one == two)


def compare_epub(result: str | None, expected: str | None) -> float:
    """Share of the expected book's chapters (XHTML text, in spine order by name) that the result has likewise."""
    if result is None or expected is None:
        return 0.0
    one, two = _chapters(result), _chapters(expected)
    if not two:
        return float(not one)
    import difflib

    return difflib.SequenceMatcher(a=one, b=two, autojunk=False).ratio()


def _chapters(path: str) -> list[str]:
    """Text of the XHTML files of a book, white space normalised."""
    found = []
    for name, data in sorted(_parts(path).items()):
        if name.lower().endswith((".xhtml", ".html", ".htm")) and "nav" not in name.lower():
            body = data.split(b"?>", 1)[-1] if data.lstrip().startswith(b"<?xml") else data
            body = body[body.find(b"<html") :] if b"<html" in body else body  # an XHTML document type is usual here
            words = " ".join("".join(parse_xml(body, path).itertext()).split())
            if words:
                found.append(words)
    return found


# -- ID3v2 (id3.org, 2.3 and 2.4) -------------------------------------------------------------------------------------
_FRAMES = {
    "TIT2": "title",
    "TPE1": "artist",
    "TALB": "album",
    "TRCK": "tracknumber",
    "TCON": "genre",
    "TYER": "date",
    "TDRC": "date",
}
_CODECS = {0: "latin-1", 1: "utf-16", 2: "utf-16-be", 3: "utf-8"}


def tags(path: str) -> dict[str, str]:
    """Text tags of an mp3 file, {} when it has none. Raises Unreadable."""
    data = read_bytes(path)
    if data[:3] != b"ID3" or len(data) < 10:
        return {}
    version, size = data[3], _syncsafe(data[6:10])
    f, found = io.BytesIO(data[10 : 10 + size]), dict[str, str]()
    while len(head := f.read(10)) == 10 and head[:4].strip(b"\0"):
        length = _syncsafe(head[4:8]) if version == 4 else int.from_bytes(head[4:8], "big")
        body = f.read(length)
        name = _FRAMES.get(head[:4].decode("latin-1"))
        if name and body:
            found[name] = body[1:].decode(_CODECS.get(body[0], "latin-1"), "replace").strip("\0")
    return found


def _syncsafe(raw: bytes) -> int:
    return raw[0] << 21 | raw[1] << 14 | raw[2] << 7 | raw[3]


def check_mp3_meta(result: str | None, rules: Rules) -> float:
    """1 when every tag (title, artist, ...) fits its rule."""
    if result is None:
        return 0.0
    found = tags(result)
    return float(all(holds(found.get(name, ""), rule) for name, rule in rules.items()))
