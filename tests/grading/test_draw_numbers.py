"""Tests of the numbers of questions on paper: another year has other numbers, and a model answer that is right."""

import re
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbgrader")

from release_assignments import hand_out, release

from grading.check_notebook import other_numbers
from grading.course import Course, configure
from grading.draw_numbers import PLACEHOLDER, TAG, course_numbers, drawn, filled, picker
from grading.roster import assignments_in

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "assignments/source"
DRAWING = sorted(path.parent.name for path in SOURCE.glob("*/*.ipynb") if f'"{TAG}"' in path.read_text())
YEARS = [0, *range(2026, 2046)]


def master(name: str, numbers: int = 0) -> nbformat.NotebookNode:
    return drawn(nbformat.read(SOURCE / name / f"{name}.ipynb", as_version=4), name, numbers)


def text(name: str, cell: str, numbers: int) -> str:
    """Return a cell's text without the gaps in its numbers."""
    source = next(one.source for one in master(name, numbers).cells if one.id == cell)
    return re.sub(r"(?<=\d)(?:\\,| )(?=\d{3}\b)", "", source)


def whole(pattern: str, text: str) -> list[int]:
    """Return the whole numbers that a pattern finds."""
    return [int(number) for number in re.search(pattern, text, re.DOTALL).groups()]


def test_multi_head_answer_is_right_every_year():
    for year in YEARS:
        asked, answer = text("multi-head", "count-text", year), text("multi-head", "count", year)
        d_model, h, g = whole(r"= (\d+)\$, \$h = (\d+)\$ query heads and \$g = (\d+)\$", asked)
        width, layers, many = whole(r"width (\d+)\. The model has (\d+) such.*would it have with \$g = (\d+)\$", asked)
        conversations, tokens, twice_h, twice_g = whole(
            r"for (\d+) conversations of (\d+) tokens.*\$h = (\d+)\$ and \$g = (\d+)\$", asked
        )
        assert (many, twice_h, twice_g, h % g, d_model) == (h, 2 * h, 2 * g, 0, h * width)

        matrices = [d_model * h * width, d_model * g * width, d_model * g * width, h * width * d_model]
        grouped, ordinary = whole(r"= (\d+)\$; with .*? = (\d+) = 4\\,d_", answer)
        assert (grouped, ordinary) == (sum(matrices), 4 * matrices[0])
        numbers_of_a_token = sum(2 for _ in range(layers) for _ in range(g) for _ in range(width))
        (token_bytes,) = whole(r"\\cdot 2 = (\d+)\$ bytes", answer)
        assert token_bytes == 2 * numbers_of_a_token
        kibibytes, gibibytes = re.search(r"which is ([\d.]+) KiB.* = ([\d.]+)\$ GiB", answer, re.DOTALL).groups()
        assert float(kibibytes) * 1024 == token_bytes
        assert float(gibibytes) * 2**30 == token_bytes * conversations * tokens


def test_flash_answer_is_right_every_year():
    for year in YEARS:
        asked, answer = text("flash", "tiles-text", year), text("flash", "tiles", year)
        d, capacity, keys = whole(r"for \$d = (\d+)\$ and \$C = (\d+)\$.*compare with \$b_k = (\d+)\$", asked)

        def most_queries(k: int, d: int = d, capacity: int = capacity) -> int:
            fits = (q for q in range(capacity // d, 0, -1) if 2 * q * d + 2 * q + 2 * k * d + q * k <= capacity)
            return next(fits)

        best, beside, k, blocks = whole(
            r"so \$b_q = (\d+)\$, against .*? so \$b_q = (\d+)\$, for \$b_k = (\d+)\$.*tokens has (\d+) blocks", answer
        )
        assert (best, beside, k) == (most_queries(1), most_queries(keys), keys)
        assert best > most_queries(2)
        assert blocks == len(range(0, 4096, best))
        assert re.search(r"by a factor of ([\d.]+)\.", answer)[1] == f"{best / beside:.1f}"


@pytest.mark.parametrize("name", DRAWING)
def test_years_have_other_numbers_and_the_book_keeps_its_own(name):
    def texts(numbers: int) -> str:
        return "\n".join(cell.source for cell in master(name, numbers).cells if cell.cell_type == "markdown")

    assert len({texts(year) for year in YEARS}) > len(YEARS) / 2
    assert texts(2027) == texts(2027) != texts(0)
    for year in YEARS:
        assert not PLACEHOLDER.search(texts(year))
        assert not [cell for cell in master(name, year).cells if TAG in cell.metadata.get("tags", [])]


def test_pick_is_the_first_for_the_book_and_another_for_a_course():
    assert picker("a", 0)(1, 2, 3) == 1
    assert {picker("a", year)(1, 2, 3) for year in YEARS[1:]} == {2, 3}
    assert picker("a", 2027)(1) == 1


def test_numbers_are_grouped_as_the_text_around_demands():
    values = {"n": 1234567, "small": 9999, "share": 0.25, "power": "2^{19}"}
    assert filled("{{n}} and $x = {{n}}$", values) == r"1 234 567 and $x = 1\,234\,567$"
    assert filled("{{small}}, ${{small}}$, {{share}}", values) == "9999, $9999$, 0.25"
    assert filled("$$\n{{power}} + {{n}}\n$$", values) == "$$\n2^{19} + 1\\,234\\,567\n$$"


def notebook(*cells: str) -> nbformat.NotebookNode:
    made = [nbformat.v4.new_code_cell(cell, metadata={"tags": [TAG]}) for cell in cells]
    asked = nbformat.v4.new_markdown_cell("{{n}} keys", metadata={"nbgrader": {"grade_id": "asked"}})
    return nbformat.v4.new_notebook(cells=[*made, asked])


def test_drawn_leaves_the_master_unchanged():
    given = notebook("n = pick(3, 4)")
    assert [cell.source for cell in drawn(given, "a").cells] == ["3 keys"]
    assert [cell.source for cell in given.cells] == ["n = pick(3, 4)", "{{n}} keys"]
    assert drawn(notebook(), "a").cells[0].source == "{{n}} keys", "no such cell: nothing to fill in"


def test_master_with_an_unknown_number_or_two_cells_raises():
    with pytest.raises(ValueError, match="the master of a: asked asks for the number 'n'"):
        drawn(notebook("m = 1"), "a")
    with pytest.raises(ValueError, match="must have one cell tagged numbers, got 2"):
        drawn(notebook("n = 1", "n = 2"), "a")


def test_course_chooses_its_numbers_in_course_toml(tmp_path):
    rules = tmp_path / "course.toml"
    assert course_numbers(rules) == 0
    rules.write_text("numbers = 2027\n[flash]\ngrace_minutes = 5\n")
    assert course_numbers(rules) == 2027
    assert assignments_in(rules) == ["flash"]
    config = configure(tmp_path)
    assert config.DrawNumbers.numbers == 2027
    (tmp_path / "source/flash").mkdir(parents=True)
    (tmp_path / "source/flash/flash.ipynb").write_bytes((SOURCE / "flash/flash.ipynb").read_bytes())
    assert [cell.source for cell in Course(tmp_path, "flash", config).master().cells] == [
        cell.source for cell in master("flash", 2027).cells
    ]
    for wrong in ("true", "-1", '"2027"', "2027.0"):
        rules.write_text(f"numbers = {wrong}")
        with pytest.raises(ValueError, match="numbers must be a whole number from 0 up"):
            course_numbers(rules)


def test_hand_outs_have_the_numbers_of_the_course_and_pages_those_of_the_book(tmp_path):
    book, mine = tmp_path / "book", tmp_path / "hand-outs"
    release("multi-head", book)
    assert asked_in(book) == text("multi-head", "count-text", 0)
    hand_out(book, mine, 2027)
    assert asked_in(mine) == text("multi-head", "count-text", 2027) != asked_in(book)
    released = nbformat.read(mine / "multi-head/multi-head.ipynb", as_version=4)
    assert not [cell for cell in released.cells if "pick(" in cell.source or TAG in cell.metadata.get("tags", [])]
    hand_out(book, mine)
    assert asked_in(mine) == asked_in(book)


def asked_in(folder: Path) -> str:
    released = nbformat.read(folder / "multi-head/multi-head.ipynb", as_version=4)
    source = next(cell.source for cell in released.cells if cell.id == "count-text")
    return re.sub(r"(?<=\d)(?:\\,| )(?=\d{3}\b)", "", source)


@pytest.mark.parametrize("name", ["multi-head", "flash"])
def test_notebook_with_the_numbers_of_another_year_is_noted(tmp_path, name):
    book, mine = tmp_path / "book", tmp_path / "hand-outs"
    release(name, book)
    hand_out(book, mine, 2027)
    of_book, of_course = (nbformat.read(folder / name / f"{name}.ipynb", as_version=4) for folder in (book, mine))
    assert other_numbers(of_course, of_course) == []
    [note] = other_numbers(of_book, of_course)
    assert re.match(r"Exercise \d\. .*: the numbers in this question are not the released ones", note)
