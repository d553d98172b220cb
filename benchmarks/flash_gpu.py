"""Check the Triton kernels on an NVIDIA GPU, then time them against PyTorch's fused kernels and a matrix product.

Run ``python benchmarks/flash_gpu.py`` on a machine with a GPU of compute capability 8.0 or newer and a CUDA build of
PyTorch, which brings Triton (ten minutes, most of them FlexAttention's compilation). It

1. compares outputs, log-sum-exps and gradients with float64 at real sizes, in three precisions, and stops at the first
   that errs more than twice as much as plain attention in the same precision;
2. times forward and backward in bfloat16 beside ``scaled_dot_product_attention``, each of its kernels forced in turn,
   and FlexAttention under the same mask; then decoding, against the speed at which this device copies memory;
3. prints tables and writes ``benchmarks/results/flash-<device>.json``.

What the figures mean. ``tflops`` counts the two products of the forward pass, :math:`4 b h n^2 d`, half of that if
causal, 2.5 times that for the backward pass and 3.5 times for both, whatever a kernel really does; ``of_matmul`` is
that over the rate of an 8192 x 8192 x 8192 product measured in the same run; ``kernel`` is who really ran, and
``speed_of_triton`` how many times faster the Triton kernels are. A row that could not run has ``reason`` in place of
figures.
"""

import datetime
import json
import platform
import re
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.attention import attention
from lessons_lib.flash import flash_attention
from lessons_lib.masks import causal, padding, sliding_window
from lessons_lib.softmax import log_sum_exp

DEVICE = "cuda"
RESULTS = Path(__file__).resolve().parent / "results"
WIDTHS, LENGTHS = (64, 128, 256), (1024, 2048, 4096, 8192, 16384)
FLEX_LENGTHS = (4096, 16384)  # each shape is compiled anew
TOKENS, MODEL_WIDTH = 16384, 2048  # b n and h d are the same in every row
PASSES = {"forward": 1.0, "backward": 2.5, "forward+backward": 3.5}  # relative cost
FORCED = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
# What the kernels must reach from 4096 to 16384: pass, width, causal (None is both), against whom, at least.
TARGETS = (
    ("forward", 128, False, "sdpa-flash", 1.20),
    ("forward", 128, False, "sdpa-cudnn", 0.65),
    ("forward", 128, False, "matmul", 0.57),
    ("forward", 128, True, "sdpa-flash", 1.15),
    ("forward", 128, True, "sdpa-cudnn", 0.60),
    ("forward", 64, False, "sdpa-flash", 1.15),
    ("forward", 64, False, "sdpa-cudnn", 0.90),
    ("forward", 64, False, "matmul", 0.47),
    ("forward", 256, False, "sdpa-flash", 1.10),
    ("backward", 128, None, "sdpa-flash", 0.85),
    ("backward", 128, None, "sdpa-cudnn", 0.50),
    ("forward+backward", 128, None, "sdpa-flash", 0.95),
    ("forward", 128, None, "flex", 1.0),
    ("backward", 128, None, "flex", 0.9),
)


# --- correctness ----------------------------------------------------------------------------------------------------

PROBLEMS: tuple[dict[str, Any], ...] = (
    {"b": 2, "h": 4, "g": 4, "n": 2048, "m": 2048, "d": 64},
    {"b": 2, "h": 4, "g": 4, "n": 2048, "m": 2048, "d": 128, "is_causal": True},
    {"b": 1, "h": 4, "g": 2, "n": 2048, "m": 2048, "d": 256, "is_causal": True},
    {"b": 1, "h": 8, "g": 2, "n": 1021, "m": 2039, "d": 80, "is_causal": True},
    {"b": 1, "h": 4, "g": 1, "n": 2039, "m": 1021, "d": 40, "is_causal": True},
    {"b": 1, "h": 4, "g": 4, "n": 2039, "m": 2039, "d": 64, "window": 257},
    {"b": 1, "h": 4, "g": 2, "n": 2039, "m": 2039, "d": 128, "window": 257, "is_causal": True},
    {"b": 3, "h": 4, "g": 2, "n": 1500, "m": 1500, "d": 96, "key_lengths": (1500, 0, 733)},
    {"b": 2, "h": 16, "g": 2, "n": 1, "m": 8191, "d": 128, "is_causal": True, "key_lengths": (8191, 500)},
)
FLOOR = {torch.float32: 2e-6, torch.float16: 2e-4, torch.bfloat16: 2e-3}  # about one rounding of the result


def visible(b: int, n: int, m: int, is_causal: bool, window: int | None, key_lengths: tuple | None) -> Tensor:
    """Spell out who sees whom."""
    longest = max(n, m)
    mask = torch.ones(longest, longest, dtype=torch.bool)
    if is_causal:
        mask &= causal(longest)
    if window is not None:
        mask &= sliding_window(longest, window, causal=is_causal)
    mask = mask[longest - n :, longest - m :].expand(b, 1, n, m)
    return mask if key_lengths is None else mask & padding(torch.tensor(key_lengths), m)


def gradients(function: Callable, qkv: list[Tensor], upstream: list[Tensor]) -> list[Tensor]:
    """Outputs, finite log-sum-exps and gradients of ``function(q, k, v)``, in float64."""
    leaves = [x.detach().requires_grad_() for x in qkv]
    out, lse = function(*leaves)
    lse = lse.masked_fill(lse == -torch.inf, 0.0)
    grads = torch.autograd.grad([out, lse], leaves, [upstream[0].to(out.dtype), upstream[1].to(lse.dtype)])
    return [x.detach().double() for x in (out, lse, *grads)]


def error(got: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest relative error over the results, in the Euclidean norm."""
    return max(
        ((a - b).norm() / b.norm().clamp(min=0.1 * b.numel() ** 0.5)).item() for a, b in zip(got, wanted, strict=True)
    )


def check(dtype: torch.dtype, problem: dict[str, Any]) -> dict[str, Any]:
    """Compare one problem with float64 on fresh inputs; exit if the kernels err too much."""
    sizes = {name: problem[name] for name in ("b", "h", "g", "n", "m", "d")}
    b, h, g, n, m, d = sizes.values()
    is_causal, window = problem.get("is_causal", False), problem.get("window")
    key_lengths = problem.get("key_lengths")
    mask = visible(b, n, m, is_causal, window, key_lengths).to(DEVICE)
    options = {"is_causal": is_causal, "window": window, "backend": "triton", "return_lse": True}
    options |= {} if key_lengths is None else {"key_lengths": torch.tensor(key_lengths)}
    # Heads inside the rows, as a projection leaves them: no tensor is contiguous.
    qkv = [torch.randn(b, x, y, d, device=DEVICE).to(dtype).transpose(1, 2) for x, y in ((n, h), (m, g), (m, g))]
    upstream = [torch.randn(b, h, n, d, device=DEVICE).to(dtype), torch.randn(b, h, n, device=DEVICE)]

    def kernels(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flash_attention(q, k, v, **options)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Any:
        scores = q @ k.repeat_interleave(h // g, dim=1).mT / d**0.5
        return attention(q, k, v, mask), log_sum_exp(scores, mask)

    wanted = gradients(plain, [x.double() for x in qkv], upstream)
    ours, usual = error(gradients(kernels, qkv, upstream), wanted), error(gradients(plain, qkv, upstream), wanted)
    row = {"dtype": str(dtype).removeprefix("torch."), **problem, "error": ours, "error_of_plain": usual}
    if n == 1:  # without gradients, one query takes the kernel for decoding
        with torch.no_grad():
            row["error_decoding"] = error([kernels(*qkv)[0].double()], wanted[:1])
    worst = max(ours, row.get("error_decoding", 0.0))
    if not worst <= max(2 * usual, FLOOR[dtype]):
        sys.exit(f"the kernels are wrong, nothing was timed: {row}")
    return row


# --- time -----------------------------------------------------------------------------------------------------------


def flops(direction: str, b: int, h: int, n: int, d: int, is_causal: bool) -> float:
    """What the pass costs by the usual count, :math:`4 b h n^2 d`, halved if causal."""
    return PASSES[direction] * 4 * b * h * n**2 * d / (2 if is_causal else 1)


def milliseconds(work: Callable[[], object]) -> float:
    """The median time of a call on the GPU, the second-level cache emptied before each."""
    from triton.testing import do_bench

    median: Any = do_bench(work, warmup=50, rep=200, return_mode="median")
    return median


def kernel_name(work: Callable[[], object]) -> str:
    """The kernel that takes the most time in one call: who really ran."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        work()
        torch.cuda.synchronize()
    return max(profile.key_averages(), key=lambda event: event.self_device_time_total).key


def implementations(n: int, is_causal: bool) -> dict[str, Callable[[Tensor, Tensor, Tensor], Any]]:
    """Everyone who is to be timed on this mask, by name."""

    def forced(backend: SDPBackend) -> Callable:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=is_causal)

        return attend

    everyone: dict[str, Callable] = {
        "triton": lambda q, k, v: flash_attention(q, k, v, is_causal=is_causal, backend="triton"),
        **{name: forced(backend) for name, backend in FORCED.items()},
    }
    if n in FLEX_LENGTHS:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch.compiler.reset()
        compiled = torch.compile(flex_attention, dynamic=False)
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n) if is_causal else None
        everyone["flex"] = lambda q, k, v: compiled(q, k, v, block_mask=mask)
    return everyone


def time_lengths(d: int, n: int, is_causal: bool, matmul_tflops: float) -> list[dict[str, Any]]:
    """Time everyone's passes over one shape."""
    b, h = TOKENS // n, MODEL_WIDTH // d
    qkv = [torch.randn(b, h, n, d, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    upstream = torch.randn(b, h, n, d, device=DEVICE, dtype=torch.bfloat16)
    rows = []
    for name, attend in implementations(n, is_causal).items():
        shape = {"implementation": name, "b": b, "h": h, "n": n, "d": d, "is_causal": is_causal}
        try:
            measured = time_passes(attend, qkv, upstream)
        except RuntimeError as reason:  # "No available kernel", or no memory
            measured = {direction: {"reason": str(reason).splitlines()[0]} for direction in PASSES}
        for direction, figures in measured.items():
            row = {**shape, "pass": direction, **figures}
            if "milliseconds" in row:
                row["tflops"] = flops(direction, b, h, n, d, is_causal) / row["milliseconds"] / 1e9
                row["of_matmul"] = row["tflops"] / matmul_tflops
            rows.append(row)
    return with_speeds(rows)


def time_passes(attend: Callable, qkv: list[Tensor], upstream: Tensor) -> dict[str, dict[str, Any]]:
    """Milliseconds of each pass, and the kernel that took most of them."""
    out = attend(*qkv)
    works = {
        "forward": lambda: attend(*qkv),
        "backward": lambda: torch.autograd.grad(out, qkv, upstream, retain_graph=True),
    }
    times = {
        direction: {"milliseconds": milliseconds(work), "kernel": kernel_name(work)}
        for direction, work in works.items()
    }
    return times | {"forward+backward": {"milliseconds": sum(row["milliseconds"] for row in times.values())}}


def with_speeds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each row how many times faster the Triton kernels are on the same pass; ``rows`` are of one shape."""
    ours = {row["pass"]: row["milliseconds"] for row in rows if row["implementation"] == "triton"}
    return [
        row | ({"speed_of_triton": row["milliseconds"] / ours[row["pass"]]} if "milliseconds" in row else {})
        for row in rows
    ]


def time_matmul() -> float:
    """TFLOP/s of a bfloat16 product of matrices of 8192 x 8192."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / milliseconds(lambda: a @ b) / 1e9


def time_decoding() -> tuple[float, list[dict[str, Any]]]:
    """How fast this device copies, in GB/s read and written, and how fast one query reads 32k keys and values."""
    memory = torch.empty(2**30, device=DEVICE, dtype=torch.uint8)
    copy = 2 * memory.numel() / milliseconds(lambda: memory.clone()) / 1e6
    rows = []
    for b in (1, 4, 16):
        h, g, m, d = 32, 8, 32768, 128
        q = torch.randn(b, h, 1, d, device=DEVICE, dtype=torch.bfloat16)
        k, v = (torch.randn(b, g, m, d, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))

        def theirs(q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return scaled_dot_product_attention(q, k, v, enable_gqa=True)

        def ours(q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Any:
            return flash_attention(q, k, v, is_causal=True, backend="triton")

        for name, work in {"triton": ours, "sdpa-flash": theirs}.items():
            taken = milliseconds(work)
            rate = 2 * k.numel() * k.element_size() / taken / 1e6
            shape = {"implementation": name, "b": b, "h": h, "g": g, "m": m, "d": d}
            rows.append(shape | {"milliseconds": taken, "gb_per_s": rate, "of_copy": rate / copy})
    return copy, rows


# --- report ---------------------------------------------------------------------------------------------------------


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Lay the rows out: a line for each, blank lines between shapes."""
    lines, shape = [], None
    for row in rows:
        if shape != (shape := (row["d"], row["is_causal"], row["n"])):
            lines.append(f"\nd {row['d']}, {'causal' if row['is_causal'] else 'full'}, n {row['n']}")
        figures = (
            f"{row['milliseconds']:9.3f} ms {row['tflops']:7.0f} TFLOP/s   {row['of_matmul']:.2f} of matmul   "
            f"triton x{row['speed_of_triton']:.2f}"
            if "milliseconds" in row
            else f"  not run: {row['reason']}"
        )
        lines.append(f"  {row['pass']:17}{row['implementation']:15}{figures}")
    return "\n".join(lines)


def judge(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each target, the worst ratio from 4096 on; None where nothing was measured."""
    rows = [row for row in rows if "milliseconds" in row and row["n"] >= 4096]
    verdicts = []
    for direction, d, is_causal, rival, least in TARGETS:
        name, ratio = ("triton", "of_matmul") if rival == "matmul" else (rival, "speed_of_triton")
        ratios = [
            row[ratio]
            for row in rows
            if (row["pass"], row["d"], row["implementation"]) == (direction, d, name)
            and is_causal in (None, row["is_causal"])
        ]
        verdict = {"pass": direction, "d": d, "is_causal": is_causal, "against": rival, "at_least": least}
        verdicts.append(verdict | {"reached": min(ratios, default=None)})
    return verdicts


def file_name(device: str) -> str:
    """``NVIDIA H200`` becomes ``flash-nvidia-h200.json``."""
    return f"flash-{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.json"


def main() -> None:
    """Check, measure, print and write."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        sys.exit(
            "flash_gpu.py needs an NVIDIA GPU and a CUDA build of PyTorch: there is none here, nothing was measured"
        )
    torch.backends.cuda.matmul.allow_tf32 = False  # plain float32 is a yardstick
    torch.manual_seed(datetime.datetime.now().microsecond)
    checks = [check(dtype, problem) for dtype in FLOOR for problem in PROBLEMS]
    print(f"{len(checks)} problems right; the worst relative error is {max(row['error'] for row in checks):.1e}")

    matmul = time_matmul()
    print(f"matrix product {matmul:.0f} TFLOP/s")
    copy, decoding = time_decoding()
    for row in decoding:
        print(
            f"decode b {row['b']:3} {row['implementation']:12}{row['gb_per_s']:7.0f} GB/s, {row['of_copy']:.2f} of copy"
        )
    rows = []
    for d in WIDTHS:
        for is_causal in (False, True):
            for n in LENGTHS:
                rows += (measured := time_lengths(d, n, is_causal, matmul))
                print(table(measured), flush=True)
    targets = judge(rows)
    for verdict in targets:
        print(verdict)

    device = torch.cuda.get_device_name()
    report = {
        "command": "python benchmarks/flash_gpu.py",
        "date": datetime.date.today().isoformat(),
        "device": device,
        "versions": {
            "python": platform.python_version(),
            "torch": version("torch"),
            "triton": version("triton"),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        },
        "dtype": "bfloat16",
        "matmul_tflops": matmul,
        "copy_gb_per_s": copy,
        "targets": targets,
        "rows": rows,
        "decode": decoding,
        "checks": checks,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / file_name(device)).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
