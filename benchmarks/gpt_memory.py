"""Measure what the causal mask costs the book's GPT on a long sequence: nothing over pairs of positions.

Peak resident memory above what the process held before, and processor time, of one forward pass through flash
attention: by ``GPT.forward``, which passes the mask on as a rule, and by the same embedding, blocks, norm and head
without any mask. One thread, float32, each measurement in a process of its own; medians of seven, since what an
allocator keeps differs from one to the next by some MiB.

``python benchmarks/gpt_memory.py`` writes ``benchmarks/results/gpt-memory.json``.
"""

import datetime
import json
import multiprocessing
import platform
import resource
import statistics
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from lessons_lib.flash import as_implementation
from lessons_lib.transformer.configuration import llama_tiny
from lessons_lib.transformer.gpt import GPT

ROOT = Path(__file__).resolve().parents[1]
LENGTHS = (4096, 12_288)
RUNS = 7
WAYS = ("GPT.forward", "blocks without a mask")


def measure(way: str, n: int, results: Connection) -> None:
    """Send the memory beyond the model's and the input's in MiB, and the processor time in seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = replace(llama_tiny(), n_context=n)
    model = GPT(config, implementation=as_implementation(is_causal=True)).eval()
    tokens = torch.randint(config.vocab_size, (1, n))
    with torch.no_grad():
        model(tokens[:, :64])  # loads the code, which is memory too
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        if way == "GPT.forward":
            model(tokens)
        else:
            x, positions = model.embedding(tokens), torch.arange(n)
            for block in model.blocks:
                x = block(x, positions=positions)
            model.head(model.norm(x))
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    results.send((memory, time.process_time() - start))


def in_a_process_of_its_own(way: str, n: int) -> tuple[float, float]:
    """Run :func:`measure` where no other measurement has left memory behind."""
    processes = multiprocessing.get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=measure, args=(way, n, sender))
    process.start()
    sender.close()
    result = receiver.recv()
    process.join()
    return result


def main() -> None:
    """Measure both ways at each length, print and write."""
    runs = {n: [{way: in_a_process_of_its_own(way, n) for way in WAYS} for _ in range(RUNS)] for n in LENGTHS}
    rows = {
        n: {way: tuple(statistics.median(run[way][i] for run in each) for i in range(2)) for way in WAYS}
        for n, each in runs.items()
    }
    for n, ways in rows.items():
        for way, (memory, seconds) in ways.items():
            print(f"{n:6} {way:22} {memory:7.1f} MiB {seconds:6.2f} s")
        print(f"{n:6} ratio of memory {ways[WAYS[0]][0] / ways[WAYS[1]][0]:.2f}")
    report = {
        "command": "python benchmarks/gpt_memory.py",
        "date": datetime.date.today().isoformat(),
        "device": f"{platform.machine()}, {platform.system()}, one thread",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "setting": {
            "model": "llama_tiny",
            "batch": 1,
            "dtype": "float32",
            "implementation": "flash, causal",
            "runs": RUNS,
        },
        "peak_MiB": {n: {way: round(memory, 1) for way, (memory, _) in ways.items()} for n, ways in rows.items()},
        "seconds": {n: {way: round(seconds, 2) for way, (_, seconds) in ways.items()} for n, ways in rows.items()},
        "memory_ratio": {n: round(ways[WAYS[0]][0] / ways[WAYS[1]][0], 3) for n, ways in rows.items()},
    }
    target = ROOT / "benchmarks" / "results" / "gpt-memory.json"
    target.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
