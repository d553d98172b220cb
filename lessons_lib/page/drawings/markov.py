"""The drawings of the attention matrix as a Markov chain: steps of a walker from query to key."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.analysis.markov import check_row_stochastic
from lessons_lib.page.language import gettext
from lessons_lib.page.sketch import ROLES, Sketch

THICKEST = 6.0  # the line of a weight of 1


def markov_chain(weights: Float[Tensor, "3 3"]) -> Sketch:
    """Draw three tokens as circles, with arrows as thick as the attention weights, beside the matrix of the weights.

    Raises:
        ValueError: if the matrix is not row-stochastic, or not 3 x 3.
    """
    _check_weights(weights, 3, 3)
    rows = weights.tolist()
    steps = "; ".join(
        gettext(f"from token {i} ") + ", ".join(gettext(f"{weight:.3g} to token {j}") for j, weight in enumerate(row))
        for i, row in enumerate(rows)
    )
    d = _ChainSketch(
        402,
        190,
        alt="Three tokens as circles. An arrow leads from each query to each key and is as thick as the attention "
        f"weight, which is also written in the matrix beside them: {steps}.",
    )
    middle, reach, radius = (112.0, 110.0), 64.0, 17.0
    angles = [math.radians(-90 + 120 * i) for i in range(3)]
    at = [(middle[0] + reach * math.cos(angle), middle[1] + reach * math.sin(angle)) for angle in angles]
    for i, row in enumerate(rows):
        d.loop(at[i], radius, angles[i], row[i])
        for j, weight in enumerate(row):
            if i != j:
                d.weighted_arrow(at[i], at[j], weight, gap=radius + 2, bend=15)
    for i, place in enumerate(at):
        d.circle(place, radius, f"{i}")
    (width, height), left, top = (42.0, 34.0), 270.0, 62.0
    entries = [[f"{weight:.3g}" for weight in row] for row in rows]
    d.table(left, top, (width, height), entries, role="query", shades=(0.6 * weights).tolist())
    d.text((left + 1.5 * width, top - 30), "step to key", small=True)
    for i in range(3):
        d.text((left + (i + 0.5) * width, top - 12), f"{i}", small=True)
        d.text((left - 8, top + (i + 0.5) * height), f"query {i}", anchor="end", small=True)
    return d


def causal_walk(weights: Float[Tensor, "n n"], n_layers: int = 4) -> Sketch:
    """Draw a causal matrix as arrows to earlier tokens, and below it the distribution of the last token's walk.

    Raises:
        ValueError: if the matrix is not row-stochastic and lower triangular with three to six rows, or ``n_layers`` is
            not from 1 to 8.
    """
    _check_weights(weights, 3, 6)
    if weights.triu(1).any():
        raise ValueError("weights must be causal, got a weight on a later token")
    if not 1 <= n_layers <= 8:
        raise ValueError(f"n_layers must be from 1 to 8, got {n_layers}")
    n = len(weights)
    masses = [torch.eye(n, dtype=weights.dtype)[-1]]
    for _ in range(n_layers):
        masses.append(masses[-1] @ weights)
    on_first = ", ".join(f"{float(mass[0]):.2f}" for mass in masses)
    d = _ChainSketch(
        402,
        150 + 26 * (n_layers + 1),
        alt=f"{n} tokens in a row. Arrows as thick as the attention weights lead from each token to earlier ones and "
        f"to itself, none to a later token. Below, a row for each layer with the distribution of the walker that "
        f"starts on token {n - 1}: its mass on token 0 is {on_first}.",
    )
    left, step, level, radius = 96.0, 304 / n, 92.0, 13.0
    at = [(left + (i + 0.5) * step, level) for i in range(n)]
    for i, row in enumerate(weights.tolist()):
        d.loop(at[i], radius, math.pi / 2, row[i], reach=17)
        for j in range(i):
            d.weighted_arrow(
                (at[i][0] - 4, level - radius),
                (at[j][0] + 4, level - radius),
                row[j],
                bend=26 + 17 * (i - j) * step / 60,
            )
    for i, place in enumerate(at):
        d.circle(place, radius, f"{i}")
    top = 142.0
    entries = [[f"{100 * p:.0f}%" for p in mass.tolist()] for mass in masses]
    d.table(left, top, (step, 26), entries, role="value", shades=[[0.75 * p for p in mass.tolist()] for mass in masses])
    for t in range(n_layers + 1):
        label = ("start", "1 layer")[t] if t < 2 else f"{t} layers"
        d.text((left - 8, top + 26 * (t + 0.5)), label, anchor="end", small=True)
    return d


def content_path(reads: Sequence[Sequence[int]], output: int) -> Sketch:
    """Draw layers in which each position reads one position of the layer below, and the path of one output's content.

    Args:
        reads: for each layer, the first first, the position that each position reads.
        output: the position whose content is traced back to an input.

    Raises:
        ValueError: if there are not one to four layers of the same two to ten positions, or a position does not exist.
    """
    n = len(reads[0]) if reads else 0
    if not 1 <= len(reads) <= 4 or not 2 <= n <= 10 or any(len(layer) != n for layer in reads):
        raise ValueError(f"reads must be one to four layers of the same 2 to 10 positions, got {reads!r}")
    if not all(0 <= position < n for position in [*(p for layer in reads for p in layer), output]):
        raise ValueError(f"positions must be from 0 to {n - 1}, got {reads!r} and output {output}")
    path = [output]
    for layer in reversed(reads):
        path.append(layer[path[-1]])
    back = gettext(", then ").join(gettext(f"position {place}") for place in path[1:-1])
    through = gettext(f" through {back}") if back else ""
    d = _ChainSketch(
        402,
        44 + 78 * len(reads),
        alt=f"{n} positions on {len(reads) + 1} levels, from the inputs below to the outputs above. A line leads from "
        f"each position to the position it reads one level below. The path of output {output} is drawn thick: it leads"
        f"{through} to input {path[-1]}.",
    )
    left, step, radius = 84.0, 312 / n, min(12.0, 312 / n / 2 - 3)
    bottom = 22 + 78.0 * len(reads)

    def at(level: int, position: int) -> tuple[float, float]:
        return left + (position + 0.5) * step, bottom - 78 * level

    for level, layer in enumerate(reads, start=1):
        for position, read in enumerate(layer):
            on_path = path[len(reads) - level] == position
            start, end = at(level, position), at(level - 1, read)
            if on_path:
                d.weighted_arrow(start, end, 0.5, gap=radius + 1, role="value")
            else:
                d.line([(start[0], start[1] + radius), (end[0], end[1] - radius)], fine=True)
    for level in range(len(reads) + 1):
        name = "inputs" if level == 0 else "outputs" if level == len(reads) else f"layer {level}"
        d.text((left - 6, bottom - 78 * level), name, anchor="end", small=True)
        for position in range(n):
            on_path = path[len(reads) - level] == position
            d.circle(at(level, position), radius, f"{position}", role="value" if on_path else "")
    return d


class _ChainSketch(Sketch):
    """A sketch with arrows whose thickness is a weight between 0 and 1; a weight of 0 draws nothing."""

    def weighted_arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        weight: float,
        *,
        gap: float = 0.0,
        bend: float = 0.0,
        role: str = "query",
    ) -> None:
        """Draw an arrow as thick as its weight, which stops ``gap`` before both points; ``bend`` curves it."""
        (x0, y0), (x1, y1) = start, end
        length = math.hypot(x1 - x0, y1 - y0)
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        via = (x0 + x1) / 2 - bend * uy, (y0 + y1) / 2 + bend * ux
        first, last = _towards(start, via, gap), _towards(end, via, gap)
        self._weighted(f"M{first[0]:.1f} {first[1]:.1f}Q{via[0]:.1f} {via[1]:.1f}", via, last, weight, role)

    def loop(
        self, middle: tuple[float, float], radius: float, angle: float, weight: float, *, reach: float = 24.0
    ) -> None:
        """Draw an arrow from a circle back to itself, on the side that ``angle`` points to."""
        ends = [
            (middle[0] + radius * math.cos(angle + turn), middle[1] + radius * math.sin(angle + turn))
            for turn in (-0.62, 0.62)
        ]
        far = [
            (
                middle[0] + (radius + reach) * math.cos(angle + turn),
                middle[1] + (radius + reach) * math.sin(angle + turn),
            )
            for turn in (-0.6, 0.6)
        ]
        last = _towards(ends[1], far[1], 1.5)
        lead = f"M{ends[0][0]:.1f} {ends[0][1]:.1f}C{far[0][0]:.1f} {far[0][1]:.1f} {far[1][0]:.1f} {far[1][1]:.1f}"
        self._weighted(lead, far[1], last, weight, "query")

    def _weighted(
        self, lead: str, via: tuple[float, float], tip: tuple[float, float], weight: float, role: str
    ) -> None:
        """Draw a curve that arrives at ``tip`` from ``via``; ``lead`` is its path up to the last point."""
        if role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(ROLES)}, got {role!r}")
        if weight <= 0:
            return
        width = max(0.6, THICKEST * weight)
        size = 5.0 + 1.2 * width
        base = _towards(tip, via, size)
        ux, uy = (tip[0] - base[0]) / size, (tip[1] - base[1]) / size
        half = 1.6 + 0.85 * width
        wings = [(base[0] - half * uy, base[1] + half * ux), (base[0] + half * uy, base[1] - half * ux)]
        corners = "L".join(f"{x:.1f} {y:.1f}" for x, y in (tip, *wings))
        self._parts.append(
            f'<path d="{lead} {base[0]:.1f} {base[1]:.1f}" class="{role}" style="stroke-width:{width:.1f};opacity:.8"/>'
        )
        self._parts.append(f'<path d="M{corners}Z" class="{role} tip"/>')


def _towards(start: tuple[float, float], end: tuple[float, float], distance: float) -> tuple[float, float]:
    """Return the point at ``distance`` from ``start`` on the way to ``end``."""
    length = math.hypot(end[0] - start[0], end[1] - start[1])
    return start[0] + (end[0] - start[0]) * distance / length, start[1] + (end[1] - start[1]) * distance / length


def _check_weights(weights: Tensor, least: int, most: int) -> None:
    check_row_stochastic("weights", weights)
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1] or not least <= len(weights) <= most:
        rows = f"{least} rows" if least == most else f"{least} to {most} rows"
        raise ValueError(f"weights must be a square matrix of {rows}, got {tuple(weights.shape)}")
