"""``fused_attention`` matches ``attention`` in output, gradients and errors."""

import math
from functools import partial

import pytest
import torch
from torch.autograd import grad
from torch.testing import assert_close

from lessons_lib.attention import masks, sdpa
from lessons_lib.attention.attention import attention
from lessons_lib.attention.rules import Blocks, Causal, Documents, Full, LeftPadding, Padding, Prefix, Window
from lessons_lib.attention.sdpa import fused_attention
from lessons_lib.efficient.skipping import skipping_attention
from lessons_lib.flash import flash_attention

N, M, D_K, D_V = 5, 7, 3, 2


def qkv(b=2, h=6, g=3, n=N, m=M, dtype=None):
    shapes = (b, h, n, D_K), (b, g, m, D_K), (b, g, m, D_V)
    return [torch.randn(shape).to(dtype or torch.get_default_dtype()).requires_grad_() for shape in shapes]


def some_mask(*shape):
    mask = torch.rand(shape) < 0.6
    mask[..., 0, :] = False  # a fully masked row
    return mask


MASKS = {
    "none": lambda n, m: None,
    "everything": lambda n, m: Full(),
    "causal": lambda n, m: Causal(),
    "window": lambda n, m: Causal() & Window(3),
    "wide window": lambda n, m: Causal() & Window(m),
    "prefix": lambda n, m: Prefix(3),
    "documents": lambda n, m: Documents(torch.arange(m) // 3),
    "padding": lambda n, m: Padding(torch.tensor([m, 0])),
    "left padding": lambda n, m: LeftPadding(torch.tensor([m - 1, 0])) & Causal(),
    "nothing": lambda n, m: Causal() & ~Causal(),
    "causal table": lambda n, m: masks.causal(n, m),
    "table": lambda n, m: some_mask(n, m),
    "a table for each head": lambda n, m: some_mask(6, n, m),
    "columns of one": lambda n, m: some_mask(2, 6, n, 1),
}
BIASES = {
    "no bias": lambda n, m: None,
    "bias": lambda n, m: torch.randn(6, n, m),
    "bias that forbids": lambda n, m: torch.randn(n, m).masked_fill(~some_mask(n, m), -torch.inf),
    "one row": lambda n, m: torch.randn(2, 1, 1, m),
}


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("n", "m", "g"), [(N, M, 3), (M, M, 6), (1, M, 1), (M, N, 2)])
def test_fused_attention_matches_attention_in_output_and_gradients(n, m, g, mask, bias):
    if (n > m) and mask in {"causal table", "documents"}:
        pytest.skip("not made for more queries than keys")
    inputs, mask, bias = qkv(n=n, m=m, g=g), MASKS[mask](n, m), BIASES[bias](n, m)
    ours, exact = (f(*inputs, mask, bias=bias, scale=0.7) for f in (fused_attention, attention))
    assert_close(ours, exact)
    upstream = torch.randn_like(exact)
    assert_close(*(grad(out, inputs, upstream, allow_unused=True) for out in (ours, exact)))


FUNCTIONS = {
    "fused": fused_attention,
    "skipping": skipping_attention,
    "auto": flash_attention,
    **{backend: partial(flash_attention, backend=backend) for backend in ("tiled", "torch")},
}


@pytest.mark.parametrize("mask", ["everything", "causal", "causal table", "padding"])
@pytest.mark.parametrize("scale", [0.0, -0.0, -0.7, -3.0])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_zero_and_negative_scales_match_attention(name, scale, mask):
    query, key, _ = qkv(n=M)
    inputs, mask = [query, key, torch.randn_like(key).requires_grad_()], MASKS[mask](M, M)
    ours, exact = (f(*inputs, mask, scale=scale) for f in (FUNCTIONS[name], attention))
    assert_close(ours, exact)
    upstream = torch.randn_like(exact)
    assert_close(*(grad(out, inputs, upstream) for out in (ours, exact)))


@pytest.mark.parametrize("change", ["bias", "alibi_slopes", "sinks"])
@pytest.mark.parametrize("scale", [0.0, -0.7])
def test_bias_slopes_and_sinks_keep_their_sign_under_zero_or_negative_scale(scale, change):
    inputs = qkv()
    changes = {change: torch.randn(6, N, M) if change == "bias" else torch.rand(6)}
    assert_close(*(f(*inputs, Causal(), scale=scale, **changes) for f in (fused_attention, attention)))


CHANGES = {
    "alibi_slopes": ["alibi_slopes"],
    "sinks": ["sinks"],
    "both": ["alibi_slopes", "sinks"],
}


@pytest.mark.parametrize("bias", ["no bias", "bias that forbids"])
@pytest.mark.parametrize("names", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "a table for each head"])
def test_slopes_and_sinks_match_attention(mask, names, bias):
    inputs, mask, bias = qkv(), MASKS[mask](N, M), BIASES[bias](N, M)
    learned = {name: torch.tensor([0.3, 1.0, 0.0, 2.0, 0.1, 0.7], requires_grad=True) for name in names}
    ours, exact = (f(*inputs, mask, bias=bias, **learned) for f in (fused_attention, attention))
    assert_close(ours, exact)
    upstream = torch.randn_like(exact)
    assert_close(*(grad(out, [*inputs, *learned.values()], upstream) for out in (ours, exact)))


def test_sink_of_minus_infinity_has_no_effect():
    inputs = qkv()
    ours = fused_attention(*inputs, sinks=torch.full((6,), -torch.inf))
    assert_close(ours, attention(*inputs))


@pytest.mark.rejects
def test_softcap_or_wrong_number_of_sinks_raises():
    with pytest.raises(
        ValueError, match=r"softcap must be None, PyTorch's fused attention caps no scores, got 2\.0; use"
    ):
        fused_attention(*qkv(), softcap=2.0)
    with pytest.raises(ValueError, match=r"sinks must be .* \(h,\) = \(6,\)"):
        fused_attention(*qkv(), sinks=torch.zeros(3))


def test_keys_and_values_broadcast_over_batch():
    inputs = qkv()
    inputs[1:] = (x[:1].detach().requires_grad_() for x in inputs[1:])
    ours, exact = (f(*inputs, Full()) for f in (fused_attention, attention))
    assert_close(ours, exact)
    assert_close(*(grad(out, inputs, torch.ones_like(out)) for out in (ours, exact)))


def test_bias_gradient_matches_attention():
    inputs, bias = qkv(), torch.randn(6, 1, M, requires_grad=True)
    ours, exact = (f(*inputs, Causal(), bias=bias) for f in (fused_attention, attention))
    assert_close(*(grad(out, bias, torch.ones_like(out)) for out in (ours, exact)))


def test_dropout_drops_weights():
    query, key, _ = qkv(h=2, g=2, n=29, m=29)
    value = torch.eye(29).expand(2, 2, 29, 29)
    weights = attention(query, key, value, Causal())
    dropped = fused_attention(query, key, value, Causal(), dropout_p=0.4)
    assert torch.all((dropped == 0) | torch.isclose(dropped, weights / 0.6))
    assert ((dropped == 0) & (weights > 0)).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_rounding_error_is_within_twice_epsilon(dtype):
    """The error is at most twice the dtype's epsilon times the largest entry; measured below 1.5 times."""
    inputs = [x.detach() for x in qkv(n=65, m=65, dtype=dtype)]
    exact = attention(*(x.double() for x in inputs), Causal())
    ours = fused_attention(*inputs, Causal())
    assert ours.dtype == dtype
    assert_close(ours.double(), exact, rtol=0, atol=2 * torch.finfo(dtype).eps * exact.abs().max().item())


@pytest.mark.parametrize(
    ("mask", "n", "made"),
    [(None, 5, False), (Full(), 5, False), (Causal(), 7, False), (Causal(), 1, False), (Causal(), 5, True)],
)
def test_mask_tensor_is_made_only_where_required(monkeypatch, mask, n, made):
    tables = []
    for rule in {type(mask or Full())}:
        to_mask = rule.to_mask
        monkeypatch.setattr(
            rule, "to_mask", lambda *at, to_mask=to_mask, **on: (tables.append(at), to_mask(*at, **on))[1]
        )
    fused_attention(*qkv(n=n), mask)
    assert bool(tables) is made


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(5, 3).double()}, r"must be \(batch, heads, rows, width\), got \(5, 3\)"),
        ({"key": torch.zeros(2, 4, 7, 3).double()}, "heads of key divide those of query"),
        ({"scale": math.nan}, "scale must be finite, got nan"),
        ({"dropout_p": 1.0}, r"dropout_p must be in \[0, 1\), got 1.0"),
        ({"mask": torch.zeros(5, 7)}, "mask must be Boolean"),
        ({"mask": Prefix(9)}, "prefix must be at most 7, got 9"),
        ({"mask": Padding(torch.tensor([1, 2, 3]))}, r"got a rule over \(3, 1, 5, 7\)"),
        ({"mask": "causal"}, "mask must be Boolean, True where a query may attend, got str"),
        ({"bias": torch.zeros(6, 7).double()}, r"bias must broadcast to the scores, \(2, 6, 5, 7\)"),
        ({"bias": torch.zeros(5, 7).int()}, "bias must be of type torch.float64"),
    ],
)
def test_invalid_arguments_raise(change, message):
    given = dict(zip(("query", "key", "value"), qkv(), strict=True))
    with pytest.raises(ValueError, match=message):
        fused_attention(**given | change)


@pytest.mark.rejects
@pytest.mark.parametrize("n_values", [1, 3])
@pytest.mark.parametrize("mask", MASKS)
def test_one_query_head_for_several_key_heads_raises(mask, n_values):
    """Each implementation raises its own error, not PyTorch's."""
    query, key, value = torch.randn(2, 1, M, 3), torch.randn(2, 3, M, 3), torch.randn(2, n_values, M, 3)
    mask = None if "head" in mask or "one" in mask else MASKS[mask](M, M)
    assert attention(query, key, value, mask).shape == (2, 3, M, 3)
    with pytest.raises(ValueError, match=r"query must have as many heads as key, or a multiple .* got 1 and 3; use"):
        fused_attention(query, key, value, mask)
    for function in FUNCTIONS.values():
        with pytest.raises(ValueError, match="heads"):
            function(query, key, key, Full() if mask is None else mask)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("as_band", lambda rule, n, m: sdpa.Full()),
        ("rule_for_scores", lambda mask, scores: sdpa.Full()),
        ("rule_for_scores", lambda mask, scores: Blocks(3)),
    ],
    ids=["treats any rule as no mask", "ignores the mask", "another mask"],
)
def test_parity_test_catches_wrong_implementations(monkeypatch, name, wrong):
    monkeypatch.setattr(sdpa, name, wrong)
    inputs = qkv()
    with pytest.raises(AssertionError):
        assert_close(fused_attention(*inputs, Causal()), attention(*inputs, Causal()))
