"""The stretch explorer: rotary embeddings beyond the training length, and three methods of scaling them."""

import math
from typing import NamedTuple

import torch
import traitlets

from lessons_lib.attention.positions import RotaryEmbedding, RotaryScaling, rotary_frequencies
from lessons_lib.attention.rope_scaling import NTKAware, PositionInterpolation, YaRN
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Real, Whole
from lessons_lib.page.widgets.words import mark, say

TRAINED, LONGEST = 64, 512
WIDTHS = [4, 8, 16, 32, 64, 128]
METHODS = {
    "none": mark("as trained"),
    "interpolation": mark("interpolation"),
    "ntk": mark("NTK-aware"),
    "yarn": mark("YaRN"),
}


class Clock(NamedTuple):
    """A frequency in radians per token, trained and scaled; the largest angle in training, and at the length read."""

    trained: float
    now: float
    seen: float
    reach: float

    @property
    def is_new(self) -> bool:
        """Whether the clock made less than one turn in training and now reaches angles beyond those of training."""
        return self.seen < 2 * math.pi and self.reach > self.seen * (1 + 1e-9)


class StretchExplorer(Explorer):
    r"""Read more tokens than the 64 of training; see which frequencies reach new angles, and what each method changes.

    .. math:: \omega_i = \text{base}^{-2i/d}, \qquad \text{seen} = 64\, \omega_i, \quad \text{reach} = n\, \omega'_i

    with :math:`d` the ``width`` of a head, :math:`n` the ``length`` that is read, and :math:`\omega'_i` the frequencies
    scaled by ``method``: ``"none"``, ``"interpolation"``, ``"ntk"`` or ``"yarn"`` with a ``factor`` and the library's
    defaults. A clock, that is a frequency, is called new if it reaches an angle that it did not reach in training.

    Args:
        clock: the clock that is shown in detail, 1 for the fastest; the slowest if there are fewer.
        practised: whether the recorded losses are those of models fine-tuned on 512 tokens for forty steps.
        guess: the method that the reader expects to have the lowest loss at 512 tokens; empty before the guess.

    Raises:
        ValueError: if ``base`` is not between 10 and a million, ``width`` or ``method`` none of those offered,
            ``factor`` not between 1 and 128, ``length`` not in 16 .. 512, ``clock`` not in 1 .. 64, or ``guess``
            neither a method nor empty.
    """

    script = "stretch"
    card = Card(
        title="Clocks beyond their training",
        question="Trained on 64 tokens, it reads 512: which clocks reach new angles?",
        sentence=(
            "In the live figure the length, the method with its factor, the base and the width of a head can be "
            "changed; how far each clock turned in training and turns now, and what the method changes, follow."
        ),
        tries={
            "80 tokens": {"length": 80, "method": "none"},
            "Interpolation by 8": {"length": 512, "method": mark("interpolation"), "factor": 8.0},
            "NTK-aware by 16": {"length": 512, "method": "ntk", "factor": 16.0},
            "YaRN by 8": {"length": 512, "method": "yarn", "factor": 8.0},
        },
    )

    base = Real(10_000.0, min=10.0, max=1e6).tag(sync=True)
    width = traitlets.Enum(WIDTHS, 16).tag(sync=True)
    method = traitlets.Enum(list(METHODS), "none").tag(sync=True)
    factor = Real(8.0, min=1.0, max=128.0).tag(sync=True)
    length = Whole(LONGEST, min=16, max=LONGEST).tag(sync=True)
    clock = Whole(4, min=1, max=WIDTHS[-1] // 2).tag(sync=True)
    practised = traitlets.Bool(False).tag(sync=True)
    guess = traitlets.Enum(["", *METHODS], "").tag(sync=True)

    def scaling(self) -> RotaryScaling | None:
        """Return the scaling of the library for this method; None without scaling."""
        return {
            "none": lambda factor: None,
            "interpolation": PositionInterpolation,
            "ntk": NTKAware,
            "yarn": lambda factor: YaRN(factor, TRAINED),
        }[self.method](self.factor)

    def clocks(self) -> list[Clock]:
        """Return the clocks, the fastest first."""
        trained = rotary_frequencies(self.base, self.width).tolist()
        now = RotaryEmbedding(self.width, base=self.base, scaling=self.scaling()).frequencies(torch.arange(1)).tolist()
        return [Clock(w, v, TRAINED * w, self.length * v) for w, v in zip(trained, now, strict=True)]

    def still(self) -> str:
        """Draw the largest angle of each clock in training, and the one that it reaches now."""
        clocks = self.clocks()
        slot = 276 / len(clocks)
        paths = {"x-fill": "", "x-line x-first": "", "x-line x-second": ""}
        for i, clock in enumerate(clocks):
            x, wide = f"{40 + slot * (i + 0.15):.2f}", f"h{0.7 * slot:.2f}"
            paths["x-fill"] += f"M{x} 160V{_height(clock.seen)}{wide}V160"
            paths[f"x-line x-{'second' if clock.is_new else 'first'}"] += f"M{x} {_height(clock.reach)}{wide}"
        drawn = [element("path", class_=look, d=d) for look, d in paths.items() if d]
        once = _height(2 * math.pi)
        drawn.append(element("path", class_="x-axis", d=f"M40 20V160H316M40 {once:g}H316"))
        drawn += [text("1", x=34, y=once + 4, anchor="end"), text(say("turns"), x=0, y=12)]
        new = sum(clock.is_new for clock in clocks)
        method = say(METHODS[self.method])
        if self.method != "none":
            method = say("{method} by {factor}", method=method, factor=f"{self.factor:g}")
        alt = say(
            "trained on {trained} tokens, {length} read, {method}: {new} of {total} clocks reach new angles",
            trained=TRAINED,
            length=self.length,
            method=method,
            new=new,
            total=len(clocks),
        )
        return picture(320, 164, alt, *drawn)


def _height(angle: float) -> float:
    """Return the vertical coordinate of an angle on a logarithmic axis from 1e-4 to 100 turns."""
    return round(160 - 140 * min(1.0, max(0.0, (4 + math.log10(angle / (2 * math.pi))) / 6)), 2)
