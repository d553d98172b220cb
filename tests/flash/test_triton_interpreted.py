"""The Triton kernels equal attention in float64; they run in Triton's interpreter on the CPU.

``TRITON_INTERPRET`` decides, when Triton is imported, whether a process interprets kernels or compiles them: this file
needs a process of its own, ``TRITON_INTERPRET=1 pytest tests/flash/test_triton_interpreted.py``.
"""

import os

import pytest
import torch
from flash_cases import ONE_KEY, TOLERANCE, Case, assert_right, errors, inputs, mutated
from thorough import all_but
from torch import Tensor

triton = pytest.importorskip("triton", reason="triton is not installed (Linux, the extra 'gpu')")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a process of its own: TRITON_INTERPRET=1 pytest ...", allow_module_level=True)

import triton.language as tl  # noqa: E402

from lessons_lib.attention.softmax import merge_attention  # noqa: E402
from lessons_lib.flash import autograd, flash_attention  # noqa: E402
from lessons_lib.flash.band import KernelBand  # noqa: E402
from lessons_lib.flash.configurations import INTERPRETED, Configuration, Tile  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SIZES = [(1, 1), (1, 67), (64, 64), (67, 67), (29, 131), (131, 29)]
MASKS = [
    {},
    {"is_causal": True},
    {"window": 1},
    {"window": 23},
    {"is_causal": True, "window": 1},
    {"is_causal": True, "window": 23},
]


def triton_attention(case: Case, scale: float | None = None):
    options = case.options() | {"backend": "triton", "return_lse": True, "scale": scale}
    return lambda q, k, v: flash_attention(q, k, v, **options)


# --- comparison with attention --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_kernels_equal_attention(n, m, mask):
    case = Case(h=2, g=1, n=n, m=m, **mask)
    assert_right(errors(triton_attention(case), case), torch.float32, times=ONE_KEY if m == 1 else 1.0)


@pytest.mark.parametrize("mask", all_but(MASKS, lambda mask: mask.get("window") != 1), ids=str)
@pytest.mark.parametrize(("n", "m"), all_but(SIZES, lambda n, m: n * m > 1 and n != 64))
def test_kernels_equal_attention_with_key_lengths(n, m, mask):
    case = Case(b=3, h=1, g=1, n=n, m=m, key_lengths=(m, 0, (m + 1) // 2), **mask)
    assert_right(errors(triton_attention(case), case), torch.float32)


@pytest.mark.parametrize("mask", [{}, {"is_causal": True}, {"window": 23}, {"key_lengths": (35, 20)}], ids=str)
@pytest.mark.parametrize(("h", "g"), [(2, 2), (4, 2), (5, 1)])
def test_grouped_heads_equal_attention(h, g, mask):
    case = Case(b=2, h=h, g=g, n=41, m=35, **mask)
    assert_right(errors(triton_attention(case), case), torch.float32)


@pytest.mark.parametrize(
    ("d", "dtype"),
    all_but(
        [(d, dtype) for d in (1, 8, 16, 20, 32, 40, 64, 80, 96, 128, 160, 256) for dtype in DTYPES],
        lambda d, dtype: dtype == torch.float32 or d in (1, 20, 256),
    ),
    ids=str,
)
def test_any_head_width_equals_attention(d, dtype):
    case = Case(h=1, g=1, n=35, m=70, d=d, is_causal=True)
    assert_right(errors(triton_attention(case), case, dtype), dtype)


@pytest.mark.parametrize(
    ("layout", "dtype"),
    all_but(
        [(layout, dtype) for layout in ("interleaved", "odd", "transposed") for dtype in DTYPES],
        lambda layout, dtype: dtype == torch.float32 or layout == "odd",
    ),
    ids=str,
)
@pytest.mark.parametrize("mask", [{"key_lengths": (70, 31)}, {"is_causal": True, "window": 23}], ids=str)
def test_any_strides_equal_attention(layout, dtype, mask):
    case = Case(b=2, h=2, g=1, n=35, m=70, d=24, **mask)
    assert_right(errors(triton_attention(case), case, dtype, layout=layout), dtype)


@pytest.mark.parametrize("mask", [{}, {"is_causal": True}, {"window": 23}, {"key_lengths": (75, 40)}], ids=str)
@pytest.mark.parametrize(
    ("block_q", "block_k"),
    all_but([(16, 16), (16, 64), (64, 16), (128, 128)], lambda *block: block in {(16, 64), (64, 16)}),
)
def test_any_tiles_equal_attention(block_q, block_k, mask):
    case = Case(b=2, h=1, g=1, n=75, m=75, **mask)
    tile = Tile(block_q, block_k, num_warps=4, num_stages=1)
    tiles = Configuration(tile, tile, tile, tile)
    band = KernelBand.of(75, 75, is_causal=case.is_causal, window=case.window)
    lengths = case.options()["key_lengths"]
    found = errors(lambda q, k, v: autograd.triton_attention(q, k, v, band, 0.25, lengths, tiles), case, scale=0.25)
    assert_right(found, torch.float32)


BY_HOST = Configuration(*(tile._replace(host=True) for tile in INTERPRETED))


@pytest.mark.parametrize(
    ("layout", "mask"),
    all_but(
        [
            (layout, mask)
            for layout in ("padded", "interleaved", "odd")
            for mask in ({}, {"is_causal": True}, {"is_causal": True, "window": 23})
        ],
        lambda layout, mask: layout == "interleaved" or mask == {"is_causal": True},
    ),
    ids=str,
)
def test_descriptors_from_the_host_equal_attention(layout, mask):
    case = Case(b=2, h=4, g=2, n=35, m=70, d=24, **mask)
    band = KernelBand.of(35, 70, is_causal=case.is_causal, window=case.window)

    def function(q, k, v):
        return autograd.triton_attention(q, k, v, band, 0.25, None, BY_HOST)

    assert_right(errors(function, case, layout=layout, scale=0.25), torch.float32)


def test_with_descriptors_describes_supported_matrices():
    x, lengths = torch.zeros(2, 3, 5, 24), torch.tensor([5, 4])
    described = autograd._with_descriptors((x, x), BY_HOST.attend, "qk", None)
    assert [each.block_shape for each in described] == [[1, 1, 64, 32], [1, 1, 32, 32]]
    expanded = x[:, :1].expand(2, 3, 5, 24)
    for matrices, tile, given in (
        ((x, x), BY_HOST.attend, lengths),
        ((x, expanded), BY_HOST.attend, None),
        ((x, x), INTERPRETED.attend, None),
    ):
        assert autograd._with_descriptors(matrices, tile, "qk", given) is matrices


@pytest.mark.parametrize("scale", [0.7, -0.7, 0.0, 3.0])
def test_any_scale_equals_attention(scale):
    case = Case(d=5, is_causal=True)
    assert_right(errors(triton_attention(case, scale), case, scale=scale), torch.float32)


@pytest.mark.parametrize("expand", ["gradient", "keys"])
def test_expanded_tensors_equal_attention(expand):
    q, k, v = (torch.randn(2, 2, 21, 16, dtype=torch.float32) for _ in range(3))
    k = k[:, :, :1].expand(2, 2, 21, 16) if expand == "keys" else k
    ours, theirs = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
    if expand == "keys":
        ours[1] = k.detach().requires_grad_()
    flash_attention(*ours, backend="triton").sum().backward()
    flash_attention(*theirs, backend="tiled").sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-5)


# --- decoding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_parts", all_but([1, 4, 16], lambda n_parts: n_parts == 4))
@pytest.mark.parametrize(("h", "g"), [(2, 2), (6, 2), (5, 1)])
@pytest.mark.parametrize("mask", [{}, {"window": 100}, {"key_lengths": (0, 130)}], ids=str)
def test_parts_of_decoding_merge_into_attention(n_parts, h, g, mask):
    case = Case(b=2, h=h, g=g, n=1, m=259, d=24, **mask)
    band = KernelBand.of(1, 259, is_causal=True, window=case.window)
    q, k, v = inputs(case, torch.float32)
    lengths = case.options()["key_lengths"]
    lengths = None if lengths is None else lengths.int()
    out, lse = autograd.decode_attention(q, k, v, band, 0.2, lengths, Tile(16, 32, 4, 1), n_parts)
    wanted, wanted_lse = flash_attention(
        *(x.double() for x in (q, k, v)), **case.options(), scale=0.2, backend="tiled", return_lse=True
    )
    torch.testing.assert_close(out.double(), wanted, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_query_without_gradient_uses_the_decoding_kernel(dtype, monkeypatch):
    case = Case(b=2, h=4, g=2, n=1, m=300, d=40, key_lengths=(300, 77))
    qkv = inputs(case, dtype)
    wanted = flash_attention(*(x.double() for x in qkv), **case.options(), backend="tiled")
    launched = []
    start = autograd._launch
    monkeypatch.setattr(
        autograd, "_launch", lambda kernel, *rest, **more: (launched.append(kernel), start(kernel, *rest, **more))
    )
    out = flash_attention(*qkv, **case.options(), backend="triton")
    assert launched == [autograd.kernels.attend_part, autograd.kernels.merge_parts]
    assert out.dtype == dtype
    assert (out.double() - wanted).norm() / wanted.norm() < TOLERANCE[dtype]
    flash_attention(qkv[0].requires_grad_(), *qkv[1:], **case.options(), backend="triton")
    assert launched[2:] == [autograd.kernels.attend]


# --- properties -----------------------------------------------------------------------------------------------------


def gradients(seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    q, k, v = (torch.randn(1, heads, 70, 16, dtype=torch.float32, requires_grad=True) for heads in (2, 1, 1))
    out, lse = flash_attention(q, k, v, is_causal=True, backend="triton", return_lse=True)
    return [out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), (q, k, v))]


def test_same_input_gives_the_same_bits():
    assert all(torch.equal(a, b) for a, b in zip(gradients(3), gradients(3), strict=True))


def test_two_halves_of_the_keys_merge_into_attention():
    q, k, v = (torch.randn(1, 2, 40, 16, dtype=torch.float32) for _ in range(3))
    halves = [
        flash_attention(q, k[:, :, s], v[:, :, s], backend="triton", return_lse=True)
        for s in (slice(17), slice(17, 40))
    ]
    whole = flash_attention(q, k, v, backend="triton", return_lse=True)
    for a, b in zip(merge_attention(*halves[0], *halves[1]), whole, strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=2e-6)


def test_query_without_keys_returns_zero_and_has_no_gradient():
    q, k, v = (torch.randn(2, 2, 70, 16, dtype=torch.float32, requires_grad=True) for _ in range(3))
    out, lse = flash_attention(q, k, v, key_lengths=torch.tensor([0, 70]), backend="triton", return_lse=True)
    assert (out[0] == 0).all()
    assert (lse[0] == -torch.inf).all()
    (out.sum() + lse[1].sum()).backward()
    assert all((x.grad[0] == 0).all() and (x.grad[1] != 0).any() for x in (q, k, v))


def test_padding_is_not_read():
    q, k, v = (torch.randn(2, 1, 40, 16, dtype=torch.float32) for _ in range(3))
    poisoned = [x.clone() for x in (k, v)]
    for x in poisoned:
        x[1, :, 13:] = torch.nan
    lengths = torch.tensor([40, 13])
    results = []
    for keys, values in ((k, v), poisoned):
        leaves = [x.clone().requires_grad_() for x in (q, keys, values)]
        out = flash_attention(*leaves, key_lengths=lengths, backend="triton")
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of NumPy, with which the interpreter computes
def test_scores_of_minus_infinity_count_as_hidden():
    q, k = torch.full((1, 1, 3, 16), -1e30, dtype=torch.float32), torch.full((1, 1, 4, 16), 1e30, dtype=torch.float32)
    q[0, 0, 1] = 1e-30
    leaves = [x.requires_grad_() for x in (q, k, torch.randn(1, 1, 4, 16, dtype=torch.float32))]
    out, lse = flash_attention(*leaves, backend="triton", return_lse=True)
    assert (out[0, 0, [0, 2]] == 0).all()
    assert lse[0, 0].isfinite().tolist() == [False, True, False]
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves)


def test_kernels_write_inside_the_results_only(monkeypatch):
    kept = []

    new_empty = Tensor.new_empty

    def guarded(self: Tensor, *shape: int, dtype: torch.dtype | None = None, **others) -> Tensor:
        if others:  # kernels of the interpreter
            return new_empty(self, *shape, dtype=dtype, **others)
        shape = shape[0] if isinstance(shape[0], tuple) else shape
        numel = torch.Size(shape).numel()
        memory = torch.full((numel + 4096,), 7.0, dtype=dtype or self.dtype)
        kept.append((memory, numel))
        return memory[2048 : 2048 + numel].view(shape)

    monkeypatch.setattr(Tensor, "new_empty", guarded)
    q, k, v = (torch.randn(1, 1, 35, 20, dtype=torch.float32, requires_grad=True) for _ in range(3))
    out, lse = flash_attention(q, k, v, backend="triton", return_lse=True)
    torch.autograd.grad(out.sum() + lse.sum(), (q, k, v))
    with torch.no_grad():
        flash_attention(q[:, :, :1], k, v, backend="triton")
    assert len(kept) >= 9
    for memory, numel in kept:
        assert (memory[:2048] == 7).all()
        assert (memory[2048 + numel :] == 7).all()


# --- bfloat16 in the interpreter ------------------------------------------------------------------------------------


@triton.jit
def product(A, B, C, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    at = i[:, None] * SIZE + i[None, :]
    tl.store(C + at, tl.dot(tl.load(A + at), tl.load(B + at)))


def test_interpreter_multiplies_bfloat16_wrongly():
    """The reason why ``triton_attention`` casts bfloat16 in the interpreter. If this fails, remove that cast."""
    a, b = torch.randn(2, 16, 16).to(torch.bfloat16)
    c = torch.empty(16, 16, dtype=torch.float32)
    product[(1,)](a, b, c, SIZE=16)
    assert (c - a.float() @ b.float()).abs().max() > 1e3


# --- wrong implementations ------------------------------------------------------------------------------------------

MUTANT_CASES = [
    Case(b=2, h=4, g=2, n=67, m=68, d=20, is_causal=True),  # the first block of queries needs one key of a new tile
    Case(b=2, h=2, g=1, n=40, m=131, d=16, window=23, key_lengths=(131, 30)),
    Case(h=1, g=1, n=131, m=70, is_causal=True, key_lengths=(33,)),
]
MUTANTS = {
    "causal, off by one": ("j <= tl.minimum(position + right", "j < tl.minimum(position + right"),
    "causal, off by one in the backward pass": (">= (diagonal - right)", "> (diagonal - right)"),
    "window, off by one": ("j >= (position - left)", "j > (position - left)"),
    "window, off by one in the backward pass": ("<= (diagonal + left)", "< (diagonal + left)"),
    "ignores the length": ("j < length", "j < length + 1"),
    "ignores the length with a mask": ("length - 1)[:, None]", "length)[:, None]"),
    "leaves out the mask in the backward pass": ("if left is not None or right is not None:", "if left is not None:"),
    "does not rescale the running output": ("o * shrink[:, None]", "o"),
    "does not rescale the running sum": ("total = total * shrink + tl.sum(p, 1)", "total = total + tl.sum(p, 1)"),
    "uses the maximum of the tile only": ("tl.maximum(peak, tl.max(s, 1) * bits)", "tl.max(s, 1) * bits"),
    "returns the log-sum-exp in bits": ("(peak + tl.log2(total)) * LN_2", "peak + tl.log2(total)"),
    "ignores the gradient of the log-sum-exp": (" - dlse", ""),
    "ignores delta": ("ds = p * (dp - delta[:, None])", "ds = p * dp"),
    "does not scale the gradient of the keys": ("dk * scale", "dk"),
    "does not scale the gradient of the queries": ("dq * scale", "dq"),
    "pairs query heads with key heads in turn": ("head // (h // g)", "head % g"),
    "sums over too few heads": ("tl.range(0, h // g)", "tl.range(0, 1)"),
    "aligns the first query with the first key": ("before = _end(length, m, AT_END) - n", "before = 0"),
    "stops one key too early": (
        "tl.minimum(length, position + right + BLOCK_Q)",
        "tl.minimum(length, position + right + BLOCK_Q - 1)",
    ),
    "leaves out the mask at the edge": (
        "inner = tl.minimum(length, position + right + 1)",
        "inner = tl.minimum(length, position + right + BLOCK_Q)",
    ),
    "starts the window too late": (
        "start = tl.maximum(position - left, 0)",
        "start = tl.maximum(position - left + 1, 0)",
    ),
    "starts the queries too late": (
        "tl.maximum(first - right - m + n, 0) // BLOCK_Q",
        "tl.maximum(first - right - m + n + BLOCK_Q, 0) // BLOCK_Q",
    ),
    "stops the queries too early": ("first + BLOCK_K + left - m + n", "first + left - m + n"),
    "reads rows beyond the end": ("shape=[tl.maximum(n_rows, 1), D]", "shape=[n_rows + BLOCK, D]"),
    "reads columns beyond the end": ("shape=[tl.maximum(n_rows, 1), D]", "shape=[tl.maximum(n_rows, 1), WIDTH]"),
    "gives hidden keys a gradient": ("exists = (j < length)[:, None]", "exists = (j < m)[:, None]"),
    "reads another sequence": ("BASE + b * strides[0]", "BASE + 0 * b * strides[0]"),
}


def check_cases() -> None:
    for case in MUTANT_CASES:
        assert_right(errors(triton_attention(case), case), torch.float32)


def test_cases_pass_for_the_unchanged_kernels():
    check_cases()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.one_case
@pytest.mark.parametrize(("old", "new"), MUTANTS.values(), ids=MUTANTS)
def test_cases_fail_for_a_wrong_implementation(old, new, tmp_path, monkeypatch):
    monkeypatch.setattr(autograd, "kernels", mutated(autograd.kernels, old, new, tmp_path))
    with pytest.raises(AssertionError):
        check_cases()


# --- a broken interpreter -------------------------------------------------------------------------------------------


def test_interpreter_fault_is_none_if_the_interpreter_works():
    assert autograd.interpreter_fault() is None


def test_broken_interpreter_raises_with_its_versions(monkeypatch):
    """As Triton 3.6 with NumPy 2.4: an array with one entry is not accepted as an index."""
    failure = triton.runtime.errors.InterpreterError("TypeError('only 0-dimensional arrays can be converted')")

    def interpreted(*_):
        raise failure

    monkeypatch.setattr(autograd, "_count", {(1,): interpreted})
    q = torch.randn(1, 1, 5, 8, dtype=torch.float32)
    with pytest.raises(
        ValueError, match=r"'triton' cannot run here: Triton \S+ cannot interpret a loop with NumPy \S+, Ty"
    ):
        flash_attention(q, q, q, backend="triton")
    assert torch.isfinite(flash_attention(q, q, q, backend="tiled")).all()
