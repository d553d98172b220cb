"""Tests of the first page and the page of explorers: the hero, and complete cards for chapters and explorers."""

import base64
import importlib
import re
from types import SimpleNamespace

import pytest
import yaml
from built_site import HTML, ROOT, read
from docutils import nodes
from docutils.utils import new_document
from visits import Seen

INTRO, EXPLORERS = "book/intro.html", "book/explorers.html"
SCREENS = [(1440, 900), (360, 740)]


def cards(path: str) -> list[tuple[str, str, str, str]]:
    """Return the address, drawing, title and question of each card on a page."""
    found = re.search(r'<ul class="gallery.*?</ul>', read(path), re.DOTALL)
    assert found
    return re.findall(r'<a href="([^"]+)">(.*?)<b>(.*?)</b><span>(.*?)</span></a>', found[0], re.DOTALL)


@pytest.fixture
def extension(monkeypatch):
    """Import a module of book/_ext by name."""
    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    return importlib.import_module


# --- the hero ---------------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), SCREENS)
def test_first_screen_shows_the_hero_and_its_button(visit, width, height):
    with visit(INTRO, reduced_motion="reduce", has_touch=width < 500) as page:
        page.set_viewport_size({"width": width, "height": height})
        cut = page.get_by_role("button", name="Switch off head 1.1")
        parts = [".bd-article h1", ".h-stage", ".h-ghost", ".h-told", ".h-verbs"]
        for part in (*map(page.locator, parts), cut):
            box = part.bounding_box()
            assert box
            assert box["x"] >= 0 <= box["y"]
            assert box["x"] + box["width"] <= width
            assert box["y"] + box["height"] <= height
        before = page.locator(".h-told").inner_text()
        (cut.tap if width < 500 else cut.click)()
        assert "All heads on: the king acts" in before
        assert "Without head 1.1: the birds act" in page.locator(".h-told").inner_text()
        assert page.evaluate("scrollY") == 0
        assert page.seen.rest(page) == Seen()


@pytest.mark.browser
def test_hero_fits_the_first_screen_of_a_laptop(visit):
    with visit(INTRO, reduced_motion="reduce") as page:
        page.set_viewport_size({"width": 1440, "height": 900})
        box = page.locator(".hero .h-body").bounding_box()
        assert box
        assert box["y"] + box["height"] <= 900


# Return whether a heading is in the upper quarter of the window and stays there for thirty frames.
RESTS_NEAR_THE_TOP = """async (heading) => {
  for (let frames = 0; frames < 30; frames++) {
    await new Promise(requestAnimationFrame);
    const { top } = heading.getBoundingClientRect();
    if (top < 0 || top >= innerHeight / 4) return false;
  }
  return true; }"""


@pytest.mark.browser
@pytest.mark.parametrize("path", [pytest.param(INTRO, marks=pytest.mark.xdist_group(INTRO))])
def test_first_page_is_small(measured):
    heaviest = sorted(measured.weights.items(), key=lambda item: -item[1])[:5]
    assert 50_000 < sum(measured.weights.values()) < 250_000, heaviest
    assert not any("mathjax" in url for url in measured.weights), "its formula needs no MathJax"
    fonts = {url: weight for url, weight in measured.weights.items() if "_static/fonts/" in url}
    css = (HTML / "_static/typeface.css").read_text(encoding="utf-8")
    contained = [len(base64.b64decode(data)) for data in re.findall(r"data:font/woff2;base64,([^\")]+)", css)]
    assert len(contained) == 4
    assert sum(contained) + sum(fonts.values()) <= 45_000, fonts
    assert not any("typeface-bold" in url for url in measured.weights)


BOLD_SERIF = """() => [...document.querySelectorAll('main *')].filter((e) => {
  const { fontFamily, fontStyle, fontWeight } = getComputedStyle(e);
  const text = [...e.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  const isBold = fontStyle === 'normal' && fontWeight >= 600;  // the site has no bold italic font
  return text && isBold && fontFamily.startsWith('"Book Serif"') && e.checkVisibility();
}).map((e) => e.outerHTML.slice(0, 100))"""


@pytest.mark.browser
@pytest.mark.parametrize("path", [INTRO, "explorers/masks.html"])
def test_page_without_the_bold_font_has_no_bold_text(visit, path):
    with visit(path) as page:
        assert page.evaluate(BOLD_SERIF) == []


@pytest.mark.browser
def test_hero_in_print_and_without_javascript_is_a_static_figure(visit):
    with visit(INTRO, reduced_motion="reduce") as page:
        page.emulate_media(media="print")
        assert not page.locator(".h-cut").is_visible()
        assert page.locator(".h-stage path").first.is_visible()
    with visit(INTRO, java_script_enabled=False) as page:
        assert page.locator(".hero svg[role=img]").is_visible()
        assert "a trained model expects" in page.locator(".hero").inner_text()
        assert page.locator(".gallery a").first.is_visible()


# --- how to start -----------------------------------------------------------------------------------------------------


def test_first_links_start_chapter_1_and_the_explorers():
    page = read(INTRO)
    links = re.search(r'<div class="start docutils container">(.*?)</div>', page, re.DOTALL)
    assert links
    assert page.index('<div class="hero">') < links.start() < page.index('<section id="three-ways-to-read-it">')
    first = chapters()[0][0].removeprefix("book/")
    assert re.findall(r'href="([^"]+)"', links[1]) == [f"{first}.html", "explorers.html"]
    assert re.sub(r"<[^>]+>", "", links[1]).strip().startswith("Start with chapter 1")


@pytest.mark.browser
def test_buttons_are_directly_below_the_hero(visit):
    with visit(INTRO, reduced_motion="reduce") as page:
        page.set_viewport_size({"width": 1440, "height": 900})
        start, play = (page.locator(".start a").nth(i).bounding_box() for i in (0, 1))
        hero = page.locator(".hero").bounding_box()
        assert start
        assert play
        assert hero
        assert 0 < start["y"] - (hero["y"] + hero["height"]) < 60
        assert start["y"] + start["height"] <= 900
        assert start["height"] >= 44 <= play["height"]


@pytest.mark.browser
def test_buttons_are_in_the_first_screen_of_a_phone(visit):
    with visit(INTRO, reduced_motion="reduce") as page:
        page.set_viewport_size({"width": 390, "height": 844})
        above, start, formula = (page.locator(part).first.bounding_box() for part in (".h-act", ".start", ".h-formula"))
        assert above["y"] + above["height"] <= start["y"]
        assert start["y"] + start["height"] <= min(844, formula["y"])


# The controls in the order in which Tab reaches them, from the switch of the head on, each with its upper edge.
REACHED = """() => {
  const all = [...document.querySelectorAll(".hero :is(button, a), .start a")].filter((e) => !e.disabled);
  all.splice(0, all.findIndex((e) => e.matches(".h-cut")));
  return all.map((e) => [e.matches(".start a"), Math.round(e.getBoundingClientRect().top)]); }"""


@pytest.mark.browser
def test_tab_reaches_the_buttons_of_a_phone_in_the_order_in_which_they_are_seen(visit):
    with visit(INTRO, reduced_motion="reduce") as page:
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_function("document.querySelector('.hero .start')")
        reached = page.evaluate(REACHED)
        starts = [i for i, (is_start, _) in enumerate(reached) if is_start]
        assert starts == [starts[0], starts[0] + 1]
        before, after = ([top for _, top in part] for part in (reached[: starts[0]], reached[starts[1] + 1 :]))
        assert max(before) < reached[starts[0]][1] <= reached[starts[1]][1] < min(after)
        page.set_viewport_size({"width": 1440, "height": 900})
        page.wait_for_function("!document.querySelector('.hero .start')")
        assert [is_start for is_start, _ in page.evaluate(REACHED)][-2:] == [True, True]


def test_paths_have_the_times_of_the_chapters(extension):
    """The times in the page come from the notebooks; none is typed into its source."""
    paths, source = extension("reading_paths"), (ROOT / "book/intro.md").read_text(encoding="utf-8")
    assert not re.search(r"\d+ (?:minutes|hours)", source)
    ten, hour, term = re.search(r'id="three-ways-to-read-it">(.*?)</section>', read(INTRO), re.DOTALL)[1].split(
        "</li>"
    )[:3]
    hours = [int(number) for number in re.findall(r"(\d+) hours", term)]
    assert int(re.search(r"(\d+) minutes together", ten)[1]) <= 10
    assert int(re.search(r"this takes (\d+) minutes", hour)[1]) <= 60
    shown = [read(f"{file}.html") for file, _ in chapters()]
    minutes = sum(int(re.search(r"With everything:</strong> (\d+) minutes", page)[1]) for page in shown)
    assert hours[0] == round(minutes / 60)
    assert 1 < len(re.findall(r"href=", hour)) < len(re.findall(r"href=", ten))
    assert len(shown) == int(re.search(r"all (\d+) chapters", term)[1])
    assert paths.MARK not in read(INTRO)


# --- the cards --------------------------------------------------------------------------------------------------------


def chapters() -> list[tuple[str, str]]:
    """Return the pages and titles in the numbered parts of _toc.yml."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    numbered = [part for part in toc["parts"] if part.get("numbered")]
    return [(chapter["file"], chapter["title"]) for part in numbered for chapter in part["chapters"]]


def test_every_chapter_has_a_card_in_order():
    wanted = [(f"{file.removeprefix('book/')}.html", f"{i}. {title}") for i, (file, title) in enumerate(chapters(), 1)]
    assert [(address, title) for address, _, title, _ in cards(INTRO)] == wanted
    assert len(wanted) >= 10
    assert all(len(question.split()) > 2 for *_, question in cards(INTRO))
    drawn = [drawing for _, drawing, *_ in cards(INTRO) if drawing.startswith("<svg")]
    assert len(set(drawn)) == len(drawn) >= 10
    assert all('aria-hidden="true"' in drawing for drawing in drawn)


def test_questions_and_drawings_belong_to_existing_pages(extension):
    names = {file.rsplit("/", 1)[-1] for file, _ in chapters()}
    assert set(extension("gallery").QUESTIONS) <= names
    explorers = {address.removeprefix("#") for address, *_ in cards(EXPLORERS)}
    assert set(extension("thumbnails").DRAWINGS) <= names | explorers


def test_card_without_a_drawing_is_plain(extension):
    gallery = extension("gallery")
    assert gallery.thumbnail("not-drawn-yet") == ""
    plain = gallery.card("a.html", gallery.thumbnail("not-drawn-yet"), "11. A <new> chapter", "What for?")
    assert plain == '<li><a href="a.html"><i></i><b>11. A &lt;new&gt; chapter</b><span>What for?</span></a></li>'


def test_every_explorer_has_a_card_and_an_anchor():
    page = read(EXPLORERS)
    headings = re.findall(r"<h2>(\w+): ", page)
    assert [address for address, *_ in cards(EXPLORERS)] == [f"#{name.lower()}" for name in headings]
    assert len(headings) == page.count('<div class="explorer ') >= 10
    assert [title for _, _, title, _ in cards(EXPLORERS)] == headings
    assert all(drawing.startswith("<svg") and question for _, drawing, _, question in cards(EXPLORERS))
    assert page.index('<ul class="gallery') < page.index("Show the imports")


def test_add_explorer_cards_changes_only_the_explorers_page(extension):
    gallery, env = extension("gallery"), SimpleNamespace(docname="book/attention/masks")

    section = nodes.section(
        "", nodes.title("", "Masks: who"), nodes.raw("", '<div class="explorer x-masks">', format="html")
    )
    doctree = new_document("")
    doctree.append(section)
    gallery.add_explorer_cards(SimpleNamespace(env=env), doctree)
    assert list(doctree) == [section]
    env.docname = gallery.EXPLORERS
    gallery.add_explorer_cards(SimpleNamespace(env=env), doctree)
    assert '<a href="#masks">' in doctree[0].astext()


@pytest.mark.browser
@pytest.mark.parametrize(
    ("address", "width", "height"), [("#clocks", 360, 740), ("#tiles-flashattention-one-tile-at-a-time", 1440, 900)]
)
def test_explorers_page_scrolls_to_the_anchor(browser, site, address, width, height):
    """Elements above it change their height while the page loads."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(f"{site}/{EXPLORERS}{address}")
    page.wait_for_load_state("load")
    heading = page.locator("h2", has_text="Clocks:" if address == "#clocks" else "Tiles:").element_handle()
    page.wait_for_function(RESTS_NEAR_THE_TOP, arg=heading)
    page.close()


@pytest.mark.browser
def test_card_links_to_its_explorer(visit):
    with visit(EXPLORERS) as page:
        page.locator(".gallery a", has_text="Walk").click()
        page.wait_for_function("location.hash === '#walk'")
        page.wait_for_function("Math.abs(document.getElementById('walk').getBoundingClientRect().top - 64) < 120")


@pytest.mark.browser
def test_initial_state_of_the_heads_explorer_answers_its_question(visit):
    """The selected word is *that*, and only one head of layer 1 attends to the queen."""
    with visit(EXPLORERS) as page:
        figure = page.locator(".explorer", has=page.get_by_label("Sentence"))
        assert figure.locator(".x-query").text_content() == "that"
        cells = "all => all.map((r) => ['x', 'y', 'fill-opacity'].map((name) => Number(r.getAttribute(name))))"
        shares = figure.locator("rect.x-solid").evaluate_all(cells)
        columns, rows = sorted({x for x, *_ in shares}), sorted({y for _, y, _ in shares})
        queen = [share for x, y, share in shares if x in columns[:4] and y == rows[1]]
        assert [share > 0.9 for share in queen] == [True, False, False, False]


# --- ticks ------------------------------------------------------------------------------------------------------------

CHAPTER = "book/attention/scaling.html"
LAST = "document.querySelector('.container.remember').scrollIntoView()"
MARKED = "Object.keys(localStorage).filter((key) => key.startsWith('read ')).length"


def ticked(page) -> list[str]:
    """Return the titles of the cards with a tick."""
    return [card.locator("b").inner_text() for card in page.locator(".gallery li:has(.tick)").all()]


@pytest.mark.browser
@pytest.mark.parametrize("from_files", [True, False], ids=["files", "server"])
def test_card_has_a_tick_once_remember_was_on_the_screen(visit, from_files):
    with visit(INTRO, from_files=from_files, reduced_motion="reduce") as page:
        assert ticked(page) == []
        assert page.locator(".gallery-note").count() == 0
        page.locator(".gallery a", has_text="4. Scaling").click()
        page.wait_for_load_state("load")
        assert page.evaluate(MARKED) == 0  # it was opened, not read
        page.evaluate(LAST)
        page.wait_for_function(f"{MARKED} === 1")
        page.go_back()
        page.locator(".tick").wait_for()
        assert ticked(page) == ["4. Scaling"]
        card = page.get_by_role("link", name=re.compile(r"^4\. Scaling .*\? ?Read$"))
        assert card.count() == 1, "the tick has a text alternative"
        assert page.locator(".gallery-note").inner_text().startswith(f"You have read 1 of {len(chapters())} chapters")
        page.get_by_role("button", name="Forget this").click()
        assert ticked(page) == []
        assert page.evaluate(MARKED) == 0


@pytest.mark.browser
def test_first_page_without_local_storage_has_no_ticks(browser):
    page = browser.new_page()
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('refused'); } })"
    )
    errors = []
    page.on("pageerror", lambda error: errors.append(f"{error} {error.stack}"))
    page.goto((HTML / INTRO).as_uri())
    assert ticked(page) == []
    page.goto((HTML / CHAPTER).as_uri())
    page.evaluate(LAST)
    page.goto((HTML / INTRO).as_uri())
    assert ticked(page) == []
    assert not [error for error in errors if "progress.js" in error]  # the theme needs its store
    page.close()
