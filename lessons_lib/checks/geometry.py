"""Checks of the exercises on geometry."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.attention import attention
from lessons_lib.checks import ask, compare


def cosine_attention(
    answer: Callable[[Tensor, Tensor, Tensor, float], Tensor], *, seed: int = 0, cases: int = 4
) -> None:
    """Check attention whose scores are cosines times a factor."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n, m, d_k, d_v = (torch.randperm(6, generator=generator)[:5] + 2).tolist()
        leading = (b,) if case % 2 else ()
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
                "the keys keep their lengths; divide each of them too": attention(_unit(q), k, v, scale=beta),
                "the queries keep their lengths; divide each of them too": attention(q, _unit(k), v, scale=beta),
                "a length is taken over the entries of one vector, the last axis": attention(
                    q / q.norm(dim=-2, keepdim=True), k / k.norm(dim=-2, keepdim=True), v, scale=beta
                ),
                "each vector has its own length; do not divide by the norm of the whole tensor": attention(
                    q / q.norm(), k / k.norm(), v, scale=beta
                ),
                "beta multiplies the cosines, as an inverse temperature": attention(
                    _unit(q), _unit(k), v, scale=1 / beta
                ),
                "beta is ignored": attention(_unit(q), _unit(k), v, scale=1.0),
                "a cosine needs no further division by sqrt(d_k); beta is the whole factor": attention(
                    _unit(q), _unit(k), v, scale=beta / math.sqrt(d_k)
                ),
                "the values are averaged as they are; only queries and keys lose their lengths": attention(
                    _unit(q), _unit(k), _unit(v), scale=beta
                ),
            },
            where=where,
        )


def additive_scores(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 4
) -> None:
    """Check the scores w . tanh(W_q q + W_k k) of all queries with all keys."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, h, n, m, d_k, d_a = (torch.randperm(7, generator=generator)[:6] + 2).tolist()
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
                "the tanh belongs inside, before the product with w": ((from_query + from_key) @ w).tanh(),
                "one tanh of the sum, not a sum of two": (from_query.tanh() + from_key.tanh()) @ w,
                "query and key are added, not multiplied": (from_query * from_key).tanh() @ w,
                "W_q belongs to the queries and W_k to the keys": swapped.tanh() @ w,
                "w is missing: its entries weigh the hidden units": (from_query + from_key).tanh().sum(-1),
            },
            where=where,
        )


def can_win(answer: Callable[[Tensor], Tensor], *, seed: int = 0, cases: int = 8) -> None:
    """Check which keys in the plane have the largest dot product with at least one query."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(cases):
        k, corner, queries, mistakes = _telling_keys(generator)
        where = f"{len(k)} keys"
        got = ask("can_win", answer, k, where=where)
        known = any(isinstance(got, Tensor) and torch.equal(got.bool(), mask) for mask in mistakes.values())
        if isinstance(got, Tensor) and got.shape == corner.shape and not known:
            for j in (got.bool() ^ corner).nonzero().flatten().tolist():
                x, y = queries[j].tolist()
                assert not corner[j], f"key {j} can win: try the query ({x:.3f}, {y:.3f}) ({where})"
                raise AssertionError(f"key {j} lies in the hull of the others, so it never wins ({where})")
        wrong = {sentence: mask.double() for sentence, mask in mistakes.items()}
        compare("can_win", got, corner.double(), wrong, where=where)


def _telling_keys(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Keys for which the right answer and the known mistakes all differ, with these."""
    while True:
        m = int(torch.randint(5, 12, (), generator=generator))
        keys, middle = torch.randn(m, 2, generator=generator), torch.randn(2, generator=generator)
        k = (keys + middle).double()
        corner, queries = _corners(k)
        mistakes = {
            "the longest key wins some queries, but not it alone": k.norm(dim=-1) == k.norm(dim=-1).max(),
            "that asks whether a key wins where it stands; another query may suit it better": (k @ k.mT).argmax(-1)
            == torch.arange(m),
            "the keys at the far ends of the two axes win, but so do others between them": _ends(k),
            "that is the opposite: these keys never win": ~corner,
            "not every key can win: look for one inside the hull of the others": torch.ones(m, dtype=torch.bool),
        }
        if len({tuple(mask.tolist()) for mask in (corner, *mistakes.values())}) == 1 + len(mistakes):
            return k, corner, queries, mistakes


def _corners(k: Tensor) -> tuple[Tensor, Tensor]:
    """Which points are corners of their hull, and for each a direction that points away from all others.

    Seen from a corner all other points lie within less than half a turn; the direction is the middle of the rest.
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


def _ends(k: Tensor) -> Tensor:
    return ((k == k.amax(0)) | (k == k.amin(0))).any(-1)


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)
