"""Mark cases of a test that only repeat others as thorough: ``make test`` skips them, ``make test-all`` runs them."""

from collections.abc import Callable, Iterable

import pytest


def all_but(cases: Iterable, first: Callable[..., bool]) -> list:
    """Mark every case as thorough, except those for which ``first``, called with the case's values, is true."""
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=() if first(*values) else pytest.mark.thorough))
    return marked
