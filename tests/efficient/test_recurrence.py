"""Tests of the parallel recurrence against a sequential loop, and of its logarithmic number of rounds."""

import math

import pytest
import torch
from torch.autograd import grad, gradcheck
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from lessons_lib.efficient.recurrence import recurrence

BATCHES = [(), (2,), (2, 3)]
LENGTHS = [1, 2, 3, 7, 8, 9, 64, 100]


def step_by_step(decay, added, initial=None):
    """The definition: a sequential loop."""
    state = torch.zeros_like(added[..., 0, :]) if initial is None else initial
    states = []
    for a, b in zip(decay.unbind(-2), added.unbind(-2), strict=True):
        state = a * state + b
        states.append(state)
    return torch.stack(states, dim=-2)


def case(batch=(2, 3), n=11, d=5, *, least=-1.5):
    """Decays that include values above one and below zero, terms to add, and an initial state."""
    decay = torch.empty(*batch, n, d).uniform_(least, 1.5)
    return [x.requires_grad_() for x in (decay, torch.randn(*batch, n, d), torch.randn(*batch, d))]


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("with_initial", [True, False], ids=["with a state", "from zero"])
def test_recurrence_and_its_gradients_equal_the_loop(with_initial, n, batch):
    given = case(batch, n)[: 3 if with_initial else 2]
    ours, theirs = recurrence(*given), step_by_step(*given)
    upstream = torch.randn_like(theirs)
    # With one step from a zero state, the decay has no gradient and needs ``materialize_grads``.
    gradients = (grad(out, given, upstream, materialize_grads=True) for out in (ours, theirs))
    for mine, its in zip((ours, *next(gradients)), (theirs, *next(gradients)), strict=True):
        # Measured error: 6e-16 of the largest entry, which a hundred decays above one can make large.
        assert_close(mine, its, rtol=0, atol=1e-14 * its.abs().max().item())


def test_gradcheck():
    assert gradcheck(recurrence, case((2,), 5, 3))


def test_recurrence_zero_decay_restarts_the_state():
    decay, added, initial = case(n=13)
    with torch.no_grad():
        decay[..., 6, :] = 0
    again = recurrence(decay[..., 7:, :], added[..., 7:, :], added[..., 6, :])
    assert_close(recurrence(decay, added, initial)[..., 7:, :], again)


def test_recurrence_decay_one_is_a_cumulative_sum_and_parts_continue():
    _, added, initial = case(n=17)
    assert_close(recurrence(torch.ones_like(added), added, initial), initial[..., None, :] + added.cumsum(-2))
    decay, added, initial = case(n=17)
    whole, first = recurrence(decay, added, initial), recurrence(decay[..., :6, :], added[..., :6, :], initial)
    second = recurrence(decay[..., 6:, :], added[..., 6:, :], first[..., -1, :])
    assert_close(torch.cat([first, second], dim=-2), whole)


def test_recurrence_is_causal():
    decay, added, initial = case(n=17)
    before = recurrence(decay, added, initial)[..., :6, :]
    with torch.no_grad():
        decay[..., 6:, :], added[..., 6:, :] = torch.nan, torch.inf
    assert torch.equal(recurrence(decay, added, initial)[..., :6, :], before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype):
    given = [x.detach().to(dtype) for x in case(least=0.0)]
    assert_close(recurrence(*given), recurrence(*(x.float() for x in given)).to(dtype), rtol=0, atol=0)


class _CountProducts(TorchDispatchMode):
    """Count the multiplications."""

    def __init__(self):
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += func is torch.ops.aten.mul.Tensor
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("n", [1, 2, 3, 64, 65, 1000])
def test_recurrence_number_of_rounds_is_logarithmic(n):
    decay, added, _ = case(n=n)
    with _CountProducts() as counted:
        recurrence(decay, added)
    assert counted.products == 2 * math.ceil(math.log2(n))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 11, 5), (2, 11, 3)), r"of one shape, with at least one step, got \(2, 11, 5\) and \(2, 11, 3\)"),
        (((2, 0, 5), (2, 0, 5)), r"with at least one step, got \(2, 0, 5\)"),
        (((5,), (5,)), r"decay and added must be \(\*batch, n, d\) .*, got \(5,\) and \(5,\)"),
        (((2, 11, 5), (2, 11, 5), (5,)), r"initial must be \(\*batch, d\) = \(2, 5\), .*, got \(5,\)"),
    ],
)
def test_invalid_shapes_raise(shapes, message):
    with pytest.raises(ValueError, match=message):
        recurrence(*map(torch.zeros, shapes))


@pytest.mark.rejects
def test_invalid_dtypes_raise():
    decay, added, initial = (x.detach() for x in case())
    with pytest.raises(ValueError, match="decay and initial must have the same dtype"):
        recurrence(decay, added, initial.float())
    with pytest.raises(ValueError, match=r"added must hold floating-point numbers, got torch\.int64"):
        recurrence(decay, added.long())


# --- wrong implementations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda a, b, h: recurrence(a, b), id="ignores the initial state"),
        pytest.param(lambda a, b, h: recurrence(a.roll(1, -2), b, h), id="decays one step late"),
        pytest.param(lambda a, b, h: recurrence(a, b.roll(1, -2), h), id="adds one step late"),
        pytest.param(lambda a, b, h: recurrence(a, b, a[..., 0, :] * h), id="decays the state twice"),
        pytest.param(lambda a, b, h: recurrence(a.detach(), b, h), id="loses a gradient"),
        pytest.param(lambda a, b, h: recurrence(a.flip(-2), b.flip(-2), h).flip(-2), id="runs backwards"),
    ],
)
def test_loop_catches_wrong_recurrences(wrong):
    given = case()
    ours, theirs = wrong(*given), step_by_step(*given)
    upstream = torch.randn_like(theirs)
    gradients = [grad(out, given, upstream, materialize_grads=True) for out in (ours, theirs)]
    assert not all(torch.allclose(a, b) for a, b in zip((ours, *gradients[0]), (theirs, *gradients[1]), strict=True))
