"""Tests of the instructors' page: minutes, points and the list of chapters agree with the notebooks."""

import re
from collections.abc import Iterable
from pathlib import Path

import nbformat
import pytest
import times

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "book/instructors.md").read_text(encoding="utf-8")
ASKED = r"## Exercise (\d+)\..*?(\d+) minutes · (\d+) points(, a bonus)?"


def sources(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


def minutes_to_read(chapter: Path) -> int:
    """Return the reading time that a chapter computes at its top, or 0 for the longer assignments."""
    if not any(times.MARK in text for text in sources(chapter)):
        return 0
    return int(re.search(r"With everything:\*\* (\d+)", times.sentence(times.sections(chapter)))[1])


def exercises(name: str) -> dict[int, tuple[int, int, bool]]:
    """Return the minutes and points of each exercise of a master, by its number, and whether it is a bonus."""
    master = ROOT / "assignments/source" / name / f"{name}.ipynb"
    asked = [re.match(ASKED, text, re.DOTALL) for text in sources(master)]
    return {int(match[1]): (int(match[2]), int(match[3]), bool(match[4])) for match in asked if match}


def points_of(asked: Iterable[tuple[int, int, bool]]) -> str:
    """Return the points without bonus exercises, followed by a plus and the bonus points if there are any."""
    asked = list(asked)
    needed, on_top = (sum(points for _, points, bonus in asked if bonus == kind) for kind in (False, True))
    return f"{needed} + {on_top}" if on_top else str(needed)


def test_points_of_separates_bonus_points():
    assert points_of([(5, 3, False), (1, 4, False)]) == "7"
    assert points_of([(5, 3, False), (1, 4, True)]) == "3 + 4"


CHAPTERS = {path.stem: path for path in ROOT.glob("book/[a-z]*/*.ipynb")}
NAMES = sorted(path.stem for path in (ROOT / "assignments/source").glob("*/*.ipynb"))


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]


def tables(mark: str) -> list[list[list[str]]]:
    return [rows(table) for table in re.findall(rf"<!-- {mark} -->\n((?:\|.*\n)+)", PAGE)]


def linked(cell: str) -> list[str]:
    """Return the names of the notebooks to which a cell links, and check that they exist."""
    links = re.findall(r"\]\(([\w/-]+\.ipynb)\)", cell)
    assert [link for link in links if not (ROOT / "book" / link).exists()] == []
    return [Path(link).stem for link in links]


def test_table_of_chapters_agrees_with_the_notebooks():
    (table,) = tables("chapters")
    listed = {name: row for row in table for name in linked(row[0])}
    assert sorted(listed) == NAMES, "every master has a row, and every row a master"
    for name, (text, read, how_many, minutes, points) in listed.items():
        asked = exercises(name)
        chapter = CHAPTERS.get(name, ROOT / "assignments/source" / name / f"{name}.ipynb")
        title = sources(chapter)[0].splitlines()[0].removeprefix("# ")
        assert text.startswith(f"[{title}]("), text
        assert read == (str(minutes_to_read(chapter)) if name in CHAPTERS else "none"), text
        assert how_many == str(len(asked)), text
        assert minutes == str(sum(minutes for minutes, *_ in asked.values())), text
        assert points == points_of(asked.values()), text


def handed_in(cell: str) -> list[tuple[int, int, bool]]:
    """Return minutes, points and bonus flag of the exercises listed as ``[name](link) 1-4, 6; ...``."""
    found = []
    for part in cell.split("; "):
        (name,) = linked(part)
        for span in part.rsplit(") ", 1)[1].split(", "):
            first, _, last = span.partition("-")
            found += [exercises(name)[number] for number in range(int(first), int(last or first) + 1)]
    return found


@pytest.mark.parametrize(
    "title", ["school of 10 days", "syllabus for 4 weeks", "syllabus for 8 weeks", "syllabus for 12 weeks"]
)
def test_syllabus_sums_agree_with_the_notebooks(title):
    assert f"## A {title}\n" in PAGE
    (table,) = [table for table in tables("syllabus") if len(table) == int(re.findall(r"\d+", title)[0])]
    assert [row[0] for row in table] == [str(unit + 1) for unit in range(len(table))]
    for _, read, hand_in, to_read, to_solve, points in table:
        asked = handed_in(hand_in)
        assert to_read == str(sum(minutes_to_read(CHAPTERS[name]) for name in linked(read))), read
        assert to_solve == str(sum(minutes for minutes, *_ in asked)), hand_in
        assert points == points_of(asked), hand_in


@pytest.mark.parametrize("weeks", [8, 12])
def test_the_longer_syllabi_leave_no_chapter_out(weeks):
    (table,) = [table for table in tables("syllabus") if len(table) == weeks]
    assert sorted(name for row in table for name in linked(row[1])) == sorted(set(NAMES) & set(CHAPTERS))


def test_commands_and_files_on_the_page_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)", PAGE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in re.findall(r"`((?:grading|tools|tests|assignments)/[\w./-]+)[ `]", PAGE):
        assert (ROOT / path.replace("/NAME", "/scaling")).exists(), path


@pytest.mark.parametrize("guide", ["book/instructors.md", "assignments/README.md"])
def test_modules_run_in_the_guides_exist(guide):
    named = set(re.findall(r"python -m (\w+)", (ROOT / guide).read_text(encoding="utf-8")))
    assert named == {"grading"}
    assert all((ROOT / name / "__main__.py").is_file() for name in named)


def test_files_run_in_the_grading_guide_exist():
    guide = (ROOT / "assignments/README.md").read_text(encoding="utf-8")
    paths = re.findall(r"python ((?:grading|tools)/[\w./]+)", guide)
    assert paths == ["grading/check_notebook.py"]
    assert all((ROOT / path).is_file() for path in paths)
