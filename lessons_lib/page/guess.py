"""Questions that the reader answers before a result is shown.

Call ``predict`` before an experiment, and ``reveal`` in the cell that ran it::

    guess = predict("How many of the eight outputs change?", [1, 4, 8])
    ...
    guess.reveal(changed)

The first call shows a card with the question. The second passes the result to the card, which then says "You said 4; it
is 8". In a live notebook the widget holds the answer. In a rendered page no code runs: there the second call writes the
value into its own HTML, where the page finds it, and the page hides everything between the two cells until the reader
has answered. Without scripts, and on paper, nothing is hidden.

The answer always comes from the run, on any processor and with any seed. Therefore no value that a run can compute
raises an error: a value that the reader could not have given is moved to the nearest possible one, and the card says
so.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import anywidget
import traitlets
from IPython.display import HTML, display

from lessons_lib.page.language import filled, gettext, mark
from lessons_lib.page.widgets.assemble import (
    STATIC,
    es_module,
    in_page,
    made_from,
    page_scripts,
    read,
    style_element,
)
from lessons_lib.page.widgets.words import translated_texts, with_words

POINTS = 49  # points of a measured curve that are kept, as many as a drawn curve has


class GuessCard(anywidget.AnyWidget):
    """The card with a question; ``predict``, ``predict_number`` and ``predict_curve`` make it."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = STATIC / "guess.css"

    kind = traitlets.Enum(("choice", "number", "curve")).tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)
    question = traitlets.Unicode().tag(sync=True)
    about = traitlets.Dict().tag(sync=True)
    value = traitlets.Any(None, allow_none=True).tag(sync=True)
    answer = traitlets.Any(None, allow_none=True).tag(sync=True)
    skipped = traitlets.Bool(False).tag(sync=True)
    _words = traitlets.Dict().tag(sync=True)

    def __init__(self, kind: str, question: str, about: dict[str, Any]) -> None:
        if not question:
            raise ValueError(f"question must not be empty, got {question!r}")
        key = hashlib.sha256(json.dumps([kind, question, about]).encode()).hexdigest()[:8]
        super().__init__(kind=kind, key=key, question=question, about=about)

    @traitlets.default("_esm")
    def _assemble(self) -> str:
        return es_module("guess")

    @traitlets.default("_words")
    def _texts(self) -> dict[str, str]:
        return translated_texts("guess")

    def still(self) -> str:
        """Return the question and the possible answers as HTML that needs no script."""
        about = self.about
        if self.kind == "choice":
            among = "".join(f"<li>{escape(label)}</li>" for label in about["options"])
            among = f"<ul>{among}</ul>"
        elif self.kind == "number":
            ends = filled("Between {low} and {high}.", low=show(about["low"]), high=with_unit(about["high"], about))
            among = f"<p>{escape(ends)}</p>"
        else:
            axes = filled("Draw it: {ylabel} over {xlabel}.", ylabel=about["ylabel"], xlabel=about["xlabel"])
            among = f"<p>{escape(axes)}</p>"
        return f"<p><b>{escape(gettext('Guess first.'))}</b> {escape(self.question)}</p>{among}"

    def to_html(self) -> str:
        """Return HTML that is live in any page, and shows the question alone where scripts are off.

        All scripts but the last are marked ``data-part`` with a key: a page with several guesses needs one of each.
        """
        styles = style_element("guess", read("guess.css"))
        return in_page(
            "guess", styles, self.still(), page_scripts("guess", {**self._state(), **with_words(self._words)})
        )

    def _state(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "key": self.key,
            "question": self.question,
            "about": self.about,
            "value": None,
            "answer": None,
            "skipped": False,
        }

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        state = {"kind": self.kind, "question": self.question, "about": self.about}
        page = {"text/html": self.to_html(), "text/plain": repr(self)}
        return {**data, **page}, {**metadata, **made_from(type(self), state)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind!r}, {self.question!r})"


class Guess:
    """The reader's guess: its ``value``, and a method that reveals the result of the run."""

    def __init__(self, card: GuessCard) -> None:
        self.card = card
        display(card)

    @property
    def value(self) -> Any:
        """The reader's answer, or ``None`` before there is one; available in a live notebook only."""
        return self.card.value

    def reveal(self, *answer: Any) -> None:
        """Show the result: a value, or for a curve ``x`` and ``y``. Call it in the cell that computed the result.

        Raises:
            TypeError: if the result is of another kind than the options, or not a number where numbers are expected.
            ValueError: if ``x`` and ``y`` are not equally many, or fewer than two.
        """
        at, told, note = self._found(*answer)
        self.card.answer = {"at": at, "told": told, "note": note}
        data = escape(json.dumps(self.card.answer, allow_nan=False, separators=(",", ":"), ensure_ascii=False))
        off = " data-off" if note else ""
        sentence = filled("{told}.", told=told)
        said = f"{escape(self.card.question)} <b>{escape(sentence)}</b> {escape(note)}".strip()
        display(HTML(f'<p class="g-truth" data-guess="{self.card.key}" data-answer="{data}"{off}>{said}</p>'))

    def _found(self, *answer: Any) -> tuple[Any, str, str]:
        """Return the answer as the card shows it, in words, and a note if the reader could not have given it."""
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        """Show nothing as the last expression of a cell: the constructor has shown the card already."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.card.question!r}, value={self.value!r})"


class ChoiceGuess(Guess):
    """A choice among a few options."""

    def __init__(self, question: str, options: Sequence[Any] | Mapping[str, Any]) -> None:
        named = dict(options) if isinstance(options, Mapping) else {_label(option): option for option in options}
        if not 2 <= len(named) <= 6 or len(named) != len(options):
            raise ValueError(f"options must be 2 to 6, all different, got {list(options)}")
        self.values = [_plain(value) for value in named.values()]
        super().__init__(GuessCard("choice", gettext(question), {"options": [gettext(label) for label in named]}))

    @property
    def value(self) -> Any:
        """The value of the option that the reader chose, or ``None``."""
        return None if self.card.value is None else self.values[self.card.value]

    def _found(self, answer: Any) -> tuple[int | None, str, str]:
        answer, labels = _plain(answer), self.card.about["options"]
        kinds = {_kind(value) for value in self.values}
        if _kind(answer) not in kinds:
            raise TypeError(f"answer must be a {' or a '.join(sorted(kinds))}, as the options are, got {answer!r}")
        equal = [i for i, value in enumerate(self.values) if _same(value, answer)]
        if not equal and _kind(answer) == "number":
            return self._nearest(float(answer))
        if not equal:
            return None, gettext(f"{answer}"), gettext("None of the answers says so.")
        return equal[0], labels[equal[0]], ""

    def _nearest(self, answer: float) -> tuple[int | None, str, str]:
        """Return the option whose range holds the number, or the nearest option: by ratio if all are positive."""
        ranges = [_ends(value) if _kind(value) == "number" else None for value in self.values]
        if math.isnan(answer):
            return None, gettext("not a number"), gettext("None of the answers says so.")
        log = answer > 0 and all(ends is None or 0 < ends[0] <= ends[1] < math.inf for ends in ranges)

        def distance(ends: tuple[float, float] | None) -> float:
            if ends is None:
                return math.inf
            low, high = ends
            near = min(max(answer, low), high)
            return 0.0 if near == answer else abs(math.log(near / answer)) if log else abs(near - answer)

        i = min(range(len(ranges)), key=lambda i: distance(ranges[i]))
        label, value = self.card.about["options"][i], self.values[i]
        rounds = not isinstance(value, tuple) and round(answer, _decimals(value)) == value
        inside = distance(ranges[i]) == 0 or rounds
        nearest = filled("That is the nearest answer; precisely it is {answer}.", answer=show(answer))
        return i, label, "" if inside else nearest


class NumberGuess(Guess):
    """A number on a slider."""

    def __init__(self, question: str, low: float, high: float, *, log: bool = False, unit: str = "") -> None:
        if not (math.isfinite(low) and math.isfinite(high) and low < high) or (log and low <= 0):
            raise ValueError(f"low and high must be finite, low < high, and positive if log, got {low}, {high}")
        about = {"low": low, "high": high, "log": log, "unit": gettext(unit)}
        super().__init__(GuessCard("number", gettext(question), about))

    def _found(self, answer: Any) -> tuple[float | None, str, str]:
        number, about = _number(answer, "answer"), self.card.about
        if math.isnan(number):
            return None, gettext("not a number"), gettext("No place on the scale says so.")
        at = min(max(number, about["low"]), about["high"])
        return at, with_unit(number, about), "" if at == number else gettext("That lies beyond the scale.")


class CurveGuess(Guess):
    """A curve drawn by hand on labelled axes; its ``value`` is a list of heights from 0 to 1 at equal distances."""

    def __init__(
        self,
        question: str,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        xlabel: str,
        ylabel: str,
        log: str = "",
    ) -> None:
        if log not in ("", "x", "y", "xy"):
            raise ValueError(f"log must name axes, '', 'x', 'y' or 'xy', got {log!r}")
        for name, (low, high) in {"x": x, "y": y}.items():
            if not (math.isfinite(low) and math.isfinite(high) and low < high) or (name in log and low <= 0):
                raise ValueError(f"{name} must be finite, low < high, and positive if log, got {(low, high)}")
        about = {"x": list(x), "y": list(y), "log": log, "xlabel": gettext(xlabel), "ylabel": gettext(ylabel)}
        super().__init__(GuessCard("curve", gettext(question), about))

    def _found(self, x: Any, y: Any) -> tuple[list[list[float]] | None, str, str]:
        xs, ys = ([_number(one, name) for one in _row(row, name)] for name, row in (("x", x), ("y", y)))
        if len(xs) != len(ys) or len(xs) < 2:
            raise ValueError(f"x and y must be equally many, two at least, got {len(xs)} and {len(ys)}")
        about = self.card.about
        (left, right), (low, high) = about["x"], about["y"]
        points = sorted((a, b) for a, b in zip(xs, ys, strict=True) if left <= a <= right and not math.isnan(b))
        off = len(points) < len(xs) or any(not _within(b, low, high) for _, b in points)
        if len(points) < 2:
            return None, gettext("not a curve on these axes"), gettext("It lies beyond the axes.")
        points = (
            [points[i * (len(points) - 1) // (POINTS - 1)] for i in range(POINTS)] if len(points) > POINTS else points
        )
        at = [[float(f"{a:.4g}") for a, _ in points], [float(f"{min(max(b, low), high):.4g}") for _, b in points]]
        ends = points[0], points[-1]
        peak = max(points, key=lambda point: point[1])
        named = ends if peak[1] in (ends[0][1], ends[1][1]) else (ends[0], peak, ends[1])
        told = gettext("; ").join(
            filled("{y} at {xlabel} = {x}", y=show(b), xlabel=about["xlabel"], x=show(a)) for a, b in named
        )
        return at, told, gettext("A part of it lies beyond the axes.") if off else ""


def predict(question: str, options: Sequence[Any] | Mapping[str, Any]) -> ChoiceGuess:
    """Ask the reader to choose the result among a few options.

    ``options`` are 2 to 6 values of one kind (words, Booleans, numbers, lists), or a mapping from labels to values:
    ``{"some tens": (10, 100), "some thousands": (1000, 10_000)}`` labels ranges of numbers, ends included. ``reveal``
    takes such a value, or any number if the options are numbers: a number that is no option counts as the nearest one,
    and the card says so unless the number rounds to that option at the option's digits. Options for the result of a
    training run should be ranges that cover all values.

    Raises:
        ValueError: if there are fewer than 2 or more than 6 options, or two options are equal.
    """
    return ChoiceGuess(question, options)


def predict_number(question: str, low: float, high: float, *, log: bool = False, unit: str = "") -> NumberGuess:
    """Ask for a number between ``low`` and ``high`` on a slider, logarithmic with ``log``.

    Raises:
        ValueError: if ``low`` or ``high`` is not finite, ``low < high`` does not hold, or ``log`` is set and ``low`` is
            not positive.
    """
    return NumberGuess(question, low, high, log=log, unit=unit)


def predict_curve(
    question: str, x: tuple[float, float], y: tuple[float, float], *, xlabel: str, ylabel: str, log: str = ""
) -> CurveGuess:
    """Ask for a curve over ``x``, drawn by hand; ``log`` names the logarithmic axes.

    Raises:
        ValueError: if an axis is not finite ``(low, high)`` with ``low < high``, or is logarithmic and not positive.
    """
    return CurveGuess(question, x, y, xlabel=xlabel, ylabel=ylabel, log=log)


def show(number: float) -> str:
    """Write a number as the cards do: three digits, all digits before the point, or a power of ten.

    >>> show(0.12345), show(1234.5), show(2e-8)
    ('0.123', '1234', '2×10⁻⁸')
    """
    if not math.isfinite(number):
        return gettext("not a number") if math.isnan(number) else "∞" if number > 0 else "\u2212∞"
    number += 0.0  # minus zero is zero
    size = abs(number)
    if size and (size < 1e-3 or size >= 1e6):
        digits, exponent = f"{number:.1e}".split("e")
        power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        text = power if digits == "1.0" else f"-{power}" if digits == "-1.0" else f"{float(digits):g}\u00d7{power}"
    else:
        text = f"{number:.0f}" if size >= 100 else f"{float(f'{number:.3g}'):g}"
    return text.replace("-", "\u2212")


def with_unit(number: float, about: Mapping[str, Any]) -> str:
    """Write a number with the unit of the question, if the question has one."""
    return f"{show(number)} {about['unit']}".strip()


def _plain(value: Any) -> Any:
    """Convert a tensor or an array to Python numbers; leave other values unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def _kind(value: Any) -> str:
    """Name the kind of an option or an answer; a range of numbers has the kind of a number."""
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, int | float) or (isinstance(value, tuple) and len(value) == 2):
        return "number"
    return "word" if isinstance(value, str) else "list" if isinstance(value, list) else type(value).__name__


def _same(value: Any, answer: Any) -> bool:
    both_nan = isinstance(value, float) and isinstance(answer, float) and math.isnan(value) and math.isnan(answer)
    return both_nan or (not isinstance(value, tuple) and value == answer)


def _ends(value: Any) -> tuple[float, float] | None:
    low, high = value if isinstance(value, tuple) else (value, value)
    return None if math.isnan(low) else (low, high)


def _number(value: Any, name: str) -> float:
    value = _plain(value)
    while isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def _row(values: Any, name: str) -> list[Any]:
    values = _plain(values)
    if not isinstance(values, Iterable) or isinstance(values, str | Mapping):
        raise TypeError(f"{name} must be a row of numbers, got {values!r}")
    return list(values)


def _within(number: float, low: float, high: float) -> bool:
    slack = 1e-6 * (high - low)
    return low - slack <= number <= high + slack


def _label(option: Any) -> str:
    return {True: mark("yes"), False: mark("no")}[option] if isinstance(option, bool) else f"{option}"


def _decimals(number: float) -> int:
    return len(f"{number}".partition(".")[2].rstrip("0"))
