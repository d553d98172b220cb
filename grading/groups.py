"""Group submissions: a group is graded once, and each member is listed with the points.

Any member may hand in for the group. If members hand in different files, the last file counts. If the course system
does not give the time of each, the file of the member who is listed first counts. The other files are named in the
notes of all members and stay where they are.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from grading.collect import MOODLE, WHO, came_as
from grading.names import letters, likeness, split
from grading.report import Result
from grading.roster import AmbiguousNameError, Member, find_member


@dataclass
class Group:
    """A group with a submission: its members, and whose files were handed in. Students are named by their folders."""

    name: str
    members: dict[str, Member]
    counts: str  # whose file is graded
    aside: list[str] = field(default_factory=list)  # whose files are not graded
    notes: list[str] = field(default_factory=list)

    @property
    def everybody(self) -> list[str]:
        """Return every folder of the group: the members' folders, and one with the name of the group itself."""
        return list(dict.fromkeys([*self.members, self.counts, *self.aside]))


def groups(
    members: Iterable[Member],
    there: dict[str, bytes | None],
    came: Callable[[str], datetime | None],
) -> list[Group]:
    """Return the groups that have handed in, each with the file that counts.

    ``there`` maps each submission's folder to its notebook's content, or to ``None`` if it has no notebook; ``came``
    returns the time of a submission, if it is known.
    """
    members = list(members)
    found: dict[str, list[Member]] = {}
    for member in members:
        if member.group:
            found.setdefault(member.group, []).append(member)
    result: list[Group] = []
    for name, theirs in found.items():
        its_own = [one for one in there if _has_group_name(one, name)]
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
    why = "it came last" if in_time else "its member is listed first, and it is not known which came last"
    aside = [one for one in files if one != counts]
    other = [one for one in aside if there[one] != there[counts]]
    note = f"in group {name} the file of {counts} counts ({why}); the different file of {', '.join(other)} does not"
    return Group(name, folders, counts, aside, [note])


def results_by_member(results: dict[str, Result], found: Iterable[Group]) -> dict[str, Result]:
    """Return the results with each group's result given to every member."""
    everybody = dict(results)
    for group in found:
        graded = next((one for one in [group.counts, *group.aside] if one in results), None)
        if graded is None:
            continue
        notes = list(group.notes)
        if graded != group.counts:
            notes.append(f"the file that counts is not graded yet, this is the result of {graded}: use --rest")
        for folder in group.everybody:
            everybody.pop(folder, None)
        for folder in group.members:
            result = results[graded]
            everybody[folder] = replace(result, notes=[*result.notes, *notes], group=group.name)
    return everybody


def feedback_names(course: Path, name: str, group: Group) -> dict[str, str | None]:
    """Return the name in the course system of each member's file, ``None`` where there is none.

    Moodle has a folder for each member, and accepts a folder for a member who handed in nothing. Canvas names a group's
    file after the group and returns the feedback to all its members, so there is one page, under the group's name.
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
    """Map the folder name that the roster gives a member to the folder in which that member's work is."""
    found: dict[str, str] = {}
    for folder in there:
        with suppress(AmbiguousNameError):
            if member := find_member(folder, members):
                found.setdefault(member.folder, folder)
    return found


def _has_group_name(folder: str, group: str) -> bool:
    """Return whether a folder has the group's name, to which Canvas adds the number of a member."""
    return bool(likeness(((split(folder)[0],), ""), ((group,), "")))
