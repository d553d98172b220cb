"""Comparisons with float64 at real sizes in three precisions, and checks of known sources of errors.

The error of a result may be twice that of plain attention in the same precision. A failure is recorded, and the checks
continue.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lessons_lib
from lessons_lib.attention.attention import attention
from lessons_lib.attention.masks import causal, padding, sliding_window
from lessons_lib.attention.rules import Rule
from lessons_lib.attention.softmax import log_sum_exp

from .bench import Bench, Unmeasured
from .patterns import PATTERNS
from .record import Row

ALL_CHANGES = {"softcap": 2.5, "alibi_slopes": True, "sinks": True}
CACHES = {"is_causal": True, "cache_lengths": (8191, 0, 500), **ALL_CHANGES}
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
    # with a table of tiles
    {"b": 2, "h": 4, "g": 2, "n": 2039, "m": 2039, "d": 64, "rule": "documents", "key_lengths": (2039, 700)},
    {"b": 1, "h": 4, "g": 4, "n": 1999, "m": 2039, "d": 128, "rule": "prefix"},
    {"b": 1, "h": 4, "g": 1, "n": 2039, "m": 2039, "d": 40, "rule": "longformer"},
    {"b": 1, "h": 4, "g": 2, "n": 2039, "m": 2039, "d": 256, "rule": "bigbird"},
    # with score modifications
    {"b": 1, "h": 4, "g": 2, "n": 1021, "m": 2039, "d": 64, "is_causal": True, "softcap": 1.5},
    {"b": 1, "h": 4, "g": 4, "n": 2039, "m": 2039, "d": 128, "is_causal": True, "alibi_slopes": True},
    {"b": 2, "h": 4, "g": 2, "n": 1500, "m": 1500, "d": 128, "window": 257, "sinks": True},
    {"b": 2, "h": 4, "g": 2, "n": 2039, "m": 2039, "d": 64, "rule": "documents", **ALL_CHANGES},
    # with cache lengths
    {"b": 3, "h": 16, "g": 2, "n": 1, "m": 8191, "d": 128, "window": 1000, **CACHES},
    {"b": 3, "h": 4, "g": 2, "n": 7, "m": 4093, "d": 64, "is_causal": True, "cache_lengths": (4093, 0, 777)},
)
# The gradient of a slope is one sum over all scores of a head, in which the terms of a row nearly cancel. With one
# query its error may be three times the rounding error of the other results.
OF_SLOPES = 1 / 3
# The backward kernels take delta = dO . O from the output as it is stored, rounded to half precision. One query has one
# delta, and no other row evens out its rounding. In 1500 random inputs of the problem with all score modifications this
# rounding alone moved the gradient of the query by up to 7.2e-4 in float16 and 5.2e-3 in bfloat16.
OF_ONE_QUERY = 1 / 2
FLOOR = {torch.float32: 2e-6, torch.float16: 2e-4, torch.bfloat16: 2e-3}  # about one rounding of the result


def visible(
    b: int, n: int, m: int, is_causal: bool, window: int | None, key_lengths: tuple | None, rule: Rule | None = None
) -> Tensor:
    """Return the Boolean mask over ``(b, 1, n, m)``, computed without the flash path."""
    longest = max(n, m)
    mask = torch.ones(longest, longest, dtype=torch.bool)
    if is_causal:
        mask &= causal(longest)
    if window is not None:
        mask &= sliding_window(longest, window, causal=is_causal)
    mask = mask[longest - n :, longest - m :].expand(b, 1, n, m)
    if rule is not None:
        mask = mask & rule.to_mask(n, m, device="cpu")
    return mask if key_lengths is None else mask & padding(torch.tensor(key_lengths), m)


def learnt(problem: dict[str, Any], device: str) -> dict[str, Tensor]:
    """Return ALiBi slopes, and sinks as large as the sum of a row; the first sink is ``-inf``, which is no sink."""
    h, found = problem["h"], {}
    if "alibi_slopes" in problem:
        found["alibi_slopes"] = 2.0 ** (-8 / h * torch.arange(1, h + 1, dtype=torch.float32, device=device))
    if "sinks" in problem:
        found["sinks"] = torch.linspace(2.0, 6.0, h, dtype=torch.float32, device=device)
        found["sinks"][0] = -torch.inf
    return found


def gradients(
    function: Callable, qkv: list[Tensor], upstream: list[Tensor], named: dict[str, Tensor] | None = None
) -> list[Tensor]:
    """Return outputs, finite log-sum-exps and gradients of ``function(q, k, v, **named)``, in float64."""
    leaves = [x.detach().requires_grad_() for x in qkv]
    others = {name: x.detach().requires_grad_() for name, x in (named or {}).items()}
    out, lse = function(*leaves, **others)
    lse = lse.masked_fill(lse == -torch.inf, 0.0)
    grads = torch.autograd.grad(
        [out, lse], [*leaves, *others.values()], [upstream[0].to(out.dtype), upstream[1].to(lse.dtype)]
    )
    return [x.detach().double() for x in (out, lse, *grads)]


def error(got: list[Tensor], wanted: list[Tensor], weights: Sequence[float] | None = None) -> float:
    """Return the largest relative error over the results in the Euclidean norm; infinite if there is a NaN."""
    errors = [
        weight * ((a.double() - b.double()).norm() / b.double().norm().clamp(min=0.1 * b.numel() ** 0.5)).item()
        for a, b, weight in zip(got, wanted, weights or [1.0] * len(wanted), strict=True)
    ]
    return max(e if e == e else float("inf") for e in errors)


def plain(mask: Tensor | None, h: int, g: int, softcap: float | None = None) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the specification: ``attention`` with the log-sum-exp of the same scores."""

    def function(
        q: Tensor, k: Tensor, v: Tensor, alibi_slopes: Tensor | None = None, sinks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        scores = q @ k.repeat_interleave(h // g, dim=1).mT / q.shape[-1] ** 0.5
        (n, m), seen = scores.shape[-2:], mask
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if alibi_slopes is not None:
            position, key = torch.arange(m - n, m, device=q.device), torch.arange(m, device=q.device)
            scores = scores - alibi_slopes[:, None, None] * (position[:, None] - key).abs()
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], dim=-1)
            seen = mask if mask is None else torch.cat([mask, torch.ones_like(mask[..., :1])], dim=-1)
        out = attention(q, k, v, mask, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks)
        return out, log_sum_exp(scores, seen)

    return function


def specified(problem: dict[str, Any], rule: Rule | None, device: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the specification of a problem; with cache lengths each sequence attends to its own keys."""
    b, h, g, n, m = (problem[name] for name in ("b", "h", "g", "n", "m"))
    hidden = problem.get("is_causal", False), problem.get("window")
    softcap, caches = problem.get("softcap"), problem.get("cache_lengths")
    if caches is None:
        return plain(visible(b, n, m, *hidden, problem.get("key_lengths"), rule).to(device), h, g, softcap)

    def function(q: Tensor, k: Tensor, v: Tensor, **named: Tensor) -> tuple[Tensor, Tensor]:
        found = []
        for i, length in enumerate(caches):
            held = max(length, 1)  # an empty cache is one hidden key
            alone = plain(visible(1, n, held, *hidden, (length,)).to(device), h, g, softcap)
            found.append(alone(q[i : i + 1], k[i : i + 1, :, :held], v[i : i + 1, :, :held], **named))
        outs, lses = zip(*found, strict=True)
        return torch.cat(outs), torch.cat(lses)

    return function


def check(bench: Bench, item: str, dtype: torch.dtype, problem: dict[str, Any]) -> Row:
    """Compare one problem with float64 on new random inputs."""
    b, h, g, n, m, d = (problem[name] for name in ("b", "h", "g", "n", "m", "d"))
    device = bench.machine.device
    rule = PATTERNS[problem["rule"]](b, m, device) if "rule" in problem else None
    options: dict[str, Any] = {x: problem[x] for x in ("is_causal", "window", "softcap") if x in problem}
    options |= {name: torch.tensor(problem[name]) for name in ("key_lengths", "cache_lengths") if name in problem}
    options |= {"mask": rule, "return_lse": True}
    randn = bench.randn(item)
    # Heads are inside the rows, as after a projection: no tensor is contiguous.
    qkv = [randn(b, x, y, d).to(dtype).transpose(1, 2) for x, y in ((n, h), (m, g), (m, g))]
    upstream = [randn(b, h, n, d).to(dtype), randn(b, h, n)]
    named = learnt(problem, device)
    exact = [x.double() for x in qkv], upstream, {name: x.double() for name, x in named.items()}

    def kernels(q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Any:
        return bench.machine.flash(q, k, v, **options, **named)

    specification = specified(problem, rule, device)
    wanted = gradients(specification, *exact)
    of_query = OF_ONE_QUERY if n == 1 else 1.0
    weights = [1.0, 1.0, of_query, 1.0, 1.0] + [OF_SLOPES if name == "alibi_slopes" else 1.0 for name in named]
    ours, usual = (
        error(gradients(function, qkv, upstream, named), wanted, weights) for function in (kernels, specification)
    )
    row = {"dtype": str(dtype).removeprefix("torch."), **problem, "error": ours, "error_of_plain": usual}
    if n == 1:  # without gradients, one query takes the kernel for decoding
        with torch.no_grad():
            out, lse = kernels(*qkv, **named)
        row["error_decoding"] = error([out, lse.masked_fill(lse == -torch.inf, 0.0)], wanted[:2])
    worst = max(ours, row.get("error_decoding", 0.0))
    allowed = max(2 * usual, FLOOR[dtype])
    return row | {"allowed": allowed, "right": worst <= allowed}


def problems() -> Iterator[tuple[str, Callable[[Bench, str], Row]]]:
    """Yield every problem in every precision, and the checks of known sources of errors, by name."""
    for dtype, problem in itertools.product(FLOOR, PROBLEMS):
        name = f"{str(dtype).removeprefix('torch.')} " + " ".join(f"{key}={value}" for key, value in problem.items())
        yield name, lambda bench, item, dtype=dtype, problem=problem: check(bench, item, dtype, problem)
    for function in REGRESSIONS:
        yield function.__name__.replace("_", " "), function


# --- known sources of errors ----------------------------------------------------------------------------------------


def lengths_of_any_layout(bench: Bench, item: str) -> Row:
    """Check key lengths that are contiguous, a column of a table or expanded, in 32 and 64 bits.

    The neighbours of the lengths in memory are larger than ``m``, so that a wrong stride gives a wrong result.
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
    """Check strides so large that the last row begins past 2^31 numbers, in each input and in the upstream gradient."""
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
    """Check that a compiled function returns the same result and gradients as the function."""
    qkv, upstream = _small(bench, item)

    def kernels(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return bench.machine.flash(2 * q, k, v, is_causal=True, return_lse=True)

    torch.compiler.reset()
    compiled = torch.compile(kernels, backend=bench.machine.compiler)
    got, wanted = gradients(compiled, qkv, upstream), gradients(kernels, qkv, upstream)
    return judged({}, error(got, wanted))


def decoding_in_a_cuda_graph(bench: Bench, item: str) -> Row:
    """Check that a captured step, replayed with new numbers in the same memory, equals the step."""
    return _captured(bench, item, None)


def decoding_in_a_cuda_graph_with_lengths(bench: Bench, item: str) -> Row:
    """Check a captured step with a partly filled cache, whose lengths are on the device and grow."""
    return _captured(bench, item, "key_lengths")


def decoding_in_a_cuda_graph_with_caches(bench: Bench, item: str) -> Row:
    """Check a captured step with cache lengths and a window."""
    return _captured(bench, item, "cache_lengths", window=500)


def _captured(bench: Bench, item: str, counted: str | None, **options: Any) -> Row:
    randn, results = bench.randn(item), []
    q, k, v = (randn(2, heads, n, 128).to(torch.bfloat16) for heads, n in ((8, 1), (2, 4096), (2, 4096)))
    out = torch.empty_like(q)
    lengths = torch.tensor([100, 3000], device=bench.machine.device)
    options |= {} if counted is None else {counted: lengths}

    def step() -> None:
        with torch.no_grad():
            out.copy_(bench.machine.flash(q, k, v, is_causal=True, **options))

    play = bench.machine.captured(step)
    for matrix in (q, k, v):
        matrix.copy_(randn(matrix.shape))
    lengths += 1000
    for run in (play, step):
        out.fill_(torch.nan)
        run()
        results.append(out.clone())
    return judged({}, error(results[:1], results[1:]))


def under_autocast(bench: Bench, item: str) -> Row:
    """Check that float32 inputs under autocast give results and gradients as accurate as in half precision."""
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
    """Check that two streams at the same time give the same bits as one after the other."""
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
    """Check that the same input gives the same bits, forward and backward."""
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
    decoding_in_a_cuda_graph_with_caches,
    under_autocast,
    two_streams_at_once,
    same_bits_twice,
    rows_far_apart,  # last, because an error here makes the device unusable
)
LOOSE = 2e-2  # three times the error of half precision; the errors that these checks look for are far larger


def judged(row: Row, worst: float) -> Row:
    """Add to a row whether its largest error is a rounding error."""
    return {**row, "error": worst, "allowed": LOOSE, "right": worst <= LOOSE}


def _small(bench: Bench, item: str, n: int = 300) -> tuple[list[Tensor], list[Tensor]]:
    randn = bench.randn(item)
    qkv = [randn(2, heads, n, 64).to(torch.bfloat16) for heads in (4, 2, 2)]
    return qkv, [randn(2, 4, n, 64).to(torch.bfloat16), randn(2, 4, n)]


# --- with other programs --------------------------------------------------------------------------------------------

_SANITIZED_CALLS = """
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
    """Check every memory access of one small problem with NVIDIA's sanitizer: forward, backward and decoding."""
    command = [program, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-c", _SANITIZED_CALLS]
    done = run_beside(command, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, seconds=150)
    said = [line.strip("= ") for line in done.stdout.splitlines() if "ERROR SUMMARY" in line or "Invalid" in line]
    if done.returncode not in (0, 9) or not said:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["it printed nothing"]
        raise Unmeasured(f"{program} failed, exit status {done.returncode}: {last[0]}"[:300])
    return {"said": said[:5], "right": done.returncode == 0}


def run_beside(command: list[str], environment: dict[str, str], seconds: float) -> subprocess.CompletedProcess:
    """Run a program of the CUDA toolkit; raise Unmeasured if the program is missing or takes too long."""
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
