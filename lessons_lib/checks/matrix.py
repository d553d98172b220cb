"""Checks of the exercises on attention as a Markov chain."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lessons_lib.analysis.markov import rollout, stationary_distribution
from lessons_lib.attention.masks import causal
from lessons_lib.attention.softmax import softmax
from lessons_lib.checks import ask, check, compare, normal


@check
def walk(answer: Callable[[int, Tensor], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check the distribution of a random walk from an output position through the layers, the last layer first."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n_layers, n = _random_layers(case, generator), int(torch.randint(4, 9, (), generator=generator))
        start = 0 if case % 4 == 3 else int(torch.randint(1, n, (), generator=generator))
        layers = softmax(2 * normal(n_layers, n, n, generator=generator))
        where = f"{n_layers} layers, {n} tokens, start {start}"
        got = ask("walk", answer, start, layers, where=where)
        product = rollout(layers, residual=0.0)
        upside_down = rollout(layers.flip(0), residual=0.0)
        mistakes = {
            "the walker meets the last layer first": upside_down[start],
            "the walker is a row and stands on the left, p @ a; a @ p averages values": product[:, start],
            "the walker is a row and stands on the left, p @ a; and it meets the last layer first": upside_down[
                :, start
            ],
            "that is one step, through the last layer; there are more layers": layers[-1, start],
            "that is one step, through the first layer; there are more layers": layers[0, start],
            "that walker began anywhere; this one begins on start": product.mean(dim=0),
        }
        compare("walk", got, product[start], mistakes, where=where)


@check
def stationary(answer: Callable[[Tensor], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check the stationary distribution of positive matrices, causal matrices and periodic walks."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n = int(torch.randint(2, 5, (), generator=generator))
        kind = ("all visible", "causal", "two groups that swap")[case % 3]
        if kind == "two groups that swap":
            to, back = softmax(normal(n, n + 1, generator=generator)), softmax(normal(n + 1, n, generator=generator))
            a = torch.zeros(2 * n + 1, 2 * n + 1, dtype=torch.float64)
            a[:n, n:], a[n:, :n] = to, back
        else:
            scores = 2 * normal(n + 3, n + 3, generator=generator)
            a = softmax(scores, causal(n + 3) if kind == "causal" else None)
        where = f"{kind}, {a.shape[-1]} tokens"
        got = ask("stationary", answer, a, where=where)
        ones, pi = torch.ones_like(a[0]), stationary_distribution(a)
        powers = torch.linalg.matrix_power(a, 1000)
        mistakes = {
            "that is the right eigenvector, the same for every matrix; where do walkers end up?": ones / len(ones),
            "the right eigenvector is a vector of ones; the left one is asked for, and it sums to one": ones,
            "it has the length one; it must have the sum one": pi / pi.norm(),
            "that is where walkers are after one step": a.mean(dim=0),
            "walks in circles never settle, so powers of the matrix do not find it": powers.mean(dim=0),
            "walks in circles never settle, so one walker does not find it": powers[0],
        }
        compare("stationary", got, pi, mistakes, where=where)


@check
def attention_rollout(
    answer: Callable[[Sequence[Tensor] | Tensor, float], Tensor], *, seed: int = 0, cases: int = 4
) -> None:
    """Check the attention rollout of several layers, averaged over heads, with a residual share."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n_layers, n_heads = _random_layers(case, generator), int(torch.randint(2, 5, (), generator=generator))
        n_heads = 1 if case % 4 == 3 else n_heads
        n = int(torch.randint(5, 9, (), generator=generator))
        residual = 0.1 + 0.3 * float(torch.rand((), generator=generator, dtype=torch.float64))
        scores = 2 * normal(n_layers, n_heads, n, n, generator=generator)
        layers = softmax(scores, causal(n) if case % 2 else None)
        where = f"{n_layers} layers, {n_heads} heads, {n} tokens, residual {residual:.2f}"
        got = ask("attention_rollout", answer, layers, residual, where=where)
        mean, identity = layers.mean(dim=1), torch.eye(n, dtype=layers.dtype)
        plain = rollout(mean, residual=0.0)
        mistakes = {
            "the first layer stands on the right of the product": rollout(mean.flip(0), residual=residual),
            "the residual share belongs to the identity, the rest to the weights": rollout(mean, residual=1 - residual),
            "the residual share is missing": plain,
            "each layer passes its share on, not only the stack as a whole": residual * identity
            + (1 - residual) * plain,
            "rows must sum to one: the share of the identity is taken from that of the weights": _product(
                mean + identity
            ),
            "rows must sum to one: the weights get the share 1 - residual": _product(mean + residual * identity),
            "average over heads first: a walker may change heads between layers": rollout(
                layers, residual=residual
            ).mean(dim=0),
            "that is the last layer alone": residual * identity + (1 - residual) * mean[-1],
            "layers follow one another: multiply the matrices, not their entries": (
                residual * identity + (1 - residual) * mean
            ).prod(dim=0),
        }
        compare("attention_rollout", got, rollout(mean, residual=residual), mistakes, where=where)


def _product(layers: Tensor) -> Tensor:
    """Return the product of the layers, with the last layer on the left."""
    product = layers[0]
    for layer in layers[1:]:
        product = layer @ product
    return product


def _random_layers(case: int, generator: torch.Generator) -> int:
    """Draw one to five layers; the first case has more than two, so that their order matters."""
    return int(torch.randint(1 if case else 3, 6, (), generator=generator))
