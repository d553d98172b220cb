"""Answers to the exercises on attention: correct answers in any style, wrong answers with their messages."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.attention.attention import attention, attention_weights
from lessons_lib.attention.masks import causal
from lessons_lib.checks import why_attention as check

# --- right answers ----------------------------------------------------------------------------------------------------


def look_up(q, keys, values):
    exponentials = (keys @ q).exp()
    return exponentials / exponentials.sum() @ values


def look_up_in_a_loop(q, keys, values):
    exponentials = [(q * key).sum().exp() for key in keys]
    return sum(e * value for e, value in zip(exponentials, values, strict=True)) / sum(exponentials)


def projected(x, w_q, w_k, w_v):
    return x @ w_q, x @ w_k, x @ w_v


def self_attention(*given):
    return attention(*projected(*given), scale=1.0)


def self_attention_by_look_ups(*given):
    q, k, v = projected(*given)
    return torch.stack([look_up(query, k, v) for query in q])


def causal_self_attention(*given):
    q, k, v = projected(*given)
    return torch.stack([look_up(q[i], k[: i + 1], v[: i + 1]) for i in range(len(q))])


def causal_self_attention_by_infinity(*given):
    q, k, v = projected(*given)
    return (q @ k.mT).masked_fill(~causal(len(q)), -torch.inf).softmax(-1) @ v


RIGHT = {
    check.look_up: [look_up, look_up_in_a_loop, lambda q, k, v: look_up(q, k, v).float()],
    check.self_attention: [self_attention, self_attention_by_look_ups],
    check.causal_self_attention: [causal_self_attention, causal_self_attention_by_infinity],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


WRONG[check.look_up] = [
    (lambda q, k, v: v[(k @ q).argmax()], "the hard look-up"),
    (lambda q, k, v: (k @ q).exp() @ v, "do not sum to one"),
    (lambda q, k, v: k @ q / (k @ q).sum() @ v, "not the scores"),
    (lambda q, k, v: v.mean(0), "the same weight, whatever the query"),
    (lambda q, k, v: (k @ q / len(q) ** 0.5).softmax(0) @ v, "no division by sqrt"),
    (lambda q, k, v: torch.cosine_similarity(k, q[None]).softmax(0) @ v, "do not divide by the lengths"),
    (lambda q, k, v: (-k @ q).softmax(0) @ v, "a sign is wrong"),
    (lambda q, k, v: ((k @ q).softmax(0)[:, None] * v).mean(0), "do not average them once more"),
    (lambda q, k, v: (k @ q).softmax(0), "must have shape"),
    (lambda q, k, v: v[0], "wrong values"),
]


def with_projections(wrong):
    return lambda *given: wrong(*projected(*given))


WRONG[check.self_attention] = [
    (with_projections(wrong), says)
    for wrong, says in [
        (lambda q, k, v: (q @ k.T).softmax(0) @ v, "the softmax runs over the keys"),
        (lambda q, k, v: attention(k, q, v, scale=1.0), "queries and keys are exchanged"),
        (lambda q, k, v: q @ k.T @ v, "the softmax is missing"),
        (lambda q, k, v: attention(k, k, v, scale=1.0), "w_q is ignored"),
        (lambda q, k, v: attention(q, q, v, scale=1.0), "w_k is ignored"),
        (lambda q, k, v: attention(q, k, v), "no division by sqrt"),
        (lambda q, k, v: attention_weights(q, k, scale=1.0).T @ v, "the weights are transposed"),
        (lambda q, k, v: attention(q, k, v, causal(len(q)), scale=1.0), "every word attends to every word"),
        (lambda q, k, v: (q @ k.T).exp() @ v, "do not sum to one"),
        (lambda q, k, v: attention_weights(q, k, scale=1.0), "must have shape"),
        (lambda q, k, v: v, "wrong values"),
        (lambda q, k, v: attention(q, k, v, scale=1.0).tolist(), "must be a tensor"),
    ]
]


WRONG[check.causal_self_attention] = [
    (with_projections(wrong), says)
    for wrong, says in [
        (lambda q, k, v: attention(q, k, v, scale=1.0), "the whole sentence"),
        (lambda q, k, v: attention_weights(q, k, scale=1.0).tril() @ v, "still count in the denominator"),
        (lambda q, k, v: (q @ k.T).tril().softmax(-1) @ v, "a score of zero does not hide a word"),
        (lambda q, k, v: attention(q, k, v, causal(len(q)).T, scale=1.0), "to the words after it"),
        (lambda q, k, v: attention(q, k, v, causal(len(q)).tril(-1), scale=1.0), "attends to itself too"),
        (lambda q, k, v: v.cumsum(0) / torch.arange(1, len(v) + 1)[:, None], "the scores are ignored"),
        (lambda q, k, v: attention(q, k, v, causal(len(q))), "no division by sqrt"),
        (lambda q, k, v: (q @ k.T).tril(-1).masked_fill(~causal(len(q)).tril(-1), -torch.inf).softmax(-1) @ v, "NaN"),
        (lambda q, k, v: attention(q, k, v, causal(len(q)), scale=1.0)[-1], "must have shape"),
    ]
]


# --- further ones -----------------------------------------------------------------------------------------------------

RIGHT[check.look_up] += [lambda q, k, v: torch.einsum("m,mv->v", torch.mv(k, q).log_softmax(0).exp(), v)]
RIGHT[check.self_attention] += [
    lambda *given: self_attention(*(x.float() for x in given)),
    lambda *given: scaled_dot_product_attention(*(x[None] for x in projected(*given)), scale=1.0)[0],
]
RIGHT[check.causal_self_attention] += [
    lambda *given: scaled_dot_product_attention(*(x[None] for x in projected(*given)), is_causal=True, scale=1.0)[0],
    lambda *given: causal_self_attention(*(x.float() for x in given)).double(),
]
WRONG[check.causal_self_attention] += [
    (
        with_projections(lambda q, k, v: attention(q, k, v, torch.ones(len(q), len(q)).tril(1) > 0, scale=1.0)),
        "also attends to the word after it",
    ),
    (with_projections(lambda q, k, v: torch.stack([v[: i + 1].mean(0) for i in range(len(v))])), "same weight"),
    (lambda x, *w: causal_self_attention(x.flip(0), *w).flip(0), "to the words after it"),
]
WRONG[check.look_up] += [
    (lambda q, k, v: 2 ** (k @ q) @ v / (2 ** (k @ q)).sum(), "wrong values"),
    (lambda q, k, v: (-(k - q).square().sum(-1)).softmax(0) @ v, "wrong values"),
]
