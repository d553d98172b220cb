"""Against float64 at real sizes, in three precisions, and where kernels are known to go wrong.

A result may err twice as much as plain attention in the same precision does. Every failure is recorded, and the
checks go on.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lessons_lib
from lessons_lib.attention import attention
from lessons_lib.masks import causal, padding, sliding_window
from lessons_lib.softmax import log_sum_exp

from .bench import Bench, Unmeasured
from .record import Row

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
    {"b": 1, "h": 96, "g": 1, "n": 1, "m": 4093, "d": 128, "is_causal": True},
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
    """The largest relative error over the results, in the Euclidean norm; infinite if there is a NaN."""
    errors = [
        ((a.double() - b.double()).norm() / b.double().norm().clamp(min=0.1 * b.numel() ** 0.5)).item()
        for a, b in zip(got, wanted, strict=True)
    ]
    return max(e if e == e else float("inf") for e in errors)


def plain(mask: Tensor | None, h: int, g: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """The specification: ``attention``, and the log-sum-exp of the same scores."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = q @ k.repeat_interleave(h // g, dim=1).mT / q.shape[-1] ** 0.5
        return attention(q, k, v, mask), log_sum_exp(scores, mask)

    return function


def check(bench: Bench, item: str, dtype: torch.dtype, problem: dict[str, Any]) -> Row:
    """Compare one problem with float64 on fresh inputs."""
    b, h, g, n, m, d = (problem[name] for name in ("b", "h", "g", "n", "m", "d"))
    is_causal, window = problem.get("is_causal", False), problem.get("window")
    key_lengths = problem.get("key_lengths")
    mask = visible(b, n, m, is_causal, window, key_lengths).to(bench.machine.device)
    options: dict[str, Any] = {"is_causal": is_causal, "window": window, "return_lse": True}
    options |= {} if key_lengths is None else {"key_lengths": torch.tensor(key_lengths)}
    randn = bench.randn(item)
    # Heads inside the rows, as a projection leaves them: no tensor is contiguous.
    qkv = [randn(b, x, y, d).to(dtype).transpose(1, 2) for x, y in ((n, h), (m, g), (m, g))]
    upstream = [randn(b, h, n, d).to(dtype), randn(b, h, n)]

    def kernels(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return bench.machine.flash(q, k, v, **options)

    specified = plain(mask, h, g)
    wanted = gradients(specified, [x.double() for x in qkv], upstream)
    ours, usual = error(gradients(kernels, qkv, upstream), wanted), error(gradients(specified, qkv, upstream), wanted)
    row = {"dtype": str(dtype).removeprefix("torch."), **problem, "error": ours, "error_of_plain": usual}
    if n == 1:  # without gradients, one query takes the kernel for decoding
        with torch.no_grad():
            row["error_decoding"] = error([kernels(*qkv)[0].double()], wanted[:1])
    worst = max(ours, row.get("error_decoding", 0.0))
    allowed = max(2 * usual, FLOOR[dtype])
    return row | {"allowed": allowed, "right": worst <= allowed}


def problems() -> Iterator[tuple[str, Callable[[Bench, str], Row]]]:
    """Every problem in every precision, and what else is known to go wrong, by name."""
    for dtype, problem in itertools.product(FLOOR, PROBLEMS):
        name = f"{str(dtype).removeprefix('torch.')} " + " ".join(f"{key}={value}" for key, value in problem.items())
        yield name, lambda bench, item, dtype=dtype, problem=problem: check(bench, item, dtype, problem)
    for function in REGRESSIONS:
        yield function.__name__.replace("_", " "), function


# --- where kernels are known to go wrong ----------------------------------------------------------------------------


def lengths_of_any_layout(bench: Bench, item: str) -> Row:
    """Key lengths in a table's column, every second one, one for all, in 32 and 64 bits: the kernels see the numbers.

    What a kernel reads in their place may be larger than ``m``, so the lengths lie among such numbers.
    """
    b, h, g, n, m, d = 3, 4, 2, 65, 130, 64
    randn, worst = bench.randn(item), {}
    for dtype, device in itertools.product((torch.int32, torch.int64), dict.fromkeys(("cpu", bench.machine.device))):
        table = torch.full((b, 5), 10**6, dtype=dtype, device=device)
        table[:, 3] = torch.tensor([130, 0, 77])
        layouts = {
            "contiguous": table[:, 3].contiguous(),
            "column": table[:, 3],
            "expanded": torch.tensor([77], dtype=dtype, device=device).expand(b),
        }
        for (layout, lengths), rows in itertools.product(layouts.items(), (n, 1)):
            qkv = [randn(b, x, y, d).to(torch.bfloat16) for x, y in ((h, rows), (g, m), (g, m))]
            upstream = [randn(b, h, rows, d).to(torch.bfloat16), randn(b, h, rows)]
            mask = padding(lengths.cpu().long(), m).expand(b, 1, rows, m).to(bench.machine.device)
            wanted = gradients(plain(mask, h, g), [x.double() for x in qkv], upstream)

            def kernels(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor = lengths) -> Any:
                return bench.machine.flash(q, k, v, key_lengths=lengths, return_lse=True)

            name = f"{layout} {dtype} on {device}, {rows} queries"
            worst[name] = error(gradients(kernels, qkv, upstream), wanted)
            if rows == 1:
                with torch.no_grad():
                    worst[name] = max(worst[name], error([kernels(*qkv)[0]], wanted[:1]))
    return judged({"errors": {name: value for name, value in worst.items() if value > LOOSE}}, max(worst.values()))


def rows_far_apart(bench: Bench, item: str) -> Row:
    """Rows so far apart that the last begins past 2^31 numbers: in each input, and in the gradient of the output."""
    far, n, h, d = bench.sizes.far, 5, 2, 64
    needed = 2 * (far * (n - 1) + h * d)  # bytes
    if bench.machine.free_bytes() < 1.2 * needed:
        raise Unmeasured(f"it needs {needed / 1e9:.1f} GB")
    randn = bench.randn(item)
    store = torch.empty(far * (n - 1) + h * d, dtype=torch.bfloat16, device=bench.machine.device)
    upstream, errors = [randn(1, h, n, d).to(torch.bfloat16), torch.zeros(1, h, n, device=bench.machine.device)], {}
    qkv = [randn(1, h, n, d).to(torch.bfloat16) for _ in range(3)]
    wanted = gradients(plain(None, h, h), [x.double() for x in qkv], upstream)

    def kernels(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return bench.machine.flash(q, k, v, return_lse=True)

    def spread(x: Tensor) -> Tensor:
        return store.as_strided((1, h, n, d), (store.numel(), d, far, 1)).copy_(x)

    for place, name in enumerate(("q", "k", "v")):
        moved = [spread(x) if i == place else x for i, x in enumerate(qkv)]
        errors[name] = error(gradients(kernels, moved, upstream), wanted)
    errors["grad_out"] = error(gradients(kernels, qkv, [spread(upstream[0]), upstream[1]]), wanted)
    return judged({"errors": errors}, max(errors.values()))


def inside_torch_compile(bench: Bench, item: str) -> Row:
    """A compiled function gives what the function gives, gradients too."""
    qkv, upstream = _small(bench, item)

    def kernels(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return bench.machine.flash(2 * q, k, v, is_causal=True, return_lse=True)

    torch.compiler.reset()
    compiled = torch.compile(kernels, backend=bench.machine.compiler)
    got, wanted = gradients(compiled, qkv, upstream), gradients(kernels, qkv, upstream)
    return judged({}, error(got, wanted))


def decoding_in_a_cuda_graph(bench: Bench, item: str) -> Row:
    """A captured step, played again on other numbers in the same memory, gives what the step gives."""
    return _captured(bench, item, None)


def decoding_in_a_cuda_graph_with_lengths(bench: Bench, item: str) -> Row:
    """So with a cache that is not full: the lengths lie on the device, and grow from step to step."""
    return _captured(bench, item, torch.tensor([100, 3000], device=bench.machine.device))


def _captured(bench: Bench, item: str, lengths: Tensor | None) -> Row:
    randn, results = bench.randn(item), []
    q, k, v = (randn(2, heads, n, 128).to(torch.bfloat16) for heads, n in ((8, 1), (2, 4096), (2, 4096)))
    out = torch.empty_like(q)

    def step() -> None:
        with torch.no_grad():
            out.copy_(bench.machine.flash(q, k, v, is_causal=True, key_lengths=lengths))

    play = bench.machine.captured(step)
    for matrix in (q, k, v):
        matrix.copy_(randn(matrix.shape))
    if lengths is not None:
        lengths += 1000
    for run in (play, step):
        out.fill_(torch.nan)
        run()
        results.append(out.clone())
    return judged({}, error(results[:1], results[1:]))


def under_autocast(bench: Bench, item: str) -> Row:
    """Single-precision inputs under autocast give finite results, no worse than half precision, and their gradients."""
    qkv, upstream = _small(bench, item)
    qkv = [x.float() for x in qkv]

    def kernels(q: Tensor, k: Tensor, v: Tensor) -> Any:
        with torch.autocast(bench.machine.device, dtype=torch.bfloat16):
            return bench.machine.flash(q, k, v, is_causal=True, return_lse=True)

    mask = causal(qkv[0].shape[2]).to(bench.machine.device)
    wanted = gradients(plain(mask, 4, 2), [x.double() for x in qkv], upstream)
    with torch.no_grad():
        dtype = str(kernels(*qkv)[0].dtype)
    return judged({"dtype_of_output": dtype}, error(gradients(kernels, qkv, upstream), wanted))


def two_streams_at_once(bench: Bench, item: str) -> Row:
    """Work on two streams at once gives the bits that it gives one after the other."""
    inputs = [_small(bench, f"{item} {i}", n=bench.sizes.long) for i in range(2)]

    def kernels(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return bench.machine.flash(q, k, v, is_causal=True, return_lse=True)

    alone = [gradients(kernels, *problem) for problem in inputs]
    differ = 0
    for _ in range(5):
        together = []
        with bench.machine.streams(2) as streams:
            for stream, problem in zip(streams, inputs, strict=True):
                with stream:
                    together.append(gradients(kernels, *problem))
        bench.machine.settle()
        for got, wanted in zip(together, alone, strict=True):
            differ += sum(not torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    return judged({"different": differ}, float(differ))


def same_bits_twice(bench: Bench, item: str) -> Row:
    """The same input gives the same bits, backward too."""
    qkv, upstream = _small(bench, item, n=bench.sizes.long)

    def kernels(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return bench.machine.flash(q, k, v, is_causal=True, return_lse=True)

    first, second = (gradients(kernels, qkv, upstream) for _ in range(2))
    differ = sum(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
    return judged({"different": differ}, float(differ))


REGRESSIONS = (
    lengths_of_any_layout,
    inside_torch_compile,
    decoding_in_a_cuda_graph,
    decoding_in_a_cuda_graph_with_lengths,
    under_autocast,
    two_streams_at_once,
    same_bits_twice,
    rows_far_apart,  # last: a kernel that goes wrong here takes the device with it
)
LOOSE = 2e-2  # half precision errs a third of this; what these find is off by far more


def judged(row: Row, worst: float) -> Row:
    """Complete a row by whether its worst error is one of rounding."""
    return {**row, "error": worst, "allowed": LOOSE, "right": worst <= LOOSE}


def _small(bench: Bench, item: str, n: int = 300) -> tuple[list[Tensor], list[Tensor]]:
    randn = bench.randn(item)
    qkv = [randn(2, heads, n, 64).to(torch.bfloat16) for heads in (4, 2, 2)]
    return qkv, [randn(2, 4, n, 64).to(torch.bfloat16), randn(2, 4, n)]


# --- with another program -------------------------------------------------------------------------------------------

SMALL = """
import torch
from lessons_lib.flash import flash_attention
lengths = torch.tensor([300, 117])
for n in (300, 1):
    q, k, v = (torch.randn(2, h, x, 80, device="cuda", dtype=torch.bfloat16, requires_grad=n > 1)
               for h, x in ((4, n), (2, 300), (2, 300)))
    out = flash_attention(q, k, v, is_causal=True, key_lengths=lengths, backend="triton")
    if n > 1:
        out.sum().backward()
torch.cuda.synchronize()
"""


def memory_sanitized(bench: Bench, item: str, program: str = "compute-sanitizer") -> Row:
    """Let NVIDIA's checker watch every access of one small problem to memory, forward, backward and decoding."""
    command = [program, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-c", SMALL]
    done = run_beside(command, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, seconds=150)
    said = [line.strip("= ") for line in done.stdout.splitlines() if "ERROR SUMMARY" in line or "Invalid" in line]
    if done.returncode not in (0, 9) or not said:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["it said nothing"]
        raise Unmeasured(f"{program} did not do its work, exit status {done.returncode}: {last[0]}"[:300])
    return {"said": said[:5], "right": done.returncode == 0}


def run_beside(command: list[str], environment: dict[str, str], seconds: float) -> subprocess.CompletedProcess:
    """Run a program of the toolkit; Unmeasured if it is not there or does not come to an end."""
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, "PYTHONPATH": str(Path(lessons_lib.__file__).parents[1]), **environment},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise Unmeasured(f"{type(failure).__name__}: {failure}"[:300]) from None
