"""The tiled backend equals attention (outputs, log-sum-exps and gradients), and its memory is linear."""

import math
import subprocess
import sys
from functools import partial
from itertools import product

import pytest
import torch
from flash_cases import Case, assert_right, attend_with, errors, mutated_tiled
from torch.testing import assert_close

from lessons_lib.attention import rules
from lessons_lib.attention.attention import attention
from lessons_lib.attention.positions import AlibiBias
from lessons_lib.attention.rules import (
    BigBird,
    Blocks,
    Causal,
    Dilated,
    Documents,
    Full,
    GlobalTokens,
    LeftPadding,
    Padding,
    Prefix,
    Rule,
    Table,
    Window,
)
from lessons_lib.flash import flash_attention, tile_scores, tile_shapes
from lessons_lib.flash.band import KernelBand, kernel_band
from lessons_lib.flash.tile_scores import Scorer
from lessons_lib.flash.tile_shapes import TileBuffer

HALF = [torch.float16, torch.bfloat16]
# The gradient of a slope is a sum over all pairs, of terms that cancel in each row.
SLOPES = 5.0


@pytest.fixture
def small_blocks(monkeypatch):
    """Use blocks of 16, so that small cases have edge, inner and partial tiles; two heads at once, or one group."""
    monkeypatch.setattr(tile_shapes, "ROWS", 16)
    monkeypatch.setattr(tile_shapes, "MASKED_ROWS", 16)
    monkeypatch.setattr(tile_shapes, "KEYS", 16)
    monkeypatch.setattr(tile_shapes, "TILE_SCORES", 2 * 16 * 16)


def tiled_attention(case: Case, scale: float | None = None):
    options = case.options() | {"backend": "tiled", "return_lse": True, "scale": scale}
    return lambda q, k, v, **learnt: flash_attention(q, k, v, **options, **learnt)


# --- comparison with attention --------------------------------------------------------------------------------------

SIZES = [(1, 1), (1, 37), (37, 37), (32, 64), (29, 53), (53, 29)]
MASKS = [
    {},
    {"is_causal": True},
    {"window": 1},
    {"window": 19},
    {"is_causal": True, "window": 1},
    {"is_causal": True, "window": 19},
]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("with_lengths", [False, True], ids=["all", "lengths"])
def test_tiled_equals_attention(n, m, mask, with_lengths):
    lengths = (m, 0, max(1, m // 2)) if with_lengths else None
    case = Case(b=3, h=4, g=2, n=n, m=m, d=5, key_lengths=lengths, **mask)
    assert_right(errors(tiled_attention(case), case, torch.float64), torch.float64)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("layout", ["padded", "interleaved", "odd", "transposed"])
def test_any_dtype_and_strides_equal_attention(dtype, layout):
    case = Case(b=2, h=6, g=2, n=41, m=59, d=7, is_causal=True, key_lengths=(59, 31))
    assert_right(errors(tiled_attention(case), case, dtype, layout=layout), dtype)


@pytest.mark.parametrize("scale", [0.7, -0.7, 0.0, 3.0])
def test_any_scale_equals_attention(scale):
    case = Case(d=5, is_causal=True)
    assert_right(errors(tiled_attention(case, scale), case, torch.float64, scale=scale), torch.float64)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("scale", [1.0, 4.0, 40.0])
def test_small_and_large_scores_equal_attention(scale, mask):
    """Some sequences have small scores, from which no maximum is subtracted, and others do not."""
    case = Case(b=2, h=4, g=2, n=53, m=61, d=5, key_lengths=(61, 40), **mask)
    times = max(1.0, scale)  # an error of a score is an error of its weight, and scores are as large as the scale
    assert_right(errors(tiled_attention(case, scale), case, torch.float64, scale=scale), torch.float64, times=times)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("unit", [tile_scores.NATS, tile_scores.BITS], ids=["nats", "bits"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_small_scores_in_either_unit_equal_attention(scale, mask, unit, monkeypatch):
    monkeypatch.setattr(tile_scores, "UNIT_OF_SMALL_SCORES", unit)
    case = Case(b=2, h=4, g=2, n=53, m=61, d=5, key_lengths=(61, 40), **mask)
    assert_right(errors(tiled_attention(case, scale), case, torch.float64, scale=scale), torch.float64)


@pytest.mark.parametrize("unit", [tile_scores.NATS, tile_scores.BITS], ids=["nats", "bits"])
@pytest.mark.parametrize("size", [29.5, 30.5, 1e3])
def test_very_negative_scores_keep_their_precision(size, unit, monkeypatch):
    """Keys opposite to the queries: the lowest scores that count as small, and lower ones."""
    monkeypatch.setattr(tile_scores, "UNIT_OF_SMALL_SCORES", unit)
    q = torch.full((1, 1, 5, 4), 0.5, dtype=torch.float32)
    k = -size * q[:, :, :1] + torch.tensor([0.0, 1e-3, -2e-3, 5e-3])[:, None].float()
    v = 1e-20 * torch.randn(1, 1, 4, 4, dtype=torch.float32)
    assert (tile_scores.score_bound(q[0][:, None], k[0], Full(), 1.0) < tile_scores.MAX_SMALL_SCORE) == (size < 30)
    out, lse = flash_attention(q, k, v, scale=1.0, backend="tiled", return_lse=True)
    exact = attention(*(x.double() for x in (q, k, v)), scale=1.0)
    # The error of a score, 6e-8 of its size, becomes an error of its weight; up to 4e-7 of the size was measured.
    assert_close(out.double(), exact, rtol=1e-6 * size, atol=0)
    assert lse.isfinite().all()


@pytest.mark.parametrize(
    ("exp_", "is_slow"),
    [(tile_scores.UNIT_OF_ANY_SCORES.exp_, False), (tile_scores.BITS.exp_, True)],
    ids=["ours", "bare"],
)
def test_weights_are_never_subnormal(exp_, is_slow, monkeypatch):
    """Products with subnormal numbers can take hundreds of times as long, so such weights are zero."""
    found = []

    def watched(bits):
        weights = exp_(bits)
        found.extend(weights[weights > 0].tolist())
        return weights

    monkeypatch.setattr(tile_scores, "UNIT_OF_ANY_SCORES", tile_scores.UNIT_OF_ANY_SCORES._replace(exp_=watched))
    q, k, v, grad_out = torch.randn(4, 1, 2, 60, 16, dtype=torch.float32).unbind()
    q.mul_(30).requires_grad_()
    out = flash_attention(q, k, v, is_causal=True, backend="tiled")
    torch.autograd.grad(out, q, grad_out)
    assert (min(found) < torch.finfo(torch.float32).tiny) == is_slow
    exact = attention(*(x.detach().double() for x in (q, k, v)), Causal())
    assert_close(out.detach().double(), exact, rtol=0, atol=1e-4)  # scores of 400 have rounding errors of 3e-5


def test_real_block_size_equals_attention():
    case = Case(h=2, g=1, n=300, m=517, d=8, is_causal=True, window=290)
    assert_right(errors(tiled_attention(case), case, torch.float64), torch.float64)


def test_gradients_pass_gradcheck(small_blocks):
    case = Case(b=2, h=2, g=1, n=5, m=18, d=3, is_causal=True, key_lengths=(18, 2))
    qkv = [torch.randn(2, heads, rows, 3, requires_grad=True) for heads, rows in ((2, 5), (1, 18), (1, 18))]

    def finite(q, k, v):
        out, lse = tiled_attention(case)(q, k, v)
        return out, lse.masked_fill(lse == -torch.inf, 0.0)

    assert torch.autograd.gradcheck(finite, qkv)


# --- score modifications --------------------------------------------------------------------------------------------

CHANGES = {
    "softcap": {"softcap": 1.3},
    "alibi_slopes": {"alibi_slopes": (0.5, 0.02, 0.11, 0.0)},
    "sinks": {"sinks": (0.7, -torch.inf, 3.0, -2.0)},
    "all three": {"softcap": 2.1, "alibi_slopes": (0.3, 0.0, 0.07, 0.9), "sinks": (-0.4, 1.6, 0.0, 5.0)},
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("mask", [{}, {"is_causal": True}, {"is_causal": True, "window": 19}], ids=str)
@pytest.mark.parametrize(("n", "m"), [(1, 37), (29, 53), (53, 29)])
def test_score_mods_equal_attention(n, m, mask, change):
    case = Case(b=3, h=4, g=2, n=n, m=m, d=5, key_lengths=(m, 0, m // 2), **mask, **change)
    assert_right(errors(tiled_attention(case), case, torch.float64), torch.float64, times=SLOPES)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_score_mods_in_any_precision(dtype):
    case = Case(b=2, h=4, g=2, n=41, m=59, d=7, is_causal=True, **CHANGES["all three"])
    assert_right(errors(tiled_attention(case), case, dtype, layout="odd"), dtype, times=SLOPES)


@pytest.mark.parametrize("scale", [-0.7, 0.0, 3.0])
def test_softcap_after_any_scale(scale):
    case = Case(d=5, is_causal=True, softcap=1.7)
    assert_right(errors(tiled_attention(case, scale), case, torch.float64, scale=scale), torch.float64)


def test_gradients_of_score_mods_pass_gradcheck(small_blocks):
    qkv = [torch.randn(2, heads, rows, 3, requires_grad=True) for heads, rows in ((2, 5), (1, 18), (1, 18))]
    learnt = [torch.rand(2, requires_grad=True), torch.randn(2, requires_grad=True)]

    def function(q, k, v, alibi_slopes, sinks):
        options = {"softcap": 0.9, "alibi_slopes": alibi_slopes, "sinks": sinks, "cache_lengths": torch.tensor([18, 3])}
        return flash_attention(q, k, v, is_causal=True, **options, backend="tiled", return_lse=True)

    assert torch.autograd.gradcheck(function, [*qkv, *learnt])


def test_alibi_slopes_equal_alibi_bias():
    q, k, v = (torch.randn(2, heads, rows, 3) for heads, rows in ((6, 7), (3, 11), (3, 11)))
    alibi = AlibiBias(6)
    bias = alibi(torch.arange(4, 11), torch.arange(11))
    ours = flash_attention(q, k, v, is_causal=True, alibi_slopes=torch.tensor(alibi.slopes))
    assert_close(ours, attention(q, k, v, Causal(), bias=bias))


def test_lse_of_a_query_without_keys_is_its_sink():
    q, k, v = (torch.randn(1, 2, 3, 4) for _ in range(3))
    sinks = torch.tensor([0.3, -torch.inf], requires_grad=True)
    nothing = torch.tensor([0])
    out, lse = flash_attention(q, k, v, key_lengths=nothing, sinks=sinks, return_lse=True)
    assert (out == 0).all()
    assert_close(lse[0], torch.tensor([[0.3] * 3, [-torch.inf] * 3]))
    lse[0, 0].sum().backward()
    assert sinks.grad.tolist() == [3.0, 0.0]


def test_gradient_of_slopes_is_not_computed_if_not_needed(monkeypatch):
    q = torch.randn(1, 2, 5, 3, requires_grad=True)
    wanted = []
    for_all_heads = Scorer.for_all_heads
    monkeypatch.setattr(
        Scorer, "for_all_heads", lambda *arguments: (wanted.append(arguments[4:]), for_all_heads(*arguments))[1]
    )
    alibi_slopes, sinks = torch.rand(2), torch.rand(2, requires_grad=True)
    flash_attention(q, q, q, alibi_slopes=alibi_slopes, sinks=sinks, backend="tiled").sum().backward()
    assert wanted == [(), ((False, True, False),)]


# --- cache lengths --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("n", [1, 5, 23])
def test_cache_lengths_equal_attention_per_sequence(n, mask):
    case = Case(b=4, h=4, g=2, n=n, m=37, d=5, cache_lengths=(37, 0, 11, 24), **mask)
    assert_right(errors(tiled_attention(case), case, torch.float64), torch.float64)


def test_score_mods_with_cache_lengths():
    case = Case(b=3, h=4, g=2, n=5, m=19, d=3, is_causal=True, cache_lengths=(4, 19, 0), **CHANGES["all three"])
    assert_right(errors(tiled_attention(case), case, torch.float64), torch.float64, times=SLOPES)


def test_cache_lengths_ignore_unwritten_memory():
    """Two sequences of different lengths, a window, and three new tokens; the unwritten memory is NaN."""
    cached, w = [9, 4], Causal() & Window(4)
    k, v = (torch.full((2, 1, 30, 3), torch.nan) for _ in range(2))
    for b, m in enumerate(cached):
        k[b, :, :m], v[b, :, :m] = torch.randn(2, 1, m, 3)
    q = torch.randn(2, 2, 3, 3)
    out = flash_attention(q, k, v, w, cache_lengths=torch.tensor(cached))
    for b, m in enumerate(cached):
        assert_close(out[b : b + 1], attention(q[b : b + 1], k[b : b + 1, :, :m], v[b : b + 1, :, :m], w))


@pytest.mark.parametrize(
    "rule", [Prefix(3), Dilated(2, 3), Blocks(4), ~Causal(), Window(3) | GlobalTokens([0]), Full()], ids=str
)
def test_cache_lengths_with_any_rule_about_positions(rule):
    q, k, v = (torch.randn(3, heads, rows, 3) for heads, rows in ((2, 2), (1, 13), (1, 13)))
    out = flash_attention(q, k, v, rule, cache_lengths=torch.tensor([13, 5, 4]))
    for b, m in enumerate([13, 5, 4]):
        assert_close(out[b : b + 1], attention(q[b : b + 1], k[b : b + 1, :, :m], v[b : b + 1, :, :m], rule))


def test_cache_lengths_equal_the_documented_rule():
    """Sequence ``b`` has the rule ``rule.shifted(L_b - m, 0) & Padding(cache_lengths)`` over all ``m`` keys."""
    q, k, v = (torch.randn(2, heads, rows, 3) for heads, rows in ((2, 4), (1, 11), (1, 11)))
    lengths, rule = torch.tensor([11, 6]), Causal() & Window(3)
    out = flash_attention(q, k, v, rule, cache_lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        mask = (rule.shifted(length - 11, 0) & Padding(lengths[b])).to_mask(4, 11)
        assert_close(out[b : b + 1], attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], mask))


# --- properties -----------------------------------------------------------------------------------------------------


def test_query_without_keys_returns_zero_and_has_no_gradient():
    q, k, v = (torch.randn(2, 2, 7, 3, requires_grad=True) for _ in range(3))
    lengths = torch.tensor([0, 7])
    out, lse = flash_attention(q, k, v, key_lengths=lengths, backend="tiled", return_lse=True)
    assert (out[0] == 0).all()
    assert (lse[0] == -torch.inf).all()
    (out.sum() + lse[1].sum()).backward()
    assert all((x.grad[0] == 0).all() and (x.grad[1] != 0).any() for x in (q, k, v))


def test_padding_is_not_read():
    q, k, v = (torch.randn(2, 1, 9, 4) for _ in range(3))
    before = flash_attention(q, k, v, key_lengths=torch.tensor([9, 4]), backend="tiled")
    k[1, :, 4:], v[1, :, 4:] = torch.nan, torch.nan
    assert torch.equal(flash_attention(q, k, v, key_lengths=torch.tensor([9, 4]), backend="tiled"), before)


def test_large_scores_do_not_overflow():
    q, k, v = (1e3 * torch.randn(1, 1, 20, 4, dtype=torch.float32) for _ in range(3))
    out, lse = flash_attention(q, k, v, backend="tiled", return_lse=True)
    assert out.isfinite().all()
    assert lse.isfinite().all()
    assert lse.abs().max() > 1e5


def test_scores_of_minus_infinity_count_as_hidden():
    q, k = torch.full((1, 1, 3, 2), -1e200), torch.full((1, 1, 4, 2), 1e200)
    q[0, 0, 1] = 1e-200
    leaves = [x.requires_grad_() for x in (q, k, torch.randn(1, 1, 4, 2))]
    out, lse = flash_attention(*leaves, backend="tiled", return_lse=True)
    assert (out[0, 0, [0, 2]] == 0).all()
    assert lse[0, 0].isfinite().tolist() == [False, True, False]
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves)


def test_nan_score_propagates_to_its_row_only():
    q, k, v = (torch.randn(1, 1, 6, 4) for _ in range(3))
    q[0, 0, 2] = torch.nan
    out = flash_attention(q, k, v, backend="tiled")
    assert out[0, 0, 2].isnan().all()
    assert out[0, 0, [0, 1, 3, 4, 5]].isfinite().all()


HIDING = {
    "causal": Causal(),
    "window": Causal() & Window(5),
    "padding": Padding(torch.tensor([20])),
    "causal after padding": LeftPadding(torch.tensor([22])) & Causal(),
    "table": Table(torch.rand(23, 23, generator=torch.Generator().manual_seed(7)) < 0.5),
    "table for each head": Table(torch.rand(1, 4, 23, 23, generator=torch.Generator().manual_seed(8)) < 0.5),
    "columns": Table((torch.arange(23) % 21 > 1).expand(23, 23)),
}


def assert_hidden_key_has_no_effect(attend, rule, at, bad, score_mods):
    """NaN in a key has no effect on queries from which the key is hidden, nor on their gradients.

    If the key is hidden from all queries, it has no effect on any gradient.
    """
    seen = rule.to_mask(23).expand(1, 4, 23, 23)[..., at]
    q, k, v = (torch.randn(1, heads, 23, 5) for heads in (4, 2, 2))
    upstream = torch.randn(1, 4, 23, 5).masked_fill(seen[..., None], 0.0)
    found = []
    for value in (0.5, bad):
        k = k.clone()
        k[:, :, at, 0] = value
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out, lse = attend(*leaves, rule, **score_mods)
        blind = torch.where(seen[..., None], 0.0, out)
        grads = torch.autograd.grad(blind, leaves, upstream)
        of_keys = () if seen.any() else grads[1:]
        found.append([blind, torch.where(seen, 0.0, lse), torch.where(seen[..., None], 0.0, grads[0]), *of_keys])
        if seen.any():  # NaN reaches the queries that may attend to the key
            assert out[seen].isnan().all() == math.isnan(value)
    assert_close(*found)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "score_mods", [{}, {"softcap": 2.0}, {"alibi_slopes": torch.tensor([0.5, 0.1, 0.2, 0.0])}], ids=str
)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("at", [0, 21, 22])
@pytest.mark.parametrize("rule", HIDING.values(), ids=HIDING)
def test_nan_in_a_hidden_key_has_no_effect(rule, at, bad, score_mods):
    if bad == torch.inf and rule.to_mask(23)[..., at].any():
        pytest.skip("a score of infinity is as good as none or as NaN, by the sign of the query")
    attend = partial(flash_attention, backend="tiled", return_lse=True)
    assert_hidden_key_has_no_effect(attend, rule, at, bad, score_mods)


@pytest.mark.parametrize("n", [1, 3, 40])
def test_overflow_in_a_hidden_product_has_no_effect(n):
    """Products are sums of infinities of both signs, so they are NaN, although queries and keys are finite."""
    q, k, v = torch.ones(1, 1, n, 4), torch.randn(1, 1, 41, 4), torch.randn(1, 1, 41, 4)
    rule = Table(torch.ones(n, 41, dtype=torch.bool).index_fill(1, torch.tensor([7]), False))
    q[..., 0], q[..., 1], k[..., 7, :2] = 1e200, -1e200, 1e200
    k[..., torch.arange(41) != 7, :2] = 0
    wanted = attention(q, k, v, rule)
    assert wanted.isfinite().all()
    assert_close(flash_attention(q, k, v, rule, backend="tiled"), wanted)


# --- rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(7, 7), (5, 11), (11, 5), (1, 6)])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_band_equals_its_mask_in_every_tile(n, m, mask):
    case = Case(n=n, m=m, **mask)
    whole = case.mask()[0, 0]
    band = KernelBand.of(n, m, is_causal=case.is_causal, window=case.window)
    assert torch.equal(band.mask(range(n), range(m)), whole)
    for start, stop in ((a, b) for a, b in product(range(n), range(1, n + 1)) if a < b):
        rows = range(start, stop)
        seen = whole[start:stop].any(dim=0).nonzero().flatten().tolist()
        assert list(band.key_range(rows)) == seen
        assert list(band.key_range(rows, m - 2)) == [j for j in seen if j < m - 2]
        for first, last in ((a, b) for a, b in product(range(m), range(1, m + 1)) if a < b):
            assert band.covers(rows, range(first, last)) == whole[start:stop, first:last].all()


def test_band_bound_that_hides_nothing_is_none():
    assert KernelBand.of(1, 9, is_causal=True, window=None)[2:] == (None, None)
    assert KernelBand.of(4, 9, is_causal=True, window=9)[2:] == (None, 0)
    assert KernelBand.of(4, 9, is_causal=False, window=4)[2:] == (3, None)


def test_kernel_band_finds_bands_with_lengths_only():
    lengths = torch.tensor([3, 9])
    assert kernel_band(Full(), 2, 9, 9) == (KernelBand(9, 9, None, None), None)
    assert kernel_band(Causal() & Window(4), 2, 9, 9) == (KernelBand(9, 9, 3, 0), None)
    band, found = kernel_band(Padding(lengths) & Causal() & Padding(torch.tensor(5)), 2, 4, 9)
    assert band == KernelBand(4, 9, None, 0)
    assert found.tolist() == [3, 5]
    for rule in (Prefix(2), ~Causal(), Causal() | Window(2), Causal() & Blocks(3), rules.Band(-1, 3), Table(RANDOM)):
        assert kernel_band(rule, 2, 9, 9) is None


RANDOM = torch.rand(9, 9, generator=torch.Generator().manual_seed(1)) < 0.3
IDS = torch.tensor([[0] * 20 + [1] * 30 + [2] * 3, [5] * 7 + [4] * 40 + [5] * 6])
RULES = {
    "prefix": Prefix(20),
    "documents": Causal() & Documents(IDS),
    "longformer": Window(5) | GlobalTokens([0, 40]),
    "dilated": Causal() & Dilated(4, 3),
    "blocks": Blocks(11),
    "big bird": BigBird(7, window=1, n_global=1, n_random=2, generator=torch.Generator().manual_seed(2), block=8),
    "ragged": LeftPadding(torch.tensor([3, 41])) & Causal(),
    "strictly before": rules.Band(None, -1),
    "not": ~Window(9) & Padding(torch.tensor([53, 30])),
    "table": Table(torch.rand(53, 53, generator=torch.Generator().manual_seed(3)) < 0.1),
    "table for each sequence": Table(torch.rand(2, 1, 53, 53, generator=torch.Generator().manual_seed(4)) < 0.1),
    "table for each head": Table(torch.rand(1, 4, 53, 53, generator=torch.Generator().manual_seed(5)) < 0.1),
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("backend", ["auto", "tiled", "torch"])
@pytest.mark.parametrize("n", [53, 29], ids="{} queries".format)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_any_rule_equals_attention_with_its_mask(rule, n, backend):
    rule = Table(rule.mask[..., -n:, :]) if isinstance(rule, Table) else rule
    q, k, v = (torch.randn(2, heads, rows, 5, requires_grad=True) for heads, rows in ((4, n), (2, 53), (2, 53)))
    upstream = torch.randn(2, 4, n, 5)
    ours = flash_attention(q, k, v, rule, scale=0.3, backend=backend)
    exact = attention(q, k, v, rule.to_mask(n, 53), scale=0.3)
    assert_close(ours, exact)
    assert_close(torch.autograd.grad(ours, (q, k, v), upstream), torch.autograd.grad(exact, (q, k, v), upstream))


def test_rule_and_options_are_combined():
    q, k, v = (torch.randn(2, 2, 13, 3) for _ in range(3))
    lengths = torch.tensor([13, 6])
    out = flash_attention(q, k, v, Blocks(5), is_causal=True, window=4, key_lengths=lengths)
    assert_close(out, attention(q, k, v, (Blocks(5) & Causal() & Window(4) & Padding(lengths)).to_mask(13)))
    table = Blocks(5).to_mask(13)
    assert_close(flash_attention(q, k, v, table, is_causal=True), attention(q, k, v, table & Causal().to_mask(13)))


def test_rules_are_evaluated_in_tiles_only(monkeypatch):
    """A mask is at most as large as a block, and ``to_mask`` is never called."""
    largest = []
    tile = Rule.tile
    monkeypatch.setattr(Rule, "tile", lambda *at, **on: (largest.append(max(map(len, at[1:3]))), tile(*at, **on))[1])
    monkeypatch.setattr(Rule, "to_mask", lambda *_, **__: pytest.fail("the whole table was asked for"))
    q = torch.randn(1, 1, 1100, 4)
    ids = torch.arange(1100) // 300
    for rule in (Causal() & Documents(ids), Prefix(400), Window(100) | GlobalTokens([0])):
        flash_attention(q, q, q, rule)
    assert max(largest) <= max(tile_shapes.MASKED_ROWS, tile_shapes.KEYS)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Documents(torch.arange(5)), r"ids must name the document of each of 13 keys and 13 queries, got \(5,\)"),
        (Padding(torch.tensor([1, 2, 3])), r"without enlarging them, got a rule over \(3, 1, 13, 13\)"),
        (torch.ones(7, 13, dtype=torch.bool), r"mask must broadcast to the scores, \(2, 2, 13, 13\)"),
        (torch.ones(13, 13), "mask must be Boolean"),
        ("causal", "mask must be Boolean, True where a query may attend, got str"),
    ],
    ids=["other length", "other batch", "other table", "numbers", "a word"],
)
def test_invalid_masks_raise(mask, message):
    q = torch.randn(2, 2, 13, 3)
    with pytest.raises(ValueError, match=message):
        flash_attention(q, q, q, mask)


# --- memory and work ------------------------------------------------------------------------------------------------

PEAK = """
import resource, sys, torch
from lessons_lib.flash import flash_attention
torch.set_num_threads(1)
q, k, v, upstream = (torch.randn(1, 2, 4096, 64) for _ in range(4))
flash_attention(q[:, :, :300], k[:, :, :300], v[:, :, :300], backend="tiled")  # allocates the libraries' own memory
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
flash_attention(q, k, v, is_causal=True, backend="tiled")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
flash_attention(*(x.requires_grad_() for x in (q, k, v)), is_causal=True, backend="tiled").backward(upstream)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.another_process
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
def test_memory_is_linear_in_the_sequence():
    found = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True).stdout.split()
    forward, backward = map(float, found)
    # The output takes 2 MiB and the gradients 6; the scores of one head would take 64 MiB, of both 128.
    assert forward < 40
    assert backward < 60


def test_tiles_outside_the_band_are_never_visited(monkeypatch, small_blocks):
    visited = []
    tile = TileBuffer.tile

    def record(buffer, q, keys):
        visited.append(keys.start)
        return tile(buffer, q, keys)

    monkeypatch.setattr(TileBuffer, "tile", record)
    q = torch.randn(1, 1, 64, 4)
    flash_attention(q, q, q, is_causal=True, backend="tiled")
    assert visited == [j for i in range(0, 64, 16) for j in range(0, i + 1, 16)]
    visited.clear()
    flash_attention(q, q, q, is_causal=True, window=17, backend="tiled")
    assert len(visited) == 1 + 3 * 2
    visited.clear()
    flash_attention(q, q, q, Documents(torch.arange(64) // 16), backend="tiled")
    assert visited == [0, 16, 32, 48]


# --- wrong implementations ------------------------------------------------------------------------------------------

MUTANTS = {
    "does not rescale the running output": ("average.mul_(shrink)", "average"),
    "does not rescale the running sum": ("row_sum.mul_(shrink)", "row_sum"),
    "does not mask the scores": (
        "if not small:\n                if coverage is Coverage.PARTIAL:",
        "if not small:\n                if False:",
    ),
    "does not mask small scores": ("if small and coverage is Coverage.PARTIAL", "if False"),
    "does not mask the backward pass": ("if coverage is Coverage.PARTIAL and not small", "if False"),
    "does not mask small scores in the backward pass": ("if coverage is Coverage.PARTIAL and small", "if False"),
    "does not scale the products": ("return self.scale * self.unit.per_nat if", "return self.unit.per_nat if"),
    "returns the log-sum-exp in bits": (
        "(row_maxima + unit.log(row_sums)) / unit.per_nat",
        "row_maxima + unit.log(row_sums)",
    ),
    "ignores the gradient of the log-sum-exp": ("keepdim=True) - flatten_group(grad_lse)", "keepdim=True)"),
    "returns the gradient of the keys in bits": ("alpha=scorer.scale / prescale", "alpha=scorer.scale"),
    "does not scale the gradient of the queries": ("right, alpha=scorer.scale", "right"),
    "does not apply the row's factor for small scores": ("grads_out *= unit.exp_(-row_lse)", "pass"),
    "overwrites the gradient of the keys with each block": (
        "float(size.is_masked or block.start > 0)",
        "float(size.is_masked)",
    ),
    "uses the first sequence's rule for all": (
        "rules = [options.rule.for_sequence(b)",
        "rules = [options.rule.for_sequence(0)",
    ),
    "aligns the first query with the first key": ("offset = key.shape[1] - n", "offset = 0"),
    "divides by a sum of zero": ("row_sum.clamp_min(torch.finfo(row_sum.dtype).tiny)", "row_sum"),
    "treats large scores as small": ("bound < MAX_SMALL_SCORE", "bound < 1e9"),
    "uses the mask of another tile": ("len(keys), keys.start - positions.start, self", "len(keys), self"),
    "keeps NaN among hidden scores": ("if self.may_have_nan:", "if False:"),
    "propagates NaN through hidden scores in the backward pass": (
        "if scorer.may_have_nan and coverage is Coverage.PARTIAL:",
        "if False:",
    ),
    "assumes that there is no NaN": ("not bound < torch.inf", "bound < 0"),
    "uses the mask of the first heads for all": ("group))[self.heads]", "group))[: len(tile)]"),
    "uses the slopes of the first heads for all": (
        "else part.entry(x)[part.heads] for",
        "else part.entry(x)[: len(part.entry(x)[part.heads])] for",
    ),
    "applies another cap": ("self.softcap * self.unit.per_nat", "self.softcap"),
    "ignores the cap in the backward pass": ("grad_scores.mul_(cap_grad_buffer", "(cap_grad_buffer"),
    "ignores the distance": (".addcmul_(self.alibi_slopes, _distances", ".addcmul_(0 * self.alibi_slopes, _distances"),
    "counts distances from the first key": (
        "(first[:, None, None] - second)",
        "(first[:, None, None] - first[0] - second)",
    ),
    "returns the gradient of the slopes with the wrong sign": (
        "self.grad_slopes -= (view",
        "self.grad_slopes += (view",
    ),
    "does not convert sinks to bits": ("UNIT_OF_ANY_SCORES.per_nat * numbers", "numbers"),
    "ignores the sink": ("row_sums += unit.exp_(sinks - row_maxima)", "pass"),
    "returns a wrong gradient of the sinks": ("row_lse) * delta)", "row_lse) * (delta + 1))"),
    "pairs query heads with key heads in turn": (
        "return tensor.unflatten(1, (key.shape[1], -1))",
        "return tensor.unflatten(1, (-1, key.shape[1])).transpose(1, 2)",
    ),
}


@pytest.mark.one_case
@pytest.mark.parametrize(("old", "new"), MUTANTS.values(), ids=MUTANTS)
def test_cases_fail_for_a_wrong_implementation(old, new, tmp_path):
    mutant = mutated_tiled(old, new, tmp_path)
    plain = Case(b=3, h=4, g=2, n=40, m=24, d=5, is_causal=True, key_lengths=(24, 0, 13))
    rule = Causal() & Padding(torch.tensor(plain.key_lengths))

    def check(case, scale=5**-0.5, rule=rule):
        def function(q, k, v, **learnt):
            return attend_with(mutant, q, k, v, rule, scale, softcap=case.softcap, **learnt)

        assert_right(errors(function, case, torch.float64, scale=scale), torch.float64, times=SLOPES)

    def check_all():
        check(plain)
        check(plain._replace(**CHANGES["all three"]))
        check(plain, scale=20.0)
        check(plain, scale=500.0)
        check(Case(b=1, h=4, g=2, n=40, m=24, d=5), rule=Full())
        table = torch.rand(1, 4, 40, 24, generator=torch.Generator().manual_seed(6)) < 0.5
        q, k, v = (torch.randn(1, heads, rows, 5) for heads, rows in ((4, 40), (2, 24), (2, 24)))
        assert_close(attend_with(mutant, q, k, v, Table(table), 1.0)[0], attention(q, k, v, table, scale=1.0))

        def attend(q, k, v, rule):
            return attend_with(mutant, q, k, v, rule, 1.0)

        assert_hidden_key_has_no_effect(attend, Causal(), 22, torch.nan, {})

    with pytest.raises((AssertionError, RuntimeError)):
        check_all()
