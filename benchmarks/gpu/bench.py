"""A run: a machine, sizes, a seed, and tiles to try instead of the library's tiles."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from lessons_lib.flash.configurations import Configuration, configuration

from .machine import Machine
from .record import Record, reason
from .tiles import Tiles


@dataclass(frozen=True)
class Sizes:
    """The sizes of all problems; tests use smaller ones."""

    tokens: int = 16384  # b n and h d are the same in every row of a table
    model_width: int = 2048
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    few_lengths: tuple[int, ...] = (1024, 4096, 16384)
    flex_lengths: tuple[int, ...] = (4096, 16384)  # each shape is compiled anew
    tune_lengths: tuple[int, ...] = (4096, 16384)
    tune_check: int = 1024
    batches: tuple[int, ...] = (1, 4, 16)  # batch sizes in decoding
    cache: int = 32768  # number of keys in decoding
    long: int = 2048  # sequence length of the checks that repeat a computation
    matrix: int = 8192
    copied: int = 2**30
    far: int = 2**29  # numbers between one row and the next: the fifth begins at 2^31


class Unmeasured(Exception):
    """Raised if this machine cannot run a measurement; this is not an error of the kernels."""


@dataclass
class Bench:
    """The state that every measurement uses: machine, record, seed, sizes and tiles."""

    machine: Machine
    record: Record
    seed: int
    sizes: Sizes = field(default_factory=Sizes)
    tiles: Tiles = field(default_factory=dict)
    tuned: Tiles = field(default_factory=dict)
    rates: dict[str, float | None] = field(default_factory=dict)

    def randn(self, item: str) -> Callable[..., Tensor]:
        """Return ``torch.randn`` on the device with a seed of this item, so that an interruption changes no input."""
        generator = torch.Generator(self.machine.device).manual_seed(self.seed + zlib.crc32(item.encode()))
        return partial(torch.randn, generator=generator, device=self.machine.device)

    def heads(self, n: int, d: int) -> tuple[int, int]:
        """Return ``b`` and ``h`` of a row: more sequences if these are short, more heads if these are narrow."""
        return max(1, self.sizes.tokens // n), self.sizes.model_width // d

    def configured(self, width: int, tiles: Tiles | None = None) -> Configuration | None:
        """Return the tiles for heads of this width, or None if all of them are the library's."""
        ours = self.tiles if tiles is None else tiles
        changes = {kernel: tile for (kernel, d), tile in ours.items() if d == width}
        return self.library(width)._replace(**changes) if changes else None

    def library(self, width: int) -> Configuration:
        """Return the library's tiles for half precision on this device."""
        return configuration(width, 2, self.machine.capability())

    def matmul(self) -> float | None:
        """Return the TFLOP/s of a bfloat16 product of two large square matrices, measured once in a process."""

        def measure() -> float:
            n = self.sizes.matrix
            randn = self.randn("matmul")
            a, b = (randn(n, n, dtype=torch.bfloat16) for _ in range(2))
            return 2 * n**3 / self.machine.time(lambda: a @ b)[0] / 1e9

        return self._once("matmul_tflops", measure)

    def copy(self) -> float | None:
        """Return the GB/s of a copy on this device, reads and writes counted, measured once in a process."""

        def measure() -> float:
            memory = torch.ones(self.sizes.copied, device=self.machine.device, dtype=torch.uint8)
            return 2 * memory.numel() / self.machine.time(lambda: memory.clone())[0] / 1e6

        return self._once("copy_gb_per_s", measure)

    def _once(self, name: str, measure: Callable[[], float]) -> float | None:
        if name not in self.rates:
            try:
                self.rates[name] = measure()
                self.record.rate(name, measure_rounded(self.rates[name]))
            except Exception as error:
                self.rates[name] = None
                self.record.leave_out(name, reason(error))
        return self.rates[name]


def measure_rounded(value: float | None) -> float:
    """Round to five significant digits, more than a measurement is accurate to."""
    return float(f"{value:.5g}")
