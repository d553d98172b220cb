"""The page of questions: links that set explorers, links to share, and printing."""

import html
import json
import re
from urllib.parse import parse_qsl

import pytest
from built_site import HTML
from visits import STARTED

PAGE = "book/questions.html"
SHARED = sorted(path.stem for path in HTML.glob("book/questions/*.html"))
VALUES_OF = """(name) => {
  const card = [...document.querySelectorAll("div.explorer")].find((e) => e.explorer?.name === name);
  const { start, model } = card.explorer;
  return Object.fromEntries(Object.keys(start).map((trait) => [trait, model.get(trait)]));
}"""


def answers() -> dict[str, str]:
    """Return the text of each answer on the page by its anchor; a formula is one word."""
    page = (HTML / PAGE).read_text(encoding="utf-8")
    found = re.findall(r'<section id="([\w-]+)">(?:(?!<section).)*?<h3>.*?</h3>\s*<p>(.*?)</p>', page, re.DOTALL)
    plain = {anchor: re.sub(r"<mjx-container.*?</mjx-container>", "x", text, flags=re.DOTALL) for anchor, text in found}
    return {a: " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split()) for a, text in plain.items()}


def explored() -> list[str]:
    """Return the addresses that set an explorer, relative to the site."""
    page = (HTML / PAGE).read_text(encoding="utf-8")
    return [html.unescape(found) for found in re.findall(r'href="\.\./(explorers/[^"]+#explore=[^"]+)"', page)]


@pytest.mark.browser
def test_links_set_explorers(visit):
    addresses = explored()
    assert len(addresses) >= 15
    for address in addresses:
        wanted = dict(parse_qsl(address.partition("#")[2]))
        name = wanted.pop("explore")
        with visit(address) as page:
            set_to = page.evaluate(VALUES_OF, name)
            assert not page.locator(".explorer [inert]").count(), f"{address} hides its figure behind a guess"
        for trait, text in wanted.items():
            assert set_to[trait] == text or set_to[trait] == json.loads(text), address


@pytest.mark.browser
def test_no_group_of_the_list_is_divided_between_columns(visit):
    with visit(PAGE) as page:
        groups = page.locator(".question-list > ul")
        places = [[item.bounding_box()["x"] for item in group.locator("li").all()] for group in groups.all()]
        heads = [head.bounding_box()["x"] for head in page.locator(".question-list > p").all()]
    assert len({x for group in places for x in group}) == 2
    assert all(len(set(group)) == 1 for group in places)
    assert [min(group) - head < 40 for group, head in zip(places, heads, strict=True)] == [True] * len(heads)


@pytest.mark.browser
def test_copy_link_copies_the_address_of_the_question(browser, site):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{site}/{PAGE}")
    page.wait_for_function(STARTED)
    link = page.locator("#kv-cache a.question-link")
    link.click()
    page.locator("#kv-cache a.question-link", has_text="Link copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == f"{site}/book/questions/kv-cache.html"
    context.close()


@pytest.mark.browser
def test_shared_page_leads_to_the_question(browser, site):
    page = browser.new_page()
    page.goto(f"{site}/book/questions/kv-cache.html")
    page.wait_for_url(f"{site}/{PAGE}#kv-cache")
    assert page.locator("#kv-cache h3").bounding_box()["y"] < 400
    page.close()


def test_every_shared_page_has_a_title_a_description_and_a_target():
    page = (HTML / PAGE).read_text(encoding="utf-8")
    assert len(SHARED) == page.count('class="question-link"')
    for anchor in SHARED:
        shared = (HTML / f"book/questions/{anchor}.html").read_text(encoding="utf-8")
        assert f"url=../questions.html#{anchor}" in shared
        assert f'<section id="{anchor}">' in page
        said = html.unescape(re.search(r'property="og:description" content="([^"]*)"', shared)[1])
        assert 50 <= len(said) <= 225
        assert not re.search(r"[\\${}`\[\]\0]|\w_\w|<|::|=", said), "a formula, MyST or code"
        assert (HTML / f"_static/cards/questions/{anchor}.png").stat().st_size < 30_000


def test_shared_description_begins_as_the_answer():
    found = answers()
    assert set(found) == set(SHARED)
    for anchor, answer in found.items():
        shared = (HTML / f"book/questions/{anchor}.html").read_text(encoding="utf-8")
        said = html.unescape(re.search(r'property="og:description" content="([^"]*)"', shared)[1])
        assert said[:30] == answer[:30]


@pytest.mark.browser
def test_printed_page_shows_answers_and_no_buttons(visit):
    with visit(PAGE) as page:
        page.emulate_media(media="print")
        assert page.locator("#kv-cache > p").first.is_visible()
        assert page.locator("#kv-cache .question-links p").first.is_visible()
        assert not page.locator("#kv-cache a.question-link").is_visible()
