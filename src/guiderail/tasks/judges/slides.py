"""Metrics over presentations (pptx)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from guiderail.tasks.judges.safe import load_office

Rules = Mapping[str, Any]
A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"

DEFAULTS: dict[str, bool] = {
    "number_of_slides": True, "shape": True, "text": True, "indent": True, "font_name": True, "font_size": True,
    "font_bold": True, "font_italic": True, "color_rgb": True, "font_underline": True, "strike_through": True,
    "alignment": True, "bullets": True, "background_color": True, "note": True, "table_color_rgb": True,
    "title_bottom_position": False, "table_bottom_position": False, "right_position": False, "top_position": False,
    "shape_for_shift_size": False, "image_size": False, "modify_height": False,
}  # fmt: skip
"""What compare_pptx_files looks at unless told otherwise (examine_<name>)."""

_RUN: dict[str, Callable[[Any], Any]] = {
    "font_name": lambda r: r.font.name,
    "font_size": lambda r: r.font.size,
    "font_bold": lambda r: bool(r.font.bold),
    "font_italic": lambda r: bool(r.font.italic),
    "font_underline": lambda r: bool(r.font.underline),
    "color_rgb": lambda r: _rgb(r.font.color),
    "strike_through": lambda r: _struck(r),
}
_PARAGRAPH: dict[str, Callable[[Any], Any]] = {
    "alignment": lambda p: int(p.alignment) if p.alignment is not None else 1,  # left is what none means
    "indent": lambda p: p.level,
    "bullets": lambda p: _bullet(p),
}


def compare_pptx_files(
    result: str | None, expected: str | None, approximately_tolerance: float = 0.005, **options: Any
) -> float:
    """1 when two presentations agree in all that is looked at (`DEFAULTS`, changed by examine_<name> options).

    Sizes and places agree within `approximately_tolerance` of the larger value. Runs of one format are joined before
    they are compared. The positional options each look at what their name says and take the place of comparing shapes.
    """
    look = dict(DEFAULTS)
    for name, on in options.items():
        key = name.removeprefix("examine_")
        if key in look:
            look[key] = str(on).lower() == "true"
        elif not name.startswith("_"):
            raise ValueError(f"compare_pptx_files: option {name!r}: no such option")
    if result is None or expected is None:
        return 0.0
    one, two = load_office("pptx", result), load_office("pptx", expected)
    if look["number_of_slides"] and len(one.slides) != len(two.slides):
        return 0.0
    near = _Near(approximately_tolerance)
    return float(all(_same_slide(a, b, look, near) for a, b in zip(one.slides, two.slides, strict=False)))


class _Near:
    """Equality of lengths within a share of the larger."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, a: Any, b: Any) -> bool:
        if a is None or b is None:
            return a is b
        return bool(abs(a - b) <= self.share * max(abs(a), abs(b)))


def _same_slide(one: Any, two: Any, look: Mapping[str, bool], near: _Near) -> bool:
    if look["background_color"] and _background(one) != _background(two):
        return False
    if look["note"] and _notes(one) != _notes(two):
        return False
    a, b = list(_flat(one.shapes)), list(_flat(two.shapes))
    if len(a) != len(b):
        return False
    return all(_same_shape(x, y, look, near) for x, y in zip(a, b, strict=True))


def _flat(shapes: Any) -> Iterator[Any]:
    """Shapes, those of groups in their place."""
    for shape in shapes:
        if shape.shape_type == 6:  # MSO_SHAPE_TYPE.GROUP
            yield from _flat(shape.shapes)
        else:
            yield shape


def _same_shape(a: Any, b: Any, look: Mapping[str, bool], near: _Near) -> bool:
    places = {
        "shape": ("left", "top", "width", "height"),
        "right_position": ("left", "width"),
        "top_position": ("top",),
        "modify_height": ("height",),
    }
    for name, sides in places.items():
        if look[name] and not all(near(getattr(a, s), getattr(b, s)) for s in sides):
            return False
    picture = a.shape_type == 13 and b.shape_type == 13
    if look["image_size"] and picture and not (near(a.width, b.width) and near(a.height, b.height)):
        return False
    bottoms = ((a.top or 0) + (a.height or 0), (b.top or 0) + (b.height or 0))
    title = a.is_placeholder and int(a.placeholder_format.type) in (1, 3)
    if look["title_bottom_position"] and title and not near(*bottoms):
        return False
    if a.has_table != b.has_table:
        return False
    if a.has_table:
        if look["table_bottom_position"] and not near(*bottoms):
            return False
        return _same_table(a.table, b.table, look)
    if a.has_text_frame != b.has_text_frame:
        return False
    return not a.has_text_frame or _same_text(a.text_frame, b.text_frame, look)


def _same_table(a: Any, b: Any, look: Mapping[str, bool]) -> bool:
    one, two = ([[c.text_frame for c in row.cells] for row in t.rows] for t in (a, b))
    if [len(r) for r in one] != [len(r) for r in two]:
        return False
    return all(_same_text(x, y, look) for r, s in zip(one, two, strict=True) for x, y in zip(r, s, strict=True))


def _same_text(a: Any, b: Any, look: Mapping[str, bool]) -> bool:
    one, two = a.paragraphs, b.paragraphs
    if look["text"] and "\n".join(p.text for p in one).strip() != "\n".join(p.text for p in two).strip():
        return False
    filled = [[p for p in ps if p.text.strip()] for ps in (one, two)]
    if len(filled[0]) != len(filled[1]):
        return not look["text"]
    for p, q in zip(*filled, strict=True):
        if any(look[name] and read(p) != read(q) for name, read in _PARAGRAPH.items()):
            return False
        if _formats(p, look) != _formats(q, look):
            return False
    return True


def _formats(p: Any, look: Mapping[str, bool]) -> list[tuple[Any, ...]]:
    """(length, format...) of stretches of text with one format; lengths stand in for text, which is compared above."""
    found: list[tuple[Any, ...]] = []
    for run in p.runs:
        if not run.text:
            continue
        style = tuple(read(run) for name, read in _RUN.items() if look[name])
        if found and found[-1][1:] == style:
            found[-1] = (found[-1][0] + len(run.text), *style)
        else:
            found.append((len(run.text), *style))
    return found if look["text"] else [f[1:] for f in found]


def _rgb(colour: Any) -> Any:
    try:
        return str(colour.rgb) if colour is not None and colour.type is not None else None
    except AttributeError:  # a colour of the theme
        return str(colour.theme_color)


def _struck(run: Any) -> bool:
    properties = run._r.find(f"{A}rPr")
    return properties is not None and properties.get("strike", "noStrike") != "noStrike"


def _bullet(p: Any) -> Any:
    properties = p._p.find(f"{A}pPr")
    if properties is None:
        return None
    for kind in ("buNone", "buChar", "buAutoNum", "buBlip"):
        found = properties.find(f"{A}{kind}")
        if found is not None:
            return None if kind == "buNone" else (kind, found.get("char") or found.get("type"))
    return None


def _background(slide: Any) -> Any:
    found = slide._element.find(f"{P}cSld/{P}bg")
    if found is None:
        return None
    colour = next(iter(found.iter(f"{A}srgbClr", f"{A}schemeClr")), None)
    return colour.get("val") if colour is not None else "other"


def _notes(slide: Any) -> str:
    frame = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    return frame.text.strip() if frame is not None else ""


def check_slide_orientation_Portrait(result: str | None) -> float:
    """1 when slides are higher than wide."""
    if result is None:
        return 0.0
    deck = load_office("pptx", result)
    return float(deck.slide_width < deck.slide_height)


def check_transition(result: str | None, rules: Rules) -> float:
    """1 when slide rules["slide_idx"] comes with the transition rules["transition_type"]."""
    if result is None:
        return 0.0
    slides = load_office("pptx", result).slides
    if rules["slide_idx"] >= len(slides):
        return 0.0
    root = slides[rules["slide_idx"]]._element
    names = {child.tag.rpartition("}")[2] for t in root.iter() if str(t.tag).endswith("}transition") for child in t}
    return float(rules["transition_type"] in names)


def check_page_number_colors(result: str | None, rules: Rules) -> float:
    """1 when the slide numbers of the masters have the colour rules["color"] (red, blue, green, black)."""
    if result is None:
        return 0.0
    tests: dict[str, Callable[[int, int, int], bool]] = {
        "red": lambda r, g, b: r > g + 50 and r > b + 50,
        "blue": lambda r, g, b: b > g + 50 and b > r + 50,
        "green": lambda r, g, b: g > r + 50 and g > b + 50,
        "black": lambda r, g, b: r < 50 and g < 50 and b < 50,
    }
    deck = load_office("pptx", result)
    found: list[bool] = []
    for holder in [*deck.slide_masters, *deck.slides]:
        for shape in holder.placeholders:
            if int(shape.placeholder_format.type) != 13:  # PP_PLACEHOLDER.SLIDE_NUMBER
                continue
            for colour in shape._element.iter(f"{A}srgbClr"):
                value = colour.get("val")
                found.append(tests[rules["color"]](*(int(value[i : i + 2], 16) for i in (0, 2, 4))))
    return float(bool(found) and all(found))
