"""The tiles explorer: FlashAttention's forward pass, tile by tile, on a small matrix."""

import traitlets

from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import say

LARGEST = 16
ORDERS = ["drawn", "rising", "falling"]
MEMORIES = [16, 32, 64, 128, 256]


class TilesExplorer(Explorer):
    r"""Step through the tiles; the contents of fast memory, the rescaling factor of each row and the bytes follow.

    .. math:: \mu' = \max(\mu, \max_j s_j), \qquad z' = e^{\mu - \mu'} z + \sum_j e^{s_j - \mu'}, \qquad
              u' = e^{\mu - \mu'} u + \sum_j e^{s_j - \mu'} v_j

    Each tile takes two steps, so that the factor :math:`e^{\mu - \mu'}` can be predicted: its scores are loaded, then
    merged. A block of queries is divided by its sums and written once all its keys are merged. The values are the
    identity matrix, so an output row is the row of attention weights. Bytes are counted for float32 and heads of width
    4.

    Args:
        n: sequence length.
        block_q: number of queries in a tile.
        block_k: number of keys in a tile; the last blocks may be smaller.
        is_causal: apply a causal mask, and skip fully masked tiles.
        order: ``drawn``, or each row of scores sorted: ``rising`` or ``falling``.
        rescale: whether the old sum and output are rescaled when the maximum grows; the result is wrong without it.
        memory: size of the fast memory in KiB, for the byte count at a realistic size.
        step: number of steps taken; a larger number than there are steps counts as the last.
        seed: seed of the scores.

    Raises:
        ValueError: if ``n`` is not in 2 .. 16, a block not in 1 .. 8, ``step`` is negative, ``order`` or ``memory`` is
            not among the choices, or ``seed`` is not in ``0 .. 2**31 - 1``.
    """

    script = "tiles"
    card = Card(
        title="FlashAttention, tile by tile",
        question="The next tile comes in: by which factor must each sum shrink?",
        sentence=(
            "In the live figure buttons and a slider go through the tiles; the running maximum, the sum and the "
            "outputs follow, with the factor by which they shrink and the bytes moved so far."
        ),
        tries={
            "A causal mask": {"n": 8, "block_q": 4, "block_k": 2, "is_causal": True, "step": 0},
            "Rising scores": {"n": 8, "block_q": 4, "block_k": 2, "order": "rising", "step": 3},
            "Without rescaling": {"n": 8, "block_q": 4, "block_k": 2, "rescale": False, "step": 18},
        },
    )

    n = Whole(8, min=2, max=LARGEST).tag(sync=True)
    block_q = Whole(4, min=1, max=8).tag(sync=True)
    block_k = Whole(2, min=1, max=8).tag(sync=True)
    is_causal = traitlets.Bool(False).tag(sync=True)
    order = traitlets.Enum(ORDERS, "drawn").tag(sync=True)
    rescale = traitlets.Bool(True).tag(sync=True)
    memory = traitlets.Enum(MEMORIES, 128).tag(sync=True)
    step = Whole(0, min=0).tag(sync=True)
    seed = Whole(8, min=0, max=2**31 - 1).tag(sync=True)

    def still(self) -> str:
        """Draw the merged tiles, the current tile, and the outlines of the tiles to come."""
        side = 288 / self.n
        steps = schedule(self.n, self.block_q, self.block_k, self.is_causal)
        taken = steps[: self.step]

        def box(rows: range, keys: range, look: str) -> str:
            place = {"x": keys.start * side + 1, "y": rows.start * side + 1}
            return element("rect", class_=look, **place, width=len(keys) * side - 2, height=len(rows) * side - 2)

        tiles = [(rows, keys) for doing, rows, keys in steps if doing == "load"]
        visited = [(rows, keys) for doing, rows, keys in taken if doing == "merge"]
        current = [(rows, keys) for doing, rows, keys in taken[-1:] if doing != "write"]
        looks = [*((tile, "x-ground") for tile in tiles), *((tile, "x-fill") for tile in visited)]
        looks += [(tile, "x-line x-second") for tile in current]
        alt = say(
            "{tiles} tiles of {queries} queries and {keys} keys over {n} positions, {merged} of them merged",
            tiles=len(tiles),
            queries=self.block_q,
            keys=self.block_k,
            n=self.n,
            merged=len(visited),
        )
        boxes = [box(*tile, look) for tile, look in looks]
        return picture(300, 308, alt, *boxes, text(say("rows: queries, columns: keys"), x=0, y=304))


def schedule(n: int, block_q: int, block_k: int, is_causal: bool) -> list[tuple[str, range, range]]:
    """Return the steps in order: ``load`` and ``merge`` for each tile, ``write`` for each block of queries."""
    steps = []
    for rows in (range(n)[q : q + block_q] for q in range(0, n, block_q)):
        for start in range(0, rows.stop if is_causal else n, block_k):
            keys = range(n)[start : start + block_k]
            steps += [("load", rows, keys), ("merge", rows, keys)]
        steps.append(("write", rows, range(0)))
    return steps
