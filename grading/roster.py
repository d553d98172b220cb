"""Who belongs to the class, when work was due and when it came: what the course system knows and a zip does not.

``roster.csv`` in the course folder is the gradebook as Canvas exports it, Moodle's grading worksheet, or a table with
a column ``student`` of folders' names. ``course.toml`` there holds the rules, all of which may be left out::

    [scaling]
    due = 2026-11-20T23:59:00+01:00
    percent_per_day = 10    # taken off the points for each day begun
    percent_at_most = 50
    grace_minutes = 15
    canvas = "Scaling (12345)"    # the column in Canvas; without it, the one in roster.csv that is called like this

    [scaling.extensions]
    "Alice Doe_id1234" = 2026-11-27T23:59:00+01:00
"""

import csv
import math
import re
import tomllib
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from grading.collect import split

SPACE = re.compile(r"\s+")


@dataclass
class Member:
    """One of the class, under the names that the course system has for them."""

    name: str
    number: str = ""
    sis: str = ""
    login: str = ""
    section: str = ""

    def is_in(self, student: str) -> bool:
        """Say whether this is the folder of their work: the number decides, where both have one."""
        name, number = split(student)
        return (
            number == self.number if number and self.number else student in (self.name, self.login) or name == self.name
        )

    @property
    def folder(self) -> str:
        """Return the name of the folder that their work would have."""
        return f"{self.name}_id{self.number}" if self.number else self.name or self.login


def read_roster(path: Path) -> tuple[list[Member], list[str], dict[str, str]]:
    """Read who belongs to the class, the columns of the table, and when each handed in, where the table says that.

    Raises:
        ValueError: if the table has no column of names that is known.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        heads = [head for head in table.fieldnames or [] if head]
        rows = [{head: (row[head] or "").strip() for head in heads} for row in table]
    members: list[Member] = []
    came: dict[str, str] = {}
    for row in rows:
        if "Identifier" in row:  # Moodle
            number = row["Identifier"].removeprefix("Participant ").strip()
            member = Member(row.get("Full name") or row["Identifier"].split()[0], number)
        elif "SIS Login ID" in row:  # Canvas; below the heads it has lines about the columns, without a number
            member = Member(row["Student"], row["ID"], row.get("SIS User ID", ""), row["SIS Login ID"], row["Section"])
            if not member.number:
                continue
        elif "student" in row:
            member = Member(*split(row["student"]))
        else:
            raise ValueError(f"{path.name} has no column student, Identifier or SIS Login ID, but: {', '.join(heads)}")
        members.append(member)
        if stamp := row.get("submitted") or row.get("Last modified (submission)", "").strip("-"):
            came[member.folder] = stamp
    return members, heads, came


def when(text: str) -> datetime:
    """Read a date and time as ISO 8601, nbgrader or Moodle write it; without a zone it is this computer's.

    Raises:
        ValueError: if it is none of these.
    """
    text = SPACE.sub(" ", text.strip())
    iso = re.sub(r" ?UTC$", "+00:00", re.sub(r" (?=[+-]\d\d:?\d\d$)", "", text))
    for form in ("%A, %d %B %Y, %I:%M %p", "%A, %d %B %Y, %H:%M"):
        try:
            return datetime.strptime(text, form).astimezone()
        except ValueError:
            pass
    return datetime.fromisoformat(iso).astimezone()


@dataclass
class Rules:
    """When an assignment is due, what being late costs, and its column in Canvas."""

    due: datetime | None = None
    percent_per_day: float = 0
    percent_at_most: float = 100
    grace_minutes: float = 0
    canvas: str = ""
    extensions: dict[str, datetime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, one in {"due": self.due, **self.extensions}.items():
            if one is not None and not isinstance(one, datetime):
                raise ValueError(f"{name} must be a date and time like 2026-11-20T23:59:00+01:00, got {one}")
        for name in ("percent_per_day", "percent_at_most", "grace_minutes"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int | float) or number < 0:
                raise ValueError(f"{name} must be a number from 0 up, got {number!r}")

    def hours_late(self, student: str, came: datetime) -> float:
        """Return the hours between the deadline, this student's own if there is one, and when the work came."""
        due = self.extensions.get(student, self.due)
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
        rules = tomllib.loads(path.read_text(encoding="utf-8")).get(name, {})
        return Rules(**rules)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.name}, [{name}]: {error}") from error


def canvas_column(name: str, rules: Rules, heads: list[str]) -> str:
    """Return the column's head by which Canvas knows an assignment, ``Title (ID)``; else the assignment's own name."""
    titles = {re.sub(r" \(\d+\)$", "", head).casefold(): head for head in heads if re.search(r" \(\d+\)$", head)}
    return rules.canvas or titles.get(name.casefold(), name)
