"""The GPU: its clock, its memory, its state. All that the benchmark asks of a device goes through this class."""

import contextlib
import gc
import platform
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lessons_lib.flash import flash_attention
from lessons_lib.flash.band import Band
from lessons_lib.flash.configurations import Configuration

ASKED = {  # nvidia-smi's name: ours
    "driver_version": "driver",
    "clocks.sm": "sm_mhz",
    "clocks.max.sm": "sm_mhz_at_most",
    "clocks.mem": "memory_mhz",
    "power.draw": "watts",
    "power.limit": "watts_at_most",
    "temperature.gpu": "celsius",
}


class Machine:
    """An NVIDIA GPU. The tests put a machine in its place that needs none."""

    device = "cuda"
    compiler = "inductor"

    def available(self) -> bool:
        """Whether there is a GPU that the kernels can run on."""
        return torch.cuda.is_available() and torch.version.cuda is not None

    def name(self) -> str:
        """The device's name, as its maker gives it."""
        return torch.cuda.get_device_name()

    def capability(self) -> tuple[int, int]:
        """The device's compute capability."""
        return torch.cuda.get_device_capability()

    def versions(self) -> dict[str, Any]:
        """What takes part in a measurement. Triton is asked itself: its package has several names."""
        try:
            import triton

            its_version = triton.__version__
        except ImportError:
            its_version = None
        return {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": its_version,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }

    def state(self) -> dict[str, Any]:
        """Clocks, power, temperature and driver as nvidia-smi tells them; what it does not tell is ``unknown``."""
        try:
            done = subprocess.run(
                ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits", f"--id={self.id()}"],
                capture_output=True,
                text=True,
                check=True,
                timeout=20,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return {"unknown": f"{type(error).__name__}: {error}"[:200]}
        told = [part.strip() for part in done.stdout.strip().splitlines()[0].split(",")] if done.stdout.strip() else []
        if len(told) != len(ASKED):
            return {"unknown": f"nvidia-smi said {done.stdout.strip()!r}"[:200]}
        return {name: _number(part) for name, part in zip(ASKED.values(), told, strict=True)}

    def id(self) -> str:
        """How nvidia-smi calls the device that PyTorch counts as its first."""
        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
        return "0" if uuid is None else f"GPU-{uuid}"

    def time(self, work: Callable[[], object], milliseconds: int = 200) -> tuple[float, float, float]:
        """Milliseconds of a call: the median, and what 20 % and 80 % of the calls stay below.

        Between events on the device, the second-level cache emptied before each call.
        """
        from triton.testing import do_bench

        found: Any = do_bench(work, warmup=50, rep=milliseconds, quantiles=(0.5, 0.2, 0.8))
        median, low, high = found
        return median, low, high

    def launched(self, work: Callable[[], object]) -> dict[str, Any]:
        """The kernel that takes the most time in one call, which is who really ran, and how many are launched."""
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
        """How far the peak of allocated memory rises during a call: outputs and gradients count, inputs do not."""
        gc.collect()
        self.settle()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def free_bytes(self) -> int:
        """Memory that is not taken."""
        gc.collect()
        self.settle()
        return torch.cuda.mem_get_info()[0]

    def settle(self) -> None:
        """Wait for all work and give back memory; raises if the device can do nothing more in this process."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def captured(self, work: Callable[[], object]) -> Callable[[], object]:
        """Record a call as a CUDA graph; return what plays it."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    @contextlib.contextmanager
    def streams(self, n: int) -> Iterator[list[contextlib.AbstractContextManager]]:
        """``n`` streams that begin after what is under way; what follows begins after them."""
        streams = [torch.cuda.Stream() for _ in range(n)]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        yield [torch.cuda.stream(stream) for stream in streams]
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)

    def flash(self, q: Tensor, k: Tensor, v: Tensor, *, tiles: Configuration | None = None, **options: Any) -> Any:
        """``flash_attention`` by the kernels; with ``tiles``, cut so and not as the library's table says."""
        if tiles is None:
            return flash_attention(q, k, v, **options, backend="triton")
        return _cut(q, k, v, tiles, **options)


def _cut(
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
    from lessons_lib.flash.launch import triton_attention  # needs triton

    band = Band.of(q.shape[2], k.shape[2], is_causal=is_causal, window=window)
    out, lse = triton_attention(q, k, v, band, q.shape[-1] ** -0.5, key_lengths, tiles)
    return (out, lse) if return_lse else out


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
