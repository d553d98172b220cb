"""The masks explorer: attention masks that are composed, painted, and followed through several layers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
import traitlets
from jaxtyping import Bool
from torch import Tensor

from lessons_lib.attention import masks
from lessons_lib.attention.rules.ranges import true_ranges
from lessons_lib.page.widgets.arithmetic import uniform
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import say

LARGEST = 32


@dataclass(frozen=True)
class Kind:
    """A kind of mask: the function ``mask(n, *numbers)``, and the defaults and lower bounds of its numbers."""

    mask: Callable[..., Bool[Tensor, "n n"]]
    defaults: tuple[int | float, ...] = ()
    least: tuple[int, ...] = ()
    many: bool = False  # takes any number of numbers, with the bound of the first


def _documents(n: int, *lengths: int) -> Tensor:
    """Return the mask of documents of these lengths, and of one more document for the remaining positions."""
    ends = torch.tensor(lengths).cumsum(0)
    return masks.documents(torch.searchsorted(ends, torch.arange(n), right=True))


def _random_sparse(n: int, density: float, seed: int) -> Tensor:
    """Return the mask of ``masks.random_sparse`` for the random numbers that the script draws from the seed."""
    drawn = torch.tensor(list(islice(uniform(seed), n * n)), dtype=torch.float64).reshape(n, n)
    return (drawn < density) | torch.eye(n, dtype=torch.bool)


KINDS = {
    "causal": Kind(masks.causal),
    "bidirectional": Kind(masks.bidirectional),
    "sliding_window": Kind(masks.sliding_window, (4,), (1,)),
    "two_sided_window": Kind(partial(masks.sliding_window, causal=False), (3,), (1,)),
    "dilated": Kind(masks.dilated, (3, 2), (1, 1)),
    "block": Kind(masks.block, (4,), (1,)),
    "documents": Kind(_documents, (5,), (1,), many=True),
    "prefix": Kind(lambda n, prefix: masks.prefix(n, min(n, prefix)), (4,), (0,)),
    "global_tokens": Kind(
        lambda n, *positions: masks.global_tokens(n, [i for i in positions if i < n]), (0,), (0,), many=True
    ),
    "random_sparse": Kind(_random_sparse, (0.2, 0), (0, 0)),
}


class MasksExplorer(Explorer):
    """Compose masks and paint cells; density, fully masked rows and the reach of several layers follow.

    ``parts`` are combined from left to right: ``["causal", "& sliding_window 4", "| global_tokens 0"]``. A part is
    ``&`` or ``|`` (the first part has neither), a kind, and its numbers; without numbers the kind's defaults apply:

    * ``causal``, ``bidirectional``, ``sliding_window 4``, ``dilated 3 2``, ``block 4`` and ``prefix 4`` are the masks
      of ``lessons_lib.attention.masks`` with these names;
    * ``two_sided_window 3`` is ``sliding_window(n, 3, causal=False)``;
    * ``global_tokens 0 6`` is ``global_tokens(n, [0, 6])``; positions beyond ``n`` are left out;
    * ``documents 5 3`` is ``documents`` of 5 and 3 positions, and of the remaining ones;
    * ``random_sparse 0.2 0`` is ``random_sparse`` of density 0.2, drawn from the seed 0 by the generator of the script.

    ``painted`` holds cells ``[query, key, 1 or 0]`` that override the composition. ``mask`` is the result:
    ``torch.tensor(explorer.mask)`` is the mask that the reader sees, True = may attend.

    Raises:
        ValueError: if ``n`` is not in 2 .. 32, ``layers`` not in 1 .. 32, a part is not written as above, or a number
            of it is too small.
    """

    script = "masks"
    card = Card(
        title="Which tokens may attend to which",
        question="How many layers until the last position can depend on the first?",
        sentence=(
            "In the live figure, masks are combined by & and |, cells are painted by mouse or keyboard, and "
            "smaller cells show which keys are within reach after several layers."
        ),
        tries={
            "The causal mask": {"n": 16, "parts": ["causal"]},
            "A window of 4 and a global token": {"n": 16, "parts": ["sliding_window 4", "| global_tokens 0"]},
            "Window, global token and causal": {
                "n": 16,
                "parts": ["sliding_window 4", "| global_tokens 0", "& causal"],
            },
            "Three documents": {"n": 16, "parts": ["documents 5 6", "& causal"]},
        },
    )

    n = Whole(12, min=2, max=LARGEST).tag(sync=True)
    parts = traitlets.List(traitlets.Unicode(), ["causal"], minlen=1, maxlen=4).tag(sync=True)
    layers = Whole(1, min=1, max=LARGEST).tag(sync=True)
    painted = traitlets.List(traitlets.List(Whole(min=0, max=LARGEST - 1), minlen=3, maxlen=3)).tag(sync=True)
    mask = traitlets.List(traitlets.List(traitlets.Bool()), read_only=True)

    @traitlets.validate("parts")
    def _parts_can_be_read(self, proposal: Any) -> list[str]:
        for index, part in enumerate(proposal["value"]):
            _parse(index, part)
        return proposal["value"]

    @traitlets.default("mask")
    def _mask(self) -> list[list[bool]]:
        mask = compose(self.n, self.parts)
        for query, key, allowed in self.painted:
            if query < self.n and key < self.n:
                mask[query, key] = bool(allowed)
        return mask.tolist()

    @traitlets.observe("n", "parts", "painted")
    def _follow(self, _: Any) -> None:
        self.set_trait("mask", self._mask())

    def still(self) -> str:
        """Draw the matrix."""
        side = 288 / self.n
        rows = [
            f"M{keys.start * side:.4g} {row * side:.4g}H{keys.stop * side:.4g}v{side - 1:.4g}H{keys.start * side:.4g}z"
            for row, allowed in enumerate(self.mask)
            for keys in true_ranges(np.array(allowed))
        ]
        allowed = sum(map(sum, self.mask))
        alt = say(
            "mask over {n} positions, {parts}: {allowed} of {total} pairs may attend",
            n=self.n,
            parts=", ".join(self.parts),
            allowed=allowed,
            total=self.n**2,
        )
        ground = element("rect", class_="x-ground", x=0, y=0, width=288, height=288)
        cells = element("path", class_="x-may", d="".join(rows))
        return picture(300, 308, alt, ground, cells, text(say("rows: queries, columns: keys"), x=0, y=304))


def compose(n: int, parts: Sequence[str]) -> Bool[Tensor, "n n"]:
    """Return the mask of the parts, combined from left to right."""
    mask = torch.zeros(n, n, dtype=torch.bool)
    for index, part in enumerate(parts):
        operation, kind, numbers = _parse(index, part)
        allowed = KINDS[kind].mask(n, *numbers)
        mask = mask & allowed if operation == "&" else mask | allowed
    return mask


def _parse(index: int, part: str) -> tuple[str, str, tuple[int | float, ...]]:
    """Parse one part of a mask into operation, kind and numbers, or raise an error that says what is wrong."""
    where = f"parts[{index}]"
    operation, _, rest = part.partition(" ") if part.startswith(("&", "|")) else ("", "", part)
    if (operation not in "&|" or not operation) != (index == 0):
        rule = "must not begin with an operation" if index == 0 else "must begin with '& ' or '| '"
        raise traitlets.TraitError(f"{where} {rule}, got {part!r}")
    name, *written = rest.split(" ")
    if name not in KINDS:
        raise traitlets.TraitError(f"{where} must name one of {', '.join(KINDS)}, got {part!r}")
    kind = KINDS[name]
    if not all(re.fullmatch(r"\d{1,4}(\.\d+)?", number) for number in written):
        raise traitlets.TraitError(f"{where} takes numbers after its name, separated by single spaces, got {part!r}")
    numbers = tuple(float(number) if "." in number else int(number) for number in written) or kind.defaults
    least = kind.least * (len(numbers) if kind.many else 1)
    if len(numbers) != len(least):
        raise traitlets.TraitError(f"{where} takes {len(least)} numbers after {name}, got {part!r}")
    if any(number < bound for number, bound in zip(numbers, least, strict=True)):
        raise traitlets.TraitError(f"{where} takes numbers of at least {', '.join(map(str, least))}, got {part!r}")
    if any(isinstance(number, float) for number in numbers[name == "random_sparse" :]):
        raise traitlets.TraitError(f"{where} takes whole numbers, got {part!r}")
    if name == "random_sparse" and numbers[0] > 1:
        raise traitlets.TraitError(f"{where} takes a density of at most 1, got {part!r}")
    return operation, name, numbers
