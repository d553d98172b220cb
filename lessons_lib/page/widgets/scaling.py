"""The scaling explorer: scores, weights and gradient against the width of a head, under four scales."""

import math

import traitlets

from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import say

WIDTHS = [2**i for i in range(13)]
SCALES = {
    "1": lambda width: 1.0,
    "1/sqrt(d)": lambda width: width**-0.5,
    "1/d": lambda width: 1 / width,
    "sqrt(d)": math.sqrt,
}


class ScalingExplorer(Explorer):
    r"""Change the width and the scale; the standard deviation of the scores, the weights and the gradient follow.

    .. math:: \operatorname{Var}(s \, q \cdot k) = s^2 d_k \quad\text{for independent standard normal entries}

    The random scores have exactly the distribution of ``q @ k`` for 200 queries; with the same ``seed`` they are the
    same on every machine.

    Raises:
        ValueError: if ``width`` is not a power of two up to 4096, ``n_keys`` is not in 2 .. 64, ``scaling`` is not one
            of the four, or ``seed`` is not in ``0 .. 2**31 - 1``.
    """

    script = "scaling"
    card = Card(
        title="The width of a head",
        question="How large is the largest weight when the head grows wider?",
        sentence=(
            "In the live figure the width and the scale can be changed and new queries drawn; the distribution of the "
            "scores, the weights of one query, and the size of the gradient follow."
        ),
        tries={
            "Width 4096, unscaled": {"width": 4096, "scaling": "1"},
            "Width 4096, divided by √dₖ": {"width": 4096, "scaling": "1/sqrt(d)"},
            "Width 4096, divided by dₖ": {"width": 4096, "scaling": "1/d"},
        },
    )

    width = traitlets.Enum(WIDTHS, 64).tag(sync=True)
    n_keys = Whole(16, min=2, max=64).tag(sync=True)
    scaling = traitlets.Enum(list(SCALES), "1/sqrt(d)").tag(sync=True)
    seed = Whole(0, min=0, max=2**31 - 1).tag(sync=True)

    def still(self) -> str:
        """Draw the normal curve with the variance of the scores beside the standard normal curve."""
        std = SCALES[self.scaling](self.width) * math.sqrt(self.width)

        def bell(spread: float, look: str) -> str:
            scores = [t / 5 for t in range(-80, 81)]
            points = [f"{160 + 9.5 * s:.1f} {130 - 110 * math.exp(-((s / spread) ** 2) / 2):.1f}" for s in scores]
            return element("path", class_=f"x-line {look}", d=f"M{'L'.join(points)}")

        alt = say(
            "scores at width {width} and scale {scaling} spread by {std}, against a spread of 1 (dashed)",
            width=self.width,
            scaling=self.scaling,
            std=f"{std:.3g}",
        )
        marks = [text(f"{s:g}", x=160 + 9.5 * s, y=148, anchor="middle") for s in (-8, 0, 8)]
        axis = element("path", class_="x-axis", d="M8 130H312")
        return picture(320, 152, alt, bell(std, "x-first"), bell(1.0, "x-second x-dashed"), axis, *marks)
