"""The drawings of the chapter on masks: a mask before and after the softmax, and the reach of layers of windows."""

from collections.abc import Sequence

import torch

from lessons_lib.attention.softmax import softmax
from lessons_lib.page.sketch import Sketch


def mask_orders(scores: Sequence[float], mask: Sequence[bool]) -> Sketch:
    """Draw one row of attention step by step, with the mask applied before the softmax and, below, after it.

    Args:
        scores: of one query with two to five keys.
        mask: True where the query may attend to the key.

    Raises:
        ValueError: if there are not two to five scores, the mask has another length, or it does not hide at least one
            key and allow at least one.
    """
    if not 2 <= len(scores) <= 5:
        raise ValueError(f"scores must be between 2 and 5, got {len(scores)}")
    if len(mask) != len(scores) or len(set(map(bool, mask))) != 2:
        raise ValueError(f"mask must hide some of {len(scores)} keys and allow some, got {list(mask)}")
    allowed = torch.tensor([bool(may) for may in mask])
    row = torch.tensor(scores, dtype=torch.float64)
    before, weights = softmax(row, allowed), softmax(row)
    after = weights * allowed
    orders = {
        "mask before the softmax": {
            "scores": row,
            "masked scores": row.masked_fill(~allowed, -torch.inf),
            "exponentials": row.exp() * allowed,
            "weights": before,
        },
        "mask after the softmax": {
            "scores": row,
            "exponentials": row.exp(),
            "weights": weights,
            "masked weights": after,
        },
    }
    visible, hidden = (", ".join(str(i + 1) for i in keys.nonzero().flatten().tolist()) for keys in (allowed, ~allowed))
    listed = [", ".join(f"{p:.2f}" for p in shares.tolist()) for shares in (before, weights, after)]
    label, cell, line, title = 114.0, 216 / len(scores), 24.0, 24.0
    panel = title + 4 * line + 10
    d = Sketch(
        402,
        2 * panel - 8,
        alt=f"One row of scores for {len(scores)} keys; the query may attend to {visible}, and {hidden} is hidden. "
        f"Above, the mask comes before the softmax: a hidden score becomes minus infinity, its exponential 0, and the "
        f"weights {listed[0]} sum to 1. Below, the mask comes after: all keys share the weights {listed[1]}, and "
        f"without the hidden ones {listed[2]} are left, which sum to {after.sum():.2f}.",
    )
    for i, (order, steps) in enumerate(orders.items()):
        top = i * panel
        d.text((label, top + 10), order, anchor="start")
        applied = list(steps).index("masked weights" if i else "masked scores")
        for j, (name, values) in enumerate(steps.items()):
            y, are_weights = top + title + j * line, name.endswith("weights")
            d.text((label - 8, y + 11), name, anchor="end", small=True)
            entries = [_entry(value, are_weights) for value in values.tolist()]
            shades = [0.6 * value if are_weights else 0.0 for value in values.tolist()]
            hatched = [j >= applied and not may for may in allowed.tolist()]
            table = d.table(label, y, (cell, 22.0), [entries], role="query", shades=[shades], hidden=[hatched])
            if not name.endswith("scores"):
                total = f"{values.sum():.2f}" if are_weights else f"{values.sum():.3g}"
                d.text((table.right[0] + 8, y + 11), f"sum {total}", anchor="start", small=True)
    return d


def window_layers(n_layers: int = 3, window: int = 3, n: int = 10) -> Sketch:
    r"""Draw which positions the last token can depend on through ``n_layers`` of a causal window of ``window`` tokens.

    Each layer adds ``window - 1`` earlier positions.

    Raises:
        ValueError: if ``n_layers`` is not in 1 .. 4, ``window`` not in 2 .. 4, or ``n`` not in 4 .. 12.
    """
    for name, value, least, most in (("n_layers", n_layers, 1, 4), ("window", window, 2, 4), ("n", n, 4, 12)):
        if not least <= value <= most:
            raise ValueError(f"{name} must be between {least} and {most}, got {value}")
    reached = [min(n, 1 + depth * (window - 1)) for depth in range(n_layers + 1)]  # positions, depth layers below
    words = "; ".join(
        f"{'of the inputs' if depth == n_layers else f'of layer {n_layers - depth}'}, {count}"
        for depth, count in enumerate(reached)
        if depth
    )
    d = Sketch(
        402,
        62.0 * n_layers + 48,
        alt=f"{n} positions in a row, above them {n_layers} layers under a causal window of {window}. Lines lead from "
        f"the last position of layer {n_layers} down to its window in the row below, and from there to the windows of "
        f"these. The number of positions that it can depend on: {words}.",
    )
    left, right = 62.0, 326.0
    step, height = (right - left) / (n - 1), 62.0
    top = 18.0

    def at(depth: int, position: int) -> tuple[float, float]:
        return left + step * position, top + height * depth

    for depth in range(n_layers):
        for query in range(n - reached[depth], n):
            for key in range(max(0, query - window + 1), query + 1):
                (x, y), (to_x, to_y) = at(depth, query), at(depth + 1, key)
                d.line([(x, y + 8), (to_x, to_y - 8)], role="query")
    for depth, count in enumerate(reached):
        y = top + height * depth
        d.text((left - 18, y), "input" if depth == n_layers else f"layer {n_layers - depth}", anchor="end", small=True)
        for position in range(n):
            d.circle(at(depth, position), 8, role="query" if position >= n - count else "")
        d.text((right + 18, y), f"{count} of {n}", anchor="start", small=True)
    for position in range(n):
        d.text((left + step * position, top + height * n_layers + 22), f"{position}", small=True)
    return d


# --- helpers ----------------------------------------------------------------------------------------------------------


def _entry(value: float, is_weight: bool) -> str:
    """Return a weight with two decimals, another number with three digits."""
    if is_weight:
        return f"{value:.2f}" if value else "0"
    return "$-\u221e$" if value == -torch.inf else f"${value:.3g}$"
