"""The markers: which cases are left to ``make test-all``, and where shapes are executed."""

import jaxtyping
import pytest
from thorough import all_but


def is_thorough(request) -> bool:
    return request.node.get_closest_marker("thorough") is not None


def test_all_but_marks_the_cases_that_are_not_first():
    kept, left, pair = all_but([1, 2, (3, 4)], lambda *case: case != (2,))
    assert [case.values for case in (kept, left, pair)] == [(1,), (2,), (3, 4)]
    assert [[mark.name for mark in case.marks] for case in (kept, left, pair)] == [[], ["thorough"], []]


@pytest.mark.one_case
@pytest.mark.parametrize("x", ["a", "b"])
@pytest.mark.parametrize("y", ["c", "d"])
def test_one_case_leaves_all_but_the_first(request, x, y):
    assert is_thorough(request) == ((x, y) != ("a", "c"))


@pytest.fixture
def altered():
    """As in ``tests/widgets/conftest.py``."""


@pytest.mark.parametrize("wrong", ["a", "b"])
@pytest.mark.usefixtures("altered")
def test_altered_scripts_leave_all_but_the_first(request, wrong):
    assert is_thorough(request) == (wrong != "a")


@pytest.mark.parametrize("x", ["a", "b"])
def test_cases_of_other_tests_are_not_thorough(request, x):
    assert not is_thorough(request)


@pytest.mark.rejects
def test_where_wrong_input_is_fed_shapes_are_not_executed():
    assert jaxtyping.config.jaxtyping_disable


def test_elsewhere_shapes_are_executed_if_asked_for():
    assert not jaxtyping.config.jaxtyping_disable
