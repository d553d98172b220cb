"""Tests of ``check_value`` and of the values on paper in the masters, whose hidden tests hold the correct values."""

import re
from pathlib import Path

import nbformat
import pytest
from test_every_check import ANSWERS

from lessons_lib.checks import check_value

pytestmark = pytest.mark.rejects  # most answers are wrong on purpose

MASTERS = sorted((Path(__file__).resolve().parents[2] / "assignments/source").glob("*/*.ipynb"))
CALL = re.compile(r'^check_value\((\w+), "(\w+)"')


def value_cells(path: Path) -> dict[tuple[str, str], str]:
    """Return the source of each cell that checks a value, by the answer's name and the value's name."""
    cells = nbformat.read(path, as_version=4).cells
    return {found.groups(): cell.source for cell in cells if (found := CALL.match(cell.source))}


CELLS = {path.stem.replace("-", "_"): cells for path in MASTERS if (cells := value_cells(path))}
RIGHT = {name: getattr(ANSWERS[name], "RIGHT_VALUES", {}) for name in CELLS}
WRONG = [
    pytest.param(name, answer, *wrong, id=f"{name}-{answer}-{wrong[0]}-{i}")
    for name in CELLS
    for answer, several in getattr(ANSWERS[name], "WRONG_VALUES", {}).items()
    for i, wrong in enumerate(several)
]


def run(name: str, answer: str, function, value: str, *, hidden: bool = True) -> None:
    """Run the cell of a value with this answer, as grading does, or only the part that students see."""
    source = CELLS[name][answer, value]
    visible = source.split("### BEGIN HIDDEN TESTS")[0]
    exec(source if hidden else visible, {"check_value": check_value, answer: function})


def test_every_value_of_a_master_has_right_and_wrong_answers():
    assert {"complexity", "long_context"} <= set(CELLS)
    for name, cells in CELLS.items():
        wrong = {param.values[1:3] for param in WRONG if param.values[0] == name}
        assert {answer for answer, _ in cells} == set(RIGHT[name]), name
        assert all(len(several) >= 3 for several in RIGHT[name].values()), name
        assert set(cells) == wrong, name


def test_right_values_pass(capsys):
    for name, cells in CELLS.items():
        for answer, value in cells:
            for function in RIGHT[name][answer]:
                run(name, answer, function, value)
                assert f"{value} = " in capsys.readouterr().out


@pytest.mark.parametrize(("name", "answer", "value", "given", "says"), WRONG)
def test_wrong_values_are_rejected_with_their_message(name, answer, value, given, says, capsys):
    values = RIGHT[name][answer][0]() | {value: given}
    with pytest.raises(AssertionError, match=says):
        run(name, answer, lambda: values, value)
    for other in [other for found, other in CELLS[name] if found == answer and other != value]:
        run(name, answer, lambda: values, other)


def test_every_mistake_of_a_master_is_made_by_a_wrong_value():
    for name, cells in CELLS.items():
        for (answer, value), source in cells.items():
            sentences = re.findall(r'^    "(.+)": ', source, re.MULTILINE)
            patterns = [p.values[4] for p in WRONG if p.values[:3] == (name, answer, value)]
            unmade = [one for one in sentences if not any(re.search(pattern, one) for pattern in patterns)]
            assert unmade == [], (name, value)


def test_visible_part_accepts_any_value_and_says_how_it_is_read(capsys):
    for name, cells in CELLS.items():
        for answer, value in cells:
            run(name, answer, lambda value=value: {value: 123_456.5}, value, hidden=False)
            unit = re.search(r'unit="(.+?)"', cells[answer, value])
            assert capsys.readouterr().out.strip() == f"{value} = 123456.5 {unit[1] if unit else ''}".strip()


def test_no_message_shows_the_correct_value():
    with pytest.raises(AssertionError) as caught:
        check_value(lambda: {"a": 41}, "a", 4711, unit="m", mistakes={"no": 3}, other_units={"km": 1e-3})
    assert str(caught.value) == "a = 41 m is not the correct value"


@pytest.mark.parametrize(
    ("given", "wanted", "right"),
    [
        ((3, 4), (3, 4), True),
        ([3, 4], (3, 4), True),
        ((4, 3), (3, 4), False),
        ((3.0, 4), (3, 4), False),
        (12, (3, 4), False),
        (0, 0, True),
        (1e-9, 0, False),
        (-5, 5, False),
        (10**400, 5, False),
    ],
)
def test_check_value_compares_shapes_and_numbers(given, wanted, right):
    if right:
        check_value(lambda: {"a": given}, "a", wanted)
    else:
        with pytest.raises(AssertionError):
            check_value(lambda: {"a": given}, "a", wanted)


@pytest.mark.parametrize(("tolerance", "right"), [(0.0, False), (0.001, False), (0.002, True)])
def test_check_value_tolerance_is_a_share_of_the_correct_number(tolerance, right):
    if right:
        check_value(lambda: {"a": 1002}, "a", 1000, tolerance=tolerance)
    else:
        with pytest.raises(AssertionError, match="a = 1002 is not the correct value"):
            check_value(lambda: {"a": 1002}, "a", 1000, tolerance=tolerance)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda: None, "did you forget to return the values, by name"),
        (lambda: 6, "return the values by name, a dictionary, got int"),
        (lambda: {"b": 6}, "a is missing: add its value"),
        (lambda: {"a": 6j}, "a must be a number, got complex"),
        ({"a": 6}, "the answer must be a function, got dict"),
    ],
)
def test_check_value_unreadable_answer_raises(answer, says):
    with pytest.raises(AssertionError, match=says):
        check_value(answer, "a", 6)


def test_check_value_exception_of_the_answer_is_raised():
    def answer():
        raise NotImplementedError

    with pytest.raises(NotImplementedError):
        check_value(answer, "a", 6)
