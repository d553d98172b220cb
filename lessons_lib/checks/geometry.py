"""Checks of the exercises on geometry."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.attention.attention import attention
from lessons_lib.checks import ask, check, compare, normal


@check
def cosine_attention(
    answer: Callable[[Tensor, Tensor, Tensor, float], Tensor], *, seed: int = 0, cases: int = 4
) -> None:
    """Check attention whose scores are cosine similarities times a factor."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, h, n, m, d_k, d_v = (torch.randperm(7, generator=generator)[:6] + 2).tolist()
        b, n, m = {2: (b, 1, m), 3: (1, n, 1)}.get(case % 4, (b, n, m))
        leading = [(), (b,), (b, h), (b,)][case % 4]
        q, k, v = (
            torch.randn(*leading, rows, width, generator=generator, dtype=torch.float64)
            for rows, width in ((n, d_k), (m, d_k), (m, d_v))
        )
        beta = float(torch.rand((), generator=generator, dtype=torch.float64)) * 4 + 1.5
        where = f"n={n}, m={m}, d_k={d_k}, d_v={d_v}, leading axes {leading}, beta={beta:.3g}"
        compare(
            "cosine_attention",
            ask("cosine_attention", answer, q, k, v, beta, where=where),
            attention(_unit(q), _unit(k), v, scale=beta),
            {
                "these are dot products; divide every query and every key by its length": attention(
                    q, k, v, scale=beta
                ),
                "the keys are not normalised; divide each key by its length too": attention(_unit(q), k, v, scale=beta),
                "the queries are not normalised; divide each query by its length too": attention(
                    q, _unit(k), v, scale=beta
                ),
                "compute each length over the last axis, the entries of one vector": attention(
                    q / q.norm(dim=-2, keepdim=True), k / k.norm(dim=-2, keepdim=True), v, scale=beta
                ),
                "divide each vector by its own length, not by the norm of the whole tensor": attention(
                    q / q.norm(), k / k.norm(), v, scale=beta
                ),
                "multiply the cosines by beta; beta is an inverse temperature": attention(
                    _unit(q), _unit(k), v, scale=1 / beta
                ),
                "beta is ignored": attention(_unit(q), _unit(k), v, scale=1.0),
                "do not divide by sqrt(d_k) as well; the only factor is beta": attention(
                    _unit(q), _unit(k), v, scale=beta / math.sqrt(d_k)
                ),
                "the softmax runs over the keys, the last axis, so that the weights of each query sum to one": (
                    (beta * _unit(q) @ _unit(k).mT).softmax(-2) @ v
                ),
                "the square root of the sum of squares is missing": [
                    attention(q / q.square().sum(-1, keepdim=True), k / k.square().sum(-1, keepdim=True), v, scale=beta)
                ],
                "a small number added to a length changes the result; leave it out": [
                    attention(
                        q / (q.norm(dim=-1, keepdim=True) + eps),
                        k / (k.norm(dim=-1, keepdim=True) + eps),
                        v,
                        scale=beta,
                    )
                    for eps in (1e-3, 1e-4, 1e-5, 1e-6)
                ],
                "do not normalise the values; normalise only queries and keys": attention(
                    _unit(q), _unit(k), _unit(v), scale=beta
                ),
            },
            where=where,
        )


@check
def additive_scores(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 4
) -> None:
    """Check the scores w . tanh(W_q q + W_k k) of all queries with all keys."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, h, n, m, d_k, d_a = (torch.randperm(7, generator=generator)[:6] + 2).tolist()
        n, d_a = {2: (1, d_a), 3: (n, 1)}.get(case % 4, (n, d_a))
        leading = ((), (b,), (b, h))[case % 3]
        q, k = (torch.randn(*leading, rows, d_k, generator=generator, dtype=torch.float64) for rows in (n, m))
        w_q, w_k = torch.randn(2, d_a, d_k, generator=generator, dtype=torch.float64)
        w = torch.randn(d_a, generator=generator, dtype=torch.float64)
        where = f"n={n}, m={m}, d_k={d_k}, d_a={d_a}, leading axes {leading}"
        got = ask("additive_scores", answer, q, k, w_q, w_k, w, where=where)
        from_query, from_key = (q @ w_q.mT)[..., :, None, :], (k @ w_k.mT)[..., None, :, :]
        swapped = (q @ w_k.mT)[..., :, None, :] + (k @ w_q.mT)[..., None, :, :]
        wanted = (from_query + from_key).tanh() @ w
        assert not (isinstance(got, Tensor) and got.shape == wanted.mT.shape), (
            f"the scores have one row per query and one column per key, shape {tuple(wanted.shape)}; "
            f"got {tuple(got.shape)} ({where})"
        )
        compare(
            "additive_scores",
            got,
            wanted,
            {
                "the tanh is missing": (from_query + from_key) @ w,
                "apply the tanh before the product with w, not after it": ((from_query + from_key) @ w).tanh(),
                "apply one tanh to the sum of query and key, not one tanh to each of them": (
                    from_query.tanh() + from_key.tanh()
                )
                @ w,
                "add the projected query and key; do not multiply them": (from_query * from_key).tanh() @ w,
                "W_q and W_k are exchanged: W_q projects the queries and W_k the keys": swapped.tanh() @ w,
                "w is missing: its entries are the weights of the hidden units": (from_query + from_key).tanh().sum(-1),
            },
            where=where,
        )


@check
def can_win(answer: Callable[[Tensor], Tensor], *, seed: int = 0, cases: int = 8) -> None:
    """Check which keys in the plane have the largest dot product with at least one query."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        k, corner, queries, mistakes = _distinguishing_keys(generator)
        if case % 8 == 5:  # three keys that are not on a line: each of them can win
            k = normal(3, 2, generator=generator)
            corner, queries = _corners(k)
            mistakes = {}
        where = f"{len(k)} keys"
        got = ask("can_win", answer, k, where=where)
        if isinstance(got, (list, tuple)) and all(isinstance(entry, bool) for entry in got):
            got = torch.tensor(got)
        known = any(isinstance(got, Tensor) and torch.equal(got.bool(), mask) for mask in mistakes.values())
        if isinstance(got, Tensor) and got.shape == corner.shape and not known:
            for j in (got.bool() ^ corner).nonzero().flatten().tolist():
                x, y = queries[j].tolist()
                assert not corner[j], f"key {j} can win: try the query ({x:.7f}, {y:.7f}) ({where})"
                raise AssertionError(f"key {j} lies in the convex hull of the others, so it never wins ({where})")
        wrong = {sentence: mask.double() for sentence, mask in mistakes.items()}
        compare("can_win", got, corner.double(), wrong, where=where)


def _distinguishing_keys(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Return keys, the correct result and known mistakes that all differ."""
    while True:
        m = int(torch.randint(5, 12, (), generator=generator))
        keys, middle = normal(m, 2, generator=generator), normal(2, generator=generator)
        k = _with_a_narrow_cone(keys + middle, generator)
        corner, queries = _corners(k)
        mistakes = {
            "the longest key wins for some queries, but other keys win for other queries": k.norm(dim=-1)
            == k.norm(dim=-1).max(),
            "this tests only the query equal to the key; the key may win for another query": (k @ k.mT).argmax(-1)
            == torch.arange(len(k)),
            "the keys with extreme coordinates win, but other keys can win too": _extreme_keys(k),
            "the result is inverted: these keys never win": ~corner,
            "not every key can win: a key inside the convex hull of the others never wins": torch.ones(
                len(k), dtype=torch.bool
            ),
            "the gap between the last direction and the first is missing: angles are periodic": corner & ~_across(k),
        }
        different = len({tuple(mask.tolist()) for mask in (corner, *mistakes.values())}) == 1 + len(mistakes)
        if different and int((~corner).sum()) > 1 and int((corner & _across(k)).sum()) > 1:
            return k, corner, queries, mistakes


def _with_a_narrow_cone(k: Tensor, generator: torch.Generator) -> Tensor:
    """Add a key just outside an edge of the convex hull, which wins in a cone of 1e-4 radians, and shuffle the keys.

    A point at distance h outside the middle of an edge of length l makes a turn of 4h/l between its two edges.
    """
    corner, _ = _corners(k)
    around = k[corner] - k[corner].mean(dim=0)
    around = k[corner][torch.atan2(around[:, 1], around[:, 0]).argsort()]
    one = int(torch.randint(len(around), (), generator=generator))
    first, second = around[one - 1], around[one]
    along = second - first
    outside = (first + second) / 2 + 1e-4 / 4 * torch.stack([along[1], -along[0]])
    return torch.cat([k, outside[None]])[torch.randperm(len(k) + 1, generator=generator)]


def _across(k: Tensor) -> Tensor:
    """Return the points whose sorted directions have no gap above pi, except the gap at the jump of ``atan2``."""
    seen = [(torch.cat([k[:j], k[j + 1 :]]) - k[j]).unbind(-1) for j in range(len(k))]
    return torch.stack([torch.atan2(y, x).sort().values.diff().max() <= math.pi for x, y in seen])


def _corners(k: Tensor) -> tuple[Tensor, Tensor]:
    """Return which points are corners of the convex hull, and for each point a direction away from all others.

    From a corner, the directions to all other points span less than half a turn. The returned direction is the middle
    of the largest gap between these directions.
    """
    is_corner, away = [], []
    for j in range(len(k)):
        others = torch.cat([k[:j], k[j + 1 :]]) - k[j]
        directions = torch.atan2(others[:, 1], others[:, 0]).sort().values
        gaps = torch.cat([directions[1:], directions[:1] + 2 * math.pi]) - directions
        widest = gaps.argmax()
        middle = directions[widest] + gaps[widest] / 2
        is_corner.append(gaps[widest] > math.pi)
        away.append(torch.stack([middle.cos(), middle.sin()]))
    return torch.stack(is_corner), torch.stack(away)


def _extreme_keys(k: Tensor) -> Tensor:
    return ((k == k.amax(0)) | (k == k.amin(0))).any(-1)


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)
