"""Functions for implementations of attention that take rules: check a rule, simplify it, list the tiles to compute."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from lessons_lib.attention.rules.by_content import LeftPadding, Padding
from lessons_lib.attention.rules.by_position import Band, Full
from lessons_lib.attention.rules.coverage import Coverage
from lessons_lib.attention.rules.ranges import merge_ranges
from lessons_lib.attention.rules.rule import Rule, as_rule, conjuncts
from lessons_lib.foundations.validation import broadcasts_to, check_mask

F = TypeVar("F", bound=Callable[..., Any])


def check_fits_scores(mask: Rule, scores: Sequence[int]) -> None:
    """Check that a rule fits scores of the shape ``(*batch, n, m)``. The rule's tensors may be on any device.

    >>> check_fits_scores(Full(), (2, 4, 5, 5))

    Raises:
        ValueError: if the rule was made for other sizes, or its leading axes would enlarge the scores.
    """
    *leading, n, m = scores
    mask.check_sizes(n, m)
    if not broadcasts_to(mask.batch_shape, leading):
        raise ValueError(
            f"mask must broadcast to the scores, {tuple(scores)}, without enlarging them, "
            f"got a rule over {(*mask.batch_shape, n, m)}"
        )


def rule_for_scores(mask: Rule | Tensor, scores: Tensor) -> Rule:
    """Return a mask, a rule or a Boolean table that broadcasts to these scores, as a rule that fits them.

    >>> rule_for_scores(torch.ones(5, 1, dtype=torch.bool), torch.zeros(2, 5, 3)).to_mask(5, 3).shape
    torch.Size([5, 3])

    Raises:
        ValueError: as :func:`check_fits_scores`, or :func:`lessons_lib.foundations.validation.check_mask` for a table.
    """
    if isinstance(mask, Tensor):
        check_mask(mask, scores)
        return as_rule(mask, scores.shape[-1])
    rule = as_rule(mask)
    check_fits_scores(rule, scores.shape)
    return rule


def hides_whole_keys(rule: Rule) -> bool:
    """Return whether the rule consists of padding alone, so that it is the same for every query.

    >>> hides_whole_keys(Padding(torch.tensor([3, 5])) & Full())
    True
    """
    return all(isinstance(part, Padding | LeftPadding | Full) for part in conjuncts(rule))


def as_band(rule: Rule, n: int, m: int) -> Band | None:
    """Return the single band that a rule is equal to over ``n`` queries and ``m`` keys, or None if it is not a band.

    A bound that hides nothing there is left out: a single causal query, at the last key, may attend to all keys.

    >>> as_band(Band(None, 0) & Band(3, 3), 8, 8)
    Band(left=3, right=0)
    """
    left = right = None
    for part in conjuncts(rule):
        if not isinstance(part, Band):
            return None
        left, right = _smaller(left, part.left), _smaller(right, part.right)
    return Band(
        None if left is None or left >= m - 1 else left,
        None if right is None or right >= n - 1 else right,
    )


def tiles(rule: Rule, rows: range, m: int, block: int) -> Iterator[tuple[range, Coverage]]:
    """Yield the tiles to compute for queries at the positions ``rows``: at most ``block`` keys each, with coverage.

    Empty tiles are left out. Ranges at most half a block apart are merged: a small tile costs as much as a large one.

    >>> [keys for keys, _ in tiles(Band(3, 0), range(8, 12), 16, 4)]
    [range(5, 9), range(9, 12)]
    """
    for span in merge_ranges(rule.key_ranges(rows, m), gap=block // 2):
        for start in range(span.start, span.stop, block):
            keys = range(start, min(start + block, span.stop))
            seen = rule.coverage(rows, keys)
            if seen is not Coverage.EMPTY:
                yield keys, seen


# --- which implementations take rules ---------------------------------------------------------------------------------


def declare_rule_support(implementation: F) -> F:
    """Mark an implementation of attention that takes rules and works on their tiles, without the whole table."""
    implementation.supports_rules = True  # type: ignore[attr-defined]
    return implementation


def supports_rules(implementation: Callable[..., Any]) -> bool:
    """Return whether an implementation was marked by :func:`declare_rule_support`, alone or in a ``functools.partial``.

    >>> supports_rules(torch.nn.functional.scaled_dot_product_attention)
    False
    """
    while hasattr(implementation, "func"):
        implementation = implementation.func  # type: ignore[attr-defined]
    return getattr(implementation, "supports_rules", False)


def mask_for_implementation(
    implementation: Callable[..., Any],
    mask: Rule | Tensor | None,
    n: int,
    m: int,
    *,
    device: torch.device | str | None = None,
) -> Rule | Tensor | None:
    """Return the mask in the form that an implementation takes: a rule if it supports rules, else the rule's table.

    >>> mask_for_implementation(torch.nn.functional.scaled_dot_product_attention, Full(), 1, 2)
    tensor([[True, True]])
    """
    return mask.to_mask(n, m, device=device) if isinstance(mask, Rule) and not supports_rules(implementation) else mask


# --- helpers ----------------------------------------------------------------------------------------------------------


def _smaller(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
