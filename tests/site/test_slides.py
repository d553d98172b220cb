"""Tests of tools/build_slides.py: each deck has its parts, works from files, and nothing overflows a slide."""

from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from build_slides import QUESTIONS, answers_of, chapter_pages, for_the_room, write_decks
from built_site import HTML
from thorough import all_but
from visits import Seen

SIZE = {"width": 1280, "height": 720}
FEW = ("scaling", "modern")  # the explorer of the second is the highest
NAMES = [path.stem for path in sorted(HTML.glob("book/[ate]*/*.html")) if 'class="in-short' in path.read_text()]
DECKS = all_but(NAMES, lambda name: name in FEW)
OVERFLOW = """() => {
  const slide = document.querySelector(".slides > section.present");
  const room = slide.getBoundingClientRect();
  const hidden = "aside, mjx-assistive-mml, svg *";
  return [...slide.querySelectorAll("*")].filter((one) => {
    const box = one.getBoundingClientRect();
    if (one.matches(hidden) || one.closest("aside, mjx-assistive-mml") || !box.width || !box.height) return false;
    return box.bottom > room.bottom || box.right > room.right || box.left < room.left || box.top < room.top;
  }).map((one) => `${one.tagName}.${one.className}`);
}"""


@pytest.fixture(scope="session")
def decks(tmp_path_factory):
    """Return a function that writes the deck of a chapter and returns its path."""
    folder = tmp_path_factory.mktemp("slides")

    def write(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            write_decks(HTML, folder, (name,))
        return path

    return write


@pytest.mark.parametrize("name", DECKS)
def test_deck_has_its_parts(decks, name):
    page = BeautifulSoup(decks(name).read_text(), "html.parser")
    slides = page.select(".slides > section")
    headings = [slide.find(["h1", "h2"]).get_text() for slide in slides]
    kinds = [slide["class"][0] for slide in slides]
    assert 12 <= len(slides) <= 20
    assert all(headings)
    assert headings[1] == "In short"
    assert kinds.count("explorer") == 1
    assert kinds.count("asks") == QUESTIONS
    assert headings[-2:] == ["Remember", "Exercises"]
    article = BeautifulSoup(chapter_pages(HTML)[name].read_text(), "html.parser").find("article").find("section")
    core = [one for one in article.find_all("section", recursive=False) if one.select("figure, .so")]
    core = core[: [one.get("id") for one in core].index("going-deeper")] if article.find(id="going-deeper") else core
    figures = [one["id"] for section in core for one in section.find_all("figure")]
    assert [one["id"] for one in page.find_all("figure")] == figures
    assert page.select_one(".slides .so, .slides .claim")
    for slide in page.select(".asks"):
        answer = slide.select_one(".fragment.answer").get_text()
        assert answer in slide.select_one("aside.notes").get_text()


@pytest.mark.parametrize("name", DECKS)
def test_deck_from_files_has_no_overflow_and_requests_nothing(tabs, decks, name):
    path = decks(name)
    seen = Seen()
    with tabs.lent(SIZE) as page, seen.watch(page, path.parent.as_uri()):
        page.goto(path.as_uri())
        page.wait_for_function("window.Reveal && Reveal.isReady()")
        page.evaluate("document.fonts.ready")
        for at in range(page.evaluate("Reveal.getTotalSlides()")):
            page.evaluate(f"Reveal.slide({at}, 0, 9)")
            if frame := page.query_selector("section.present iframe"):
                inside = frame.content_frame()
                page.wait_for_function("document.querySelector('iframe').style.height")  # its script has run
                width = inside.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert width <= 0, "the explorer does not scroll sideways"
            assert page.evaluate(OVERFLOW) == [], f"slide {at + 1}"
            for picture in page.query_selector_all("section.present img"):
                assert picture.evaluate("one => one.complete && one.naturalWidth > 0")
        assert seen == Seen()


def test_questions_are_chosen_from_different_sections_numbers_and_choices_first():
    def guess(question: str, body: str = "<p>Between 1 and 2.</p>") -> str:
        return f'<div class="guess"><div class="x-still"><p><b>Guess first.</b> {question}</p>{body}</div></div>'

    drawn = "<p>Draw it: y over x.</p>"
    sections = [guess("a", drawn), guess("b") + guess("c"), guess("d")]
    core = BeautifulSoup("".join(f"<section>{one}</section>" for one in sections), "html.parser").find_all("section")
    answers = dict.fromkeys("abcd", "1")
    assert for_the_room(core, answers) == {"b", "d"}
    assert for_the_room(core[:2], answers) == {"a", "b"}
    assert for_the_room(core[1:2], answers) == {"b", "c"}
    del answers["b"]
    assert for_the_room(core, answers) == {"c", "d"}


def test_answers_are_found_by_their_question():
    article = BeautifulSoup(
        '<p class="g-truth">How many? Say. <b>8.</b> That is the nearest answer.</p>', "html.parser"
    )
    assert answers_of(article) == {"How many? Say.": "<strong>8.</strong> That is the nearest answer."}


def test_missing_page_and_unknown_chapter_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match="run make book"):
        write_decks(tmp_path, tmp_path / "slides")
    with pytest.raises(ValueError, match=r"CHAPTER must name one of why-attention, .*; got nothing"):
        write_decks(HTML, tmp_path / "slides", ("nothing",))
