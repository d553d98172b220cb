"""Block-sparse attention: a block mask, here called the layout, says which block of queries attends to which of keys.

Longformer's window with global tokens [1]_ and BigBird's window, global and random tokens [2]_ are computed this way.
All sizes are in blocks, as in :func:`lessons_lib.attention.masks.big_bird`. If the numbers of window, global and
random blocks are fixed, each block of queries visits a fixed number of blocks of keys, except the few global blocks,
which visit all. So the number of visited blocks, see :func:`visited_layout_blocks`, grows as ``n``. As a rule, a
layout is :class:`lessons_lib.attention.rules.BlockSparse`.

.. [1] Beltagy et al., *Longformer*, 2020. arXiv:2004.05150.
.. [2] Zaheer et al., *Big Bird*, 2020. arXiv:2007.14062.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.attention import masks
from lessons_lib.attention.attention import WeightsAndMask, attention_weights_and_mask, declare_weights
from lessons_lib.attention.rules import BlockSparse, Causal, Rule, as_rule, declare_rule_support
from lessons_lib.efficient import skipping
from lessons_lib.efficient.skipping import skipping_attention
from lessons_lib.efficient.validation import check_heads, check_mask_and_bias
from lessons_lib.foundations.validation import check_size

# --- layouts --------------------------------------------------------------------------------------------------------


def longformer_layout(
    n_blocks: int, *, window: int, global_blocks: Sequence[int], device: torch.device | str | None = None
) -> Bool[Tensor, "{n_blocks} {n_blocks}"]:
    """Return Longformer's layout: a symmetric window of blocks, and global blocks.

    A global block attends to all blocks, and all blocks attend to it. The layout is
    :func:`lessons_lib.attention.masks.longformer` over blocks.

    ::

        >>> longformer_layout(4, window=1, global_blocks=[0]).int()
        tensor([[1, 1, 1, 1],
                [1, 1, 0, 0],
                [1, 0, 1, 0],
                [1, 0, 0, 1]], dtype=torch.int32)

    Raises:
        ValueError: as :func:`lessons_lib.attention.masks.longformer`.
    """
    return masks.longformer(n_blocks, window=window, global_positions=global_blocks, device=device)


def big_bird_layout(
    n_blocks: int,
    *,
    window: int,
    n_global: int,
    n_random: int,
    generator: torch.Generator,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "{n_blocks} {n_blocks}"]:
    """Return BigBird's layout: a symmetric window, global blocks at the start, and random blocks for each block.

    :func:`expand_layout` turns it into ``masks.big_bird(n, ..., block=block)`` with the same generator.

    ::

        >>> generator = torch.Generator().manual_seed(0)
        >>> big_bird_layout(16, window=2, n_global=1, n_random=3, generator=generator).shape
        torch.Size([16, 16])

    Raises:
        ValueError: as :func:`lessons_lib.attention.masks.big_bird`.
    """
    return masks.big_bird(
        n_blocks, window=window, n_global=n_global, n_random=n_random, generator=generator, device=device
    )


def expand_layout(
    layout: Bool[Tensor, "n_blocks m_blocks"], block: int, n: int, m: int | None = None, *, causal: bool = False
) -> Bool[Tensor, "{n} m"]:
    """Return the mask over positions that a layout stands for, which defines the result of block-sparse attention.

    ::

        >>> expand_layout(torch.eye(3, dtype=torch.bool), 16, 40).shape  # the last block has 8 positions
        torch.Size([40, 40])

    Raises:
        ValueError: if the layout does not have one row for each block of queries and one column for each block of keys
            (the last block may be shorter), or if ``causal`` and the numbers of queries and keys differ.
    """
    m = n if m is None else m
    _check_layout(layout, block, n, m, causal)
    return _rule(layout, block, n, m, causal).to_mask(n, m)


def visited_layout_blocks(layout: Bool[Tensor, "n_blocks m_blocks"], *, causal: bool = False) -> int:
    """Return the number of blocks of scores that :func:`block_sparse_attention` computes, of ``block * block`` or less.

    ::

        >>> visited_layout_blocks(torch.ones(4, 4, dtype=torch.bool), causal=True)
        10

    Raises:
        ValueError: if the layout is not a Boolean matrix.
    """
    rule, (n, m) = BlockSparse(layout, 1), layout.shape
    return skipping.visited_blocks(Causal() & rule if causal else rule, n, m, block=1)


# --- attention ------------------------------------------------------------------------------------------------------


def _weights_and_mask(
    query: Tensor,
    key: Tensor,
    mask: Rule | Tensor | None = None,
    *,
    layout: Tensor,
    block: int,
    causal: bool = False,
    **options: Any,
) -> WeightsAndMask:
    n, m = query.shape[-2], key.shape[-2]
    _check_layout(layout, block, n, m, causal)
    rule = _rule(layout, block, n, m, causal)
    return attention_weights_and_mask(query, key, rule if mask is None else rule & as_rule(mask, m), **options)


@declare_rule_support
@declare_weights(_weights_and_mask)
def block_sparse_attention(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv m d_k"],
    value: Float[Tensor, "*batch_kv m d_v"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    layout: Bool[Tensor, "n_blocks m_blocks"],
    block: int,
    causal: bool = False,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "*batch n d_v"]:
    r"""Compute attention under ``expand_layout(layout, block, n, m)`` without the blocks of scores that it hides.

    .. math:: o_i = \sum_{j :\, L_{\lfloor i / B \rfloor, \lfloor j / B \rfloor}} a_{ij} v_j

    This is :func:`~lessons_lib.efficient.skipping.skipping_attention` with the rule ``BlockSparse(layout, block)``.
    Each block of queries attends to the blocks of keys in its row of the layout :math:`L`.

    ::

        >>> q, k, v = torch.randn(3, 2, 8, 64, 32)
        >>> layout = longformer_layout(4, window=2, global_blocks=[0])
        >>> block_sparse_attention(q, k, v, layout=layout, block=16).shape
        torch.Size([2, 8, 64, 32])

    Args:
        query, key, value: as :func:`lessons_lib.attention.attention.attention`.
        mask: hides further keys: a rule, or a Boolean table, which takes quadratic memory itself.
        layout: True where a block of queries may attend to a block of keys; the same for all batches and heads.
        block: number of positions in a block, :math:`B`.
        causal: hide the keys after a query, also inside a block; blocks that lie entirely after it are skipped.
        scale, bias, dropout_p: as :func:`lessons_lib.attention.attention.attention`.

    Raises:
        ValueError: as :func:`lessons_lib.attention.attention.attention` and :func:`expand_layout`, or if the leading
            axes differ by more than grouped heads.
    """
    check_heads(query, key, value)
    check_mask_and_bias(query, key, mask, bias)
    n, m = query.shape[-2], key.shape[-2]
    _check_layout(layout, block, n, m, causal)

    rule = _rule(layout, block, n, m, causal)
    rule = rule if mask is None else rule & as_rule(mask, m)
    return skipping_attention(query, key, value, rule, block=block, scale=scale, bias=bias, dropout_p=dropout_p)


# --- parts ----------------------------------------------------------------------------------------------------------


def _rule(layout: Tensor, block: int, n: int, m: int, causal: bool) -> Rule:
    rule = BlockSparse(layout, block, first=m - n)
    return Causal() & rule if causal else rule


def _check_layout(layout: Tensor, block: int, n: int, m: int, causal: bool) -> None:
    check_size("block", block, at_least=1)
    check_size("n", n, at_least=1)
    check_size("m", m, at_least=1)
    expected = -(-n // block), -(-m // block)
    if layout.dtype != torch.bool or layout.shape != expected:
        raise ValueError(
            f"layout must be Boolean over the blocks, {expected} for n={n}, m={m} and block={block}, "
            f"got {layout.dtype} over {tuple(layout.shape)}"
        )
    if causal and n != m:
        raise ValueError(f"causal needs as many keys as queries, got {n} queries and {m} keys")
