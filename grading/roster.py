"""Who belongs to the class, when work was due and when it came: what the course system knows and a zip does not.

``roster.csv`` in the course folder is the gradebook as Canvas exports it, Moodle's grading worksheet, or a table with
a column ``student`` of folders' names. Who hands in together has the same ``group`` (Moodle: ``Group``) there, or in a
table of groups: with columns ``student`` and ``group``, or as Canvas exports a group set (``name``, ``canvas_user_id``,
``login_id``, ``group_name``). ``course.toml`` there holds the rules, all of which may be left out::

    [scaling]
    due = 2026-11-20T23:59:00+01:00
    percent_per_day = 10    # taken off the points for each day begun
    percent_at_most = 50
    grace_minutes = 15
    canvas = "Scaling (12345)"    # the column in Canvas; without it, the one in roster.csv that is called like this
    groups = "groups.csv"    # a table of groups in the course folder; false: everybody alone, whatever roster.csv says

    [scaling.extensions]    # by student or by group; a group has the latest that it or one of its members has
    "Alice Doe_id1234" = 2026-11-27T23:59:00+01:00
"""

import codecs
import csv
import io
import math
import re
import time
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from grading.names import likeness, split

SPACE = re.compile(r"\s+")


@dataclass
class Member:
    """One of the class, under the names that the course system has for them."""

    name: str
    number: str = ""
    sis: str = ""
    login: str = ""
    section: str = ""
    group: str = ""

    def likeness(self, student: str) -> int:
        """Say how surely this is the folder of their work, as ``names.likeness`` does."""
        name, number = split(student)
        return likeness(((name, student), number), ((self.name, self.login), self.number))

    @property
    def folder(self) -> str:
        """Return the name of the folder that their work would have."""
        return f"{self.name}_id{self.number}" if self.number else self.name or self.login


def whose(student: str, members: Iterable[Member]) -> Member | None:
    """Return the member that a name means, of a folder or in a table; nothing if it is nobody's.

    Raises:
        TwoOfOneNameError: if it is that of several, of none more surely than of another.
    """
    found: dict[int, list[Member]] = {}
    for member in members:
        found.setdefault(member.likeness(student), []).append(member)
    found.pop(0, None)
    best = found[max(found)] if found else []
    if len({(one.folder, one.login) for one in best}) > 1:
        raise TwoOfOneNameError(
            f"{student} is the name of {' and of '.join(one.folder for one in best)}: "
            f"write it as it stands there, with the number if it has one"
        )
    return best[0] if best else None


class TwoOfOneNameError(ValueError):
    """A name that could be that of several members of the class."""


def read_roster(path: Path) -> tuple[list[Member], list[str], dict[str, str]]:
    """Read who belongs to the class, the columns of the table, and when each handed in, where the table says that.

    Raises:
        ValueError: if the table has no column of names that is known.
    """
    heads, rows = _read(path)
    members: list[Member] = []
    came: dict[str, str] = {}
    for row in rows:
        if "Identifier" in row:  # Moodle
            number = row["Identifier"].removeprefix("Participant ").strip()
            name = row.get("Full name") or (row["Identifier"].split() or [""])[0]
            member = Member(name, number, group=row.get("Group", ""))
        elif {"Student", "ID", "SIS Login ID"} <= set(row):  # Canvas
            sis, section = row.get("SIS User ID", ""), row.get("Section", "")
            member = Member(row["Student"], row["ID"], sis, row["SIS Login ID"], section)
            if not member.number:  # a line about the columns, below the heads
                continue
        elif "student" in row:
            member = Member(*split(row["student"]))
        else:
            raise ValueError(
                f"{path.name} has no column student, no column Identifier (Moodle), and not Student, ID and "
                f"SIS Login ID (Canvas), but: {', '.join(heads)}. Export it again, in English"
            )
        if not member.folder:
            continue
        member.group = row.get("group", member.group)
        members.append(member)
        if stamp := row.get("submitted") or row.get("Last modified (submission)", "").strip("-"):
            came[member.folder] = stamp
    return members, heads, came


def text_of(path: Path) -> str:
    """Read a text file that a spreadsheet or an editor has saved, in UTF-8, UTF-16 or Windows' cp1252.

    Raises:
        ValueError: if it is no text.
    """
    content = path.read_bytes()
    marks = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    marked = next((name for mark, name in marks.items() if content.startswith(mark)), None)
    for encoding in [marked] if marked else ["utf-8", "cp1252"]:
        with suppress(UnicodeDecodeError):
            text = content.decode(encoding)
            if "\0" not in text:
                return text
    raise ValueError(
        f"{path.name} is no text that can be read (UTF-8, UTF-16 or cp1252): save it as CSV UTF-8, or as plain text"
    )


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    text = text_of(path).lstrip("\r\n ")
    if said := re.match(r"sep=(.)\r?\n", text):  # Excel's first line
        text, delimiter = text[said.end() :], said[1]
    else:
        first = text.split("\n", 1)[0]
        delimiter = max(",;\t", key=lambda one: len(next(csv.reader([first], delimiter=one), [])))
    try:
        table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
        heads = [head for head in table.fieldnames or [] if head]
        rows = [{head.strip(): (row[head] or "").strip() for head in heads} for row in table]
    except csv.Error as error:
        raise ValueError(f"{path.name} is no table that can be read ({error}): save it as CSV UTF-8") from error
    return [head.strip() for head in heads], rows


def in_groups(members: list[Member], path: Path) -> list[Member]:
    """Return the members with the groups of a table; who is in no line of it is alone, who is only there is added.

    Raises:
        ValueError: if the table has not the columns of one of the two kinds, somebody is in two groups, or a
            name is that of two.
    """
    heads, rows = _read(path)
    found = [replace(member, group="") for member in members]
    for row in rows:
        if {"student", "group"} <= set(heads):
            folder, login, group = row["student"], "", row["group"]
        elif {"name", "canvas_user_id", "group_name"} <= set(heads):
            number = f"_id{row['canvas_user_id']}" if row["canvas_user_id"] else ""
            folder, login, group = row["name"] + number, row.get("login_id", ""), row["group_name"]
        else:
            raise ValueError(
                f"{path.name} must have columns student and group, or Canvas' name, canvas_user_id and group_name, "
                f"got: {', '.join(heads)}"
            )
        try:
            member = next((one for one in found if login and one.login == login), None) or whose(folder, found)
        except TwoOfOneNameError as error:
            raise ValueError(f"{path.name}: {error}") from error
        if member is None:
            member = Member(*split(folder), login=login)
            found.append(member)
        if group and member.group not in ("", group):
            raise ValueError(f"{path.name}: {member.folder} must be in one group, got {member.group} and {group}")
        member.group = group or member.group
    return found


def when(text: str) -> datetime:
    """Read a date and time as ISO 8601, nbgrader or Moodle write it; without a zone it is this computer's.

    A zone may have its name, as ``Europe/Berlin`` or ``CET``.

    Raises:
        ValueError: if it is none of these.
    """
    text = SPACE.sub(" ", text.strip())
    if zone := re.fullmatch(r"(.+?) ?([A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*)", text):
        with suppress(ValueError, OSError, KeyError):  # else it is no zone, or none that is known here
            naive = datetime.fromisoformat(zone[1])
            if naive.tzinfo is None:
                there = None if zone[2] in time.tzname else ZoneInfo(zone[2])
                return naive.replace(tzinfo=there).astimezone()
    iso = re.sub(r" ?UTC$", "+00:00", re.sub(r" (?=[+-]\d\d:?\d\d$)", "", text))
    for form in ("%A, %d %B %Y, %I:%M %p", "%A, %d %B %Y, %H:%M"):
        try:
            return datetime.strptime(text, form).astimezone()
        except ValueError:
            pass
    return datetime.fromisoformat(iso).astimezone()


@dataclass
class Rules:
    """When an assignment is due, what being late costs, its column in Canvas, and who hands in together."""

    due: datetime | None = None
    percent_per_day: float = 0
    percent_at_most: float = 100
    grace_minutes: float = 0
    canvas: str = ""
    groups: bool | str = True  # as in roster.csv, nobody, or as in this table
    extensions: dict[str, datetime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, one in {"due": self.due, **self.extensions}.items():
            if one is not None and not isinstance(one, datetime):
                raise ValueError(f"{name} must be a date and time like 2026-11-20T23:59:00+01:00, got {one}")
        for name in ("percent_per_day", "percent_at_most", "grace_minutes"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int | float) or number < 0:
                raise ValueError(f"{name} must be a number from 0 up, got {number!r}")
        if not isinstance(self.groups, bool | str):
            raise ValueError(f"groups must be true, false or the name of a table, got {self.groups!r}")

    def hours_late(self, came: datetime, *extended: str) -> float:
        """Return the hours between the deadline and when the work came; of several extensions the latest counts."""
        theirs = [self.extensions[one] for one in extended]
        due = max(theirs, key=lambda one: one.astimezone(), default=self.due)
        return 0 if due is None else max(0, (came - due.astimezone()).total_seconds() / 3600)

    def percent_off(self, hours: float) -> float:
        """Return what is taken off for being that late: so much for each day begun, once the grace is over."""
        days = math.ceil(hours / 24) if hours > self.grace_minutes / 60 else 0
        return min(days * self.percent_per_day, self.percent_at_most, 100)


def read_rules(path: Path, name: str) -> Rules:
    """Read the rules of an assignment; without a file, or without a section in it, nothing is due.

    Raises:
        ValueError: if the file is not TOML, or a rule is not one of those above.
    """
    if not path.is_file():
        return Rules()
    try:
        rules = tomllib.loads(text_of(path)).get(name, {})
        return Rules(**rules)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.name}, [{name}]: {error}") from error


def assignments_in(path: Path) -> list[str]:
    """Name the assignments that have rules, those of a file that has been read by ``read_rules``."""
    return list(tomllib.loads(text_of(path))) if path.is_file() else []


def canvas_column(name: str, rules: Rules, heads: list[str]) -> str:
    """Return the column's head by which Canvas knows an assignment, ``Title (ID)``; else the assignment's own name."""
    titles = {re.sub(r" \(\d+\)$", "", head).casefold(): head for head in heads if re.search(r" \(\d+\)$", head)}
    return rules.canvas or titles.get(name.casefold(), name)
