"""The kernels under any rule, with changed scores and with caches of their own lengths, run by Triton's interpreter.

Needs a process of its own, ``TRITON_INTERPRET=1 pytest tests/flash/test_table_kernels.py``.
"""

import os

import pytest
import torch
from benchmark_cases import PROBLEMS, SIZES, NoGpu
from flash_cases import Case, assert_right, errors, inputs, mutated

triton = pytest.importorskip("triton", reason="triton is not installed (Linux, the extra 'gpu')")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a process of its own: TRITON_INTERPRET=1 pytest ...", allow_module_level=True)

from benchmarks.gpu import checks  # noqa: E402
from benchmarks.gpu.bench import Bench  # noqa: E402
from benchmarks.gpu.record import Record  # noqa: E402
from lessons_lib.flash import flash_attention, launch  # noqa: E402
from lessons_lib.flash.band import Band  # noqa: E402
from lessons_lib.flash.configurations import Configuration, Tile  # noqa: E402
from lessons_lib.flash.scores import Scores  # noqa: E402
from lessons_lib.flash.table import table_of  # noqa: E402
from lessons_lib.rules import (  # noqa: E402
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
    "slopes": {"slopes": (0.0, 0.3, 0.05, 0.6)},
    "sinks": {"sinks": (0.4, -1.0, 3.0, -torch.inf)},
    "all": {"softcap": 2.5, "slopes": (0.0, 0.3, 0.05, 0.6), "sinks": (0.4, -1.0, 3.0, -torch.inf)},
}


def kernels(case: Case):
    return lambda q, k, v, **learnt: flash_attention(
        q, k, v, **case.options(), **learnt, backend="triton", return_lse=True
    )


# --- any rule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_equals_attention_under_any_rule(name):
    case = Case(b=2, h=4, g=2, n=N, m=M, rule=RULES[name])
    assert_right(errors(kernels(case), case), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["interleaved", "odd"])
def test_in_half_precision_and_any_layout(dtype, layout):
    case = Case(b=2, h=4, g=2, n=N, m=M, d=40, rule=RULES["padded documents"])
    assert_right(errors(kernels(case), case, dtype, layout=layout), dtype)


@pytest.mark.parametrize(("block_q", "block_k"), [(16, 64), (64, 16), (32, 32)])
def test_a_square_is_cut_into_any_tiles_that_divide_it(block_q, block_k):
    case = Case(b=1, h=2, g=1, n=N, m=M, rule=RULES["longformer"])
    tiles = Configuration(*[Tile(block_q, block_k, num_warps=4, num_stages=1)] * 4)
    table = table_of(case.rule, N, M)
    found = errors(lambda q, k, v: launch.triton_attention(q, k, v, table, 0.25, None, tiles), case, scale=0.25)
    assert_right(found, torch.float32)


@pytest.mark.parametrize("n", [1, N])
def test_a_band_led_by_a_table_is_the_same_band(n):
    q, k, v = inputs(Case(b=2, h=4, g=2, n=n, m=M), torch.float32)
    rule = Causal() & Window(40)
    by_table = launch.triton_attention(q, k, v, table_of(rule, n, M), 0.3, None)
    by_band = launch.triton_attention(q, k, v, Band(n, M, 39, 0), 0.3, None)
    torch.testing.assert_close(by_table, by_band, atol=2e-6, rtol=2e-6)


# --- changed scores -------------------------------------------------------------------------------------------------

SEEN = {
    "full": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "window": 30},
    "lengths": {"key_lengths": (M, 100)},
    "documents": {"rule": RULES["documents"]},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seen", SEEN)
def test_changes_of_scores_with_their_gradients(seen, change):
    case = Case(b=2, h=4, g=2, n=N, m=M, **SEEN[seen], **CHANGES[change])
    assert_right(errors(kernels(case), case), torch.float32)


@pytest.mark.parametrize("scale", [-0.7, 4.0])
def test_changes_at_any_scale(scale):
    case = Case(b=1, h=4, g=4, n=21, m=37, is_causal=True, **CHANGES["all"])
    options = case.options() | {"backend": "triton", "return_lse": True, "scale": scale}
    found = errors(lambda q, k, v, **learnt: flash_attention(q, k, v, **options, **learnt), case, scale=scale)
    assert_right(found, torch.float32)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("n_parts", [1, 5])
def test_decoding_changes_scores_too(change, n_parts):
    case = Case(b=2, h=4, g=2, n=1, m=M, cache_lengths=(M, 50), **CHANGES[change])
    q, k, v = inputs(case, torch.float32)
    learnt = case.learnt()
    scores = Scores(0.3, case.softcap, **learnt)
    lengths = case.options()["cache_lengths"]
    found = launch.decode(q, k, v, Band(1, M, None, None), scores, lengths, Tile(16, 32, 4, 1), n_parts, at_end=True)
    wide = {name: x.double() for name, x in learnt.items()}
    wanted = flash_attention(
        *(x.double() for x in (q, k, v)), **case.options(), **wide, scale=0.3, backend="tiled", return_lse=True
    )
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), want, atol=2e-6, rtol=2e-6)


def test_slopes_and_sinks_alone_may_want_gradients(monkeypatch):
    launched = []
    start = launch._launch
    monkeypatch.setattr(
        launch, "_launch", lambda kernel, *rest, **more: (launched.append(kernel), start(kernel, *rest, **more))
    )
    q, k, v = inputs(Case(h=4, g=2, n=9, m=9), torch.float32)
    slopes, sinks = (torch.rand(4, dtype=torch.float32, requires_grad=True) for _ in range(2))
    out = flash_attention(q, k, v, slopes=slopes, sinks=sinks, is_causal=True, backend="triton")
    ours = torch.autograd.grad(out.square().sum(), (slopes, sinks))
    expected = [launch.kernels.attend, launch.kernels.row_terms, launch.kernels.query_gradients]
    assert launched == expected, "keys and values want no gradient"
    out = flash_attention(q, k, v, slopes=slopes, sinks=sinks, is_causal=True, backend="tiled")
    torch.testing.assert_close(ours, torch.autograd.grad(out.square().sum(), (slopes, sinks)), atol=1e-5, rtol=1e-5)


# --- caches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, N])
@pytest.mark.parametrize("seen", [{}, {"is_causal": True}, {"window": 20}, {"is_causal": True, "window": 20}], ids=str)
def test_each_sequence_ends_at_its_own_key(n, seen):
    case = Case(b=3, h=4, g=2, n=n, m=M, cache_lengths=(M, 0, 33), **seen)
    assert_right(errors(kernels(case), case), torch.float32)


def test_each_sequence_ends_at_its_own_key_under_any_rule():
    case = Case(b=2, h=2, g=1, n=40, m=M, cache_lengths=(M, 93), rule=Prefix(50) | Window(3))
    spelled = case._replace(cache_lengths=None, b=1)
    for b, length in enumerate(case.cache_lengths):
        q, k, v = (x[b : b + 1] for x in inputs(case, torch.float32))
        lengths = torch.tensor([length])
        out = flash_attention(q, k, v, spelled.rule, cache_lengths=lengths, backend="triton")
        wanted = flash_attention(q, k[:, :, :length], v[:, :, :length], spelled.rule, backend="tiled")
        torch.testing.assert_close(out, wanted, atol=2e-6, rtol=2e-6)


# --- wrong kernels --------------------------------------------------------------------------------------------------

BATTERY = [
    Case(b=2, h=4, g=2, n=N, m=M, rule=RULES["table of heads"]),
    Case(b=2, h=4, g=2, n=N, m=M, cache_lengths=(M, 70), rule=Prefix(60) | Window(9), **CHANGES["all"]),
]
MUTANTS = {
    "reads the next picture": ("PICTURES + which * SIDE", "PICTURES + (which + 1) * SIDE"),
    "forgets the picture": ("if which >= 0:", "if which > 999:"),
    "takes another sequence's list": ("b * table_strides[0]", "0 * b"),
    "takes another head's list": ("head * table_strides[1]", "0 * head"),
    "begins every tile where its square begins": ("+ step % (SIDE // BLOCK) * BLOCK", ""),
    "shows the same keys of every tile": ("j0 % SIDE + tl.arange", "tl.arange"),
    "shows the same queries of every tile": ("+ i0 % SIDE + tl.arange", "+ tl.arange"),
    "forgets where the cache ends": ("_end(length, m, AT_END)", "m"),
    "forgets the sink": (", _of_head(SINKS, head))", ")"),
    "stores no gradient of slopes": ("dslope, mask=i < n", "dslope * 0, mask=i < n"),
}


def run_battery() -> None:
    for case in BATTERY:
        table = table_of(case.rule, case.n, case.m, cache_lengths=case.options()["cache_lengths"])
        at_end = case.cache_lengths is not None

        def function(q, k, v, case=case, table=table, at_end=at_end, **learnt):
            scores = Scores(0.25, case.softcap, **learnt)
            return launch.triton_attention(q, k, v, table, scores, case.options()["cache_lengths"], at_end=at_end)

        assert_right(errors(function, case, scale=0.25), torch.float32)


def test_the_battery_passes_as_it_is():
    run_battery()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.one_case
@pytest.mark.parametrize(("old", "new"), MUTANTS.values(), ids=MUTANTS)
def test_parity_would_notice(old, new, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "table_kernels", mutated(launch.table_kernels, old, new, tmp_path))
    with pytest.raises(AssertionError):
        run_battery()


# --- what a GPU will be asked -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_kernels_pass_the_checks_of_the_benchmark(tmp_path, problem):
    class Interpreted(NoGpu):
        def flash(self, *qkv, tiles=None, **options):
            return flash_attention(*qkv, **options, backend="triton")

    bench = Bench(Interpreted(), Record(tmp_path / "part.json", {}), 5, SIZES)
    row = checks.check(bench, "item", torch.float16, problem)
    assert row["right"], row
