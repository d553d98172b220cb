"""Answers to the exercises on geometry: correct answers in any style, wrong answers with their messages."""

import math

import torch
from torch.nn.functional import normalize

from lessons_lib.analysis.geometry import cosine_similarity
from lessons_lib.attention.attention import attention
from lessons_lib.attention.softmax import softmax
from lessons_lib.checks import geometry as check

# --- right answers ----------------------------------------------------------------------------------------------------


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def cosine_attention(q, k, v, beta):
    return softmax(beta * cosine_similarity(q, k)) @ v


def additive_scores(q, k, w_q, w_k, w):
    return ((q @ w_q.mT)[..., :, None, :] + (k @ w_k.mT)[..., None, :, :]).tanh() @ w


def additive_scores_in_loops(q, k, w_q, w_k, w):
    rows = [
        torch.stack([(q[..., i, :] @ w_q.T + k[..., j, :] @ w_k.T).tanh() @ w for j in range(k.shape[-2])], -1)
        for i in range(q.shape[-2])
    ]
    return torch.stack(rows, -2)


def can_win(k):
    """Candidates for the best query of a key: right angles to a line through it and another key."""
    found = torch.zeros(len(k), dtype=torch.bool)
    for j in range(len(k)):
        across = (k - k[j])[torch.arange(len(k)) != j] @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=k.dtype)
        found[j] = any(((k - k[j]) @ (sign * u) < 1e-12).all() for u in across for sign in (1, -1))
    return found


def many_directions(k):
    turn = torch.linspace(0, 2 * math.pi, 400_001, dtype=k.dtype)
    winners = (torch.stack([turn.cos(), turn.sin()], -1) @ k.T).argmax(-1)
    return torch.bincount(winners, minlength=len(k)) > 0


RIGHT = {
    check.cosine_attention: [
        cosine_attention,
        lambda q, k, v, beta: attention(unit(q), unit(k), v, scale=beta),
        lambda q, k, v, beta: cosine_attention(q, k, v, beta).float(),
    ],
    check.additive_scores: [additive_scores, additive_scores_in_loops],
    check.can_win: [can_win, lambda k: can_win(k).double(), lambda k: can_win(k).tolist()],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


WRONG[check.cosine_attention] = [
    (lambda q, k, v, b: attention(q, k, v, scale=b), "these are dot products"),
    (lambda q, k, v, b: attention(unit(q), k, v, scale=b), "the keys are not normalised"),
    (lambda q, k, v, b: attention(q, unit(k), v, scale=b), "the queries are not normalised"),
    (lambda q, k, v, b: attention(unit(q.mT).mT, unit(k.mT).mT, v, scale=b), "the last axis"),
    (lambda q, k, v, b: attention(q / q.norm(), k / k.norm(), v, scale=b), "norm of the whole tensor"),
    (lambda q, k, v, b: attention(unit(q), unit(k), v, scale=1 / b), "inverse temperature"),
    (lambda q, k, v, b: attention(unit(q), unit(k), v, scale=1.0), "beta is ignored"),
    (lambda q, k, v, b: attention(unit(q), unit(k), v, scale=b * q.shape[-1] ** -0.5), "do not divide by sqrt"),
    (lambda q, k, v, b: attention(unit(q), unit(k), unit(v), scale=b), "do not normalise the values"),
    (lambda q, k, v, b: softmax(b * cosine_similarity(q, k)), "must have shape"),
    (lambda q, k, v, b: v.mean(-2, keepdim=True).expand(*q.shape[:-1], -1), "wrong values"),
]


def parts(q, k, w_q, w_k):
    return (q @ w_q.mT)[..., :, None, :], (k @ w_k.mT)[..., None, :, :]


WRONG[check.additive_scores] = [
    (lambda q, k, a, b, w: sum(parts(q, k, a, b)) @ w, "the tanh is missing"),
    (lambda q, k, a, b, w: (sum(parts(q, k, a, b)) @ w).tanh(), "apply the tanh before the product"),
    (lambda q, k, a, b, w: sum(part.tanh() for part in parts(q, k, a, b)) @ w, "not one tanh to each of them"),
    (lambda q, k, a, b, w: math.prod(parts(q, k, a, b)).tanh() @ w, "do not multiply them"),
    (lambda q, k, a, b, w: sum(parts(q, k, b, a)).tanh() @ w, "W_q projects the queries"),
    (lambda q, k, a, b, w: sum(parts(q, k, a, b)).tanh().sum(-1), "w is missing"),
    (lambda q, k, a, b, w: additive_scores(q, k, a, b, w).mT, "one row per query and one column per key"),
    (lambda q, k, a, b, w: sum(parts(q, k, a, b)).sigmoid() @ w, "wrong values"),
    (lambda q, k, a, b, w: sum(parts(q, k, a, b)).tanh(), "must have shape"),
]


def all_but_the_first_winner(k):
    right = can_win(k)
    right[right.nonzero()[0]] = False
    return right


def one_too_many(k):
    right = can_win(k)
    right[(~right).nonzero()[:1]] = True
    return right


WRONG[check.can_win] = [
    (lambda k: torch.ones(len(k), dtype=torch.bool), "not every key can win"),
    (lambda k: k.norm(dim=-1) == k.norm(dim=-1).max(), "the longest key"),
    (lambda k: (k @ k.T).argmax(-1) == torch.arange(len(k)), "only the query equal to the key"),
    (lambda k: ((k == k.amax(0)) | (k == k.amin(0))).any(-1), "extreme coordinates"),
    (lambda k: ~can_win(k), "the result is inverted"),
    (all_but_the_first_winner, r"can win: try the query \("),
    (one_too_many, "lies in the convex hull of the others"),
    (lambda k: torch.zeros(len(k)), r"can win: try the query \("),
    (lambda k: can_win(k).nonzero().flatten(), "must have shape"),
    (lambda k: can_win(k).int().tolist(), "must be a tensor"),
]


# --- further ones -----------------------------------------------------------------------------------------------------


def by_gaps(k, *, around=True):
    """The exercise's hint; without going around the circle it is wrong."""
    found = []
    for j in range(len(k)):
        away = k[[i for i in range(len(k)) if i != j]] - k[j]
        seen = torch.atan2(away[:, 1], away[:, 0]).sort().values
        gaps = [*(seen[1:] - seen[:-1]).tolist(), *([float(seen[0] - seen[-1]) + 2 * math.pi] if around else [])]
        found.append(max(gaps) > math.pi)
    return torch.tensor(found)


def by_turning_around(k):
    """Andrew's monotone chain: the corners from left to right, below and above."""
    points = sorted((x, y, j) for j, (x, y) in enumerate(k.tolist()))
    corners = set()
    for order in (points, points[::-1]):
        chain = []
        for x, y, j in order:
            while len(chain) > 1:
                (x0, y0, _), (x1, y1, _) = chain[-2:]
                if (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) > 0:
                    break
                chain.pop()
            chain.append((x, y, j))
        corners |= {j for *_, j in chain}
    return torch.tensor([j in corners for j in range(len(k))])


def tried_directions(number):
    def answer(k):
        turn = 2 * math.pi * torch.arange(number, dtype=k.dtype) / number
        winners = (torch.stack([turn.cos(), turn.sin()], -1) @ k.T).argmax(-1)
        return torch.bincount(winners, minlength=len(k)) > 0

    return answer


def with_eps(eps):
    def answer(q, k, v, beta):
        return attention(*(x / (x.norm(dim=-1, keepdim=True) + eps) for x in (q, k)), v, scale=beta)

    return answer


RIGHT[check.cosine_attention] += [
    lambda q, k, v, beta: (beta * normalize(q, dim=-1) @ normalize(k, dim=-1).mT).softmax(-1) @ v,
    lambda q, k, v, beta: attention(unit(q.float()), unit(k.float()), v.float(), scale=beta),
    with_eps(1e-12),
]
RIGHT[check.additive_scores] += [
    lambda q, k, a, b, w: torch.einsum("...nma,a->...nm", sum(parts(q, k, a, b)).tanh(), w),
    lambda *given: additive_scores(*(x.float() for x in given)),
]
RIGHT[check.can_win] += [by_gaps, by_turning_around, lambda k: by_gaps(k.float())]
WRONG[check.cosine_attention] += [
    (lambda q, k, v, b: (b * unit(q) @ unit(k).mT).softmax(-2) @ v, "the softmax runs over the keys"),
    (
        lambda q, k, v, b: attention(q / (q * q).sum(-1)[..., None], k / (k * k).sum(-1)[..., None], v, scale=b),
        "the square root",
    ),
    (with_eps(1e-6), "a small number added to a length"),
    (with_eps(1e-3), "a small number added to a length"),
]
WRONG[check.additive_scores] += [
    (lambda q, k, a, b, w: (sum(parts(q, k, a, b)).tanh() * w).mean(-1), "wrong values"),
    (lambda q, k, a, b, w: (parts(q, k, a, b)[0] - parts(q, k, a, b)[1]).tanh() @ w, "wrong values"),
]
WRONG[check.can_win] += [
    (lambda k: by_gaps(k, around=False), "angles are periodic"),
    (tried_directions(3600), r"can win: try the query \("),
    (tried_directions(720), r"can win: try the query \("),
    (lambda k: by_gaps(k - k.mean(0)).logical_or(k.norm(dim=-1) == k.norm(dim=-1).min()), "lies in the convex hull"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def with_one_leading_axis_at_most(q, k, v, beta):
    keys = unit(k).transpose(1, 2) if k.dim() > 2 else unit(k).T
    return (beta * unit(q) @ keys).softmax(-1) @ v


WRONG[check.cosine_attention] += [(with_one_leading_axis_at_most, "size|dimension|shape")]
WRONG[check.can_win] += [(lambda k: by_gaps(k) & (len(k) > 3), "key [0-2] can win: try the query")]
