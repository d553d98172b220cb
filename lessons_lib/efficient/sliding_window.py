"""Sliding window attention that skips: each block of queries meets the keys within its reach, and no others."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from lessons_lib.attention import attention
from lessons_lib.efficient.call_shape import check_heads, check_over_scores, rows_and_columns
from lessons_lib.shapes import check_size

# Smaller blocks pay for Python, larger ones compute more scores outside the window.
BLOCK = 128


def sliding_window_attention(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv m d_k"],
    value: Float[Tensor, "*batch_kv m d_v"],
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    window: int,
    causal: bool = True,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "*batch n d_v"]:
    r"""Attend to the neighbours alone: attention under ``masks.sliding_window``, without the scores that it hides.

    .. math:: o_i = \sum_{j \in W_i} a_{ij} v_j, \qquad
              W_i = \{j : i - w < j \le i\} \text{ or, not causal, } \{j : |i - j| < w\}

    Queries go in blocks of :math:`B = 128`; each block meets the :math:`B + w - 1` keys that one of its queries sees
    (:math:`B + 2w - 2`, not causal). So there are :math:`n (B + w)` scores instead of :math:`n^2`, on the way forward
    and on the way back. Any ``n``: what the last block lacks is padded and hidden.

    With more keys than queries, the queries are the last positions, as when decoding with a cache, and what lies
    before the first window is not looked at.

    Args:
        mask: hides more than the window does. One over ``(n, m)``, and such a bias, are honoured, but are themselves
            quadratic: leave them out where the sequence is long.
        window: number of visible keys, the query's own included, counted to each side that is visible.
        causal: hide what comes after a query.
        scale, bias, dropout_p: as :func:`lessons_lib.attention.attention`.

    Raises:
        ValueError: as :func:`lessons_lib.attention.attention`, if the leading axes differ by more than grouped heads,
            if there are fewer keys than queries, or if ``window`` is not a positive integer.
    """
    check_heads(query, key, value)
    check_over_scores(query, key, mask, bias)
    check_size("window", window, at_least=1)
    n, m = query.shape[-2], key.shape[-2]
    if n > m:
        raise ValueError(f"n queries cannot be the last positions of fewer keys: n must be at most m, got {n} and {m}")
    before = min(window, m) - 1
    after = 0 if causal else before
    span = before + BLOCK + after
    starts = range(m - n - before, m - before, BLOCK)  # where each block's keys begin, in front of the first key too

    band = _band(before, after, device=query.device)
    keys, values = (_overlapping(rows, starts, span) for rows in (key, value))
    masks = _tiles(torch.ones(1, m, dtype=torch.bool, device=query.device) if mask is None else mask, m, starts, span)
    biases = [None] * len(starts) if bias is None else _tiles(bias, m, starts, span)
    outs = [
        attention(q, k, v, band[: q.shape[-2]] & seen, scale=scale, bias=added, dropout_p=dropout_p)
        for q, k, v, seen, added in zip(query.split(BLOCK, dim=-2), keys, values, masks, biases, strict=True)
    ]
    return torch.cat(outs, dim=-2)


def _overlapping(rows: Tensor, starts: range, span: int) -> tuple[Tensor, ...]:
    """Each block's keys or values, as views of one padded copy.

    A slice for each block would do, but its gradient is as long as the sequence: quadratic on the way back.
    """
    m = rows.shape[-2]
    rows = pad(rows, (0, 0, -starts[0], starts[-1] + span - m))
    return rows.unfold(-2, span, BLOCK).mT.unbind(-3)


def _tiles(over_scores: Tensor, m: int, starts: range, span: int) -> list[Tensor]:
    """The part of a mask or a bias that lies over each block's scores; zero, which is False, over the padding."""
    over_scores = rows_and_columns(over_scores, m)
    one_for_all = over_scores.shape[-2] == 1
    rows = [over_scores] * len(starts) if one_for_all else over_scores.split(BLOCK, dim=-2)
    return [pad(row, (-start, start + span - m)) for row, start in zip(rows, starts, strict=True)]


def _band(before: int, after: int, *, device: torch.device) -> Tensor:
    """Which keys of its span each query of a block sees: the same for every block."""
    query = torch.arange(BLOCK, device=device)[:, None]
    key = torch.arange(-before, BLOCK + after, device=device)[None, :]
    return (key >= query - before) & (key <= query + after)
