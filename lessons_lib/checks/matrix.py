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
            "the order of the layers is reversed: the first step goes through the last layer": upside_down[start],
            "multiply from the left, p @ a, because p is a row; a @ p averages values": product[:, start],
            "multiply from the left, p @ a, because p is a row; and reverse the order of the layers": upside_down[
                :, start
            ],
            "this is one step, through the last layer alone": layers[-1, start],
            "this is one step, through the first layer alone": layers[0, start],
            "this is the average over all starting positions; start at start": product.mean(dim=0),
        }
        compare("walk", got, product[start], mistakes, where=where)


@check
def stationary(answer: Callable[[Tensor], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check the stationary distribution of positive matrices, causal matrices, periodic walks and a slow walk."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n = int(torch.randint(2, 5, (), generator=generator))
        kind = ("all visible", "causal", "two groups that swap", "two groups that rarely mix", "a swap")[case % 5]
        if kind == "two groups that swap":
            to, back = softmax(normal(n, n + 1, generator=generator)), softmax(normal(n + 1, n, generator=generator))
            a = torch.zeros(2 * n + 1, 2 * n + 1, dtype=torch.float64)
            a[:n, n:], a[n:, :n] = to, back
        elif kind == "a swap":
            a = torch.eye(2, dtype=torch.float64).flip(0)
        elif kind == "two groups that rarely mix":
            first = torch.arange(2 * n + 1) < n
            apart = torch.where(first[:, None] == first, 0.0, -7.5)
            a = softmax(normal(2 * n + 1, 2 * n + 1, generator=generator).clamp(-1, 1) + apart)
        else:
            scores = 2 * normal(n + 3, n + 3, generator=generator)
            a = softmax(scores, causal(n + 3) if kind == "causal" else None)
        where = f"{kind}, {a.shape[-1]} tokens"
        got = ask("stationary", answer, a, where=where)
        ones, pi = torch.ones_like(a[0]), stationary_distribution(a)
        powers, lazy = torch.linalg.matrix_power(a, 1000), (a + torch.eye(len(a), dtype=a.dtype)) / 2
        mistakes = {
            "this is a multiple of the right eigenvector, the vector of ones; return the left eigenvector": ones
            / len(ones),
            "this is the right eigenvector, the vector of ones; return the left eigenvector, which sums to one": ones,
            "the result has norm one; divide by its sum instead": pi / pi.norm(),
            "this is the distribution of the walkers after one step": a.mean(dim=0),
            "a periodic walk does not converge, so powers of the matrix fail": powers.mean(dim=0),
            "a periodic walk does not converge, so following one walker fails": powers[0],
            "the walk has not converged after so many steps: solve for the distribution, or go on until it no longer "
            "changes": [
                torch.linalg.matrix_power(walk, steps)[0]
                for walk in (a, lazy)
                for steps in (10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1000, 1024)
            ],
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
            "the order of the layers is reversed: the first layer stands on the right of the product": rollout(
                mean.flip(0), residual=residual
            ),
            "the shares are exchanged: the identity gets the share residual, the weights get the rest": rollout(
                mean, residual=1 - residual
            ),
            "the residual share is missing": plain,
            "apply the residual share in each layer, not once for the whole product": residual * identity
            + (1 - residual) * plain,
            "rows must sum to one: do not add the identity to the full weights": _product(mean + identity),
            "rows must sum to one: the share of the weights is 1 - residual": _product(mean + residual * identity),
            "average over the heads of each layer before the product, not after it": rollout(
                layers, residual=residual
            ).mean(dim=0),
            "this is the last layer alone": residual * identity + (1 - residual) * mean[-1],
            "use the matrix product of the layers, not the product of their entries": (
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
