"""The page of formulas: each is the one of its chapter, and is asked for once."""

import json
from pathlib import Path

import pytest
from made_book import chapter, contents

pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
FORMULA = (
    "As it is,\n\n$$\n\\begin{aligned}\na &= b ,\\\\\nc &= d .\n\\end{aligned}\n$$ (eq-one)\n\nand\n\n$$x$$ (eq-two)"
)


@pytest.fixture
def formulas(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    import formulas

    return formulas


@pytest.fixture
def book(tmp_path):
    """A book of two chapters, of which the second has no formula unless it is given one."""

    def made(second="No formula."):
        chapter(tmp_path / "book/part/first.ipynb", FORMULA)
        chapter(tmp_path / "book/part/second.ipynb", second)
        return contents(tmp_path, "part/first", "part/second")

    return made


# --- the book's own -------------------------------------------------------------------------------------------------


def test_every_formula_of_the_page_is_some_chapters_and_stands_there_once(formulas):
    page = (ROOT / f"{formulas.PAGE}.md").read_text(encoding="utf-8")
    labels = [label for label, _ in formulas.ENTRY.findall(page)]
    assert len(labels) == len(set(labels)) == page.count("\n* ")
    assert 35 <= len(labels) <= 60
    assert "$$" not in page, "formulas are copied when the page is made, not typed again"
    derived = formulas.derived(ROOT)
    for label, words in formulas.ENTRY.findall(page):
        formula, _, path = derived[label]
        assert formula in "".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
        assert words.startswith("**")
        assert words.endswith((".", ".)"))


# --- how it is made -------------------------------------------------------------------------------------------------


def test_a_box_has_the_formula_without_its_stop_the_words_and_a_link(formulas, book):
    root = book()
    found = formulas.derived(root)
    box = formulas.boxed("eq-one", "**Two.** Numbers.", root, found)
    assert "a &= b ,\\\\\nc &= d\n\\end{aligned}\n$$" in box
    assert '**Two.** Numbers. <a href="part/first.html#equation-eq-one">First</a>' in box
    assert "$$\nx\n$$" in formulas.boxed("eq-two", "**One.**", root, found)


@pytest.mark.parametrize("stop", ["", " .", ",", "\\,;", " :"])
def test_only_the_mark_at_the_end_goes(formulas, stop):
    assert formulas.without_stop(f"f(0.5, x). g{stop}") == "f(0.5, x). g"


def test_a_label_that_no_chapter_has_is_refused(formulas, book):
    with pytest.raises(ValueError, match="asks for eq-three, which no chapter has"):
        formulas.boxed("eq-three", "**Three.**", book(), formulas.derived(book()))


def test_a_label_that_two_chapters_have_is_refused(formulas, book):
    with pytest.raises(ValueError, match=r"eq-one is in second\.ipynb and in first\.ipynb"):
        formulas.derived(book(second="$$y$$ (eq-one)"))
