"""The questions that every file asks, and what they answer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.shapes import (
    at_least_single,
    broadcast_together,
    broadcasts_to,
    check_floating,
    check_mask,
    check_same_device,
    check_size,
)

shapes = st.lists(st.integers(0, 3), max_size=4)


@given(shape=shapes, target=shapes)
def test_broadcasts_to_is_what_expand_accepts(shape, target):
    try:
        torch.empty(shape).expand(target)
        expands = True
    except RuntimeError:
        expands = False
    assert broadcasts_to(shape, target) == expands


@given(a=shapes, b=shapes, c=shapes)
def test_broadcast_together_is_what_torch_accepts(a, b, c):
    try:
        torch.broadcast_shapes(a, b, c)
        fits = True
    except RuntimeError:
        fits = False
    assert broadcast_together(a, b, c) == fits


def test_half_precision_is_widened_and_the_rest_left_alone():
    for dtype, wide in [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ]:
        assert at_least_single(torch.ones(2, dtype=dtype)).dtype == wide


def test_what_fits_passes():
    check_mask(torch.ones(1, 3, dtype=torch.bool), torch.randn(2, 5, 3))
    check_size("n", 3, at_least=1, at_most=3)
    check_floating(a=torch.ones(2), b=torch.ones(3))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "n must be at least 1, got 0"),
        (8, "n must be at most 7, got 8"),
        (2.0, r"n must be an integer, got 2\.0"),
        (True, "n must be an integer, got True"),
        (None, "n must be an integer, got None"),
    ],
)
def test_a_size_is_a_whole_number_in_range(value, message):
    with pytest.raises(ValueError, match=message):
        check_size("n", value, at_least=1, at_most=7)


@pytest.mark.rejects
def test_the_wrong_kind_of_tensor_is_named():
    with pytest.raises(ValueError, match=r"b must hold floating-point numbers, got torch\.int64"):
        check_floating(a=torch.ones(2), b=torch.ones(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"a and b must have the same dtype, got torch\.float64 and torch\.float32"):
        check_floating(a=torch.ones(2), b=torch.ones(2, dtype=torch.float32))
    with pytest.raises(ValueError, match="a and b must be on the same device, got cpu and meta"):
        check_same_device(a=torch.ones(2), b=torch.ones(2, device="meta"))
