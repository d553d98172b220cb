"""What implementations ask of a rule: whether it fits, what it comes to, which tiles to visit; and who asks at all."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from lessons_lib.rules.by_content import LeftPadding, Padding
from lessons_lib.rules.by_position import Band, Everything
from lessons_lib.rules.ranges import joined
from lessons_lib.rules.rule import Rule, Seen, as_rule, conjuncts
from lessons_lib.shapes import broadcasts_to, check_mask

F = TypeVar("F", bound=Callable[..., Any])


def check_over(mask: Rule, scores: Sequence[int]) -> None:
    """Refuse a rule that does not fit scores of this shape ``(*batch, n, m)``. Its own tensors may lie anywhere.

    Raises:
        ValueError: if the sizes are not those the rule was made for, or its leading axes would enlarge the scores.
    """
    *leading, n, m = scores
    mask.check_sizes(n, m)
    if not broadcasts_to(mask.leading, leading):
        raise ValueError(
            f"mask must broadcast to the scores, {tuple(scores)}, without enlarging them, "
            f"got a rule over {(*mask.leading, n, m)}"
        )


def rule_over(mask: Rule | Tensor, scores: Tensor) -> Rule:
    """Return a mask as a rule that lies over these scores: itself, or a Boolean table that broadcasts to them.

    Raises:
        ValueError: as :func:`check_over`, or :func:`lessons_lib.shapes.check_mask` for a table.
    """
    if isinstance(mask, Tensor):
        check_mask(mask, scores)
        return as_rule(mask, scores.shape[-1])
    rule = as_rule(mask)
    check_over(rule, scores.shape)
    return rule


def hides_whole_keys(rule: Rule) -> bool:
    """Return whether the rule says nothing but which keys exist: the same for every query."""
    return all(isinstance(part, Padding | LeftPadding | Everything) for part in conjuncts(rule))


def as_band(rule: Rule, n: int, m: int) -> Band | None:
    """Return the one band that a rule comes to over ``n`` queries and ``m`` keys, or None if it is anything else.

    A bound that hides nothing there is left out: a single causal query, at the last key, sees all.
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


def tiles(rule: Rule, rows: range, m: int, block: int) -> Iterator[tuple[range, Seen]]:
    """Cut what the rows see of ``m`` keys into ranges of at most ``block`` keys; those seen by no row are left out.

    Ranges less than half a block apart are taken together: a small tile costs as much as a large one.
    """
    for span in joined(rule.keys(rows, m), gap=block // 2):
        for start in range(span.start, span.stop, block):
            keys = range(start, min(start + block, span.stop))
            seen = rule.sees(rows, keys)
            if seen is not Seen.NONE:
                yield keys, seen


# --- who asks ---------------------------------------------------------------------------------------------------------


def takes_rules(implementation: F) -> F:
    """Mark an implementation of attention that asks a rule about tiles, and never for the whole table."""
    implementation.takes_rules = True  # type: ignore[attr-defined]
    return implementation


def asks_rules(implementation: Callable[..., Any]) -> bool:
    """Return whether it was marked with :func:`takes_rules`; a ``functools.partial`` takes what its function takes."""
    while hasattr(implementation, "func"):
        implementation = implementation.func  # type: ignore[attr-defined]
    return getattr(implementation, "takes_rules", False)


def as_taken_by(
    implementation: Callable[..., Any],
    mask: Rule | Tensor | None,
    n: int,
    m: int,
    *,
    device: torch.device | str | None = None,
) -> Rule | Tensor | None:
    """Return the mask as the implementation takes it: a rule if it asks rules (:func:`takes_rules`), else the table."""
    return mask.tensor(n, m, device=device) if isinstance(mask, Rule) and not asks_rules(implementation) else mask


# --- parts ------------------------------------------------------------------------------------------------------------


def _smaller(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
