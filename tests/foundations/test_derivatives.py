"""Functions with a hand-written backward pass have first derivatives, and raise errors for all others.

The tests of the Triton kernels are in ``tests/flash/test_autograd.py``.
"""

import re

import pytest
import torch
from derivatives import Refusals, residual
from torch import distributed, nn
from torch.autograd import functional, grad
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from lessons_lib.attention.attention import attention
from lessons_lib.distributed import ring_attention
from lessons_lib.flash import as_implementation, flash_attention
from lessons_lib.foundations.derivatives import first_derivatives_only
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

TILED = "flash_attention with backend='tiled'"


def tiled(*qkv):
    return flash_attention(*qkv, is_causal=True, backend="tiled")


class TestTiled(Refusals):
    """Flash attention with the tiled backend."""

    supports_transforms = True

    @pytest.fixture
    def step(self):
        return tiled, TILED


class TestRing(Refusals):
    """Ring attention with one process."""

    @pytest.fixture
    def step(self, tmp_path, monkeypatch):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
        distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
        yield lambda *qkv: ring_attention(*qkv, is_causal=True), "ring_attention"
        distributed.destroy_process_group()


def test_second_derivatives_of_other_operations_are_correct():
    x, y = (torch.randn(1, 1, 4, 3, requires_grad=True) for _ in range(2))
    (towards_y,) = grad(tiled(x, x, x).sum() + (y * y * y).sum(), y, create_graph=True)
    assert_close(grad(towards_y.sum(), y)[0], 6 * y)


def test_first_derivatives_work_with_checkpoint_and_retained_graph():
    x = torch.randn(1, 1, 9, 3, requires_grad=True)
    (expected,) = grad(residual(causal_attention, x), x)
    for create in (False, True):
        energy = checkpoint(lambda x: residual(tiled, x), x, use_reentrant=False)
        assert_close(grad(energy, x, create_graph=create)[0], expected)
    energy = residual(tiled, x)
    energy.backward(retain_graph=True)
    energy.backward()
    assert_close(x.grad, 2 * expected)


def causal_attention(q, k, v):
    return attention(q, k, v, torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril())


def test_second_derivatives_of_slopes_and_sinks_raise():
    q = torch.randn(1, 2, 4, 3)
    for name in ("alibi_slopes", "sinks"):
        parameters = torch.rand(2)
        with pytest.raises(NotImplementedError, match=re.escape(TILED)):
            functional.hessian(lambda x, name=name: flash_attention(q, q, q, **{name: x}).sum(), parameters)


def test_second_derivatives_of_windowed_gpt_raise():
    """Without an error the second derivative would lack attention: 124.49 instead of 141.19 in one such model."""
    model = GPT(GPTConfig(17, 16, 16, 2, 2), implementation=as_implementation(window=4))
    tokens = torch.randint(0, 17, (2, 9))
    parameters = list(model.parameters())
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    gradients = grad(loss, parameters, create_graph=True)
    with pytest.raises(NotImplementedError, match=re.escape(TILED)):
        grad(sum(g.sum() for g in gradients), parameters)


def test_attention_passes_gradgradcheck():
    """The errors recommend ``attention`` for second derivatives."""
    qkv = [torch.randn(1, 1, 4, 3, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradgradcheck(causal_attention, qkv)


def test_first_derivatives_only_accepts_gradient_none():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(x, None)
            ctx.factor = factor
            return factor * x

        @staticmethod
        @first_derivatives_only("scaled")
        def backward(ctx, saved, grad_output):
            assert [s is None for s in saved] == [False, True]
            return ctx.factor * grad_output, None

    x = torch.ones(2, requires_grad=True)
    (found,) = grad(Scaled.apply(x, 3.0).sum(), x, create_graph=True)
    assert found.tolist() == [3.0, 3.0]
    with pytest.raises(NotImplementedError, match="scaled must be differentiated only once"):
        found.sum().backward()
