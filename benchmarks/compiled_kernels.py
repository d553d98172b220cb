"""Compile every candidate tile of the Triton kernels, with no GPU and no driver, and write down what the compilers say.

Run ``python benchmarks/compiled_kernels.py`` (Linux, the extra ``gpu``; about ten minutes on two cores). It writes
``benchmarks/results/kernels-compiled.json``, keeping the rows of other versions of Triton that are there already;
``--capability 90 --width 128 --kernel attend`` does a part of it.

The launch code runs as it would on a GPU: only Triton's driver is replaced, by one that names a device and starts
nothing. So what is compiled here is what would be compiled there, down to the alignment of the pointers.

What the figures mean. ``registers`` are those of a thread, ``spilled`` the bytes that a thread writes to memory for
want of them, ``shared`` the bytes of shared memory of one program, ``programs`` how many programs a multiprocessor
holds at once. ``loops`` are the innermost loops that multiply matrices, in the order of the code: how many
instructions each has and how many of them are of the kinds that tell (a branch that is not always taken is counted
whole). ``serialized`` is the assembler's warning that matrix products wait for one another.
"""

import argparse
import contextlib
import io
import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget

from lessons_lib.attention.rules import Causal
from lessons_lib.flash import autograd
from lessons_lib.flash.band import KernelBand
from lessons_lib.flash.block_mask import make_tile_table
from lessons_lib.flash.configurations import Configuration, Tile, candidates, configuration
from lessons_lib.flash.score_mods import Scores

RESULT = Path(__file__).resolve().parent / "results" / "kernels-compiled.json"
KIB = 1024
SHARED = {80: 163 * KIB, 86: 99 * KIB, 90: 227 * KIB, 100: 227 * KIB}  # bytes that one program may have
TENSOR_CORE = {80: "mma.sync", 86: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}
CAPABILITIES, WIDTHS = (80, 90, 100), (64, 128, 256)
MASKS: dict[str, dict[str, Any]] = {
    "full": {"is_causal": False},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "window": 50},
}
PRODUCTS = ("HMMA", "HGMMA", "UTCHMMA", "UTCQMMA")  # of matrices, by the generation of the device
# Exponentials, products of numbers, selections, comparisons, maxima; waits for other warps; registers from memory.
TELLING = (*PRODUCTS, "MUFU", "FFMA", "FMUL", "FADD", "FMNMX", "FSEL", "SEL", "ISETP", "BAR", "LDL", "STL")


class Figures(NamedTuple):
    """What the compilers say of one kernel."""

    registers: int
    spilled: int
    shared: int
    programs: int
    tensor_core: frozenset[str]
    serialized: bool
    cubin: bytes


class Offline:
    """A driver for a device that is not there. Triton keeps what it compiled by device, so each begins with nothing."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        """Name the device as Triton's compiler does."""
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> "Offline":
        """Return what Triton tells devices apart by."""
        return self

    def get_current_stream(self, device: "Offline") -> int:
        """Return the stream on which nothing is started."""
        return 0


def compiled(
    capability: int,
    dtype: torch.dtype,
    d: int,
    tiles: Configuration | None = None,
    *,
    only: tuple[str, ...] = Configuration._fields,
    n: int = 256,
    window: int | None = None,
    lengths: list[int] | None = None,
    is_causal: bool = True,
    heads: tuple[int, int] = (4, 2),
    by_table: bool = False,
    changed: bool = False,
) -> dict[str, Figures]:
    """Return the figures of the kernels of one problem, by name: those of ``only``, or of all that it launches.

    ``by_table`` leads them by a table, which decodes nothing; ``changed`` caps the scores, and gives slopes and sinks.
    """
    found: dict[str, Figures] = {}
    everything = set(only) == set(Configuration._fields)

    def compile_only(kernel, grid):
        def start(*arguments, **options) -> None:
            if not (kernel.__name__ in only or everything):
                return
            with contextlib.redirect_stdout(io.StringIO()) as log:
                code = kernel.warmup(*arguments, grid=grid, **options)
            found[kernel.__name__] = _figures(code, log.getvalue(), capability)

        return start

    tiles = tiles or configuration(d, dtype.itemsize, divmod(capability, 10), by_table=by_table)
    score_mods = [torch.zeros(heads[0], requires_grad=True) for _ in range(2)] if changed else []
    scores = Scores(0.1, 30.0, *score_mods) if changed else Scores(0.1)
    with _offline(capability, compile_only):
        q, k, v = (torch.zeros(2, each, n, d, dtype=dtype, requires_grad=True) for each in (*heads, heads[1]))
        key_lengths = None if lengths is None else torch.tensor(lengths)
        band = KernelBand.of(n, n, is_causal=is_causal, window=window)
        seen = make_tile_table(Causal(), n, n) if by_table else band
        backward = everything or bool({"key_value_gradients", "query_gradients"} & set(only))
        if backward or "attend" in only:
            out, lse = autograd.triton_attention(q, k, v, seen, scores, key_lengths, tiles)
            if backward:
                upstream = [torch.zeros_like(out), torch.zeros_like(lse)]
                torch.autograd.grad([out, lse], [q, k, v, *score_mods], upstream)
        if "attend_part" in only and not by_table:
            one = KernelBand.of(1, n, is_causal=is_causal, window=window)
            int_lengths = None if key_lengths is None else key_lengths.int()
            autograd.decode_attention(
                q[:, :, :1], k.detach(), v.detach(), one, scores, int_lengths, tiles.attend_part, 4
            )
    return found


@contextlib.contextmanager
def _offline(capability: int, start: Callable) -> Iterator[None]:
    """While it lasts, ``kernel[grid]`` is ``start(kernel, grid)``, and the device is one that is not there."""
    with (
        tempfile.TemporaryDirectory() as folder,
        knobs.cache.scope(),
        knobs.nvidia.scope(),
        mock.patch.object(triton.runtime.driver, "_active", Offline(capability)),
        mock.patch.object(triton.JITFunction, "__getitem__", start),
    ):
        knobs.cache.dir = folder
        knobs.nvidia.dump_ptxas_log = True
        yield


def _figures(code, log: str, capability: int) -> Figures:
    ptx = code.asm["ptx"]
    threads = _number(r"\.reqntid (\d+)", ptx)
    registers = _number(r"Used (\d+) registers", log)
    shared = code.metadata.shared
    per_sm = SHARED[capability] + KIB  # of which each program takes one KiB for the system
    return Figures(
        registers=registers,
        spilled=_number(r"(\d+) bytes spill stores", log),
        shared=shared,
        programs=min(65536 // (-(-registers // 8) * 8 * threads), per_sm // (shared + KIB), 2048 // threads),
        tensor_core=frozenset(name for name in set(TENSOR_CORE.values()) if name in ptx),
        serialized="serializ" in log,
        cubin=code.asm["cubin"],
    )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, f"the compiler says nothing like {pattern!r}"
    return int(found[1])


# --- the loops ------------------------------------------------------------------------------------------------------

LABEL = re.compile(r"^\s*(\.L_\w+):")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)([^;]*);")


def loops(cubin: bytes) -> list[Counter]:
    """Count the instructions, by name, of each innermost loop that multiplies matrices, in the order of the code."""
    names, labels, jumps = [], {}, []
    for line in _disassembly(cubin).splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(names)
        elif instruction := INSTRUCTION.match(line):
            name, rest = instruction.groups()
            target = re.search(r"\((\.L_\w+)\)", rest)
            if name == "BRA" and target and target[1] in labels:  # back to a label seen before
                jumps.append((labels[target[1]], len(names) + 1))
            names.append(name)
    longest = {}
    for first, last in jumps:
        longest[first] = max(last, longest.get(first, 0))
    spans = [
        (a, z) for a, z in longest.items() if set(names[a:z]) & set(PRODUCTS) and "EXIT" not in names[a:z]
    ]  # a jump from behind the kernel's exit returns from a wait
    innermost = [s for s in spans if not any(t != s and s[0] <= t[0] and t[1] <= s[1] for t in spans)]
    return [Counter(names[a:z]) for a, z in sorted(innermost)]


def _disassembly(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = knobs.nvidia.nvdisasm.path
        return subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout


# --- the command ----------------------------------------------------------------------------------------------------


class Question(NamedTuple):
    """One kernel to be compiled."""

    capability: int
    width: int
    kernel: str
    mask: str
    tile: Tile


def questions() -> Iterator[Question]:
    """Name every candidate, without a mask and with a causal one, and each default with a window."""
    for capability, width, kernel in itertools.product(CAPABILITIES, WIDTHS, Configuration._fields):
        tiles = candidates(kernel, width, 2, divmod(capability, 10))
        for (number, tile), mask in itertools.product(enumerate(tiles), MASKS):
            if mask == "full" or (kernel != "attend_part" and (mask == "causal" or number == 0)):
                yield Question(capability, width, kernel, mask, tile)


def answer(question: Question) -> dict[str, Any]:
    """Compile in bfloat16, and return the figures and the loops, or the ``reason`` why it cannot be compiled."""
    row = {"triton": triton.__version__, **question._asdict(), "tile": list(question.tile)}
    tiles = configuration(question.width, 2, divmod(question.capability, 10))._replace(
        **{question.kernel: question.tile}
    )
    problem = (question.capability, torch.bfloat16, question.width, tiles)
    try:
        figures = compiled(*problem, only=(question.kernel,), **MASKS[question.mask])[question.kernel]
    except Exception as error:
        return row | {"reason": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    counts = [
        {"instructions": loop.total()} | {name: loop[name] for name in TELLING if loop[name]}
        for loop in loops(figures.cubin)
    ]
    kept = figures._asdict() | {"tensor_core": sorted(figures.tensor_core), "loops": counts}
    del kept["cubin"]
    return row | kept


def save(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows, one to a line, in place of those that answered the same questions of the same Triton."""
    answered = {_key(row) for row in rows}
    others = [row for row in json.loads(path.read_text()) if _key(row) not in answered] if path.exists() else []
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in sorted(others + rows, key=_key)) + "\n]\n")


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("triton", *Question._fields))


def main() -> None:
    """Compile what was asked for, two kernels at a time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--capability", type=int, choices=CAPABILITIES)
    parser.add_argument("--width", type=int, choices=WIDTHS)
    parser.add_argument("--kernel", choices=Configuration._fields)
    parser.add_argument("--out", type=Path, default=RESULT)
    wanted = parser.parse_args()
    asked = [
        question
        for question in questions()
        if wanted.capability in (None, question.capability)
        and wanted.width in (None, question.width)
        and wanted.kernel in (None, question.kernel)
    ]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        rows = []
        for row in pool.imap_unordered(answer, asked):
            rows.append(row)
            figures = row.get("reason") or f"{row['registers']} registers, {row['spilled']} bytes spilled"
            print(*(row[name] for name in Question._fields), figures, flush=True)
            save(rows, wanted.out)


if __name__ == "__main__":
    sys.exit(main())
