"""Tests of the markers that leave cases to ``make test-all``, and of the marker that disables shape checks."""

import jaxtyping
import pytest
from thorough import all_but


def is_thorough(request) -> bool:
    return request.node.get_closest_marker("thorough") is not None


def test_all_but_marks_other_cases_as_thorough():
    kept, left, pair = all_but([1, 2, (3, 4)], lambda *case: case != (2,))
    assert [case.values for case in (kept, left, pair)] == [(1,), (2,), (3, 4)]
    assert [[mark.name for mark in case.marks] for case in (kept, left, pair)] == [[], ["thorough"], []]


@pytest.mark.one_case
@pytest.mark.parametrize("x", ["a", "b"])
@pytest.mark.parametrize("y", ["c", "d"])
def test_one_case_marks_all_but_the_first_as_thorough(request, x, y):
    assert is_thorough(request) == ((x, y) != ("a", "c"))


@pytest.fixture
def altered():
    """A fixture with the name of the one in ``tests/page/widgets/conftest.py``."""


@pytest.mark.parametrize("wrong", ["a", "b"])
@pytest.mark.usefixtures("altered")
def test_altered_fixture_marks_every_case_as_thorough(request, wrong):
    assert is_thorough(request)


@pytest.mark.parametrize("x", ["a", "b"])
def test_cases_of_other_tests_are_not_thorough(request, x):
    assert not is_thorough(request)


@pytest.mark.rejects
def test_rejects_marker_disables_shape_checks():
    assert jaxtyping.config.jaxtyping_disable


def test_shape_checks_are_not_disabled_by_default():
    assert not jaxtyping.config.jaxtyping_disable
