r"""FlashAttention as a plain loop over tiles [1]_: the first file to read, and the reference for the fast versions.

The forward pass cuts the queries and the keys into blocks. For one block of queries it visits the blocks of keys in
turn and keeps three running values for each query (the *online softmax*):

* ``row_max``: the largest score so far,
* ``row_sum``: the sum of :math:`e^{s - \text{row\_max}}` over the keys so far,
* ``row_out``: the values so far, added up with the same weights.

If a new block raises the maximum, the old sum and the old output are multiplied by
:math:`e^{\text{old max} - \text{new max}}`. No ``n x m`` matrix is made. The backward pass recomputes each tile of
attention weights from the log-sum-exp :math:`\ell` that the forward pass returned:

.. math:: P = e^{S - \ell}, \qquad \bar V = P^\top \bar O, \qquad
          \bar S = P \circ \left(\bar O V^\top - \delta\right), \qquad \delta_i = \bar o_i \cdot o_i - \bar\ell_i,

and then :math:`\bar Q = \tau \bar S K` and :math:`\bar K = \tau \bar S^\top Q`, where :math:`\bar X` is the gradient of
the loss with respect to :math:`X`. :mod:`lessons_lib.flash.tiled` does the same faster.

.. [1] Dao, *FlashAttention-2*, 2023. arXiv:2307.08691.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.attention.rules import Coverage, Full, Rule

BLOCK_QUERIES, BLOCK_KEYS = 64, 64


def reference_forward(
    query: Float[Tensor, "b h n d"], key: Float[Tensor, "b g m d"], value: Float[Tensor, "b g m d"], rule: Rule | None
) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n"]]:
    """Return the attention output and the log-sum-exp of each query's scores. A rule of None hides nothing.

    A query that may attend to no key gets the output 0 and the log-sum-exp ``-inf``.

    >>> q, k = torch.randn(2, 4, 100, 16), torch.randn(2, 2, 150, 16)  # two query heads share a key/value head
    >>> out, lse = reference_forward(q, k, k, rule=None)
    >>> out.shape, lse.shape
    (torch.Size([2, 4, 100, 16]), torch.Size([2, 4, 100]))
    """
    scale, group_size = 1 / math.sqrt(query.shape[-1]), query.shape[1] // key.shape[1]
    n, m = query.shape[2], key.shape[2]
    out, lse = torch.zeros_like(query), query.new_full(query.shape[:3], -math.inf)
    for b in range(len(query)):  # one sequence at a time: matrices are over (heads, rows, width)
        k, v = (x[b].repeat_interleave(group_size, dim=0) for x in (key, value))
        for rows in blocks(n, BLOCK_QUERIES):
            q = query[b, :, rows]
            row_max = q.new_full((*q.shape[:2], 1), -math.inf)
            row_sum, row_out = torch.zeros_like(row_max), torch.zeros_like(q)
            for keys, mask in visible_tiles(rule, b, rows, n, m, q.device):
                scores = (scale * q @ k[:, keys].mT).masked_fill(~mask, -math.inf)
                new_max = torch.maximum(row_max, scores.amax(dim=-1, keepdim=True))
                finite_max = new_max.masked_fill(new_max == -math.inf, 0.0)  # -inf - -inf would be NaN
                weights, shrink = torch.exp(scores - finite_max), torch.exp(row_max - finite_max)
                row_sum = shrink * row_sum + weights.sum(dim=-1, keepdim=True)
                row_out = shrink * row_out + weights @ v[:, keys]
                row_max = new_max
            has_keys = row_sum != 0
            out[b, :, rows] = torch.where(has_keys, row_out / row_sum, 0.0)
            lse[b, :, rows] = torch.where(has_keys, row_max + row_sum.log(), -math.inf)[..., 0]
    return out, lse


def reference_backward(
    query: Float[Tensor, "b h n d"],
    key: Float[Tensor, "b g m d"],
    value: Float[Tensor, "b g m d"],
    rule: Rule | None,
    out: Float[Tensor, "b h n d"],
    lse: Float[Tensor, "b h n"],
    grad_out: Float[Tensor, "b h n d"],
    grad_lse: Float[Tensor, "b h n"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value; ``out`` and ``lse`` are what :func:`reference_forward` returned."""
    scale, group_size = 1 / math.sqrt(query.shape[-1]), query.shape[1] // key.shape[1]
    n, m = query.shape[2], key.shape[2]
    grad_query, grad_key, grad_value = (torch.zeros_like(x) for x in (query, key, value))
    delta = (grad_out * out).sum(dim=-1) - grad_lse
    for b in range(len(query)):
        k, v = (x[b].repeat_interleave(group_size, dim=0) for x in (key, value))
        for rows in blocks(n, BLOCK_QUERIES):
            q, grad_o = query[b, :, rows], grad_out[b, :, rows]
            for keys, mask in visible_tiles(rule, b, rows, n, m, q.device):
                scores = scale * q @ k[:, keys].mT
                weights = torch.where(mask, torch.exp(scores - lse[b, :, rows, None]), 0.0)
                grad_scores = weights * (grad_o @ v[:, keys].mT - delta[b, :, rows, None])
                grad_query[b, :, rows] += scale * grad_scores @ k[:, keys]
                grad_key[b, :, keys] += sum_over_group(scale * grad_scores.mT @ q, group_size)
                grad_value[b, :, keys] += sum_over_group(weights.mT @ grad_o, group_size)
    return grad_query, grad_key, grad_value


def blocks(n: int, size: int) -> Iterator[slice]:
    """Cut ``n`` positions into slices of at most ``size``."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def visible_tiles(
    rule: Rule | None, b: int, rows: slice, n: int, m: int, device: torch.device
) -> Iterator[tuple[slice, Bool[Tensor, "*#h rows keys"]]]:
    """Yield the blocks of keys to which these rows of sequence ``b`` attend, each with the mask of the tile."""
    rule = Full() if rule is None else rule.for_sequence(b)
    positions = range(rows.start + m - n, rows.stop + m - n)  # the last query is at the position of the last key
    for keys in blocks(m, BLOCK_KEYS):
        if rule.coverage(positions, range(keys.start, keys.stop)) is not Coverage.EMPTY:
            yield keys, rule.tile(positions, range(keys.start, keys.stop), device=device)


def sum_over_group(grad: Float[Tensor, "h m d"], group_size: int) -> Float[Tensor, "g m d"]:
    """Add up the gradients of the query heads that share a key/value head."""
    return grad.unflatten(0, (-1, group_size)).sum(dim=1)
