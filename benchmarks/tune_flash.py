"""Time the Triton kernels with other tiles: each is checked against float64, the best two of a kernel timed once more.

    python benchmarks/tune_flash.py                              every kernel at every width, most of nine minutes
    python benchmarks/tune_flash.py --kernel attend:128          one kernel at one width
    python benchmarks/tune_flash.py --kernel attend --seconds 200

It writes ``tune.json`` into ``--out`` (``_build/gpu``) after every tile and prints a line for each: a tile that does
not compile, does not fit or is wrong is named with the reason. What there was no time for is named too, and measured
when it is run again. A tile of a backward kernel is timed in the whole backward pass. A tile is proposed if it is 2 %
faster than the library's over all shapes; ``flash_gpu.py --step 4`` times the proposed ones in whole passes,
``flash_gpu.py --tile ...`` runs any part with them, and ``lessons_lib/flash/configurations.py`` is where they go.

The exit status is that of ``flash_gpu.py``.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.flash_gpu import find_library


def main(argv: list[str] | None = None, machine=None, sizes=None) -> int:
    """Time what is asked for."""
    parser = argparse.ArgumentParser(description="Time the Triton kernels with other tiles.")
    parser.add_argument("--kernel", action="append", default=[], help="KERNEL or KERNEL:WIDTH; can be repeated")
    parser.add_argument("--seconds", type=float, default=540.0, help="what it may take")
    parser.add_argument("--out", type=Path, help="where it writes; _build/gpu if not given")
    parser.add_argument("--seed", type=int, help="of the inputs; a new one if not given, and recorded")
    asked = parser.parse_args(argv)
    find_library(None)
    from benchmarks.gpu import results, steps, tuning
    from benchmarks.gpu.machine import Machine
    from benchmarks.gpu.parts import LOST, tune

    names = [name for kernel, d in tuning.ORDER for name in (kernel, f"{kernel}:{d}")]
    for name in asked.kernel:
        if name not in names:
            raise ValueError(f"kernel must be one of {', '.join(dict.fromkeys(names))}, got {name!r}")
    machine = machine or Machine()
    if not machine.available():
        print(
            "tune_flash.py needs an NVIDIA GPU and a CUDA build of PyTorch: there is none here, nothing was measured",
            file=sys.stderr,
        )
        return 1
    given = {name: getattr(asked, name) for name in ("out", "seconds", "seed") if getattr(asked, name) is not None}
    options = steps.Options(**given)
    content = steps.measure("tune", partial(tune, only=tuple(asked.kernel)), options, machine, sizes).content
    print(tuning.table(content["rows"]))
    for row in content["rows"]:
        if "winner" in row:
            print(f"--tile {row['winner']}  x{row['gain']:.3f}")
    return LOST if content["status"] == LOST else results.status([content], ["tune"])


if __name__ == "__main__":
    sys.exit(main())
