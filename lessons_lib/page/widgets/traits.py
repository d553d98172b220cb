"""Traits for numbers with bounds; their errors give the rule and the value received."""

import math
from numbers import Integral
from numbers import Real as RealNumber
from typing import Any

import traitlets


class Real(traitlets.Float):
    """A finite number, at least ``min`` and at most ``max`` where these are given."""

    def info(self) -> str:
        """Say what is expected, in the words of the error message."""
        return _with_bounds("a finite number", self.min, self.max)

    def validate(self, obj: Any, value: Any) -> float:
        """Return the number as a float, or say what was expected."""
        if not isinstance(value, RealNumber) or not math.isfinite(value) or not _within(value, self.min, self.max):
            self.error(obj, value)
        return float(value)


class Whole(traitlets.Int):
    """A whole number, at least ``min`` and at most ``max`` where these are given."""

    def info(self) -> str:
        """Say what is expected, in the words of the error message."""
        return _with_bounds("a whole number", self.min, self.max)

    def validate(self, obj: Any, value: Any) -> int:
        """Return the number as an int, or say what was expected."""
        if not isinstance(value, Integral) or isinstance(value, bool) or not _within(value, self.min, self.max):
            self.error(obj, value)
        return int(value)


def _within(value: Any, low: int | float | None, high: int | float | None) -> bool:
    return (low is None or low <= value) and (high is None or value <= high)


def _with_bounds(kind: str, low: int | float | None, high: int | float | None) -> str:
    bounds = [f"at least {low:g}"] if low not in (None, -math.inf) else []
    bounds += [f"at most {high:g}"] if high not in (None, math.inf) else []
    return " ".join([kind, " and ".join(bounds)]).strip()
