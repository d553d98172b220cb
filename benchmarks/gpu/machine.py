"""The GPU: its timer, its memory, its state. The benchmark accesses the device through this class only."""

import contextlib
import gc
import platform
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lessons_lib.flash import flash_attention
from lessons_lib.flash.band import KernelBand
from lessons_lib.flash.configurations import Configuration

FIELDS = {  # the name in nvidia-smi: the name in the record
    "driver_version": "driver",
    "clocks.sm": "sm_mhz",
    "clocks.max.sm": "sm_mhz_at_most",
    "clocks.mem": "memory_mhz",
    "power.draw": "watts",
    "power.limit": "watts_at_most",
    "temperature.gpu": "celsius",
}


class Machine:
    """An NVIDIA GPU. Tests replace it by a machine that needs no GPU."""

    device = "cuda"
    compiler = "inductor"

    def available(self) -> bool:
        """Return whether there is a GPU that can run the kernels."""
        return torch.cuda.is_available() and torch.version.cuda is not None

    def name(self) -> str:
        """Return the name of the device."""
        return torch.cuda.get_device_name()

    def capability(self) -> tuple[int, int]:
        """Return the compute capability of the device."""
        return torch.cuda.get_device_capability()

    def versions(self) -> dict[str, Any]:
        """Return the versions of all software. Triton's comes from its module: the package has several names."""
        try:
            import triton

            triton_version = triton.__version__
        except ImportError:
            triton_version = None
        return {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton_version,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }

    def state(self) -> dict[str, Any]:
        """Return clocks, power, temperature and driver from nvidia-smi, or the reason under ``unknown``."""
        try:
            done = subprocess.run(
                [
                    "nvidia-smi",
                    f"--query-gpu={','.join(FIELDS)}",
                    "--format=csv,noheader,nounits",
                    f"--id={self.id()}",
                ],
                capture_output=True,
                text=True,
                check=True,
                timeout=20,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return {"unknown": f"{type(error).__name__}: {error}"[:200]}
        found = [part.strip() for part in done.stdout.strip().splitlines()[0].split(",")] if done.stdout.strip() else []
        if len(found) != len(FIELDS):
            return {"unknown": f"nvidia-smi printed {done.stdout.strip()!r}"[:200]}
        return {name: _number(part) for name, part in zip(FIELDS.values(), found, strict=True)}

    def id(self) -> str:
        """Return the name that nvidia-smi has for PyTorch's first device."""
        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
        return "0" if uuid is None else f"GPU-{uuid}"

    def time(self, work: Callable[[], object], milliseconds: int = 200) -> tuple[float, float, float]:
        """Return the milliseconds of a call: the median, the 20th and the 80th percentile.

        The time is measured between events on the device; the second-level cache is emptied before each call.
        """
        from triton.testing import do_bench

        found: Any = do_bench(work, warmup=50, rep=milliseconds, quantiles=(0.5, 0.2, 0.8))
        median, low, high = found
        return median, low, high

    def launched(self, work: Callable[[], object]) -> dict[str, Any]:
        """Return the kernel that takes the most time in one call, and the number of kernels launched."""
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            work()
            torch.cuda.synchronize()
        events = [event for event in profile.key_averages() if event.self_device_time_total > 0]
        if not events:
            return {"kernel": "unknown: the profiler saw none"}
        longest = max(events, key=lambda event: event.self_device_time_total)
        return {"kernel": longest.key, "launches": sum(event.count for event in events)}

    def extra_mib(self, work: Callable[[], object]) -> float:
        """Return the rise of the allocation peak during a call: outputs and gradients count, inputs do not."""
        gc.collect()
        self.settle()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def free_bytes(self) -> int:
        """Return the number of bytes of free memory."""
        gc.collect()
        self.settle()
        return torch.cuda.mem_get_info()[0]

    def settle(self) -> None:
        """Wait for all work and free the memory cache; raises if the device is unusable in this process."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def captured(self, work: Callable[[], object]) -> Callable[[], object]:
        """Record a call as a CUDA graph and return the function that replays it."""
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(warm_up)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    @contextlib.contextmanager
    def streams(self, n: int) -> Iterator[list[contextlib.AbstractContextManager]]:
        """Return ``n`` streams that begin after the current work; later work begins after them."""
        streams = [torch.cuda.Stream() for _ in range(n)]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        yield [torch.cuda.stream(stream) for stream in streams]
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)

    def flash(self, q: Tensor, k: Tensor, v: Tensor, *, tiles: Configuration | None = None, **options: Any) -> Any:
        """Return ``flash_attention`` of the kernels, with the library's tiles or the given ones."""
        if tiles is None:
            return flash_attention(q, k, v, **options, backend="triton")
        return _flash_with_tiles(q, k, v, tiles, **options)


class Rehearsal(Machine):
    """A GPU on which nothing is timed: each call is made once, so that Triton compiles its kernels and keeps them."""

    def time(self, work: Callable[[], object], milliseconds: int = 200) -> tuple[float, float, float]:
        """Make the call once; the time returned means nothing."""
        work()
        torch.cuda.synchronize()
        return 1.0, 1.0, 1.0

    def launched(self, work: Callable[[], object]) -> dict[str, Any]:
        """Return nothing: no kernel is looked for."""
        return {}

    def extra_mib(self, work: Callable[[], object]) -> float:
        """Return 0: no memory is measured."""
        return 0.0

    def state(self) -> dict[str, Any]:
        """Return nothing: the state of the device does not matter."""
        return {}


def _flash_with_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: Configuration,
    *,
    is_causal: bool = False,
    window: int | None = None,
    key_lengths: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    from lessons_lib.flash.autograd import triton_attention  # needs triton

    band = KernelBand.of(q.shape[2], k.shape[2], is_causal=is_causal, window=window)
    out, lse = triton_attention(q, k, v, band, q.shape[-1] ** -0.5, key_lengths, tiles)
    return (out, lse) if return_lse else out


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
