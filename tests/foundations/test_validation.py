"""Each check accepts valid arguments and raises a ``ValueError`` for invalid ones."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.foundations.validation import (
    broadcast_together,
    broadcasts_to,
    check_above,
    check_floating,
    check_integers,
    check_mask,
    check_same_device,
    check_size,
    check_vectors,
    promote_half,
)

shapes = st.lists(st.integers(0, 3), max_size=4)


@given(shape=shapes, target=shapes)
def test_broadcasts_to_agrees_with_expand(shape, target):
    try:
        torch.empty(shape).expand(target)
        expands = True
    except RuntimeError:
        expands = False
    assert broadcasts_to(shape, target) == expands


@given(a=shapes, b=shapes, c=shapes)
def test_broadcast_together_agrees_with_broadcast_shapes(a, b, c):
    try:
        torch.broadcast_shapes(a, b, c)
        fits = True
    except RuntimeError:
        fits = False
    assert broadcast_together(a, b, c) == fits


def test_promote_half_changes_half_precision_only():
    for dtype, wide in [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ]:
        assert promote_half(torch.ones(2, dtype=dtype)).dtype == wide


def test_valid_arguments_pass():
    check_mask(torch.ones(1, 3, dtype=torch.bool), torch.randn(2, 5, 3))
    check_size("n", 3, at_least=1, at_most=3)
    check_floating(a=torch.ones(2), b=torch.ones(3))
    check_vectors(torch.ones(2, 5, 3), 3)
    check_above("x", 0.5, 0.0)
    check_above("x", 1, 1, or_equal=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_check_integers_accepts_any_integer_dtype_and_named_axes(dtype):
    check_integers("ids", torch.zeros(2, 3, 5, dtype=dtype))
    check_integers("ids", torch.zeros(2, 3, dtype=dtype), "n", "b n")
    check_integers("ids", torch.zeros((), dtype=dtype), "")
    for shape in [(3,), (2, 3), (5, 2, 3)]:
        check_integers("ids", torch.zeros(shape, dtype=dtype), "*batch n")


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
def test_check_size_raises_unless_integer_in_range(value, message):
    with pytest.raises(ValueError, match=message):
        check_size("n", value, at_least=1, at_most=7)


@pytest.mark.rejects
def test_check_floating_and_check_same_device_raise():
    with pytest.raises(ValueError, match=r"b must hold floating-point numbers, got torch\.int64"):
        check_floating(a=torch.ones(2), b=torch.ones(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"a and b must have the same dtype, got torch\.float64 and torch\.float32"):
        check_floating(a=torch.ones(2), b=torch.ones(2, dtype=torch.float32))
    with pytest.raises(ValueError, match="a and b must be on the same device, got cpu and meta"):
        check_same_device(a=torch.ones(2), b=torch.ones(2, device="meta"))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("tensor", "axes", "message"),
    [
        (torch.zeros(3), (), r"ids must be integers, got torch\.float32 over \(3,\)"),
        (torch.zeros(3, dtype=torch.bool), (), r"ids must be integers, got torch\.bool over \(3,\)"),
        (torch.zeros(3, dtype=torch.complex64), (), r"ids must be integers, got torch\.complex64 over \(3,\)"),
        ([0, 1], (), "ids must be integers, got list"),
        ([0, 1], ("n",), r"ids must be integers over \(n,\), got list"),
        (torch.arange(3), ("b n",), r"ids must be integers over \(b, n\), got torch\.int64 over \(3,\)"),
        (torch.arange(3), ("", "b n"), r"ids must be integers over \(\) or \(b, n\), got torch\.int64 over \(3,\)"),
        (torch.tensor(3), ("*batch n",), r"ids must be integers over \(\*batch, n\), got torch\.int64 over \(\)"),
        (torch.zeros(2, 3), ("b n",), r"ids must be integers over \(b, n\), got torch\.float32 over \(2, 3\)"),
    ],
)
def test_check_integers_raises(tensor, axes, message):
    with pytest.raises(ValueError, match=message):
        check_integers("ids", tensor, *axes)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("value", "or_equal", "message"),
    [
        (1.0, False, r"base must be finite and above 1, got 1\.0"),
        (0.9, True, r"base must be finite and at least 1, got 0\.9"),
        (float("inf"), True, "base must be finite and at least 1, got inf"),
        (float("nan"), False, "base must be finite and above 1, got nan"),
    ],
)
def test_check_above_raises(value, or_equal, message):
    with pytest.raises(ValueError, match=message):
        check_above("base", value, 1, or_equal=or_equal)


@pytest.mark.rejects
def test_check_vectors_raises():
    with pytest.raises(ValueError, match=r"x must end in an axis of size d_model=3, got shape \(3, 2\)"):
        check_vectors(torch.ones(3, 2), 3)
    with pytest.raises(ValueError, match=r"x must hold floating-point numbers, got torch\.int64"):
        check_vectors(torch.ones(2, 3, dtype=torch.int64), 3)
