"""Every tile is compiled for its devices, without a GPU or a driver, and the compiler's figures are checked.

How that is done is in ``benchmarks/compiled_kernels.py``, which compiles every candidate under every mask; here each
default is compiled, and each candidate once.
"""

import functools
import importlib.util
import json
import os
from pathlib import Path

import pytest
import torch
from thorough import all_but

triton = pytest.importorskip("triton", reason="triton is not installed (Linux, the extra 'gpu')")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("here kernels are interpreted", allow_module_level=True)

from lessons_lib.flash.configurations import Configuration, Tile, candidates, configuration  # noqa: E402

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "compiled_kernels.py"
spec = importlib.util.spec_from_file_location("compiled_kernels", SCRIPT)
compiled_kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiled_kernels)
compiled, SHARED, TENSOR_CORE, MASKS = (
    getattr(compiled_kernels, name) for name in ("compiled", "SHARED", "TENSOR_CORE", "MASKS")
)
KERNELS = Configuration._fields
FIRST = {(90, 64), (100, 128)}  # the devices and head widths that `make test` compiles for


def check(found: dict, limit: int, spills: tuple[int, ...]) -> None:
    """Fail if a kernel exceeds the device, spills above the budget, or does not use the tensor cores."""
    for name, budget in zip(KERNELS, spills, strict=True):
        check_one(found[name], limit, budget + SLACK)
    assert found["row_terms"].spilled <= 256, found["row_terms"]  # it runs once a row, so this costs nothing


def check_one(figures, limit: int, spills: int) -> None:
    """Check one kernel."""
    figures = figures._replace(cubin=b"...")
    assert figures.shared <= limit, figures
    assert figures.spilled <= spills, figures
    assert figures.tensor_core, figures
    assert not figures.serialized, figures


# Bytes spilled by attend, attend_part, key_value_gradients and query_gradients, measured with triton 3.7.1 under a
# causal mask, by compute capability and the width of the head. Half precision hardly spills. float32 is multiplied as
# three products: on the newer devices wide heads spill even with the smallest possible tiles.
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
SLACK = 64  # other masks need a few more registers
OLDER = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7)  # `make oldest-triton`
if OLDER:  # the one default that triton 3.6.0 compiles to more than these figures and the slack
    SINGLE[80, 256] = (308, 52, 888, 732)


@functools.cache
def in_half_precision(capability: int, d: int) -> dict:
    """Return the figures of the default tiles."""
    return compiled(capability, torch.bfloat16, d)


@pytest.mark.parametrize(("capability", "d"), all_but(HALF, lambda *which: which in FIRST))
def test_half_precision(capability, d):
    found = in_half_precision(capability, d)
    check(found, SHARED[capability], HALF[capability, d])
    for name in set(KERNELS) - {"attend_part"}:  # 16 rows are too few for the large instructions
        assert TENSOR_CORE[capability] in found[name].tensor_core, name


@pytest.mark.parametrize(("capability", "d"), all_but(SINGLE, lambda *which: which == (90, 64)))
def test_single_precision(capability, d):
    check(compiled(capability, torch.float32, d), SHARED[86], SINGLE[capability, d])


BY_TABLE = ("attend_by_table", "key_value_gradients_by_table", "query_gradients_by_table")
# Bytes spilled by these three kernels, as above; then with a cap, slopes and sinks.
TABLED = {
    (80, 64): ((0, 16, 0), (0, 128, 80)),
    (80, 256): ((0, 8, 0), None),
    (86, 128): ((0, 16, 0), (0, 308, 64)),
    (86, 256): ((0, 0, 0), None),
    (90, 64): ((0, 0, 0), (0, 0, 0)),
    (90, 128): ((0, 84, 0), (0, 220, 48)),
    (90, 256): ((0, 264, 0), None),
    (100, 128): ((0, 0, 0), None),
    (100, 256): ((0, 68, 0), None),
}


@pytest.mark.parametrize(
    ("capability", "d", "changed"),
    all_but(
        [
            (*device, changed)
            for device, budgets in TABLED.items()
            for changed in (False, True)
            if budgets[changed] is not None
        ],
        lambda *which: which in {(90, 64, False), (90, 128, True)},
    ),
)
def test_tile_table_kernels(capability, d, changed):
    budgets = TABLED[capability, d][changed]
    found = compiled(capability, torch.bfloat16, d, by_table=True, changed=changed)
    for name, budget in zip(BY_TABLE, budgets, strict=True):
        check_one(found[name], SHARED[capability], budget + SLACK)


# --- options that change the code -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "d", "problem"),
    all_but(
        [
            (80, 64, {"is_causal": False, "lengths": [256, 9]}),
            (90, 128, {"is_causal": False}),
            (90, 128, {"window": 50, "lengths": [256, 9]}),
            (90, 80, {"n": 251}),
            (100, 64, {"window": 50}),
        ],
        lambda capability, d, problem: "window" in problem and "lengths" in problem,
    ),
    ids=str,
)
def test_any_problem_compiles_within_budget(capability, d, problem):
    found = compiled(capability, torch.float16, d, **problem)
    check(found, SHARED[capability], HALF[capability, 64 if d <= 64 else 128])


@pytest.mark.parametrize(("capability", "d"), all_but([(80, 64), (90, 128)], lambda *which: which == (90, 128)))
def test_score_mods_compile_within_budget(capability, d):
    """With a cap, slopes and sinks; the gradient of the slopes needs a second tile in query_gradients."""
    found = compiled(capability, torch.bfloat16, d, changed=True)
    check(found, SHARED[capability], {80: (0, 0, 500, 300), 90: (0, 0, 120, 0)}[capability])


@pytest.mark.parametrize("n_heads", all_but([71, 128], lambda n_heads: n_heads == 71))
@pytest.mark.parametrize(
    ("capability", "d"), all_but([(80, 128), (90, 64), (90, 128), (90, 256)], lambda *which: which in FIRST)
)
def test_decoding_with_many_heads_compiles_within_budget(capability, d, n_heads):
    decoding = ("attend_part", "merge_parts")
    found = compiled(capability, torch.bfloat16, d, only=decoding, heads=(n_heads, 1))
    for name in decoding:
        figures = found[name]._replace(cubin=b"...")
        assert figures.shared <= SHARED[capability], figures
        assert figures.spilled <= SLACK, figures
        assert not figures.serialized, figures
    assert TENSOR_CORE[capability] in found["attend_part"].tensor_core


# --- candidates -----------------------------------------------------------------------------------------------------

OTHERS = [
    (capability, d, kernel, tile)
    for capability in (80, 90, 100)
    for d in (64, 128, 256)
    for kernel in KERNELS
    for tile in candidates(kernel, d, 2, divmod(capability, 10))[1:]
]


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 3)], ids=str)
def test_candidates_are_distinct_and_begin_with_the_default(capability, itemsize):
    for d in (40, 80, 200):
        for kernel in KERNELS:
            tiles = candidates(kernel, d, itemsize, capability)
            assert tiles[0] == getattr(configuration(d, itemsize, capability), kernel)
            assert len(set(tiles)) == len(tiles)


def test_candidates_invalid_arguments_raise():
    with pytest.raises(ValueError, match=r"kernel must be one of attend, .*, got 'attent'"):
        candidates("attent", 64, 2, (9, 0))
    with pytest.raises(ValueError, match="at most 256 wide for the Triton kernels, got 257"):
        candidates("attend", 257, 2, (9, 0))


@pytest.mark.parametrize(
    ("capability", "d", "kernel", "tile"), all_but(OTHERS, lambda *which: which == OTHERS[0]), ids=str
)
def test_candidates(capability, d, kernel, tile):
    tiles = configuration(d, 2, divmod(capability, 10))._replace(**{kernel: tile})
    figures = compiled(capability, torch.bfloat16, d, tiles, only=(kernel,))[kernel]
    budget = max(HALF[capability, d][KERNELS.index(kernel)], 60)
    check_one(figures, SHARED[capability], budget + SLACK)
    assert TENSOR_CORE[capability] in figures.tensor_core


@pytest.mark.thorough
@pytest.mark.skipif(OLDER, reason="the chapter says it of triton 3.7.1")
def test_kernels_for_a_t4_use_no_tensor_cores(monkeypatch):
    """The reason why ``auto`` takes another backend below compute capability 8.0."""
    monkeypatch.setitem(SHARED, 75, 64 * 1024)
    monkeypatch.setitem(TENSOR_CORE, 75, TENSOR_CORE[80])
    figures = compiled(75, torch.float16, 64, only=("attend",))["attend"]
    assert not figures.tensor_core
    assert figures.spilled > 1024


@pytest.mark.parametrize("kernel", ["attend", "key_value_gradients"])
def test_two_programs_fit_on_a_multiprocessor(kernel):
    """Narrow heads: one program computes exponentials while the other multiplies."""
    assert in_half_precision(90, 64)[kernel].programs >= 2


# --- wrong tiles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [Tile(128, 128, 4, 2), Tile(128, 128, 8, 4)], ids=["spills", "needs too much memory"])
def test_budget_check_fails_for_a_bad_tile(tile):
    found = compiled(90, torch.bfloat16, 128, configuration(128, 2, (9, 0))._replace(attend=tile), only=("attend",))
    figures = found["attend"]
    assert figures.spilled > SLACK or figures.shared > SHARED[90]


def test_record_keeps_entries_that_were_not_compiled_again(tmp_path):
    row = {"triton": "3.7.1", "capability": 90, "width": 64, "kernel": "attend", "mask": "full", "tile": [128, 64]}
    path = tmp_path / "record.json"
    compiled_kernels.save([row | {"spilled": 4}, row | {"mask": "causal", "spilled": 8}], path)
    compiled_kernels.save([row | {"spilled": 0}, row | {"triton": "3.6.0", "spilled": 2}], path)
    found = {(kept["triton"], kept["mask"]): kept["spilled"] for kept in json.loads(path.read_text())}
    assert found == {("3.6.0", "full"): 2, ("3.7.1", "full"): 0, ("3.7.1", "causal"): 8}
