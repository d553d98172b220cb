"""The drawings of the chapter on long context: angles that training did not show, and a cache of fixed size."""

import math

import torch

from lessons_lib.attention.positions import RotaryEmbedding
from lessons_lib.attention.rope_scaling import NTKAware, YaRN
from lessons_lib.page.sketch import Sketch


def new_angles(first: int = 2, *, factor: float = 8.0, trained: int = 64, read: int = 512) -> Sketch:
    """Draw which angles four pairs of a rotary head of width 16 show in training, and which are new in a longer text.

    One row for the frequencies as trained, one with NTK-aware scaling and one with YaRN. The sector is what training
    shows; the arc outside it is new.

    Args:
        first: the first of the four neighbouring pairs, counted from 0.
        factor: by which the two methods slow the slowest pair.
        trained: tokens of a text in training.
        read: tokens of the text that is read.

    Raises:
        ValueError: if ``first`` is not in 0 .. 4, ``factor`` is below 1, or ``read`` is not above ``trained``.
    """
    if not 0 <= first <= 4 or factor < 1 or not read > trained > 0:
        raise ValueError(
            f"first must be in 0 .. 4, factor at least 1 and read above trained, got {first}, {factor}, {trained} "
            f"and {read}"
        )
    pairs = range(first, first + 4)
    methods = {"as trained": None, f"NTK by {factor:g}": NTKAware(factor)}
    methods[f"YaRN by {factor:g}"] = YaRN(factor, n_trained=trained)
    plain = RotaryEmbedding(16).frequencies(torch.arange(1)).tolist()
    shown = [math.degrees(trained * plain[i]) for i in pairs]
    rows, told = [], []
    for name, scaling in methods.items():
        now = RotaryEmbedding(16, scaling=scaling).frequencies(torch.arange(1)).tolist()
        reached = [math.degrees(read * now[i]) for i in pairs]
        fresh = [
            min(b, 360.0) - a if a < 360 and b > a * (1 + 1e-9) else 0.0 for a, b in zip(shown, reached, strict=True)
        ]
        rows.append((name, reached, fresh))
        listed = ", ".join(f"pair {i} {new:.0f} degrees" for i, new in zip(pairs, fresh, strict=True) if new)
        told.append(f"{name}, new angles: {listed or 'none'}")
    seen = ", ".join(f"pair {i} {min(angle, 360.0):.0f}" for i, angle in zip(pairs, shown, strict=True))
    d = Sketch(
        402,
        22 + 88 * len(rows),
        alt=f"Four pairs as circles, with the angles that they show in {trained} tokens of training as sectors, in "
        f"degrees: {seen}. Arcs mark angles that only a text of {read} tokens shows. {'; '.join(told)}.",
    )
    for column, i in enumerate(pairs):
        d.text((124 + 78 * column, 10), f"pair {i}")
    for row, (name, _, fresh) in enumerate(rows):
        y = 54.0 + 88 * row
        d.text((4, y), name, anchor="start", small=True)
        for column, (angle, new) in enumerate(zip(shown, fresh, strict=True)):
            x = 124.0 + 78 * column
            d.circle((x, y), 23)
            _sector(d, (x, y), 23, min(angle, 360.0))
            if new:
                arc = [_on_circle((x, y), 28, angle + new * step / 24) for step in range(25)]
                d.path("M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in arc), role="value", thick=True)
                d.text((x, y + 41), f"{new:.0f}° new", small=True)
            else:
                d.text((x, y + 41), "none new", small=True)
    return d


def streaming_cache(n_first: int = 1, window: int = 4, now: int = 9) -> Sketch:
    """Draw a cache that keeps the first keys and the latest ones, with their positions in the text and in the cache.

    Xiao et al., *Efficient Streaming Language Models with Attention Sinks*, 2023, figure 4.

    Args:
        n_first: how many first keys are kept.
        window: how many of the latest keys are kept.
        now: the position of the token that is read.

    Raises:
        ValueError: if ``n_first`` is not in 1 .. 2, ``window`` not in 2 .. 5, or nothing is evicted at ``now`` or more
            than 12 tokens are drawn.
    """
    if not 1 <= n_first <= 2 or not 2 <= window <= 5 or not n_first + window <= now <= 11:
        raise ValueError(
            f"n_first must be in 1 .. 2, window in 2 .. 5, and now from their sum to 11, got {n_first}, {window}, {now}"
        )
    kept = [*range(n_first), *range(now - window + 1, now + 1)]
    far, near = now, len(kept) - 1
    d = Sketch(
        402,
        158,
        alt=f"A text of {now + 1} tokens. The cache keeps {n_first} first and {window} latest keys, at the positions "
        f"{', '.join(map(str, kept))} of the text; the others are evicted. In the cache they are counted "
        f"{', '.join(map(str, range(len(kept))))}, so the first key is {near} back from the latest, not {far}.",
    )
    left, cell = 92.0, 308 / (now + 1)
    d.text((1, 34), "text", anchor="start", small=True)
    d.text((1, 118), "cache", anchor="start", small=True)
    below = left + (308 - cell * len(kept)) / 2
    for position in range(now + 1):
        box = d.box(left + cell * position, 20, cell - 3, 28, f"{position}", role="key" if position in kept else "")
        if position in kept:
            at = kept.index(position)
            target = d.box(below + cell * at, 104, cell - 3, 28, f"{at}", role="key")
            d.arrow(box.bottom, target.top, role="key")
    d.text((left + 154, 9), f"positions in the text: the first key is {far} back", small=True)
    d.text((left + 154, 148), f"positions in the cache: the first key is {near} back", small=True)
    return d


def _on_circle(centre: tuple[float, float], radius: float, degrees: float) -> tuple[float, float]:
    """Return the point of a circle at an angle, clockwise from the top."""
    angle = math.radians(degrees)
    return centre[0] + radius * math.sin(angle), centre[1] - radius * math.cos(angle)


def _sector(d: Sketch, centre: tuple[float, float], radius: float, degrees: float) -> None:
    """Draw radii that fill a sector from the top, clockwise."""
    steps = max(2, round(degrees / 6))
    spokes = [_on_circle(centre, radius, degrees * step / steps) for step in range(steps + 1)]
    for x, y in spokes:
        d.line([centre, (x, y)], role="key", fine=True)
    d.line([centre, *spokes, centre], role="key")
