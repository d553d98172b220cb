"""The clocks explorer: rotary positions as hands of clocks; the angle between two hands depends on distance only."""

import math

import torch
import traitlets

from lessons_lib.attention.positions import RotaryEmbedding
from lessons_lib.attention.rope_scaling import NTKAware, PositionInterpolation
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Real, Whole
from lessons_lib.page.widgets.words import say

CLOCKS = 4  # pairs of coordinates of a head of width 8


class ClocksExplorer(Explorer):
    r"""Move a query and a key along a sequence; their hands turn, and the score depends on the angles between them.

    .. math:: (R_s q) \cdot (R_t k) = q \cdot R_{t-s} k
              = \sum_i \cos\bigl((t - s)\,\omega'_i + \text{back} \cdot \omega_i\bigr),
              \qquad \omega_i = \text{base}^{-2i/8}

    Every hand has length one. The hands of the key are turned ahead by ``back`` tokens at the trained frequencies
    :math:`\omega_i`, so that without scaling the score is largest for a key that many positions before the query. Query
    and key are at positions ``query + shift`` and ``key + shift``. The frequencies :math:`\omega'_i` may be scaled by
    ``factor``, with ``"interpolation"`` or ``"ntk"``, for sequences longer than the 32 tokens of training. In training,
    keys were 0 to 31 positions before their query, as under a causal mask. A clock is called new if it shows an angle
    that none of these distances gave.

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
        tries={
            "Both 300 positions later": {"query": 20, "key": 12, "shift": 300},
            "A query at 70": {"query": 70, "key": 12},
            "A query at 70, interpolated by 4": {"query": 70, "key": 12, "scaling": "interpolation", "factor": 4.0},
        },
    )

    query = Whole(20, min=0, max=100).tag(sync=True)
    key = Whole(12, min=0, max=100).tag(sync=True)
    shift = Whole(0, min=0, max=1000).tag(sync=True)
    back = Whole(0, min=0, max=20).tag(sync=True)
    base = Real(10_000.0, min=10.0, max=1e6).tag(sync=True)
    scaling = traitlets.Enum(("none", "interpolation", "ntk"), "none").tag(sync=True)
    factor = Real(4.0, min=1.0, max=8.0).tag(sync=True)

    def rotary(self) -> RotaryEmbedding:
        """Return the rotary embedding of the library with this base and scaling."""
        scaling = {"none": lambda _: None, "interpolation": PositionInterpolation, "ntk": NTKAware}[self.scaling]
        return RotaryEmbedding(2 * CLOCKS, base=self.base, scaling=scaling(self.factor))

    def frequencies(self) -> list[float]:
        """Return the angle that each hand turns per token, in radians."""
        return self.rotary().frequencies(torch.arange(1)).tolist()

    def score(self) -> float:
        """Return the dot product of the rotated query and key."""
        rotary, trained = self.rotary(), RotaryEmbedding(2 * CLOCKS, base=self.base)
        pairs = torch.tensor([[1.0] * CLOCKS + [0.0] * CLOCKS], dtype=torch.float64)  # each pair is (1, 0)
        query = rotary(pairs, torch.tensor([self.query + self.shift]))
        key = rotary(trained(pairs, torch.tensor([self.back])), torch.tensor([self.key + self.shift]))
        return (query @ key.T).item()

    def still(self) -> str:
        """Draw the clocks with their two hands, and below each the cosine of the angle between the hands."""
        drawn, cosines = [], []
        trained = RotaryEmbedding(2 * CLOCKS, base=self.base).frequencies(torch.arange(1)).tolist()
        for i, omega in enumerate(self.frequencies()):
            middle, query = 42.0 + 79 * i, (self.query + self.shift) * omega
            apart = (self.key - self.query) * omega + self.back * trained[i]
            drawn.append(element("circle", class_="x-ground", cx=middle, cy=42, r=36))
            drawn.append(_hand(middle, query, 24, "x-line x-first", "stroke-width: 5"))
            drawn.append(_hand(middle, query + apart, 32, "x-line x-second", ""))
            drawn.append(text(f"cos {math.cos(apart):.2f}", x=middle, y=98, anchor="middle"))
            cosines.append(f"{math.cos(apart):.2f}")
        alt = say(
            "four clocks, query at {query}, key at {key}; cosines {cosines}; score {score}",
            query=self.query + self.shift,
            key=self.key + self.shift,
            cosines=", ".join(cosines),
            score=f"{self.score():.2f}",
        )
        return picture(320, 106, alt, *drawn)


def _hand(middle: float, angle: float, length: float, look: str, style: str) -> str:
    end = f"{middle + length * math.sin(angle):.2f} {42 - length * math.cos(angle):.2f}"
    return element("path", class_=look, style=style, d=f"M{middle:g} 42L{end}")
