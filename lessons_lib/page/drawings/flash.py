"""The drawings of the chapter on FlashAttention: what crosses between two memories, and a softmax in two parts."""

from collections.abc import Sequence

import torch

from lessons_lib.attention.softmax import softmax
from lessons_lib.page.sketch import Sketch


def memory_passes() -> Sketch:
    r"""Draw what moves between main memory and the chip: attention in three passes, and the same in tiles.

    In three passes the matrices :math:`S` and :math:`A`, :math:`n \times n` each, are written and read back.
    Dao et al., *FlashAttention*, 2022, algorithm 0.
    """
    d = Sketch(
        402,
        290,
        alt="Above, attention in three passes. Q and K go up from main memory to the chip, for the scores; the n by n "
        "matrix S comes down. S goes up again, for the softmax, and the n by n matrix A comes down. A and V go up, for "
        "the average, and O comes down. Below, attention in tiles: Q, K and V go up to one box, scores, softmax and "
        "average, and only O comes down.",
    )
    high = 34.0

    def load(x: float, chip: float, memory: float, role: str = "") -> None:
        d.arrow((x, memory), (x, chip + high), role=role, gap=2)

    def store(x: float, chip: float, memory: float, role: str = "") -> None:
        d.arrow((x, chip + high), (x, memory), role=role, gap=2)

    for top, tiles in ((0.0, False), (158.0, True)):
        chip, memory = top + 22, top + 86
        title = r"in tiles: no $n \times n$ matrix moves" if tiles else r"three passes: two $n \times n$ matrices move"
        d.text((72, top + 9), title, anchor="start")
        d.text((1, chip + high / 2), "chip", anchor="start", small=True)
        d.text((1, memory + 14), "main", anchor="start", small=True)
        d.text((1, memory + 30), "memory", anchor="start", small=True)
        steps = [(72, 328, "scores, softmax and average of a tile")] if tiles else []
        steps = steps or [(72, 98, "scores"), (176, 78, "softmax"), (260, 140, "average")]
        for x, width, name in steps:
            d.box(x, chip, width, high, name)
        for name, x, role in (("Q", 76.0, "query"), ("K", 100.0, "key"), ("V", 304.0, "value"), ("O", 366.0, "output")):
            d.matrix(x, memory, 16, 44, f"${name}$", role=role)
            (store if name == "O" else load)(x + 8, chip, memory, role)
        for name, x in () if tiles else (("S", 146.0), ("A", 230.0)):
            d.matrix(x, memory, 50, 44, f"${name}$")
            store(x + 12, chip, memory)
            load(x + 40, chip, memory)
    return d


def merged_parts(scores: Sequence[float], n_first: int) -> Sketch:
    r"""Draw a softmax in two parts: the weights of each part, its log-sum-exp, its share, and the weights of both.

    Args:
        scores: of one query with three to eight keys.
        n_first: number of keys in the first part.

    Raises:
        ValueError: if there are not three to eight scores, or a part is empty.
    """
    n = len(scores)
    if not 3 <= n <= 8:
        raise ValueError(f"scores must be between 3 and 8, got {n}")
    if not 1 <= n_first < n:
        raise ValueError(f"n_first must be between 1 and {n - 1}, got {n_first}")
    row = torch.tensor(scores, dtype=torch.float64)
    parts = [row[:n_first], row[n_first:]]
    sums = torch.stack([part.logsumexp(0) for part in parts])
    shares, weights = softmax(sums), softmax(row)
    listed = ["; ".join(_joined(softmax(part)) for part in parts), _joined(weights)]
    d = Sketch(
        402,
        196,
        alt=f"A row of {n} scores, cut into {n_first} and {n - n_first}. Below, the weights of each part, which sum to "
        f"1 in it: {listed[0]}. Below these, the log-sum-exp of each part, {sums[0]:.2f} and {sums[1]:.2f}, and its "
        f"share of the whole, {shares[0]:.2f} and {shares[1]:.2f}. Each part's weights times its share are the weights "
        f"of the whole row: {listed[1]}.",
    )
    left, gap, high = 74.0, 22.0, 26.0
    cell = (400 - left - gap) / n
    starts = [left, left + n_first * cell + gap]
    for y, name in ((18, "scores"), (60, "weights"), (102, "kept"), (144, "merged")):
        d.text((left - 8, y + high / 2), name, anchor="end", small=True)
    for i, (part, x) in enumerate(zip(parts, starts, strict=True)):
        keys, width = slice(n_first) if i == 0 else slice(n_first, None), len(part) * cell
        d.text((x + width / 2, 8), f"part {'ab'[i]}", small=True)
        d.table(x, 18, (cell, high), [[f"${score:.3g}$" for score in part.tolist()]])
        for y, shown in ((60, softmax(part)), (144, weights[keys])):
            entries, shades = [f"{p:.2f}" for p in shown.tolist()], [0.6 * p for p in shown.tolist()]
            d.table(x, y, (cell, high), [entries], role="query", shades=[shades])
        d.text((x + width / 2, 102 + high / 2 - 8), f"$\u2113 = {sums[i]:.2f}$", small=True)
        d.text((x + width / 2, 102 + high / 2 + 8), f"share {shares[i]:.2f}", small=True)
    d.text(((left + 400) / 2, 184), "merged = weight in its part \u00d7 share of the part", small=True)
    return d


# --- helpers ----------------------------------------------------------------------------------------------------------


def _joined(weights: torch.Tensor) -> str:
    """Return weights with two decimals, separated by commas."""
    return ", ".join(f"{p:.2f}" for p in weights.tolist())
