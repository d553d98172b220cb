"""Comparison of students' names as course systems, file systems and people write them, in one place for all modules.

A name comes from a folder in submitted/, a line of a roster or a table of groups, or an extension in course.toml. It
may end in the course system's number of the student, ``Alice Doe_id1234``. Names are compared in three ways, and the
first that finds a match decides: by the number, if both have one; by the text; and by the letters alone, so that
Canvas' folder ``doealice`` matches ``Doe, Alice`` and ``Alice Doe``.
"""

import re
import unicodedata
from collections.abc import Iterable

APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u201b\u02bc\u02b9\u00b4\u0060\uff07", "'"))
SAME_NUMBER, SAME_TEXT, SAME_LETTERS = 3, 2, 1


def normalise(name: str) -> str:
    """Return a name in normal form: NFC, with straight apostrophes, single spaces and no invisible characters."""
    name = unicodedata.normalize("NFC", name.translate(APOSTROPHES))
    visible = "".join(character for character in name if unicodedata.category(character) != "Cf")
    return " ".join(visible.split())


def as_folder(name: str) -> str:
    """Return the name of a student's folder, with ``-`` for each character that a shell or nbgrader would interpret.

    >>> as_folder("Doe/Alice")
    'Doe-Alice'
    """
    return "".join(
        one if one.isalnum() or unicodedata.category(one)[0] == "M" or one in "_ .'@-" else "-"
        for one in normalise(name)
    )


def split(name: str) -> tuple[str, str]:
    """Split a folder's name into the student's name and the number in the course system, empty if there is none.

    >>> split("Alice Doe_id1234")
    ('Alice Doe', '1234')
    """
    found = re.fullmatch(r"(.+)_id(\d+)", name)
    return (found[1], found[2]) if found else (name, "")


def letters(name: str) -> str:
    """Return the letters, marks and digits of a name, case-folded.

    >>> letters("Doe, Alice")
    'doealice'
    """
    plain = unicodedata.normalize("NFKC", normalise(name).casefold())
    return "".join(one for one in plain if unicodedata.category(one)[0] in "LMN")


def _both_orders(name: str) -> set[str]:
    last, comma, first = name.partition(",")
    return {letters(name), letters(first + last if comma else name)} - {""}


def likeness(one: tuple[Iterable[str], str], other: tuple[Iterable[str], str]) -> int:
    """Return how certain it is that two students are the same, each given by names and a number; 0 if they differ.

    >>> likeness((["Doe, Alice"], ""), (["Alice Doe"], "1234")) == SAME_LETTERS
    True
    """
    (names, number), (other_names, other_number) = one, other
    if number and other_number:
        return SAME_NUMBER if number == other_number else 0
    mine, theirs = ({normalise(name) for name in some} - {""} for some in (names, other_names))
    if mine & theirs:
        return SAME_TEXT
    return (
        SAME_LETTERS if {w for n in mine for w in _both_orders(n)} & {w for n in theirs for w in _both_orders(n)} else 0
    )
