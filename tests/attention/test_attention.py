"""Attention: parity with PyTorch, and the properties that the book derives."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import grad, gradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention, attention_vjp, attention_weights
from lessons_lib.attention.positions import AlibiBias
from lessons_lib.attention.rules import Causal, Documents, Padding, Window
from lessons_lib.attention.softmax import log_sum_exp, merge_attention, softmax_jacobian

seeds = st.integers(0, 2**31)
sizes = st.integers(1, 6)

N, M, D_K, D_V = 5, 7, 3, 2


def qkv(batch=(), *, batch_kv=None, n=N, m=M, dtype=None):
    """Return random queries, keys and values; every axis has a different size."""
    batch_kv = batch if batch_kv is None else batch_kv
    shapes = (*batch, n, D_K), (*batch_kv, m, D_K), (*batch_kv, m, D_V)
    return [torch.randn(shape).to(dtype or torch.get_default_dtype()).requires_grad_() for shape in shapes]


def torch_attention(query, key, value, mask=None, *, scale=None, bias=None, grouped=False):
    """Call PyTorch's reference kernel, which has one argument for mask and bias."""
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=grouped)


def some_mask(*shape):
    """Return a random mask that allows at least the first key in each row."""
    mask = torch.rand(shape) < 0.6
    mask[..., 0] = True
    return mask


# --- parity ---------------------------------------------------------------------------------------------------------

VARIANTS = {
    "dense": lambda: {},
    "causal": lambda: {"mask": masks.causal(N, M)},
    "padding": lambda: {"mask": some_mask(2, 1, 1, M)},
    "one mask for each head": lambda: {"mask": some_mask(6, N, M)},
    "bias": lambda: {"bias": torch.randn(6, 1, M)},
    "mask and bias": lambda: {"mask": masks.causal(N, M), "bias": torch.randn(2, 6, N, M)},
    "scale": lambda: {"scale": 0.7},
    "negative scale": lambda: {"scale": -1.3, "mask": masks.causal(N, M)},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("heads", [(6, 6), (6, 3), (6, 2), (6, 1)], ids="{0[0]} query heads, {0[1]} key heads".format)
def test_attention_matches_pytorch_in_output_and_gradients(variant, heads):
    h, g = heads
    inputs, options = qkv((2, h), batch_kv=(2, g)), VARIANTS[variant]()
    ours, theirs = attention(*inputs, **options), torch_attention(*inputs, **options, grouped=True)
    upstream = torch.randn_like(ours)
    assert_close(ours, theirs)
    assert_close(grad(ours, inputs, upstream), grad(theirs, inputs, upstream))


@pytest.mark.parametrize("batch", [(), (2,), (2, 3, 4)], ids=str)
def test_any_leading_axes(batch):
    inputs = qkv(batch)
    assert_close(attention(*inputs, masks.causal(N, M)), torch_attention(*inputs, masks.causal(N, M)))


@pytest.mark.parametrize(
    ("batch", "batch_kv", "result"),
    [
        ((2, 6), (6,), (2, 6)),
        ((4,), (2, 1), (2, 4)),
        ((1,), (4,), (4,)),
        ((), (2, 3), (2, 3)),
        ((3, 1, 6), (2, 3), (3, 2, 6)),
    ],
)
def test_leading_axes_broadcast_as_in_matrix_product(batch, batch_kv, result):
    query, key, value = qkv(batch, batch_kv=batch_kv)
    h, g = result[-1], batch_kv[-1]
    whole_key, whole_value = (t.repeat_interleave(h // g, dim=-3).expand(*result, *t.shape[-2:]) for t in (key, value))
    expected = torch_attention(query.expand(*result, N, D_K), whole_key, whole_value)
    assert_close(attention(query, key, value), expected)
    assert attention_weights(query, key).shape == (*result, N, M)


def test_keys_broadcast_independently_of_values():
    query, key, value = torch.randn(2, 6, N, D_K), torch.randn(1, M, D_K), torch.randn(2, 6, M, D_V)
    upstream = torch.randn(2, 6, N, D_V)
    whole = [query, key.expand(2, 6, M, D_K).clone(), value]
    assert_close(attention(query, key, value), attention(*whole))
    shared, each = attention_vjp(query, key, value, upstream), attention_vjp(*whole, upstream)
    assert_close((shared.query, shared.key, shared.value), (each.query, each.key.sum((0, 1))[None], each.value))


def error(ours, exact):
    return (ours.double() - exact.double()).abs().max().item()


@pytest.mark.parametrize("variant", ["dense", "causal", "mask and bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rounding_error_is_within_rounding_of_result(dtype, variant):
    """The error against float64 on the same rounded inputs is that of rounding the result, and below twice PyTorch's.

    Half precision is rounded once, at the end, by at most eps / 2 of the largest entry; the error of float32, up to
    1e-6, is added.
    """
    options = VARIANTS[variant]()
    inputs = qkv((2, 6), dtype=dtype)
    options = {name: t.to(dtype) if t.is_floating_point() else t for name, t in options.items()}
    ours, theirs = attention(*inputs, **options), torch_attention(*inputs, **options)
    wide = {name: t.double() if t.is_floating_point() else t for name, t in options.items()}
    exact = attention(*[t.detach().double().requires_grad_() for t in inputs], **wide)
    assert ours.dtype == dtype
    once = torch.finfo(dtype).eps / 2 * exact.abs().max().item()
    assert error(ours, exact) <= (4 * once if dtype == torch.float32 else once + 1e-6)
    assert error(ours, exact) <= 2 * error(theirs, exact) + once


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_gradient_error_is_within_twice_pytorchs(dtype):
    inputs = qkv((2, 6), batch_kv=(2, 3), dtype=dtype)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    upstream = torch.randn(2, 6, N, D_V).to(dtype)
    exact = grad(attention(*wide), wide, upstream.double())
    ours = grad(attention(*inputs), inputs, upstream)
    theirs = grad(torch_attention(*inputs, grouped=True), inputs, upstream)
    by_hand = attention_vjp(*inputs, upstream)[:3]
    for gradient in (ours, by_hand):
        for a, b, c in zip(gradient, theirs, exact, strict=True):
            assert a.dtype == dtype
            assert error(a, c) <= 2 * error(b, c) + torch.finfo(dtype).eps * c.abs().max().item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("g", [6, 3, 1])
def test_attention_vjp_rounds_once(dtype, g):
    """The error is at most eps / 2 of the largest entry of each gradient, plus the error of float32, up to 1e-6."""
    inputs = [t.detach() for t in qkv((2, 6), batch_kv=(2, g), dtype=dtype)]
    upstream, bias = torch.randn(2, 6, N, D_V).to(dtype), torch.randn(6, 1, M).to(dtype)
    ours = attention_vjp(*inputs, upstream, bias=bias)
    exact = attention_vjp(*(t.double() for t in inputs), upstream.double(), bias=bias.double())
    for a, b in zip(ours, exact, strict=True):
        size = b.abs().max().item()
        assert error(a, b) <= torch.finfo(dtype).eps / 2 * size + 1e-6 * max(1.0, size)


def test_autocast_does_not_change_attention():
    query, key, value = qkv((2, 6), dtype=torch.bfloat16)
    bias = torch.randn(query.shape[-2], key.shape[-2], dtype=torch.float32)
    exact = attention(query, key, value, bias=bias)
    gradients = attention_vjp(query, key, value, exact, bias=bias)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(attention(query, key, value, bias=bias), exact, rtol=0, atol=0)
        for under_autocast, gradient in zip(attention_vjp(query, key, value, exact, bias=bias), gradients, strict=True):
            assert_close(under_autocast, gradient, rtol=0, atol=0)


def test_half_precision_scores_do_not_overflow():
    """128 entries of 30 give a score of 115 200 before scaling; the largest float16 is 65 504.

    The entries of the second key are 29.99. The scaled scores are about 10 000, where float32 has a spacing of 0.001,
    which determines the tolerance.
    """
    query, key = torch.full((1, 128), 30.0), torch.full((2, 128), 30.0)
    key[1] = 29.99
    weights = attention_weights(query.half(), key.half())
    assert (query.half() @ key.half().mT).isinf().all()
    exact = attention_weights(query.half().double(), key.half().double())
    assert_close(weights.double(), exact, rtol=1e-2, atol=0)
    assert exact[0, 1] > 1e-3


def test_float32_bias_is_accepted_with_half_precision_query():
    query, key, value = qkv((2, 6), dtype=torch.bfloat16)
    bias = torch.randn(6, N, M, dtype=torch.float32)
    wide = [t.detach().float() for t in (query, key, value)]
    assert_close(attention(query, key, value, bias=bias), attention(*wide, bias=bias).bfloat16(), rtol=0, atol=0)


# --- properties -----------------------------------------------------------------------------------------------------


@given(n=sizes, m=sizes, d_k=sizes, spread=st.floats(0.0, 100.0), seed=seeds)
def test_rows_are_probability_distributions(n, m, d_k, spread, seed):
    torch.manual_seed(seed)
    weights = attention_weights(spread * torch.randn(n, d_k), spread * torch.randn(m, d_k))
    assert (weights >= 0).all()
    assert_close(weights.sum(-1), torch.ones(n))


@given(n=sizes, m=sizes, seed=seeds)
def test_attention_is_invariant_to_key_order_and_equivariant_to_query_order(n, m, seed):
    torch.manual_seed(seed)
    query, key, value = qkv(n=n, m=m)
    order = torch.randperm(m)
    assert_close(attention(query, key[order], value[order]), attention(query, key, value))
    order = torch.randperm(n)
    assert_close(attention(query[order], key, value), attention(query, key, value)[order])


@given(n=sizes, m=sizes, seed=seeds)
def test_output_is_between_minimum_and_maximum_value(n, m, seed):
    torch.manual_seed(seed)
    query, key, value = qkv(n=n, m=m)
    out = attention(query, key, value)
    assert (out <= value.amax(0) + 1e-12).all()
    assert (out >= value.amin(0) - 1e-12).all()


@given(seed=seeds, t=st.integers(0, N - 1))
def test_causal_output_does_not_depend_on_later_keys(seed, t):
    torch.manual_seed(seed)
    query, key, value = qkv(n=M)
    changed_key, changed_value = key.detach().clone(), value.detach().clone()
    changed_key[t + 1 :], changed_value[t + 1 :] = torch.randn(M - t - 1, D_K), torch.randn(M - t - 1, D_V)
    before = attention(query, key, value, masks.causal(M))
    after = attention(query, changed_key, changed_value, masks.causal(M))
    assert_close(after[: t + 1], before[: t + 1], rtol=0, atol=0)
    assert (after[t + 1 :] != before[t + 1 :]).any(-1).all()


@given(seed=seeds, shift=st.floats(-100, 100))
def test_row_constant_bias_and_key_shift_change_nothing(seed, shift):
    torch.manual_seed(seed)
    query, key, _ = qkv()
    weights = attention_weights(query, key)
    assert_close(attention_weights(query, key, bias=shift * torch.randn(N, 1)), weights)
    assert_close(attention_weights(query, key + shift * torch.randn(D_K)), weights, rtol=1e-9, atol=1e-12)


def test_mask_equals_bias_of_minus_infinity():
    query, key, value = qkv((2, 6))
    mask = some_mask(2, 6, N, M)
    bias = torch.zeros(2, 6, N, M).masked_fill(~mask, -torch.inf)
    assert_close(attention(query, key, value, mask), attention(query, key, value, bias=bias), rtol=0, atol=0)


def test_default_scale_gives_scores_unit_variance():
    """The scores are the logarithms of the weights, up to a constant. The tolerance is five standard errors."""
    n, m = 1009, 1013
    for d_k in (16, 64, 1024):
        log_weights = attention_weights(torch.randn(n, d_k), torch.randn(m, d_k)).log()
        scores = log_weights - log_weights.mean(-1, keepdim=True)
        assert abs(scores.var().item() - 1) < 5 * math.sqrt(2 / d_k * (1 / n + 1 / m))


def test_attention_equals_weights_times_values():
    query, key, value = qkv((2, 6), batch_kv=(2, 3))
    weights = attention_weights(query, key, masks.causal(N, M))
    assert_close(attention(query, key, value, masks.causal(N, M)), weights @ value.repeat_interleave(2, dim=1))


def test_grouped_heads_are_consecutive():
    """With 6 query heads and 3 key heads, a change of key head 1 changes the output of heads 2 and 3 alone."""
    query, key, value = (t.detach() for t in qkv((1, 6), batch_kv=(1, 3)))
    before = attention(query, key, value)
    key[:, 1] += 1.0
    value[:, 1] += 1.0
    changed = (attention(query, key, value) != before)[0].flatten(1).any(-1)
    assert changed.tolist() == [False, False, True, True, False, False]


@given(cut=st.integers(1, M - 1), seed=seeds)
def test_attention_over_parts_of_keys_merges_into_attention(cut, seed):
    torch.manual_seed(seed)
    query, key, value = qkv((2, 6))
    mask = masks.causal(N, M)  # so that some query has no visible key in the second part if the cut is late

    def part(keys):
        scores = query @ key[..., keys, :].mT / math.sqrt(D_K)
        return (
            attention(query, key[..., keys, :], value[..., keys, :], mask[:, keys]),
            log_sum_exp(scores, mask[:, keys]),
        )

    out, _ = merge_attention(*part(slice(0, cut)), *part(slice(cut, M)))
    assert_close(out, attention(query, key, value, mask))


RULES = {
    "causal": (Causal(), masks.causal(N, M)),
    "both": (Causal() & Window(3), masks.causal(N, M) & (Window(3).to_mask(N, M))),
    "padding": (Padding(torch.tensor([M, 3])), masks.padding(torch.tensor([M, 3]), M)),
    "documents": (Documents(torch.arange(M) // 3), masks.documents(torch.arange(M) // 3)[-N:]),
}


@pytest.mark.parametrize(("rule", "table"), RULES.values(), ids=RULES)
def test_rule_gives_same_result_as_its_mask(rule, table):
    inputs = qkv((2, 6), batch_kv=(2, 3))
    upstream = torch.randn(2, 6, N, D_V)
    assert_close(attention(*inputs, rule), attention(*inputs, table), rtol=0, atol=0)
    assert_close(attention_weights(*inputs[:2], rule), attention_weights(*inputs[:2], table), rtol=0, atol=0)
    assert_close(attention_vjp(*inputs, upstream, rule), attention_vjp(*inputs, upstream, table), rtol=0, atol=0)


# --- softcap, alibi_slopes and sinks --------------------------------------------------------------------------------


def test_score_mods_are_applied_in_documented_order():
    """The output equals the formula of the module, entry by entry."""
    query, key, value = (t.detach() for t in qkv((2, 6), batch_kv=(2, 3)))
    alibi_slopes, sinks, bias = torch.rand(6), torch.randn(6), torch.randn(N, M)
    out = attention(
        query, key, value, Causal(), scale=0.9, bias=bias, softcap=0.8, alibi_slopes=alibi_slopes, sinks=sinks
    )
    for b, h, i in [(0, 0, 0), (1, 3, 2), (1, 5, N - 1)]:
        position = i + M - N
        scores = [
            0.8 * math.tanh(0.9 * (query[b, h, i] @ key[b, h // 2, j]).item() / 0.8)
            - alibi_slopes[h].item() * abs(position - j)
            + bias[i, j].item()
            for j in range(position + 1)
        ]
        total = math.exp(sinks[h]) + sum(map(math.exp, scores))
        wanted = sum(math.exp(s) / total * value[b, h // 2, j] for j, s in enumerate(scores))
        assert_close(out[b, h, i], wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_slopes_equal_alibi_bias(dtype):
    query, key, value = qkv((2, 6), batch_kv=(2, 3), dtype=dtype)
    alibi = AlibiBias(6)
    bias = alibi(torch.arange(M - N, M), torch.arange(M), dtype=torch.promote_types(dtype, torch.float32))
    assert_close(
        attention(query, key, value, alibi_slopes=torch.tensor(alibi.slopes)),
        attention(query, key, value, bias=bias),
    )


def test_sink_equals_key_with_zero_value():
    query, key, value = qkv((2, 6))
    sinks = torch.randn(6)
    longer = [torch.cat([t, torch.zeros(2, 6, 1, t.shape[-1])], dim=-2) for t in (key, value)]
    bias = torch.cat([torch.zeros(6, N, M), sinks[:, None, None].expand(6, N, 1)], dim=-1)
    mask = torch.cat([masks.causal(N, M), torch.ones(N, 1, dtype=torch.bool)], dim=-1)
    assert_close(attention(query, key, value, Causal(), sinks=sinks), attention(query, *longer, mask, bias=bias))


def test_sink_of_zero_is_softmax_off_by_one_and_minus_infinity_has_no_effect():
    query, key, _ = qkv()
    scores = (query @ key.mT / math.sqrt(D_K)).detach()
    off_by_one = scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))
    assert_close(attention_weights(query, key, sinks=torch.zeros(1)), off_by_one)
    without_sink = attention_weights(query, key, sinks=torch.tensor([-torch.inf]))
    assert_close(without_sink, attention_weights(query, key))


@given(cap=st.floats(0.1, 50.0), spread=st.floats(0.1, 100.0), seed=seeds)
def test_softcap_bounds_scores_and_preserves_order(cap, spread, seed):
    torch.manual_seed(seed)
    query, key, _ = (t.detach() for t in qkv())
    capped, uncapped = (attention_weights(spread * query, key, softcap=c).log() for c in (cap, None))
    assert (capped.amax(-1) - capped.amin(-1) <= 2 * cap + 1e-9).all()
    best = uncapped.argmax(-1, keepdim=True)
    assert (capped.gather(-1, best) >= capped.amax(-1, keepdim=True) - 1e-12).all()


def test_large_softcap_changes_nothing():
    query, key, value = qkv((2, 6))
    assert_close(attention(query, key, value, softcap=1e6), attention(query, key, value))


@pytest.mark.parametrize("batch", [(), (6,), (2, 6), (2, 3, 6)], ids=str)
def test_slopes_and_sinks_are_per_head_of_third_axis_from_end(batch):
    query, key, value = qkv(batch)
    h = batch[-1] if batch else 1
    numbers = torch.rand(h)
    out = attention(query, key, value, alibi_slopes=numbers, sinks=numbers)
    flat = [t.reshape(-1, *t.shape[-2:]) for t in (query, key, value)]
    each = [numbers[at % h][None] for at in range(len(flat[0]))]
    heads = [attention(*one, alibi_slopes=x, sinks=x) for *one, x in zip(*flat, each, strict=True)]
    assert_close(out, torch.stack(heads).reshape(out.shape))


def test_gradcheck_with_score_mods():
    inputs, learnt = qkv((1, 4), batch_kv=(1, 2)), [torch.rand(4, requires_grad=True) for _ in range(2)]

    def function(q, k, v, alibi_slopes, sinks):
        return attention(q, k, v, Causal(), softcap=0.7, alibi_slopes=alibi_slopes, sinks=sinks)

    assert gradcheck(function, (*inputs, *learnt))


def test_fully_masked_row_with_sink_returns_zeros():
    inputs, sinks = qkv((2, 6)), torch.tensor([0.0, 1.0, -1.0, 30.0, -torch.inf, 2.0], requires_grad=True)
    out = attention(*inputs, torch.zeros(N, 1, dtype=torch.bool), sinks=sinks)
    assert (out == 0).all()
    assert all((gradient == 0).all() for gradient in grad(out, [*inputs, sinks], torch.ones_like(out)))


BAD_SCORE_MODS = {
    "zero cap": ({"softcap": 0.0}, "softcap must be finite and above 0, got 0.0"),
    "infinite cap": ({"softcap": math.inf}, "softcap must be finite and above 0, got inf"),
    "a number": (
        {"alibi_slopes": torch.ones(())},
        r"alibi_slopes must be one .* for each head, over \(h,\) = \(6,\), got",
    ),
    "key heads": ({"sinks": torch.ones(3)}, r"sinks must be .* \(h,\) = \(6,\), got .* over \(3,\)"),
    "integers": ({"sinks": torch.ones(6, dtype=torch.int64)}, "sinks must be one floating-point .* torch.int64"),
    "device": ({"alibi_slopes": torch.ones(6, device="meta")}, "query and alibi_slopes must be on the same device"),
}


@pytest.mark.rejects
@pytest.mark.parametrize("case", BAD_SCORE_MODS)
def test_invalid_score_mods_raise(case):
    change, message = BAD_SCORE_MODS[case]
    query, key, value = qkv((2, 6), batch_kv=(2, 3))
    with pytest.raises(ValueError, match=message):
        attention(query, key, value, **change)
    with pytest.raises(ValueError, match=message):
        attention_weights(query, key, **change)


# --- fully masked rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["mask", "bias"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_fully_masked_row_returns_zeros_and_zero_gradients(how, dtype):
    inputs = qkv(n=2, m=3, dtype=dtype)
    allowed = torch.tensor([[True, False, True], [False, False, False]])
    options = (
        {"mask": allowed}
        if how == "mask"
        else {"bias": torch.zeros(2, 3, dtype=dtype).masked_fill(~allowed, -torch.inf)}
    )
    out = attention(*inputs, **options)
    assert (out[1] == 0).all()
    assert (attention_weights(*inputs[:2], **options)[1] == 0).all()
    for gradients in (
        grad(out, inputs, torch.ones_like(out)),
        attention_vjp(*inputs, torch.ones_like(out), **options)[:3],
    ):
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert (gradients[0][1] == 0).all()
        assert (gradients[0][0] != 0).any()


# --- dropout --------------------------------------------------------------------------------------------------------


def test_dropout_drops_weights_and_preserves_mean():
    """The mean of 4001 outputs differs from the output without dropout by less than five standard errors."""
    query, key, value = (t.detach() for t in qkv())
    p, copies = 0.3, 4001
    out = attention(query.expand(copies, N, D_K), key, value, dropout_p=p)
    standard_error = out.std(0) / math.sqrt(copies)
    assert ((out.mean(0) - attention(query, key, value)).abs() < 5 * standard_error).all()
    identity = torch.eye(M)
    dropped = attention(query, key, identity, dropout_p=p)
    weights = attention_weights(query, key)
    assert torch.all((dropped == 0) | torch.isclose(dropped, weights / (1 - p)))
    assert (dropped == 0).any()
    assert_close(attention(query, key, value, dropout_p=0.0), weights @ value)


# --- attention_vjp --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("heads", [(6, 6), (6, 2), (6, 1)], ids="{0[0]} query heads, {0[1]} key heads".format)
def test_attention_vjp_matches_autograd(variant, heads):
    h, g = heads
    inputs, options = qkv((2, h), batch_kv=(2, g)), VARIANTS[variant]()
    bias = options.get("bias")
    wanted = inputs if bias is None else [*inputs, bias.requires_grad_()]
    out = attention(*inputs, **options)
    upstream = torch.randn_like(out)
    by_hand = attention_vjp(*inputs, upstream, **options)
    assert_close([g for g in by_hand if g is not None], list(grad(out, wanted, upstream)))
    assert (by_hand.bias is None) == (bias is None)


@pytest.mark.parametrize(
    ("batch", "batch_kv"), [((2, 6), (6,)), ((4,), (2, 1)), ((1,), (4,)), ((), (2, 3)), ((3, 1, 6), (2, 3))]
)
def test_attention_vjp_sums_over_broadcast_axes(batch, batch_kv):
    inputs = qkv(batch, batch_kv=batch_kv)
    bias = torch.randn(N, 1, requires_grad=True)
    out = attention(*inputs, bias=bias)
    upstream = torch.randn_like(out)
    assert_close(list(attention_vjp(*inputs, upstream, bias=bias)), list(grad(out, (*inputs, bias), upstream)))


def test_attention_vjp_matches_central_differences():
    """Compare with central differences of the loss <upstream, O> in random directions; the error is O(step^2)."""
    inputs, mask = [t.detach() for t in qkv((1, 6), batch_kv=(1, 2))], masks.causal(N, M)
    upstream, step = torch.randn(1, 6, N, D_V), 1e-5
    directions = [torch.randn_like(t) for t in inputs]
    ahead, behind = (
        (upstream * attention(*[t + sign * step * d for t, d in zip(inputs, directions, strict=True)], mask)).sum()
        for sign in (1, -1)
    )
    by_hand = attention_vjp(*inputs, upstream, mask)[:3]
    slope = sum((g * d).sum() for g, d in zip(by_hand, directions, strict=True))
    assert_close((ahead - behind) / (2 * step), slope, rtol=1e-7, atol=0)


@pytest.mark.parametrize("batch_kv", [(1, 4), (1, 2)], ids=["one key head each", "grouped"])
def test_gradcheck(batch_kv):
    inputs, bias = qkv((1, 4), batch_kv=batch_kv), torch.randn(N, M, requires_grad=True)
    assert gradcheck(lambda q, k, v, b: attention(q, k, v, masks.causal(N, M), bias=b), (*inputs, bias))


def test_attention_vjp_of_scores_uses_softmax_jacobian():
    query, key, value = (t.detach() for t in qkv())
    upstream = torch.randn(N, D_V)
    jacobian = softmax_jacobian(attention_weights(query, key))
    grad_scores = torch.einsum("nij,nj->ni", jacobian, upstream @ value.mT)
    assert_close(attention_vjp(query, key, value, upstream).query, grad_scores @ key / math.sqrt(D_K))


def test_equal_values_give_zero_query_and_key_gradients():
    query, key, value = (t.detach() for t in qkv())
    gradients = attention_vjp(query, key, value[:1].expand(M, D_V), torch.randn(N, D_V))
    assert_close(gradients.query, torch.zeros(N, D_K))
    assert_close(gradients.key, torch.zeros(M, D_K))


# --- errors ---------------------------------------------------------------------------------------------------------


def zeros(*shape, dtype=torch.float64, device="cpu"):
    return torch.zeros(shape, dtype=dtype, device=device)


BAD = {
    "width": ({"key": zeros(7, 5)}, "query and key must have the same width, got 3 and 5"),
    "no width": ({"query": zeros(5, 0), "key": zeros(7, 0)}, r"query must be .* width at least 1, got \(5, 0\)"),
    "one axis": ({"query": zeros(3)}, r"query must be \(\*batch, rows, width\) .* got \(3,\)"),
    "rows": ({"value": zeros(6, 2)}, r"key and value must have the same number of rows.* got \(7, 3\) and \(6, 2\)"),
    "batch": (
        {"query": zeros(4, 2, 5, 3), "key": zeros(3, 2, 7, 3), "value": zeros(3, 2, 7, 2)},
        r"leading axes of query and key must broadcast, .* divide .* got \(4, 2, 5, 3\) and \(3, 2, 7, 3\)",
    ),
    "heads": (
        {"query": zeros(2, 6, 5, 3), "key": zeros(2, 4, 7, 3), "value": zeros(2, 4, 7, 2)},
        r"the heads of key divide those of query, got \(2, 6, 5, 3\) and \(2, 4, 7, 3\)",
    ),
    "batch that resembles groups": (
        {"query": zeros(6, 5, 3), "key": zeros(3, 7, 3), "value": zeros(3, 7, 2)},
        r"leading axes of query and key must broadcast, .* got \(6, 5, 3\) and \(3, 7, 3\)",
    ),
    "groups": (
        {"query": zeros(1, 6, 5, 3), "key": zeros(1, 3, 7, 3), "value": zeros(1, 2, 7, 2)},
        r"key and value must have .* leading axes that broadcast, got \(1, 3, 7, 3\) and \(1, 2, 7, 2\)",
    ),
    "key dtype": ({"key": zeros(7, 3, dtype=torch.float32)}, "query and key must have the same dtype, got"),
    "value dtype": ({"value": zeros(7, 2, dtype=torch.float16)}, "query and value must have the same dtype, got"),
    "integers": ({"query": zeros(5, 3, dtype=torch.int64)}, "query must hold floating-point numbers, got torch.int64"),
    "device": ({"key": zeros(7, 3, device="meta")}, "query and key must be on the same device, got cpu and meta"),
    "float mask": ({"mask": zeros(5, 7)}, "mask must be Boolean.* got torch.float64; .* are a bias"),
    "rule for another batch": (
        {"mask": Padding(torch.tensor([3, 4]))},
        r"mask must broadcast to the scores, \(5, 7\), .* got a rule over \(2, 1, 5, 7\)",
    ),
    "rule for other keys": ({"mask": Documents(torch.arange(6))}, "document of each of 7 keys and 5 queries"),
    "integer mask": ({"mask": zeros(5, 7, dtype=torch.int64)}, "mask must be Boolean.* got torch.int64"),
    "transposed mask": ({"mask": zeros(7, 5, dtype=torch.bool)}, r"mask must broadcast .* \(5, 7\), .* got \(7, 5\)"),
    "Boolean bias": ({"bias": zeros(5, 7, dtype=torch.bool)}, "bias must be of type torch.float64 .* got torch.bool"),
    "bias dtype": ({"bias": zeros(5, 7, dtype=torch.float32)}, "bias must be of type torch.float64 .* torch.float32"),
    "bias shape": ({"bias": zeros(2, 5, 7)}, r"bias must broadcast to the scores, \(5, 7\), .* got \(2, 5, 7\)"),
    "bias device": ({"bias": zeros(5, 7, device="meta")}, "query and bias must be on the same device"),
    "scale": ({"scale": math.nan}, "scale must be finite, got nan"),
    "infinite scale": ({"scale": -math.inf}, "scale must be finite, got -inf"),
}


@pytest.mark.rejects
@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_raise(case):
    change, message = BAD[case]
    inputs = {"query": zeros(5, 3), "key": zeros(7, 3), "value": zeros(7, 2)} | change
    with pytest.raises(ValueError, match=message):
        attention(**inputs)
    with pytest.raises(ValueError, match=message):
        attention_vjp(**inputs, grad_output=zeros(5, 2))
    if "value" not in change:
        del inputs["value"]
        with pytest.raises(ValueError, match=message):
            attention_weights(**inputs)


@pytest.mark.rejects
def test_mask_that_would_enlarge_scores_raises():
    """A mask over (b, 1, n, n) for scores over (b, n, n) would broadcast to (b, b, n, n) and mix the sequences."""
    query, key, value = qkv((2,), n=M)
    with pytest.raises(ValueError, match=r"the scores, \(2, 7, 7\), without enlarging them, got \(2, 1, 7, 7\)"):
        attention(query, key, value, masks.causal(M).expand(2, 1, M, M))


@pytest.mark.rejects
@pytest.mark.parametrize("dropout_p", [-0.1, 1.0, math.nan])
def test_invalid_dropout_probability_raises(dropout_p):
    with pytest.raises(ValueError, match=r"dropout_p must be in \[0, 1\), got"):
        attention(*qkv(), dropout_p=dropout_p)


@pytest.mark.rejects
def test_grad_output_of_wrong_shape_or_dtype_raises():
    with pytest.raises(ValueError, match=r"grad_output must have the output's shape, \(5, 2\), got \(5, 3\)"):
        attention_vjp(*qkv(), torch.randn(N, D_K))
    with pytest.raises(ValueError, match="query and grad_output must have the same dtype"):
        attention_vjp(*qkv(), torch.randn(N, D_V).float())


# --- wrong implementations, which the tests above must catch --------------------------------------------------------


def forward(query, key, value, mask, bias, *, scale=None, forbid=-torch.inf, axis=-1, repeat=torch.repeat_interleave):
    """A second implementation of attention, whose arguments introduce the mistakes."""
    share = query.shape[-3] // key.shape[-3]
    key, value = repeat(key, share, -3), repeat(value, share, -3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale + bias
    return torch.softmax(scores.masked_fill(~mask, forbid), axis) @ value


def tile(tensor, times, axis):
    return torch.cat([tensor] * times, dim=axis)


def masks_after_the_softmax(query, key, value, mask, bias):
    weights = attention_weights(query, key, bias=bias) * mask
    return weights @ value.repeat_interleave(3, -3)


WRONG = {
    "forgets the scale": lambda *x: forward(*x, scale=1.0),
    "divides by d_k": lambda *x: forward(*x, scale=1 / D_K),
    "divides by the root of d_model": lambda *x: forward(*x, scale=(6 * D_K) ** -0.5),
    "multiplies by the root of d_k": lambda *x: forward(*x, scale=D_K**0.5),
    "ignores the mask": lambda q, k, v, mask, bias: forward(q, k, v, torch.ones_like(mask), bias),
    "transposes the mask": lambda q, k, v, mask, bias: forward(q, k, v, mask.mT, bias),
    "inverts the mask": lambda q, k, v, mask, bias: forward(q, k, v, ~mask, bias, forbid=-1e9),
    "masks after the softmax": masks_after_the_softmax,
    "masks with zeros": lambda *x: forward(*x, forbid=0.0),
    "softmax over the queries": lambda *x: forward(*x, forbid=-1e9, axis=-2),
    "ignores the bias": lambda q, k, v, mask, bias: forward(q, k, v, mask, torch.zeros_like(bias)),
    "subtracts the bias": lambda q, k, v, mask, bias: forward(q, k, v, mask, -bias),
    "repeats heads in turn": lambda *x: forward(*x, repeat=tile),
}


def everything_at_once():
    """Return inputs with grouped heads, a mask and a bias; no row is fully masked, so that no mistake gives NaN."""
    return (*qkv((1, 6), batch_kv=(1, 2), n=M), masks.causal(M), torch.randn(M, M))


def test_reference_without_mistake_matches_attention():
    *inputs, mask, bias = everything_at_once()
    assert_close(forward(*inputs, mask, bias), attention(*inputs, mask, bias=bias))


@pytest.mark.parametrize("wrong", WRONG)
def test_parity_test_catches_wrong_implementations(wrong):
    *inputs, mask, bias = everything_at_once()
    result = WRONG[wrong](*inputs, mask, bias)
    assert result.isfinite().all()
    with pytest.raises(AssertionError):
        assert_close(result, attention(*inputs, mask, bias=bias))


@pytest.mark.parametrize("forbid", [-1e9, -torch.inf])
def test_fully_masked_row_catches_other_fill_values(forbid):
    """With -1e9 the output is the average over forbidden keys; with -inf it is zero divided by zero."""
    *inputs, mask, bias = everything_at_once()
    mask[-1] = False
    wrong, right = forward(*inputs, mask, bias, forbid=forbid), attention(*inputs, mask, bias=bias)
    assert_close(wrong[..., :-1, :], right[..., :-1, :])
    with pytest.raises(AssertionError):
        assert_close(wrong, right)


def backward(query, key, value, upstream, *, jacobian=True, scale=True, row_sum=True):
    """A second implementation of the backward pass, whose arguments introduce the mistakes."""
    weights, tau = attention_weights(query, key), D_K**-0.5 if scale else 1.0
    scores = upstream @ value.mT
    if jacobian:
        scores = weights * (scores - row_sum * (scores * weights).sum(-1, keepdim=True))
    return tau * scores @ key, tau * scores.mT @ query, weights.mT @ upstream


@pytest.mark.parametrize("mistake", ["jacobian", "row_sum", "scale"])
def test_vjp_test_catches_wrong_backward_passes(mistake):
    query, key, value = (t.detach() for t in qkv())
    upstream = torch.randn(N, D_V)
    right = attention_vjp(query, key, value, upstream)[:3]
    assert_close(backward(query, key, value, upstream), right)
    for wrong, gradient in zip(backward(query, key, value, upstream, **{mistake: False})[:2], right[:2], strict=True):
        with pytest.raises(AssertionError):
            assert_close(wrong, gradient)
