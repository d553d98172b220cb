"""Answers to the exercises on the attention matrix: correct answers in any style, wrong answers with their messages."""

import functools

import torch

from lessons_lib.checks import matrix as check

# --- right answers ----------------------------------------------------------------------------------------------------


def walk(start, layers):
    p = torch.eye(layers.shape[-1], dtype=layers.dtype)[start]
    for a in reversed(list(layers)):
        p = p @ a
    return p


def product_of(layers):
    return functools.reduce(lambda product, a: a @ product, layers)


def walk_by_the_product(start, layers):
    return product_of(layers)[start]


def stationary(a):
    n = a.shape[-1]
    system = a.T - torch.eye(n, dtype=a.dtype)
    system[-1] = 1.0
    right = torch.zeros(n, dtype=a.dtype)
    right[-1] = 1.0
    return torch.linalg.solve(system, right)


def stationary_of_the_lazy_walk(a):
    lazy = (a + torch.eye(a.shape[-1], dtype=a.dtype)) / 2
    return torch.linalg.matrix_power(lazy, 2**20)[0]


def stationary_by_eigenvectors(a):
    values, vectors = torch.linalg.eig(a.T)
    left = vectors[:, (values - 1).abs().argmin()].real
    return left / left.sum()


def attention_rollout(layers, residual):
    product = torch.eye(layers.shape[-1], dtype=layers.dtype)
    for a in layers.mean(dim=1):
        product = residual * product + (1 - residual) * a @ product
    return product


RIGHT = {
    check.walk: [walk, walk_by_the_product, lambda start, layers: walk(start, layers.float())],
    check.stationary: [stationary, stationary_of_the_lazy_walk, stationary_by_eigenvectors],
    check.attention_rollout: [attention_rollout, lambda layers, residual: attention_rollout(layers.float(), residual)],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


def forwards(start, layers):
    return walk(start, layers.flip(0))


def column(start, layers):
    p = torch.eye(layers.shape[-1], dtype=layers.dtype)[start]
    for a in reversed(list(layers)):
        p = a @ p
    return p


def column_forwards(start, layers):
    return column(start, layers.flip(0))


def in_place(start, layers):
    found = walk(start, layers)
    layers[0] = product_of(layers)
    return found


WRONG[check.walk] = [
    (forwards, "first step goes through the last layer"),
    (column_forwards, "a @ p averages values"),
    (column, "and reverse the order of the layers"),
    (lambda start, layers: layers[-1, start], "one step, through the last layer alone"),
    (lambda start, layers: layers[0, start], "one step, through the first layer alone"),
    (lambda start, layers: product_of(layers).mean(0), "average over all starting positions"),
    (in_place, "changed its argument"),
    (lambda start, layers: product_of(layers), "must have shape"),
    (lambda start, layers: walk(start, layers).tolist(), "must be a tensor, got list"),
    (lambda start, layers: walk(start, layers) ** 2, "wrong values"),
]


def right_eigenvector(a):
    values, vectors = torch.linalg.eig(a)
    right = vectors[:, (values - 1).abs().argmin()].real
    return right / right.sum()


WRONG[check.stationary] = [
    (right_eigenvector, "a multiple of the right eigenvector"),
    (lambda a: torch.ones_like(a[0]), "which sums to one"),
    (lambda a: stationary(a) / stationary(a).norm(), "divide by its sum instead"),
    (lambda a: a.mean(0), "after one step"),
    (lambda a: torch.linalg.matrix_power(a, 5000)[0], "following one walker fails"),
    (lambda a: torch.linalg.matrix_power(a, 5000).mean(0), "powers of the matrix fail"),
    (lambda a: stationary(a)[None], "must have shape"),
    (lambda a: stationary(a).flip(0), "wrong values"),
    (lambda a: stationary(a.mul_(1.0).div_(2.0)), "changed its argument"),
]


def with_identity_added(weight):
    def answer(layers, residual):
        product = torch.eye(layers.shape[-1], dtype=layers.dtype)
        for a in layers.mean(dim=1):
            product = (weight(residual) * torch.eye(len(a), dtype=a.dtype) + a) @ product
        return product

    return answer


def head_by_head(layers, residual):
    return torch.stack([attention_rollout(layers[:, h, None], residual) for h in range(layers.shape[1])]).mean(0)


def share_at_the_end(layers, residual):
    identity = torch.eye(layers.shape[-1], dtype=layers.dtype)
    return residual * identity + (1 - residual) * attention_rollout(layers, 0.0)


def entries(layers, residual):
    mean = layers.mean(dim=1)
    return (residual * torch.eye(mean.shape[-1], dtype=mean.dtype) + (1 - residual) * mean).prod(0)


WRONG[check.attention_rollout] = [
    (lambda layers, r: attention_rollout(layers.flip(0), r), "first layer stands on the right"),
    (lambda layers, r: attention_rollout(layers, 1 - r), "the identity gets the share residual"),
    (lambda layers, r: attention_rollout(layers, 0.0), "residual share is missing"),
    (share_at_the_end, "apply the residual share in each layer"),
    (with_identity_added(lambda r: 1.0), "do not add the identity to the full weights"),
    (with_identity_added(lambda r: r), "the share of the weights is 1 - residual"),
    (head_by_head, "before the product, not after it"),
    (lambda layers, r: attention_rollout(layers[-1:], r), "the last layer alone"),
    (entries, "not the product of their entries"),
    (lambda layers, r: attention_rollout(layers, r).mT, "wrong values"),
    (lambda layers, r: layers.mean(1), "must have shape"),
]


# --- further ones -----------------------------------------------------------------------------------------------------


def by_null_space(a):
    """The direction that a.T - 1 takes to nothing."""
    direction = torch.linalg.svd(a.T - torch.eye(len(a), dtype=a.dtype)).Vh[-1]
    return direction / direction.sum()


def from_the_output_down(layers, residual):
    """A row of shares for each output, taken down layer by layer."""
    rows = torch.eye(layers.shape[-1], dtype=layers.dtype)
    for heads in layers.flip(0):
        rows = residual * rows + (1 - residual) * torch.stack([rows @ a for a in heads]).mean(0)
    return rows


RIGHT[check.walk] += [
    lambda start, layers: functools.reduce(
        lambda p, a: torch.einsum("i,ij->j", p, a), layers.flip(0)[1:], layers[-1][start]
    )
]
RIGHT[check.stationary] += [by_null_space]
RIGHT[check.attention_rollout] += [
    from_the_output_down,
    lambda layers, r: product_of(r * torch.eye(layers.shape[-1], dtype=layers.dtype) + (1 - r) * layers.mean(1)),
]
WRONG[check.walk] += [
    (lambda start, layers: walk(start, layers[-3:]), "wrong values|first layer|out of", 12),
    (lambda start, layers: walk(0, layers), "wrong values"),
    (lambda start, layers: walk(start, layers.mean(0)[None]), "wrong values"),
]
WRONG[check.stationary] += [
    (lambda a: torch.linalg.matrix_power((a + torch.eye(len(a), dtype=a.dtype)) / 2, 100)[0], "has not converged"),
    (lambda a: torch.linalg.matrix_power((a + torch.eye(len(a), dtype=a.dtype)) / 2, 1000)[0], "has not converged"),
    (lambda a: torch.linalg.matrix_power((a + torch.eye(len(a), dtype=a.dtype)) / 2, 700)[0], "wrong values"),
    (lambda a: torch.linalg.matrix_power((a + torch.eye(len(a), dtype=a.dtype)) / 2, 8)[0], "wrong values"),
    (lambda a: a[-1], "wrong values"),
]
WRONG[check.attention_rollout] += [
    (lambda layers, r: attention_rollout(layers[-3:], r), "wrong values|last layer", 12),
    (lambda layers, r: attention_rollout(layers[:, :1], r), "wrong values"),
]
