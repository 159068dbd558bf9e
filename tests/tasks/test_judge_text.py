"""Metrics over text, settings, profiles and trees, on files written by hand."""

import json
import sqlite3

import pytest

from guiderail.tasks.judges import chrome, methods, settings, text, tree
from guiderail.tasks.judges.safe import Unreadable, parse_xml, read_json


def file(tmp_path, content, name="f"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_include_exclude():
    rules = {"include": ["a", "b"], "exclude": ["error"]}
    assert text.check_include_exclude("b a", rules) == 1
    assert text.check_include_exclude("a", rules) == 0
    assert text.check_include_exclude("a b error", rules) == 0
    assert text.check_include_exclude(None, rules) == 0
    assert text.check_include_exclude("a", {"include": ["a"]}) == 1


def test_equality_and_likeness():
    assert text.exact_match("100\n", {"expected": "100\n"}) == 1
    assert text.exact_match("100", {"expected": "100\n"}) == 0
    assert text.exact_match(None, {"expected": "x"}) == 0
    assert text.fuzzy_match("kitten", {"expected": "sitting"}) == pytest.approx(2 * 4 / 13)  # LCS "ittn"
    assert text.match_in_list("Bing", {"expected": ["Bing", "Microsoft Bing"]}) == 1
    assert text.is_in_list(["/a", "/b"], {"expected": "/b"}) == 1
    assert text.is_in_list(None, {"expected": "/b"}) == 0
    assert text.literal_match(["A", "b"], ["a", "B"], type="list", ignore_case=True) == 1
    assert text.literal_match("a", ["a"], type="list") == 0


def test_text_files(tmp_path):
    a, b = file(tmp_path, "one  two\n\nthree\n", "a"), file(tmp_path, "One two three", "b")
    assert text.compare_text_file(a, a) == 1
    assert text.compare_text_file(a, b, ignore_blanks=True) == 0
    assert text.compare_text_file(a, b, ignore_blanks=True, ignore_case=True) == 1
    assert text.compare_text_file(None, b) == 0
    assert text.file_contains(a, {"expected": ["one", "three"]}) == 1
    assert text.file_contains(a, {"expected": ["one", "four"]}) == 0
    c, d = file(tmp_path, "a\nb\nc\nd\n", "c"), file(tmp_path, "a\nb\nx\nd\n", "d")
    assert text.diff_text_file(c, d) == pytest.approx(2 * 3 / 8)
    assert text.compare_config(c, {"expected": "a\nb\nc\nd\n"}) == 1
    assert text.check_line_number(file(tmp_path, "10:00:01 x\nno\n23:59:59 y\n", "l"), {"expected": "2"}) == 1


def test_patterns_in_lines(tmp_path):
    path = file(tmp_path, "alpha 1\nbeta 2\n")
    assert text.check_list(path, {"expect": [r"alpha \d", "beta"]}) == 1
    assert text.check_list(path, {"expect": ["gamma"]}) == 0
    assert text.check_list(path, {"unexpect": [".+"]}) == 0
    assert text.check_list(file(tmp_path, "", "empty"), {"unexpect": [".+"]}) == 1


def test_csv(tmp_path):
    a, b = file(tmp_path, "x,y\n1,2\n", "a.csv"), file(tmp_path, "x,y\r\n1,2", "b.csv")
    assert text.compare_csv(a, b) == 1
    assert text.compare_csv(a, [file(tmp_path, "x,y\n1,3\n", "c.csv"), b]) == 1
    assert text.compare_csv(a, file(tmp_path, "x,y\n2,1\n", "d.csv")) == 0
    assert text.check_csv(a, {"expect": [{"x": "1"}]}) == 1
    assert text.check_csv(a, {"expect": [{"x": "1", "y": "3"}]}) == 0
    assert text.check_csv(a, {"unexpect": [{"y": "2"}]}) == 0


def test_system(tmp_path):
    utc = "Local time: x\n  Time zone: Etc/UTC (UTC, +0000)\n"
    assert text.is_utc_0(utc) == 1
    assert text.is_utc_0(utc.replace("+0000", "+0100")) == 0
    assert text.is_utc_0(None) == 0
    names = {"children": [{"type": "file", "name": "b"}, {"type": "file", "name": "a"}]}
    assert text.check_moved_jpgs(names, {"expected": ["a", "b"]}) == 1
    assert text.check_moved_jpgs(names, {"expected": ["a"]}) == 0
    assert text.check_moved_jpgs(None, {"expected": ["a"]}) == 0
    assert text.check_gnome_favorite_apps("['b.desktop', 'a.desktop']\n", {"expected": ["a.desktop", "b.desktop"]}) == 1
    hostile = "__import__('os').system('touch /tmp/never')"  # upstream evaluates this
    assert text.check_gnome_favorite_apps(hostile, {"expected": ["a"]}) == 0


def test_direct_json():
    rules = {"expected": {"a": "1", "b": True}}
    assert text.check_direct_json_object({"a": "1", "b": True, "c": 0}, rules) == 1
    assert text.check_direct_json_object({"a": "2", "b": True}, rules) == 0
    assert text.check_direct_json_object(None, rules) == 0
    inside = {"expect_in_result": True, "expected": {"a": ["x", "y"]}}
    assert text.check_direct_json_object({"a": "say y"}, inside) == 1
    assert text.check_direct_json_object({"a": "tell z"}, inside) == 0


def test_methods():
    assert methods.holds(3.05, {"method": "approx:0.1", "ref": 3})
    assert not methods.holds("x", {"method": "approx:0.1", "ref": 3})
    assert not methods.holds(None, {"method": "lt", "ref": 3})
    assert methods.holds("a DARK theme", {"method": "re.I", "ref": "dark"})
    assert methods.holds('"Pass,Fail"', {"method": "str_set_eq", "ref": ["Fail", "Pass"]})
    assert methods.holds("D2:D29", {"method": "spreadsheet_range", "ref": ["D2:D29"]})
    with pytest.raises(ValueError, match="no such method"):
        methods.holds(1, {"method": "like", "ref": 1})


def test_json_settings(tmp_path):
    path = file(tmp_path, '{"a": 1, // note "x"\n "u": "http://x/,}", "b": [1, 2,],\n/* more */ "c": {"d": true}, }')
    assert settings.check_json_settings(path, {"expected": {"a": 1, "u": "http://x/,}", "b": [1, 2]}}) == 1
    assert settings.check_json_settings(path, {"expected": {"a": 2}}) == 0
    rule = {"key": ["c", "d"], "method": "eq", "ref": True}
    assert settings.check_json(path, {"expect": [rule]}) == 1
    assert settings.check_json(path, {"unexpect": [rule]}) == 0
    assert settings.check_json(path, {"expect": [{**rule, "key": ["c", "x", 0]}]}) == 0
    keys = file(tmp_path, json.dumps([{"key": "ctrl+j", "command": "x"}]), "k")
    assert settings.check_json_keybindings(keys, {"expected": {"key": "ctrl+j", "command": "x"}}) == 1
    assert (
        settings.check_json(
            file(tmp_path, "a: {b: c}", "y"),
            {"expect": [{"key": ["a", "b"], "method": "eq", "ref": "c"}]},
            is_yaml=True,
        )
        == 1
    )
    with pytest.raises(Unreadable):
        read_json(file(tmp_path, "{", "bad"))
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{c}: &{c} [*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p}]\n"
        for p, c in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert (
        settings.check_json(
            file(tmp_path, bomb, "bomb"), {"expect": [{"key": ["z"], "method": "eq", "ref": 1}]}, is_yaml=True
        )
        == 0
    )


def test_key_value_settings(tmp_path):
    rc = file(tmp_path, '# GIMP\n(theme "Light")\n(undo-levels 100)\n')
    assert settings.check_config_status(rc, {"key": "theme", "value": '"Light"'}) == 1
    assert settings.check_config_status(rc, {"key": "undo-levels", "value": "10"}) == 0
    prefs = file(tmp_path, 'user_pref("a.b", true);\nuser_pref("theme", "x-dark@y");\nuser_pref("n", 3);\n', "p")
    expect = {"a.b": {"method": "eq", "ref": True}, "theme": {"method": "re", "ref": "dark"}}
    assert settings.check_thunderbird_prefs(prefs, {"expect": expect}) == 1
    assert (
        settings.check_thunderbird_prefs(prefs, {"expect": expect, "unexpect": {"n": {"method": "gt", "ref": 2}}}) == 0
    )
    assert settings.check_thunderbird_prefs(prefs, {"expect": {"gone": {"method": "eq", "ref": True}}}) == 0
    vlc = file(tmp_path, "[qt]\n#qt-bgcone=1\nqt-max-volume=200\ninput-record-path=/home/user/Desktop\n", "v")
    assert settings.check_qt_max_volume(vlc, {"expected_qt_max_volume": 200}) == 1
    assert settings.check_qt_bgcone(vlc, {"expected_qt_bgcone": 0}) == 0  # commented out: the default, 1
    assert settings.is_vlc_recordings_folder(vlc, {"recording_file_path": "/home/user/Desktop"}) == 1


def test_thunderbird_filter(tmp_path):
    path = file(
        tmp_path,
        'version="9"\nname="x"\nenabled="yes"\naction="Forward"\nactionValue="a@b"\n'
        'condition="AND (subject,contains,\\"discount\\")"\n',
    )
    rule = {"enabled": "yes", "action": "Forward", "condition": ['AND (subject,contains,"discount")']}
    assert settings.check_thunderbird_filter(path, {"expect": [rule]}) == 1
    assert settings.check_thunderbird_filter(path, {"expect": [{**rule, "enabled": "no"}]}) == 0


def test_libreoffice_registry(tmp_path):
    xcu = """<?xml version="1.0"?><oor:items xmlns:oor="http://openoffice.org/2001/registry">
    <item oor:path="/org.openoffice.Office.Writer/DefaultFont">
    <prop oor:name="Standard" oor:op="fuse"><value>Times New Roman</value></prop></item>
    <item oor:path="/org.openoffice.Office.Common/Save/Document">
    <prop oor:name="AutoSaveTimeIntervall"><value>3</value></prop></item>
    </oor:items>"""
    path = file(tmp_path, xcu)
    assert settings.find_default_font(path, {"font_name": "Times New Roman"}) == 1
    assert settings.find_default_font(path, {"font_name": "Arial"}) == 0
    assert settings.check_auto_saving_time(path, {"minutes": 3}) == 1
    assert settings.check_presenter_console_disable(path) == 0


def test_vlc_status(tmp_path):
    path = file(
        tmp_path,
        '<root><state>playing</state><information><category name="meta"><info name="filename">a b.mp4</info>'
        "</category></information></root>",
    )
    assert settings.is_vlc_playing(path, {"type": "file_name", "file_name": "a b.mp4"}) == 1
    assert settings.is_vlc_playing(path, {"type": "file_name", "file_name": "c.mp4"}) == 0
    assert settings.is_vlc_playing(file(tmp_path, "", "e"), {"type": "file_name", "file_name": "c"}) == 0
    assert settings.is_vlc_fullscreen({"width": 4, "height": 3}, {"width": 4, "height": 3}) == 1
    assert settings.is_vlc_fullscreen({"width": 4, "height": 3}, None) == 0


def test_sqlite_reads_only(tmp_path):
    path = str(tmp_path / "db")
    with sqlite3.connect(path) as base:
        base.execute("create table urls (url text, title text, last_visit_time int)")
        base.execute("insert into urls values ('https://youtube.com/x', 't', 1)")
    base.close()
    assert settings.run_sqlite3(path, {"sql": "select count(*) > 0 from urls"}) == 1
    with pytest.raises(Unreadable):
        settings.run_sqlite3(path, {"sql": "delete from urls"})
    with pytest.raises(Unreadable):
        settings.run_sqlite3(
            file(tmp_path, "no database at all, but long enough to be looked at" * 9, "n"),
            {"sql": "select 1 from urls"},
        )
    rows = chrome.history(path)
    assert chrome.check_history_deleted(rows, {"keywords": ["youtube"]}) == 0
    assert chrome.check_history_deleted(rows, {"keywords": ["vimeo"]}) == 1


@pytest.mark.parametrize(
    "host, gone", [(".amazon.com", 0), ("www.amazon.com", 0), ("amazon.com", 0), ("notamazon.com", 1), ("a.org", 1)]
)
def test_cookies_of_a_domain(host, gone):
    for domain in (".amazon.com", "amazon.com"):
        assert chrome.is_cookie_deleted([[host, "session"]], {"domains": [domain]}) == gone


def test_chrome_profile(tmp_path):
    prefs = file(
        tmp_path,
        json.dumps(
            {
                "profile": {"name": "Thomas"},
                "enable_do_not_track": True,
                "webkit": {"webprefs": {"default_font_size": 24}},
                "extensions": {"settings": {"a": {"path": "/x", "manifest": {"name": "N"}}}},
            }
        ),
    )
    assert chrome.profile_name(prefs) == "Thomas"
    assert chrome.enable_do_not_track(prefs) == "true"
    assert chrome.enable_do_not_track(None) == "false"
    assert chrome.default_search_engine(prefs) == "Google"
    assert chrome.extension_paths(prefs) == ["/x"]
    assert chrome.is_expected_installed_extensions(chrome.extension_names(prefs), {"expected": ["N"]}) == 1
    assert chrome.check_font_size(chrome.font_size(prefs), {"type": "range", "min": 16, "max": 99}) == 1
    assert chrome.check_font_size(chrome.font_size(None), {"type": "range", "min": 16, "max": 99}) == 0
    bar = {
        "bookmark_bar": {
            "children": [
                {"type": "folder", "name": "Favorites", "children": []},
                {"type": "url", "name": "a", "url": "https://a/"},
            ]
        }
    }
    assert chrome.is_expected_bookmarks(bar, {"type": "bookmark_bar_folders_names", "names": ["Favorites"]}) == 1
    assert chrome.is_expected_bookmarks(bar, {"type": "bookmark_bar_websites_urls", "urls": ["https://b/"]}) == 0
    assert chrome.check_enabled_experiments(["x@2"], {"names": ["x"]}) == 1


def test_accessibility_tree():
    xml = (
        '<desktop-frame xmlns:attr="https://accessibility.ubuntu.example.org/ns/attributes">'
        '<application name="galculator"><text name="">84</text></application></desktop-frame>'
    )
    rule = {"xpath": "//application[contains(@name,'galculator')]//text", "text": "84", "exact": True}
    assert tree.check_accessibility_tree(xml, [rule]) == 1
    assert tree.check_accessibility_tree(xml, [{**rule, "text": "8"}]) == 0
    assert tree.check_accessibility_tree(None, [rule]) == 0
    assert tree.check_accessibility_tree(xml, [{"selectors": ["application[name=galculator] text"]}]) == 1
    assert tree.check_accessibility_tree(xml, [{"selectors": ["application[name=gimp] text"]}]) == 0


@pytest.mark.parametrize("wide", ["utf-8", "utf-16"])
def test_entities_are_refused_in_any_encoding(wide):
    bomb = (
        '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "x">]><a>&b;</a>'.replace("1.0", "1.0")
        if wide == "utf-8"
        else '<!DOCTYPE a [<!ENTITY b "x">]><a>&b;</a>'
    )
    with pytest.raises(Unreadable, match="document type"):
        parse_xml(bomb.encode(wide), "x.xml")
