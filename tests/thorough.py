"""What ``make test`` leaves to ``make test-all``: cases of a test that only repeat its others."""

from collections.abc import Callable, Iterable

import pytest


def all_but(cases: Iterable, first: Callable[..., bool]) -> list:
    """Mark every case as thorough for which ``first``, called with its values, does not hold."""
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=() if first(*values) else pytest.mark.thorough))
    return marked
