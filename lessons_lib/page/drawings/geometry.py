"""The drawings of the chapter on geometry: scores as projections, and outputs in the convex hull of the values."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch

from lessons_lib.attention.softmax import softmax
from lessons_lib.page.language import gettext
from lessons_lib.page.sketch import Sketch

Point = tuple[float, float]
_NUMBER_GAP = 38.0  # between two numbers below the axis


def projected_scores(query: Sequence[float], keys: Sequence[Sequence[float]], *, hull: bool = False) -> Sketch:
    r"""Draw keys, their projections onto the line of the query, and the scores and weights that they give.

    .. math:: s_j = \lVert q\rVert \cdot \lVert k_j\rVert\cos\theta_j

    The plane is turned so that the query points to the right.

    Args:
        query: two entries, not both zero.
        keys: from two to five keys of two entries each.
        hull: draw the keys as points with their convex hull, instead of arrows.

    Raises:
        ValueError: if a vector does not have two entries or is zero, there are not two to five keys, or two
            projections are so close to each other that their scores would overlap.
    """
    if not 2 <= len(keys) <= 5:
        raise ValueError(f"keys must be between 2 and 5, got {len(keys)}")
    for name, vector in (("query", query), *((f"keys[{j}]", key) for j, key in enumerate(keys))):
        if len(vector) != 2 or not math.hypot(*vector):
            raise ValueError(f"{name} must have two entries that are not both zero, got {vector!r}")
    length = math.hypot(*query)
    turned = [_turned(key, query) for key in keys]  # projection onto the query's line, and height above it
    scores = [length * projection for projection, _ in turned]
    weights = softmax(torch.tensor([scores], dtype=torch.float64))[0].tolist()
    described = "; ".join(
        f"key {j + 1}, {math.hypot(*key):.3g} long and {_degrees(*point):.0f} degrees from the query, has the "
        f"projection {point[0]:.3g}, the score {score:.2f} and the weight {100 * weight:.2g}%"
        for j, (key, point, score, weight) in enumerate(zip(keys, turned, scores, weights, strict=True))
    )
    inside = sorted({*range(len(keys))} - {turned.index(corner) for corner in convex_hull(turned)})
    outlined = gettext(" The convex hull of the keys is outlined") + (
        gettext(
            f"; inside it {'lies key' if len(inside) == 1 else 'lie keys'} {', '.join(str(j + 1) for j in inside)}."
        )
        if inside
        else "."
    )

    across, heights = [0.0, length, *(x for x, _ in turned)], [0.0, *(y for _, y in turned)]
    left, right = 78.0, 386.0
    scale = min((right - left) / (max(across) - min(across)), 170 / (max(heights) - min(heights)))
    start = (left + right - scale * (max(across) + min(across))) / 2
    line = 24 + scale * max(heights)
    axis = line - scale * min(heights) + 26
    closest = min(b - a for a, b in pairwise(sorted(scale * x for x, _ in turned)))
    if closest < _NUMBER_GAP:
        raise ValueError(
            f"projections must be at least {_NUMBER_GAP / scale:.2g} apart so that their scores do not overlap, "
            f"got {[round(x, 2) for x, _ in turned]}"
        )

    d = Sketch(
        402,
        axis + 44,
        alt=f"A query of length {length:.3g} points to the right. A dashed line leads from each key down to an axis, "
        f"where it marks the key's projection onto the line of the query: {described}.{outlined if hull else ''}",
    )

    def at(point: Point) -> Point:
        return start + scale * point[0], line - scale * point[1]

    if hull:
        d.line(map(at, convex_hull(turned)), closed=True, role="key")
    d.path(f"M{left - 10} {line:.1f}H{right + 14}", fine=True)
    d.path(f"M{left - 10} {axis:.1f}H{right + 14}")
    for j, (point, score, weight) in enumerate(zip(turned, scores, weights, strict=True)):
        x, y = at(point)
        d.line([(x, y), (x, axis)], dashed=True)
        if hull:
            d.circle((x, y), 4, role="key")
        else:
            d.arrow(at((0.0, 0.0)), (x, y), role="key", gap=0)
        aside = 9.0 if hull and point[0] < 0 else 0.0  # of the outline, which rises to the right
        label = (x - aside, y - 12) if point[1] > 0 else (x - 13, y + 5)
        d.text(label, f"$k_{j + 1}$")
        d.circle((x, axis), 3, role="key")
        d.text((x, axis + 15), f"${score:.2f}$", small=True)
        d.text((x, axis + 34), f"{100 * weight:.2g}%", small=True)
    d.arrow(at((0.0, 0.0)), at((length, 0.0)), role="query", gap=0)
    d.text((at((length, 0.0))[0] + 10, line + 11), "$q$")
    d.text((2, axis + 15), "score", anchor="start", small=True)
    d.text((2, axis + 34), "weight", anchor="start", small=True)
    return d


def output_in_hull(
    values: Sequence[Sequence[float]], weights: Sequence[float], *, outside: Sequence[float] | None = None
) -> Sketch:
    r"""Draw values with their attention weights, their convex hull, and the output :math:`\sum_j p_j v_j` inside it.

    Args:
        values: from three to five values of two entries each, not all on one line.
        weights: a positive weight for each value; they sum to one.
        outside: a point outside the hull, drawn with the nearest point of the hull.

    Raises:
        ValueError: if there are not three to five values of two entries, the values lie on one line, the weights are
            not as many, not positive or do not sum to one, or ``outside`` is not a point outside the hull.
    """
    if not 3 <= len(values) <= 5 or any(len(value) != 2 for value in values):
        raise ValueError(f"values must be between 3 and 5 pairs of entries, got {values!r}")
    if len(weights) != len(values) or min(weights) <= 0 or not math.isclose(sum(weights), 1.0, abs_tol=1e-6):
        raise ValueError(f"weights must be one for each value, positive, with the sum 1, got {weights!r}")
    points: list[Point] = [(float(x), float(y)) for x, y in values]
    corners = convex_hull(points)
    if len(corners) < 3:
        raise ValueError(f"values must not all lie on one line, got {values!r}")
    output = tuple(sum(w * p[i] for w, p in zip(weights, points, strict=True)) for i in (0, 1))
    shares = ", ".join(
        gettext(f"value {j + 1} at {x:.3g}, {y:.3g} with weight {100 * w:.2g}%")
        for j, ((x, y), w) in enumerate(zip(points, weights, strict=True))
    )
    alt = gettext(
        f"{shares}. Their convex hull is outlined. The output, at {output[0]:.2f}, {output[1]:.2f}, lies inside it."
    )
    drawn = list(points)
    if outside is not None:
        target = (float(outside[0]), float(outside[1]))
        nearest = _nearest_on_hull(target, corners)
        if math.dist(target, nearest) < 1e-9:
            raise ValueError(f"outside must lie outside the hull of the values, got {outside!r}")
        drawn.append(target)
        alt += gettext(
            f" A cross at {target[0]:.3g}, {target[1]:.3g} lies outside, and a dashed line leads from it to the "
            f"nearest point of the hull, at {nearest[0]:.2f}, {nearest[1]:.2f}."
        )
    left, right = (pick(x for x, _ in drawn) for pick in (min, max))
    bottom, top = (pick(y for _, y in drawn) for pick in (min, max))
    scale = min(250 / (right - left), 160 / (top - bottom))
    start = (402 - scale * (right - left)) / 2
    d = Sketch(402, scale * (top - bottom) + 78, alt=alt)

    def at(point: Sequence[float]) -> Point:
        return start + scale * (point[0] - left), 40 + scale * (top - point[1])

    middle = at((sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)))
    d.line(map(at, corners), closed=True, role="value")
    for j, (point, weight) in enumerate(zip(points, weights, strict=True)):
        x, y = at(point)
        d.line([(x, y), at(output)], fine=True)
        d.circle((x, y), 4 + 10 * weight, role="value")
        side = 1 if x > middle[0] else -1
        d.text((x + side * 20, y), f"$v_{j + 1}$: {100 * weight:.2g}%", anchor="start" if side > 0 else "end")
    x, y = at(output)
    d.circle((x, y), 6, role="output")
    d.text((x + 11, y + 13), "$o$")
    if outside is not None:
        (x, y), near = at(target), at(nearest)
        d.path(f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10")
        d.line([(x, y), near], dashed=True)
        d.text((x, y - 16), "cannot be an output", small=True)
    return d


def convex_hull(points: Sequence[Point]) -> list[Point]:
    """Return the corners of the convex hull of points in the plane, counter-clockwise (Andrew's monotone chain)."""
    ordered = sorted(set(points))

    def half(walk: Sequence[Point]) -> list[Point]:
        chain: list[Point] = []
        for p in walk:
            while len(chain) > 1 and _left_turn(chain[-2], chain[-1], p) <= 1e-12:
                chain.pop()
            chain.append(p)
        return chain[:-1]

    return half(ordered) + half(ordered[::-1]) if len(ordered) > 1 else ordered


def _left_turn(a: Point, b: Point, c: Point) -> float:
    """Return twice the signed area of a triangle, positive if its corners are in counter-clockwise order."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _nearest_on_hull(target: Point, corners: Sequence[Point]) -> Point:
    """Return the point of a convex polygon, its inside included, that is nearest to ``target``."""
    edges = list(zip(corners, [*corners[1:], corners[0]], strict=True))
    if all(_left_turn(a, b, target) >= 0 for a, b in edges):
        return target
    candidates = []
    for (ax, ay), (bx, by) in edges:
        along = ((target[0] - ax) * (bx - ax) + (target[1] - ay) * (by - ay)) / ((bx - ax) ** 2 + (by - ay) ** 2)
        along = min(1.0, max(0.0, along))
        candidates.append((ax + along * (bx - ax), ay + along * (by - ay)))
    return min(candidates, key=lambda point: math.dist(point, target))


def _turned(vector: Sequence[float], query: Sequence[float]) -> Point:
    """Return the components of a vector along the query and at right angles to it."""
    (x, y), (a, b), length = vector, query, math.hypot(*query)
    return (x * a + y * b) / length, (y * a - x * b) / length


def _degrees(x: float, y: float) -> float:
    return math.degrees(math.atan2(abs(y), x))
