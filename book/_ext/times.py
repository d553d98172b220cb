"""Compute a chapter's reading time from its text, code, figures and guesses.

The comment ``<!-- times -->`` in a chapter becomes "**Core:** 20 minutes. **With everything:** 60 minutes.", on the
page and in the runnable edition. The core is the part before the exercises, which state their own times.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from catalogs import gettext
from cell_folding import fold_label

MARK = "<!-- times -->"
WORDS_A_MINUTE, LINES_A_MINUTE, MINUTES_A_GUESS, MINUTES_A_PICTURE = 180, 12, 0.5, 1 / 3
AFTER_CORE = ("Exercises", "Going deeper", "Claims you will meet", "Sources")
UNTIMED = ("Exercises",)
HIDDEN = {"hide-cell", "hide-input", "remove-cell", "remove-input"}
HEADING = re.compile(r"^(#{1,6}) +(.+?) *$")
DISPLAYED = re.compile(r"\$\$.+?\$\$(?: \([\w-]+\))?", re.DOTALL)
FORMULA = re.compile(rf"{DISPLAYED.pattern}|\$[^$]+\$", re.DOTALL)  # counted as one word each
NO_WORDS = re.compile(r"^:{3,}.*$|^:\w+:.*$|\]\([^)]*\)|\{[\w:]+\}|<!--.*?-->|[*_#|`>\[\]-]", re.MULTILINE)
GUESS = re.compile(r"\bpredict(?:_number|_curve)?\(")


@dataclass
class Section:
    """The text below a heading, up to the next heading of any level, measured."""

    level: int
    title: str
    words: int = 0
    lines: int = 0
    guesses: int = 0
    pictures: int = 0  # figures and displayed formulas

    @property
    def minutes(self) -> float:
        """The time for the text, the visible code, figures, displayed formulas and guesses."""
        read = self.words / WORDS_A_MINUTE + self.lines / LINES_A_MINUTE
        return read + self.guesses * MINUTES_A_GUESS + self.pictures * MINUTES_A_PICTURE


def sections(path: Path) -> list[Section]:
    """Return the sections of a notebook in order."""
    found = [Section(0, "")]
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            add_text(found, source)
        elif not HIDDEN & set(cell["metadata"].get("tags", [])) and not fold_label(source):
            found[-1].lines += sum(1 for line in source.splitlines() if line.strip())
        if cell["cell_type"] == "code":
            found[-1].guesses += len(GUESS.findall(source))
            figure = cell["metadata"].get("mystnb", {}).get("figure", {})
            found[-1].words += count_words(figure.get("caption", ""))
            found[-1].pictures += bool(figure)
    return found


def add_text(found: list[Section], text: str) -> None:
    """Add the words of a Markdown cell to the last section and to the sections that the cell begins."""
    lines: list[str] = []
    for line in [*text.splitlines(), None]:
        heading = None if line is None else HEADING.match(line)
        if line is not None and not heading:
            lines.append(line)
            continue
        found[-1].words += count_words("\n".join(lines))
        found[-1].pictures += len(DISPLAYED.findall("\n".join(lines)))
        lines = []
        if heading:
            found.append(Section(len(heading[1]), heading[2], words=count_words(heading[2])))


def count_words(text: str) -> int:
    """Return the number of words; a formula counts as one."""
    return len(re.findall(r"\w[\w'\u2019.,-]*", NO_WORDS.sub(" ", FORMULA.sub(" formula ", text))))


def core(timed: Iterable[Section]) -> list[Section]:
    """Return the sections of the core."""
    found = []
    for section in timed:
        if section.level == 2 and section.title in AFTER_CORE:
            break
        found.append(section)
    return found


def rounded(timed: Iterable[Section]) -> int:
    """Return the reading time of sections in minutes, rounded up to a multiple of five."""
    return 5 * math.ceil(sum(section.minutes for section in timed) / 5)


def whole(timed: Iterable[Section]) -> list[Section]:
    """Return all sections except the exercises."""
    found, is_timed = [], False
    for section in timed:
        if section.level <= 2:
            is_timed = section.title not in UNTIMED
        if is_timed:
            found.append(section)
    return found


def sentence(timed: list[Section]) -> str:
    """Return the sentence that replaces ``MARK``."""
    words = gettext("**Core:** {core} minutes. **With everything:** {whole} minutes.")
    return words.format(core=rounded(core(timed)), whole=rounded(whole(timed)))


def fill_in(app, docname, source) -> None:
    """Replace ``MARK`` in a chapter."""
    if MARK not in source[0] or not str(path := app.env.doc2path(docname)).endswith(".ipynb"):
        return
    times = sentence(sections(Path(path)))
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = "".join(cell["source"]).replace(MARK, times)
    source[0] = json.dumps(notebook)


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", fill_in, priority=700)  # after the text around it is translated
    return {"parallel_read_safe": True, "parallel_write_safe": True}
