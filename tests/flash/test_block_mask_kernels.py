"""The kernels with any rule, score modifications and cache lengths, run in Triton's interpreter.

Needs a process of its own, ``TRITON_INTERPRET=1 pytest tests/flash/test_block_mask_kernels.py``.
"""

import os

import pytest
import torch
from benchmark_cases import PROBLEMS, SIZES, NoGpu
from flash_cases import Case, assert_right, errors, inputs, mutated
from thorough import all_but

triton = pytest.importorskip("triton", reason="triton is not installed (Linux, the extra 'gpu')")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a process of its own: TRITON_INTERPRET=1 pytest ...", allow_module_level=True)

from benchmarks.gpu import checks  # noqa: E402
from benchmarks.gpu.bench import Bench  # noqa: E402
from benchmarks.gpu.record import Record  # noqa: E402
from lessons_lib.attention.rules import (  # noqa: E402
    BigBird,
    Causal,
    Documents,
    GlobalTokens,
    LeftPadding,
    Padding,
    Prefix,
    Random,
    Table,
    Window,
)
from lessons_lib.flash import autograd, flash_attention  # noqa: E402
from lessons_lib.flash.band import KernelBand  # noqa: E402
from lessons_lib.flash.block_mask import make_tile_table  # noqa: E402
from lessons_lib.flash.configurations import Configuration, Tile  # noqa: E402
from lessons_lib.flash.score_mods import Scores  # noqa: E402


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


N, M = 83, 141
PACKED = Documents(torch.tensor([[0] * 60 + [1] * 81, [3] * 64 + [4] * 77]))
RULES = {
    "documents": Causal() & PACKED,
    "prefix": Prefix(90),
    "longformer": GlobalTokens([3, 100]) | Window(5),
    "bigbird": BigBird(5, window=1, n_global=1, n_random=1, generator=generator(), block=30),
    "left padding": Causal() & LeftPadding(torch.tensor([0, 130])),
    "padded documents": PACKED & Padding(torch.tensor([141, 50])),
    "table of heads": Table(torch.rand(2, 4, N, M, generator=generator()) > 0.7),
    "rows without keys": Random(M, 0.01, generator()) & Window(1) & ~PACKED | GlobalTokens([70]) & Causal(),
}
CHANGES = {
    "softcap": {"softcap": 1.5},
    "alibi_slopes": {"alibi_slopes": (0.0, 0.3, 0.05, 0.6)},
    "sinks": {"sinks": (0.4, -1.0, 3.0, -torch.inf)},
    "all": {"softcap": 2.5, "alibi_slopes": (0.0, 0.3, 0.05, 0.6), "sinks": (0.4, -1.0, 3.0, -torch.inf)},
}


def kernels(case: Case):
    return lambda q, k, v, **learnt: flash_attention(
        q, k, v, **case.options(), **learnt, backend="triton", return_lse=True
    )


# --- any rule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_kernels_equal_attention_for_any_rule(name):
    case = Case(b=2, h=4, g=2, n=N, m=M, rule=RULES[name])
    assert_right(errors(kernels(case), case), torch.float32)


@pytest.mark.parametrize(
    ("layout", "dtype"),
    all_but(
        [(layout, dtype) for layout in ("interleaved", "odd") for dtype in (torch.float16, torch.bfloat16)],
        lambda layout, dtype: (layout == "odd") == (dtype == torch.float16),
    ),
    ids=str,
)
def test_kernels_in_half_precision_and_any_layout(dtype, layout):
    case = Case(b=2, h=4, g=2, n=N, m=M, d=40, rule=RULES["padded documents"])
    assert_right(errors(kernels(case), case, dtype, layout=layout), dtype)


@pytest.mark.parametrize(("block_q", "block_k"), [(16, 64), (64, 16), (32, 32)])
def test_tiles_of_any_size_that_divides_a_square(block_q, block_k):
    case = Case(b=1, h=2, g=1, n=N, m=M, rule=RULES["longformer"])
    tiles = Configuration(*[Tile(block_q, block_k, num_warps=4, num_stages=1)] * 4)
    table = make_tile_table(case.rule, N, M)
    found = errors(lambda q, k, v: autograd.triton_attention(q, k, v, table, 0.25, None, tiles), case, scale=0.25)
    assert_right(found, torch.float32)


@pytest.mark.parametrize("n", [1, N])
def test_band_as_tile_table_equals_band(n):
    q, k, v = inputs(Case(b=2, h=4, g=2, n=n, m=M), torch.float32)
    rule = Causal() & Window(40)
    by_table = autograd.triton_attention(q, k, v, make_tile_table(rule, n, M), 0.3, None)
    by_band = autograd.triton_attention(q, k, v, KernelBand(n, M, 39, 0), 0.3, None)
    torch.testing.assert_close(by_table, by_band, atol=2e-6, rtol=2e-6)


# --- score modifications --------------------------------------------------------------------------------------------

SEEN = {
    "full": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "window": 30},
    "lengths": {"key_lengths": (M, 100)},
    "documents": {"rule": RULES["documents"]},
}


@pytest.mark.parametrize(
    ("seen", "change"),
    all_but(
        [(seen, change) for seen in SEEN for change in CHANGES],
        lambda seen, change: change == "all" or seen == "causal",
    ),
)
def test_score_mods_equal_attention_with_gradients(seen, change):
    b = 2 if seen in ("lengths", "documents") else 1
    case = Case(b=b, h=4, g=2, n=N, m=M, **SEEN[seen], **CHANGES[change])
    assert_right(errors(kernels(case), case), torch.float32)


@pytest.mark.parametrize("scale", [-0.7, 4.0])
def test_score_mods_at_any_scale(scale):
    case = Case(b=1, h=4, g=4, n=21, m=37, is_causal=True, **CHANGES["all"])
    options = case.options() | {"backend": "triton", "return_lse": True, "scale": scale}
    found = errors(lambda q, k, v, **learnt: flash_attention(q, k, v, **options, **learnt), case, scale=scale)
    assert_right(found, torch.float32)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("n_parts", [1, 5])
def test_decoding_with_score_mods(change, n_parts):
    case = Case(b=2, h=4, g=2, n=1, m=M, cache_lengths=(M, 50), **CHANGES[change])
    q, k, v = inputs(case, torch.float32)
    learnt = case.learnt()
    scores = Scores(0.3, case.softcap, **learnt)
    lengths = case.options()["cache_lengths"]
    found = autograd.decode_attention(
        q, k, v, KernelBand(1, M, None, None), scores, lengths, Tile(16, 32, 4, 1), n_parts, at_end=True
    )
    wide = {name: x.double() for name, x in learnt.items()}
    wanted = flash_attention(
        *(x.double() for x in (q, k, v)), **case.options(), **wide, scale=0.3, backend="tiled", return_lse=True
    )
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), want, atol=2e-6, rtol=2e-6)


def test_gradients_of_slopes_and_sinks_alone(monkeypatch):
    launched = []
    start = autograd._launch
    monkeypatch.setattr(
        autograd, "_launch", lambda kernel, *rest, **more: (launched.append(kernel), start(kernel, *rest, **more))
    )
    q, k, v = inputs(Case(h=4, g=2, n=9, m=9), torch.float32)
    alibi_slopes, sinks = (torch.rand(4, dtype=torch.float32, requires_grad=True) for _ in range(2))
    out = flash_attention(q, k, v, alibi_slopes=alibi_slopes, sinks=sinks, is_causal=True, backend="triton")
    ours = torch.autograd.grad(out.square().sum(), (alibi_slopes, sinks))
    expected = [autograd.kernels.attend, autograd.kernels.row_terms, autograd.kernels.query_gradients]
    assert launched == expected, "keys and values want no gradient"
    out = flash_attention(q, k, v, alibi_slopes=alibi_slopes, sinks=sinks, is_causal=True, backend="tiled")
    torch.testing.assert_close(
        ours, torch.autograd.grad(out.square().sum(), (alibi_slopes, sinks)), atol=1e-5, rtol=1e-5
    )


# --- cache lengths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, N])
@pytest.mark.parametrize("seen", [{}, {"is_causal": True}, {"window": 20}, {"is_causal": True, "window": 20}], ids=str)
def test_cache_lengths_equal_attention_per_sequence(n, seen):
    case = Case(b=3, h=2, g=1, n=n, m=M, cache_lengths=(M, 0, 33), **seen)
    assert_right(errors(kernels(case), case), torch.float32)


def test_cache_lengths_equal_attention_per_sequence_for_any_rule():
    case = Case(b=2, h=2, g=1, n=40, m=M, cache_lengths=(M, 93), rule=Prefix(50) | Window(3))
    spelled = case._replace(cache_lengths=None, b=1)
    for b, length in enumerate(case.cache_lengths):
        q, k, v = (x[b : b + 1] for x in inputs(case, torch.float32))
        lengths = torch.tensor([length])
        out = flash_attention(q, k, v, spelled.rule, cache_lengths=lengths, backend="triton")
        wanted = flash_attention(q, k[:, :, :length], v[:, :, :length], spelled.rule, backend="tiled")
        torch.testing.assert_close(out, wanted, atol=2e-6, rtol=2e-6)


# --- wrong implementations ------------------------------------------------------------------------------------------

MUTANT_CASES = [
    Case(b=2, h=4, g=2, n=N, m=M, rule=RULES["table of heads"]),
    Case(b=2, h=4, g=2, n=N, m=M, cache_lengths=(M, 70), rule=Prefix(60) | Window(9), **CHANGES["all"]),
]
MUTANTS = {
    "reads the next picture": ("PICTURES + which * SIDE", "PICTURES + (which + 1) * SIDE"),
    "ignores the picture": ("if which >= 0:", "if which > 999:"),
    "uses the list of another sequence": ("b * table_strides[0]", "0 * b"),
    "uses the list of another head": ("head * table_strides[1]", "0 * head"),
    "starts every tile at the start of its square": ("+ step % (SIDE // BLOCK) * BLOCK", ""),
    "uses the mask of the first keys for every tile": ("j0 % SIDE + tl.arange", "tl.arange"),
    "uses the mask of the first queries for every tile": ("+ i0 % SIDE + tl.arange", "+ tl.arange"),
    "ignores the end of the cache": ("_end(length, m, AT_END)", "m"),
    "ignores the sink": (", _of_head(SINKS, head))", ")"),
    "returns no gradient of the slopes": ("dslope, mask=i < n", "dslope * 0, mask=i < n"),
}


def check_cases() -> None:
    for case in MUTANT_CASES:
        table = make_tile_table(case.rule, case.n, case.m, cache_lengths=case.options()["cache_lengths"])
        at_end = case.cache_lengths is not None

        def function(q, k, v, case=case, table=table, at_end=at_end, **learnt):
            scores = Scores(0.25, case.softcap, **learnt)
            return autograd.triton_attention(q, k, v, table, scores, case.options()["cache_lengths"], at_end=at_end)

        assert_right(errors(function, case, scale=0.25), torch.float32)


def test_cases_pass_for_the_unchanged_kernels():
    check_cases()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.one_case
@pytest.mark.parametrize(("old", "new"), MUTANTS.values(), ids=MUTANTS)
def test_cases_fail_for_a_wrong_implementation(old, new, tmp_path, monkeypatch):
    monkeypatch.setattr(autograd, "block_mask_kernels", mutated(autograd.block_mask_kernels, old, new, tmp_path))
    with pytest.raises(AssertionError):
        check_cases()


# --- the checks of the benchmark ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem", all_but(PROBLEMS, lambda problem: "rule" not in problem or "sinks" in problem), ids=str
)
def test_kernels_pass_the_checks_of_the_benchmark(tmp_path, problem):
    class Interpreted(NoGpu):
        def flash(self, *qkv, tiles=None, **options):
            return flash_attention(*qkv, **options, backend="triton")

    bench = Bench(Interpreted(), Record(tmp_path / "part.json", {}), 5, SIZES)
    row = checks.check(bench, "item", torch.float16, problem)
    assert row["right"], row
