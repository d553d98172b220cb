"""Tests of the relative error."""

import pytest
import torch

from lessons_lib.efficient import relative_error


def test_relative_error_is_0_for_equal_tensors_and_1_for_zero():
    exact = torch.randn(3, 5)
    assert relative_error(exact, exact) == 0
    assert relative_error(torch.zeros(3, 5), exact) == pytest.approx(1)


def test_relative_error_is_scale_invariant():
    exact, approximate = torch.randn(3, 5), torch.randn(3, 5)
    assert relative_error(7 * approximate, 7 * exact) == pytest.approx(relative_error(approximate, exact))


def test_relative_error_uses_the_frobenius_norm():
    assert relative_error(torch.tensor([3.0, 4.5]), torch.tensor([0.0, 4.5])) == pytest.approx(3 / 4.5)
    assert relative_error(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0])) == pytest.approx(2**-0.5)


def test_relative_error_half_precision_does_not_overflow():
    exact = torch.full((4096,), 8.0, dtype=torch.float16)  # the squares sum to 2**18, beyond float16
    assert relative_error(exact * 1.125, exact) == pytest.approx(0.125)


@pytest.mark.rejects
def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match=r"must have the same shape, got \(3,\) and \(3, 1\)"):
        relative_error(torch.ones(3), torch.ones(3, 1))
    with pytest.raises(ValueError, match="exact must not be zero throughout"):
        relative_error(torch.ones(3), torch.zeros(3))
    with pytest.raises(ValueError, match="approximate and exact must have the same dtype"):
        relative_error(torch.ones(3).float(), torch.ones(3))
