"""The page *Claims you will meet*: the tables of claims of all chapters, gathered when the book is built.

Each chapter ends with a table of two columns, what is said and what holds, written by hand beside the cells that show
it. Links into the chapter become links to it, and a citation by number names its source.
"""

import re
from pathlib import Path

from chapters import chapters, filling, texts
from sources import listed

PAGE = "book/back/errata"
MARK = "<!-- claims -->"
HEADING = "## The claims in one table"
COLUMNS = "| what is said | what holds |"
HERE = re.compile(r"\]\(#")
CITED = re.compile(r"\[(\d+)\](?![(\[])")
ROLE = re.compile(r"\{[a-z:]+\}`")


def claimed(chapter: Path) -> list[str]:
    """The rows of the chapter's table, as they stand there.

    Raises:
        ValueError: if the chapter has no such table or more than one, or a row has not two cells, or holds a number of
            the run or a reference that only the chapter itself can resolve.
    """
    tables = [text for text in texts(chapter) if text.startswith(HEADING)]
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


def elsewhere(row: str, chapter: Path, root: Path) -> str:
    """The row as it reads outside of its chapter."""
    page = f"/{chapter.relative_to(root)}"

    def source(number: re.Match) -> str:
        entry = listed(chapter)[int(number[1])]
        first = re.split(r",| et al\.| and ", entry.authors)[0]
        others = "" if first == entry.authors else " et al."
        return f"([{first}{others} {entry.year}]({entry.address}))"

    return CITED.sub(source, HERE.sub(f"]({page}#", row))


def gathered(root: Path) -> dict[str, list[str]]:
    """The rows of each chapter, by the link to it."""
    return {
        f"[{title}](/{path.relative_to(root)})": [elsewhere(row, path, root) for row in claimed(path)]
        for title, path in chapters(root).items()
    }


def written(root: Path) -> str:
    """What stands in the place of the mark, in Markdown."""
    parts = ("\n".join((f"## {chapter}\n", COLUMNS, "|---|---|", *rows)) for chapter, rows in gathered(root).items())
    return "\n\n".join(parts)


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", filling(PAGE, lambda text, root: text.replace(MARK, written(root))))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
