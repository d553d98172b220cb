"""Tests of linear attention with decay and of the delta rule, against the recurrence token by token."""

import pytest
import torch
from torch.nn.functional import normalize
from torch.testing import assert_close

from lessons_lib.efficient import delta
from lessons_lib.efficient.delta import _CHUNK, decayed_attention, delta_rule
from lessons_lib.efficient.linear import linear_attention
from lessons_lib.efficient.recurrence import recurrence

B, H, N, DK, DV = 2, 3, 2 * _CHUNK + 5, 6, 4
RULES = ("linear", "decay", "delta", "both")
each_rule = pytest.mark.parametrize("rule", RULES)


def inputs(n: int = N) -> dict[str, torch.Tensor]:
    return {
        "query": torch.randn(B, H, n, DK),
        "key": normalize(torch.randn(B, H, n, DK), dim=-1),
        "value": torch.randn(B, H, n, DV),
        "beta": torch.rand(B, H, n) * 2,
        "log_decay": -torch.rand(B, H, n),
        "initial": torch.randn(B, H, DK, DV),
    }


def arguments_of(rule: str, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the arguments that the rule accepts."""
    without = {"linear": {"beta", "log_decay"}, "decay": {"beta"}, "delta": {"log_decay"}, "both": set()}
    return {name: tensor for name, tensor in given.items() if name not in without[rule]}


def run(rule: str, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return (delta_rule if rule in ("delta", "both") else decayed_attention)(**arguments_of(rule, given))


def token_by_token(rule: str, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence of the module's docstring."""
    state, outs = given["initial"], []
    for t in range(given["query"].shape[2]):
        q, k, v = (given[name][:, :, t] for name in ("query", "key", "value"))
        if rule in ("decay", "both"):
            state = given["log_decay"][:, :, t, None, None].exp() * state
        if rule in ("delta", "both"):
            recalled = torch.einsum("bhkv,bhk->bhv", state, k)
            v = given["beta"][:, :, t, None] * (v - recalled)
        state = state + k[..., :, None] * v[..., None, :]
        outs.append(torch.einsum("bhkv,bhk->bhv", state, q))
    return torch.stack(outs, dim=2), state


# --- equality -------------------------------------------------------------------------------------------------------


@each_rule
@pytest.mark.parametrize("n", [1, 7, _CHUNK, _CHUNK + 1, N])
def test_chunked_form_equals_the_recurrence(rule, n):
    given = inputs(n)
    assert_close(run(rule, given), token_by_token(rule, given))


@each_rule
def test_chunked_form_gradients_equal_the_recurrence(rule):
    given = {name: tensor.requires_grad_() for name, tensor in inputs(_CHUNK + 9).items()}
    grads = []
    for way in (run, token_by_token):
        out, state = way(rule, given)
        wanted = tuple(arguments_of(rule, given).values())
        grads.append(torch.autograd.grad([out, state], wanted, [torch.ones_like(out), torch.ones_like(state)]))
    assert_close(*grads)


def test_delta_rule_equals_qwen3_next():
    theirs = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next").torch_recurrent_gated_delta_rule
    given = {name: tensor.float() for name, tensor in inputs().items()}
    swapped = [given[name].transpose(1, 2) for name in ("query", "key", "value", "log_decay", "beta")]
    out, state = theirs(*swapped, given["initial"], True)
    ours, after = delta_rule(**given | {"query": given["query"] / DK**0.5})
    assert_close(ours, out.transpose(1, 2), rtol=1e-4, atol=1e-4)  # both in single precision
    assert_close(after, state, rtol=1e-4, atol=1e-4)


@each_rule
@pytest.mark.parametrize("cut", [1, _CHUNK, _CHUNK + 3])
def test_state_continues_a_sequence(rule, cut):
    given = inputs()
    first, second = (
        {name: tensor if name == "initial" else tensor[:, :, part] for name, tensor in given.items()}
        for part in (slice(0, cut), slice(cut, None))
    )
    out, state = run(rule, first)
    rest, after = run(rule, second | {"initial": state})
    assert_close((torch.cat([out, rest], dim=2), after), run(rule, given))


# --- properties ------------------------------------------------------------------------------------------------------


def test_decayed_attention_without_decay_is_linear_attention_without_denominator():
    given = inputs()
    q, k, v = (given[name] for name in ("query", "key", "value"))
    out, _ = decayed_attention(q, k, v)
    assert_close(out, (q @ k.mT).tril() @ v)
    q, k = q.exp(), k.exp()
    total, _ = decayed_attention(q, k, torch.ones_like(v))
    assert_close(decayed_attention(q, k, v)[0] / total, linear_attention(q, k, v, causal=True, feature_map=lambda x: x))


def test_decayed_attention_state_equals_the_parallel_scan():
    given = inputs(11)
    added = given["key"][..., :, None] * given["value"][..., None, :]
    a = given["log_decay"].exp()[..., None].expand(B, H, 11, DK * DV)
    states = recurrence(a, added.flatten(-2), given["initial"].flatten(-2))
    assert_close(run("decay", given)[1].flatten(-2), states[..., -1, :])


def test_decayed_attention_constant_decay_weights_by_distance():
    given, n = inputs(9), 9
    q, k, v = (given[name] for name in ("query", "key", "value"))
    out, _ = decayed_attention(q, k, v, log_decay=torch.full((B, H, n), -0.3))
    distance = torch.arange(n)[:, None] - torch.arange(n)
    assert_close(out, ((-0.3 * distance).exp() * (q @ k.mT)).tril() @ v)


def test_delta_rule_overwrites_values():
    key = normalize(torch.randn(1, 1, 1, DK), dim=-1).expand(1, 1, 5, DK)
    value = torch.randn(1, 1, 5, DV)
    out, _ = delta_rule(key, key, value, torch.ones(1, 1, 5))
    assert_close(out, value)
    assert_close(decayed_attention(key, key, value)[0], value.cumsum(2))


def test_delta_rule_keeps_values_of_orthogonal_keys():
    keys = torch.linalg.qr(torch.randn(DK, DK)).Q[None, None]
    values = torch.randn(1, 1, DK, DV)
    _, state = delta_rule(keys, keys, values, torch.ones(1, 1, DK))
    assert_close(keys @ state, values)
    half, _ = delta_rule(keys[:, :, :1], keys[:, :, :1], -values[:, :, :1], torch.full((1, 1, 1), 0.5), initial=state)
    assert_close(half, torch.zeros(1, 1, 1, DV))  # halfway between the old value and its opposite


def test_delta_rule_step_is_gradient_descent():
    given = inputs(1)
    state = given["initial"].requires_grad_()
    error = torch.einsum("bhkv,bhk->bhv", state, given["key"][:, :, 0]) - given["value"][:, :, 0]
    (slope,) = torch.autograd.grad(error.square().sum() / 2, state)
    assert_close(run("delta", given)[1], state - given["beta"][..., None] * slope)


def test_strong_decay_over_long_sequences_is_exact():
    """The ratio of two cumulative products that both underflow is still exact."""
    given = inputs() | {"log_decay": torch.full((B, H, N), -20.0)}
    for rule in ("decay", "both"):
        out, state = run(rule, given)
        assert out.isfinite().all()
        assert_close((out, state), token_by_token(rule, given))


@each_rule
def test_shared_key_heads_equal_repeated_heads(rule):
    given = inputs(9)
    shared = given | {name: given[name][:, :1] for name in ("key", "value")}
    repeated = given | {name: given[name][:, :1].expand(-1, H, -1, -1) for name in ("key", "value")}
    assert_close(run(rule, shared), run(rule, repeated))


def test_half_precision_is_computed_in_float32():
    given = {name: tensor.to(torch.bfloat16) for name, tensor in inputs().items()}
    given["initial"] = given["initial"].float()
    out, state = run("both", given)
    exact, _ = token_by_token("both", {name: tensor.double() for name, tensor in given.items()})
    assert (out.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    assert_close(out.double(), exact, rtol=2**-8, atol=1e-2)  # one rounding of the output


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key": (B, H, 8, DK), "value": (B, H, 8, DV)}, "query and key must have the same number of rows, got 9"),
        ({"value": (B, H, 8, DV)}, "key and value must have the same leading axes and number of rows"),
        ({"beta": (B, H, 8)}, r"beta must hold one number for each query, \(2, 3, 9\), got \(2, 3, 8\)"),
        ({"log_decay": (B, H)}, "log_decay must hold one number for each query"),
        ({"initial": (B, H, DV, DK)}, r"initial must be \(2, 3, 6, 4\), a state for each query head"),
    ],
)
def test_invalid_shapes_raise(changed, message):
    with pytest.raises(ValueError, match=message):
        run("both", inputs(9) | {name: -torch.rand(*shape) for name, shape in changed.items()})


@pytest.mark.rejects
@pytest.mark.parametrize("log_decay", [0.1, -torch.inf, torch.nan])
def test_positive_or_infinite_log_decay_raises(log_decay):
    with pytest.raises(ValueError, match="log_decay must be finite and at most 0, got up to"):
        run("both", inputs(9) | {"log_decay": torch.full((B, H, 9), log_decay)})


@pytest.mark.rejects
def test_different_dtypes_raise():
    with pytest.raises(ValueError, match="query and beta must have the same dtype"):
        run("both", inputs(9) | {"beta": torch.rand(B, H, 9, dtype=torch.float32)})


# --- wrong implementations ------------------------------------------------------------------------------------------


def corrects_before_it_decays(q, k, v, beta, log_a, state):
    """Computes the error with the state before the decay instead of after it."""
    out, after = [], state
    for t in range(q.shape[-2]):
        wrong = v[..., t, :] - (k[..., t, None, :] @ after)[..., 0, :]
        written = k[..., t, :, None] * (beta[..., t, None] * wrong)[..., None, :]
        after = log_a[..., t, None, None].exp() * after + written
        out.append((q[..., t, None, :] @ after)[..., 0, :])
    return torch.stack(out, -2), after


def reads_before_it_writes(q, k, v, beta, log_a, state):
    out, after = real(q, k, v, beta, log_a, state)
    return out - (q * k).sum(-1, keepdim=True) * v, after


real = delta._chunk


@pytest.mark.parametrize("wrong", [corrects_before_it_decays, reads_before_it_writes])
def test_comparison_with_the_recurrence_catches_wrong_chunks(wrong, monkeypatch):
    monkeypatch.setattr(delta, "_chunk", wrong)
    with pytest.raises(AssertionError):
        test_chunked_form_equals_the_recurrence("both", 7)
