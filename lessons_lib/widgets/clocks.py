"""The clocks explorer: rotary positions as hands of clocks, whose angles to one another tell the distance alone."""

import math

import torch
import traitlets

from lessons_lib.positions import RotaryEmbedding
from lessons_lib.rope_scaling import NTKAware, PositionInterpolation
from lessons_lib.widgets.drawing import element, picture, text
from lessons_lib.widgets.explorer import Card, Explorer
from lessons_lib.widgets.traits import Real, Whole

CLOCKS = 4  # pairs of coordinates of a head of width 8


class ClocksExplorer(Explorer):
    r"""Move a query and a key along a sequence: their hands turn, and the score looks at the angles between them.

    .. math:: (R_s q) \cdot (R_t k) = q \cdot R_{t-s} k = \sum_i \cos\bigl((t - s + \text{back})\,\omega_i\bigr),
              \qquad \omega_i = \text{base}^{-2i/8}

    Every hand has length one. The key's were turned ahead by ``back`` tokens, so that the query looks for a key so
    many places before it. Query and key stand at ``query + shift`` and ``key + shift``. The rates may be stretched by
    ``factor``, with ``"interpolation"`` or ``"ntk"``, beyond the 32 tokens that are taken as the length in training.
    There keys stood 0 to 31 places before their query, as under a causal mask; a clock is new that shows an angle which
    none of these distances gave it.

    Raises:
        ValueError: if ``query`` or ``key`` is not in 0 .. 100, ``shift`` not in 0 .. 1000, ``back`` not in 0 .. 20,
            ``base`` not between 10 and a million, ``scaling`` not ``none``, ``interpolation`` or ``ntk``, or
            ``factor`` not between 1 and 8.
    """

    script = "clocks"
    card = Card(
        title="Positions as clocks",
        question="Query and key move on together: which hands turn, and which numbers stay?",
        sentence=(
            "In the live figure query and key can be moved, one by one or together, and the base changed; the hands of "
            "four clocks, the angles between them, and the score at every distance follow."
        ),
    )

    query = Whole(20, min=0, max=100).tag(sync=True)
    key = Whole(12, min=0, max=100).tag(sync=True)
    shift = Whole(0, min=0, max=1000).tag(sync=True)
    back = Whole(0, min=0, max=20).tag(sync=True)
    base = Real(10_000.0, min=10.0, max=1e6).tag(sync=True)
    scaling = traitlets.Enum(("none", "interpolation", "ntk"), "none").tag(sync=True)
    factor = Real(4.0, min=1.0, max=8.0).tag(sync=True)

    def frequencies(self) -> list[float]:
        """Return how far each hand turns per token, in radians."""
        scaling = {"none": lambda _: None, "interpolation": PositionInterpolation, "ntk": NTKAware}[self.scaling]
        rotary = RotaryEmbedding(2 * CLOCKS, base=self.base, scaling=scaling(self.factor))
        return rotary.frequencies(torch.arange(1)).tolist()

    def score(self) -> float:
        """Return the dot product of the rotated query and key."""
        return sum(math.cos((self.key - self.query + self.back) * omega) for omega in self.frequencies())

    def still(self) -> str:
        """Draw the clocks with their two hands, and the cosine of the angle between under each."""
        drawn, said = [], []
        for i, omega in enumerate(self.frequencies()):
            middle, query = 42.0 + 79 * i, (self.query + self.shift) * omega
            apart = (self.key - self.query + self.back) * omega
            drawn.append(element("circle", class_="x-ground", cx=middle, cy=42, r=36))
            drawn.append(_hand(middle, query, 24, "x-line x-first", "stroke-width: 5"))
            drawn.append(_hand(middle, query + apart, 32, "x-line x-second", ""))
            drawn.append(text(f"cos {math.cos(apart):.2f}", x=middle, y=98, anchor="middle"))
            said.append(f"{math.cos(apart):.2f}")
        where = f"query at {self.query + self.shift}, key at {self.key + self.shift}"
        return picture(320, 106, f"four clocks, {where}; cosines {', '.join(said)}; score {self.score():.2f}", *drawn)


def _hand(middle: float, angle: float, length: float, look: str, style: str) -> str:
    end = f"{middle + length * math.sin(angle):.2f} {42 - length * math.cos(angle):.2f}"
    return element("path", class_=look, style=style, d=f"M{middle:g} 42L{end}")
