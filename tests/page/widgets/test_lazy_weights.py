"""Tests of lazy loading: a page of the book fetches a trained model when the reader comes near its explorer."""

import gzip
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from lessons_lib.page.widgets import BirthExplorer, GPTExplorer, HeadsExplorer, PatternExplorer, WalkExplorer

ROOT = Path(__file__).parents[3]
BOOK = (ROOT / "book/_static/book.js").read_text(encoding="utf-8")
STATE = "e => Object.fromEntries(Object.keys(e.explorer.start).map((name) => [name, e.explorer.model.get(name)]))"


@pytest.fixture
def extract_heavy_parts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "book/_ext"))
    yield import_module("lazy_weights").extract_heavy_parts
    sys.modules.pop("lazy_weights", None)


@pytest.fixture
def book(browser, tmp_path, extract_heavy_parts, monkeypatch):
    """A page of the book from the disk, with space before each explorer; ``fetched`` lists its requests."""
    once = import_module("cell_folding").PART
    context, errors = browser.new_context(viewport={"width": 900, "height": 700}), []

    def opened(*explorers, at="", before=3000):
        seen: set[str] = set()
        space = f'<div style="height: {before}px"></div>'
        body = "".join(space + explorer.to_html() for explorer in explorers) + space
        body = once.sub(lambda found: "" if found[0] in seen else (seen.add(found[0]), found[0])[1], body)
        body, files = extract_heavy_parts(body, "parts")
        (tmp_path / "parts").mkdir(exist_ok=True)
        for key, text in files.items():
            (tmp_path / "parts" / f"{key}.js").write_text(text, encoding="utf-8")
        buttons = "".join(f'<button class="{kind}-toggle"></button>' for kind in ("primary", "secondary"))
        page_file = tmp_path / "page.html"
        page_file.write_text(
            f'<!doctype html><meta charset="utf-8">{buttons}{body}<script>{BOOK}</script>', encoding="utf-8"
        )
        page = context.new_page()
        page.fetched = []
        page.on("request", lambda request: page.fetched.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(page_file.as_uri() + at)
        return page

    yield opened
    context.close()
    sys.modules.pop("cell_folding", None)
    assert errors == []


def models(page, name="gpt_model"):
    return [url for url in page.fetched if name in url]


def test_light_explorer_is_not_changed(extract_heavy_parts):
    page = WalkExplorer().to_html() + HeadsExplorer().to_html()
    assert extract_heavy_parts(page, "parts") == (page, {})


def test_model_is_moved_to_a_file_and_only_its_users_wait(extract_heavy_parts):
    whole = WalkExplorer().to_html() + GPTExplorer().to_html()
    page, files = extract_heavy_parts(whole, "../_static/parts")
    english, key = files
    assert (english.split("-")[0], key.split("-")[0]) == ("gpt_english", "gpt_model")
    assert all(f'<script data-part="{one}">{text}</script>' in whole for one, text in files.items())
    waiting = re.findall(r'<script(?: data-part="([\w.]+)-\w+")? type="text/plain" data-later="([^"]+)">', page)
    assert waiting == [("", f"../_static/parts/{key}.js")]
    taken = sum(len(f'<script data-part="{one}">{text}</script>') for one, text in files.items())
    told = len(f' type="text/plain" data-later="../_static/parts/{key}.js"') + len(f',"../_static/parts/{english}.js"')
    assert len(page) == len(whole) - taken + told


def test_gpt_model_and_page_are_small_when_compressed(extract_heavy_parts):
    page, files = extract_heavy_parts(GPTExplorer().to_html(), "parts")
    english, stories = (len(gzip.compress(text.encode())) for text in files.values())
    assert stories < 125_000
    assert stories + english < 300_000
    assert len(gzip.compress(page.encode())) < 28_500


def test_second_explorer_of_a_model_adds_little(extract_heavy_parts):
    page, files = extract_heavy_parts(PatternExplorer().to_html(), "parts")
    assert files.items() < extract_heavy_parts(GPTExplorer().to_html(), "parts")[1].items()
    assert [key.split("-")[0] for key in files] == ["gpt_model"]
    assert len(gzip.compress(page.encode())) < 25_500


def test_birth_model_and_page_are_small_when_compressed(extract_heavy_parts):
    """The files have 257 kB, most of them weights, which do not compress further."""
    page, files = extract_heavy_parts(BirthExplorer().to_html(), "parts")
    assert [key.split("-")[0] for key in files] == ["birth_model"]
    assert sum(len(gzip.compress(text.encode())) for text in files.values()) < 262_000
    assert len(gzip.compress(page.encode())) < 23_000


@pytest.mark.browser
def test_model_is_fetched_once_when_the_explorer_is_near(book):
    page = book(WalkExplorer(), GPTExplorer(), GPTExplorer("the king", 1))
    cards = page.locator("div.explorer")
    assert models(page) == []
    assert cards.nth(1).locator(".x-body").count() == 0
    assert cards.nth(1).locator(".x-still svg").count() == 1
    cards.nth(2).scroll_into_view_if_needed()  # by the last one first
    cards.nth(2).locator(".x-body").wait_for()
    assert cards.nth(2).locator(".g-next button").first.inner_text() != ""
    cards.nth(1).scroll_into_view_if_needed()
    cards.nth(1).locator(".x-body").wait_for()
    assert cards.locator(".x-still").count() == 0
    assert len(models(page)) == 1
    cards.nth(1).get_by_role("button", name="Write a word").press("Enter")
    page.wait_for_function("location.hash.includes('words=')")
    assert "explore=gpt&" in page.evaluate("location.hash")


@pytest.mark.browser
@pytest.mark.parametrize("event", ["scroll", "pointerdown", "keydown"])
def test_model_at_the_lower_edge_of_the_window_waits_for_the_reader(book, event):
    """Three chapters begin with the trained GPT: without its model they open within 450 kB."""
    page = book(GPTExplorer(), before=600)  # of the 700 pixels of the window
    card = page.locator("div.explorer")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert 600 <= card.bounding_box()["y"] < 700
    assert models(page) == []
    page.evaluate(f"window.dispatchEvent(new Event({event!r}))")
    card.locator(".x-body").wait_for()
    assert len(models(page)) == 1


@pytest.mark.browser
def test_address_loads_its_explorer(book):
    page = book(WalkExplorer(), GPTExplorer(), at="#explore=gpt&top_k=5&words=the+king+waits&query=999")
    card = page.locator("div.explorer").nth(1)
    card.locator(".x-body").wait_for()
    state = card.evaluate(STATE)
    assert (state["top_k"], state["words"], state["query"]) == (5, "the king waits", 239)
    assert len(models(page)) == 1


@pytest.mark.one_case
@pytest.mark.browser
@pytest.mark.parametrize(
    "address",
    ["words=<script>alert(1)</script>", "words=the++king", "words=the king emperor&query=1", "words=&top_p=0"],
)
def test_invalid_story_in_the_address_is_ignored(book, address):
    page = book(GPTExplorer(), at=f"#explore=gpt&{address}")
    card = page.locator("div.explorer")
    card.locator(".x-body").wait_for()
    assert card.evaluate(STATE)["words"] == GPTExplorer().words
    assert not re.search("NaN|undefined|emperor", card.locator(".x-body").inner_html())


@pytest.mark.one_case
@pytest.mark.browser
@pytest.mark.parametrize(
    "address", ["symbols=<script>alert(1)</script>", "symbols=", "symbols=bird&step=120", "hide=[7]"]
)
def test_invalid_symbols_in_the_address_are_ignored(book, address):
    page = book(BirthExplorer(), at=f"#explore=birth&{address}")
    card = page.locator("div.explorer")
    card.locator(".x-body").wait_for()
    assert card.evaluate(STATE)["symbols"] == BirthExplorer().symbols
    assert not re.search("NaN|undefined|alert", card.locator(".x-body").inner_html())


@pytest.mark.one_case
@pytest.mark.browser
@pytest.mark.parametrize("address", ["words=<script>alert(1)</script>", "words=the++king", "head=3.1", "off=[7]"])
def test_invalid_words_and_heads_in_the_address_are_ignored(book, address):
    page = book(PatternExplorer(), at=f"#explore=reader&{address}")
    card = page.locator("div.explorer")
    card.locator(".x-body").wait_for()
    state = card.evaluate(STATE)
    assert (state["words"], state["head"], state["off"]) == (PatternExplorer().words, "1.1", [])
    assert not re.search("NaN|undefined|alert", card.locator(".x-body").inner_html())


@pytest.mark.browser
def test_english_model_is_fetched_once_when_its_tab_opens(book):
    page = book(GPTExplorer(), GPTExplorer("the king", 1))
    cards = page.locator("div.explorer")
    cards.nth(1).scroll_into_view_if_needed()
    cards.nth(1).locator(".g-next").wait_for()
    assert models(page, "gpt_english") == []
    cards.nth(1).get_by_role("tab", name="English").click()
    cards.nth(1).get_by_role("textbox", name="Text").wait_for()
    cards.nth(0).scroll_into_view_if_needed()
    cards.nth(0).get_by_role("tab", name="English").click()
    cards.nth(0).get_by_role("textbox", name="Text").fill("The val")
    assert len(models(page, "gpt_english")) == len(models(page)) == 1
    page.wait_for_function("location.hash.includes('text=The+val')")
    assert "model=english" in page.evaluate("location.hash")


@pytest.mark.browser
def test_address_opens_the_tab_and_invalid_text_is_ignored(book):
    for text, kept in (("The+va", "The va"), ("<script>alert(1)</script>", "The go"), ("", "The go")):
        page = book(GPTExplorer(), at=f"#explore=gpt&model=english&query=5&text={text}")
        card = page.locator("div.explorer")
        card.locator(".x-body").wait_for()
        state = card.evaluate(STATE)
        assert (state["text"], state["model"]) == (kept, "english" if kept == "The va" else "stories")
        card.locator(".g-next").wait_for()
        assert not re.search("NaN|undefined|alert", card.locator(".x-body").inner_html())
        page.close()


@pytest.mark.browser
def test_failed_fetch_is_shown_and_retried(book, tmp_path):
    page = book(GPTExplorer())
    card = page.locator("div.explorer")
    card.scroll_into_view_if_needed()
    card.locator(".g-next").wait_for()
    (file,) = (tmp_path / "parts").glob("gpt_english-*.js")
    text = file.read_text(encoding="utf-8")
    file.unlink()
    card.get_by_role("tab", name="English").click()
    card.get_by_text("The model could not be fetched.").wait_for()
    file.write_text(text, encoding="utf-8")
    card.get_by_role("tab", name="Stories").click()
    card.get_by_role("tab", name="English").click()
    card.get_by_role("textbox", name="Text").wait_for()


@pytest.mark.browser
def test_address_of_another_explorer_fetches_nothing(book):
    page = book(WalkExplorer(), GPTExplorer(), at="#explore=walk&layers=2")
    assert page.locator("div.explorer").first.evaluate(STATE)["layers"] == 2
    assert models(page) == []
