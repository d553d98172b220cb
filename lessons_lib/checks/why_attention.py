"""Checks of the exercises on the first attention mechanism."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.attention.attention import attention, attention_weights
from lessons_lib.attention.masks import causal
from lessons_lib.checks import ask, check, compare


@check
def look_up(answer: Callable[[Tensor, Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check the soft look-up of one query."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        m, d_k, d_v = (torch.randperm(5, generator=generator)[:3] + 3).tolist()
        m, d_k, d_v = {2: (1, d_k, d_v), 3: (m, 1, 1)}.get(case % 4, (m, d_k, d_v))
        q, keys, values = (
            torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((d_k,), (m, d_k), (m, d_v))
        )
        where = f"m={m} keys, d_k={d_k}, d_v={d_v}"
        got = ask("look_up", answer, q, keys, values, where=where)
        scores = keys @ q
        wanted = scores.softmax(0) @ values
        compare(
            "look_up",
            got,
            wanted,
            {
                "this is the hard look-up: it returns the value of the best key alone": values[scores.argmax()],
                "the weights do not sum to one; divide by the sum of the exponentials": scores.exp() @ values,
                "divide the exponentials of the scores by their sum, not the scores": scores / scores.sum() @ values,
                "every key has the same weight, whatever the query": values.mean(0),
                "no division by sqrt(d_k) here: scores are plain dot products": (scores / math.sqrt(d_k)).softmax(0)
                @ values,
                "scores are dot products; do not divide by the lengths": (
                    scores / (q.norm() * keys.norm(dim=-1))
                ).softmax(0)
                @ values,
                "the largest score must get the largest weight; a sign is wrong": (-scores).softmax(0) @ values,
                "sum the weighted values; do not average them once more": wanted / m,
            },
            where=where,
        )


@check
def self_attention(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 4
) -> None:
    """Check bidirectional self-attention of a sentence."""
    for x, w_q, w_k, w_v, where in _sentence_cases(seed, cases):
        q, k, v = x @ w_q, x @ w_k, x @ w_v
        weights = attention_weights(q, k, scale=1.0)
        compare(
            "self_attention",
            ask("self_attention", answer, x, w_q, w_k, w_v, where=where),
            weights @ v,
            {
                "the softmax runs over the keys: the weights in each row sum to one": (q @ k.mT).softmax(0) @ v,
                "queries and keys are exchanged: row i of the scores belongs to query i": attention(k, q, v, scale=1.0),
                "the softmax is missing": q @ k.mT @ v,
                "w_q is ignored: the queries are the keys": attention(k, k, v, scale=1.0),
                "w_k is ignored: the keys are the queries": attention(q, q, v, scale=1.0),
                "no division by sqrt(d_k) here: scores are plain dot products": attention(q, k, v),
                "the weights are transposed: output i is the average with the weights of row i": weights.mT @ v,
                "every word attends to every word here, also to later words": attention(
                    q, k, v, causal(len(x)), scale=1.0
                ),
                "the rows of weights do not sum to one": (q @ k.mT).exp() @ v,
            },
            where=where,
        )


@check
def causal_self_attention(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 4
) -> None:
    """Check causal self-attention of a sentence."""
    for x, w_q, w_k, w_v, where in _sentence_cases(seed, cases):
        q, k, v = x @ w_q, x @ w_k, x @ w_v
        mask = causal(len(x))
        compare(
            "causal_self_attention",
            ask("causal_self_attention", answer, x, w_q, w_k, w_v, where=where),
            attention(q, k, v, mask, scale=1.0),
            {
                "this is attention to the whole sentence; hide the later words": attention(q, k, v, scale=1.0),
                "hidden words still count in the denominator; the visible weights of a row must sum to one": (
                    attention_weights(q, k, scale=1.0) * mask
                )
                @ v,
                "a score of zero does not hide a word, because e^0 = 1": (q @ k.mT * mask).softmax(-1) @ v,
                "each word attends to itself and to the words after it; the mask is transposed": attention(
                    q, k, v, mask.mT, scale=1.0
                ),
                "each word attends to itself too, not only to the words before it": attention(
                    q, k, v, mask.tril(-1), scale=1.0
                ),
                "each word also attends to the word after it; hide this word": attention(
                    q, k, v, torch.ones_like(mask).tril(1), scale=1.0
                ),
                "all visible words have the same weight; the scores are ignored": v.cumsum(0)
                / mask.sum(1, keepdim=True),
                "no division by sqrt(d_k) here: scores are plain dot products": attention(q, k, v, mask),
            },
            where=where,
        )


def _sentence_cases(seed: int, cases: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor, str]]:
    """Draw word vectors and three matrices of different widths, and a description."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for case in range(cases):
        n, d_model, d_k, d_v = (torch.randperm(6, generator=generator)[:4] + 3).tolist()
        n, d_k, d_v = {2: (1, d_k, d_v), 3: (n, 1, 1)}.get(case % 4, (n, d_k, d_v))
        x, w_q, w_k, w_v = (
            torch.randn(*shape, generator=generator, dtype=torch.float64)
            for shape in ((n, d_model), (d_model, d_k), (d_model, d_k), (d_model, d_v))
        )
        spread = d_model**-0.5
        drawn.append((x, spread * w_q, spread * w_k, w_v, f"n={n} words, d_model={d_model}, d_k={d_k}, d_v={d_v}"))
    return drawn
