"""Attention that skips what a rule hides: one function for windows, Longformer, BigBird, prefixes, packed documents."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.attention import attention
from lessons_lib.efficient.call_shape import check_heads, check_over_scores, rows_and_columns
from lessons_lib.rules import Rule, Seen, as_rule, takes_rules
from lessons_lib.shapes import check_size

# Smaller blocks pay for Python, larger ones compute more scores that the rule hides.
BLOCK = 128


@takes_rules
def skipping_attention(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv m d_k"],
    value: Float[Tensor, "*batch_kv m d_v"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"],
    *,
    block: int = BLOCK,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "*batch n d_v"]:
    r"""Attend under a mask as :func:`lessons_lib.attention.attention` does, without the blocks of scores that it hides.

    Queries and keys are cut into blocks of :math:`B`. Each block of queries gathers the blocks of keys of which it sees
    anything, attends to those, and hides what the rule hides inside them; a block that sees nothing returns zeros. So
    there are :math:`B^2` scores for each visit instead of :math:`n m`, on the way forward and on the way back:
    :func:`visited_blocks` counts them. A window :math:`w` has :math:`w / B + 2` visits for each block at most, whatever
    :math:`n`.

    Where the memory matters more than the pieces' simplicity, :func:`lessons_lib.flash.flash_attention` skips by the
    same rules.

    Args:
        mask: the rule. A Boolean table is taken too, but is itself quadratic.
        block: number of positions in a block, :math:`B`. Any ``n`` and ``m``: the last blocks may be shorter.
        scale, bias, dropout_p: as :func:`lessons_lib.attention.attention`; a bias over ``(n, m)`` is quadratic itself.

    Raises:
        ValueError: as :func:`lessons_lib.attention.attention`, or if the leading axes differ by more than grouped
            heads, or ``block`` is not a positive integer.
    """
    check_heads(query, key, value)
    check_over_scores(query, key, mask, bias)
    n, m = query.shape[-2], key.shape[-2]
    rule = as_rule(mask, m)
    check_size("block", block, at_least=1)
    keys, values = key.split(block, dim=-2), value.split(block, dim=-2)
    biases = _cut(bias, m, block, -(-n // block))
    outs, tables = [], {}
    for row, q in enumerate(query.split(block, dim=-2)):
        places = range(row * block + m - n, row * block + m - n + q.shape[-2])
        visits = _visits(rule, places, m, block)
        if not visits:
            outs.append(q.new_zeros(*q.shape[:-1], value.shape[-1]))
            continue
        k, v = (torch.cat([blocks[column] for column in visits], dim=-2) for blocks in (keys, values))
        seen = _hiding(rule, places, visits, m, block, q.device, tables)
        added = None if biases is None else torch.cat([biases[row][column] for column in visits], dim=-1)
        outs.append(attention(q, k, v, seen, scale=scale, bias=added, dropout_p=dropout_p))
    return torch.cat(outs, dim=-2)


def visited_blocks(rule: Rule, n: int, m: int | None = None, *, block: int = BLOCK) -> int:
    """Return how many blocks of scores :func:`skipping_attention` computes, each ``block * block`` or smaller.

    Raises:
        ValueError: if the rule does not fit ``n`` queries and ``m`` keys.
    """
    m = n if m is None else m
    rule.check_sizes(n, m)
    starts = range(m - n, m, block)
    return sum(len(_visits(rule, range(start, min(start + block, m)), m, block)) for start in starts)


# --- parts ----------------------------------------------------------------------------------------------------------


def _visits(rule: Rule, places: range, m: int, block: int) -> dict[int, Seen]:
    """Which blocks of keys the queries at these places see anything of, in order, and how much."""
    touched = {
        column: None for span in rule.keys(places, m) for column in range(span.start // block, -(-span.stop // block))
    }
    seen = {column: rule.sees(places, _keys(column, m, block)) for column in touched}
    return {column: much for column, much in seen.items() if much is not Seen.NONE}


def _hiding(
    rule: Rule,
    places: range,
    visits: dict[int, Seen],
    m: int,
    block: int,
    device: torch.device,
    tables: dict[tuple, Tensor],
) -> Tensor | None:
    """The tables of the blocks visited, side by side; None if nothing is hidden in any.

    Where only distances matter most rows of blocks look alike: ``tables`` keeps what was made for one.
    """
    if all(much is Seen.ALL for much in visits.values()):
        return None
    parts = [(_keys(column, m, block), much) for column, much in visits.items()]
    alike = (len(places), *((keys.start - places.start, len(keys)) for keys, _ in parts)) if rule.is_relative else None
    if alike in tables:
        return tables[alike]
    table = torch.ones(*rule.leading, len(places), sum(len(keys) for keys, _ in parts), dtype=torch.bool, device=device)
    start = 0
    for keys, much in parts:
        if much is Seen.SOME:
            table[..., start : start + len(keys)] = rule.tile(places, keys, device=device)
        start += len(keys)
    if alike is not None:
        tables[alike] = table
    return table


def _keys(column: int, m: int, block: int) -> range:
    return range(column * block, min((column + 1) * block, m))


def _cut(over_scores: Tensor | None, m: int, block: int, n_rows: int) -> list[tuple[Tensor, ...]] | None:
    """A bias cut into the blocks of scores that it lies over.

    Slices would do, but the gradient of each is as large as the whole: cut like this, it is as large as the block.
    """
    if over_scores is None:
        return None
    over_scores = rows_and_columns(over_scores, m)
    rows = [over_scores] * n_rows if over_scores.shape[-2] == 1 else over_scores.split(block, dim=-2)
    return [row.split(block, dim=-1) for row in rows]
