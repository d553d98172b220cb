"""The launch of the Triton kernels: memory layouts of inputs and results, number of kernels, synchronisation.

Interpreted, in a process of its own: ``TRITON_INTERPRET=1 pytest tests/flash/test_autograd.py``.
"""

import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from derivatives import Refusals
from flash_cases import Case, inputs
from thorough import all_but
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

triton = pytest.importorskip("triton", reason="triton is not installed (Linux, the extra 'gpu')")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a process of its own: TRITON_INTERPRET=1 pytest ...", allow_module_level=True)

import triton.language as tl  # noqa: E402

from lessons_lib.attention.rules import Padding  # noqa: E402
from lessons_lib.attention.softmax import merge_attention  # noqa: E402
from lessons_lib.flash import autograd, flash_attention, validation  # noqa: E402
from lessons_lib.flash.band import KernelBand  # noqa: E402
from lessons_lib.flash.configurations import FLOAT32, HOPPER, INTERPRETED, Tile  # noqa: E402
from lessons_lib.flash.triton_kernels import _load, _store  # noqa: E402


def heads(b: int = 2, h: int = 4, g: int = 2, n: int = 13, m: int = 21, d: int = 8) -> list[Tensor]:
    sizes = ((h, n), (g, m), (g, m))
    return [torch.randn(b, heads, rows, d, dtype=torch.float32, requires_grad=True) for heads, rows in sizes]


@pytest.fixture
def launched(monkeypatch) -> list[str]:
    """The names of the kernels that were launched."""
    names = []
    start = autograd._launch

    def recording(kernel, *arguments, **constants) -> None:
        names.append(kernel.__name__)
        start(kernel, *arguments, **constants)

    monkeypatch.setattr(autograd, "_launch", recording)
    return names


# --- key lengths ----------------------------------------------------------------------------------------------------

LENGTHS = torch.tensor([[11, 3], [0, 7], [4, 2]])
LAYOUTS = {
    "a column": lambda lengths: lengths[:, 0],
    "every other": lambda lengths: lengths.flatten()[::2],
    "the last row": lambda lengths: lengths.T.flip(0)[1],
    "one for all": lambda lengths: lengths[2, 0].expand(3),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(
    ("n", "dtype"),
    all_but([(n, dtype) for n in (1, 5) for dtype in (torch.int32, torch.int64)], lambda n, dtype: n == 5),
    ids=str,
)
def test_key_lengths_accept_any_memory_layout(n, dtype, layout):
    q, k, v = heads(b=3, h=1, g=1, n=n, m=11)
    lengths = layout(LENGTHS.to(dtype))
    results = []
    for given in (lengths, lengths.long().clone()):
        out, lse = autograd.triton_attention(q, k, v, KernelBand(n, 11, None, None), 0.3, given)
        results.append([out, lse, *torch.autograd.grad(out.square().sum(), [q, k, v])])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    with torch.no_grad():
        decoded, wanted = (
            autograd.triton_attention(q[:, :, :1], k, v, KernelBand(1, 11, None, None), 0.3, given)[0]
            for given in (lengths, lengths.long().clone())
        )
    assert torch.equal(decoded, wanted)
    assert (decoded != 0).any()


@pytest.mark.parametrize("n", [1, 5])
def test_padding_with_one_length_applies_to_every_sequence(n):
    q, k, v = heads(b=3, h=2, g=1, n=n, m=11)
    out = flash_attention(q, k, v, Padding(torch.tensor(4, dtype=torch.int32)), backend="triton")
    assert_close(out, flash_attention(q, k[:, :, :4], v[:, :, :4], backend="triton"))


@pytest.mark.parametrize("n", [1, 5])
def test_unchecked_key_lengths_are_clamped(n):
    q, k, v = heads(b=3, h=2, g=1, n=n, m=11)
    found, wanted = (
        autograd.triton_attention(q, k, v, KernelBand(n, 11, None, None), 0.3, torch.tensor(lengths, dtype=torch.int32))
        for lengths in ([-5, 2_000_000_000, 4], [0, 11, 4])
    )
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)
    grads = (torch.autograd.grad(out.square().sum(), [q, k, v]) for out, _ in (found, wanted))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


# --- synchronisation ------------------------------------------------------------------------------------------------


class NobodyReads(TorchFunctionMode):
    """Fail if Python reads a value of a tensor: on a GPU this would wait, and end a CUDA graph capture."""

    reading = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__len__", "nonzero")

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        assert name == "__len__" or name not in self.reading, name
        return function(*args, **kwargs or {})


class Operations(TorchDispatchMode):
    """The operations that PyTorch would launch on the device, without views and allocations."""

    free = ("empty", "view", "select", "slice", "unsqueeze", "permute", "expand", "detach", "as_strided", "alias")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__.strip("_")
        assert name not in ("local_scalar_dense", "nonzero", "is_nonzero", "equal"), name
        if not name.startswith(self.free) and not name.startswith("new_empty"):
            self.names.append(name)
        return function(*args, **kwargs or {})


@contextmanager
def on_a_device(monkeypatch) -> Iterator[list[str]]:
    """Treat tensors as a GPU's, launch no kernel, and list what would be launched."""
    operations = Operations()
    with monkeypatch.context() as patched:
        patched.setattr(validation, "_is_on_host", lambda _: False)
        patched.setattr(autograd, "_launch", lambda kernel, *_, **__: operations.names.append(kernel.__name__))
        patched.setattr(autograd, "interpreter_fault", lambda: None)
        with torch.no_grad(), NobodyReads(), operations:
            yield operations.names


@pytest.mark.parametrize(("n_parts", "merged"), [(1, []), (2, ["merge_parts"]), (33, ["merge_parts"])])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_decoding_launches_two_kernels_without_synchronisation(n_parts, merged, dtype, monkeypatch):
    q, k, v = (x.detach() for x in heads(n=1))
    lengths = torch.tensor([21, 4], dtype=dtype)
    monkeypatch.setattr(autograd, "_n_parts", lambda *_: n_parts)
    with on_a_device(monkeypatch) as started:
        flash_attention(q, k, v, is_causal=True, key_lengths=lengths, backend="triton", return_lse=True)
    assert started == ["clone", "attend_part", *merged]  # the rule copies its lengths
    with on_a_device(monkeypatch) as started:
        flash_attention(q, k, v, is_causal=True, backend="triton")
    assert started == ["attend_part", *merged]


def test_forward_with_key_lengths_does_not_synchronise(monkeypatch):
    q, k, v = (x.detach() for x in heads())
    lengths = torch.tensor([21, 4])
    with on_a_device(monkeypatch) as started:
        flash_attention(q, k, v, window=5, key_lengths=lengths, backend="triton")
    assert started == ["clone", "attend"]


def test_synchronisation_check_fails_if_lengths_are_read(monkeypatch):
    given, lengths = [x.detach() for x in heads()], torch.tensor([21, 4])
    with on_a_device(monkeypatch):
        monkeypatch.setattr(validation, "_is_on_host", lambda _: True)
        with pytest.raises(AssertionError, match=r"__bool__|local_scalar_dense"):
            flash_attention(*given, key_lengths=lengths, backend="triton")


@pytest.mark.rejects
@pytest.mark.parametrize("backend", ["tiled", "torch"])
def test_backends_that_read_lengths_raise_for_invalid_ones(backend, monkeypatch):
    monkeypatch.setattr(validation, "_is_on_host", lambda _: False)
    q, k, v = heads()
    with pytest.raises(ValueError, match=r"lengths must be in 0 .. m = 21, got \[22, 4\]"):
        flash_attention(q, k, v, key_lengths=torch.tensor([22, 4]), backend=backend)


# --- gradients that are needed --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        ("q", ["query_gradients"]),
        ("k", ["key_value_gradients"]),
        ("v", ["key_value_gradients"]),
        ("kv", ["key_value_gradients"]),
        ("qkv", ["key_value_gradients", "query_gradients"]),
    ],
)
def test_backward_skips_gradients_that_are_not_needed(wanted, passes, launched):
    everyone = dict(zip("qkv", heads(b=1, h=2, g=1), strict=True))
    whole = torch.autograd.grad(flash_attention(*everyone.values(), backend="triton").square().sum(), everyone.values())
    launched.clear()
    frozen = {name: x if name in wanted else x.detach() for name, x in everyone.items()}
    out = flash_attention(*frozen.values(), backend="triton")
    grads = torch.autograd.grad(out.square().sum(), [everyone[name] for name in wanted])
    assert launched == ["attend", "row_terms", *passes]
    for name, grad in zip(wanted, grads, strict=True):
        assert torch.equal(grad, whole["qkv".index(name)])


# --- memory ---------------------------------------------------------------------------------------------------------


def far_apart(rows: int, d: int, stride: int = 2**30) -> Tensor:
    """Return memory for rows whose distance does not fit into 32 bits; the memory between them is not touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which Python 3.11 does not define
    memory = mmap.mmap(-1, 4 * ((rows - 1) * stride + d), flags=flags)
    return torch.frombuffer(memory, dtype=torch.float32).as_strided((1, 1, rows, d), (d, d, stride, 1))


@pytest.mark.skipif(sys.platform != "linux", reason="memory that is mapped and not there is Linux's")
def test_backward_accepts_upstream_gradient_with_large_strides():
    q, k, v = heads(b=1, h=1, g=1, n=4, m=5)
    upstream = torch.randn(1, 1, 4, 8, dtype=torch.float32)
    far = far_apart(4, 8).copy_(upstream)
    assert far.stride(2) * 3 > 2**31
    found, wanted = (
        torch.autograd.grad(flash_attention(q, k, v, backend="triton"), [q, k, v], each) for each in (far, upstream)
    )
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@triton.jit
def copy(X, Y, x_strides, y_strides, n, D: tl.constexpr, BLOCK: tl.constexpr):
    b = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    _store(Y, y_strides, b, b, i, n, _load(X, x_strides, b, b, i, n, D, D), D, D)


@pytest.mark.skipif(sys.platform != "linux", reason="memory that is mapped and not there is Linux's")
def test_load_and_store_accept_large_strides():
    x, near = torch.randn(1, 1, 4, 8, dtype=torch.float32), torch.zeros(1, 1, 4, 8, dtype=torch.float32)
    far = far_apart(4, 8)
    copy[(1,)](x, far, x.stride()[:3], far.stride()[:3], 4, D=8, BLOCK=4)
    copy[(1,)](far, near, far.stride()[:3], near.stride()[:3], 4, D=8, BLOCK=4)
    assert torch.equal(near, x)


def interleaved(n: int, h: int, d: int = 8, b: int = 2) -> Tensor:
    """Return heads inside the rows, as after a projection."""
    return torch.randn(b, n, h, d, dtype=torch.float32).transpose(1, 2).requires_grad_()


@pytest.mark.parametrize("n", [1, 13])
def test_outputs_and_gradients_have_the_layout_of_their_inputs(n):
    q, k, v = interleaved(n, 4), interleaved(21, 2), heads()[2]
    out = flash_attention(q, k, v, backend="triton")
    assert out.transpose(1, 2).is_contiguous()
    assert out.transpose(1, 2).flatten(2).data_ptr() == out.data_ptr()
    grads = torch.autograd.grad(out.square().sum(), [q, k, v])
    assert grads[0].transpose(1, 2).is_contiguous()
    assert grads[1].transpose(1, 2).is_contiguous()
    assert grads[2].is_contiguous()
    with torch.no_grad():
        decoded = flash_attention(q[:, :, :1], k, v, backend="triton")
    assert decoded.transpose(1, 2).is_contiguous()
    assert_close(decoded, out[:, :, :1])
    alike = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
    wanted = flash_attention(*alike, backend="triton")
    assert torch.equal(out, wanted)
    for a, b in zip(grads, torch.autograd.grad(wanted.square().sum(), alike), strict=True):
        assert torch.equal(a, b)


def test_copied_inputs_keep_their_layout():
    q, k, v = (x[..., :7] for x in (interleaved(13, 4), interleaved(21, 2), interleaved(21, 2)))
    out = flash_attention(q, k, v, backend="triton")
    assert out.transpose(1, 2).is_contiguous()
    assert all(grad.transpose(1, 2).is_contiguous() for grad in torch.autograd.grad(out.square().sum(), [q, k, v]))


@pytest.mark.parametrize(
    ("given", "strides"),
    [
        (torch.empty(2, 3, 5, 8), (120, 40, 8, 1)),
        (torch.empty(2, 5, 3, 8).transpose(1, 2), (120, 8, 24, 1)),
        (torch.empty(5, 2, 3, 8).permute(1, 2, 0, 3), (24, 8, 48, 1)),
        (torch.empty(2, 5, 4, 3, 8)[:, :, 0].transpose(1, 2), (120, 8, 24, 1)),  # a slice of one projection
        (torch.empty(5, 8).expand(2, 3, 5, 8), (120, 40, 8, 1)),
        (torch.empty(2, 3, 8, 5).mT, (120, 40, 8, 1)),
    ],
    ids=["heads", "rows", "rows outermost", "packed", "repeated", "transposed"],
)
def test_new_like_keeps_the_order_of_axes(given, strides):
    assert autograd._new_like(given).stride() == strides
    assert autograd._new_like(given).shape == given.shape


def test_tiles_that_do_not_divide_the_padding_raise():
    q, k, v = heads()
    for name in ("key_value_gradients", "query_gradients"):
        tiles = INTERPRETED._replace(**{name: Tile(256, 32, 4, 1)})
        out, _ = autograd.triton_attention(q, k, v, KernelBand(13, 21, None, None), 0.3, None, tiles)
        with pytest.raises(AssertionError, match="block_q=256"):
            out.sum().backward()


# --- decoding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_parts", [1, 2, 3, 7, 33])
@pytest.mark.parametrize("d", [3, 24, 256])
def test_merge_parts_kernel_equals_merge_attention(n_parts, d):
    b, h = 2, 3
    found, lse = (torch.randn(b, h, n_parts, *rest, dtype=torch.float32) for rest in ((d,), ()))
    lse *= 20
    lse[0, 1] = -torch.inf  # a part without visible keys
    lse[1, :, ::2] = -torch.inf
    found[lse == -torch.inf] = 0.0
    out, out_lse = torch.empty(b, h, 1, d, dtype=torch.float16), torch.empty(b, h, 1, dtype=torch.float32)
    width, parts = max(16, autograd._power_of_two(d)), autograd._power_of_two(n_parts)
    autograd._launch(
        autograd.kernels.merge_parts, b * h, Tile(min(parts, 4), 1, 4, 1),
        *(found, lse, out, out_lse, None, autograd._strides(found), autograd._strides(out), h, n_parts),
        D=d, WIDTH=width, PARTS=parts,
    )  # fmt: skip
    wanted, wanted_lse = found[:, :, :1].double(), lse[:, :, :1].double()
    for part in range(1, n_parts):
        after = slice(part, part + 1)
        wanted, wanted_lse = merge_attention(wanted, wanted_lse, found[:, :, after].double(), lse[:, :, after].double())
    assert_close(out, wanted.half(), atol=1e-3, rtol=1e-3)
    assert_close(out_lse, wanted_lse.float(), atol=2e-6, rtol=2e-6)
    assert (out[0, 1] == 0).all()


@pytest.mark.parametrize("n_parts", [1, 3])
@pytest.mark.parametrize(("h", "g"), [(71, 1), (40, 2)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_decoding_with_any_group_size_equals_tiled(h, g, dtype, n_parts):
    case = Case(b=1, h=h, g=g, n=1, m=70, d=8, key_lengths=(67,))
    q, k, v = inputs(case, dtype, "interleaved")
    lengths = torch.tensor(case.key_lengths)
    out, lse = autograd.decode_attention(
        q, k, v, KernelBand(1, 70, None, None), 0.3, lengths, Tile(16, 32, 4, 1), n_parts
    )
    options = {"key_lengths": lengths, "scale": 0.3, "backend": "tiled", "return_lse": True}
    wanted, wanted_lse = flash_attention(q.double(), k.double(), v.double(), **options)
    assert_close(out.double(), wanted, atol=1e-3 if dtype == torch.float16 else 2e-6, rtol=2e-6)
    assert_close(lse.double(), wanted_lse, atol=2e-3 if dtype == torch.float16 else 2e-6, rtol=2e-6)


@pytest.mark.parametrize(
    ("tile", "dtype", "n_heads", "rows"),
    [
        (HOPPER[128].attend_part, torch.float16, 2, 16),
        (HOPPER[128].attend_part, torch.float16, 17, 32),
        (HOPPER[128].attend_part, torch.float16, 128, 64),
        (FLOAT32[128].attend_part, torch.float32, 128, 16),
    ],
)
def test_decode_tile_rows(tile, dtype, n_heads, rows):
    assert autograd._with_decode_rows(n_heads, tile, torch.empty(1, dtype=dtype)).block_q == rows


@pytest.mark.parametrize(
    ("b", "g", "m", "n_parts"), [(1, 8, 32768, 33), (4, 8, 32768, 8), (16, 8, 32768, 2), (1, 8, 700, 1), (99, 8, 9, 1)]
)
def test_n_parts_fills_the_device_with_long_parts(b, g, m, n_parts, monkeypatch):
    monkeypatch.setattr(autograd, "IS_INTERPRETED", False)

    class H200:
        multi_processor_count = 132

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: H200)
    q, k = torch.empty(b, 32, 1, 2), torch.empty(b, g, m, 2)
    assert autograd._n_parts(q, k) == n_parts


# --- PyTorch's transforms -------------------------------------------------------------------------------------------


class TestDerivatives(Refusals):
    """Calls for derivatives that are not available."""

    @pytest.fixture
    def step(self):
        def attend(q, k, v):  # without the trial kernel of the interpreter
            return autograd.triton_attention(q, k, v, KernelBand(q.shape[2], k.shape[2], None, 0), 0.5, None)[0]

        return attend, "flash_attention with backend='triton'"


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own use of it
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("backend", ["triton", "tiled"])
def test_forward_mode_raises(n, backend):
    q, k, v = (x.detach() for x in heads(n=n))
    for position in range(3):
        with forward_ad.dual_level():
            given = [q, k, v]
            given[position] = forward_ad.make_dual(given[position], torch.ones_like(given[position]))
            with pytest.raises(NotImplementedError, match="must not be differentiated in forward mode"):
                flash_attention(*given, backend=backend)


@pytest.mark.filterwarnings(  # raised in PyTorch's compiler
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    "ignore:.*should not be instantiated:DeprecationWarning",
)
@pytest.mark.parametrize(("backend", "graphs"), [("triton", 2), ("tiled", 1), ("auto", 1)])
def test_compiled_model_equals_eager_forward_and_backward(backend, graphs):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.back = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.project(x).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            return self.back(flash_attention(q, k, v, is_causal=True, backend=backend).transpose(1, 2).flatten(2))

    model = Model().float()
    x = torch.randn(2, 11, 8, dtype=torch.float32)
    seen = []

    def counting(graph, examples):
        seen.append(graph)
        return graph

    torch.compiler.reset()
    compiled = torch.compile(model, backend=counting)
    results = []
    for function in (model, compiled):
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        results.append([out, *torch.autograd.grad(out.square().sum(), [leaf, *model.parameters()])])
    assert len(seen) == graphs
    for a, b in zip(*results, strict=True):
        assert_close(a, b)


def test_compiled_model_decodes():
    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return 2 * flash_attention(2 * q, k, v, backend="triton")

    q, k, v = (x.detach() for x in heads(n=1))
    torch.compiler.reset()
    assert_close(torch.compile(step, backend="eager")(q, k, v), step(q, k, v))


@pytest.mark.parametrize("n", [1, 13])
def test_autocast_casts_kernel_inputs(n, launched):
    q, k, v = heads(n=n)
    with torch.autocast("cpu", dtype=torch.float16):
        out = flash_attention(q, k, v.half(), backend="triton")
    assert out.dtype == torch.float16
    grads = torch.autograd.grad(out.float().square().sum(), [q, k, v])
    assert all(grad.dtype == torch.float32 for grad in grads)
    wanted = flash_attention(q, k, v, backend="triton")
    assert_close(out.float(), wanted, atol=5e-3, rtol=5e-3)
    for a, b in zip(grads, torch.autograd.grad(wanted.square().sum(), [q, k, v]), strict=True):
        assert_close(a, b, atol=2e-2, rtol=2e-2)
