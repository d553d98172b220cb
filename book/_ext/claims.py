"""The page *Claims you will meet*: the tables of claims of all chapters, collected when the book is built.

Each chapter ends with a table of two columns, what is said and what holds, written by hand beside the cells that show
it. On this page, links within the chapter become links to the chapter, and a numbered citation becomes authors and
year.
"""

import re
from pathlib import Path

from catalogs import gettext
from chapters import chapters, in_language, markdown_cells, page_filler
from sources import sources_of

PAGE = "book/back/errata"
MARK = "<!-- claims -->"
HEADING = "## Claims you will meet"
COLUMNS, LINE = "| what is said | what holds |", "|---|---|"
LOCAL_LINK = re.compile(r"\]\(#")
CITED = re.compile(r"\[(\d+)\](?![(\[])")
ROLE = re.compile(r"\{[a-z:]+\}`")


def claims_of(chapter: Path) -> list[str]:
    """Return the rows of a chapter's table of claims, unchanged.

    Raises:
        ValueError: if the chapter has no such table or more than one, or a row has not two cells, or contains a
            computed number or a reference that only the chapter itself can resolve.
    """
    tables = [text for text in markdown_cells(chapter) if text.startswith(HEADING)]
    if len(tables) != 1:
        raise ValueError(f"{chapter.name} must have one table under {HEADING!r}, got {len(tables)}")
    lines = [line for line in tables[0].splitlines() if line.startswith("|")]
    if lines[:1] != [COLUMNS]:
        raise ValueError(f"the table of {chapter.name} must have the columns {COLUMNS!r}, got {lines[:1]}")
    for line in lines[2:]:
        if len(re.split(r"(?<!\\)\|", line.strip("|"))) != 2:
            raise ValueError(f"a row of {chapter.name} must have two cells, got {line!r}")
        if ROLE.search(line):
            raise ValueError(f"a row of {chapter.name} must read the same outside of its chapter, got {line!r}")
    return lines[2:]


def outside_chapter(row: str, chapter: Path, root: Path) -> str:
    """Return a row with links and citations that also work outside of its chapter."""
    page = f"/{chapter.relative_to(root)}"

    def source(number: re.Match) -> str:
        entry = sources_of(chapter)[int(number[1])]
        first = re.split(r",| et al\.| and ", entry.authors)[0]
        others = "" if first == entry.authors else gettext(" et al.")
        return f"([{first}{others} {entry.year}]({entry.address}))"

    return CITED.sub(source, LOCAL_LINK.sub(f"]({page}#", row))


def claims_by_chapter(root: Path) -> dict[str, list[str]]:
    """Return the rows of each chapter, by the Markdown link to the chapter."""
    return {
        f"[{title}](/{path.relative_to(root)})": [
            outside_chapter(row, path, root) for row in translated_rows(path, root)
        ]
        for title, path in chapters(root).items()
    }


def translated_rows(chapter: Path, root: Path) -> list[str]:
    """Return the rows of a chapter's table in the language of this build."""
    table = "\n".join((COLUMNS, LINE, *claims_of(chapter)))
    return in_language(table, chapter, root).splitlines()[2:]


def tables(root: Path) -> str:
    """Return the Markdown of all tables, which replaces ``MARK`` on the page."""
    rows_of = claims_by_chapter(root)
    said, holds = gettext("what is said"), gettext("what holds")
    columns = f"| {said} | {holds} |"
    parts = ("\n".join((f"## {chapter}\n", columns, LINE, *rows)) for chapter, rows in rows_of.items())
    return "\n\n".join(parts)


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", page_filler(PAGE, lambda text, root: text.replace(MARK, tables(root))))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
