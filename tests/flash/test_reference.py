"""The plain tile loop equals ``attention``, and the fast tiled path equals the plain tile loop."""

import pytest
import torch
from flash_cases import mutated
from torch.testing import assert_close

from lessons_lib.attention.attention import attention, attention_weights
from lessons_lib.attention.rules import Causal, Documents, Full, GlobalTokens, Padding, Rule, Table, Window
from lessons_lib.flash import flash_attention, reference

RULES = {
    "no mask": None,
    "full": Full(),
    "causal": Causal(),
    "causal window": Causal() & Window(9),
    "padding, one sequence without keys": Padding(torch.tensor([0, 29])),
    "documents": Causal() & Documents(torch.arange(53) // 20),
    "global tokens": Window(5) | GlobalTokens([0, 40]),
    "table for each sequence": Table(torch.rand(2, 1, 53, 53, generator=torch.Generator().manual_seed(1)) < 0.1),
    "table for each head": Table(torch.rand(1, 4, 53, 53, generator=torch.Generator().manual_seed(2)) < 0.1),
}
each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
each_size = pytest.mark.parametrize("n", [53, 29, 1], ids="{} queries".format)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 16, so that 53 keys are three whole blocks and a part of one."""
    monkeypatch.setattr(reference, "BLOCK_QUERIES", 16)
    monkeypatch.setattr(reference, "BLOCK_KEYS", 16)


def draw_inputs(n: int) -> list[torch.Tensor]:
    """Return queries over ``(2, 4, n, 5)``, and keys and values over ``(2, 2, 53, 5)``."""
    return [torch.randn(2, heads, rows, 5, requires_grad=True) for heads, rows in ((4, n), (2, 53), (2, 53))]


def attention_and_lse(q, k, v, rule):
    """Return the output of ``attention`` and, from the whole matrix of scores, the log-sum-exp."""
    scores = 5**-0.5 * q @ k.repeat_interleave(2, dim=1).mT
    if rule is not None:
        scores = scores.masked_fill(~rule.to_mask(q.shape[2], 53), -torch.inf)
    return attention(q, k, v, rule), torch.logsumexp(scores, dim=-1)


def last_rows(rule: Rule | None, n: int) -> Rule | None:
    return Table(rule.mask[..., -n:, :]) if isinstance(rule, Table) else rule


def assert_equal_with_gradients(module, function, rule, n):
    """Compare the tile loop of ``module``, forward and backward, with a differentiable function."""
    rule, inputs = last_rows(rule, n), draw_inputs(n)
    expected_out, expected_lse = function(*inputs, rule)
    with torch.no_grad():
        out, lse = module.reference_forward(*inputs, rule)
    assert_close(out, expected_out)
    assert_close(lse, expected_lse)
    grad_out, grad_lse = torch.randn_like(out), torch.randn_like(lse).masked_fill(lse == -torch.inf, 0.0)
    expected = torch.autograd.grad(
        [expected_out, expected_lse.masked_fill(lse == -torch.inf, 0.0)], inputs, [grad_out, grad_lse]
    )
    with torch.no_grad():
        grads = module.reference_backward(*inputs, rule, out, lse, grad_out, grad_lse)
    assert_close(grads, expected)


@each_size
@each_rule
def test_reference_equals_attention(rule, n):
    assert_equal_with_gradients(reference, attention_and_lse, rule, n)


@each_size
@each_rule
def test_fast_tiled_path_equals_reference(rule, n):
    def tiled(q, k, v, rule):
        return flash_attention(q, k, v, rule, backend="tiled", return_lse=True)

    assert_equal_with_gradients(reference, tiled, rule, n)


def test_reference_without_rule_returns_weighted_average():
    q, k, v = (x.detach() for x in draw_inputs(7))
    out, _ = reference.reference_forward(q, k, v, None)
    assert_close(out, attention_weights(q, k) @ v.repeat_interleave(2, dim=1))


def test_reference_forward_does_not_overflow_with_large_scores():
    q, k, v = (1e3 * x.detach() for x in draw_inputs(7))
    out, lse = reference.reference_forward(q, k, v, None)
    assert_close(out, attention(q, k, v))
    assert lse.isfinite().all()


def test_reference_forward_propagates_nan():
    q, k, v = (x.detach() for x in draw_inputs(7))
    q[0, 0, 2] = torch.nan
    out, _ = reference.reference_forward(q, k, v, None)
    assert out[0, 0, 2].isnan().all()
    assert out[1].isfinite().all()


MUTANTS = {
    "does not rescale the running sum": ("shrink * row_sum + weights", "row_sum + weights"),
    "does not rescale the running output": ("shrink * row_out + weights", "row_out + weights"),
    "does not mask the scores": ("masked_fill(~mask, -math.inf)", "masked_fill(~mask & mask, -math.inf)"),
    "does not mask the backward pass": ("torch.where(mask, torch.exp", "torch.where(mask | ~mask, torch.exp"),
    "aligns the first query with the first key": (
        "range(rows.start + m - n, rows.stop + m - n)",
        "range(rows.start, rows.stop)",
    ),
    "ignores the gradient of the log-sum-exp": (".sum(dim=-1) - grad_lse", ".sum(dim=-1)"),
    "does not scale the gradient of the queries": ("+= scale * grad_scores @ k", "+= grad_scores @ k"),
    "pairs query heads with key heads in turn": ("repeat_interleave(group_size, dim=0)", "repeat(group_size, 1, 1)"),
}


@pytest.mark.one_case
@pytest.mark.parametrize(("old", "new"), MUTANTS.values(), ids=MUTANTS)
def test_comparison_fails_for_a_wrong_implementation(old, new, tmp_path):
    mutant = mutated(reference, old, new, tmp_path)
    mutant.BLOCK_QUERIES = mutant.BLOCK_KEYS = 16
    with pytest.raises(AssertionError):
        assert_equal_with_gradients(mutant, attention_and_lse, Causal() & Padding(torch.tensor([53, 29])), 29)
