"""Answers to the exercises on sparse and linear attention: correct in several styles, and wrong with their message."""

import torch

from lessons_lib.attention.rules import Causal, GlobalTokens, Window
from lessons_lib.checks import sparse_and_linear as check
from lessons_lib.efficient.delta import delta_rule
from lessons_lib.efficient.linear import average_by_features

# --- correct answers --------------------------------------------------------------------------------------------------


def linear_attention(a, b, v):
    return (a @ (b.T @ v)) / (a @ b.sum(0))[:, None]


def pairs_first(a, b, v):
    weights = a @ b.T
    return (weights / weights.sum(-1, keepdim=True)) @ v


def by_loops(a, b, v):
    out = torch.zeros(len(a), v.shape[1], dtype=v.dtype)
    for i in range(len(a)):
        weights = [sum(a[i, c] * b[j, c] for c in range(a.shape[1])) for j in range(len(b))]
        for j, weight in enumerate(weights):
            out[i] += weight / sum(weights) * v[j]
    return out


def delta_update(state, key, value, beta, decay):
    decayed = decay * state
    return decayed + beta * torch.outer(key, value - decayed.T @ key)


def by_the_library(state, key, value, beta, decay):
    beta, log_decay = torch.tensor([beta], dtype=state.dtype), torch.tensor([decay], dtype=state.dtype).log()
    return delta_rule(key[None], key[None], value[None], beta, log_decay=log_decay, initial=state)[1]


def as_a_product(state, key, value, beta, decay):
    kept = torch.eye(len(key), dtype=key.dtype) - beta * torch.outer(key, key)
    return decay * kept @ state + beta * torch.outer(key, value)


def entry_by_entry(state, key, value, beta, decay):
    rows = []
    for i in range(len(key)):
        row = []
        for j in range(len(value)):
            says = sum(decay * state[c, j] * key[c] for c in range(len(key)))
            row.append(decay * state[i, j] + beta * key[i] * (value[j] - says))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def count_pairs(n, w, g):
    return sum(min(i, w + g) for i in range(1, n + 1))


def one_by_one(n, w, g):
    return sum(j <= i and (i - j < w or j < g) for i in range(n) for j in range(n))


def by_a_rule(n, w, g):
    rule = Window(w) | GlobalTokens(range(min(g, n))) if g else Window(w)
    return (Causal() & rule).to_mask(n).sum()


def in_closed_form(n, w, g):
    s = min(n, w + g)
    return s * (s + 1) // 2 + (n - s) * s


RIGHT = {
    check.linear_attention: [
        linear_attention,
        pairs_first,
        by_loops,
        average_by_features,
        lambda *given: linear_attention(*(x.float() for x in given)),
    ],
    check.delta_update: [
        delta_update,
        by_the_library,
        as_a_product,
        entry_by_entry,
        lambda state, key, value, beta, decay: delta_update(state.float(), key.float(), value.float(), beta, decay),
    ],
    check.count_pairs: [
        count_pairs,
        one_by_one,
        by_a_rule,
        in_closed_form,
        lambda *given: float(count_pairs(*given)),
    ],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}

WRONG[check.linear_attention] = [
    (lambda a, b, v: a @ (b.T @ v), "the output is wrong: divide by the sum of the weights \\("),
    (lambda a, b, v: a @ (b.T @ v) / len(b), "not by the number of keys"),
    (lambda a, b, v: a @ (b.T @ v) / (a @ b.T).sum(), "by one sum for all queries"),
    (lambda a, b, v: a @ (b.T @ v) / (a @ b.T).sum(-1).mean(), "by the mean of all sums"),
    (lambda a, b, v: ((a @ b.T) / (a @ b.T).sum(0)) @ v, "not over the queries of a key"),
    (lambda a, b, v: (a @ b.T).softmax(-1) @ v, "do not use softmax"),
    (lambda a, b, v: a @ (b.T @ v) / (a @ b.sum(0)).sqrt()[:, None], "not by its square root"),
    (
        lambda a, b, v: pairs_first(a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True), v),
        "do not use cosines",
    ),
    (
        lambda a, b, v: a / a.norm(dim=-1, keepdim=True) @ ((b / b.norm(dim=-1, keepdim=True)).T @ v),
        "do not use cosines",
    ),
    (lambda a, b, v: v.mean(0).expand(len(a), -1), "you return the plain average"),
    (lambda a, b, v: a @ (b.T @ v) / a.sum(-1, keepdim=True), "not the features of the query"),
    (lambda a, b, v: linear_attention(a, b, v).T, "must have shape"),
    (lambda a, b, v: linear_attention(a, b, v)[0], "must have shape"),
    (lambda a, b, v: linear_attention(a, b, v) * (1 + 1e-3), "the output"),
    (
        lambda a, b, v: a @ (b.T @ v) / (a @ b.sum(0) + 1e-3)[:, None],
        "too small everywhere.* added to what is divided by",
    ),
    (
        lambda a, b, v: a @ (b.T @ v) / (a @ b.sum(0) + 1e-4)[:, None],
        "too small everywhere.* added to what is divided by",
    ),
    (lambda a, b, v: None, "did you forget to return"),
]

WRONG[check.delta_update] = [
    (lambda s, k, v, b, d: d * s + b * torch.outer(k, v - s.T @ k), "what the decayed state returns"),
    (lambda s, k, v, b, d: delta_update(s, k, v, b, 1.0), "multiply the state by decay first"),
    (lambda s, k, v, b, d: s + b * torch.outer(k, v - d * s.T @ k), "multiply the state by decay first"),
    (lambda s, k, v, b, d: d * delta_update(s, k, v, b, 1.0), "not the new pair"),
    (lambda s, k, v, b, d: d * s + b * torch.outer(k, v), "not the value"),
    (lambda s, k, v, b, d: d * s + torch.outer(k, v), "not the value"),
    (lambda s, k, v, b, d: delta_update(s, k, v, 1.0, d), "the difference is multiplied by beta"),
    (lambda s, k, v, b, d: d * s + torch.outer(k, b * v - d * s.T @ k), "multiply the recalled value by beta"),
    (lambda s, k, v, b, d: d * s + torch.outer(k, v - b * d * s.T @ k), "multiply the given value by beta"),
    (lambda s, k, v, b, d: d * s + b * torch.outer(k, d * s.T @ k - v), "the value minus the recalled value"),
    (lambda s, k, v, b, d: d * s + b * torch.outer(k, d * s.T @ k + v), "subtracted, not added"),
    (lambda s, k, v, b, d: delta_update(s, k / k.norm(), v, b, d), "not normalised"),
    (lambda s, k, v, b, d: d * s + b * torch.outer(k / k.norm(), v - d * s.T @ k), "not normalised"),
    (lambda s, k, v, b, d: d * s + b * torch.outer(k, v - d * s.T @ k / k.norm()), "not normalised"),
    (lambda s, k, v, b, d: b * torch.outer(k, v - d * s.T @ k), "the old state is missing"),
    (lambda s, k, v, b, d: delta_update(s, k, v, b, d).T @ k, "must have shape"),
    (lambda s, k, v, b, d: delta_update(s, k, v, b, d).T, "must have shape"),
    (lambda s, k, v, b, d: s.mul_(d).add_(b * torch.outer(k, v - s.T @ k)), "changed its arguments"),
    (lambda s, k, v, b, d: None, "did you forget to return"),
]

WRONG[check.count_pairs] = [
    (lambda n, w, g: count_pairs(n, w, 0) + count_pairs(n, 0, g), "counts once"),
    (
        lambda n, w, g: sum((0 <= i - j < w) or j < g for i in range(n) for j in range(n)),
        "the mask is causal",
    ),
    (
        lambda n, w, g: sum((0 <= i - j < w) or j < g or i < g for i in range(n) for j in range(n)),
        "the mask is causal",
    ),
    (lambda n, w, g: sum(abs(i - j) < w or j < g for i in range(n) for j in range(n)), "the mask is causal"),
    (lambda n, w, g: count_pairs(n, w, 0), "also attends to the first g tokens"),
    (lambda n, w, g: count_pairs(n, 0, g), "also attends to its window"),
    (lambda n, w, g: count_pairs(n, w + 1, g), "w counts the token itself"),
    (lambda n, w, g: count_pairs(n, w - 1, g), "w counts the token itself"),
    (lambda n, w, g: count_pairs(n, w, g + 1), "only the first g tokens are global"),
    (lambda n, w, g: (w + g) * (w + g + 1) // 2 + (n - w - g) * (w + g), "limit the sum w \\+ g to n"),
    (lambda n, w, g: (lambda s: s * (s + 1) // 2 + (n - s) * s)(min(n, w) + g), "limit the sum w \\+ g to n"),
    (lambda n, w, g: count_pairs(n, w, g) - n, "each token attends to itself"),
    (lambda n, w, g: n * (w + g), "have fewer tokens before them"),
    (lambda n, w, g: n * w, "have fewer tokens before them"),
    (lambda n, w, g: n * (n + 1) // 2, "most of them are masked"),
    (lambda n, w, g: n * n, "including future keys"),
    (lambda n, w, g: 17, "count_pairs is 17, wanted "),
    (lambda n, w, g: str(count_pairs(n, w, g)), "must be a number, got str"),
    (lambda n, w, g: [count_pairs(n, w, g)], "must be a number, got list"),
    (lambda n, w, g: None, "did you forget to return"),
]
