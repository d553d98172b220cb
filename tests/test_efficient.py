"""The error by which the variants are measured."""

import pytest
import torch

from lessons_lib.efficient import relative_error


def test_equality_is_0_and_no_answer_is_1():
    exact = torch.randn(3, 5)
    assert relative_error(exact, exact) == 0
    assert relative_error(torch.zeros(3, 5), exact) == pytest.approx(1)


def test_units_do_not_matter():
    exact, approximate = torch.randn(3, 5), torch.randn(3, 5)
    assert relative_error(7 * approximate, 7 * exact) == pytest.approx(relative_error(approximate, exact))


def test_is_the_root_of_the_sum_of_squares():
    assert relative_error(torch.tensor([3.0, 4.5]), torch.tensor([0.0, 4.5])) == pytest.approx(3 / 4.5)
    assert relative_error(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0])) == pytest.approx(2**-0.5)


def test_half_precision_is_measured_in_full():
    exact = torch.full((4096,), 8.0, dtype=torch.float16)  # the squares sum to 2**18, beyond float16
    assert relative_error(exact * 1.125, exact) == pytest.approx(0.125)


@pytest.mark.rejects
def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"must have the same shape, got \(3,\) and \(3, 1\)"):
        relative_error(torch.ones(3), torch.ones(3, 1))
    with pytest.raises(ValueError, match="exact must not be zero throughout"):
        relative_error(torch.ones(3), torch.zeros(3))
    with pytest.raises(ValueError, match="approximate and exact must have the same dtype"):
        relative_error(torch.ones(3).float(), torch.ones(3))
