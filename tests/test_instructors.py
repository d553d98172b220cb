"""The instructors' page says what the notebooks say: minutes, points, and which chapters there are."""

import re
from collections.abc import Iterable
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "book/instructors.md").read_text(encoding="utf-8")
ASKED = r"## Exercise (\d+)\..*?(\d+) minutes · (\d+) points(, a bonus)?"


def sources(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


def minutes_to_read(chapter: Path) -> int:
    """What the chapter's opening states; the longer assignments have none."""
    found = re.search(r"\*\*Time:\*\* (\d+) minutes", sources(chapter)[0])
    return int(found[1]) if found else 0


def exercises(name: str) -> dict[int, tuple[int, int, bool]]:
    """The minutes and points of each exercise of a master, by its number, and whether it is a bonus."""
    master = ROOT / "assignments/source" / name / f"{name}.ipynb"
    asked = [re.match(ASKED, text, re.DOTALL) for text in sources(master)]
    return {int(match[1]): (int(match[2]), int(match[3]), bool(match[4])) for match in asked if match}


def points_of(asked: Iterable[tuple[int, int, bool]]) -> str:
    """The points without what is a bonus, and that behind a plus."""
    asked = list(asked)
    needed, on_top = (sum(points for _, points, bonus in asked if bonus == kind) for kind in (False, True))
    return f"{needed} + {on_top}" if on_top else str(needed)


def test_a_bonus_is_told_apart():
    assert points_of([(5, 3, False), (1, 4, False)]) == "7"
    assert points_of([(5, 3, False), (1, 4, True)]) == "3 + 4"


CHAPTERS = {path.stem: path for path in ROOT.glob("book/[a-z]*/*.ipynb")}
NAMES = sorted(path.stem for path in (ROOT / "assignments/source").glob("*/*.ipynb"))


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]


def tables(mark: str) -> list[list[list[str]]]:
    return [rows(table) for table in re.findall(rf"<!-- {mark} -->\n((?:\|.*\n)+)", PAGE)]


def linked(cell: str) -> list[str]:
    """The names of the notebooks that a cell links to, each of which must exist."""
    links = re.findall(r"\]\(([\w/-]+\.ipynb)\)", cell)
    assert [link for link in links if not (ROOT / "book" / link).exists()] == []
    return [Path(link).stem for link in links]


def test_what_each_chapter_takes():
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
    """Minutes, points and whether a bonus of exercises listed as ``[name](link) 1-4, 6; ...``."""
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
def test_a_syllabus_adds_up(title):
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


def test_every_command_and_file_that_it_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)", PAGE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in re.findall(r"`((?:grading|tools|tests|assignments)/[\w./-]+)[ `]", PAGE):
        assert (ROOT / path.replace("/NAME", "/scaling")).exists(), path


@pytest.mark.parametrize("guide", ["book/instructors.md", "assignments/README.md"])
def test_a_module_that_a_guide_runs_can_be_run(guide):
    named = set(re.findall(r"python -m (\w+)", (ROOT / guide).read_text(encoding="utf-8")))
    assert named == {"grading"}
    assert all((ROOT / name / "__main__.py").is_file() for name in named)


def test_every_file_that_the_other_guide_runs_exists():
    guide = (ROOT / "assignments/README.md").read_text(encoding="utf-8")
    paths = re.findall(r"python ((?:grading|tools)/[\w./]+)", guide)
    assert paths == ["grading/check_notebook.py"]
    assert all((ROOT / path).is_file() for path in paths)
