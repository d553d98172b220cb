"""One work of several students: it is graded once, and each of them stands in the table with its points.

Whatever of them hands it in counts for all. If they hand in different files, the one counts that came last; where the
course system does not say of each when it came, that of the member who stands first in the table. The others are named
in the notes of all of them, and stay where they are.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from grading.collect import MOODLE, WHO, came_as
from grading.names import letters, likeness, split
from grading.report import Result
from grading.roster import Member, TwoOfOneNameError, whose


@dataclass
class Group:
    """A group that has handed in: all its members, and whose files they were. Each is named by a folder."""

    name: str
    members: dict[str, Member]
    counts: str  # whose file is graded
    aside: list[str] = field(default_factory=list)  # whose are not
    notes: list[str] = field(default_factory=list)

    @property
    def everybody(self) -> list[str]:
        """Return every folder of the group's: those of members, and one that is called like the group itself."""
        return list(dict.fromkeys([*self.members, self.counts, *self.aside]))


def groups(
    members: Iterable[Member],
    there: dict[str, bytes | None],
    came: Callable[[str], datetime | None],
) -> list[Group]:
    """Sort what is ``there``, what is in each folder's notebook or nothing, by group; say whose counts in each."""
    members = list(members)
    found: dict[str, list[Member]] = {}
    for member in members:
        if member.group:
            found.setdefault(member.group, []).append(member)
    result: list[Group] = []
    for name, theirs in found.items():
        its_own = [one for one in there if _is_its_own(one, name)]
        where = by_member(members, (one for one in there if one not in its_own))
        folders = {where.get(member.folder, member.folder): member for member in theirs}
        handed_in = [one for one in [*folders, *its_own] if one in there]
        files = [one for one in handed_in if there[one] is not None] or handed_in
        if files:
            result.append(_chosen(name, folders, files, there, came))
    return result


def _chosen(name: str, folders: dict[str, Member], files: list[str], there, came) -> Group:
    if len({there[one] for one in files}) == 1:
        return Group(name, folders, files[0], files[1:])
    times = {one: came(one) for one in files}
    known = [time for time in times.values() if time is not None]
    in_time = len(known) == len(files) and len(set(known)) > 1
    counts = max(files, key=lambda one: times[one]) if in_time else files[0]  # the first of those that came last
    why = "it came last" if in_time else "its member stands first, and it is not known which came last"
    aside = [one for one in files if one != counts]
    other = [one for one in aside if there[one] != there[counts]]
    note = f"of group {name} the file of {counts} counts ({why}); another of {', '.join(other)} does not"
    return Group(name, folders, counts, aside, [note])


def for_everybody(results: dict[str, Result], found: Iterable[Group]) -> dict[str, Result]:
    """Give each member of a group what its work reached."""
    everybody = dict(results)
    for group in found:
        graded = next((one for one in [group.counts, *group.aside] if one in results), None)
        if graded is None:
            continue
        notes = list(group.notes)
        if graded != group.counts:
            notes.append(f"the file that counts is not graded yet, this is that of {graded}: --rest")
        for folder in group.everybody:
            everybody.pop(folder, None)
        for folder in group.members:
            result = results[graded]
            everybody[folder] = replace(result, notes=[*result.notes, *notes], group=group.name)
    return everybody


def ways_back(course: Path, name: str, group: Group) -> dict[str, str | None]:
    """Say what the course system would have called each member's file; nothing where it has no name for it.

    Moodle has a folder for each member, and takes one for a member who handed in nothing. Canvas calls the file of a
    group by the group's name, and gives what comes back to all of it; that is one page, under the name of the group.
    """
    came = {folder: way for folder in group.everybody if (way := came_as(course, folder, name)) is not None}
    reached_by = came.get(group.counts)
    ways: dict[str, str | None] = {}
    for folder, member in group.members.items():
        who = WHO.fullmatch(reached_by or "")
        if folder in came:
            ways[folder] = came[folder]
        elif reached_by and who and MOODLE in reached_by and member.number:
            ways[folder] = f"{member.name}_{member.number}{reached_by[who.end('number') :]}"
        elif reached_by and who and who["name"] and letters(group.name) == letters(who["name"]):
            ways[folder] = reached_by
        else:
            ways[folder] = None
    return ways


def by_member(members: Iterable[Member], there: Iterable[str]) -> dict[str, str]:
    """Return the folder in which a member's work is, by the name that the roster would give that folder."""
    found: dict[str, str] = {}
    for folder in there:
        with suppress(TwoOfOneNameError):
            if member := whose(folder, members):
                found.setdefault(member.folder, folder)
    return found


def _is_its_own(folder: str, group: str) -> bool:
    """Say whether a folder has the group's name; Canvas adds the number of one of its members."""
    return bool(likeness(((split(folder)[0],), ""), ((group,), "")))
