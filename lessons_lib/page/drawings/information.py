"""The drawings of the chapter on information theory."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lessons_lib.analysis.information import effective_count, entropy
from lessons_lib.attention.softmax import softmax
from lessons_lib.page.sketch import Sketch, with_minus_signs

_LOSSES = (0.1, 0.4, 0.9)  # distances of the level lines from the largest value, in units of the score


def yes_no_questions(labels: Sequence[str] = "ABCD") -> Sketch:
    """Draw how yes-or-no questions find a key whose probability is 1/2, 1/4, 1/8, ..., the last two being equal.

    Each question halves the probability that is left.

    Raises:
        ValueError: if there are not between two and five labels.
    """
    n = len(labels)
    if not 2 <= n <= 5:
        raise ValueError(f"labels must be between 2 and 5, got {n}")
    numbers = [*range(1, n), n - 1]  # questions until a key is found
    mean = sum(number * 2.0**-number for number in numbers)
    parts = ", ".join(f"{label} 1/{2**number}" for label, number in zip(labels, numbers, strict=True))
    d = Sketch(
        402,
        62 * n - 24,
        alt=f"A bar of length 1 is divided among {n} keys: {parts}. The first question cuts off the half of "
        f"{labels[0]}, and each further question halves the rest. A key of probability 1/2, 1/4, and so on is found "
        f"after 1, 2, and so on questions, {mean:.4g} on average.",
    )
    left, length = 4.0, 394.0
    for i in range(n - 1):
        start, half, y = left + length * (1 - 0.5**i), length * 0.5 ** (i + 1), 24.0 + 62 * i
        found = d.box(start, y, half - 1, 26, f"{labels[i]}: 1/{2 ** (i + 1)}" if i < 3 else labels[i], role="key")
        last = i == n - 2
        share = f"{labels[-1]}: 1/{2 ** (i + 1)}" if i < 3 else labels[-1]
        rest = d.box(start + half + 1, y, half - 1, 26, share if last else "", role="key" * last)
        question = f"question {i + 1}: is it {labels[i]}?"
        if i:
            d.text((start - 8, y + 13), question, anchor="end")
        else:
            d.text((left, 8), question, anchor="start")
        d.text((found.bottom[0], y + 36), "yes", small=True)
        d.text((rest.bottom[0] - (16 if i < n - 2 else 0), y + 36), "no", small=True)
        if i < n - 2:
            d.arrow((rest.bottom[0], y + 26), (rest.bottom[0], y + 62))
    d.text((left, 62 * n - 36), f"average number of questions: {mean:.4g}", anchor="start")
    return d


def score_and_entropy_levels(
    scores: Sequence[float] = (2.0, 1.0, 0.0), temperatures: Sequence[float] = (0.5, 1.0, 4.0)
) -> Sketch:
    """Draw all weights of three keys as triangles, with level lines of expected score plus temperature times entropy.

    The largest value is at the softmax, which moves along a curve from the best key to equal weights.

    Raises:
        ValueError: if there are not three scores, all different and at most 8 apart, or not two or three temperatures
            between 0.1 and 10.
    """
    if len(scores) != 3 or len(set(scores)) < 3 or max(scores) - min(scores) > 8:
        raise ValueError(f"scores must be three different numbers at most 8 apart, got {list(scores)}")
    if not 2 <= len(temperatures) <= 3 or not all(0.1 <= t <= 10 for t in temperatures):
        raise ValueError(f"temperatures must be two or three numbers between 0.1 and 10, got {list(temperatures)}")
    row = torch.tensor(scores, dtype=torch.float64)
    best = [softmax(row, temperature=t) for t in temperatures]
    described = "; ".join(
        f"at temperature {t:g} the softmax has the weights {', '.join(f'{x:.2f}' for x in p.tolist())}"
        for t, p in zip(temperatures, best, strict=True)
    )
    d = Sketch(
        402,
        176,
        alt=f"{len(temperatures)} triangles of all weights of three keys with the scores "
        f"{', '.join(f'{s:g}' for s in scores)}. In each, level lines of expected score plus temperature times entropy "
        f"surround a dot, the softmax, where the sum is largest: {described}. The dot moves along one curve, from the "
        "corner of the best key at low temperature to the centre, equal weights, at high temperature.",
    )
    panel = 402 / len(temperatures)
    side = 96.0
    order = sorted(range(3), key=lambda i: -scores[i])  # the best key at the top, the worst at the left
    places: list[tuple[float, float]] = [(0.0, 0.0)] * 3
    for i, (x, y) in zip(order, ((0.5, 0.0), (1.0, 1.0), (0.0, 1.0)), strict=True):
        places[i] = (side * x, side * math.sqrt(0.75) * y)
    path = [softmax(row, temperature=10 ** (k / 8)) for k in range(-10, 17)]
    for i, (t, p) in enumerate(zip(temperatures, best, strict=True)):
        x0, y0 = (i + 0.5) * panel - side / 2, 50.0

        def on_page(weights: Tensor, x0: float = x0, y0: float = y0) -> tuple[float, float]:
            x, y = (sum(w * place[axis] for w, place in zip(weights.tolist(), places, strict=True)) for axis in (0, 1))
            return x0 + x, y0 + y

        corners = [on_page(corner) for corner in torch.eye(3, dtype=torch.float64)]
        d.text((x0 + side / 2, 9), f"$T = {t:g}$")
        d.line(corners, closed=True)
        for line in _level_lines(row, t):
            d.line(map(on_page, line), role="value")
        d.line(map(on_page, path), role="query")
        d.circle(on_page(p), 4.5, role="output")
        for rank, j in enumerate(order):
            x, y = corners[j]
            label = "score " * (rank == 0) + with_minus_signs(f"{scores[j]:g}")
            d.text((x, y - 14 if rank == 0 else y + 14), label, small=True)
        d.text(
            (x0 + side / 2, 168), ", ".join(f"{100 * x:.0f}%" if x >= 0.005 else "<1%" for x in p.tolist()), small=True
        )
    return d


def _level_lines(scores: Tensor, temperature: float) -> list[list[Tensor]]:
    """Return level lines of expected score plus temperature times entropy, as weights on rays from the softmax.

    A level line that leaves the triangle of all weights is cut into parts.
    """
    centre = softmax(scores, temperature=temperature)
    largest = centre @ scores + temperature * entropy(centre)
    first, second = torch.tensor([1.0, -1.0, 0.0]).double(), torch.tensor([1.0, 1.0, -2.0]).double() / 3**0.5
    found: list[list[Tensor]] = []
    for loss in _LOSSES:
        parts: list[list[Tensor]] = [[]]
        for k in range(145):
            angle = math.tau * k / 144
            ray = math.cos(angle) * first + math.sin(angle) * second
            edge = min((-c / r).item() for c, r in zip(centre, ray, strict=True) if r < 0)
            distances = torch.linspace(0, edge, 400, dtype=torch.float64)
            weights = (centre + distances[:, None] * ray).clamp(min=0)
            weights /= weights.sum(-1, keepdim=True)
            below = largest - (weights @ scores + temperature * entropy(weights)) >= loss
            if below.any():
                parts[-1].append(weights[below.int().argmax()])
            elif parts[-1]:
                parts.append([])
        found += [part for part in parts if len(part) > 1]
    return found


def weights_by_temperature(
    scores: Sequence[float] = (2.0, 1.5, 0.5, 0.0, -1.0), temperatures: Sequence[float] = (0.1, 0.5, 1.0, 3.0, 30.0)
) -> Sketch:
    """Draw the weights of one row of scores as bars at several temperatures, with the effective count below.

    Raises:
        ValueError: if there are not between two and six scores and between two and five temperatures, or a temperature
            is not positive.
    """
    if not 2 <= len(scores) <= 6 or not 2 <= len(temperatures) <= 5 or min(temperatures) <= 0:
        raise ValueError(
            "scores must be between 2 and 6, and temperatures between 2 and 5 positive numbers, "
            f"got {list(scores)} and {list(temperatures)}"
        )
    row = torch.tensor(scores, dtype=torch.float64)
    weights = [softmax(row, temperature=t) for t in temperatures]
    counts = [effective_count(p).item() for p in weights]
    described = "; ".join(
        f"at {t:g} they are {', '.join(f'{x:.2f}' for x in p.tolist())}, effective count {count:.1f}"
        for t, p, count in zip(temperatures, weights, counts, strict=True)
    )
    n = len(scores)
    d = Sketch(
        402,
        24 * n + 66,
        alt=f"The weights of keys with the scores {', '.join(f'{s:g}' for s in scores)} as bars, one column for each "
        f"temperature: {described}.",
    )
    left, bottom = 78.0, 30.0 + 24 * n
    column = (398 - left) / len(temperatures)
    d.text((left - 8, 9), "$T$", anchor="end")
    for j, s in enumerate(scores):
        name = with_minus_signs(f"{s:g}")
        d.text((left - 8, 38 + 24 * j), f"score {name}" if j == 0 else name, anchor="end", small=True)
    for i, (t, p, count) in enumerate(zip(temperatures, weights, counts, strict=True)):
        x = left + i * column
        d.text((x + (column - 6) / 2, 9), f"{t:g}")
        d.path(f"M{x:.1f} 26V{bottom:.1f}", fine=True)
        for j, weight in enumerate(p.tolist()):
            d.matrix(x, 30 + 24 * j, max(0.8, (column - 8) * weight), 16, role="value")
        d.text((x + (column - 6) / 2, bottom + 24), f"{count:.1f}", small=True)
    d.text((left - 8, bottom + 24), "$e^H$", anchor="end")
    return d
