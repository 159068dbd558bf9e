"""The explorer and the report in a real browser: keys, links, hostile text, phone width, axe, following a run."""

from __future__ import annotations

import re
from types import SimpleNamespace
from urllib.parse import quote

import pytest
import synthetic
import viewer_world
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright
from viewer_world import RUN

from guiderail.envs import chromium
from guiderail.report import page as pages
from guiderail.report.build import build
from guiderail.report.data import load

pytestmark = pytest.mark.browser
expect.set_options(timeout=30_000)
GROUP = "miniwob/click-button/7/0/v0"
HOSTILE = f"{RUN}/miniwob/click-drag/7/0/v0/0/0"
SFT, RL = (f"evaluate/grpo/seed0/miniwob/{c}/miniwob/click-button/7/0/0" for c in ("sft", "rl"))
PATHS = {
    "list": "/",
    "episode": f"/episode?key={quote(f'{RUN}/{GROUP}/0/0', safe='')}",
    "hostile": f"/episode?key={quote(HOSTILE, safe='')}",
    "group": f"/group?run={quote(RUN, safe='')}&group={quote(GROUP, safe='')}",
    "compare": f"/compare?a={quote(SFT, safe='')}&b={quote(RL, safe='')}",
}


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    root = tmp_path_factory.mktemp("web")
    viewer_world.make(root / "results")
    served = viewer_world.Served(root / "results")
    with served as base, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium.find().path, args=["--no-sandbox"])
        yield SimpleNamespace(root=root, base=base, browser=browser, index=served.index)
        browser.close()


@pytest.fixture
def view(web):
    context = web.browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.set_default_timeout(30_000)
    wrong: list[str] = []
    tab.on("pageerror", lambda e: wrong.append(str(e)))
    tab.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)

    def go(path):
        tab.goto(web.base + path)
        tab.wait_for_selector("body[data-ready]")
        return tab

    yield SimpleNamespace(tab=tab, go=go, wrong=wrong)
    assert wrong == []
    context.close()


def serious(tab):
    """axe's serious and critical findings, in short."""
    found = Axe().run(tab, options={"resultTypes": ["violations"]}).response["violations"]
    return [(v["id"], v["nodes"][0]["html"][:160]) for v in found if v["impact"] in ("serious", "critical")]


def test_filters_live_in_the_address_and_back_goes_back(view):
    tab = view.go("/")
    assert tab.locator("tbody tr").count() == 10
    tab.get_by_label("rollout").check()
    expect(tab.locator("tbody tr")).to_have_count(5)
    tab.keyboard.press("/")
    tab.keyboard.type("hello")
    expect(tab.locator("tbody tr")).to_have_count(3)
    expect(tab).to_have_url(re.compile("kind=rollout&q=hello$"))
    assert tab.evaluate("document.activeElement.id") == "search"  # typing goes on after the list has changed
    tab.reload()
    expect(tab.locator("tbody tr")).to_have_count(3)
    assert tab.input_value("#search") == "hello"
    tab.go_back()
    expect(tab.locator("tbody tr")).to_have_count(5)


def test_keys(view):
    tab = view.go("/?kind=rollout&template=click-button&sort=task")
    tab.keyboard.press("j")
    tab.keyboard.press("j")
    tab.keyboard.press("k")
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".strip")
    first = tab.url
    tab.keyboard.press("j")
    expect(tab).not_to_have_url(first)
    tab.wait_for_selector(".strip")
    assert tab.locator(".thumb[aria-current]").inner_text().strip().startswith("1")
    tab.keyboard.press("ArrowRight")
    assert "step=2" in tab.url
    tab.keyboard.press("?")
    assert tab.locator("dialog").is_visible()
    tab.keyboard.press("Escape")
    tab.keyboard.press("g")
    tab.wait_for_selector("table.siblings")
    tab.keyboard.press("u")
    tab.wait_for_selector("table.episodes")
    assert "template=click-button" in tab.url


def test_a_step_shows_its_action_tokens_and_reasons(view):
    tab = view.go(PATHS["episode"])
    ring = tab.locator(".stage .ring").bounding_box()
    frame = tab.locator(".stage img").bounding_box()
    middle = (ring["x"] + ring["width"] / 2 - frame["x"]) / frame["width"]
    assert middle == pytest.approx(0.25, abs=0.01)
    assert tab.locator(".token").count() == 3 and tab.locator(".token .bar").count() == 6  # sampling and training
    assert "guiderail replay rl/grpo/seed0/" in tab.inner_text(".command code >> nth=0")
    tab = view.go(f"/episode?key={quote(f'{RUN}/{GROUP}/1/0', safe='')}&step=2")
    assert tab.locator(".stage line.path").count() == 1
    tab.keyboard.press("ArrowRight")
    assert "hello world" in tab.inner_text(".stage .typed")
    tab.set_viewport_size({"width": 390, "height": 860})
    box, frame = tab.locator(".frame.large").bounding_box(), tab.locator(".stage img").bounding_box()
    assert box["width"] == pytest.approx(frame["width"], abs=1)  # marks are in percent of the box
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.keyboard.press("ArrowRight")
    assert "no call in the text" in tab.inner_text(".stage .problem")
    assert "not recorded" in tab.inner_text(".stage")


def test_the_first_difference_is_marked(view):
    tab = view.go(PATHS["compare"])
    assert tab.locator(".pair.parts").count() == 1
    assert "Step 2" in tab.inner_text(".pair.parts h2") and "one of them has ended" in tab.inner_text(".flag")
    told = tab.locator(".heads .command code").all_inner_texts()
    assert [t.split("/miniwob/")[1] for t in told if "--policy" not in t] == ["sft", "rl"] and len(told) == 4


def test_an_episode_of_rl_stands_beside_what_it_began_from(view):
    tab = view.go(PATHS["episode"])
    assert "%2Fsft%2F" in tab.get_attribute("#to-compare", "href")
    assert "(3)" in tab.inner_text("#others")


def test_rows_of_a_template_can_be_told_apart(view):
    tab = view.go("/?task=miniwob%2Fclick-button%2F7%2F0&kind=evaluation")
    assert tab.locator("tbody tr").count() == 2 and "Only task" in tab.inner_text(".results")
    assert tab.locator("th").nth(2).inner_text() == "Instance"
    assert tab.locator("tbody tr >> nth=0").locator("td").nth(2).inner_text() == "7"
    tab.set_viewport_size({"width": 390, "height": 860})
    told = tab.locator("tbody .near").all_inner_texts()
    assert [t.rsplit(" · ", 1)[1] for t in told] == ["sft", "rl"] and all("click-button 7" in t for t in told)


def test_an_advantage_stands_beside_its_bar(view):
    tab = view.go(PATHS["group"])
    for n in range(4):
        bar = tab.locator(".signed").nth(n).bounding_box()
        assert tab.locator(".advantage .value").nth(n).bounding_box()["x"] > bar["x"] + bar["width"]


def test_indexing_is_said_until_it_is_done(web, view, monkeypatch):
    monkeypatch.setattr(web.index, "refresh", lambda *_: 0)
    web.index.progress = (2, 5)
    tab = view.go("/")
    expect(tab.locator("#indexing[role=status]")).to_have_text(re.compile("2 of 5 files"))
    assert "10 episodes so far" in tab.inner_text(".total")
    web.index.progress = None
    expect(tab.locator("#indexing")).to_be_hidden()
    expect(tab.locator(".total")).to_have_text("10 episodes")


def test_what_else_changed_is_shown_as_text(view):
    tab = view.go(f"/episode?key={quote('evaluate/grpo/seed0/miniwob/sft/miniwob/click-drag/7/0/0', safe='')}")
    assert "2 other files changed" in tab.inner_text(".badges")
    assert "made Desktop/<img src=x onerror=" in tab.inner_text(".effects")
    assert tab.evaluate("window.owned") is None and tab.locator(".effects img").count() == 0


def test_hostile_text_is_shown_and_does_nothing(view):
    tab = view.go(PATHS["hostile"])
    assert tab.evaluate("window.owned") is None and tab.locator("main script, main img[onerror]").count() == 0
    assert "<script>window.owned=1</script>" in tab.inner_text("h1")
    assert "\u202e" not in tab.inner_text("body") and "⟨U+202E⟩" in tab.inner_text("h1")
    assert len(tab.inner_text(".stage pre >> nth=0")) < 4000  # the rest of 20,000 characters waits
    tab.get_by_role("button", name="Show all").first.click()
    assert len(tab.inner_text(".stage pre >> nth=0")) > 20_000
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious_and_nothing_sticks_out(view, scheme, width):
    view.tab.emulate_media(color_scheme=scheme)
    view.tab.set_viewport_size({"width": width, "height": 860})
    for name, path in PATHS.items():
        tab = view.go(path)
        assert serious(tab) == [], (name, scheme, width)
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (name, width)


def test_it_follows_a_run(web, view):
    tab = view.go("/?template=click-new")
    assert "Nothing matches" in tab.inner_text(".empty")
    viewer_world.more(web.root / "results", 5)
    tab.wait_for_selector("tbody tr")
    assert tab.locator("tbody tr").count() == 1
    assert tab.inner_text(".peek") == "no frame" and "first episode of each iteration" in tab.inner_text(".results")
    assert "`" not in tab.inner_text("body") and "guiderail replay" in tab.inner_text(".results code")


def test_the_report_reads_well(web, tmp_path):
    params = synthetic.make(tmp_path / "results", instances=2)
    data = load(params, tmp_path / "results")
    (tmp_path / "out").mkdir()
    summary, sections = build(data, tmp_path / "out")
    pages.write_html(tmp_path / "out/index.html", "Report", data, summary, sections)
    for width in (1280, 390):
        tab = web.browser.new_page(viewport={"width": width, "height": 860})
        tab.goto((tmp_path / "out/index.html").as_uri())
        assert serious(tab) == [], width
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        wide = tab.locator(".scroll table").all()  # what does not fit can be scrolled to, and by keyboard
        assert all(
            t.evaluate("(t) => t.offsetWidth <= t.parentElement.scrollWidth && t.parentElement.tabIndex === 0")
            for t in wide
        )
        assert tab.locator(".strip:visible").count() == 0  # folded, as all that is not the answer
        tab.get_by_role("navigation").get_by_text("Film strips").click()
        shown = tab.locator(".strip:visible").count()
        tab.get_by_role("button", name="Failures").click()
        assert 0 < tab.locator(".strip:visible").count() < shown
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        tab.close()
    tab = web.browser.new_page(viewport={"width": 390, "height": 860})
    tab.goto((tmp_path / "out/index.html").as_uri() + "#by-template")  # a link into a folded part opens it
    table = tab.locator("#by-template table")
    expect(table).to_be_visible()
    assert 0 < table.bounding_box()["y"] < 860 and tab.locator("#figures picture img").evaluate(
        "(i) => i.currentSrc === i.previousElementSibling.srcset"  # the form for a phone
    )
    first = tab.locator("#by-template tbody td:first-child >> nth=0")
    before = first.bounding_box()["x"]
    tab.locator("#by-template .scroll").evaluate("(s) => { s.scrollLeft = 200; }")
    assert first.bounding_box()["x"] == before and tab.locator("#by-template .scroll[data-more]").count() == 1
    assert tab.locator("details:not([open])").count() > 5
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("details:not([open])").count() == 0
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.locator("details:not([open])").count() > 5
    assert tab.locator("main").evaluate("(m) => m.scrollHeight") < 12_000
    tab.get_by_role("button", name="Open everything").click()
    assert tab.locator(".fold:not([open])").count() == 0
    tab.close()
