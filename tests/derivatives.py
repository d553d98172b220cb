"""Tests that functions with a custom backward pass refuse second derivatives, forward mode and ``torch.func``.

``attend(query, key, value)`` is the function under test. Queries, keys and values are the same input tensor.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, functional, grad

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def residual(attend: Attend, x: Tensor) -> Tensor:
    """Return a loss for which the gradient of attention's output depends on the input."""
    return (x + attend(x, x, x)).square().sum()


def linear(attend: Attend, x: Tensor) -> Tensor:
    """Return a loss for which the gradient of attention's output is constant."""
    return attend(x, x, x).sum() + x.pow(3).sum()


def _gradient(energy: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    (found,) = grad(energy(x), x, create_graph=True)
    return found


def _twice_backward(energy: Callable[[Tensor], Tensor], x: Tensor) -> None:
    energy(x).backward(create_graph=True)
    x.grad.square().sum().backward()


SECOND_ORDER: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], object]] = {
    "hvp": lambda energy, x: functional.hvp(energy, x, torch.ones_like(x)),
    "vhp": lambda energy, x: functional.vhp(energy, x, torch.ones_like(x)),
    "hessian": functional.hessian,
    "hessian, vectorized": lambda energy, x: functional.hessian(energy, x, vectorize=True),
    "grad towards the input": lambda energy, x: grad(_gradient(energy, x).square().sum(), x),
    "backward of a penalty": lambda energy, x: _gradient(energy, x).square().sum().backward(),
    "backward twice": _twice_backward,
    "jvp by two gradients": lambda energy, x: functional.jvp(energy, x, torch.ones_like(x)),
}


def _forward_mode(energy: Callable[[Tensor], Tensor], x: Tensor) -> None:
    with forward_ad.dual_level():
        energy(forward_ad.make_dual(x.detach(), torch.ones_like(x)))


FORWARD_MODE: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], object]] = {
    "forward mode": _forward_mode,
    "torch.func.jvp": lambda energy, x: torch.func.jvp(energy, (x,), (torch.ones_like(x),)),
    "torch.func.hessian": lambda energy, x: torch.func.hessian(energy)(x),
}
TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], object]] = {
    "torch.func.grad": lambda energy, x: torch.func.grad(energy)(x),
    "torch.func.vjp": lambda energy, x: torch.func.vjp(energy, x),
    "vmap": lambda energy, x: torch.func.vmap(energy)(torch.stack([x, x])),
}
TWICE = {
    "grad of grad": lambda energy, x: torch.func.grad(_squared_gradient(energy))(x),
    "vjp of grad": lambda energy, x: torch.func.vjp(torch.func.grad(energy), x)[1](x),
    "jacrev of grad": lambda energy, x: torch.func.jacrev(torch.func.grad(energy))(x),
    "vmap of grad of grad": lambda energy, x: vmap_one(torch.func.grad(_squared_gradient(energy)), x),
    "grad of vmap of grad": lambda energy, x: torch.func.grad(
        lambda x: vmap_one(torch.func.grad(energy), x).square().sum()
    )(x),
}


def _squared_gradient(energy: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.func.grad(energy)(x).square().sum()


def vmap_one(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the function of two copies of ``x``, by ``torch.func.vmap``."""
    return torch.func.vmap(function)(torch.stack([x, x]))


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")  # expected here
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own use of it
class Refusals:
    """Base class of tests; the fixture ``step`` returns ``attend`` and the name in its error messages."""

    @pytest.mark.parametrize("energy", [residual, linear], ids=["residual", "linear"])
    @pytest.mark.parametrize("differentiate", SECOND_ORDER.values(), ids=SECOND_ORDER)
    def test_second_derivatives_raise(self, step, differentiate, energy):
        attend, name = step
        x = torch.randn(1, 1, 4, 3, dtype=torch.float32, requires_grad=True)
        with pytest.raises(NotImplementedError, match=f"{name} must be differentiated only once.*; use lessons_lib"):
            differentiate(lambda x: energy(attend, x), x)

    supports_transforms = False

    @pytest.mark.parametrize("differentiate", (FORWARD_MODE | TRANSFORMS).values(), ids=FORWARD_MODE | TRANSFORMS)
    def test_forward_mode_and_transforms_raise(self, step, differentiate):
        if self.supports_transforms and differentiate in TRANSFORMS.values():
            differentiate(lambda x: linear(step[0], x), torch.randn(1, 1, 4, 3))
            return
        attend, name = step
        x = torch.randn(1, 1, 4, 3, dtype=torch.float32, requires_grad=True)
        with pytest.raises(
            NotImplementedError, match=f"{name} must not be .* lessons_lib.attention.attention.attention instead"
        ):
            differentiate(lambda x: linear(attend, x), x)

    @pytest.mark.parametrize("energy", [residual, linear], ids=["residual", "linear"])
    @pytest.mark.parametrize("differentiate", TWICE.values(), ids=TWICE)
    def test_second_derivatives_of_transforms_raise(self, step, differentiate, energy):
        attend, name = step
        message = "differentiated only once" if self.supports_transforms else "called inside a transform"
        with pytest.raises(NotImplementedError, match=f"{name} must (not )?be {message}.*; use"):
            differentiate(lambda x: energy(attend, x), torch.randn(1, 1, 4, 3, dtype=torch.float32))

    def test_first_derivatives_with_create_graph_are_the_same(self, step):
        attend, _ = step
        x = torch.randn(1, 1, 4, 3, dtype=torch.float32, requires_grad=True)
        plain, kept = (grad(residual(attend, x), x, create_graph=create)[0] for create in (False, True))
        assert not plain.requires_grad
        assert kept.requires_grad
        assert torch.equal(kept, plain)
        (of_others,) = grad((kept.detach() * x.square()).sum() + (0 * kept).detach().sum(), x)
        assert torch.equal(of_others, 2 * x * plain)
