"""The benchmark for the GPU says what it needs, and its arithmetic is right, where there is no GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from flash_cases import Case

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "flash_gpu.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("flash_gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so():
    nothing = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, env=nothing)
    assert done.returncode == 1
    assert done.stderr.startswith("flash_gpu.py needs an NVIDIA GPU")


def test_flops_are_those_of_the_two_products(benchmark):
    b, h, n, d = 2, 3, 5, 7
    two_products = 2 * (2 * b * h * n * n * d)  # a multiplication and an addition each
    assert benchmark.flops("forward", b, h, n, d, False) == two_products
    assert benchmark.flops("forward", b, h, n, d, True) == two_products / 2
    assert benchmark.flops("backward", b, h, n, d, False) == 2.5 * two_products
    total = benchmark.flops("forward", b, h, n, d, True) + benchmark.flops("backward", b, h, n, d, True)
    assert benchmark.flops("forward+backward", b, h, n, d, True) == total


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
def test_the_mask_of_the_check_is_the_flash_path_s(benchmark, case):
    mask = benchmark.visible(case.b, case.n, case.m, case.is_causal, case.window, case.key_lengths)
    assert torch.equal(mask, case.mask())


def test_the_error_is_the_worst_relative_one(benchmark):
    a, b = torch.full((4,), 3.0), torch.full((9,), 2.0)
    assert benchmark.error([a, 1.01 * b], [a, b]) == pytest.approx(0.01)
    assert benchmark.error([torch.full((4,), 0.05)], [torch.zeros(4)]) == pytest.approx(0.5)  # a result that vanishes


@pytest.fixture
def on_the_cpu(benchmark, monkeypatch):
    """The benchmark with the tiled implementation for the kernels, and a clock that always shows 2 ms."""
    flash_attention = benchmark.flash_attention
    monkeypatch.setattr(benchmark, "DEVICE", "cpu")
    monkeypatch.setattr(
        benchmark,
        "flash_attention",
        lambda q, k, v, backend, **options: flash_attention(q, k, v, backend="tiled", **options),
    )
    monkeypatch.setattr(benchmark, "milliseconds", lambda work: (work(), 2.0)[1])
    monkeypatch.setattr(benchmark, "kernel_name", lambda work: "tiled")
    monkeypatch.setattr(benchmark, "TOKENS", 64)
    torch.set_default_dtype(torch.float32)


SMALL = {"b": 2, "h": 4, "g": 2, "n": 37, "m": 50, "d": 8, "is_causal": True, "window": 9, "key_lengths": (50, 20)}


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_what_is_right_passes_the_check(benchmark, dtype):
    assert benchmark.check(dtype, SMALL)["error"] < 8e-3
    assert benchmark.check(dtype, SMALL | {"n": 1})["error_decoding"] < 8e-3


@pytest.mark.usefixtures("on_the_cpu")
def test_what_is_wrong_stops_it(benchmark, monkeypatch):
    right = benchmark.flash_attention
    monkeypatch.setattr(benchmark, "flash_attention", lambda *qkv, window, **more: right(*qkv, window=8, **more))
    with pytest.raises(SystemExit, match="the kernels are wrong, nothing was timed"):
        benchmark.check(torch.float32, SMALL)


@pytest.mark.usefixtures("on_the_cpu")
def test_every_implementation_is_timed_or_says_why_not(benchmark):
    measured = benchmark.time_lengths(d=64, n=32, is_causal=True, matmul_tflops=100.0)
    assert len(measured) == 4 * 3
    ours = {row["pass"]: row for row in measured if row["implementation"] == "triton"}
    assert [row["milliseconds"] for row in ours.values()] == [2.0, 2.0, 4.0]
    assert ours["forward"]["tflops"] == benchmark.flops("forward", 2, 32, 32, 64, True) / 2e-3 / 1e12
    assert ours["forward"]["of_matmul"] == ours["forward"]["tflops"] / 100
    reasons = [row["reason"] for row in measured if row["implementation"] == "sdpa-cudnn"]
    assert len(reasons) == 3
    assert all(reasons)


def rows(benchmark, n: int, ours: float, theirs: float) -> list[dict]:
    shape = {"b": 1, "h": 16, "n": n, "d": 128, "is_causal": False, "pass": "forward"}
    return benchmark.with_speeds(
        [
            {"implementation": "triton", **shape, "milliseconds": ours, "tflops": 400.0, "of_matmul": 0.6},
            {"implementation": "sdpa-flash", **shape, "milliseconds": theirs, "tflops": 300.0, "of_matmul": 0.5},
            {"implementation": "sdpa-cudnn", **shape, "reason": "No available kernel."},
        ]
    )


def test_speeds_are_relative_to_the_row(benchmark):
    speeds = [row.get("speed_of_triton") for row in rows(benchmark, 4096, ours=2.0, theirs=3.0)]
    assert speeds == [1.0, 1.5, None]


def test_the_table_names_every_row(benchmark):
    lines = benchmark.table(rows(benchmark, 4096, 2.0, 3.0) + rows(benchmark, 8192, 2.0, 3.0)).splitlines()
    assert [line for line in lines if line.startswith("d ")] == ["d 128, full, n 4096", "d 128, full, n 8192"]
    assert sum("sdpa-flash" in line and "triton x1.50" in line for line in lines) == 2
    assert sum("not run: No available kernel." in line for line in lines) == 2


def test_a_target_is_judged_by_the_worst_long_sequence(benchmark):
    measured = rows(benchmark, 1024, 1.0, 0.1) + rows(benchmark, 4096, 2.0, 3.0) + rows(benchmark, 8192, 2.0, 2.5)
    reached = {
        verdict["against"]: verdict["reached"]
        for verdict in benchmark.judge(measured)
        if (verdict["pass"], verdict["d"], verdict["is_causal"]) == ("forward", 128, False)
    }
    assert reached == {"sdpa-flash": 1.25, "matmul": 0.6, "sdpa-cudnn": None}


def test_results_are_named_after_the_device(benchmark):
    assert benchmark.file_name("NVIDIA H200") == "flash-nvidia-h200.json"
    assert benchmark.file_name("NVIDIA GeForce RTX 4090 (Laptop)") == "flash-nvidia-geforce-rtx-4090-laptop.json"
