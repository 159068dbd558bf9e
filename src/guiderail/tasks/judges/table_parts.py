"""Parts of a worksheet that rules compare: styles, charts, pivot tables, frozen panes, validations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from guiderail.tasks.judges.methods import holds

Rules = Mapping[str, Any]


def cell(sheet: Any, coordinate: str, prop: str) -> Any:
    """A property of a cell: value, bgcolor, font_color, font_bold, ..., merge (part of merged cells, not the first)."""
    found = sheet[coordinate]
    if prop == "merge":
        return any(coordinate in area for area in sheet.merged_cells.ranges)
    if prop == "value":
        return found.value
    return style(found, prop)


def style(found: Any, prop: str) -> Any:
    """A style property of a cell. Raises ValueError for one that does not exist."""
    font, fill = found.font, found.fill
    match prop:
        case "font_name":
            return font.name
        case "font_bold":
            return bool(font.b)
        case "font_italic":
            return bool(font.i)
        case "font_underline":
            return font.u
        case "font_size":
            return font.sz
        case "font_color":
            return _colour(font.color)
        case "bgcolor" | "fgcolor":
            return _colour(fill.bgColor if prop == "bgcolor" and fill.fill_type != "solid" else fill.fgColor)
        case "fill_type":
            return fill.fill_type
        case "number_format":
            return found.number_format
        case "hyperlink":
            return found.hyperlink.target if found.hyperlink else None
        case other:
            raise ValueError(f"compare_table: style {other!r}: no such property")


def _colour(colour: Any) -> Any:
    """AARRGGBB of a colour, or theme and tint of one that the theme gives; None for none."""
    if colour is None or (colour.type == "rgb" and colour.rgb == "00000000"):
        return None
    if colour.type == "rgb":
        return "FF" + str(colour.rgb)[-6:]
    return colour.type, getattr(colour, colour.type), round(colour.tint or 0.0, 3)


def styles(sheet: Any, rule: Rules) -> Any:
    """The styles rule["props"] of every cell that has a value or a style of its own."""
    return {
        c.coordinate: tuple(style(c, p) for p in rule["props"])
        for c in sheet._cells.values()  # stored ones: an area can span billions
        if c.value is not None or c.has_style
    }


def freeze(sheet: Any, rule: Rules) -> Any:
    """The first cell that scrolls."""
    return sheet.freeze_panes


def rows(sheet: Any, rule: Rules) -> Any:
    """Properties of rows that are not as usual: row -> (hidden, ...)."""
    usual = {"hidden": False, "height": None, "outline_level": 0}
    found = {
        i: tuple(getattr(d, {"outline_level": "outlineLevel"}.get(p, p)) for p in rule["props"])
        for i, d in sheet.row_dimensions.items()
    }
    return {i: v for i, v in found.items() if v != tuple(usual.get(p) for p in rule["props"])}


def columns(sheet: Any, rule: Rules) -> Any:
    """Properties of columns that are not as usual."""
    found = {k: tuple(getattr(d, p) for p in rule["props"]) for k, d in sheet.column_dimensions.items()}
    return {k: v for k, v in found.items() if any(v)}


def charts(sheet: Any, rule: Rules) -> Any:
    """The charts by what they show (ranges of values and categories), each with the properties rule["chart_props"]."""
    return {_series(c): tuple(_chart(c, p) for p in rule["chart_props"]) for c in sheet._charts}


def _series(chart: Any) -> tuple[tuple[str, str], ...]:
    found = []
    for s in chart.series:
        value = s.val.numRef.f if s.val is not None and s.val.numRef is not None else ""
        cat = ""
        if s.cat is not None:
            ref = s.cat.numRef or s.cat.strRef
            cat = ref.f if ref is not None else ""
        found.append((_ref(value), _ref(cat)))
    return tuple(found)


def _ref(text: str) -> str:
    return text.replace("$", "").replace("'", "")


def _chart(chart: Any, prop: str) -> Any:
    match prop:
        case "type":
            return chart.tagname
        case "title":
            return _title(chart.title)
        case "direction":
            return getattr(chart, "barDir", None)
        case "xtitle":
            return _title(getattr(getattr(chart, "x_axis", None), "title", None))
        case "ytitle":
            return _title(getattr(getattr(chart, "y_axis", None), "title", None))
        case "legend":
            return chart.legend.position if chart.legend is not None else None
        case other:
            raise ValueError(f"compare_table: chart property {other!r}: no such property")


def _title(title: Any) -> str | None:
    try:
        return "".join(run.t for p in title.tx.rich.p for run in (p.r or [])).strip()
    except (AttributeError, TypeError):
        return None


def pivots(sheet: Any, rule: Rules) -> Any:
    """The pivot tables, each with the properties rule["pivot_props"], in the order of their source."""
    found = []
    for table in sheet._pivots:
        source = table.cache.cacheSource.worksheetSource
        fields = [f.name for f in table.cache.cacheFields]
        props = tuple(_pivot(table, fields, p) for p in rule["pivot_props"])
        found.append((source.ref if source is not None else "", props))
    return sorted(found, key=repr)


def _pivot(table: Any, names: list[str], prop: str) -> Any:
    def named(fields: Any) -> tuple[str, ...]:
        return tuple(names[f.x] if 0 <= f.x < len(names) else str(f.x) for f in fields or ())

    match prop:
        case "row_fields":
            return named(table.rowFields)
        case "col_fields":
            return named(table.colFields)
        case "filter" | "page_fields":
            return tuple(names[f.fld] for f in table.pageFields or ())
        case "data_fields":
            return tuple((names[f.fld], f.subtotal) for f in table.dataFields or ())
        case other:
            raise ValueError(f"compare_table: pivot property {other!r}: no such property")


def validations_fit(sheet: Any, wanted: list[Rules]) -> bool:
    """Whether each set of rules ({property: rule}) is kept by some data validation, and there is no other one."""
    found = sheet.data_validations.dataValidation if sheet.data_validations is not None else []

    def fits(validation: Any, props: Rules) -> bool:
        return all(
            holds(str(validation.sqref) if name == "ranges" else getattr(validation, name), rule)
            for name, rule in props.items()
        )

    return len(found) == len(wanted) and all(any(fits(v, props) for v in found) for props in wanted)


READERS: dict[str, Callable[[Any, Rules], Any]] = {
    "style": styles,
    "freeze": freeze,
    "row_props": rows,
    "col_props": columns,
    "chart": charts,
    "pivot_table": pivots,
}
"""Rule -> what of a sheet it compares."""
