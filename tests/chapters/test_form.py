"""Tests of the extensions that shape a chapter: reading times, folded sections, and the page of all boxes."""

import json
from pathlib import Path

import folds
import pytest
import summaries
import times
from sample_book import chapter, contents

ROOT = Path(__file__).resolve().parents[2]
BOX = """# Scaling: why divide?

:::{admonition} In short
:class: in-short
Because of [the variance](#the-variance).

$$
x = 1
$$
:::
"""


def code(source: str, *tags: str, **metadata) -> dict:
    return {"cell_type": "code", "source": source, "metadata": {"tags": list(tags), **metadata}}


def text(source: str) -> dict:
    return {"cell_type": "markdown", "source": source, "metadata": {}}


def notebook(path: Path, *cells: dict) -> Path:
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    return path


# --- times ----------------------------------------------------------------------------------------------------------


def test_sections_count_words_visible_lines_guesses_and_pictures(tmp_path):
    path = notebook(
        tmp_path / "one.ipynb",
        text("# A title\n\nThree more words.\n\n## One\n\nTwo words and $a + b$.\n\n$$\nx = 1\n$$"),
        code("import torch"),
        code("x = 1\n\ny = 2"),
        code("z = 3", "hide-input"),
        code('guess = predict("?", [1, 2])', "remove-input"),
        code("plots.lines(x, y)", mystnb={"figure": {"caption": "A caption."}}),
        text("### Part of one"),
    )
    none, title, one, part = times.sections(path)
    assert (none.level, none.words) == (0, 0)
    assert (title.level, title.title, title.words) == (1, "A title", 2 + 3)
    assert (one.words, one.lines, one.guesses, one.pictures) == (1 + 4 + 1 + 2, 2, 1, 2)
    assert (part.level, part.words) == (3, 3)
    assert one.minutes == pytest.approx(8 / 180 + 2 / 12 + 0.5 + 2 / 3)


@pytest.mark.parametrize(
    ("markdown", "words"),
    [
        ("It's one-two, 1.5 three.", 5),
        ("A [link to it](../page.md) and {glue:text}`number`.", 6),
        ("$$\na + b = c\n$$ (eq-name)", 1),
        (":::{container} remember\n* one\n:::", 1),
        ("<!-- times --> **You need:** x", 3),
    ],
)
def test_count_words_ignores_markup(markdown, words):
    assert times.count_words(markdown) == words


def test_sentence_rounds_up_and_leaves_out_exercises():
    timed = [
        times.Section(1, "Title", words=180),
        times.Section(2, "One", words=5 * 180),
        times.Section(2, "Exercises", words=50 * 180),
        times.Section(3, "Of these", words=50 * 180),
        times.Section(2, "Going deeper"),
        times.Section(3, "Topic", words=4 * 180),
    ]
    assert [section.title for section in times.core(timed)] == ["Title", "One"]
    assert times.sentence(timed) == "**Core:** 10 minutes. **With everything:** 10 minutes."


# --- folds ----------------------------------------------------------------------------------------------------------


def test_topic_minutes_include_subsections_and_are_at_least_one():
    from times import Section

    timed = [
        Section(2, "One", words=1800),
        Section(2, "Going deeper", words=1800),
        Section(3, "First", words=180),
        Section(4, "Part", words=360),
        Section(3, "Second"),
        Section(2, "Sources", words=1800),
        Section(3, "Not a topic", words=1800),
    ]
    assert folds.topic_minutes(timed) == [3, 1]


@pytest.mark.parametrize(("title", "fails"), [("A topic", True), ("Sources", False)])
def test_fold_moves_the_first_paragraph_into_the_summary(title, fails):
    from docutils import nodes

    parent, section = nodes.section(), nodes.section("", nodes.title("", title), nodes.paragraph("", "It shows this."))
    section += nodes.paragraph("", "And more.")
    parent += section
    folds.fold(section, 2)
    [folded] = parent.children
    assert isinstance(folded, folds.folded_section)
    assert [child.astext() for child in folded] == [title, "It shows this.", "And more."]
    assert folded[1]["minutes"] == 2

    bare = nodes.section("", nodes.title("", title), nodes.bullet_list())
    parent += bare
    if fails:
        with pytest.raises(ValueError, match="the topic 'A topic' must begin with a sentence"):
            folds.fold(bare, 1)
    else:
        folds.fold(bare, 1)


# --- boxes ----------------------------------------------------------------------------------------------------------


def test_markdown_boxes_link_to_their_chapters(tmp_path):
    (tmp_path / "book").mkdir()
    chapter(tmp_path / "book/first.ipynb", BOX)
    contents(tmp_path, "first")
    written = summaries.markdown_boxes(tmp_path)
    assert written.startswith("## [Scaling: why divide?](/book/first.ipynb)\n\n:::{container} in-short\n")
    assert "[the variance](/book/first.ipynb#the-variance)" in written


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("In short", "At length", "the first cell of one.ipynb must have the box In short"),
        ("Because", "Because " * 111, "must have at most 110 words, got 11"),
        ("$$", "", "must have one displayed formula, got 0"),
        ("Because", "{glue:text}`spread`", "must read the same elsewhere, got {glue:text}`"),
    ],
)
def test_invalid_box_raises(tmp_path, before, after, rule):
    with pytest.raises(ValueError, match=rule):
        summaries.box(chapter(tmp_path / "one.ipynb", BOX.replace(before, after)))
