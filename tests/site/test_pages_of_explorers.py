"""The page of each explorer: it opens alone, carries what a shared link shows, and copies its state and its frame."""

import json
import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest
from build_book import placeholder_notice
from built_site import HTML, read
from thorough import all_but
from visits import Seen, each_of

PAGES = sorted(f"explorers/{page.name}" for page in HTML.glob("explorers/*.html"))
FIRST = {"explorers/masks.html", "explorers/gpt.html"}  # gpt fetches a trained model
every_page = pytest.mark.parametrize("path", PAGES)
some_pages_first = pytest.mark.parametrize("path", all_but(PAGES, lambda path: path in FIRST))
STATE = "e => Object.fromEntries(Object.keys(e.explorer.start).map(name => [name, e.explorer.model.get(name)]))"
CLIPBOARD = {"permissions": ["clipboard-read", "clipboard-write"]}


def test_every_explorer_has_a_page_and_a_link_to_it():
    shown = re.findall(r'<div class="explorer x-(\w+)"', read("book/explorers.html"))
    linked = re.findall(r'<a href="\.\./(explorers/[\w.]+)">', read("book/explorers.html"))
    assert linked == [f"explorers/{name}.html" for name in shown]
    assert sorted(linked) == PAGES
    assert len(PAGES) > 15


@every_page
def test_page_has_its_question_chapter_and_picture(path):
    page, name = read(path), path.split("/")[1].removesuffix(".html")
    (question,) = re.findall(r"<h1>(.*?)</h1>", page)
    assert f'<p class="x-question">{question}</p>' in page
    assert f"<title>{question} — Attention, understood</title>" in page
    assert f'<meta property="og:title" content="{question}">' in page
    (description,) = re.findall(r'<meta name="description" content="([^"]+)">', page)
    assert 50 <= len(unescape(description)) <= 225
    (chapter,) = re.findall(r'The chapter <a href="\.\./(book/[^"]+)">[^<]+</a> explains the figure\.', page)
    on_explorers_page_only = name in ("reach", "recall")
    assert on_explorers_page_only or f"explore={name}" in read(chapter) or f"explorer x-{name}" in read(chapter)
    assert 1_000 < (HTML / f"_static/cards/explorer-{name}.png").stat().st_size < 30_000
    assert (f"/_static/cards/explorer-{name}.png" in page) == (not placeholder_notice())


def test_pages_have_different_titles_descriptions_and_pictures():
    for found in (
        [re.findall(r"<title>.*?</title>", read(path)) for path in PAGES],
        [re.findall(r'<meta name="description".*?>', read(path)) for path in PAGES],
        [file.read_bytes() for file in (HTML / "_static/cards").glob("explorer-*.png")],
    ):
        assert len(found) == len(PAGES)
        assert len(set(map(str, found))) == len(found)


@pytest.mark.browser
@each_of(PAGES)
def test_page_is_small(measured):
    """A trained model adds to this at once, since the explorer is at the top."""
    own = {url: size for url, size in measured.weights.items() if "/_static/parts/" not in url}
    assert 20_000 < sum(own.values()) < 130_000, own
    assert sum(measured.weights.values()) < 450_000
    assert not any(word in url for url in own for word in ("mathjax", "pydata", "bootstrap", "theme"))


@pytest.mark.browser
@some_pages_first
def test_copied_link_restores_the_state(visit, path):
    with visit(path, **CLIPBOARD) as page:
        card = page.locator("div.explorer")
        card.locator(".x-tries a").last.click()
        wanted = card.evaluate(STATE)
        page.get_by_role("button", name="Copy link").press("Enter")
        page.get_by_role("status").get_by_text("as it is set now").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith(page.url.split("#")[0])
        assert page.seen.rest(page) == Seen()
    with visit(copied[copied.index("explorers/") :]) as page:
        assert page.locator("div.explorer").evaluate(STATE) == wanted


@pytest.mark.browser
@some_pages_first
def test_frame_shows_the_explorer_alone_in_its_state(visit, path):
    with visit(path, **CLIPBOARD) as page:
        card = page.locator("div.explorer")
        card.locator(".x-tries a").first.click()
        wanted, height = card.evaluate(STATE), card.evaluate("e => e.offsetHeight")
        page.get_by_text("Embed", exact=True).click()
        page.get_by_role("button", name="Copy the line").click()
        line = page.evaluate("navigator.clipboard.readText()")
        assert line == page.get_by_label("HTML that embeds the explorer").input_value()
    (source,), (frame_height,) = re.findall(r'src="([^"]+)"', line), re.findall(r'height="(\d+)"', line)
    address = urlsplit(unescape(source))
    assert height <= int(frame_height) <= height + 20
    assert address.path.endswith(path.split("/")[1])
    assert parse_qs(address.fragment)["explore"] == [path.split("/")[1].removesuffix(".html")]
    assert (address.netloc == "") == bool(placeholder_notice())
    with visit(f"{path}?{address.query}#{address.fragment}") as page:
        assert page.locator("div.explorer").evaluate(STATE) == wanted
        for part in ("header", "h1", ".about", ".share"):
            assert not page.locator(part).is_visible()
        assert page.locator(".x-question").is_visible()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_from_files_links_to_chapter_and_explorers(visit, scheme):
    with visit("explorers/masks.html", from_files=True, color_scheme=scheme) as page:
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        page.locator(".about a.sets-explorer").first.click()
        assert page.locator("div.explorer").evaluate(STATE)["parts"] == ["sliding_window 4", "| global_tokens 0"]
        page.get_by_role("link", name="All explorers").click()
        page.wait_for_url("**/book/explorers.html#masks")
        page.go_back()
        page.get_by_role("link", name="Masks", exact=True).click()
        page.wait_for_url("**/book/attention/masks.html")


# --- links in the chapters ------------------------------------------------------------------------------------------

SETS = re.compile(r'<a class="sets-explorer[^"]*" href="(#explore=[^"]+)">')
LINKED = sorted(str(page.relative_to(HTML)) for page in HTML.glob("book/**/*.html") if SETS.search(read(str(page))))


def in_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


@pytest.mark.browser
@pytest.mark.parametrize("path", all_but(LINKED, lambda path: path == "book/attention/masks.html"))
def test_links_of_a_chapter_set_what_they_name(visit, path):
    """The values in the address are those of the traits afterwards, and the figure is drawn."""
    with visit(path) as page:
        page.evaluate("document.querySelectorAll('details.fold').forEach((fold) => { fold.open = true; })")
        for link in page.locator("a.sets-explorer").all():
            link.press("Enter")
            hash_ = str(link.get_attribute("href"))
            page.wait_for_function("hash => location.hash === hash", arg=hash_)
            values = {name: value for name, (value,) in parse_qs(hash_[1:]).items()}
            card = page.locator(f"div.explorer.x-{values.pop('explore')}").first
            found = card.evaluate(STATE)
            texts = {name: value if isinstance(value, str) else in_json(value) for name, value in found.items()}
            assert {name: texts[name] for name in values} == values
            assert not card.evaluate("e => /NaN|Infinity|undefined/.test(e.querySelector('.x-body').innerHTML)")
        assert page.seen.rest(page) == Seen()
