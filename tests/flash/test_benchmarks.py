"""Tests of the GPU benchmark without a GPU: its messages, its arithmetic, its checks."""

import os
import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch
from benchmark_cases import PROBLEMS, SIZES, NoGpu
from flash_cases import Case

from benchmarks import flash_gpu, tune_flash
from benchmarks.gpu import checks, patterns, report, rivals, timing
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.record import Record
from benchmarks.gpu.tiles import KERNELS, PROPOSED, candidates, parse_tile, tile_text
from lessons_lib.attention.attention import attention
from lessons_lib.attention.rules import Prefix
from lessons_lib.flash import configurations
from lessons_lib.flash.band import kernel_band
from lessons_lib.flash.configurations import Tile, configuration

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def single_precision(double_precision):
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def bench(tmp_path):
    return Bench(NoGpu(), Record(tmp_path / "part.json", {}), 5, SIZES)


@pytest.mark.another_process
def test_command_without_gpu_prints_a_message():
    nothing = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": "",
    }  # the command finds the library of this checkout itself
    script = BENCHMARKS / "flash_gpu.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=nothing)
    assert done.returncode == 1
    assert done.stderr.startswith("flash_gpu.py needs an NVIDIA GPU")


def test_tuner_without_gpu_prints_a_message(monkeypatch, capsys):
    monkeypatch.setattr(NoGpu, "available", lambda self: False)
    assert tune_flash.main([], NoGpu()) == 1
    assert capsys.readouterr().err.startswith("tune_flash.py needs an NVIDIA GPU")


def test_subprocesses_do_not_shadow_the_site_module(monkeypatch):
    assert (BENCHMARKS / "site.py").exists()
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), "/elsewhere"])
    flash_gpu.find_library(None)
    assert sys.path == [str(BENCHMARKS.parent), "/elsewhere"]


def test_library_option_measures_another_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [])
    flash_gpu.find_library(tmp_path)
    assert sys.path == [str(tmp_path), str(BENCHMARKS.parent)]


@pytest.mark.parametrize(
    ("main", "arguments", "wrong"),
    [
        (flash_gpu.main, ["--part", "d32"], "part must be one of checks, .*, got 'd32'"),
        (flash_gpu.main, ["--tile", "attend=1,2,3,4"], "a tile is KERNEL:WIDTH=.*, got 'attend=1,2,3,4'"),
        (tune_flash.main, ["--kernel", "attend:99"], "kernel must be one of attend, .*, got 'attend:99'"),
    ],
)
def test_invalid_arguments_raise(main, arguments, wrong):
    with pytest.raises(ValueError, match=wrong):
        main(arguments, NoGpu())


# --- measurements ---------------------------------------------------------------------------------------------------


def test_flops_count_the_two_matrix_products():
    b, h, n, d = 2, 3, 5, 7
    two_products = 2 * (2 * b * h * n * n * d)  # a multiplication and an addition each
    assert timing.flops("forward", b, h, n, d, False) == two_products
    assert timing.flops("forward", b, h, n, d, True) == two_products / 2
    assert timing.flops("backward", b, h, n, d, False) == 2.5 * two_products
    total = timing.flops("forward", b, h, n, d, True) + timing.flops("backward", b, h, n, d, True)
    assert timing.flops("forward+backward", b, h, n, d, True) == total


def test_every_implementation_has_a_time_or_a_reason(bench):
    measured = []
    timing.time_shape(bench, "item", measured, rivals.fused(bench, True, 64), d=64, n=32, is_causal=True)
    assert len(measured) == 4 * 3
    ours = {row["pass"]: row for row in measured if row["implementation"] == "triton"}
    assert [row["milliseconds"] for row in ours.values()] == [2.0, 2.0, 4.0]
    assert [ours["forward"][name] for name in ("rounds", "low", "high")] == [[2.0, 2.0], 1.9, 2.2]
    assert ours["forward"]["tflops"] == pytest.approx(
        timing.flops("forward", 2, 4, 32, 64, True) / 2e-3 / 1e12, rel=1e-4
    )
    matmul = 2 * SIZES.matrix**3 / 2e-3 / 1e12
    assert ours["forward"]["of_matmul"] == pytest.approx(ours["forward"]["tflops"] / matmul, rel=1e-4)
    assert [row.get("extra_mib") for row in ours.values()] == [7.0, None, 7.0]
    assert ours["forward"]["kernel"] == "nothing"
    reasons = [row["reason"] for row in measured if row["implementation"] == "sdpa-cudnn"]
    assert len(reasons) == 3
    assert all(reasons)


@pytest.mark.parametrize("name", patterns.PATTERNS)
def test_pattern_equals_its_block_mask_for_flex_attention(name):
    from torch.nn.attention.flex_attention import create_mask

    b, n = 3, 301
    rule = patterns.PATTERNS[name](b, n, "cpu")
    allowed = rule.to_mask(n).expand(b, 1, n, n)
    assert torch.equal(create_mask(rule.mask_mod(n), b, 1, n, n, device="cpu"), allowed)
    assert patterns.count_pairs(rule, b, n, "cpu") == allowed.sum().item() / b
    assert kernel_band(rule, b, n, n) is None, "the kernels do not use a block mask"


@pytest.mark.parametrize("with_flex", [False, True])
def test_flops_under_a_rule_count_visible_pairs_only(bench, with_flex):
    jaxtyping.config.update("jaxtyping_disable", with_flex)  # PyTorch cannot trace the checks of shapes in a mask_mod
    b, h, n, d = 2, 4, 32, 64
    rule, rows = patterns.documents(b, n, "cpu"), []
    everyone = rivals.ruled(bench, rule, d, n, with_flex=with_flex)
    assert list(everyone) == ["triton", "triton-band", "sdpa-mask", *(["flex"] if with_flex else [])]
    timing.time_shape(bench, "item", rows, everyone, d, n, False, rule=("documents", 0.25))
    row = rows[0]
    assert (row["implementation"], row["rule"], row["share"], row["pass"]) == ("triton", "documents", 0.25, "forward")
    assert "is_causal" not in row
    assert row["tflops"] == pytest.approx(timing.flops("forward", b, h, n, d, False) / 4 / 2e-3 / 1e12, rel=1e-4)
    q, k, v = (torch.randn(b, h, n, d) for _ in range(3))
    wanted = attention(q, k, v, rule)
    for name in set(everyone) - {"triton-band", "sdpa-mask"}:  # PyTorch's kernel needs a GPU
        torch.testing.assert_close(everyone[name](q, k, v), wanted, atol=2e-6, rtol=2e-5)


def test_second_round_is_in_reverse_order(bench):
    order = []
    turns = timing.take_turns(
        bench, {"a": 1, "b": 2, "c": 3}, lambda what, known: order.append(what) or known, rounds=2
    )
    assert order == [1, 2, 3, 3, 2, 1]
    assert list(turns) == ["a", "b", "c"]


def test_inputs_of_an_item_depend_on_the_seed_only(bench):
    first, _, again = bench.randn("x")(3), bench.randn("y")(3), bench.randn("x")(3)
    assert torch.equal(first, again)
    assert not torch.equal(first, bench.randn("y")(3))


def test_speeds_are_relative_to_the_kernels_in_the_same_item():
    shape = {"pass": "forward", "milliseconds": 3.0}
    found = timing.with_speeds(
        [
            {"item": "a", "implementation": "triton", "pass": "forward", "milliseconds": 2.0},
            {"item": "a", "implementation": "sdpa-flash", **shape},
            {"item": "a", "implementation": "sdpa-cudnn", "pass": "forward", "reason": "No available kernel."},
            {"item": "b", "implementation": "sdpa-flash", **shape},
            {"item": "a", "implementation": "sdpa-flash", "part": "plain", **shape},  # measured at another time
        ]
    )
    assert [row.get("speed_of_triton") for row in found] == [1.0, 1.5, None, None, None]


def test_lines_of_an_item_name_every_row():
    shape = {"n": 4096, "d": 128, "is_causal": False, "pass": "forward"}
    said = report.lines(
        "d 128, full, n 4096",
        [
            {"implementation": "triton", **shape, "milliseconds": 2.0, "tflops": 400.0, "of_matmul": 0.6},
            {"implementation": "sdpa-flash", **shape, "milliseconds": 3.0, "tflops": 300.0},
            {"implementation": "sdpa-cudnn", **shape, "reason": "No available kernel."},
        ],
    ).splitlines()
    assert said[0] == "d 128, full, n 4096"
    assert "0.60 of matmul" in said[1]
    assert "sdpa-flash" in said[2]
    assert "triton x1.50" in said[2]
    assert "not run: No available kernel." in said[3]


# --- checks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        Case(n=7, m=7, is_causal=True),
        Case(n=5, m=9, is_causal=True),
        Case(n=9, m=5, is_causal=True),
        Case(n=7, m=7, window=3),
        Case(n=7, m=7, window=3, is_causal=True),
        Case(b=3, n=6, m=6, key_lengths=(6, 0, 4)),
        Case(b=2, n=1, m=8, is_causal=True, key_lengths=(8, 3)),
    ],
    ids=str,
)
def test_mask_of_the_check_equals_the_mask_of_the_cases(case):
    mask = checks.visible(case.b, case.n, case.m, case.is_causal, case.window, case.key_lengths)
    assert torch.equal(mask, case.mask())


def test_error_is_the_largest_relative_error():
    a, b = torch.full((4,), 3.0), torch.full((9,), 2.0)
    assert checks.error([a, 1.01 * b], [a, b]) == pytest.approx(0.01)
    assert checks.error([torch.full((4,), 0.05)], [torch.zeros(4)]) == pytest.approx(0.5)  # a result that is zero
    assert checks.error([a, torch.full((9,), torch.nan)], [a, b]) == float("inf")


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


@DTYPES
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_correct_kernels_pass_the_checks(bench, dtype, problem):
    row = checks.check(bench, "item", dtype, problem)
    assert row["right"]
    assert max(row["error"], row.get("error_decoding", 0.0)) < 8e-3
    assert ("error_decoding" in row) == (problem["n"] == 1)


def test_small_problems_cover_the_kinds_of_the_real_ones():
    sizes = {"b", "h", "g", "n", "m", "d"}

    def kinds(problems):
        return {frozenset((problem.keys() - sizes) | {problem.get("rule")}) for problem in problems}

    assert {kind for small in kinds(PROBLEMS) for kind in small} == {kind for k in kinds(checks.PROBLEMS) for kind in k}
    assert set(patterns.PATTERNS) - {problem.get("rule") for problem in checks.PROBLEMS} == {"causal"}


class Wrong(NoGpu):
    """A machine whose kernels miss one key, use wrong lengths, and are wrong beyond 2^31."""

    def flash(self, q, k, v, *, window=None, key_lengths=None, **options):
        if key_lengths is not None and not key_lengths.is_contiguous():
            key_lengths = key_lengths.clone().fill_(5)
        if any(x.stride(2) == SIZES.far for x in (q, k, v)):
            v = v + 1
        return super().flash(q, k, v, window=window and window - 1, key_lengths=key_lengths, **options)


def test_wrong_results_fail_the_checks(bench):
    bench.machine = Wrong()
    assert not checks.check(bench, "item", torch.float32, PROBLEMS[0])["right"]
    row = checks.lengths_of_any_layout(bench, "item")
    assert not row["right"]
    assert {name.split()[0] for name in row["errors"]} == {"column", "expanded"}
    row = checks.rows_far_apart(bench, "item")
    assert not row["right"]
    assert {name for name, error in row["errors"].items() if error > checks.LOOSE} == {"q", "k", "v"}


def without_gradient(x):
    """Return the same numbers with a gradient of zero."""
    return x.detach() + 0 * x.nan_to_num()


def ends_at_the_last_key(options):
    lengths = options.pop("cache_lengths")
    return options | {"key_lengths": lengths}


def shows_less(options, n=150):
    """Leave out one tile of keys for one tile of queries."""
    table = torch.ones(n, n, dtype=torch.bool)
    table[64:128, :64] = False
    return options | {"mask": options["mask"] & table}


FAULTS = [  # words that select the problems; the options that the wrong kernel uses
    ("documents key_lengths", lambda told: told | {"mask": told["mask"].for_sequence(0)}),
    ("documents key_lengths", lambda told: told | {"key_lengths": told["key_lengths"] - 1}),
    ("documents key_lengths", shows_less),
    ("prefix", lambda told: told | {"mask": Prefix(told["mask"].prefix - 1)}),
    ("prefix", lambda told: told | {"mask": None, "is_causal": True}),
    ("longformer", shows_less),
    ("bigbird", shows_less),
    ("softcap is_causal", lambda told: told | {"softcap": None}),
    ("softcap is_causal", lambda told: told | {"softcap": 1.02 * told["softcap"]}),
    ("documents sinks", lambda told: told | {"softcap": None}),
    ("alibi_slopes", lambda told: told | {"alibi_slopes": 0 * told["alibi_slopes"]}),
    ("alibi_slopes", lambda told: told | {"alibi_slopes": told["alibi_slopes"].roll(1)}),
    ("alibi_slopes", lambda told: told | {"alibi_slopes": without_gradient(told["alibi_slopes"])}),
    ("documents slopes", lambda told: told | {"alibi_slopes": without_gradient(told["alibi_slopes"])}),
    ("sinks", lambda told: told | {"sinks": 0 * told["sinks"].nan_to_num() - torch.inf}),
    ("sinks", lambda told: told | {"sinks": told["sinks"].nan_to_num(neginf=0.0)}),
    ("sinks", lambda told: told | {"sinks": without_gradient(told["sinks"])}),
    ("documents sinks", lambda told: told | {"sinks": without_gradient(told["sinks"])}),
    ("cache_lengths sinks", ends_at_the_last_key),
    ("cache_lengths sinks", lambda told: told | {"cache_lengths": told["cache_lengths"].clamp(max=49)}),
    ("cache_lengths n=7", ends_at_the_last_key),
]


@DTYPES
@pytest.mark.parametrize(("words", "fault"), FAULTS, ids=[f"{i} {words}" for i, (words, _) in enumerate(FAULTS)])
def test_kernel_with_one_fault_fails_the_checks(bench, dtype, words, fault):
    class Faulty(NoGpu):
        def flash(self, *qkv, **options):
            return super().flash(*qkv, **fault(options))

    bench.machine = Faulty()
    named = [(problem, " ".join(f"{key}={value}" for key, value in problem.items())) for problem in PROBLEMS]
    problem = next(problem for problem, name in named if all(word in name for word in words.split()))
    assert not checks.check(bench, "item", dtype, problem)["right"]


@DTYPES
def test_kernel_with_a_fault_in_decoding_fails_the_checks(bench, dtype):
    class Faulty(NoGpu):
        def flash(self, *qkv, **options):
            return super().flash(*qkv, **options if torch.is_grad_enabled() else ends_at_the_last_key(options))

    (problem,) = (problem for problem in PROBLEMS if problem["n"] == 1 and "cache_lengths" in problem)
    right = checks.check(bench, "item", dtype, problem)
    bench.machine = Faulty()
    row = checks.check(bench, "item", dtype, problem)
    assert row["error"] == right["error"]
    assert right["right"]
    assert not row["right"]


class Different(NoGpu):
    """A machine that never gives the same bits twice and whose graphs ignore new inputs."""

    calls: int = 0

    def flash(self, *qkv, **options):
        self.calls += 1
        found = super().flash(*qkv, **options)
        return (found[0] * (1 + self.calls / 100), found[1]) if isinstance(found, tuple) else found

    def captured(self, work):
        return lambda: None


def test_each_regression_check_can_fail(bench):
    bench.machine = Different()
    assert not checks.same_bits_twice(bench, "item")["right"]
    assert not checks.two_streams_at_once(bench, "item")["right"]
    assert not checks.decoding_in_a_cuda_graph(bench, "item")["right"]
    assert not checks.decoding_in_a_cuda_graph_with_lengths(bench, "item")["right"]
    assert not checks.decoding_in_a_cuda_graph_with_caches(bench, "item")["right"]
    bench.machine.calls = 30
    assert not checks.under_autocast(bench, "item")["right"]


def test_check_without_enough_memory_is_unmeasured(bench, monkeypatch):
    monkeypatch.setattr(NoGpu, "free_bytes", lambda self: 100)
    with pytest.raises(checks.Unmeasured, match=r"it needs 0\.0 GB"):
        checks.rows_far_apart(bench, "item")


def test_missing_program_is_unmeasured(bench):
    with pytest.raises(checks.Unmeasured, match="FileNotFoundError"):
        checks.memory_sanitized(bench, "item", program="no-such-sanitizer")


@pytest.mark.parametrize(
    ("said", "status", "right"),
    [("ERROR SUMMARY: 0 errors", 0, True), ("Invalid __global__ read of size 4", 9, False)],
)
def test_sanitizer_output_decides_the_result(bench, tmp_path, said, status, right):
    program = tmp_path / "sanitizer"
    program.write_text(f"#!/bin/sh\necho '========= {said}'\nexit {status}\n")
    program.chmod(0o755)
    assert checks.memory_sanitized(bench, "item", program=str(program)) == {"said": [said], "right": right}
    program.write_text("#!/bin/sh\necho 'Device not supported'\nexit 1\n")
    with pytest.raises(checks.Unmeasured, match="exit status 1: Device not supported"):
        checks.memory_sanitized(bench, "item", program=str(program))


# --- state of the machine -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ("580.1, 1980, 1980, 3201, 698.5, 700.0, [N/A]", {"sm_mhz": 1980.0, "watts": 698.5, "celsius": "[N/A]"}),
        ("No devices were found", {"unknown": "nvidia-smi printed 'No devices were found'"}),
        ("", {"unknown": "nvidia-smi printed ''"}),
    ],
)
def test_state_comes_from_nvidia_smi(monkeypatch, tmp_path, answer, state):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(Machine, "id", lambda self: "0")
    assert state.items() <= Machine().state().items()


def test_state_without_nvidia_smi_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(Machine, "id", lambda self: "0")
    assert "FileNotFoundError" in Machine().state()["unknown"]


# --- tiles ----------------------------------------------------------------------------------------------------------


def test_first_candidate_is_the_library_default(monkeypatch):
    monkeypatch.delattr(configurations, "candidates", raising=False)
    for (kernel, width), tiles in PROPOSED.items():
        own = getattr(configuration(width, 2, (9, 0)), kernel)
        found = candidates(kernel, width, (9, 0))
        assert found[0] == own
        assert len(set(found)) == len(found) > 1
        assert set(tiles) | {own} == set(found)
    assert {kernel for kernel, _ in PROPOSED} == set(KERNELS)


def test_candidates_come_from_the_library_list_if_it_has_one(monkeypatch):
    kept = [Tile(16, 32, 4, 1), Tile(32, 16, 4, 1)]
    monkeypatch.setattr(
        configurations, "candidates", lambda *asked: kept if asked == ("attend", 64, 2, (8, 0)) else None, raising=False
    )
    assert candidates("attend", 64, (8, 0)) == kept
    monkeypatch.setattr(configurations, "candidates", lambda *asked: kept[:1])
    assert len(candidates("attend", 64, (8, 0))) > 1


@pytest.mark.parametrize("tile", [Tile(128, 64, 8, 3), Tile(128, 64, 8, 2, host=True)])
def test_parse_tile_reads_tile_text(tile):
    assert parse_tile(tile_text(("attend", 128), tile)) == (("attend", 128), tile)


def test_tile_text_names_the_chosen_options():
    text = tile_text(("attend", 64), Tile(128, 64, 8, 2, host=True))
    assert text == "attend:64=128,64,8,2,host"


@pytest.mark.parametrize(
    "text", ["", "attend:128", "attend:128=1,2,3", "attend:x=1,2,3,4", "a:64=1,2,3,4", "attend:64=1,2,3,4,no"]
)
def test_parse_tile_invalid_text_raises(text):
    with pytest.raises(ValueError, match="a tile is KERNEL:WIDTH=QUERIES,KEYS,WARPS,STAGES with KERNEL one of attend,"):
        parse_tile(text)


def test_configured_replaces_one_tile(bench):
    own, tile = configuration(128, 2, (9, 0)), Tile(64, 64, 4, 3)
    bench.tiles = {("attend", 128): tile}
    assert bench.configured(128) == own._replace(attend=tile)
    assert bench.configured(64) is None
    assert bench.configured(128, {}) is None


def test_kernels_receive_the_given_tiles(monkeypatch):
    launch = pytest.importorskip("lessons_lib.flash.autograd", reason="triton is not installed")
    asked = []

    def triton_attention(q, k, v, band, scale, key_lengths, tiles):
        asked.append((tuple(band[2:]), scale, tiles))
        return "out", "lse"

    monkeypatch.setattr(launch, "triton_attention", triton_attention)
    tiles = configuration(16, 2, (9, 0))
    x = torch.zeros(1, 2, 5, 16)
    assert Machine().flash(x, x, x, tiles=tiles, is_causal=True) == "out"
    assert asked == [((None, 0), 0.25, tiles)]
