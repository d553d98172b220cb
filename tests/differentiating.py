"""Every way we know to ask for a derivative that a step with a backward pass of its own does not have.

``attend(query, key, value)`` is the step; the input is one tensor, from which queries, keys and values are made.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, functional, grad

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def residual(attend: Attend, x: Tensor) -> Tensor:
    """The gradient that arrives at attention depends on the input."""
    return (x + attend(x, x, x)).square().sum()


def linear(attend: Attend, x: Tensor) -> Tensor:
    """The gradient that arrives at attention is a constant."""
    return attend(x, x, x).sum() + x.pow(3).sum()


def _gradient(energy: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    (found,) = grad(energy(x), x, create_graph=True)
    return found


def _twice_backward(energy: Callable[[Tensor], Tensor], x: Tensor) -> None:
    energy(x).backward(create_graph=True)
    x.grad.square().sum().backward()


TWICE: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], object]] = {
    "hvp": lambda energy, x: functional.hvp(energy, x, torch.ones_like(x)),
    "vhp": lambda energy, x: functional.vhp(energy, x, torch.ones_like(x)),
    "hessian": functional.hessian,
    "hessian, vectorized": lambda energy, x: functional.hessian(energy, x, vectorize=True),
    "grad towards the input": lambda energy, x: grad(_gradient(energy, x).square().sum(), x),
    "backward of a penalty": lambda energy, x: _gradient(energy, x).square().sum().backward(),
    "backward twice": _twice_backward,
    "jvp by two gradients": lambda energy, x: functional.jvp(energy, x, torch.ones_like(x)),
}


def _with_a_tangent(energy: Callable[[Tensor], Tensor], x: Tensor) -> None:
    with forward_ad.dual_level():
        energy(forward_ad.make_dual(x.detach(), torch.ones_like(x)))


OTHERWISE: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], object]] = {
    "a tangent": _with_a_tangent,
    "torch.func.grad": lambda energy, x: torch.func.grad(energy)(x),
    "torch.func.vjp": lambda energy, x: torch.func.vjp(energy, x),
    "torch.func.jvp": lambda energy, x: torch.func.jvp(energy, (x,), (torch.ones_like(x),)),
    "torch.func.hessian": lambda energy, x: torch.func.hessian(energy)(x),
    "vmap": lambda energy, x: torch.func.vmap(energy)(torch.stack([x, x])),
}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")  # as a program would
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own use of it
class Refusals:
    """What a test class inherits whose fixture ``step`` is ``attend``, and the name that its errors give."""

    @pytest.mark.parametrize("energy", [residual, linear], ids=["residual", "linear"])
    @pytest.mark.parametrize("ask", TWICE.values(), ids=TWICE)
    def test_second_derivatives_are_refused(self, step, ask, energy):
        attend, name = step
        x = torch.randn(1, 1, 4, 3, dtype=torch.float32, requires_grad=True)
        with pytest.raises(NotImplementedError, match=f"{name} must be differentiated only once.*; use lessons_lib"):
            ask(lambda x: energy(attend, x), x)

    @pytest.mark.parametrize("ask", OTHERWISE.values(), ids=OTHERWISE)
    def test_forward_mode_and_transforms_are_refused(self, step, ask):
        attend, name = step
        x = torch.randn(1, 1, 4, 3, dtype=torch.float32, requires_grad=True)
        with pytest.raises(NotImplementedError, match=f"{name} must not be .* lessons_lib.attention.attention instead"):
            ask(lambda x: linear(attend, x), x)

    def test_first_derivatives_that_remember_where_they_come_from_are_the_same(self, step):
        attend, _ = step
        x = torch.randn(1, 1, 4, 3, dtype=torch.float32, requires_grad=True)
        plain, kept = (grad(residual(attend, x), x, create_graph=create)[0] for create in (False, True))
        assert not plain.requires_grad
        assert kept.requires_grad
        assert torch.equal(kept, plain)
        (of_others,) = grad((kept.detach() * x.square()).sum() + (0 * kept).detach().sum(), x)
        assert torch.equal(of_others, 2 * x * plain)
