"""Answers to the exercises on less than every pair: right ones in any style, wrong ones with what they must be told."""

import torch

from lessons_lib.attention.rules import Causal, GlobalTokens, Window
from lessons_lib.checks import sparse_and_linear as check
from lessons_lib.efficient.delta import delta_rule
from lessons_lib.efficient.linear import average_by_features

# --- right answers ----------------------------------------------------------------------------------------------------


def keys_first(a, b, v):
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


def write(state, key, value, beta, decay):
    faded = decay * state
    return faded + beta * torch.outer(key, value - faded.T @ key)


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
    check.keys_first: [
        keys_first,
        pairs_first,
        by_loops,
        average_by_features,
        lambda *given: keys_first(*(x.float() for x in given)),
    ],
    check.write: [
        write,
        by_the_library,
        as_a_product,
        entry_by_entry,
        lambda state, key, value, beta, decay: write(state.float(), key.float(), value.float(), beta, decay),
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

WRONG[check.keys_first] = [
    (lambda a, b, v: a @ (b.T @ v), "is not divided out"),
    (lambda a, b, v: a @ (b.T @ v) / len(b), "not by the number of keys"),
    (lambda a, b, v: a @ (b.T @ v) / (a @ b.T).sum(), "one sum for all queries"),
    (lambda a, b, v: a @ (b.T @ v) / (a @ b.T).sum(-1).mean(), "the mean of all sums"),
    (lambda a, b, v: ((a @ b.T) / (a @ b.T).sum(0)) @ v, "not those of a key"),
    (lambda a, b, v: (a @ b.T).softmax(-1) @ v, "no softmax"),
    (lambda a, b, v: a @ (b.T @ v) / (a @ b.sum(0)).sqrt()[:, None], "not by its root"),
    (
        lambda a, b, v: pairs_first(a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True), v),
        "no cosine",
    ),
    (
        lambda a, b, v: a / a.norm(dim=-1, keepdim=True) @ ((b / b.norm(dim=-1, keepdim=True)).T @ v),
        "no cosine",
    ),
    (lambda a, b, v: v.mean(0).expand(len(a), -1), "the plain average"),
    (lambda a, b, v: a @ (b.T @ v) / a.sum(-1, keepdim=True), "not over features"),
    (lambda a, b, v: keys_first(a, b, v).T, "must have shape"),
    (lambda a, b, v: keys_first(a, b, v)[0], "must have shape"),
    (lambda a, b, v: keys_first(a, b, v) * (1 + 1e-3), "the output"),
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

WRONG[check.write] = [
    (lambda s, k, v, b, d: d * s + b * torch.outer(k, v - s.T @ k), "after it has faded"),
    (lambda s, k, v, b, d: write(s, k, v, b, 1.0), "the state fades first"),
    (lambda s, k, v, b, d: s + b * torch.outer(k, v - d * s.T @ k), "the state fades first"),
    (lambda s, k, v, b, d: d * write(s, k, v, b, 1.0), "not what is written"),
    (lambda s, k, v, b, d: d * s + b * torch.outer(k, v), "not the value"),
    (lambda s, k, v, b, d: d * s + torch.outer(k, v), "not the value"),
    (lambda s, k, v, b, d: write(s, k, v, 1.0, d), "only the share beta"),
    (lambda s, k, v, b, d: d * s + torch.outer(k, b * v - d * s.T @ k), "on what is taken away"),
    (lambda s, k, v, b, d: d * s + torch.outer(k, v - b * d * s.T @ k), "on what is added"),
    (lambda s, k, v, b, d: d * s + b * torch.outer(k, d * s.T @ k - v), "value less what is recalled"),
    (lambda s, k, v, b, d: d * s + b * torch.outer(k, d * s.T @ k + v), "taken away, not added"),
    (lambda s, k, v, b, d: write(s, k / k.norm(), v, b, d), "not normalised"),
    (lambda s, k, v, b, d: d * s + b * torch.outer(k / k.norm(), v - d * s.T @ k), "not normalised"),
    (lambda s, k, v, b, d: d * s + b * torch.outer(k, v - d * s.T @ k / k.norm()), "not normalised"),
    (lambda s, k, v, b, d: b * torch.outer(k, v - d * s.T @ k), "the old state is missing"),
    (lambda s, k, v, b, d: write(s, k, v, b, d).T @ k, "must have shape"),
    (lambda s, k, v, b, d: write(s, k, v, b, d).T, "must have shape"),
    (lambda s, k, v, b, d: s.mul_(d).add_(b * torch.outer(k, v - s.T @ k)), "changed its arguments"),
    (lambda s, k, v, b, d: None, "did you forget to return"),
]

WRONG[check.count_pairs] = [
    (lambda n, w, g: count_pairs(n, w, 0) + count_pairs(n, 0, g), "counts once"),
    (
        lambda n, w, g: sum((0 <= i - j < w) or j < g for i in range(n) for j in range(n)),
        "the future is hidden",
    ),
    (
        lambda n, w, g: sum((0 <= i - j < w) or j < g or i < g for i in range(n) for j in range(n)),
        "the future is hidden",
    ),
    (lambda n, w, g: sum(abs(i - j) < w or j < g for i in range(n) for j in range(n)), "the future is hidden"),
    (lambda n, w, g: count_pairs(n, w, 0), "besides the window"),
    (lambda n, w, g: count_pairs(n, 0, g), "besides the first g words"),
    (lambda n, w, g: count_pairs(n, w + 1, g), "w counts the word itself"),
    (lambda n, w, g: count_pairs(n, w - 1, g), "w counts the word itself"),
    (lambda n, w, g: count_pairs(n, w, g + 1), "the first g words are no more than g"),
    (lambda n, w, g: (w + g) * (w + g + 1) // 2 + (n - w - g) * (w + g), "cut w \\+ g off at n"),
    (lambda n, w, g: (lambda s: s * (s + 1) // 2 + (n - s) * s)(min(n, w) + g), "cut w \\+ g off at n"),
    (lambda n, w, g: count_pairs(n, w, g) - n, "a word sees itself"),
    (lambda n, w, g: n * (w + g), "have fewer before them"),
    (lambda n, w, g: n * w, "have fewer before them"),
    (lambda n, w, g: n * (n + 1) // 2, "most of them are not seen"),
    (lambda n, w, g: n * n, "the future among them"),
    (lambda n, w, g: 17, "count_pairs is 17, wanted "),
    (lambda n, w, g: str(count_pairs(n, w, g)), "must be a number, got str"),
    (lambda n, w, g: [count_pairs(n, w, g)], "must be a number, got list"),
    (lambda n, w, g: None, "did you forget to return"),
]
