"""Tests of the exercises: masters pass their checks, and released notebooks are current and have no solutions."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
from thorough import all_but

pytest.importorskip("nbgrader")

from grading.draw_numbers import drawn

ROOT = Path(__file__).resolve().parents[2]
MASTERS = sorted((ROOT / "assignments/source").glob("*/*.ipynb"))
# The longer assignments belong to a part of the book and not to one chapter; the values are the parts' folders.
OF_A_PART = {"build-attention": "attention", "build-flash": "efficient"}
STUB = "raise NotImplementedError  # your code here"

of_a_chapter = pytest.mark.parametrize("master", [m for m in MASTERS if m.stem not in OF_A_PART], ids=lambda m: m.stem)
of_a_part = pytest.mark.parametrize("master", [m for m in MASTERS if m.stem in OF_A_PART], ids=lambda m: m.stem)


@pytest.fixture(params=MASTERS, ids=lambda path: path.stem)
def master(request) -> Path:
    return request.param


# One assignment of a chapter and one of a part, as examples: for these tests all assignments are alike.
some_masters_first = pytest.mark.parametrize(
    "master", all_but(MASTERS, lambda path: path.stem in {"matrix", "build-attention"}), ids=lambda path: path.stem
)


def read(path: Path) -> nbformat.NotebookNode:
    return drawn(nbformat.read(path, as_version=4), path.stem)


def released(master: Path) -> Path:
    return ROOT / "book/exercises" / master.parent.name / master.name


def about(cell: nbformat.NotebookNode) -> dict:
    return cell.metadata.get("nbgrader", {})


def autograded(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if about(cell).get("grade") and not about(cell)["solution"]]


def solutions(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if about(cell).get("solution")]


def exercises(master: Path) -> list[str]:
    return [cell.source for cell in read(master).cells if cell.source.startswith("## Exercise ")]


def failing(notebook: nbformat.NotebookNode) -> set[str]:
    """Run the whole notebook and return the ids of the cells that raised an error."""
    from nbclient import NotebookClient

    NotebookClient(
        notebook, timeout=900, allow_errors=True, kernel_name="python3"
    ).execute()  # enough for a busy machine
    return {
        cell.id
        for cell in notebook.cells
        if cell.cell_type == "code" and any(output.output_type == "error" for output in cell.outputs)
    }


def test_masters_are_found():
    assert {path.stem for path in MASTERS} > set(OF_A_PART)


@some_masters_first
def test_solved_master_passes_every_cell(master):
    notebook = read(master)
    assert autograded(notebook)
    assert failing(notebook) == set()


@some_masters_first
def test_unsolved_master_fails_in_every_graded_cell(master):
    from nbgrader.preprocessors import ClearSolutions

    unsolved, _ = ClearSolutions(code_stub={"python": STUB}).preprocess(read(master), {})
    failed = failing(unsolved)
    assert {cell.id for cell in autograded(unsolved)} <= failed
    harmless = {cell.id for cell in unsolved.cells if "raises-exception" in cell.metadata.get("tags", [])}
    assert failed <= harmless, "tag the cells that fail in an unsolved notebook with raises-exception"


def test_released_notebook_is_current(master, tmp_path):
    from release_assignments import release

    folder = master.parent.name
    release(folder, tmp_path)
    fresh = (tmp_path / folder / master.name).read_bytes()
    assert fresh == released(master).read_bytes(), "the hand-out is stale: run tools/release_assignments.py"


def test_released_notebook_has_no_solutions(master):
    from nbgrader.preprocessors import ClearSolutions

    text = released(master).read_text(encoding="utf-8")
    for mark in ("BEGIN SOLUTION", "END SOLUTION", "BEGIN HIDDEN TESTS", "END HIDDEN TESTS"):
        assert mark not in text
    cleared, _ = ClearSolutions(code_stub={"python": STUB}).preprocess(read(master), {})
    kept = {cell.id: cell.source for cell in cleared.cells}
    given = {cell.id: cell.source for cell in read(released(master)).cells}
    assert solutions(cleared)
    for cell in solutions(read(master)):
        assert cell.source != kept[cell.id], f"nothing to solve in {cell.id}"
        if cell.cell_type == "code":
            assert given[cell.id] == kept[cell.id]
        else:
            assert given[cell.id] == "*Your answer here.*"


def test_exercises_state_difficulty_minutes_points_and_a_hint(master):
    assert len(exercises(master)) >= 3
    for text in exercises(master):
        heading = text.splitlines()[0]
        assert "difficulty ★" in text, heading
        assert " minutes · " in text, heading
        assert re.search(r" · \d+ points(, a bonus)?\*$", text, re.MULTILINE), heading
        assert "<summary>Hint</summary>" in text, heading


def test_exercise_points_equal_the_sum_of_their_cells(master):
    promised, given = [], []
    for cell in read(master).cells:
        if cell.source.startswith("## Exercise "):
            promised.append(int(cell.source.split(" minutes · ")[1].split(" points")[0]))
            given.append(0)
        elif about(cell).get("grade"):
            given[-1] += about(cell)["points"]
    assert given == promised


def test_exercises_have_all_three_kinds(master):
    kinds = {text.split("\n\n")[1].strip("*").split(" · ")[0] for text in exercises(master)}
    assert kinds == {"On paper", "Code", "Open"}


@of_a_chapter
def test_chapter_lists_every_exercise(master):
    (chapter,) = (ROOT / "book").glob(f"*/{master.name}")
    text = "\n".join(cell.source for cell in read(chapter).cells)
    assert f"../exercises/{master.parent.name}/{master.name}" in text
    listed = text.split("\n## Exercises\n")[1].split("\n## ")[0]
    asked = [
        re.match(r"## Exercise (\d+)\..*?difficulty ([★☆]+) · (\d+ minutes)", exercise, re.DOTALL).groups()
        for exercise in exercises(master)
    ]
    assert re.findall(r"^(\d+)\. .*, ([★☆]+), (\d+ minutes)\.\*$", listed, re.MULTILINE) == asked


@of_a_part
def test_assignment_of_a_part_links_existing_chapters(master):
    opening = read(master).cells[0].source
    folder = OF_A_PART[master.stem]
    drawn_on = re.findall(rf"\]\(\.\./\.\./{folder}/([\w-]+\.ipynb)\)", opening)
    assert drawn_on
    assert [name for name in drawn_on if not (ROOT / "book" / folder / name).exists()] == []


@of_a_part
def test_assignment_of_a_part_is_mostly_graded_automatically(master):
    """A class of two hundred students must need little manual grading."""
    notebook = read(master)
    by_machine = sum(about(cell)["points"] for cell in autograded(notebook))
    by_hand = sum(about(cell)["points"] for cell in solutions(notebook) if about(cell)["grade"])
    assert by_machine >= 2 * by_hand > 0


def test_opening_states_the_number_of_exercises_and_points(master):
    numbers = ["No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten"]
    asked = "\n".join(exercises(master))
    points, bonus = (
        sum(map(int, re.findall(rf" · (\d+) points{mark}\*$", asked, re.MULTILINE))) for mark in ("", ", a bonus")
    )
    said = f"{numbers[len(exercises(master))]} exercises, {points} points{f' and a bonus of {bonus}' * (bonus > 0)}, "
    assert said in read(master).cells[0].source


def test_exercises_are_ordered_by_difficulty(master):
    stars = [len(re.search(r"difficulty (★+)", text)[1]) for text in exercises(master)]
    assert stars == sorted(stars)
    easy = re.findall(r"^\*Code · difficulty ★☆☆", "\n".join(exercises(master)), re.MULTILINE)
    assert easy, "at least one exercise in code has one star"


def test_every_part_of_a_check_has_visible_and_hidden_points(master):
    """This applies to visible and hidden checks: a correct part gives its points independently of the others."""
    notebook = read(master)
    module = import_module(f"lessons_lib.checks.{master.stem.replace('-', '_')}")
    asked: dict[str, list] = {}
    for cell in autograded(notebook):
        if cell.source.startswith("check_value("):
            continue
        name, only, seed = re.search(r"check\.(\w+)\(\w+(?:, only=\"(\w+)\")?(, seed=)?", cell.source).groups()
        asked.setdefault(name, []).append((only, bool(seed)))
    for name, cells in asked.items():
        if "only" not in inspect.signature(getattr(module, name)).parameters:
            assert cells == [(None, False), (None, True)], name
            continue
        with pytest.raises(AssertionError, match="only must be one of ") as parts:
            getattr(module, name)(print, only="no part")
        names = str(parts.value).split("one of ")[1].split(", got")[0].split(", ")
        assert cells == [(part, hidden) for hidden in (False, True) for part in names], name


def test_values_on_paper_are_compared_in_hidden_tests_only(master):
    """The visible line reads the same value of the same answer in the same unit, and does not know the correct one."""
    for cell in autograded(read(master)):
        if "check_value(" in cell.source:
            visible, hidden = re.split(r"### BEGIN HIDDEN TESTS\n", cell.source)
            answer, value, unit = re.fullmatch(r'check_value\((\w+), ("\w+")(, unit=".+?")?\)\n', visible).groups()
            (call,) = re.findall(r"^check_value\((?s:.+?)\)$", hidden, re.MULTILINE)
            assert call.startswith(f"check_value({answer}, {value}, ")
            assert (unit or "") in call
            assert call.rstrip().endswith(")")
            assert hidden.endswith("\n### END HIDDEN TESTS")


def test_exercise_page_is_in_the_contents(master):
    contents = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    page = released(master).relative_to(ROOT).with_suffix("")
    assert re.search(rf"- file: {page}$", contents, re.MULTILINE)
