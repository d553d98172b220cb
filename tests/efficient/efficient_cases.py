"""Helpers for the tests of the efficient variants: inputs, comparisons and a count of the memory that a call needs."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd import grad
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def qkv(batch=(2, 6), *, groups=3, n=37, m=None, d_k=5, d_v=7):
    """Queries, keys and values that require gradients; every axis has a different size. One batch axis has no heads."""
    m = n if m is None else m
    batch_kv = (*batch[:-1], groups) if len(batch) > 1 else batch
    shapes = (*batch, n, d_k), (*batch_kv, m, d_k), (*batch_kv, m, d_v)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def assert_same(ours: Callable[..., Tensor], exact: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    """Assert equal outputs, and equal gradients for a random gradient of the output."""
    out, expected = ours(*inputs), exact(*inputs)
    upstream = torch.randn_like(expected)
    assert_close(out, expected)
    assert_close(grad(out, inputs, upstream), grad(expected, inputs, upstream))


class Counting(TorchDispatchMode):
    """Count the numbers in the new storage of every operation, in the forward and in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.written = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if isinstance(t, Tensor) and t.untyped_storage()._cdata not in given:  # a view allocates no memory
                numbers = t.untyped_storage().nbytes() // t.element_size()
                self.largest, self.written = max(self.largest, numbers), self.written + numbers
        return result


def largest_and_written(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[int, int]:
    """Return the size of the largest new tensor in forward and backward, and the total size of all new tensors."""
    with Counting() as count:
        grad(function(*inputs).sum(), inputs)
    return count.largest, count.written


def assert_linear(function: Callable[..., Tensor], lengths=(256, 512, 1024), **sizes) -> None:
    """Assert that doubling the length at most doubles the largest tensor, and doubles the total size, within 10 %.

    The tolerance covers tensors that do not grow with the length. A matrix of scores would grow by a factor of 4.
    """
    counts = [largest_and_written(function, *qkv((2,), groups=1, n=n, **sizes)) for n in lengths]
    for (largest, written), (largest_doubled, written_doubled) in pairwise(counts):
        assert largest_doubled <= 2.05 * largest
        assert 1.8 * written <= written_doubled <= 2.1 * written
