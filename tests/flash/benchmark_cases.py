"""A machine without a GPU for the benchmark: the tiled backend replaces the kernels, every call takes 2 ms."""

import contextlib
import dataclasses

from benchmarks.gpu.bench import Sizes
from benchmarks.gpu.machine import Machine
from lessons_lib.flash import flash_attention
from lessons_lib.flash.configurations import Configuration, Tile

SIZES = Sizes(
    tokens=64,
    model_width=256,
    lengths=(16, 32),
    few_lengths=(16, 32),
    flex_lengths=(16,),
    tune_lengths=(16,),
    tune_check=24,
    batches=(1, 2),
    cache=48,
    long=40,
    matrix=8,
    copied=64,
    far=640,
)
ALL_CHANGES = {"softcap": 2.5, "alibi_slopes": True, "sinks": True}
CACHES = {"cache_lengths": (50, 0, 20), **ALL_CHANGES}
PROBLEMS = (
    {"b": 2, "h": 4, "g": 2, "n": 37, "m": 50, "d": 8, "is_causal": True, "window": 9, "key_lengths": (50, 20)},
    {"b": 2, "h": 4, "g": 2, "n": 1, "m": 50, "d": 8, "is_causal": True, "key_lengths": (50, 20)},
    {"b": 2, "h": 4, "g": 2, "n": 150, "m": 150, "d": 8, "rule": "documents", "key_lengths": (150, 60)},
    {"b": 1, "h": 4, "g": 1, "n": 140, "m": 150, "d": 8, "rule": "prefix"},
    {"b": 1, "h": 2, "g": 1, "n": 150, "m": 150, "d": 8, "rule": "longformer"},
    {"b": 1, "h": 2, "g": 2, "n": 150, "m": 150, "d": 8, "rule": "bigbird"},
    {"b": 1, "h": 4, "g": 2, "n": 37, "m": 50, "d": 8, "is_causal": True, "softcap": 1.5},
    {"b": 1, "h": 4, "g": 4, "n": 37, "m": 37, "d": 8, "alibi_slopes": True},
    {"b": 2, "h": 4, "g": 2, "n": 37, "m": 50, "d": 8, "is_causal": True, "sinks": True},
    {"b": 2, "h": 4, "g": 2, "n": 150, "m": 150, "d": 8, "rule": "documents", **ALL_CHANGES},
    {"b": 3, "h": 4, "g": 2, "n": 1, "m": 50, "d": 8, "window": 12, "is_causal": True, **CACHES},
    {"b": 3, "h": 4, "g": 2, "n": 7, "m": 50, "d": 8, "is_causal": True, "cache_lengths": (50, 0, 20)},
)


@dataclasses.dataclass
class NoGpu(Machine):
    """A machine that runs every call at once; ``trouble(call)`` runs before each call and may raise."""

    device = "cpu"
    compiler = "eager"
    lost: str | None = None  # the error of an unusable device
    title: str = "NVIDIA Nothing 1"
    fast: Tile | None = None  # every call with this tile takes half the time
    tiles: Configuration | None = None

    def trouble(self, call: str, **options) -> None:
        """Raise the error that is simulated for this call."""

    def available(self):
        return True

    def name(self):
        return self.title

    def capability(self):
        return (9, 0)

    def versions(self):
        return {"python": "3", "torch": "2"}

    def state(self):
        return {"sm_mhz": 1980.0}

    def time(self, work, milliseconds=200):
        self.trouble("time")
        work()
        times = 2.0, 1.9, 2.2
        return tuple(t / 2 for t in times) if self.tiles and self.fast in self.tiles else times

    def launched(self, work):
        self.trouble("launched")
        return {"kernel": "nothing", "launches": 3}

    def extra_mib(self, work):
        self.trouble("extra_mib")
        return 7.0

    def free_bytes(self):
        return 10**9

    def settle(self):
        if self.lost:
            raise RuntimeError(self.lost)

    def captured(self, work):
        self.trouble("captured")
        work()
        return work

    @contextlib.contextmanager
    def streams(self, n):
        yield [contextlib.nullcontext() for _ in range(n)]

    def flash(self, q, k, v, *, tiles=None, **options):
        self.trouble("flash", tiles=tiles, q=q, **options)
        self.tiles = tiles
        return flash_attention(q, k, v, backend="tiled", **options)
