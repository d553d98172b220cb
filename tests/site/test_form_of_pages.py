"""The form of a chapter on its page: the box, the switch, the length, and what a link, a search or a printer opens."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from built_site import HTML
from times import core, sections
from visits import STARTED, WIDE, Seen, each_of, open_and_settle

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(page.relative_to(HTML))
    for page in HTML.glob("book/*/*.html")
    if page.parent.name not in ("back", "questions", "reference")
)
LONG = ("vision-and-language", "sequences-graphs-decisions", "flash")
VISITED = ("why-attention", "scaling", "train-gpt", "dynamics", "sequences-graphs-decisions", "flash")
every_chapter = each_of(PAGES)
some_chapters_first = each_of(PAGES, lambda path: Path(path).stem not in VISITED)

SPARED = ":is(h1, h2, h3, .so, .in-short, .remember)"  # what no guess may hide
MEASURED = f"""() => {{
  const seen = (e) => e.checkVisibility({{ contentVisibilityAuto: true }});
  const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
  const height = document.documentElement.scrollHeight;
  return {{
    screens: height / 900,
    hidden: all('.g-bar').reduce((sum, bar) => sum + bar.offsetHeight, 0) / height,
    guesses: all('.guess').length,
    cut: all('.cell_input pre').filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent),
    spared: document.querySelectorAll('.g-away{SPARED}, .g-away {SPARED}').length,
    covered: [...document.querySelectorAll('.g-away')].map((e) => e.getAttribute('hidden')),
  }};
}}"""
TARGETS = """() => [...document.querySelectorAll('details.fold')].flatMap((fold) =>
  [fold.parentElement, ...fold.querySelectorAll('figure[id], div.math[id], .cell [id^=fig]')].map((e) => e.id)
).filter(Boolean)"""
# Follow a link to each target, all folds being closed, and return those that are not shown a hundred frames later.
NOT_OPENED = """async (targets) => {
  const followed = (hash) => {
    const arrived = new Promise((done) => addEventListener('hashchange', done, { once: true }));
    location.hash = hash;
    return arrived;
  };
  const isOpen = (name) => {
    const target = document.getElementById(name);
    return (target.closest('details') ?? target.querySelector('details')).open && target.checkVisibility();
  };
  const left = [];
  for (const name of targets) {
    for (const fold of document.querySelectorAll('details.fold')) fold.open = false;
    await followed(name);
    for (let frames = 0; frames < 100 && !isOpen(name); frames++) await new Promise(requestAnimationFrame);
    if (!isOpen(name)) left.push(name);
    history.replaceState(null, '', location.pathname);
  }
  return left;
}"""
MISSING_ON_PAPER = """() => [...document.querySelectorAll('.g-away, details.fold p')].filter((e) =>
  !e.checkVisibility({ contentVisibilityAuto: true }) && !e.closest('details:not(.fold), .only-print, .cell')
).map((e) => e.textContent)"""
COVERED = ".g-away, .g-bar:visible"


@dataclass
class Form:
    """What one visit to a chapter shows, in this order."""

    arrival: dict  # see MEASURED
    missing_on_paper: list[str]
    targets: list[str]  # of links, in folds
    not_opened: list[str]  # those that a link does not open
    covered_in_just_read: int
    is_remembered: bool  # the choice, when the page is opened again
    covered_after_reload: int


@pytest.fixture(scope="module")
def form_of(tabs, site):
    """The form of a chapter, looked at once."""

    @cache
    def look(path: str) -> Form:
        seen = Seen()
        with tabs.lent(WIDE) as page, seen.watch(page, site):
            open_and_settle(page, seen, f"{site}/{path}")
            arrival = page.evaluate(MEASURED)
            page.emulate_media(media="print")
            missing = page.evaluate(MISSING_ON_PAPER)
            page.emulate_media(media="screen")
            targets = page.evaluate(TARGETS)
            not_opened = page.evaluate(NOT_OPENED, targets)
            page.get_by_role("radio", name="Guess first").press("ArrowRight")
            covered = page.locator(COVERED).count()
            page.reload()
            page.wait_for_function("document.readyState === 'complete'")
            page.wait_for_function(STARTED)
            remembered = page.get_by_role("radio", name="Just read").is_checked()
            after = page.locator(COVERED).count()
            assert seen.rest(page) == Seen()
        return Form(arrival, missing, targets, not_opened, covered, remembered, after)

    return look


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
@some_chapters_first
def test_the_page_on_arrival(form_of, path):
    found = form_of(path).arrival
    assert found["screens"] <= (25 if path.removesuffix(".html").endswith(LONG) else 18)
    assert found["hidden"] <= 0.02
    assert found["guesses"] <= 6
    assert found["cut"] == []
    assert found["spared"] == 0


@pytest.mark.browser
@some_chapters_first
def test_links_open_what_they_lead_into(form_of, path):
    assert form_of(path).targets
    assert form_of(path).not_opened == []


@pytest.mark.browser
@some_chapters_first
def test_just_read_hides_nothing_and_is_remembered(form_of, path):
    form = form_of(path)
    assert form.arrival["covered"][0] == "until-found"
    assert form.covered_in_just_read == 0
    assert form.is_remembered
    assert form.covered_after_reload == 0


@pytest.mark.browser
@some_chapters_first
def test_on_paper_and_without_scripts_everything_is_there(form_of, without_scripts, path):
    assert form_of(path).missing_on_paper == []
    shown = without_scripts(path)
    assert shown.guessing == 0
    assert shown.opened == 1
