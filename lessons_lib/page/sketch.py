r"""Draw diagrams of formulas from boxes, matrices with their shapes at the sides, and arrows.

A :class:`Sketch` is inline SVG, so that its lines and text follow the colours of the page in light and dark mode, in
print and in a notebook. It is laid out for the width of a phone's column, in units in which text is 13 high, and scales
with the column; text scales less. Text between dollar signs is set as mathematics: ``r"$n \times d_k$"``.
Words are shown in the language of the book.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from lessons_lib.page.language import gettext
from lessons_lib.page.palette import DARK_KEY, DARK_QUERY, KEY, OUTPUT, QUERY, VALUE

ROLES = ("query", "key", "value", "output")

_SIGNS = {
    r"\times": "\u00d7",
    r"\cdot": "\u00b7",
    r"\sqrt ": "\u221a",
    r"\top": "\u22a4",
    r"\theta": "\u03b8",
    r"\|": "\u2016",
    "-": "\u2212",
}
_PIECES = re.compile(r"([_^])(?:\{([^}]*)\}|([A-Za-z]+|.))|([A-Za-z\u0391-\u03c9]+)|([^A-Za-z\u0391-\u03c9_^]+)")

_STYLE = f"""
.drawing {{ --query: {QUERY}; --key: {KEY}; --value: {VALUE}; --output: {OUTPUT}; container-type: inline-size; }}
:is([data-theme="dark"], [theme="dark"], [data-jp-theme-light="false"], .vscode-dark) .drawing {{
  --query: {DARK_QUERY}; --key: {DARK_KEY};
}}
@media print {{ .drawing {{ --query: {QUERY}; --key: {KEY}; print-color-adjust: exact; }} }}
.drawing svg {{ display: block; width: 100%; max-width: 46rem; height: auto; }}
.drawing text {{ font: 13px sans-serif; font-family: inherit; fill: currentColor; }}
.drawing .small {{ font-size: 12px; }}
.drawing .formula {{
  font-family: var(--text-face, "STIX Two Math", "Cambria Math", "Times New Roman", serif); font-size: 1.1em;
}}
.drawing :is(rect, path, circle, line) {{ stroke: currentColor; stroke-width: 1.2; fill: none; }}
.drawing .fine {{ stroke-width: 0.5; opacity: 0.5; }}
.drawing .thick {{ stroke-width: 4; opacity: 0.6; }}
.drawing .dashed {{ stroke-dasharray: 4 3; }}
.drawing .tip {{ fill: currentColor; stroke: none; }}
@container (min-width: 34rem) {{ .drawing text {{ font-size: 9.5px; }} .drawing .small {{ font-size: 8.5px; }} }}
""" + "".join(
    f".drawing .{role} {{ stroke: var(--{role}); }} .drawing .{role}.filled {{ fill: var(--{role}); fill-opacity: "
    f"var(--full, 0.2); }} .drawing .{role}.tip {{ fill: var(--{role}); stroke: none; }}\n"
    for role in ROLES
)


def with_minus_signs(words: str) -> str:
    """Return text in which each hyphen is a minus sign, as in a formula.

    >>> with_minus_signs("(-0.5, 2)")
    '(−0.5, 2)'
    """
    return words.replace("-", _SIGNS["-"])


class Box(NamedTuple):
    """A rectangle of a sketch; arrows start and end at the middles of its sides."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> tuple[float, float]:
        """The middle of the left side."""
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> tuple[float, float]:
        """The middle of the right side."""
        return self.x + self.width, self.y + self.height / 2

    @property
    def top(self) -> tuple[float, float]:
        """The middle of the upper side."""
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> tuple[float, float]:
        """The middle of the lower side."""
        return self.x + self.width / 2, self.y + self.height

    @property
    def middle(self) -> tuple[float, float]:
        """The centre."""
        return self.x + self.width / 2, self.y + self.height / 2


class Sketch:
    """A drawing of ``width`` by ``height`` units, with the alternative text ``alt``.

    Raises:
        ValueError: if ``alt`` is empty or the size is not positive.
    """

    def __init__(self, width: float, height: float, *, alt: str) -> None:
        if not alt.strip():
            raise ValueError(f"alt must say in words what the drawing shows, got {alt!r}")
        if min(width, height) <= 0:
            raise ValueError(f"width and height must be positive, got {width} and {height}")
        self.width, self.height, self.alt = width, height, gettext(alt)
        self._parts: list[str] = []

    def text(
        self,
        at: tuple[float, float],
        words: str,
        *,
        anchor: str = "middle",
        small: bool = False,
        verbatim: bool = False,
    ) -> None:
        """Write text anchored at a point by its ``middle``, ``start`` or ``end``; ``verbatim`` in any language."""
        look = (' class="small"' if small else "") + (' translate="no"' if verbatim else "")
        x, y = map(_number, at)
        shown = spans(words if verbatim else gettext(words))
        text = f'<text x="{x}" y="{y}" dy=".35em" text-anchor="{anchor}"{look}>{shown}</text>'
        self._parts.append(text)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        words: str = "",
        *,
        role: str = "",
        verbatim: bool = False,
    ) -> Box:
        """Draw a box with text at its centre, ``verbatim`` in any language, and return it."""
        box = Box(x, y, width, height)
        self._rectangle(box, _look(role, "filled"), round_by=5)
        if words:
            self.text(box.middle, words, verbatim=verbatim)
        return box

    def matrix(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        name: str = "",
        *,
        rows: str = "",
        columns: str = "",
        role: str = "",
        grid: tuple[int, int] | None = None,
    ) -> Box:
        """Draw a matrix with its name at the centre, ``rows`` on the left and ``columns`` above; return its rectangle.

        ``grid`` divides the matrix into that many rows and columns.
        """
        box = Box(x, y, width, height)
        self._rectangle(box, _look(role, "filled"))
        n, m = grid or (1, 1)
        lines = [f"M{_number(x)} {_number(y + i * height / n)}h{_number(width)}" for i in range(1, n)]
        lines += [f"M{_number(x + j * width / m)} {_number(y)}v{_number(height)}" for j in range(1, m)]
        if lines:
            self.path("".join(lines), fine=True)
        if name:
            self.text(box.middle, name)
        if rows:
            self.text((x - 5, y + height / 2), rows, anchor="end", small=True)
        if columns:
            self.text((x + width / 2, y - 9), columns, small=True)
        return box

    def table(
        self,
        x: float,
        y: float,
        cell: tuple[float, float],
        entries: Sequence[Sequence[str]],
        *,
        role: str = "",
        shades: Sequence[Sequence[float]] | None = None,
        hidden: Sequence[Sequence[bool]] | None = None,
    ) -> Box:
        """Draw a table of short texts; ``shades`` from 0 to 1 colour the cells, ``hidden`` cells are hatched."""
        width, height = cell
        for i, row in enumerate(entries):
            for j, entry in enumerate(row):
                place = Box(x + j * width, y + i * height, width, height)
                if shades is not None:
                    self._rectangle(place, f'{_look(role, "filled")} style="--full:{shades[i][j]:.2f};stroke:none"')
                if hidden is not None and hidden[i][j]:
                    self._hatch(place)
                if entry:
                    self.text(place.middle, entry, small=True)
        return self.matrix(x, y, len(entries[0]) * width, len(entries) * height, grid=(len(entries), len(entries[0])))

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        words: str = "",
        *,
        bend: float = 0.0,
        role: str = "",
        gap: float = 3.0,
        below: bool = False,
    ) -> None:
        """Draw an arrow that stops ``gap`` before both points, with text above its middle; ``bend`` curves it."""
        (x0, y0), (x1, y1) = start, end
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        if length <= 2 * gap:
            raise ValueError(f"an arrow must be longer than its two gaps of {gap}, got {length:.1f}")
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        x0, y0, x1, y1 = x0 + gap * ux, y0 + gap * uy, x1 - gap * ux, y1 - gap * uy
        via = (x0 + x1) / 2 - bend * uy, (y0 + y1) / 2 + bend * ux
        tx, ty = x1 - via[0], y1 - via[1]
        along = (tx**2 + ty**2) ** 0.5
        tx, ty = tx / along, ty / along
        base = x1 - 7 * tx, y1 - 7 * ty
        wings = [(base[0] - 3.2 * ty, base[1] + 3.2 * tx), (base[0] + 3.2 * ty, base[1] - 3.2 * tx)]
        self.path(f"M{_point((x0, y0))}Q{_point(via)} {_point(base)}", role=role)
        self._parts.append(
            f'<path d="M{_point((x1, y1))}L{_point(wings[0])}L{_point(wings[1])}Z"{_look(role, "tip")}/>'
        )
        if words:
            self.text((via[0], via[1] + (10 if below else -10)), words, small=True)

    def path(self, d: str, *, role: str = "", dashed: bool = False, fine: bool = False, thick: bool = False) -> None:
        """Draw an SVG path."""
        self._parts.append(f'<path d="{d}"{_look(role, "dashed" * dashed, "fine" * fine, "thick" * thick)}/>')

    def line(
        self,
        points: Iterable[tuple[float, float]],
        *,
        closed: bool = False,
        role: str = "",
        dashed: bool = False,
        fine: bool = False,
    ) -> None:
        """Draw straight lines from point to point, and back to the first if ``closed``."""
        self.path(f"M{'L'.join(map(_point, points))}{'Z' * closed}", role=role, dashed=dashed, fine=fine)

    def circle(self, at: tuple[float, float], radius: float, words: str = "", *, role: str = "") -> Box:
        """Draw a circle with text at its centre, and return its bounding box."""
        x, y = at
        look = _look(role, "filled")
        self._parts.append(f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"{look}/>')
        if words:
            self.text(at, words)
        return Box(x - radius, y - radius, 2 * radius, 2 * radius)

    def to_html(self) -> str:
        """Return the drawing as HTML; the key of the style lets a page with several drawings keep one copy."""
        size = f"{_number(self.width)} {_number(self.height)}"
        words = escape(self.alt, quote=True)
        svg = f'<svg viewBox="0 0 {size}" role="img" aria-label="{words}">{"".join(self._parts)}</svg>'
        return f'<div class="drawing"><style data-part="drawing-css">{_STYLE}</style>{svg}</div>'

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        return {"text/html": self.to_html(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"Drawing: {self.alt}"

    def _rectangle(self, box: Box, look: str, round_by: float = 1) -> None:
        x, y, width, height = map(_number, box)
        self._parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{round_by}"{look}/>')

    def _hatch(self, box: Box) -> None:
        """Fill a cell with slanted lines."""
        x, y, width, height = box
        lines = []
        for s in range(6, int(width + height), 6):
            a, b = min(s, width), max(0, s - width)
            c, d = max(0, s - height), min(s, height)
            lines.append(f"M{_point((x + a, y + b))}L{_point((x + c, y + d))}")
        self.path("".join(lines), fine=True)


def _number(x: float) -> str:
    return f"{x:.1f}".removesuffix(".0")


def _point(at: tuple[float, float]) -> str:
    return f"{_number(at[0])} {_number(at[1])}"


def _look(role: str, *classes: str) -> str:
    if role and role not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}, got {role!r}")
    names = " ".join(name for name in (role, *classes) if name)
    return f' class="{names}"' if names else ""


def spans(words: str) -> str:
    """Return text as SVG spans: mathematics between dollars, with single letters and capitals in italics.

    Raises:
        ValueError: if the number of dollars is odd.

    >>> spans("row $i$")
    'row <tspan class="formula"><tspan font-style="italic">i</tspan></tspan>'
    """
    plain, *rest = re.split(r"\$", words)
    if len(rest) % 2:
        raise ValueError(f"words must have an even number of dollar signs, got {words!r}")
    parts = [escape(plain)]
    for formula, after in zip(rest[::2], rest[1::2], strict=True):
        parts += [f'<tspan class="formula">{_formula(formula)}</tspan>', escape(after)]
    return "".join(parts)


def _formula(formula: str) -> str:
    for name, sign in _SIGNS.items():
        formula = formula.replace(name, sign)
    spans, height = [], 0.0  # distance of the letters below the baseline, in their own size
    for mark, group, single, letters, other in _PIECES.findall(formula):
        inner = group or single or letters or other
        style = ' font-style="italic"' if inner.isalpha() and (len(inner) == 1 or inner.isupper()) else ""
        if mark:
            shift = {"_": 0.25, "^": -0.4}[mark]
            style = f' dy="{shift / 0.7:.2f}em" font-size="70%"{style}'
        elif height:
            shift, style = 0.0, f' dy="{-height:.2f}em"{style}'
        else:
            shift = 0.0
        spans.append(f"<tspan{style}>{escape(inner)}</tspan>" if style else escape(inner))
        height = shift
    return "".join(spans)
