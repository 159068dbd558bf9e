"""What Chrome's profile says: values for getters (they read a copied file), and metrics over them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from guiderail.tasks.judges.safe import Unreadable, read_json

Rules = Mapping[str, Any]


def _prefs(path: str | None) -> dict[str, Any]:
    """The JSON object in a profile file, {} when there is none."""
    found = {} if path is None else read_json(path)
    return found if isinstance(found, dict) else {}


def _at(tree: Any, *keys: str, default: Any = None) -> Any:
    for key in keys:
        if not isinstance(tree, dict) or key not in tree:
            return default
        tree = tree[key]
    return tree


def bookmarks(path: str | None) -> Any:
    """The roots of the bookmarks."""
    return _at(_prefs(path), "roots", default={})


def profile_name(path: str | None) -> Any:
    """Name of the profile."""
    return _at(_prefs(path), "profile", "name")


def enable_do_not_track(path: str | None) -> str:
    """Whether "Do not track" is sent."""
    return "true" if _at(_prefs(path), "enable_do_not_track", default=False) else "false"


def enable_safe_browsing(path: str | None) -> str:
    """Whether safe browsing, standard or enhanced, is on."""
    safe = _at(_prefs(path), "safebrowsing", default={})
    return "true" if _at(safe, "enabled") or _at(safe, "enhanced") else "false"


def new_startup_page(path: str | None) -> str:
    """Whether Chrome starts with a new tab (setting 5, or none made)."""
    session = _at(_prefs(path), "session")
    return "true" if session is None or _at(session, "restore_on_startup") == 5 else "false"


def default_search_engine(path: str | None) -> Any:
    """Name of the search engine."""
    return _at(_prefs(path), "default_search_provider_data", "template_url_data", "short_name", default="Google")


def font_size(path: str | None) -> Any:
    """Font sizes of web pages."""
    usual = {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 0}
    return _at(_prefs(path), "webkit", "webprefs", default=usual)


def data_delete(path: str | None) -> str:
    """Whether data of sites is deleted when they are closed."""
    return "true" if _at(_prefs(path), "profile", "default_content_setting_values") is not None else "false"


def experiments(path: str | None) -> Any:
    """Experiments that are switched on."""
    return _at(_prefs(path), "browser", "enabled_labs_experiments", default=[])


def extension_paths(path: str | None) -> list[Any]:
    """Folders of the extensions."""
    return [
        e.get("path") for e in _at(_prefs(path), "extensions", "settings", default={}).values() if isinstance(e, dict)
    ]


def extension_names(path: str | None) -> list[Any]:
    """Names of the extensions."""
    found = _at(_prefs(path), "extensions", "settings", default={}).values()
    return [name for e in found if (name := _at(e, "manifest", "name")) is not None]


def history(path: str | None) -> list[list[Any]]:
    """[url, title, last visit] of every page visited."""
    return _rows(path, "SELECT url, title, last_visit_time FROM urls")


def cookies(path: str | None) -> list[list[Any]]:
    """[host, name] of every cookie."""
    return _rows(path, "SELECT host_key, name FROM cookies")


def _rows(path: str | None, sql: str) -> list[list[Any]]:
    if path is None:
        return []
    try:
        with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as base:
            return [list(row) for row in base.execute(sql)]
    except sqlite3.DatabaseError as e:
        raise Unreadable(path, f"no such database: {e}") from None


# -- metrics ----------------------------------------------------------------------------------------------------------
def is_expected_bookmarks(roots: Rules, rules: Rules) -> float:
    """1 when the bookmark bar has exactly the folders (names), or the pages (urls), of the rule; or when a folder
    "Liked Authors" has exactly the pages of the rule."""
    children = _at(roots, "bookmark_bar", "children", default=[])
    match rules["type"]:
        case "bookmark_bar_folders_names":
            return float({c["name"] for c in children if c["type"] == "folder"} == set(rules["names"]))
        case "bookmark_bar_websites_urls":
            return float({c["url"] for c in children if c["type"] == "url"} == set(rules["urls"]))
        case "liked_authors_websites_urls":
            folder = next((c for c in children if c["type"] == "folder" and c["name"] == "Liked Authors"), None)
            if folder is None:
                return 0.0
            found = {c["url"].rstrip("/") for c in folder["children"] if c["type"] == "url"}
            wanted = [u if isinstance(u, list) else [u] for u in rules["urls"]]
            return float(
                len(found) == len(wanted) and all(any(u.rstrip("/") in found for u in options) for options in wanted)
            )
        case other:
            raise ValueError(f"is_expected_bookmarks: type {other!r}: no such type")


def check_enabled_experiments(found: list[str], rules: Rules) -> float:
    """1 when exactly the experiments rules["names"] are on (their variant, after @, aside)."""
    return float(sorted(e.split("@")[0] for e in found) == sorted(rules["names"]))


def check_font_size(found: Rules, rules: Rules) -> float:
    """1 when the font size is rules["value"], or between rules["min"] and rules["max"] (both outside)."""
    size = found.get("default_font_size")
    if size is None:
        return 0.0
    return float(size == rules["value"] if rules["type"] == "value" else rules["min"] < size < rules["max"])


def is_expected_installed_extensions(found: list[str], rules: Rules) -> float:
    """1 when all of rules["expected"] are installed."""
    return float(set(rules["expected"]) <= set(found))


def check_history_deleted(found: list[list[Any]], rules: Rules) -> float:
    """1 when no visited address holds one of rules["keywords"]."""
    return float(not any(k in row[0] for row in found for k in rules["keywords"]))


def is_cookie_deleted(found: list[list[Any]], rules: Rules) -> float:
    """1 when no cookie is of one of rules["domains"], or of a domain below it."""
    hosts = [f".{row[0].lstrip('.')}" for row in found]
    return float(not any(host.endswith(f".{d.lstrip('.')}") for host in hosts for d in rules["domains"]))
