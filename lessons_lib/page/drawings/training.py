"""The drawings of the chapter on training."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lessons_lib.analysis.diagnostics import token_spread
from lessons_lib.attention.attention import attention
from lessons_lib.page.sketch import Sketch


def averaged_tokens(angles: Sequence[float] = (0, 40, 90, 150)) -> Sketch:
    """Draw tokens as arrows, what attention makes of them, and the residual sum of both.

    The queries, keys and values are the tokens themselves, unit vectors of two entries.

    Args:
        angles: the direction of each token, in degrees.

    Raises:
        ValueError: if there are not between two and six angles, or an angle is not between 0 and 180 degrees.
    """
    if not 2 <= len(angles) <= 6 or not all(0 <= angle <= 180 for angle in angles):
        raise ValueError(f"angles must be between 2 and 6 numbers from 0 to 180, got {angles!r}")
    radians = torch.tensor([math.radians(angle) for angle in angles], dtype=torch.float64)
    tokens = torch.stack([radians.cos(), radians.sin()], -1)
    averages = attention(tokens, tokens, tokens)
    panels = {"tokens": tokens, "after attention": averages, "after the sum": tokens + averages}
    spreads = [token_spread(vectors).item() for vectors in panels.values()]
    d = Sketch(
        402,
        162,
        alt=f"Three bundles of {len(angles)} arrows. The tokens point in different directions; their spread is "
        f"{spreads[0]:.2f}. After attention each arrow is an average of all tokens, and the arrows are more alike: "
        f"their spread is {spreads[1]:.2f}. In the residual sum each token keeps its own part beside the average: the "
        f"spread is {spreads[2]:.2f}.",
    )
    for i, ((name, vectors), spread) in enumerate(zip(panels.items(), spreads, strict=True)):
        origin = (67.0 + 134 * i, 108.0)
        for j, (x, y) in enumerate(_shortened(vectors).tolist()):
            role = ("key", "query", "value", "output")[j % 4]
            d.arrow(origin, (origin[0] + 62 * x, origin[1] - 62 * y), gap=0, role=role)
        d.text((origin[0], 10), name)
        d.text((origin[0], 128), f"spread {spread:.2f}")
    for i, label in enumerate(("unlike vectors", "averages", "token + average")):
        d.text((67 + 134 * i, 148), label, small=True)
    for i in (0, 1):
        d.arrow((126.0 + 134 * i, 148.0), (146.0 + 134 * i, 148.0), gap=0)
    return d


def norm_positions() -> Sketch:
    """Draw the two positions of the norm: on the residual stream (Post-LN) and on the branch (Pre-LN).

    Xiong et al., *On Layer Normalization in the Transformer Architecture*, 2020, figure 1.
    """
    d = Sketch(
        402,
        118,
        alt="Two residual streams, drawn as thick lines from left to right. On the left Post-LN: a branch leaves the "
        "stream, goes through the sublayer f and is added; then the whole stream passes through a norm. On the right "
        "Pre-LN: the branch passes through a norm and then the sublayer f before it is added; the stream itself "
        "passes through no norm.",
    )
    line, branch = 100.0, 58.0
    for left, name, formula, plus_at, layer_at in (
        (1.0, "Post-LN", r"norm($x + f(x)$)", 106.0, 46.0),
        (213.0, "Pre-LN", r"$x + f$(norm($x$))", 164.0, 110.0),
    ):
        d.text((left, 8), name, anchor="start")
        d.text((left + 188, 8), formula, anchor="end")
        d.text((left, line - 12), "$x$", anchor="start")
        plus = d.circle((left + plus_at, line), 9, "+")
        layer = d.box(left + layer_at, branch - 13, 36, 26, "$f$", role="query")
        start, end = left + 18, left + plus_at
        d.path(f"M{start} {line}V{branch}")
        if name == "Pre-LN":
            norm = d.box(left + 36, branch - 13, 52, 26, "norm", role="value")
            d.path(f"M{left} {line}H{end - 9}M{end + 9} {line}H{left + 188}", thick=True)
            d.arrow((start, branch), norm.left, gap=0)
            d.arrow(norm.right, layer.left, gap=0)
        else:
            norm = d.box(left + 128, line - 13, 52, 26, "norm", role="value")
            d.path(f"M{left} {line}H{end - 9}M{end + 9} {line}H{norm.x}M{norm.x + 52} {line}H{left + 188}", thick=True)
            d.arrow((start, branch), layer.left, gap=0)
        d.path(f"M{layer.right[0]} {branch}H{end}")
        d.arrow((end, branch), plus.top, gap=0)
    return d


def _shortened(vectors: Tensor) -> Tensor:
    """Divide vectors by the length of the longest if it exceeds 1, so that they fit into a panel."""
    return vectors / max(1.0, vectors.norm(dim=-1).max().item())
