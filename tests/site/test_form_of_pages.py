"""The form of a chapter on its page: the box, the switch, the length, and what a link, a search or a printer opens."""

import json
import re
from pathlib import Path

import pytest
from built_site import HTML
from times import core, sections
from visits import each_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(page.relative_to(HTML))
    for page in HTML.glob("book/*/*.html")
    if page.parent.name not in ("back", "questions", "reference")
)
LONG = ("vision-and-language", "sequences-graphs-decisions", "flash")
every_chapter = each_of(PAGES)

SPARED = ":is(h1, h2, h3, .so, .in-short, .remember)"  # what no guess may hide
MEASURED = """() => {
  const seen = (e) => e.checkVisibility({ contentVisibilityAuto: true });
  const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
  const height = document.documentElement.scrollHeight;
  return {
    screens: height / 900,
    hidden: all('.g-bar').reduce((sum, bar) => sum + bar.offsetHeight, 0) / height,
    guesses: all('.guess').length,
    cut: all('.cell_input pre').filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent),
  };
}"""
TARGETS = """() => [...document.querySelectorAll('details.fold')].flatMap((fold) =>
  [fold.parentElement, ...fold.querySelectorAll('figure[id], div.math[id], .cell [id^=fig]')].map((e) => e.id)
).filter(Boolean)"""
FOLLOW = """(name) => {
  for (const fold of document.querySelectorAll('details.fold')) fold.open = false;
  location.hash = '';
  location.hash = name;
}"""
OPEN = """(name) => {
  const target = document.getElementById(name);
  return (target.closest('details') ?? target.querySelector('details')).open && target.checkVisibility();
}"""
MISSING_ON_PAPER = """() => [...document.querySelectorAll('.g-away, details.fold p')].filter((e) =>
  !e.checkVisibility({ contentVisibilityAuto: true }) && !e.closest('details:not(.fold), .only-print, .cell')
).map((e) => e.textContent)"""


def notebook_of(path: str) -> Path:
    return (ROOT / path).with_suffix(".ipynb")


def article(path: str) -> str:
    """The page from its switch on; before it stand the menus, and the contents for the printer."""
    page = (HTML / path).read_text(encoding="utf-8")
    return page[page.index('class="g-mode"') : page.index("</article>")]


@every_chapter
def test_the_page_has_box_switch_summary_and_times(path):
    page = article(path)
    order = [page.index(part) for part in ("in-short", "<strong>Core:</strong>", 'id="remember"')]
    assert order == sorted(order)
    assert re.search(r'class="(explorer|drawing)\b', page.partition("<h2>")[0])
    remember = re.search(r'id="remember".*?</ul>', page, re.DOTALL)[0]
    assert 3 <= remember.count("<li>") <= 6
    assert remember.count('internal" href="#') == remember.count("<li>")


@every_chapter
def test_the_core_is_short_and_each_section_ends_with_its_answer(path):
    found = core(sections(notebook_of(path)))
    assert sum(section.words for section in found) <= 2500
    assert sum(section.lines for section in found) <= 60
    assert sum(section.guesses for section in found) <= 6
    for part in article(path).partition('id="remember"')[0].split("<h2>")[1:]:
        *_, last = re.findall(r"<p(?: class=\"[^\"]*\")?>", part)
        assert last == '<p class="so">', re.sub("<.*?>", "", part[:80])


@every_chapter
def test_plumbing_is_folded(path):
    for cell in json.loads(notebook_of(path).read_text(encoding="utf-8"))["cells"]:
        source, tags = "".join(cell["source"]), set(cell["metadata"].get("tags", []))
        if cell["cell_type"] == "code" and re.search(r"\.reveal\(|^glue\(|^table\(", source, re.MULTILINE):
            assert tags & {"hide-input", "hide-cell", "remove-input", "remove-cell"}, cell["id"]


@pytest.mark.browser
@every_chapter
def test_the_page_on_arrival(visit, path):
    with visit(path) as page:
        found = page.evaluate(MEASURED)
        assert found["screens"] <= (25 if path.removesuffix(".html").endswith(LONG) else 18)
        assert found["hidden"] <= 0.02
        assert found["guesses"] <= 6
        assert found["cut"] == []
        assert page.locator(f".g-away{SPARED}, .g-away {SPARED}").count() == 0


@pytest.mark.browser
@every_chapter
def test_links_open_what_they_lead_into(visit, path):
    with visit(path) as page:
        targets = page.evaluate(TARGETS)
        assert targets
        for name in targets:
            page.evaluate(FOLLOW, name)
            page.wait_for_function(OPEN, arg=name)


@pytest.mark.browser
@every_chapter
def test_just_read_hides_nothing_and_is_remembered(visit, path):
    with visit(path) as page:
        assert page.locator(".g-away").count() > 0
        first = page.locator(".g-away").first
        assert first.get_attribute("hidden") == "until-found"
        page.get_by_role("radio", name="Guess first").press("ArrowRight")
        assert page.locator(".g-away, .g-bar:visible").count() == 0
        page.reload()
        page.wait_for_function("document.readyState === 'complete'")
        assert page.get_by_role("radio", name="Just read").is_checked()
        assert page.locator(".g-away, .g-bar:visible").count() == 0


@pytest.mark.browser
@every_chapter
def test_on_paper_and_without_scripts_everything_is_there(visit, path):
    with visit(path) as page:
        page.emulate_media(media="print")
        assert page.evaluate(MISSING_ON_PAPER) == []
    with visit(path, java_script_enabled=False) as page:
        assert page.locator(".g-mode:visible, .g-bar").count() == 0
        page.locator("details.fold > summary").first.click()
        assert page.locator("details.fold[open]").count() == 1
