"""Attention masks as Boolean tensors, made from the rules of :mod:`lessons_lib.attention.rules`.

True means "this query may attend to this key". Combine masks with ``&`` (both must allow) and ``|`` (one suffices),
invert them with ``~``. A mask takes ``n * m`` bytes; for long sequences, pass the rule itself to attention.

A mask that depends on positions alone is ``(n, m)`` and broadcasts over batch and heads. A mask that differs between
sequences has an axis of size one for the heads, ``(batch, 1, n, m)``, so that it fits scores over
``(batch, heads, n, m)`` and the batch is never aligned with the heads by accident. For scores without heads, drop that
axis: ``mask.squeeze(1)``.

Masks are made on ``device`` (the CPU when omitted), or on the device of the tensor that they are made from.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lessons_lib.attention.rules import (
    BigBird,
    Blocks,
    Causal,
    Dilated,
    Documents,
    Full,
    GlobalTokens,
    Neighbourhood2D,
    Padding,
    Prefix,
    Random,
    Rule,
    SharedPrefix,
    Window,
)
from lessons_lib.foundations.validation import check_size

# --- by position ----------------------------------------------------------------------------------------------------


def bidirectional(n: int, m: int | None = None, *, device: torch.device | str | None = None) -> Bool[Tensor, "{n} m"]:
    """Return a mask in which every query may attend to every key, from :class:`~lessons_lib.attention.rules.Full`.

    >>> bidirectional(2, 3).shape
    torch.Size([2, 3])

    Raises:
        ValueError: if ``n`` or ``m`` is not a positive integer.
    """
    return Full().to_mask(n, m, device=device)


def causal(n: int, m: int | None = None, *, device: torch.device | str | None = None) -> Bool[Tensor, "{n} m"]:
    r"""Return a causal mask: each query attends to its own position and all earlier ones, ``j <= i + m - n``.

    With more keys than queries (decoding with a cache), the queries are the *last* ``n`` positions. PyTorch's
    ``is_causal=True`` takes them as the *first* ``n`` positions instead, so the two agree only if ``n = m``.

    >>> causal(2, 5).int()
    tensor([[1, 1, 1, 1, 0],
            [1, 1, 1, 1, 1]], dtype=torch.int32)

    Raises:
        ValueError: if there are more queries than keys, or a size is not a positive integer.
    """
    mask = Causal().to_mask(n, m, device=device)
    if n > mask.shape[-1]:
        raise ValueError(f"n queries cannot be the last positions of fewer keys: n must be at most m, got {n} and {m}")
    return mask


def sliding_window(
    n: int, window: int, *, causal: bool = True, device: torch.device | str | None = None
) -> Bool[Tensor, "{n} {n}"]:
    """Return a sliding-window mask: each query attends to the ``window`` most recent positions, its own included.

    With ``causal=False`` it is symmetric, ``|i - j| < window``, and each query attends to up to ``2 * window - 1``
    keys. ``window`` counts the query's own position, so that with 1 each query attends to itself alone. In other
    libraries a window may count the *earlier* keys only, or the keys on both sides together.

    >>> sliding_window(5, 3).sum(dim=-1)
    tensor([1, 2, 3, 3, 3])

    Raises:
        ValueError: if ``n`` or ``window`` is not a positive integer.
    """
    return _causal_if(causal, Window(window)).to_mask(n, device=device)


def dilated(
    n: int, window: int, dilation: int, *, causal: bool = True, device: torch.device | str | None = None
) -> Bool[Tensor, "{n} {n}"]:
    """Return a dilated window mask: ``window`` positions spaced by ``dilation``, ``i``, ``i - dilation`` and so on.

    With ``causal=False`` it is symmetric: as many positions after the query, too. With a dilation of 1 it is
    :func:`sliding_window`.

    >>> dilated(7, 3, 2)[-1].int()
    tensor([0, 0, 1, 0, 1, 0, 1], dtype=torch.int32)

    Raises:
        ValueError: if ``n``, ``window`` or ``dilation`` is not a positive integer.
    """
    return _causal_if(causal, Dilated(window, dilation)).to_mask(n, device=device)


def block(n: int, size: int, *, device: torch.device | str | None = None) -> Bool[Tensor, "{n} {n}"]:
    """Return a block-diagonal mask with blocks of ``size`` positions; the last block may be shorter.

    >>> block(5, 2).sum(dim=-1)
    tensor([2, 2, 2, 2, 1])

    Raises:
        ValueError: if ``n`` or ``size`` is not a positive integer.
    """
    return Blocks(size).to_mask(n, device=device)


def prefix(n: int, prefix: int, *, device: torch.device | str | None = None) -> Bool[Tensor, "{n} {n}"]:
    """Return a prefix mask: every query attends to the first ``prefix`` positions, and causally to the others.

    For instance, the prefix is a prompt, and the other positions are the answer.

    >>> prefix(4, 2).sum(dim=-1)
    tensor([2, 2, 3, 4])

    Raises:
        ValueError: if ``n`` is not a positive integer or ``prefix`` is not in ``0 .. n``.
    """
    return Prefix(prefix).to_mask(n, device=device)


def global_tokens(
    n: int, positions: Sequence[int], *, device: torch.device | str | None = None
) -> Bool[Tensor, "{n} {n}"]:
    """Return a mask of global tokens: queries and keys at ``positions`` attend to, and are attended by, all positions.

    All other pairs are hidden; combine it with another mask by ``|``.

    >>> global_tokens(4, [1]).sum(dim=-1)
    tensor([1, 4, 1, 1])

    Raises:
        ValueError: if ``n`` is not a positive integer or a position is not in ``0 .. n - 1``.
    """
    return GlobalTokens(positions).to_mask(n, device=device)


def neighbourhood_2d(
    height: int, width: int, radius: int, *, device: torch.device | str | None = None
) -> Bool[Tensor, "n n"]:
    """Return a mask for image patches: each attends to the patches at most ``radius`` rows and columns away.

    The ``height * width`` patches are in one sequence, row by row.

    >>> neighbourhood_2d(2, 4, radius=1).sum(dim=-1).reshape(2, 4)
    tensor([[4, 6, 6, 4],
            [4, 6, 6, 4]])

    Raises:
        ValueError: if ``height`` or ``width`` is not a positive integer, or ``radius`` not an integer of at least 0.
    """
    check_size("height", height, at_least=1)
    check_size("width", width, at_least=1)
    return Neighbourhood2D(width, radius).to_mask(height * width, device=device)


def shared_prefix(
    prefix: int, lengths: Sequence[int], *, device: torch.device | str | None = None
) -> Bool[Tensor, "n n"]:
    """Return a mask for several continuations of one prompt: each token attends to the prompt and its continuation.

    The prompt is the first ``prefix`` positions, and the continuations of these ``lengths`` follow; all are causal.

    >>> shared_prefix(2, [1, 2]).sum(dim=-1)
    tensor([1, 2, 3, 3, 4])

    Raises:
        ValueError: if ``prefix`` or a length is not an integer of at least 0, or all of them are 0.
    """
    return SharedPrefix(prefix, lengths).to_mask(prefix + sum(lengths), device=device)


# --- by content -----------------------------------------------------------------------------------------------------


def padding(lengths: Int[Tensor, "*batch"], m: int) -> Bool[Tensor, "... {m}"]:
    """Return a padding mask: in sequence ``b`` of the batch, queries attend to the first ``lengths[b]`` keys only.

    The mask is ``(batch, 1, 1, m)`` for lengths over ``(batch,)``, since all heads and queries attend to the same keys,
    and ``(1, m)`` for a single length. *Queries* in the padding attend as well; the caller must ignore their outputs.

    >>> padding(torch.tensor([3, 5]), 5).shape
    torch.Size([2, 1, 1, 5])

    Raises:
        ValueError: if lengths are not integers in ``0 .. m``, have more than one axis, or ``m`` is not positive.
    """
    return Padding(lengths).to_mask(1, m)


def documents(ids: Int[Tensor, "*batch n"], inner: Rule | None = None) -> Bool[Tensor, "... n n"]:
    """Return a document mask for packed sequences: each query attends to the keys of its own document only.

    The mask is ``(n, n)`` for ids over ``(n,)`` and ``(batch, 1, n, n)`` for ids over ``(batch, n)``. ``inner`` is a
    rule inside each document, whose positions count from the first token of the document.

    >>> documents(torch.tensor([[4, 4, 7], [1, 2, 2]])).shape
    torch.Size([2, 1, 3, 3])

    Raises:
        ValueError: if ids are not integers over ``(n,)`` or ``(batch, n)``, or ``inner`` does not fit the documents.
    """
    rule = Documents(ids) if inner is None else Documents(ids, inner)
    return rule.to_mask(rule.ids.shape[-1])


# --- random masks, and the combinations of the long-context papers --------------------------------------------------


def random_sparse(
    n: int, density: float, generator: torch.Generator, *, device: torch.device | str | None = None
) -> Bool[Tensor, "{n} {n}"]:
    """Return a random mask: each pair with probability ``density``, and the diagonal always, so that no row is empty.

    The expected :func:`density` is therefore ``density + (1 - density) / n``. The mask is drawn on the device of the
    generator, and moved to ``device`` if that is given.

    >>> random_sparse(5, 0.0, torch.Generator()).sum(dim=-1)
    tensor([1, 1, 1, 1, 1])

    Raises:
        ValueError: if ``n`` is not a positive integer or ``density`` is not in ``0 .. 1``.
    """
    return Random(n, density, generator).to_mask(n, device=device)


def longformer(
    n: int, *, window: int, global_positions: Sequence[int], device: torch.device | str | None = None
) -> Bool[Tensor, "{n} {n}"]:
    """Return the union of a symmetric :func:`sliding_window` and :func:`global_tokens` (Longformer [1]_).

    >>> longformer(6, window=2, global_positions=[0]).sum(dim=-1)
    tensor([6, 3, 4, 4, 4, 3])

    Raises:
        ValueError: as for the two masks.

    .. [1] Beltagy et al., *Longformer*, 2020. arXiv:2004.05150.
    """
    return (Window(window) | GlobalTokens(global_positions)).to_mask(n, device=device)


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
    """Return the union of a symmetric window, global tokens and random keys (BigBird [1]_).

    The first ``n_global`` tokens are global. Each query attends to ``n_random`` random keys among those that the other
    two masks hide from it (to all of these, if there are fewer). With ``block > 1`` the sequence is cut into blocks and
    every count is a count of blocks, as in fast implementations.

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
    return BigBird(n // block, **counts, generator=generator, block=block).to_mask(n, device=device)


# --- properties of a mask -------------------------------------------------------------------------------------------


def density(mask: Bool[Tensor, "*batch n m"]) -> Float[Tensor, "*batch"]:
    """Return the fraction of pairs that the mask allows, which a kernel that skips all others would have to compute.

    >>> density(causal(4))
    tensor(0.6250)

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

    The identity represents the residual stream, in which each position keeps its own input. With ``residual=False``,
    :math:`R = M^L`. After zero layers each output is its own input.

    >>> reach(sliding_window(5, 2), n_layers=2)[-1].int()  # two layers of window 2 reach 3 positions
    tensor([0, 0, 1, 1, 1], dtype=torch.int32)

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


# --- helpers --------------------------------------------------------------------------------------------------------


def _causal_if(causal: bool, rule: Rule) -> Rule:
    return Causal() & rule if causal else rule


def _check_mask_of_pairs(mask: Tensor) -> None:
    if mask.dtype != torch.bool or mask.ndim < 2 or not mask.numel():
        raise ValueError(f"mask must be Boolean over (*batch, n, m), got {mask.dtype} over {tuple(mask.shape)}")
