"""Ask the reader first: ``guess = predict(...)`` before an experiment, ``guess.reveal(value)`` in the cell that ran it.

    guess = predict("How many of the eight outputs change?", [1, 4, 8])
    ...
    guess.reveal(changed)

The first call shows a question that can be answered by hand, the second hands over what came out, and the card says
"You said 4; it is 8". In a live notebook the widget itself carries the answer. In a rendered page nobody runs
anything: there the second call leaves the value in its own HTML, the page finds it, and what stands between the two is
covered until the reader has answered. Without scripts, and on paper, nothing is covered.

The answer is always the run's, on another processor or with another seed too. So no value that a run can compute is
refused: one that the reader could not have given is moved to the nearest that could, and the card says so.
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

from lessons_lib.widgets.assemble import (
    STATIC,
    es_module,
    in_page,
    made_from,
    page_scripts,
    read,
    style_element,
)

POINTS = 49  # of a measured curve are kept: as many as a drawn one has


class GuessCard(anywidget.AnyWidget):
    """The question as the reader sees it; ``predict`` and its two sisters make it."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = STATIC / "guess.css"

    kind = traitlets.Enum(("choice", "number", "curve")).tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)
    question = traitlets.Unicode().tag(sync=True)
    about = traitlets.Dict().tag(sync=True)
    value = traitlets.Any(None, allow_none=True).tag(sync=True)
    answer = traitlets.Any(None, allow_none=True).tag(sync=True)
    skipped = traitlets.Bool(False).tag(sync=True)

    def __init__(self, kind: str, question: str, about: dict[str, Any]) -> None:
        if not question:
            raise ValueError(f"question must not be empty, got {question!r}")
        key = hashlib.sha256(json.dumps([kind, question, about]).encode()).hexdigest()[:8]
        super().__init__(kind=kind, key=key, question=question, about=about)

    @traitlets.default("_esm")
    def _assemble(self) -> str:
        return es_module("guess")

    def still(self) -> str:
        """Write the question, and among what one chooses."""
        about = self.about
        if self.kind == "choice":
            among = "".join(f"<li>{escape(label)}</li>" for label in about["options"])
            among = f"<ul>{among}</ul>"
        elif self.kind == "number":
            among = f"<p>{escape('Between ' + show(about['low']) + ' and ' + with_unit(about['high'], about))}.</p>"
        else:
            among = f"<p>{escape('Draw it: ' + about['ylabel'] + ' over ' + about['xlabel'])}.</p>"
        return f"<p><b>Guess first.</b> {escape(self.question)}</p>{among}"

    def to_html(self) -> str:
        """Return a piece of HTML that is live in any page, and only asks where scripts are off.

        All but the last script is marked ``data-part`` with a key: on a page with several guesses one of each will do.
        """
        styles = style_element("guess", read("guess.css"))
        return in_page("guess", styles, self.still(), page_scripts("guess", self._state()))

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
    """What ``predict`` returns: the reader's ``value``, once there is one, and a way to ``reveal`` the run's."""

    def __init__(self, card: GuessCard) -> None:
        self.card = card
        display(card)

    @property
    def value(self) -> Any:
        """What the reader said, or ``None``; in a live notebook only."""
        return self.card.value

    def reveal(self, *answer: Any) -> None:
        """Hand over what came out: a value, or for a curve ``x`` and ``y``. Call it in the cell that found it out.

        Raises:
            TypeError: if it is of another kind than what was asked for.
            ValueError: if ``x`` and ``y`` do not belong together.
        """
        at, told, note = self._found(*answer)
        self.card.answer = {"at": at, "told": told, "note": note}
        data = escape(json.dumps(self.card.answer, allow_nan=False, separators=(",", ":"), ensure_ascii=False))
        off = " data-off" if note else ""
        said = f"{escape(self.card.question)} <b>{escape(told)}.</b> {escape(note)}".strip()
        display(HTML(f'<p class="g-truth" data-guess="{self.card.key}" data-answer="{data}"{off}>{said}</p>'))

    def _found(self, *answer: Any) -> tuple[Any, str, str]:
        """Return where the card shows the answer, the answer in words, and a remark if one could not have given it."""
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        """Show nothing when it is a cell's last line: it has shown itself already."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.card.question!r}, value={self.value!r})"


class ChoiceGuess(Guess):
    """One of a few answers."""

    def __init__(self, question: str, options: Sequence[Any] | Mapping[str, Any]) -> None:
        named = dict(options) if isinstance(options, Mapping) else {_label(option): option for option in options}
        if not 2 <= len(named) <= 6 or len(named) != len(options):
            raise ValueError(f"options must be 2 to 6, all different, got {list(options)}")
        self.values = [_plain(value) for value in named.values()]
        super().__init__(GuessCard("choice", question, {"options": list(named)}))

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
            return None, f"{answer}", "None of the answers says so."
        return equal[0], labels[equal[0]], ""

    def _nearest(self, answer: float) -> tuple[int | None, str, str]:
        """The option whose range holds the number, or that is nearest: by factors, if all of them are positive."""
        ranges = [_ends(value) if _kind(value) == "number" else None for value in self.values]
        if math.isnan(answer):
            return None, "not a number", "None of the answers says so."
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
        return i, label, "" if inside else f"That is the nearest answer; precisely it is {show(answer)}."


class NumberGuess(Guess):
    """A number on a slider."""

    def __init__(self, question: str, low: float, high: float, *, log: bool = False, unit: str = "") -> None:
        if not (math.isfinite(low) and math.isfinite(high) and low < high) or (log and low <= 0):
            raise ValueError(f"low and high must be finite, low < high, and positive if log, got {low}, {high}")
        super().__init__(GuessCard("number", question, {"low": low, "high": high, "log": log, "unit": unit}))

    def _found(self, answer: Any) -> tuple[float | None, str, str]:
        number, about = _number(answer, "answer"), self.card.about
        if math.isnan(number):
            return None, "not a number", "No place on the scale says so."
        at = min(max(number, about["low"]), about["high"])
        return at, with_unit(number, about), "" if at == number else "That lies beyond the scale."


class CurveGuess(Guess):
    """A curve, drawn by hand on named axes; its ``value`` are heights from 0 to 1, equally far apart."""

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
        about = {"x": list(x), "y": list(y), "log": log, "xlabel": xlabel, "ylabel": ylabel}
        super().__init__(GuessCard("curve", question, about))

    def _found(self, x: Any, y: Any) -> tuple[list[list[float]] | None, str, str]:
        xs, ys = ([_number(one, name) for one in _row(row, name)] for name, row in (("x", x), ("y", y)))
        if len(xs) != len(ys) or len(xs) < 2:
            raise ValueError(f"x and y must be equally many, two at least, got {len(xs)} and {len(ys)}")
        about = self.card.about
        (left, right), (low, high) = about["x"], about["y"]
        points = sorted((a, b) for a, b in zip(xs, ys, strict=True) if left <= a <= right and not math.isnan(b))
        off = len(points) < len(xs) or any(not _within(b, low, high) for _, b in points)
        if len(points) < 2:
            return None, "not a curve on these axes", "It lies beyond the axes."
        points = (
            [points[i * (len(points) - 1) // (POINTS - 1)] for i in range(POINTS)] if len(points) > POINTS else points
        )
        at = [[float(f"{a:.4g}") for a, _ in points], [float(f"{min(max(b, low), high):.4g}") for _, b in points]]
        ends = points[0], points[-1]
        peak = max(points, key=lambda point: point[1])
        named = ends if peak[1] in (ends[0][1], ends[1][1]) else (ends[0], peak, ends[1])
        told = "; ".join(f"{show(b)} at {about['xlabel']} = {show(a)}" for a, b in named)
        return at, told, "A part of it lies beyond the axes." if off else ""


def predict(question: str, options: Sequence[Any] | Mapping[str, Any]) -> ChoiceGuess:
    """Ask which of a few things will come out.

    ``options`` are 2 to 6 values of one kind (words, truth values, numbers, lists), or what is read for each of them:
    ``{"some tens": (10, 100), "some thousands": (1000, 10_000)}`` names ranges of numbers, ends included. ``reveal``
    takes such a value, and of numbers any: what is no option counts as the nearest, and the card says so unless
    it rounds to it at the option's own digits. Options for what was trained should be ranges that cover everything.

    Raises:
        ValueError: if there are fewer than 2 or more than 6 options, or two are alike.
    """
    return ChoiceGuess(question, options)


def predict_number(question: str, low: float, high: float, *, log: bool = False, unit: str = "") -> NumberGuess:
    """Ask how much it will be, between ``low`` and ``high``; with ``log`` equal ways are equal factors.

    Raises:
        ValueError: if ``low < high`` does not hold, or ``log`` is asked for and ``low`` is not positive.
    """
    return NumberGuess(question, low, high, log=log, unit=unit)


def predict_curve(
    question: str, x: tuple[float, float], y: tuple[float, float], *, xlabel: str, ylabel: str, log: str = ""
) -> CurveGuess:
    """Ask for the whole curve over ``x``, drawn by hand; ``log`` names the axes that are logarithmic.

    Raises:
        ValueError: if an axis is not ``(low, high)``, or logarithmic and not positive.
    """
    return CurveGuess(question, x, y, xlabel=xlabel, ylabel=ylabel, log=log)


def show(number: float) -> str:
    """Write a number with three digits, or all those before the point, or as a power of ten, as the cards do."""
    if not math.isfinite(number):
        return "not a number" if math.isnan(number) else "∞" if number > 0 else "\u2212∞"
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
    """Write a number with the unit of the question, if it has one."""
    return f"{show(number)} {about['unit']}".strip()


def _plain(value: Any) -> Any:
    """Take numbers out of a tensor or an array; a range stays what it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _kind(value: Any) -> str:
    """Name the kind of an option or of an answer; a range is one of numbers."""
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
    return {True: "yes", False: "no"}[option] if isinstance(option, bool) else f"{option}"


def _decimals(number: float) -> int:
    return len(f"{number}".partition(".")[2].rstrip("0"))
