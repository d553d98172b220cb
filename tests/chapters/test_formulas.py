"""Tests of the page of formulas: each formula is copied from its chapter and occurs once."""

import json
from pathlib import Path

import pytest
from sample_book import chapter, contents

pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
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
    """Create a book of two chapters; the second has a formula only if one is given."""

    def made(second="No formula."):
        chapter(tmp_path / "book/part/first.ipynb", FORMULA)
        chapter(tmp_path / "book/part/second.ipynb", second)
        return contents(tmp_path, "part/first", "part/second")

    return made


# --- the book's own -------------------------------------------------------------------------------------------------


def test_every_formula_on_the_page_is_in_a_chapter_once(formulas):
    page = (ROOT / f"{formulas.PAGE}.md").read_text(encoding="utf-8")
    labels = [label for label, _ in formulas.ENTRY.findall(page)]
    assert len(labels) == len(set(labels)) == page.count("\n* ")
    assert 35 <= len(labels) <= 60
    assert "$$" not in page, "formulas must be copied by the build, not typed again"
    derived = formulas.labelled_formulas(ROOT)
    for label, words in formulas.ENTRY.findall(page):
        formula, _, path = derived[label]
        assert formula in "".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
        assert words.startswith("**")
        assert words.endswith((".", ".)"))


# --- how it is made -------------------------------------------------------------------------------------------------


def test_formula_box_has_formula_text_and_link(formulas, book):
    root = book()
    found = formulas.labelled_formulas(root)
    box = formulas.formula_box("eq-one", "**Two.** Numbers.", root, found)
    assert "a &= b ,\\\\\nc &= d\n\\end{aligned}\n$$" in box
    assert '**Two.** Numbers. <a href="part/first.html#equation-eq-one">First</a>' in box
    assert "$$\nx\n$$" in formulas.formula_box("eq-two", "**One.**", root, found)


@pytest.mark.parametrize("stop", ["", " .", ",", "\\,;", " :"])
def test_without_stop_removes_only_punctuation_at_the_end(formulas, stop):
    assert formulas.without_stop(f"f(0.5, x). g{stop}") == "f(0.5, x). g"


def test_formula_box_unknown_label_raises(formulas, book):
    with pytest.raises(ValueError, match="names the formula eq-three, which no chapter has"):
        formulas.formula_box("eq-three", "**Three.**", book(), formulas.labelled_formulas(book()))


def test_labelled_formulas_repeated_label_raises(formulas, book):
    with pytest.raises(ValueError, match=r"eq-one must be unique, but is in second\.ipynb and in first\.ipynb"):
        formulas.labelled_formulas(book(second="$$y$$ (eq-one)"))
