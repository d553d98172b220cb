"""The tiled backend with values of another width, a bias, slopes of each sequence, and keys that begin anywhere."""

import subprocess
import sys
from itertools import product

import pytest
import torch
from flash_cases import attend_with, mutated_tiled
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

from lessons_lib.attention.attention import attention
from lessons_lib.attention.positions import AlibiBias
from lessons_lib.attention.rules import Causal, Full, Padding, Prefix, Rule, Table, Window
from lessons_lib.attention.softmax import log_sum_exp
from lessons_lib.flash import as_implementation, chosen_backend, flash_attention, tile_shapes

N, M, D_V = 29, 53, 7
BIASES = {
    "whole": (2, 4, N, M),
    "T5": (1, 4, N, M),
    "without batch": (4, N, M),
    "one table": (N, M),
    "one head": (2, 1, N, M),
    "a row for each sequence": (2, 1, 1, M),
    "a column": (1, 4, N, 1),
    "one number for each head": (4, 1, 1),
}
RULES = {
    "full": Full(),
    "causal": Causal(),
    "window, and lengths": Causal() & Window(9) & Padding(torch.tensor([53, 0])),
    "table for each head": Table(torch.rand(1, 4, N, M, generator=torch.Generator().manual_seed(1)) < 0.5),
}
# In float64 the errors are below 1e-14; in half precision those of one rounding of results of size one.
TOLERANCES = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-12},
    torch.float32: {"rtol": 1e-4, "atol": 2e-5},
    torch.bfloat16: {"rtol": 3e-2, "atol": 6e-2},
    torch.float16: {"rtol": 4e-3, "atol": 8e-3},
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for name, size in {"ROWS": 16, "MASKED_ROWS": 16, "KEYS": 16, "TILE_SCORES": 2 * 16 * 16}.items():
        monkeypatch.setattr(tile_shapes, name, size)


def inputs(dtype=torch.float64, d_v: int = D_V) -> list[torch.Tensor]:
    sizes = (4, N, 5), (2, M, 5), (2, M, d_v)
    return [torch.randn(2, *size).to(dtype).requires_grad_() for size in sizes]


def results(attend, leaves: list[torch.Tensor], upstream: torch.Tensor) -> list[torch.Tensor]:
    out = attend(*leaves)
    return [out, *torch.autograd.grad(out, leaves, upstream.to(out.dtype))]


def assert_equal_to_attention(attend, rule: Rule, bias: torch.Tensor, dtype=torch.float64, **options) -> None:
    """Compare output and gradients of ``attend(q, k, v, rule, bias=..., **options)`` with attention in float64."""
    leaves = [*inputs(dtype), bias.requires_grad_()]
    upstream = torch.randn(2, 4, N, D_V)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    ours = results(lambda *x: attend(*x[:3], rule, bias=x[3], **options), leaves, upstream)
    exact = results(lambda *x: attention(*x[:3], rule, bias=x[3], **options), wide, upstream)
    for x, y, leaf in zip(ours, exact, [ours[0], *leaves], strict=True):
        assert x.dtype == leaf.dtype
        assert_close(x.double(), y, **TOLERANCES[dtype])


def tiled(*arguments, **options):
    return flash_attention(*arguments, **options, backend="tiled")


# --- widths of values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_v", [1, 3, 16])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("backend", ["auto", "tiled", "torch"])
def test_values_of_another_width_equal_attention(d_v, rule, backend):
    leaves, upstream = inputs(d_v=d_v), torch.randn(2, 4, N, d_v)
    ours = results(lambda q, k, v: flash_attention(q, k, v, rule, scale=0.4, backend=backend), leaves, upstream)
    assert_close(ours, results(lambda q, k, v: attention(q, k, v, rule, scale=0.4), leaves, upstream))


def test_values_of_another_width_in_linear_memory_on_the_cpu():
    q, k, v = inputs()
    choice = chosen_backend(q, k, v)
    assert choice.backend == "tiled"
    assert "takes values as wide as the keys" in choice.reason


# --- bias -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_bias_equals_attention(shape, rule):
    assert_equal_to_attention(tiled, rule, torch.randn(shape))
    assert_equal_to_attention(tiled, rule, torch.randn(shape), softcap=1.5, scale=2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("of_bias", ["like the query", "float32"])
def test_bias_in_any_precision(dtype, of_bias):
    bias = torch.randn(1, 4, N, M, dtype=torch.float32 if of_bias == "float32" else dtype)
    assert_equal_to_attention(tiled, Causal(), bias, dtype)


def test_bias_beside_slopes_and_sinks_equals_attention():
    slopes, sinks = torch.rand(4), torch.randn(4)
    assert_equal_to_attention(tiled, Causal(), torch.randn(4, 1, M), alibi_slopes=slopes, sinks=sinks, softcap=2.0)


@pytest.mark.parametrize("shape", [(1, 4, N, M), (2, 1, N, M), (N, M)], ids=str)
def test_bias_equals_pytorch_with_a_float_mask(shape):
    leaves, upstream = [*inputs(), torch.randn(shape, requires_grad=True)], torch.randn(2, 4, N, D_V)

    def theirs(q, k, v, bias):
        bias = bias.expand(2, 4, N, M)
        return scaled_dot_product_attention(q, *(x.repeat_interleave(2, dim=1) for x in (k, v)), attn_mask=bias)

    ours = results(lambda q, k, v, bias: flash_attention(q, k, v, bias=bias), leaves, upstream)
    assert_close(ours, results(theirs, leaves, upstream))


def test_bias_of_shifted_windows_as_in_swin():
    """Six windows of 4 x 4 pixels: a learnt table over distances, and -100 between pixels that were not neighbours."""
    windows, heads, side = 6, 3, 4
    table = torch.randn((2 * side - 1) ** 2, heads, requires_grad=True)
    row, column = torch.arange(side * side) // side, torch.arange(side * side) % side
    distance = [(x[:, None] - x + side - 1) for x in (row, column)]
    index = distance[0] * (2 * side - 1) + distance[1]
    apart = torch.where(torch.rand(windows, 1, side * side, side * side) < 0.2, -100.0, 0.0)
    q, k, v = (torch.randn(windows, heads, side * side, 8) for _ in range(3))
    found = []
    for attend in (as_implementation(), attention):
        out = attend(q, k, v, bias=table[index].permute(2, 0, 1) + apart)
        found.append([out, *torch.autograd.grad(out.square().sum(), table)])
    assert_close(*found)


def test_alibi_module_as_bias_equals_slopes():
    q, k, v = (x.detach() for x in inputs())
    alibi = AlibiBias(4)
    by_bias = tiled(q, k, v, Causal(), bias=alibi(torch.arange(M - N, M), torch.arange(M)))
    assert_close(by_bias, tiled(q, k, v, Causal(), alibi_slopes=torch.tensor(alibi.slopes)))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_bias_of_minus_infinity_hides(rule):
    hidden = torch.rand(2, 1, N, M) < 0.3
    hidden[1, 0, 4] = True  # a query without keys
    bias = torch.randn(2, 4, N, M).masked_fill(hidden, -torch.inf)
    assert_equal_to_attention(tiled, rule, bias)
    q, k, v = (x.detach() for x in inputs())
    _, lse = tiled(q, k, v, rule, bias=bias, return_lse=True)
    assert (lse[1, :, 4] == -torch.inf).all()


def test_nan_in_a_hidden_bias_has_no_effect():
    bias = torch.randn(2, 4, N, M)
    rule = Causal() & Window(20)
    leaves, upstream = inputs(), torch.randn(2, 4, N, D_V)
    bad = bias.masked_fill(~rule.to_mask(N, M), torch.nan)
    found = [
        results(lambda *x: tiled(*x[:3], rule, bias=x[3]), [*leaves, b.requires_grad_()], upstream) for b in (bias, bad)
    ]
    assert_close(*found)


def test_log_sum_exp_contains_the_bias():
    q, k, v = inputs(d_v=5)
    bias = torch.randn(4, N, M, requires_grad=True)
    _, lse = tiled(q, k, v, bias=bias, return_lse=True)
    exact = log_sum_exp(5**-0.5 * q @ k.repeat_interleave(2, dim=1).mT + bias)
    assert_close(lse, exact)
    upstream = torch.randn_like(lse)
    ours, theirs = (torch.autograd.grad(x, (q, k, bias), upstream) for x in (lse, exact))
    assert_close(ours, theirs)


def test_gradients_pass_gradcheck():
    q, k, v = (torch.randn(1, 2, rows, d, requires_grad=True) for rows, d in ((4, 3), (6, 3), (6, 2)))
    bias, slopes = torch.randn(2, 1, 6, requires_grad=True), torch.rand(1, 2, requires_grad=True)

    def function(q, k, v, bias, slopes):
        return tiled(q, k, v, Causal(), bias=bias, alibi_slopes=slopes, dropout_p=0.2, dropout_seed=1, softcap=2.0)

    assert torch.autograd.gradcheck(function, (q, k, v, bias, slopes))


MEMORY = """
import resource, torch
from lessons_lib.flash import flash_attention
torch.set_num_threads(1)
q, k, v = (torch.randn(1, 4, 2048, 16, requires_grad=True) for _ in range(3))
bias = torch.randn(4, 1, 2048, requires_grad=True)
flash_attention(q[:, :, :300], k[:, :, :300], v[:, :, :300], bias=bias[..., :300], dropout_p=0.1).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
flash_attention(q, k, v, is_causal=True, bias=bias, dropout_p=0.1).sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.another_process
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
def test_memory_with_bias_and_dropout_is_linear():
    grown = float(subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout)
    assert grown < 40  # MiB; a table of the scores or of the bias would take 64, and 8 bytes for each random number 128


# --- slopes of each sequence ----------------------------------------------------------------------------------------


def distances(length: int) -> torch.Tensor:
    """Return the distance of each query from each key, for queries at the end of ``length`` keys."""
    return (torch.arange(N)[:, None] + length - N - torch.arange(M)).abs()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_slopes_of_each_sequence_equal_attention(rule):
    leaves, upstream = [*inputs(), torch.rand(2, 4, requires_grad=True)], torch.randn(2, 4, N, D_V)

    def exact(q, k, v, slopes):
        return attention(q, k, v, rule, bias=-slopes[:, :, None, None] * distances(M))

    ours = results(lambda *x: flash_attention(*x[:3], rule, alibi_slopes=x[3]), leaves, upstream)
    assert_close(ours, results(exact, leaves, upstream))


def test_equal_slopes_of_each_sequence_change_no_bit():
    q, k, v = inputs()
    slopes = torch.rand(4)
    assert torch.equal(tiled(q, k, v, alibi_slopes=slopes), tiled(q, k, v, alibi_slopes=slopes.expand(2, 4)))


# --- keys that begin anywhere in the cache ---------------------------------------------------------------------------

STARTS, LENGTHS = torch.tensor([3, 20]), torch.tensor([40, M])


def between(starts: torch.Tensor, lengths: torch.Tensor, rule: Rule) -> torch.Tensor:
    """Return the documented mask over the whole cache: the rule of positions counted from the sequence's first key."""
    j = torch.arange(M)
    tables = [
        rule.shifted(length - start - M, -start).to_mask(N, M) & (j >= start) & (j < length)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    return torch.stack(tables)[:, None]


@pytest.mark.parametrize("rule", [Full(), Causal(), Causal() & Window(9), Prefix(5)], ids=str)
@pytest.mark.parametrize("with_terms", [False, True], ids=["plain", "with terms"])
def test_cache_starts_equal_attention_under_the_mask(rule, with_terms):
    learnt = [torch.rand(2, 4), torch.randn(4), torch.randn(2, 4, N, M)] if with_terms else []
    leaves, upstream = [*inputs(), *(x.requires_grad_() for x in learnt)], torch.randn(2, 4, N, D_V)
    mask = between(STARTS, LENGTHS, rule)
    far = torch.stack([distances(int(length)) for length in LENGTHS])[:, None]

    def ours(q, k, v, slopes=None, sinks=None, bias=None):
        terms = {"alibi_slopes": slopes, "sinks": sinks, "bias": bias}
        return flash_attention(q, k, v, rule, cache_starts=STARTS, cache_lengths=LENGTHS, **terms)

    def exact(q, k, v, slopes=None, sinks=None, bias=None):
        bias = bias if slopes is None else bias - slopes[:, :, None, None] * far
        return attention(q, k, v, mask, sinks=sinks, bias=bias)

    assert_close(results(ours, leaves, upstream), results(exact, leaves, upstream))


@pytest.mark.parametrize(("starts", "lengths"), [*product([(0, 0), (7, 30), (M, 40)], [None, (M, 40)])])
def test_cache_starts_of_any_place(starts, lengths):
    q, k, v = (x.detach() for x in inputs())
    given = torch.tensor(starts), None if lengths is None else torch.tensor(lengths)
    out = flash_attention(q, k, v, is_causal=True, cache_starts=given[0], cache_lengths=given[1])
    ends = torch.tensor([M, M]) if given[1] is None else given[1]
    assert_close(out, attention(q, k, v, between(given[0], ends, Causal())))


def test_left_padded_batch_decodes_as_its_sequences():
    """Three new tokens for prompts of different lengths that end at one place: other keys are NaN and are not read."""
    k, v = (torch.full((2, 2, M, 5), torch.nan) for _ in range(2))
    q, starts, end = torch.randn(2, 4, 3, 5), torch.tensor([0, 31]), 44
    for b, start in enumerate(starts.tolist()):
        for x in (k, v):
            x[b, :, start:end] = torch.randn(2, end - start, 5)
    out = flash_attention(q, k, v, is_causal=True, cache_starts=starts, cache_lengths=torch.tensor([end, end]))
    for b, start in enumerate(starts.tolist()):
        own = (x[b : b + 1, :, start:end] for x in (k, v))
        assert_close(out[b : b + 1], attention(q[b : b + 1], *own, Causal()))


# --- other backends and errors --------------------------------------------------------------------------------------

FOR_TILED = {
    "bias": ({"bias": torch.zeros(N, M)}, "bias and mask in one table over n x m"),
    "dropout": ({"dropout_p": 0.1}, "does not draw its dropout from dropout_seed"),
    "alibi_slopes of each sequence": ({"alibi_slopes": torch.ones(2, 4)}, "does not support alibi_slopes"),
    "cache_starts": ({"cache_starts": STARTS}, "does not support cache_starts"),
}


@pytest.mark.rejects
@pytest.mark.parametrize(("options", "reason"), FOR_TILED.values(), ids=FOR_TILED)
def test_auto_takes_tiled_and_says_why(options, reason):
    q, k, v = inputs(torch.float32, d_v=5)
    options = {name: x.float() if name in ("bias", "alibi_slopes") else x for name, x in options.items()}
    choice = chosen_backend(q, k, v, **options)
    assert choice.backend == "tiled"
    assert reason in choice.reason
    assert_close(
        flash_attention(q, k, v, **options, **({"dropout_seed": 1} if "dropout_p" in options else {})),
        tiled(q, k, v, **options, **({"dropout_seed": 1} if "dropout_p" in options else {})),
    )


@pytest.mark.rejects
@pytest.mark.parametrize("name", FOR_TILED)
def test_triton_refuses_by_name(name):
    pytest.importorskip("triton")
    q, k, v = inputs(torch.float32, d_v=5)
    options = {key: x.float() if key == "bias" else x for key, x in FOR_TILED[name][0].items()}
    with pytest.raises(ValueError, match=f"backend='triton' cannot run here: the kernels do not support {name}; use"):
        flash_attention(q, k, v, **options, backend="triton")
    with pytest.raises(ValueError, match="the kernels do not support values of another width than the keys"):
        flash_attention(q, k, v[..., :3], backend="triton")


@pytest.mark.rejects
@pytest.mark.parametrize("name", ["dropout", "alibi_slopes of each sequence", "cache_starts"])
def test_torch_refuses_by_name(name):
    q, k, v = inputs()
    with pytest.raises(ValueError, match=f"backend='torch' cannot run here: PyTorch's function does not .*{name[:7]}"):
        flash_attention(q, k, v, **FOR_TILED[name][0], backend="torch")


@pytest.mark.parametrize("shape", [(1, 4, N, M), (N, M)], ids=str)
def test_torch_adds_a_bias(shape):
    def attend(*arguments, **options):
        return flash_attention(*arguments, **options, backend="torch")

    assert_equal_to_attention(attend, RULES["causal"], torch.randn(shape))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"bias": torch.zeros(N, M + 1).double()},
            r"bias must broadcast to the scores, \(2, 4, 29, 53\), without enlarging",
        ),
        ({"bias": torch.zeros(3, 1, N, M).double()}, "bias must broadcast to the scores"),
        ({"bias": torch.zeros(N, M).half()}, "bias must be of type torch.float64 like the query, got torch.float16"),
        (
            {"alibi_slopes": torch.ones(3, 4)},
            r"number for each head, over \(h,\) or \(b, h\) = \(2, 4\), got .* \(3, 4\)",
        ),
        ({"alibi_slopes": torch.ones(2, 4).long()}, "alibi_slopes must be one floating-point number"),
        ({"cache_starts": torch.tensor([1.0, 2.0])}, "cache_starts must be integers over"),
        ({"cache_starts": torch.tensor([1])}, r"cache_starts must be integers over \(batch,\) = \(2,\)"),
        ({"cache_starts": torch.tensor([-1, 2])}, r"cache_starts must be in 0 .. m = 53, got \[-1, 2\]"),
        (
            {"cache_starts": torch.tensor([5, 2]), "cache_lengths": torch.tensor([4, 9])},
            r"cache_starts must be at most cache_lengths, got \[5, 2\] and \[4, 9\]",
        ),
        (
            {"cache_starts": torch.tensor([5, 2]), "key_lengths": torch.tensor([4, 9])},
            "key_lengths and cache_starts must not both be given",
        ),
        (
            {"cache_starts": torch.tensor([5, 2]), "mask": torch.ones(N, M, dtype=torch.bool)},
            "with cache_starts the mask must be a rule about positions",
        ),
    ],
)
def test_invalid_terms_raise(options, message):
    with pytest.raises(ValueError, match=message):
        flash_attention(*inputs(), **options)
    with pytest.raises(ValueError, match=message):
        chosen_backend(*inputs(), **options)


# --- wrong implementations ------------------------------------------------------------------------------------------

MUTANTS = {
    "adds the bias in nats": ("positions, keys), alpha=self.unit.per_nat)", "positions, keys))"),
    "reads the bias of the first rows": ("each.start - first, each.stop - first)", "0, len(each))"),
    "reads the bias of the first heads": (
        "slice(None) if len(bias) == 1 else part.heads",
        "slice(0, len(range(len(bias))[part.heads]))",
    ),
    "reads the bias of the first keys": ("slice(part.keys.start, part.keys.stop)", "slice(0, len(part.keys))"),
    "adds the bias of another head of the group": ("columns].transpose(1, 2)", "columns].flip(1).transpose(1, 2)"),
    "takes the gradient before the cap for that of the bias": (
        "            scorer.accumulate_bias_grad(grad_scores, positions, keys)\n"
        "            if cap_grad_buffer is not None:\n",
        "            if cap_grad_buffer is not None:\n                scorer.accumulate_bias_grad(\n"
        "                    grad_scores * cap_grad_buffer.tile(q, keys), positions, keys)\n",
    ),
    "does not sum the gradient of the bias": ("grad_tile += split", "grad_tile[...] = split"),
    "assumes that a bias has no NaN": ("scorer.bias is not None or not bound", "not bound"),
    "treats scores with a bias as small": (
        "self.alibi_slopes, self.sinks, self.bias))",
        "self.alibi_slopes, self.sinks))",
    ),
    "returns values as wide as keys": ("(*query.shape[:-1], value.shape[-1])", "(*query.shape[:-1], key.shape[-1])"),
    "ignores the starts": ("self.heads, self.keys.start : self.keys.stop]", "self.heads, : self.keys.stop]"),
    "leaves gradients before the starts": ("grad[b, :, :start], grad[b, :, stop:] = 0, 0", "grad[b, :, stop:] = 0"),
    "puts the queries at the end of the cache": ("return len(self.keys) - self.n", "return self.keys.stop - self.n"),
}


@pytest.mark.one_case
@pytest.mark.parametrize(("old", "new"), MUTANTS.values(), ids=MUTANTS)
def test_cases_fail_for_a_wrong_implementation(old, new, tmp_path):
    mutant = mutated_tiled(old, new, tmp_path)

    def attend(q, k, v, rule, scale=0.4, **options):
        return attend_with(mutant, q, k, v, rule, scale, **options)[0]

    def check_all():
        for shape in ((2, 4, N, M), (4, 1, M)):
            assert_equal_to_attention(attend, Causal(), 2 * torch.randn(shape), softcap=1.5, scale=0.4)
        assert_equal_to_attention(attend, Full(), 50 * torch.randn(4, 1, M), scale=0.4)
        bad = torch.randn(2, 4, N, M).masked_fill(~Causal().to_mask(N, M), torch.nan)
        assert_equal_to_attention(attend, Causal(), bad, scale=0.4)
        leaves, upstream = [*inputs(), torch.rand(2, 4, N, M, requires_grad=True)], torch.randn(2, 4, N, D_V)
        spans, mask = [(3, 40), (20, M)], between(STARTS, LENGTHS, Causal())
        ours = results(lambda *x: attend(*x[:3], Causal(), bias=x[3], spans=spans), leaves, upstream)
        assert_close(ours, results(lambda *x: attention(*x[:3], mask, bias=x[3], scale=0.4), leaves, upstream))

    with pytest.raises((AssertionError, RuntimeError, UserWarning)):
        check_all()
