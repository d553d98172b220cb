"""The page *The book in nineteen boxes*: the box *In short* of every chapter, collected when the book is built.

The first cell of a chapter contains the box, an admonition with the class ``in-short``, of at most 110 words and one
displayed formula without a label. It contains no computed number, so that it reads the same outside of its chapter.
"""

import re
from pathlib import Path

from chapters import chapters, in_language, markdown_cells, page_filler
from times import FORMULA, count_words

PAGE = "book/in-short"
MARK = "<!-- boxes -->"
BOX = re.compile(r"^:::\{admonition\} In short\n:class: in-short\n(?P<text>.*?)^:::$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r"^# (?P<title>.+)$", re.MULTILINE)
ROLE = re.compile(r"\{(?:glue|eq|numref)[^}]*\}`")
LOCAL_LINK = re.compile(r"\]\(#")
MOST_WORDS = 110


def box(chapter: Path) -> str:
    """Return the text of a chapter's box.

    Raises:
        ValueError: if the chapter has no box, or the box is too long, has not one displayed formula, or contains a
            role that only the chapter can resolve.
    """
    found = BOX.search(markdown_cells(chapter)[0])
    if found is None:
        raise ValueError(f"the first cell of {chapter.name} must have the box In short")
    text = found["text"].strip()
    words = count_words(FORMULA.sub(" ", text))
    if words > MOST_WORDS:
        raise ValueError(f"the box of {chapter.name} must have at most {MOST_WORDS} words, got {words}")
    if (formulas := text.count("$$") // 2) != 1:
        raise ValueError(f"the box of {chapter.name} must have one displayed formula, got {formulas}")
    if role := ROLE.search(text):
        raise ValueError(f"the box of {chapter.name} must read the same elsewhere, got {role[0]}")
    return text


def markdown_boxes(root: Path) -> str:
    """Return the Markdown of all boxes, which replaces ``MARK`` on the page."""
    parts = []
    for path in chapters(root).values():
        page = f"/{path.relative_to(root)}"
        title = TITLE.search(markdown_cells(path)[0])["title"]
        content = LOCAL_LINK.sub(f"]({page}#", in_language(box(path), path, root))
        parts.append(f"## [{title}]({page})\n\n:::{{container}} in-short\n{content}\n:::")
    return "\n\n".join(parts)


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", page_filler(PAGE, lambda text, root: text.replace(MARK, markdown_boxes(root))))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
