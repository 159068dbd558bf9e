"""Opening files that a guest made, with bounds.

Guarantees: before a library sees an office file, archive or XML its unpacked size and number of parts are bounded, and
XML with a document type (entities: bombs, files of the judge's machine) is refused; a file that cannot be read is
`Unreadable`, which counts as a wrong answer when the guest made it and as the judge's fault when it is the expected
one.
"""

from __future__ import annotations

import codecs
import functools
import io
import json
import re
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

MAX_BYTES = 128 << 20
MAX_UNPACKED = 512 << 20
MAX_PARTS = 20_000
MAX_TEXT = 32 << 20
MAX_PIXELS = 100_000_000
MAX_SPAN = 2 << 20
"""Cells of merged and linked areas of a sheet together: the library makes an object of each."""
_SPAN = re.compile(
    rb'<(?:\w+:)?(?:mergeCell|hyperlink)\b[^>]*?\bref=["\']([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})["\']'
)


class Unreadable(ValueError):
    """A file is not what its kind of file must be. `path` says which."""

    def __init__(self, path: str | Path, why: str) -> None:
        super().__init__(f"{Path(path).name}: {why}")
        self.path = Path(path)


def read_bytes(path: str | Path, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a file, at most `limit`. Raises Unreadable."""
    try:
        with open(path, "rb") as f:
            data = f.read(limit + 1)
    except OSError as e:
        raise Unreadable(path, e.strerror or str(e)) from None
    if len(data) > limit:
        raise Unreadable(path, f"larger than {limit >> 20} MiB")
    return data


def read_text(path: str | Path) -> str:
    """Text of a UTF-8 file; a byte order mark is dropped, bytes that are no UTF-8 are replaced. Raises Unreadable."""
    return read_bytes(path, MAX_TEXT).removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace").replace("\r\n", "\n")


def read_json(path: str | Path) -> Any:
    """A JSON file, // comments and trailing commas of editors' settings allowed. Raises Unreadable."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            return json.loads(_plain_json(text))
        except (ValueError, RecursionError) as e:
            raise Unreadable(path, f"not JSON: {e}") from None


def _plain_json(text: str) -> str:
    """`text` without comments and trailing commas, strings left alone."""
    out: list[str] = []
    i = 0
    while i < len(text):
        c = text[i]
        if c == '"':
            j = i + 1
            while j < len(text) and text[j] != '"':
                j += 2 if text[j] == "\\" else 1
            out.append(text[i : j + 1])
            i = j + 1
        elif text.startswith("//", i):
            i = text.find("\n", i) if "\n" in text[i:] else len(text)
        elif text.startswith("/*", i):
            end = text.find("*/", i + 2)
            i = len(text) if end < 0 else end + 2
        elif c == "," and text[i + 1 :].lstrip()[:1] in ("}", "]"):
            i += 1
        else:
            out.append(c)
            i += 1
    return "".join(out)


def _has_doctype(data: bytes) -> bool:
    """Whether XML declares a document type or entities, in UTF-8 or either UTF-16, with or without a mark of order."""
    seen = data.replace(b"\0", b"") if b"\0" in data[:4] else data
    return b"<!DOCTYPE" in seen or b"<!ENTITY" in seen


def parse_xml(data: bytes, path: str | Path) -> Any:
    """Root element of XML without document type. Raises Unreadable."""
    from lxml import etree

    if _has_doctype(data):
        raise Unreadable(path, "XML with a document type")
    try:
        return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False))
    except (etree.XMLSyntaxError, ValueError) as e:
        raise Unreadable(path, f"not XML: {e}") from None


def open_zip(path: str | Path) -> zipfile.ZipFile:
    """A ZIP file whose directory promises bounded content. Raises Unreadable."""
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile, ValueError) as e:
        raise Unreadable(path, f"no ZIP file: {e}") from None
    infos = archive.infolist()
    total = sum(i.file_size for i in infos)
    if len(infos) > MAX_PARTS or total > MAX_UNPACKED:
        archive.close()
        raise Unreadable(path, f"{len(infos)} parts of {total >> 20} MiB together: too much")
    return archive


def member(archive: zipfile.ZipFile, name: str, path: str | Path, limit: int = MAX_BYTES) -> bytes:
    """One part's bytes; a part larger than its directory entry or `limit` is refused. Raises Unreadable, KeyError."""
    try:
        with archive.open(name) as f:
            data = _bounded(f, min(limit, archive.getinfo(name).file_size))
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, OSError) as e:
        raise Unreadable(path, f"part {name}: {e}") from None
    if data is None:
        raise Unreadable(path, f"part {name} is larger than it says")
    return data


def _bounded(f: IO[bytes], limit: int) -> bytes | None:
    data = f.read(limit + 1)
    return None if len(data) > limit else data


def check_office(path: str | Path) -> Path:
    """Check a docx, xlsx, pptx or odt before a library opens it. Raises Unreadable.

    Every XML part, by its name or by its beginning (a workbook can call its sheets as it likes), is unpacked once,
    within bounds, and looked at for a document type and for areas that span more cells than a library can hold.
    """
    with open_zip(path) as archive:
        for info in archive.infolist():
            name = info.filename
            if name.endswith((".xml", ".rels", ".vml")) or ("/media/" not in name and _begins_as_xml(archive, name)):
                data = member(archive, name, path)
                if _has_doctype(data):
                    raise Unreadable(path, f"part {name} has a document type")
                if _span(data) > MAX_SPAN:
                    raise Unreadable(path, f"part {name} merges or links more than {MAX_SPAN} cells")
    return Path(path)


def _begins_as_xml(archive: zipfile.ZipFile, name: str) -> bool:
    """Whether the first sign of a part is that of XML; what cannot be unpacked is for who wants to read it."""
    try:
        with archive.open(name) as f:
            head = f.read(200)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError, zlib.error):
        return False
    return head.replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n").startswith(b"<")


def _span(data: bytes) -> int:
    """Cells of the merged and linked areas of a sheet."""

    def column(letters: bytes) -> int:
        return functools.reduce(lambda n, c: 26 * n + c - ord("A") + 1, letters, 0)

    return sum((abs(column(c) - column(a)) + 1) * (abs(int(d) - int(b)) + 1) for a, b, c, d in _SPAN.findall(data))


def load_office(kind: str, path: str | Path, **options: Any) -> Any:
    """The document behind a path: kind "docx", "pptx" or "xlsx". Raises Unreadable."""
    check_office(path)
    try:
        if kind == "docx":
            import docx

            found = docx.Document(str(path))
            _ = found.paragraphs  # a document without a body is found out here
            return found
        if kind == "pptx":
            import pptx

            return pptx.Presentation(str(path))
        import openpyxl

        return openpyxl.load_workbook(path, **options)
    except (MemoryError, RecursionError):
        raise
    except Exception as e:  # these libraries raise whatever a damaged file leads them to
        raise Unreadable(path, f"no {kind}: {type(e).__name__}: {e}") from None


def load_image(path: str | Path, data: bytes | None = None) -> Any:
    """A decoded PIL image of bounded size: of a file, or `data` out of the file `path`. Raises Unreadable."""
    from PIL import Image

    try:
        image = Image.open(path if data is None else io.BytesIO(data))
        if image.width * image.height > MAX_PIXELS:
            raise Unreadable(path, f"image of {image.width}x{image.height} pixels")
        image.load()
        return image
    except Unreadable:
        raise
    except (MemoryError, RecursionError):
        raise
    except Exception as e:  # as above
        raise Unreadable(path, f"no image: {type(e).__name__}: {e}") from None
