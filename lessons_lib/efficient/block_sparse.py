"""Block-sparse attention: the sequence is cut into blocks, and a small mask says which block looks at which.

Longformer's window with global tokens [1]_ and BigBird's window, global and random tokens [2]_ are run this way. Here
every count is a count of blocks, as in :func:`lessons_lib.masks.big_bird`. With a fixed number of window, global and
random blocks, each block of queries visits a fixed number of blocks of keys (the few global ones visit all): the number
of visits grows as ``n``. :func:`visited_blocks` counts them. A layout is the rule :class:`lessons_lib.rules.Layout`.

.. [1] Beltagy et al., *Longformer*, 2020. arXiv:2004.05150.
.. [2] Zaheer et al., *Big Bird*, 2020. arXiv:2007.14062.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib import masks
from lessons_lib.attention import Pattern, attention_pattern, declares_pattern
from lessons_lib.efficient import skipping
from lessons_lib.efficient.call_shape import check_heads, check_over_scores
from lessons_lib.efficient.skipping import skipping_attention
from lessons_lib.rules import Causal, Layout, Rule, as_rule, takes_rules
from lessons_lib.shapes import check_size

# --- layouts --------------------------------------------------------------------------------------------------------


def longformer_layout(
    n_blocks: int, *, window: int, global_blocks: Sequence[int], device: torch.device | str | None = None
) -> Bool[Tensor, "{n_blocks} {n_blocks}"]:
    """Return Longformer's layout: a symmetric window of blocks, and blocks that see all and are seen by all.

    Raises:
        ValueError: as :func:`lessons_lib.masks.longformer`, whose mask over blocks it is.
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
    """Return BigBird's layout: a symmetric window, leading global blocks, and random blocks for each block.

    Expanded by :func:`expand_layout` it is ``masks.big_bird(n, ..., block=block)`` from the same generator.

    Raises:
        ValueError: as :func:`lessons_lib.masks.big_bird`.
    """
    return masks.big_bird(
        n_blocks, window=window, n_global=n_global, n_random=n_random, generator=generator, device=device
    )


def expand_layout(
    layout: Bool[Tensor, "n_blocks m_blocks"], block: int, n: int, m: int | None = None, *, causal: bool = False
) -> Bool[Tensor, "{n} m"]:
    """Return the mask over single positions that a layout stands for: what the result is specified by.

    Raises:
        ValueError: if the layout does not have one row for each block of queries and one column for each of keys, the
            last of which may be shorter, or if ``causal`` and there are not as many keys as queries.
    """
    m = n if m is None else m
    _check_layout(layout, block, n, m, causal)
    return _rule(layout, block, n, m, causal).tensor(n, m)


def visited_blocks(layout: Bool[Tensor, "n_blocks m_blocks"], *, causal: bool = False) -> int:
    """Return how many blocks of scores :func:`block_sparse_attention` computes, each ``block * block`` or smaller.

    Raises:
        ValueError: if the layout is not a Boolean matrix.
    """
    rule, (n, m) = Layout(layout, 1), layout.shape
    return skipping.visited_blocks(Causal() & rule if causal else rule, n, m, block=1)


# --- attention ------------------------------------------------------------------------------------------------------


def _pattern(
    query: Tensor,
    key: Tensor,
    mask: Rule | Tensor | None = None,
    *,
    layout: Tensor,
    block: int,
    causal: bool = False,
    **options: Any,
) -> Pattern:
    n, m = query.shape[-2], key.shape[-2]
    _check_layout(layout, block, n, m, causal)
    rule = _rule(layout, block, n, m, causal)
    return attention_pattern(query, key, rule if mask is None else rule & as_rule(mask, m), **options)


@takes_rules
@declares_pattern(_pattern)
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
    r"""Attend under ``expand_layout(layout, block, n, m)``, without the blocks of scores that it hides.

    .. math:: o_i = \sum_{j :\, L_{\lfloor i / B \rfloor, \lfloor j / B \rfloor}} a_{ij} v_j

    It is :func:`~lessons_lib.efficient.skipping.skipping_attention` by the rule ``Layout(layout, block)``: each block
    of queries gathers the blocks of keys in its row of the layout :math:`L` and attends to those.

    Args:
        mask: hides more than the layout does: a rule, or a Boolean table, which is itself quadratic.
        layout: True where a block of queries may look at a block of keys. One for all batches and heads.
        block: number of positions in a block, :math:`B`.
        causal: hide what comes after a query, inside blocks too; blocks that lie wholly after it are skipped.
        scale, bias, dropout_p: as :func:`lessons_lib.attention.attention`.

    Raises:
        ValueError: as :func:`lessons_lib.attention.attention` and :func:`expand_layout`, or if the leading axes differ
            by more than grouped heads.
    """
    check_heads(query, key, value)
    check_over_scores(query, key, mask, bias)
    n, m = query.shape[-2], key.shape[-2]
    _check_layout(layout, block, n, m, causal)

    rule = _rule(layout, block, n, m, causal)
    rule = rule if mask is None else rule & as_rule(mask, m)
    return skipping_attention(query, key, value, rule, block=block, scale=scale, bias=bias, dropout_p=dropout_p)


# --- parts ----------------------------------------------------------------------------------------------------------


def _rule(layout: Tensor, block: int, n: int, m: int, causal: bool) -> Rule:
    rule = Layout(layout, block, first=m - n)
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
