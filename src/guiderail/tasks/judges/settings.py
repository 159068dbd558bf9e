"""Metrics over settings files: JSON, YAML, key = value, preferences, filters, SQLite."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from guiderail.tasks.judges.methods import holds
from guiderail.tasks.judges.safe import Unreadable, parse_xml, read_bytes, read_json, read_text

Rules = Mapping[str, Any]
_ABSENT = object()


def _at(tree: Any, keys: list[Any]) -> Any:
    """The value at a path of keys and indices, or _ABSENT."""
    for key in keys:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return tree


def check_json(result: str | None, rules: Rules, is_yaml: bool = False) -> float:
    """1 when each rule of rules["expect"] ({"key": path, "method", "ref"}) holds and none of rules["unexpect"]."""
    if result is None:
        return 0.0
    if is_yaml:
        try:
            tree = yaml.safe_load(read_text(result))
        except (yaml.YAMLError, RecursionError) as e:
            raise Unreadable(result, f"no YAML: {e}") from None
    else:
        tree = read_json(result)

    def fits(rule: Rules) -> bool:
        value = _at(tree, rule["key"])
        return value is not _ABSENT and holds(value, rule)

    return float(all(map(fits, rules.get("expect", []))) and not any(map(fits, rules.get("unexpect", []))))


def check_json_settings(result: str | None, rules: Rules) -> float:
    """1 when the settings hold every value of rules["expected"]."""
    if result is None:
        return 0.0
    found = read_json(result)
    return float(isinstance(found, dict) and all(found.get(k, _ABSENT) == v for k, v in rules["expected"].items()))


def check_json_keybindings(result: str | None, rules: Rules) -> float:
    """1 when rules["expected"] is one of the bindings."""
    if result is None:
        return 0.0
    found = read_json(result)
    return float(isinstance(found, list) and rules["expected"] in found)


def check_config_status(result: str | None, rules: Rules) -> float:
    """1 when a line `(key value)` of a GIMP settings file gives rules["key"] (a path, as a list) rules["value"]."""
    if result is None:
        return 0.0
    wanted = rules["key"] if isinstance(rules["key"], list) else [rules["key"]]
    for line in read_text(result).splitlines():
        words = line.strip().strip("()").split()
        if line.startswith("#") or len(words) < 2 or words[-1] != rules["value"]:
            continue
        if words[: len(wanted)] == wanted or (len(wanted) == 1 and words[0] == wanted[0]):
            return 1.0
    return 0.0


# -- Thunderbird ------------------------------------------------------------------------------------------------------
_PREF = re.compile(r'^user_pref\("(?P<key>(?:[^"\\]|\\.)+)",\s*(?P<value>.+)\);$')


def check_thunderbird_prefs(result: str | None, rules: Rules) -> float:
    """1 when each rule of rules["expect"] (preference -> {"method", "ref"}) holds and none of rules["unexpect"]."""
    if result is None:
        return 0.0
    prefs: dict[str, Any] = {}
    for line in read_text(result).splitlines():
        match = _PREF.match(line.strip())
        if match:
            raw = match["value"]
            try:
                prefs[match["key"]] = yaml.safe_load(raw)
            except yaml.YAMLError:
                prefs[match["key"]] = raw
    expect, unexpect = rules.get("expect", {}), rules.get("unexpect", {})
    return float(
        all(k in prefs and holds(prefs[k], r) for k, r in expect.items())
        and not any(k in prefs and holds(prefs[k], r) for k, r in unexpect.items())
    )


def check_thunderbird_filter(result: str | None, rules: Rules) -> float:
    """1 when each filter of rules["expect"] agrees with some filter of the file, none of rules["unexpect"] with any."""
    if result is None:
        return 0.0
    filters: list[dict[str, Any]] = []
    for line in read_text(result).splitlines():
        key, _, raw = line.partition("=")
        text = raw.strip()[1:-1].replace('\\"', '"') if raw.strip().startswith('"') else raw.strip()
        if key == "name":
            filters.append({})
        if not filters:
            continue
        if key == "condition":
            joined = re.match(r"(AND|OR|ALL)", text)
            parts = re.findall(r"(?:AND|OR) \((?:[^()\"]|\"[^\"]*\")+\)", text)
            filters[-1][key] = parts or ([joined[1]] if joined else [text])
        else:
            filters[-1][key] = text

    def fits(rule: Rules) -> bool:
        return any(
            all(sorted(f.get(k, [])) == sorted(v) if k == "condition" else f.get(k) == v for k, v in rule.items())
            for f in filters
        )

    return float(all(map(fits, rules.get("expect", []))) and not any(map(fits, rules.get("unexpect", []))))


# -- LibreOffice ------------------------------------------------------------------------------------------------------
_OOR = "{http://openoffice.org/2001/registry}"


def _registry(path: str) -> dict[tuple[str, str], str]:
    """(node, property) -> value of LibreOffice's registrymodifications.xcu."""
    root, found = parse_xml(read_bytes(path), path), {}
    for item in root.iter("item"):
        for prop in item.iter("prop"):
            value = prop.find("value")
            found[item.get(f"{_OOR}path", ""), prop.get(f"{_OOR}name", "")] = (
                "".join(value.itertext()) if value is not None else ""
            )
    return found


def find_default_font(result: str | None, rules: Rules) -> float:
    """1 when Writer's standard font is rules["font_name"]."""
    if result is None:
        return 0.0
    return float(_registry(result).get(("/org.openoffice.Office.Writer/DefaultFont", "Standard")) == rules["font_name"])


def check_auto_saving_time(result: str | None, rules: Rules) -> float:
    """1 when LibreOffice saves every rules["minutes"] minutes."""
    if result is None:
        return 0.0
    value = _registry(result).get(("/org.openoffice.Office.Common/Save/Document", "AutoSaveTimeIntervall"), "")
    return float(value.isdigit() and int(value) == int(rules["minutes"]))


def check_presenter_console_disable(result: str | None) -> float:
    """1 when Impress starts presentations without the presenter console."""
    if result is None:
        return 0.0
    return float(
        _registry(result).get(("/org.openoffice.Office.Impress/Misc/Start", "EnablePresenterScreen")) == "false"
    )


# -- VLC --------------------------------------------------------------------------------------------------------------
def _vlcrc(path: str) -> dict[str, str]:
    """Settings that are not commented out."""
    pairs = (line.partition("=") for line in read_text(path).splitlines() if not line.startswith(("#", "[")))
    return {k.strip(): v.strip() for k, _, v in pairs if k.strip()}


def _vlc_number(result: str | None, rules: Rules, key: str, default: str) -> float:
    """1 when a numeric setting (default when it is not set) is rules["expected_..."]."""
    if result is None:
        return 0.0
    wanted = rules[f"expected_{key.replace('-', '_')}"]
    return float(_vlcrc(result).get(key, default) == str(wanted))


def check_qt_bgcone(result: str | None, rules: Rules) -> float:
    """1 when the cone in the background is shown or not as expected."""
    return _vlc_number(result, rules, "qt-bgcone", "1")


def check_qt_max_volume(result: str | None, rules: Rules) -> float:
    """1 when the largest volume is as expected."""
    return _vlc_number(result, rules, "qt-max-volume", "125")


def check_qt_minimal_view(result: str | None, rules: Rules) -> float:
    """1 when the minimal view is on or off as expected."""
    return _vlc_number(result, rules, "qt-minimal-view", "0")


def check_one_instance_when_started_from_file(result: str | None, rules: Rules) -> float:
    """1 when files open in the running window, or not, as expected."""
    return _vlc_number(result, rules, "one-instance-when-started-from-file", "1")


def check_global_key_play_pause(result: str | None, rules: Rules) -> float:
    """1 when a global key for play/pause is set (or not) as expected."""
    if result is None:
        return 0.0
    return float(bool(_vlcrc(result).get("global-key-play-pause")) == bool(rules["expected_global_key_play_pause"]))


def check_qt_slider_colours(result: str | None, rules: Rules) -> float:
    """1 when the volume slider's colours are rules["expected_qt_slider_colours"] (type match), or all of them near
    black (type blackish: every channel below 60)."""
    if result is None:
        return 0.0
    text = _vlcrc(result).get("qt-slider-colours", "153;210;153;20;210;20;255;199;15;245;39;29")
    if rules["type"] == "match":
        return float(text == rules["expected_qt_slider_colours"])
    if rules["type"] != "blackish":
        raise ValueError(f"check_qt_slider_colours: type {rules['type']!r}: must be match or blackish")
    channels = [int(c) for c in text.split(";") if c.strip().isdigit()]
    return float(bool(channels) and max(channels) < 60)


def is_vlc_recordings_folder(result: str | None, rules: Rules) -> float:
    """1 when recordings go to rules["recording_file_path"]."""
    if result is None:
        return 0.0
    wanted = str(rules["recording_file_path"]).rstrip("/")
    return float(_vlcrc(result).get("input-record-path", "").rstrip("/") == wanted)


def is_vlc_playing(result: str | None, rules: Rules) -> float:
    """1 when VLC's status says that it plays the file rules["file_name"], or the stream rules["url"]."""
    if result is None:
        return 0.0
    data = read_bytes(result)
    if not data.strip():
        return 0.0
    root = parse_xml(data, result)
    if root.findtext("state") != "playing":
        return 0.0
    texts = [i.text or "" for i in root.iter("info") if i.get("name") in ("filename", "url", "title")]
    if rules["type"] == "file_name":
        return float(
            any(
                PurePosixPath(unquote(urlsplit(t).path or t)).name == rules["file_name"] or t == rules["file_name"]
                for t in texts
            )
        )
    wanted = str(rules["url"])
    return float(any(t and (t == wanted or wanted.endswith("/" + t)) for t in texts))


def is_vlc_fullscreen(screen: Rules | None, window: Rules | None) -> float:
    """1 when VLC's window is as large as the screen."""
    if not screen or not window:
        return 0.0
    return float((screen["width"], screen["height"]) == (window["width"], window["height"]))


def run_sqlite3(result: str | None, rules: Rules) -> float:
    """The number that rules["sql"] (of the task, reading only) gives on a database of the guest, as true or false."""
    if result is None:
        return 0.0
    allowed = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
    try:
        with sqlite3.connect(f"file:{result}?mode=ro&immutable=1", uri=True) as base:
            base.set_authorizer(lambda op, *_: sqlite3.SQLITE_OK if op in allowed else sqlite3.SQLITE_DENY)
            row = base.execute(rules["sql"]).fetchone()
    except sqlite3.DatabaseError as e:
        raise Unreadable(result, f"no such database: {e}") from None
    return float(bool(row and row[0]))
