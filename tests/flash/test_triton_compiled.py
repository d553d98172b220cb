"""Every tile of the table is compiled for its devices, with no GPU and no driver, and the compiler's figures are read.

The launch code runs as it would on a GPU: only Triton's driver is replaced, by one that names a device and starts
nothing. So what is compiled here is what would be compiled there, down to the alignment of the pointers.
"""

import contextlib
import io
import os
import re
from typing import NamedTuple

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is not installed (Linux, the extra 'gpu')")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("here kernels are interpreted", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402

from lessons_lib.flash import launch  # noqa: E402
from lessons_lib.flash.band import Band  # noqa: E402
from lessons_lib.flash.configurations import Configuration, Tile, configuration  # noqa: E402

KIB = 1024
SHARED = {80: 163 * KIB, 86: 99 * KIB, 90: 227 * KIB, 100: 227 * KIB}  # bytes that one program may have
TENSOR_CORE = {80: "mma.sync", 86: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}
KERNELS = Configuration._fields


class Figures(NamedTuple):
    """What the compilers say of one kernel; ``spilled`` counts bytes written to memory for want of registers."""

    registers: int
    spilled: int
    shared: int
    tensor_core: frozenset[str]
    serialized: bool
    specialized: bool


class Offline:
    """A driver for a device that is not there. Triton keeps what it compiled by device, so each begins with nothing."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> "Offline":
        return self

    def get_current_stream(self, device: "Offline") -> int:
        return 0


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Return a function that gives the figures of all kernels of one problem, by name."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.knobs.nvidia, "dump_ptxas_log", True)
    found = {}

    def compile_only(kernel, grid):
        def start(*arguments, **options) -> None:
            with contextlib.redirect_stdout(io.StringIO()) as log:
                code = kernel.warmup(*arguments, grid=grid, **options)
            found[kernel.__name__] = _figures(code, log.getvalue())

        return start

    monkeypatch.setattr(triton.JITFunction, "__getitem__", compile_only, raising=False)

    def run(
        capability: int,
        dtype: torch.dtype,
        d: int,
        tiles: Configuration | None = None,
        *,
        n: int = 256,
        window: int | None = None,
        lengths: list[int] | None = None,
        is_causal: bool = True,
        only_forward: bool = False,
        only_decoding: bool = False,
        heads: tuple[int, int] = (4, 2),
    ) -> dict[str, Figures]:
        found.clear()
        monkeypatch.setattr(triton.runtime.driver, "_active", Offline(capability))
        tiles = tiles or configuration(d, dtype.itemsize, divmod(capability, 10))
        q, k, v = (torch.zeros(2, each, n, d, dtype=dtype, requires_grad=True) for each in (*heads, heads[1]))
        key_lengths = None if lengths is None else torch.tensor(lengths)
        band = Band.of(n, n, is_causal=is_causal, window=window)
        if only_decoding:
            launch.decode(q[:, :, :1], k, v, band, 0.1, key_lengths, tiles.attend_part, 33)
            return dict(found)
        out, lse = launch.triton_attention(q, k, v, band, 0.1, key_lengths, tiles)
        if not only_forward:
            torch.autograd.grad([out, lse], [q, k, v], [torch.zeros_like(out), torch.zeros_like(lse)])
            one = Band.of(1, n, is_causal=is_causal, window=window)
            int_lengths = None if key_lengths is None else key_lengths.int()
            launch.decode(q[:, :, :1], k.detach(), v.detach(), one, 0.1, int_lengths, tiles.attend_part, 4)
        return dict(found)

    return run


def _figures(code, log: str) -> Figures:
    ptx = code.asm["ptx"]
    return Figures(
        registers=int(re.search(r"Used (\d+) registers", log)[1]),
        spilled=int(re.search(r"(\d+) bytes spill stores", log)[1]),
        shared=code.metadata.shared,
        tensor_core=frozenset(name for name in set(TENSOR_CORE.values()) if name in ptx),
        serialized="serializ" in log,
        specialized="setmaxnreg" in ptx,
    )


def check(found: dict[str, Figures], limit: int, spills: tuple[int, ...]) -> None:
    """Fail if a kernel asks too much of the device, spills above the budget, or leaves the tensor cores idle."""
    for name, budget in zip(KERNELS, spills, strict=True):
        assert found[name].shared <= limit, (name, found[name])
        assert found[name].spilled <= budget + SLACK, (name, found[name])
        assert found[name].tensor_core, (name, found[name])
        assert not found[name].serialized, (name, found[name])
    assert found["row_terms"].spilled <= 256, found["row_terms"]  # it runs once a row: this costs nothing


# Bytes spilled by attend, attend_part, key_value_gradients and query_gradients, measured with triton 3.7.1 under a
# causal mask, by compute capability and the width of the head. Half precision hardly spills. float32 is multiplied by
# parts, three products for one: on the newer devices wide heads spill even from the smallest tiles that there are.
HALF = {
    (80, 64): (0, 4, 24, 0),
    (80, 128): (0, 0, 56, 0),
    (80, 256): (0, 0, 16, 0),
    (86, 64): (0, 0, 20, 0),
    (86, 128): (0, 0, 68, 0),
    (86, 256): (0, 0, 0, 0),
    (90, 64): (0, 0, 0, 0),
    (90, 128): (0, 0, 8, 0),
    (90, 256): (0, 0, 0, 0),
    (100, 64): (0, 0, 0, 0),
    (100, 128): (0, 0, 160, 0),
    (100, 256): (0, 0, 56, 0),
}
SINGLE = {
    (80, 64): (0, 0, 820, 0),
    (80, 128): (0, 0, 0, 0),
    (80, 256): (208, 0, 888, 732),
    (90, 64): (0, 0, 720, 0),
    (90, 128): (0, 0, 1488, 844),
    (90, 256): (1300, 1272, 5396, 4944),
    (100, 64): (0, 0, 0, 0),
    (100, 128): (0, 0, 1508, 924),
    (100, 256): (1352, 1312, 5508, 5116),
}
SLACK = 64  # other masks cost a few registers more


@pytest.mark.parametrize(("capability", "d"), HALF)
def test_half_precision(compiled, capability, d):
    found = compiled(capability, torch.bfloat16, d)
    check(found, SHARED[capability], HALF[capability, d])
    for name in set(KERNELS) - {"attend_part"}:  # 16 rows, of one query's heads, are too few for the large instructions
        assert TENSOR_CORE[capability] in found[name].tensor_core, name


@pytest.mark.parametrize(("capability", "d"), SINGLE)
def test_single_precision(compiled, capability, d):
    check(compiled(capability, torch.float32, d), SHARED[86], SINGLE[capability, d])


# --- what else changes the code -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "d", "problem"),
    [
        (80, 64, {"is_causal": False, "lengths": [256, 9]}),
        (90, 128, {"is_causal": False}),
        (90, 128, {"window": 50, "lengths": [256, 9]}),
        (90, 80, {"n": 251}),
        (100, 64, {"window": 50}),
    ],
    ids=str,
)
def test_any_problem_compiles_as_well(compiled, capability, d, problem):
    found = compiled(capability, torch.float16, d, **problem)
    check(found, SHARED[capability], HALF[capability, 64 if d <= 64 else 128])


@pytest.mark.parametrize("n_heads", [71, 128])
@pytest.mark.parametrize(("capability", "d"), [(80, 128), (90, 64), (90, 128), (90, 256)])
def test_decoding_with_many_heads_on_one_key_compiles_as_well(compiled, capability, d, n_heads):
    found = compiled(capability, torch.bfloat16, d, only_decoding=True, heads=(n_heads, 1))
    for figures in (found["attend_part"], found["merge_parts"]):
        assert figures.shared <= SHARED[capability], figures
        assert figures.spilled <= SLACK, figures
        assert not figures.serialized, figures
    assert TENSOR_CORE[capability] in found["attend_part"].tensor_core


def test_warps_can_be_specialised_on_hopper(compiled):
    tiles = configuration(128, 2, (9, 0))
    tiles = tiles._replace(attend=Tile(128, 64, 4, 2, specialize=True))
    found = compiled(90, torch.bfloat16, 128, tiles, only_forward=True)
    assert found["attend"].specialized
    assert not found["attend"].spilled


# --- the tests themselves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [Tile(128, 128, 4, 2), Tile(128, 128, 8, 4)], ids=["spills", "needs too much memory"])
def test_a_bad_tile_would_be_noticed(compiled, tile):
    found = compiled(90, torch.bfloat16, 128, configuration(128, 2, (9, 0))._replace(attend=tile), only_forward=True)
    figures = found["attend"]
    assert figures.spilled > SLACK or figures.shared > SHARED[90]
