"""Time attention on a CPU, and its memory: tiled, naive, and PyTorch's own, against the length of the sequence.

Run ``OMP_NUM_THREADS=1 python benchmarks/flash_cpu.py`` on a quiet machine (ten minutes, Linux); it writes
``benchmarks/results/flash-cpu.json``. What the figures mean:

    seconds                    processor time of one call on one thread, the least of several rounds; in each round the
                               implementations take turns, so that other work on the machine disturbs all alike, and
                               each is called twice, so that it finds memory and cache once as it left them itself
    extra_mib                  how far the peak of memory rises above what is there before the call, in a process of
                               its own; outputs and gradients count, inputs do not
    speed_relative_to_torch    PyTorch's seconds over these, in the same run

Where the naive implementation would need more than a quarter of the free memory, the row is left out and named under
``left_out``.
"""

import datetime
import json
import math
import multiprocessing
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from itertools import product
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.records import processor
from lessons_lib.attention.attention import attention
from lessons_lib.attention.masks import causal
from lessons_lib.flash import flash_attention

TARGET = Path(__file__).resolve().parent / "results" / "flash-cpu.json"
SHAPE = {"b": 1, "h": 8, "d": 64, "dtype": "float32"}
ROUNDS = {1024: 10, 2048: 5, 4096: 3, 8192: 2}  # by the length of the sequence
CALLS = 2  # of each implementation, one after the other
PASSES = ("forward", "forward+backward")
MIB = 2**20


def tiled(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Attend by tiles, whatever ``auto`` would choose."""
    out = flash_attention(q, k, v, is_causal=is_causal, backend="tiled")
    assert isinstance(out, Tensor)
    return out


def naive(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Attend with all scores in memory at once."""
    return attention(q, k, v, causal(q.shape[2]) if is_causal else None)


def fused(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Attend with PyTorch's fused kernel for the CPU."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal)


ANY = "tiled, any scores"  # queries eight times as long: nothing is known of the scores, and the maximum is kept
IMPLEMENTATIONS = {"tiled": tiled, ANY: tiled, "naive": naive, "torch": fused}


def prepare(name: str, direction: str, is_causal: bool, n: int) -> Callable[[], None]:
    """Return the work to be measured, on inputs that exist already."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    differentiate = direction == "forward+backward"
    size = (SHAPE["b"], SHAPE["h"], n, SHAPE["d"])
    q, k, v = (torch.randn(size) for _ in range(3))
    if name == ANY:
        q *= 8
    for x in (q, k, v):
        x.requires_grad_(differentiate)
    upstream = torch.randn(size)

    def work() -> None:
        out = IMPLEMENTATIONS[name](q, k, v, is_causal)
        if differentiate:
            torch.autograd.grad(out, (q, k, v), upstream)

    return work


def seconds(names: list[str], direction: str, is_causal: bool, n: int) -> dict[str, float]:
    """The least processor time of a call, by implementation."""
    works = {name: prepare(name, direction, is_causal, n) for name in names}
    least = dict.fromkeys(names, math.inf)
    for _ in range(ROUNDS[n]):
        for name, work in works.items():
            for _ in range(CALLS):
                start = time.process_time()
                work()
                least[name] = min(least[name], time.process_time() - start)
    return least


def extra_mib(name: str, direction: str, is_causal: bool, n: int) -> float:
    """The rise of the process's peak memory during one call; small calls first load what the libraries load once."""
    prepare(name, direction, is_causal, 64)()
    work = prepare(name, direction, is_causal, n)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status_mib("/proc/self/status", "VmRSS")
    work()
    return status_mib("/proc/self/status", "VmHWM") - before


def status_mib(file: str, field: str) -> float:
    """Read one figure of the kernel's, which are in KiB."""
    line = next(line for line in Path(file).read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


def fits(name: str, direction: str, n: int) -> bool:
    """Whether this needs at most a quarter of the free memory: naive keeps 2 matrices of scores, 5 on the way back."""
    scores = SHAPE["b"] * SHAPE["h"] * n * n * 4 / MIB
    matrices = {"forward": 2, "forward+backward": 5}[direction] if name == "naive" else 0
    return matrices * scores < status_mib("/proc/meminfo", "MemAvailable") / 4


def in_a_process_of_its_own(function: Callable, *arguments):
    """Call ``function(*arguments)`` in a fresh interpreter."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure(direction: str, is_causal: bool, n: int) -> tuple[list[dict], list[dict]]:
    """Return the rows of the report for one problem, and those left out."""
    problem = {"pass": direction, "is_causal": is_causal, "n": n}
    names = [name for name in IMPLEMENTATIONS if fits(name, direction, n)]
    times = in_a_process_of_its_own(seconds, names, direction, is_causal, n)
    rows = [
        {
            "implementation": name,
            **problem,
            "seconds": round(times[name], 5),
            "extra_mib": round(in_a_process_of_its_own(extra_mib, name, direction, is_causal, n), 1),
            "speed_relative_to_torch": round(times["torch"] / times[name], 3),
        }
        for name in names
    ]
    return rows, [{"implementation": name, **problem} for name in IMPLEMENTATIONS if name not in names]


def main() -> None:
    """Measure everything, the short sequences first; print and write each result as soon as it is there."""
    report = {
        "command": "OMP_NUM_THREADS=1 python benchmarks/flash_cpu.py",
        "date": datetime.date.today().isoformat(),
        "device": processor(),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "threads": 1,
        "shape": SHAPE,
        "rows": [],
        "left_out": [],
    }
    TARGET.parent.mkdir(exist_ok=True)
    for n, direction, is_causal in product(ROUNDS, PASSES, (False, True)):
        rows, left_out = measure(direction, is_causal, n)
        report["rows"] += rows
        report["left_out"] += left_out
        TARGET.write_text(json.dumps(report, indent=2) + "\n")
        for row in rows:
            print(
                f"{direction:17} {'causal' if is_causal else 'full':7} {n:5}   {row['implementation']:18}"
                f"{1000 * row['seconds']:9.1f} ms   x{row['speed_relative_to_torch']:.2f}"
                f"   +{row['extra_mib']:.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
