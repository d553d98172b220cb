"""Measure what the chapter on cost tells of a clock: rivals by length, and a matrix times one column or many.

One thread, forward pass, float32, milliseconds of processor time, the best of a few runs.

*time*: a layer's mixing of ``n`` tokens of width 256: attention in two kernels (four heads, causal, without its four
matrices), those four matrices, linear attention, GRU, LSTM, and the recurrence ``h_t = a_t h_(t-1) + b_t`` as a loop
and by parallel scan. *memory*: by how many MiB the peak of a process of its own exceeds what it held before; large
blocks go back to the system when they are freed, so that none is used again unseen. *widths*: the recurrence of 4096
steps, loop and scan, by its width. *columns*: a matrix of 1.2 GB times so many columns. *square*: GFLOP in a second of
a product of square matrices. *copy*: GB in a second, those read and those written together.

``python benchmarks/complexity_cpu.py`` writes ``benchmarks/results/complexity-cpu.json``, which the chapter reads; it
takes some minutes, and starts anew each time.
"""

import argparse
import math
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from tqdm import tqdm

from benchmarks.records import ROOT, processor, write
from lessons_lib.attention.attention import attention
from lessons_lib.attention.masks import causal
from lessons_lib.efficient.linear import linear_attention
from lessons_lib.efficient.recurrence import recurrence

WIDTH, HEADS = 256, 4
LENGTHS = 128, 256, 512, 1024, 2048, 4096, 8192, 16_384
SHORTER = "attention, as written"  # not at the greatest length, where its matrices would take 16 GB
LONG = 2048, 4096, 8192
IN_MEMORY = "attention, as written", "attention, fused", "GRU", "LSTM", "scan"
COLUMNS = 1, 2, 4, 8, 16, 32, 64, 128, 256
SIDE = 17_408
WIDTHS, STEPS = (16, 64, 256, 1024), 4096
NAME = "complexity-cpu"


def loop(decay: Tensor, added: Tensor) -> Tensor:
    """The linear recurrence, one step after another."""
    state, states = torch.zeros_like(added[:, 0]), []
    for a, b in zip(decay.unbind(1), added.unbind(1), strict=True):
        state = a * state + b
        states.append(state)
    return torch.stack(states, 1)


def rivals(n: int) -> dict[str, Callable[[], Any]]:
    """Each way to mix ``n`` tokens, its inputs filled in."""
    x = torch.randn(1, n, WIDTH)
    q, k, v = torch.randn(3, 1, HEADS, n, WIDTH // HEADS).unbind()
    matrices = torch.randn(4, WIDTH, WIDTH).unbind()
    gru, lstm = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.LSTM(WIDTH, WIDTH, batch_first=True)
    decay, added = torch.rand(1, n, WIDTH), torch.randn(1, n, WIDTH)
    return {
        "attention, as written": lambda: attention(q, k, v, causal(n)),
        "attention, fused": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
        "four matrices": lambda: [x @ w for w in matrices],
        "linear attention": lambda: linear_attention(q, k, v, causal=True),
        "GRU": lambda: gru(x),
        "LSTM": lambda: lstm(x),
        "loop": lambda: loop(decay, added),
        "scan": lambda: recurrence(decay, added),
    }


def best(task: Callable[[], object], budget: float = 0.4) -> float:
    """Milliseconds of processor time, the best of two runs or, within the budget in seconds, of more."""
    found, spent, runs = math.inf, 0.0, 0
    while spent < budget or runs < 2:
        start = time.process_time()
        task()
        took = time.process_time() - start
        found, spent, runs = min(found, took), spent + took, runs + 1
    return 1e3 * found


def peak(name: str, n: int, results: Connection) -> None:
    """Send by how many MiB the peak of this process's memory grows in one run."""
    torch.set_num_threads(1)
    with torch.no_grad():
        rivals(64)[name]()  # loads the code, which is memory too
        task = rivals(n)[name]
        Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
        before = resident("VmRSS")
        task()
    results.send((resident("VmHWM") - before) / 1024)


def resident(line: str) -> int:
    """This process's memory in KiB, as Linux says it: now (``VmRSS``) or at its peak (``VmHWM``)."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(each.split()[1]) for each in status if each.startswith(line + ":"))


def in_a_process_of_its_own(name: str, n: int) -> float:
    """Run :func:`peak` where no other measurement has left memory behind."""
    processes = multiprocessing.get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=peak, args=(name, n, sender))
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**16)  # glibc would raise it, and keep what is freed
    process.start()
    del os.environ["MALLOC_MMAP_THRESHOLD_"]
    sender.close()
    grown = receiver.recv()
    process.join()
    return grown


def main() -> None:
    """Measure everything, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{NAME}.json")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    torch.manual_seed(0)
    load, runs = os.getloadavg()[0], {}
    with torch.no_grad():
        for n in tqdm(LENGTHS, "time"):
            for name, task in rivals(n).items():
                if name != SHORTER or n < LENGTHS[-1]:
                    runs.setdefault(f"time: {name}", []).append(best(task))
        for width in tqdm(WIDTHS, "widths"):
            decay, added = torch.rand(1, STEPS, width), torch.randn(1, STEPS, width)
            for name, way in (("loop", loop), ("scan", recurrence)):
                runs.setdefault(f"widths: {name}", []).append(best(lambda way=way: way(decay, added)))  # noqa: B023
        for name in tqdm(IN_MEMORY, "memory"):
            runs[f"memory: {name}"] = [in_a_process_of_its_own(name, n) for n in LONG]
        matrix = torch.randn(SIDE, SIDE)
        runs["columns"] = [best(lambda b=b: matrix @ torch.ones(SIDE, b)) for b in tqdm(COLUMNS, "columns")]
        square = torch.randn(2048, 2048)
        runs["square"] = [2 * 2048**3 / best(lambda: square @ square) / 1e6]
        goes_to = torch.empty_like(matrix)
        moved = 2 * matrix.numel() * matrix.element_size()
        runs["copy"] = [moved / best(lambda: goes_to.copy_(matrix)) / 1e6]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    about = {
        "device": f"{processor()}, one thread", "commit": commit.strip(), "load": round(load, 1),
        "setting": {
            "width": WIDTH, "heads": HEADS, "dtype": "float32", "lengths": LENGTHS, "long": LONG, "columns": COLUMNS,
            "side": SIDE, "widths": WIDTHS, "steps": STEPS,
        },
    }  # fmt: skip
    write(out, NAME, runs, **about)


if __name__ == "__main__":
    main()
