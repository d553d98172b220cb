"""Tests of the reading paths of the first page: chapters, times and links are computed from the notebooks."""

import pytest
import reading_paths
from sample_book import chapter, contents
from times import MARK, rounded, sections, sentence, whole

BOX = ":::{admonition} In short\n:class: in-short\nBecause of the variance.\n\n$$\nx = 1\n$$\n:::"
EXERCISES = (
    "# Exercises\n\nTwo exercises, 5 points, half an hour.",
    "## Exercise 1. One\n\n*On paper · difficulty ★☆☆ · 10 minutes · 3 points*\n\nFind it in 5 minutes.",
    "## Exercise 2. Two\n\n*Code · difficulty ★★☆ · 25 minutes · 2 points*",
)
NAMES = ("one", "two", "three")


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A book of three chapters, whose cores take 5, 40 and 20 minutes, with exercises of 35 minutes each."""
    monkeypatch.setattr(reading_paths, "SUMMARIES", ("three", "one"))
    monkeypatch.setattr(reading_paths, "CORES", ("three", "two", "one"))
    for name, words in zip(NAMES, (10, 180 * 37, 180 * 17), strict=True):
        cells = f"# {name.title()}: why?\n\n{BOX}\n\n{MARK}", "word " * words, "## Exercises\n\nWords.", "## Sources"
        chapter(tmp_path / f"book/part/{name}.ipynb", *cells)
        chapter(tmp_path / f"book/exercises/{name}/{name}.ipynb", *EXERCISES)
    return contents(tmp_path, *(f"part/{name}" for name in NAMES))


def test_markdown_paths_list_chapters_that_fit_in_the_order_of_the_book(book):
    ten, hour, term = reading_paths.markdown_paths(book).split("\n")
    one, _, three = (f"[{name.title()}](/book/part/{name}.ipynb)" for name in NAMES)
    assert ten.startswith("* **Ten minutes.** Read the box *In short* of 2 chapters, 1 minutes together: ")
    assert f": {one} and {three}." in ten
    assert hour.startswith(f"* **One hour.** Then read the core of {one} and {three}. ")
    assert hour.endswith(f"this takes {1 + 5 + 20} minutes.")
    assert term.startswith("* **A term.** Read all 3 chapters ")
    assert "Reading takes 1 hours and the exercises take 2 hours." in term  # 65 and 105 minutes


def test_times_of_the_paths_are_those_that_chapters_show(book):
    two = book / "book/part/two.ipynb"
    assert f"**Core:** {reading_paths.core_minutes(two)} minutes." in sentence(sections(two))
    assert f"everything:** {rounded(whole(sections(two)))} minutes." in sentence(sections(two))
    assert reading_paths.exercise_minutes(book, two) == 10 + 25
    assert reading_paths.box_minutes(two) == pytest.approx(5 / 180 + 1 / 3)  # a formula is a word and a picture


def test_fitting_skips_what_does_not_fit():
    assert reading_paths.fitting({"a": 30, "b": 40, "c": 30}, at_most=60) == ["a", "c"]
    assert reading_paths.fitting({"a": 61}, at_most=60) == []


def test_unknown_chapter_in_a_path_raises(book, monkeypatch):
    monkeypatch.setattr(reading_paths, "CORES", ("four",))
    with pytest.raises(KeyError, match="four"):
        reading_paths.markdown_paths(book)
