"""The page 404, as a server shows it: at an address that does not exist, at any depth, of a site in a folder."""

import mimetypes
import re
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from built_site import HTML

pytestmark = pytest.mark.browser

HOST, FOLDER = "http://book.test", "/attention-book/"
DEEP = f"{HOST}{FOLDER}book/attention/no/such/page.html?q=1"


@pytest.fixture
def lost(browser, monkeypatch):
    """Open the page at an address that does not exist, of a site that is published in a folder."""
    from built_site import ROOT

    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    from not_found import with_absolute_links

    page_404 = with_absolute_links((HTML / "404.html").read_text(encoding="utf-8"), FOLDER)
    missing = []

    def answer(route):
        path = unquote(urlsplit(route.request.url).path)
        file = HTML / path.removeprefix(FOLDER)
        if path.startswith(FOLDER) and file.is_file():
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            route.fulfill(body=file.read_bytes(), content_type=kind)
        else:
            missing.append(route.request.url)
            route.fulfill(status=404, body=page_404, content_type="text/html")

    context = browser.new_context(viewport={"width": 360, "height": 740})
    context.route("**/*", answer)
    page = context.new_page()
    page.goto(DEEP)
    page.wait_for_load_state("load")
    assert missing == [DEEP]
    yield page, missing
    context.close()


def test_page_404_loads_its_styles_and_scripts_at_any_depth(lost):
    page, missing = lost
    assert page.locator("h1", has_text="Page not found").is_visible()
    face = page.locator(".bd-article h1").evaluate("(e) => getComputedStyle(e).fontFamily")
    assert face.startswith('"Book Sans"')
    assert missing == [DEEP]
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    serious = [v["id"] for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert serious == []


def test_links_of_the_page_404_lead_to_pages(lost):
    page, _ = lost
    links = page.evaluate("[...document.querySelectorAll('a[href]')].map((a) => a.href)")
    own = {
        unquote(urlsplit(link).path) for link in links if link.startswith(HOST) and not re.search("page.html.*#", link)
    }
    assert len(own) > 40
    assert [link for link in own if not (HTML / link.removeprefix(FOLDER)).is_file()] == []


def test_search_field_of_the_page_404_finds_a_section(lost):
    page, missing = lost
    page.locator(".not-found input").fill("rope")
    page.locator(".not-found button").click()
    page.wait_for_url(f"{HOST}{FOLDER}search.html?q=rope")
    page.locator("#search-results a[href*='positions']").first.wait_for()
    assert missing == [DEEP]
