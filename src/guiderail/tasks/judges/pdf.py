"""Metrics over PDF files. Text is what pypdf extracts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rapidfuzz import fuzz

from guiderail.tasks.judges.methods import holds
from guiderail.tasks.judges.safe import MAX_TEXT, Unreadable, read_bytes


def _reader(path: str) -> Any:
    """A pypdf reader. Raises Unreadable."""
    import io

    import pypdf

    try:
        return pypdf.PdfReader(io.BytesIO(read_bytes(path)))
    except (MemoryError, RecursionError):
        raise
    except Unreadable:
        raise
    except Exception as e:  # pypdf raises whatever a damaged file leads it to
        raise Unreadable(path, f"no PDF: {type(e).__name__}: {e}") from None


def pdf_text(path: str) -> str:
    """All text. Raises Unreadable."""
    parts: list[str] = []
    size = 0
    reader = _reader(path)
    try:
        for page in reader.pages:
            parts.append(page.extract_text())
            size += len(parts[-1])
            if size > MAX_TEXT:
                raise Unreadable(path, "more text than a document has")
    except (Unreadable, MemoryError, RecursionError):
        raise
    except Exception as e:  # as above
        raise Unreadable(path, f"no PDF: {type(e).__name__}: {e}") from None
    return "\n".join(parts)


def compare_pdfs(result: Any, expected: Any) -> float:
    """Similarity of text (Indel ratio), 0 to 1; of several files the mean over pairs, 0 for one that is missing."""
    if result is None or expected is None:
        return 0.0
    if isinstance(result, list) or isinstance(expected, list):
        one, two = ([x] if isinstance(x, str) else x for x in (result, expected))
        pairs = [0.0 if a is None or b is None else compare_pdfs(a, b) for a, b in zip(one, two, strict=False)]
        return sum(pairs) / len(pairs) if pairs else 0.0
    return fuzz.ratio(pdf_text(result), pdf_text(expected)) / 100


def check_pdf_pages(result: str | None, rules: Mapping[str, Any]) -> float:
    """1 when the number of pages has the relation rules["relation"] to rules["ref_value"]."""
    if result is None:
        return 0.0
    return float(holds(len(_reader(result).pages), {"method": rules["relation"], "ref": rules["ref_value"]}))
