"""Attention masks: the pictures of the rules of :mod:`lessons_lib.rules`, as Boolean tables over positions.

True means "this query may attend to this key". Combine masks with ``&`` (both must allow) and ``|`` (one suffices),
invert them with ``~``. A table takes ``n * m`` bytes; where a sequence is long, give the rule itself.

A mask over positions alone is ``(n, m)`` and broadcasts over batch and heads. A mask that differs from sequence to
sequence carries an axis of size one for the heads, ``(batch, 1, n, m)``, so that it fits scores over
``(batch, heads, n, m)`` and never lines up the batch with the heads by accident. For scores without heads, drop that
axis: ``mask.squeeze(1)``.

Masks are made on ``device`` (the CPU when omitted), or where the tensor that they are made from lies.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lessons_lib.rules import (
    BigBird,
    Blocks,
    Causal,
    Dilated,
    Documents,
    Everything,
    GlobalTokens,
    Padding,
    Prefix,
    Random,
    Rule,
    Window,
)
from lessons_lib.shapes import check_size

# --- by position ----------------------------------------------------------------------------------------------------


def bidirectional(n: int, m: int | None = None, *, device: torch.device | str | None = None) -> Bool[Tensor, "{n} m"]:
    """Allow every query to see every key: the picture of :class:`~lessons_lib.rules.Everything`.

    >>> bidirectional(2, 3).shape
    torch.Size([2, 3])

    Raises:
        ValueError: if ``n`` or ``m`` is not a positive integer.
    """
    return Everything().tensor(n, m, device=device)


def causal(n: int, m: int | None = None, *, device: torch.device | str | None = None) -> Bool[Tensor, "{n} m"]:
    r"""Allow each query to see its own position and everything before it: key ``j`` if ``j <= i + m - n``.

    When there are more keys than queries (decoding with a cache) the queries are the *last* ``n`` positions.
    PyTorch's ``is_causal=True`` aligns to the *first* ones instead and agrees only when ``n = m``.

    >>> causal(2, 5).int()
    tensor([[1, 1, 1, 1, 0],
            [1, 1, 1, 1, 1]], dtype=torch.int32)

    Raises:
        ValueError: if there are more queries than keys, or a size is not a positive integer.
    """
    table = Causal().tensor(n, m, device=device)
    if n > table.shape[-1]:
        raise ValueError(f"n queries cannot be the last positions of fewer keys: n must be at most m, got {n} and {m}")
    return table


def sliding_window(
    n: int, window: int, *, causal: bool = True, device: torch.device | str | None = None
) -> Bool[Tensor, "{n} {n}"]:
    """Allow each query the ``window`` most recent positions, its own included; not causal, ``|i - j| < window``.

    ``window`` counts visible keys, so 1 is the query alone; not causal, up to ``2 * window - 1`` keys are visible.
    Elsewhere a window may count the *earlier* keys only, or the keys on either side together.

    >>> sliding_window(5, 3).sum(dim=-1)
    tensor([1, 2, 3, 3, 3])

    Raises:
        ValueError: if ``n`` or ``window`` is not a positive integer.
    """
    return _from_here_on(Window(window), causal).tensor(n, device=device)


def dilated(
    n: int, window: int, dilation: int, *, causal: bool = True, device: torch.device | str | None = None
) -> Bool[Tensor, "{n} {n}"]:
    """Allow each query ``window`` positions spaced by ``dilation``: its own, ``i - dilation``, ``i - 2 * dilation`` …

    Not causal, as many on the other side too. A dilation of 1 is :func:`sliding_window`.

    >>> dilated(7, 3, 2)[-1].int()
    tensor([0, 0, 1, 0, 1, 0, 1], dtype=torch.int32)

    Raises:
        ValueError: if ``n``, ``window`` or ``dilation`` is not a positive integer.
    """
    return _from_here_on(Dilated(window, dilation), causal).tensor(n, device=device)


def block(n: int, size: int, *, device: torch.device | str | None = None) -> Bool[Tensor, "{n} {n}"]:
    """Cut the sequence into blocks of ``size`` and let each see itself alone; the last block may be shorter.

    >>> block(5, 2).sum(dim=-1)
    tensor([2, 2, 2, 2, 1])

    Raises:
        ValueError: if ``n`` or ``size`` is not a positive integer.
    """
    return Blocks(size).tensor(n, device=device)


def prefix(n: int, prefix: int, *, device: torch.device | str | None = None) -> Bool[Tensor, "{n} {n}"]:
    """Allow everyone to see the first ``prefix`` positions, and the rest to be causal (a prompt, then an answer).

    >>> prefix(4, 2).sum(dim=-1)
    tensor([2, 2, 3, 4])

    Raises:
        ValueError: if ``n`` is not a positive integer or ``prefix`` is not in ``0 .. n``.
    """
    return Prefix(prefix).tensor(n, device=device)


def global_tokens(
    n: int, positions: Sequence[int], *, device: torch.device | str | None = None
) -> Bool[Tensor, "{n} {n}"]:
    """Let the given positions see all and be seen by all, and no one else see anything: made to be joined with ``|``.

    >>> global_tokens(4, [1]).sum(dim=-1)
    tensor([1, 4, 1, 1])

    Raises:
        ValueError: if ``n`` is not a positive integer or a position is not in ``0 .. n - 1``.
    """
    return GlobalTokens(positions).tensor(n, device=device)


# --- by content -----------------------------------------------------------------------------------------------------


def padding(lengths: Int[Tensor, "*batch"], m: int) -> Bool[Tensor, "... {m}"]:
    """Hide the padding: sequence ``b`` of the batch has ``lengths[b]`` real keys, and no query sees the rest.

    Returns ``(batch, 1, 1, m)`` for lengths over ``(batch,)`` (every head and every query sees the same keys), and
    ``(1, m)`` for a single length. Padded *queries* still attend; their outputs are for the caller to drop.

    >>> padding(torch.tensor([3, 5]), 5).shape
    torch.Size([2, 1, 1, 5])

    Raises:
        ValueError: if lengths are not integers in ``0 .. m``, have more than one axis, or ``m`` is not positive.
    """
    return Padding(lengths).tensor(1, m)


def documents(ids: Int[Tensor, "*batch n"]) -> Bool[Tensor, "... n n"]:
    """Allow a query to see the keys of its own document: several documents packed into one sequence stay apart.

    Returns ``(n, n)`` for ids over ``(n,)`` and ``(batch, 1, n, n)`` for ids over ``(batch, n)``.

    >>> documents(torch.tensor([[4, 4, 7], [1, 2, 2]])).shape
    torch.Size([2, 1, 3, 3])

    Raises:
        ValueError: if ids are not integers over ``(n,)`` or ``(batch, n)``.
    """
    rule = Documents(ids)
    return rule.tensor(rule.ids.shape[-1])


# --- by chance, and the mixtures of the long-context papers ---------------------------------------------------------


def random_sparse(
    n: int, density: float, generator: torch.Generator, *, device: torch.device | str | None = None
) -> Bool[Tensor, "{n} {n}"]:
    """Allow each pair with probability ``density``, and each query itself always, so that no row is empty.

    The expected :func:`density` is therefore ``density + (1 - density) / n``. The mask is drawn on the generator's
    device and stays there unless ``device`` says otherwise.

    >>> random_sparse(5, 0.0, torch.Generator()).sum(dim=-1)
    tensor([1, 1, 1, 1, 1])

    Raises:
        ValueError: if ``n`` is not a positive integer or ``density`` is not in ``0 .. 1``.
    """
    return Random(n, density, generator).tensor(n, device=device)


def longformer(
    n: int, *, window: int, global_positions: Sequence[int], device: torch.device | str | None = None
) -> Bool[Tensor, "{n} {n}"]:
    """Join a symmetric :func:`sliding_window` and :func:`global_tokens` (Longformer [1]_).

    >>> longformer(6, window=2, global_positions=[0]).sum(dim=-1)
    tensor([6, 3, 4, 4, 4, 3])

    Raises:
        ValueError: as its two parts.

    .. [1] Beltagy et al., *Longformer*, 2020. arXiv:2004.05150.
    """
    return (Window(window) | GlobalTokens(global_positions)).tensor(n, device=device)


def big_bird(
    n: int,
    *,
    window: int,
    n_global: int,
    n_random: int,
    generator: torch.Generator,
    block: int = 1,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "{n} {n}"]:
    """Join a symmetric window, ``n_global`` leading tokens as global ones and ``n_random`` random keys (BigBird [1]_).

    Each query draws its random keys among those that the other two parts hide from it (all of these, if fewer are
    left). With ``block > 1`` the sequence is cut into blocks and every count is a count of blocks, as in fast
    implementations.

    >>> big_bird(6, window=1, n_global=1, n_random=1, generator=torch.Generator()).sum(dim=-1)
    tensor([6, 3, 3, 3, 3, 3])

    Raises:
        ValueError: if a count is out of range, or ``block`` does not divide ``n``.

    .. [1] Zaheer et al., *Big Bird*, 2020. arXiv:2007.14062.
    """
    check_size("n", n, at_least=1)
    check_size("block", block, at_least=1)
    if n % block:
        raise ValueError(f"block must divide n, got block={block} and n={n}")
    counts = {"window": window, "n_global": n_global, "n_random": n_random}
    return BigBird(n // block, **counts, generator=generator, block=block).tensor(n, device=device)


# --- what a mask allows ---------------------------------------------------------------------------------------------


def density(mask: Bool[Tensor, "*batch n m"]) -> Float[Tensor, "*batch"]:
    """Return the share of pairs that the mask allows: what a kernel that skips the rest would have to compute.

    Raises:
        ValueError: if the mask is not Boolean over ``(*batch, n, m)`` with at least one pair.
    """
    _check_mask_of_pairs(mask)
    n, m = mask.shape[-2:]
    return mask.count_nonzero(dim=(-2, -1)) / (n * m)


def reach(mask: Bool[Tensor, "*batch n n"], n_layers: int, *, residual: bool = True) -> Bool[Tensor, "*batch n n"]:
    r"""Return which inputs can influence which outputs after ``n_layers`` of attention under the mask.

    .. math:: R = (M \lor I)^L \quad\text{in Boolean arithmetic},\qquad R_{ij} = 1 \iff \text{input } j
              \text{ can influence output } i

    The identity is the residual stream, which carries every position forward; without it, :math:`R = M^L`.
    After no layers each output is its own input.

    Raises:
        ValueError: if the mask is not Boolean and square, or ``n_layers`` is not an integer of at least 0.
    """
    _check_mask_of_pairs(mask)
    check_size("n_layers", n_layers, at_least=0)
    n, m = mask.shape[-2:]
    if n != m:
        raise ValueError(f"mask must be square, so that layers can follow one another, got {tuple(mask.shape)}")
    identity = torch.eye(n, dtype=torch.bool, device=mask.device).expand_as(mask)
    layer = (mask | identity if residual else mask).float()
    reached = identity.float()
    for _ in range(n_layers):
        reached = (layer @ reached > 0).float()
    return reached > 0


# --- parts ----------------------------------------------------------------------------------------------------------


def _from_here_on(rule: Rule, causal: bool) -> Rule:
    return Causal() & rule if causal else rule


def _check_mask_of_pairs(mask: Tensor) -> None:
    if mask.dtype != torch.bool or mask.ndim < 2 or not mask.numel():
        raise ValueError(f"mask must be Boolean over (*batch, n, m), got {mask.dtype} over {tuple(mask.shape)}")
