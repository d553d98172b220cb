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
                "that is the hard look-up: the best key alone": values[scores.argmax()],
                "the weights do not sum to one; divide by the sum of the exponentials": scores.exp() @ values,
                "weights are shares of the exponentials of the scores, not of the scores": scores
                / scores.sum()
                @ values,
                "every key has the same weight, whatever the query": values.mean(0),
                "no division by sqrt(d_k) here: scores are plain dot products": (scores / math.sqrt(d_k)).softmax(0)
                @ values,
                "scores are dot products; do not divide by the lengths": (
                    scores / (q.norm() * keys.norm(dim=-1))
                ).softmax(0)
                @ values,
                "the largest score gets the largest weight; a sign is wrong": (-scores).softmax(0) @ values,
                "the weighted values are summed, not averaged once more": wanted / m,
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
                "the softmax belongs to the rows: each word shares out its own unit of weight": (q @ k.mT).softmax(0)
                @ v,
                "query and key are exchanged: row i of the scores belongs to query i": attention(k, q, v, scale=1.0),
                "the softmax is missing": q @ k.mT @ v,
                "w_q is ignored: the queries are the keys": attention(k, k, v, scale=1.0),
                "w_k is ignored: the keys are the queries": attention(q, q, v, scale=1.0),
                "no division by sqrt(d_k) here: scores are plain dot products": attention(q, k, v),
                "the weights are transposed: output i is the average with the weights of row i": weights.mT @ v,
                "every word sees every word here, those that follow too": attention(q, k, v, causal(len(x)), scale=1.0),
                "the rows of weights do not sum to one": (q @ k.mT).exp() @ v,
            },
            where=where,
        )


@check
def left_to_right(answer: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check causal self-attention of a sentence."""
    for x, w_q, w_k, w_v, where in _sentence_cases(seed, cases):
        q, k, v = x @ w_q, x @ w_k, x @ w_v
        may = causal(len(x))
        compare(
            "left_to_right",
            ask("left_to_right", answer, x, w_q, w_k, w_v, where=where),
            attention(q, k, v, may, scale=1.0),
            {
                "that is attention to the whole sentence": attention(q, k, v, scale=1.0),
                "words that may not be seen still take their share; the rest of the row must sum to one": (
                    attention_weights(q, k, scale=1.0) * may
                )
                @ v,
                "a score of zero is a score: e^0 = 1; leave these words out": (q @ k.mT * may).softmax(-1) @ v,
                "each word sees itself and those after it": attention(q, k, v, may.mT, scale=1.0),
                "a word sees itself too, not only those before it": attention(q, k, v, may.tril(-1), scale=1.0),
                "a word sees itself and those before it, not the one after it": attention(
                    q, k, v, torch.ones_like(may).tril(1), scale=1.0
                ),
                "all that was read has the same weight; where are the scores?": v.cumsum(0) / may.sum(1, keepdim=True),
                "no division by sqrt(d_k) here: scores are plain dot products": attention(q, k, v, may),
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
