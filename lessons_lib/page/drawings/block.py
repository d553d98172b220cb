"""The drawings of the chapter on the Transformer block."""

import math
from collections.abc import Sequence

from lessons_lib.page.sketch import Sketch, with_minus_signs


def logit_lens(readings: Sequence[Sequence[float]], names: Sequence[str] = ("first group", "second group")) -> Sketch:
    """Draw the logit lens: after each block, the last norm and the output matrix read the residual stream.

    nostalgebraist, *interpreting GPT: the logit lens*, 2020.

    Args:
        readings: for the embedding and for each block after it, the probabilities of two groups of tokens.
        names: what the two groups are called.

    Raises:
        ValueError: if there are not 2 to 5 readings of two probabilities that sum to at most 1, or not two names.
    """
    pairs = [tuple(map(float, reading)) for reading in readings]
    if not 2 <= len(pairs) <= 5 or not all(
        len(pair) == 2 and min(pair) >= 0 and sum(pair) <= 1 + 1e-6 for pair in pairs
    ):
        raise ValueError(f"readings must be 2 to 5 pairs of probabilities with sums of at most 1, got {readings!r}")
    if len(names) != 2:
        raise ValueError(f"names must be two, got {names!r}")
    labels = ["embedding", *(f"block {i}" for i in range(1, len(pairs)))]
    described = "; ".join(
        f"after {label if i else 'the embedding'} {a:.0%} and {b:.0%}"
        for i, (label, (a, b)) in enumerate(zip(labels, pairs, strict=True))
    )
    d = Sketch(
        402,
        246,
        alt="A thick line from left to right is the residual stream; each block branches off it and adds its output. "
        "After the embedding and after each block an arrow leads up to the last norm and the output matrix, and above "
        f"them stand two bars, the probabilities of two groups of tokens ({names[0]}; {names[1]}): {described}.",
    )
    base, line, step = 84.0, 192.0, 402 / len(pairs)
    for x, name, role in ((1.0, names[0], "value"), (205.0, names[1], "key")):
        d.matrix(x, 3, 11, 11, role=role)
        d.text((x + 17, 8.5), name, anchor="start", small=True)
    d.path(f"M1 {line}H401", thick=True)
    d.box(1, 132, 400, 26, "last norm and output matrix")
    for i, (label, pair) in enumerate(zip(labels, pairs, strict=True)):
        x = step * (i + 0.5)
        for side, share, role in ((-18, pair[0], "value"), (18, pair[1], "key")):
            height = max(0.8, 44 * share)
            d.matrix(x + side - 11, base - height, 22, height, role=role)
            d.text((x + side, base - height - 9), f"{share:.0%}", small=True)
        d.text((x, base + 13), label, small=True)
        d.arrow((x, 132), (x, base + 23))
        d.arrow((x, line), (x, 158), gap=2)
        if i:
            middle = step * i
            d.circle((middle, line), 8, "+")
            d.box(middle - 28, 218, 56, 24, f"block {i}")
            d.arrow((middle - 18, line), (middle - 18, 218), gap=2)
            d.arrow((middle, 218), (middle, line + 8), gap=2)
    return d


def feedforward_units(keys: Sequence[Sequence[float]], values: Sequence[float], x: Sequence[float]) -> Sketch:
    r"""Draw a feed-forward layer on one input: keys, ReLU activations, values and their sum.

    .. math:: \operatorname{FFN}(x) = \sum_i \operatorname{ReLU}(k_i \cdot x)\, v_i

    Args:
        keys: a vector of two numbers for each hidden unit.
        values: a number for each hidden unit.
        x: the input, two numbers.

    Raises:
        ValueError: if there are not 1 to 5 keys of two numbers, as many values, and two inputs.
    """
    if not 1 <= len(keys) <= 5 or len(values) != len(keys) or any(len(vector) != 2 for vector in (*keys, x)):
        raise ValueError(
            f"keys must be 1 to 5 pairs, values as many numbers and x a pair, got {keys!r}, {values!r}, {x!r}"
        )
    products = [sum(a * b for a, b in zip(key, x, strict=True)) for key in keys]
    activations = [max(0.0, product) for product in products]
    output = sum(a * v for a, v in zip(activations, values, strict=True))
    units = "; ".join(
        f"key {_pair(key)}, activation {activation:.3g}, value {value:.3g}"
        for key, activation, value in zip(keys, activations, values, strict=True)
    )
    height = 40.0 * len(keys) + 26
    d = Sketch(
        402,
        height,
        alt=f"The input {_pair(x)} leads to {len(keys)} hidden units: {units}. The values of the active units, times "
        f"their activations, lead to the sum {output:.3g}. Inactive units add nothing.",
    )
    middle = 22 + 20.0 * len(keys)
    for at, name in ((31, "input"), (130, "keys"), (232, "activations"), (314, "values"), (377, "sum")):
        d.text((at, 8), name, small=True)
    source = d.box(1, middle - 14, 60, 28, with_minus_signs(_pair(x)))
    total = d.box(354, middle - 14, 46, 28, with_minus_signs(f"{output:.3g}"), role="output")
    for i, (key, product, activation, value) in enumerate(zip(keys, products, activations, values, strict=True)):
        y, active = 28 + 40.0 * i, activation > 0
        role = "key" if active else ""
        left = d.box(96, y, 68, 28, with_minus_signs(_pair(key)), role=role)
        unit = d.box(182, y, 100, 28, role=role)
        d.text(unit.middle, with_minus_signs(f"ReLU({product:.3g}) = {activation:.3g}"), small=True)
        right = d.box(292, y, 44, 28, with_minus_signs(f"{value:.3g}"), role="value" if active else "")
        d.arrow(source.right, left.left, gap=2)
        d.arrow(left.right, unit.left, gap=2)
        d.path(f"M{unit.right[0]} {unit.right[1]}H{right.x}", role="value" if active else "", fine=not active)
        if active:
            d.path(f"M{right.right[0]} {right.right[1]}L{total.x} {total.left[1]}", role="value")
    return d


def norm_gradients(angle: float = 20.0, factor: float = 2.0) -> Sketch:
    r"""Draw two vectors in one direction, their common RMS norm, and the gradient of a loss at both.

    The gradient is :math:`\tfrac1r (I - \tfrac12 \hat x \hat x^\top)\, g` with the root mean square :math:`r` of the
    vector, :math:`\hat x = x / r`, and the gradient :math:`g` of the loss at the output of the norm.

    Args:
        angle: direction of both vectors, in degrees.
        factor: how many times as long as the first vector the second is.

    Raises:
        ValueError: if ``angle`` is not in 15 .. 25, or ``factor`` not in 1.8 .. 2.5.
    """
    if not 15 <= angle <= 25 or not 1.8 <= factor <= 2.5:
        raise ValueError(f"angle must be in 15 .. 25 and factor in 1.8 .. 2.5, got {angle} and {factor}")
    radial = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    tangent = -radial[1], radial[0]
    rms, unit, origin = 1.6, 54.0, (6.0, 158.0)
    along, across = 0.6, 1.5  # parts of the gradient at the output

    def at(radius: float, beside: float = 0.0) -> tuple[float, float]:
        x, y = (radius * r + beside * t for r, t in zip(radial, tangent, strict=True))
        return origin[0] + unit * x, origin[1] - unit * y

    # Only the part of the gradient across the vector remains, divided by the root mean square.
    lengths = [across / rms, across / (factor * rms)]
    radii = [rms * math.sqrt(2), factor * rms * math.sqrt(2)]
    longer = f"{factor:.3g}"
    d = Sketch(
        402,
        176,
        alt=f"Two vectors, x and {longer} x, point in the same direction. The norm maps both to the same point on a "
        "circle. There the gradient of a loss arrives at a slant. At x and at "
        f"{longer} x the gradient is orthogonal to the vector, with the lengths {lengths[0]:.2f} and {lengths[1]:.2f}.",
    )
    circle = unit * math.sqrt(2)
    d.path(
        f"M{origin[0] + circle:.1f} {origin[1]}A{circle:.1f} {circle:.1f} 0 0 0 {origin[0]} {origin[1] - circle:.1f}"
    )
    normed = at(math.sqrt(2))
    d.arrow(at(0), at(radii[1]), gap=0, role="query")
    d.circle(at(radii[0]), 3, role="query")
    d.circle(normed, 3.5, role="output")
    arriving = at(math.sqrt(2) + along, across)
    d.arrow(normed, arriving, gap=4, role="output")
    d.text((arriving[0] - 40, arriving[1] - 22), "gradient of the loss", anchor="start", small=True)
    d.text((arriving[0] - 40, arriving[1] - 8), "at the norm's output", anchor="start", small=True)
    d.text((normed[0] + 10, normed[1] + 22), f"norm of $x$ and of ${longer}x$", anchor="start", small=True)
    for radius, length, name in zip(radii, lengths, ("$x$", f"${longer}x$"), strict=True):
        end, (x, y) = at(radius, length), at(radius)
        d.arrow((x, y), end, gap=0, role="value")
        d.text((x + 8, y + 14), name, anchor="start")
        d.text((end[0] + 16, end[1] + 8), f"at {name}: {length:.2f}", anchor="start", small=True)
    return d


def _pair(vector: Sequence[float]) -> str:
    return f"({vector[0]:.3g}, {vector[1]:.3g})"
