"""The class list, the deadlines and the times of submission, none of which a zip of submissions contains.

``roster.csv`` in the course folder is the gradebook as Canvas exports it, Moodle's grading worksheet, or a table with
a column ``student`` of folder names. Students of one group have the same ``group`` (Moodle: ``Group``) there, or in a
table of groups: with columns ``student`` and ``group``, or as Canvas exports a group set (``name``, ``canvas_user_id``,
``login_id``, ``group_name``). ``course.toml`` in the course folder holds the rules, all of which are optional::

    [scaling]
    due = 2026-11-20T23:59:00+01:00
    percent_per_day = 10    # taken off the points for each day late; a day that has begun counts
    percent_at_most = 50
    grace_minutes = 15
    canvas = "Scaling (12345)"    # the column in Canvas; by default the column in roster.csv with the assignment's name
    groups = "groups.csv"    # a table of groups in the course folder; false: no groups, even if roster.csv has some

    [scaling.extensions]    # by student or by group; a group has the latest of its own and its members' extensions
    "Alice Doe_id1234" = 2026-11-27T23:59:00+01:00
"""

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

from grading.draw_numbers import KEY
from grading.names import likeness, split
from grading.text_files import read_text

SPACE = re.compile(r"\s+")


@dataclass
class Member:
    """A member of the class, with the names and numbers that the course system uses."""

    name: str
    number: str = ""
    sis: str = ""
    login: str = ""
    section: str = ""
    group: str = ""

    def likeness(self, student: str) -> int:
        """Return how certain it is that this is the folder of the member's work, as :func:`grading.names.likeness`."""
        name, number = split(student)
        return likeness(((name, student), number), ((self.name, self.login), self.number))

    @property
    def folder(self) -> str:
        """Return the name of the folder for this member's work."""
        return f"{self.name}_id{self.number}" if self.number else self.name or self.login


def find_member(student: str, members: Iterable[Member]) -> Member | None:
    """Return the member with this name, of a folder or in a table, or ``None`` if there is none.

    Raises:
        AmbiguousNameError: if several members match equally well.
    """
    found: dict[int, list[Member]] = {}
    for member in members:
        found.setdefault(member.likeness(student), []).append(member)
    found.pop(0, None)
    best = found[max(found)] if found else []
    if len({(one.folder, one.login) for one in best}) > 1:
        raise AmbiguousNameError(
            f"{student} is the name of {' and of '.join(one.folder for one in best)}: "
            f"write it as it stands there, with the number if it has one"
        )
    return best[0] if best else None


class AmbiguousNameError(ValueError):
    """Raised if a name matches several members of the class."""


def read_roster(path: Path) -> tuple[list[Member], list[str], dict[str, str]]:
    """Return the members of the class, the table's column names, and the times of submission if the table has them.

    Raises:
        ValueError: if the table has no known column of names.
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
            if not member.number:  # not a student: a line below the header, such as "Points Possible"
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


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    text = read_text(path).lstrip("\r\n ")
    if separator := re.match(r"sep=(.)\r?\n", text):  # Excel's first line
        text, delimiter = text[separator.end() :], separator[1]
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


def assign_groups(members: list[Member], path: Path) -> list[Member]:
    """Return the members with the groups of a table.

    A member who is not in the table has no group. A student who is only in the table is added.

    Raises:
        ValueError: if the table has not the columns of one of the two kinds, a student is in two groups, or a name
            matches two members.
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
            member = next((one for one in found if login and one.login == login), None) or find_member(folder, found)
        except AmbiguousNameError as error:
            raise ValueError(f"{path.name}: {error}") from error
        if member is None:
            member = Member(*split(folder), login=login)
            found.append(member)
        if group and member.group not in ("", group):
            raise ValueError(f"{path.name}: {member.folder} must be in one group, got {member.group} and {group}")
        member.group = group or member.group
    return found


def parse_time(text: str) -> datetime:
    """Parse a date and time in the format of ISO 8601, nbgrader or Moodle.

    The time zone may be a name, such as ``Europe/Berlin`` or ``CET``. Without one it is this computer's time zone.

    Raises:
        ValueError: if the text has none of these formats.

    >>> parse_time("2026-11-20 23:59:00 UTC").timestamp()
    1795219140.0
    """
    text = SPACE.sub(" ", text.strip())
    if zone := re.fullmatch(r"(.+?) ?([A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*)", text):
        with suppress(ValueError, OSError, KeyError):  # not a time zone, or not known on this computer
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
    """The rules of an assignment: its deadline, the deduction for lateness, its column in Canvas, and its groups."""

    due: datetime | None = None
    percent_per_day: float = 0
    percent_at_most: float = 100
    grace_minutes: float = 0
    canvas: str = ""
    groups: bool | str = True  # True: as in roster.csv; False: no groups; a string: the file of a table of groups
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
        """Return the hours by which a submission missed the deadline, or the latest of these extensions."""
        theirs = [self.extensions[one] for one in extended]
        due = max(theirs, key=lambda one: one.astimezone(), default=self.due)
        return 0 if due is None else max(0, (came - due.astimezone()).total_seconds() / 3600)

    def percent_off(self, hours: float) -> float:
        """Return the percentage taken off: per day that has begun, if it is later than the grace period."""
        days = math.ceil(hours / 24) if hours > self.grace_minutes / 60 else 0
        return min(days * self.percent_per_day, self.percent_at_most, 100)


def read_rules(path: Path, name: str) -> Rules:
    """Read the rules of an assignment; without a file, or without a section in it, there is no deadline.

    Raises:
        ValueError: if the file is not TOML, or a rule is unknown or has a wrong value.
    """
    if not path.is_file():
        return Rules()
    try:
        rules = tomllib.loads(read_text(path)).get(name, {})
        return Rules(**rules)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.name}, [{name}]: {error}") from error


def assignments_in(path: Path) -> list[str]:
    """Return the assignments that have rules in a file that ``read_rules`` accepts."""
    return [name for name in tomllib.loads(read_text(path)) if name != KEY] if path.is_file() else []


def canvas_column(name: str, rules: Rules, heads: list[str]) -> str:
    """Return the header of an assignment's column in Canvas, ``Title (ID)``, or its name if there is none."""
    titles = {re.sub(r" \(\d+\)$", "", head).casefold(): head for head in heads if re.search(r" \(\d+\)$", head)}
    return rules.canvas or titles.get(name.casefold(), name)
