"""Names of students, as course systems, file systems and people write them: this module alone says which are the same.

A name is a folder's in submitted/, a line's in a roster or a table of groups, or an extension's in course.toml. It may
end in the number that the course system has for the student, ``Alice Doe_id1234``. Names are compared in three ways, of
which the first that finds somebody decides: by the number, where both have one; as they are written; and as letters
alone, so that Canvas' folder ``doealice`` is ``Doe, Alice``, and ``Alice Doe`` as well.
"""

import re
import unicodedata
from collections.abc import Iterable

APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u201b\u02bc\u02b9\u00b4\u0060\uff07", "'"))
SAME_NUMBER, SAME_TEXT, SAME_LETTERS = 3, 2, 1


def normal(name: str) -> str:
    """Return a name in one of the many ways of writing it: composed, with straight apostrophes and single spaces."""
    name = unicodedata.normalize("NFC", name.translate(APOSTROPHES))
    visible = "".join(character for character in name if unicodedata.category(character) != "Cf")
    return " ".join(visible.split())


def as_folder(name: str) -> str:
    """Return the name of a student's folder: what means something to a shell or to nbgrader is replaced."""
    return "".join(
        one if one.isalnum() or unicodedata.category(one)[0] == "M" or one in "_ .'@-" else "-" for one in normal(name)
    )


def split(name: str) -> tuple[str, str]:
    """Take a folder's name apart again: the name, and the number in the course system (or nothing)."""
    found = re.fullmatch(r"(.+)_id(\d+)", name)
    return (found[1], found[2]) if found else (name, "")


def letters(name: str) -> str:
    """Return the letters, marks and digits of a name, capital or not."""
    plain = unicodedata.normalize("NFKC", normal(name).casefold())
    return "".join(one for one in plain if unicodedata.category(one)[0] in "LMN")


def _ways_round(name: str) -> set[str]:
    last, comma, first = name.partition(",")
    return {letters(name), letters(first + last if comma else name)} - {""}


def likeness(one: tuple[Iterable[str], str], other: tuple[Iterable[str], str]) -> int:
    """Say how surely two are the same, each given by its names and its number; 0 if they are not."""
    (names, number), (other_names, other_number) = one, other
    if number and other_number:
        return SAME_NUMBER if number == other_number else 0
    mine, theirs = ({normal(name) for name in some} - {""} for some in (names, other_names))
    if mine & theirs:
        return SAME_TEXT
    return (
        SAME_LETTERS if {w for n in mine for w in _ways_round(n)} & {w for n in theirs for w in _ways_round(n)} else 0
    )
