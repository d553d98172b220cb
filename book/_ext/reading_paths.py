"""The three reading paths of the first page, whose times are computed from the chapters when the book is built.

A path takes its chapters in the order of importance, as long as they fit into its minutes, and lists them in the order
of the book. The times of chapters are those that the chapters show (``times``).
"""

import math
import re
from pathlib import Path

from catalogs import gettext, title
from chapters import chapters, markdown_cells, page_filler
from summaries import TITLE, box
from times import Section, add_text, core, rounded, sections, whole

PAGE = "book/intro"
MARK = "<!-- paths -->"
# The chapters of the first two paths, by the last part of their paths, the most important first.
SUMMARIES = (
    *("why-attention", "scaling", "masks", "multi-head", "positions", "block", "complexity", "flash", "patterns"),
    *("train-gpt", "modern", "long-context"),
)
CORES = ("why-attention", "scaling", "patterns", "masks", "flash")
EXERCISE_TIME = re.compile(r"^\*.*? · (\d+) minutes · \d+ points", re.MULTILINE)


def box_minutes(chapter: Path) -> float:
    """Return the reading time of a chapter's box *In short*, in minutes."""
    found = [Section(0, "")]
    add_text(found, box(chapter))
    return found[0].minutes


def core_minutes(chapter: Path) -> int:
    """Return the reading time of a chapter's core, in minutes, as the chapter shows it."""
    return rounded(core(sections(chapter)))


def exercise_minutes(root: Path, chapter: Path) -> int:
    """Return the sum of the times that the exercises of a chapter state, in minutes."""
    name = chapter.stem
    cells = markdown_cells(root / "book/exercises" / name / f"{name}.ipynb")
    return sum(int(minutes) for cell in cells for minutes in EXERCISE_TIME.findall(cell))


def fitting(minutes: dict[str, float], at_most: float) -> list[str]:
    """Return the names that fit into ``at_most`` minutes together, taken in the given order.

    >>> fitting({"a": 30, "b": 40, "c": 20}, at_most=60)
    ['a', 'c']
    """
    chosen, total = [], 0.0
    for name, its in minutes.items():
        if total + its <= at_most:
            chosen.append(name)
            total += its
    return chosen


def markdown_paths(root: Path) -> str:
    """Return the Markdown of the three paths, which replaces ``MARK``.

    Raises:
        KeyError: if ``SUMMARIES`` or ``CORES`` names a chapter that does not exist.
    """
    found = {path.stem: path for path in chapters(root).values()}
    boxes = {name: box_minutes(found[name]) for name in SUMMARIES}
    cores = {name: core_minutes(found[name]) for name in CORES}
    short = fitting(boxes, at_most=10)
    minutes = math.ceil(sum(boxes[name] for name in short))
    long = fitting(cores, at_most=60 - minutes)
    in_all = minutes + sum(cores[name] for name in long)
    everything = sum(rounded(whole(sections(path))) for path in found.values())
    exercises = sum(exercise_minutes(root, path) for path in found.values())

    def links(names: list[str]) -> str:
        *first, last = (link(path, root) for name, path in found.items() if name in names)
        return gettext(", ").join(first) + gettext(" and ") + last if first else last

    return "\n".join(
        [
            gettext(
                "* **Ten minutes.** Read the box *In short* of {count} chapters, {minutes} minutes together: "
                "{chapters}. {{doc}}`in-short` shows the boxes of all chapters."
            ).format(count=len(short), minutes=minutes, chapters=links(short)),
            gettext(
                "* **One hour.** Then read the core of {chapters}. With the boxes this takes {minutes} minutes."
            ).format(chapters=links(long), minutes=in_all),
            gettext(
                "* **A term.** Read all {count} chapters with everything, and solve their exercises. Reading takes "
                "{reading} and the exercises take {exercises}. {{doc}}`instructors` has syllabuses."
            ).format(count=len(found), reading=hours(everything), exercises=hours(exercises)),
        ]
    )


def link(chapter: Path, root: Path) -> str:
    """Return a link to a chapter with the part of its title before the colon."""
    words = TITLE.search(markdown_cells(chapter)[0])["title"].split(":")[0]
    return f"[{title(words)}](/{chapter.relative_to(root)})"


def hours(minutes: float) -> str:
    """Return minutes in words, as whole hours.

    >>> hours(605)
    '10 hours'
    """
    return gettext("{number} hours").format(number=round(minutes / 60))


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", page_filler(PAGE, lambda text, root: text.replace(MARK, markdown_paths(root))))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
