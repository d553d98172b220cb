"""Measure how the time and the memory of each efficient attention grow with the sequence, beside exact attention.

One thread, forward pass, float32. Each measurement runs in a process of its own: processor time, the best of a few
runs, and by how much the peak of its memory exceeds what it held before. Growth is the slope of a straight line
through the logarithms, over all lengths but the shortest, where the fixed costs weigh most.

``python benchmarks/efficient_cpu.py`` writes ``benchmarks/results/efficient-cpu.json``.
"""

import datetime
import json
import math
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from lessons_lib.attention.attention import attention
from lessons_lib.efficient.block_sparse import big_bird_layout, block_sparse_attention, visited_layout_blocks
from lessons_lib.efficient.linear import linear_attention
from lessons_lib.efficient.performer import orthogonal_projection, performer_attention
from lessons_lib.efficient.sliding_window import sliding_window_attention

ROOT = Path(__file__).resolve().parents[1]
LENGTHS = (1024, 2048, 4096, 8192)
HEADS, WIDTH = 2, 64
WINDOW, BLOCK, FEATURES = 256, 64, 256
RUNS = 3


def big_bird(n: int) -> Tensor:
    """BigBird's layout with the counts of its paper's experiments: 3 blocks in the window, 2 global, 3 random."""
    return big_bird_layout(n // BLOCK, window=2, n_global=2, n_random=3, generator=torch.Generator().manual_seed(0))


def variants(n: int) -> dict[str, Callable[..., Tensor]]:
    """Each variant with its options filled in."""
    projection = orthogonal_projection(FEATURES, WIDTH, torch.Generator().manual_seed(0))
    return {
        "exact": attention,
        "sliding window": partial(sliding_window_attention, window=WINDOW),
        "block-sparse": partial(block_sparse_attention, layout=big_bird(n), block=BLOCK),
        "linear": linear_attention,
        "linear, causal": partial(linear_attention, causal=True),
        "Performer": partial(performer_attention, projection=projection),
        "Performer, causal": partial(performer_attention, projection=projection, causal=True),
    }


def measure(name: str, n: int, results: Connection) -> None:
    """Send the processor time in seconds, and the memory beyond the inputs in MiB."""
    query, key, value = (torch.randn(1, HEADS, n, WIDTH) for _ in range(3))
    function = variants(n)[name]
    short = 4 * BLOCK
    variants(short)[name](
        *(rows[..., :short, :] for rows in (query, key, value))
    )  # loads the code, which is memory too
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(RUNS):
        start = time.process_time()
        function(query, key, value)
        seconds.append(time.process_time() - start)
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    results.send((min(seconds), memory))


def in_a_process_of_its_own(name: str, n: int) -> tuple[float, float]:
    """Run :func:`measure` where no other measurement has left memory behind."""
    processes = multiprocessing.get_context("fork")
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=measure, args=(name, n, sender))
    process.start()
    sender.close()
    result = receiver.recv()
    process.join()
    return result


def exponent(lengths: Sequence[int], costs: Sequence[float]) -> float:
    """The slope of the line through the logarithms: 1 is linear growth, 2 quadratic."""
    return statistics.linear_regression([math.log(n) for n in lengths], [math.log(c) for c in costs]).slope


def main() -> None:
    """Measure every variant at every length and write the results."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = {}
    longer = LENGTHS[1:]
    for name in variants(LENGTHS[0]):
        rows = {n: in_a_process_of_its_own(name, n) for n in LENGTHS}
        results[name] = {
            "seconds": {n: round(seconds, 5) for n, (seconds, _) in rows.items()},
            "peak_MiB": {n: round(memory, 1) for n, (_, memory) in rows.items()},
            "exponent_seconds": round(exponent(longer, [rows[n][0] for n in longer]), 2),
            "exponent_peak": round(exponent(longer, [rows[n][1] for n in longer]), 2),
        }
        print(f"{name:18} {rows[LENGTHS[-1]][0]:8.3f} s, growth {results[name]['exponent_seconds']:.2f}", end="   ")
        print(f"{rows[LENGTHS[-1]][1]:8.1f} MiB, growth {results[name]['exponent_peak']:.2f}")
    report = {
        "command": "python benchmarks/efficient_cpu.py",
        "date": datetime.date.today().isoformat(),
        "device": f"{platform.machine()}, {platform.system()}, one thread",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "setting": {
            "heads": HEADS,
            "width": WIDTH,
            "dtype": "float32",
            "window": WINDOW,
            "block": BLOCK,
            "features": FEATURES,
            "visited_blocks": {n: visited_layout_blocks(big_bird(n)) for n in LENGTHS},
            "exponents_over": longer,
        },
        "variants": results,
    }
    target = ROOT / "benchmarks" / "results" / "efficient-cpu.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
