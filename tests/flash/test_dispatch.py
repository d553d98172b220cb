"""Dispatch to the backends: equal semantics, no ignored argument, no silent use of quadratic memory."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from flash_cases import Case, assert_right, errors
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close

from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention
from lessons_lib.attention.cache import KVCache
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.rules import Causal, Documents, Full, Prefix, Rule, Window
from lessons_lib.flash import as_implementation, backends, chosen_backend, flash_attention, sdpa, validation
from lessons_lib.flash import interface as flash
from lessons_lib.flash.band import KernelBand
from lessons_lib.flash.configurations import AMPERE, FLOAT32, HOPPER, OTHER_DEVICES, configuration
from lessons_lib.flash.score_mods import Scores

MASKS = [
    {},
    {"is_causal": True},
    {"window": 4},
    {"is_causal": True, "window": 4},
    {"key_lengths": (13, 0)},
    {"is_causal": True, "window": 4, "key_lengths": (13, 5)},
]
SIZES = [(13, 13), (1, 13), (7, 13), (13, 7)]


def heads(b: int = 2, h: int = 4, g: int = 2, n: int = 13, m: int = 13, d: int = 3) -> list[torch.Tensor]:
    return [torch.randn(b, heads, rows, d) for heads, rows in ((h, n), (g, m), (g, m))]


# --- semantics of the backends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_backends_agree_with_attention(n, m, mask, backend):
    lengths = tuple(min(x, m) for x in mask["key_lengths"]) if "key_lengths" in mask else None
    case = Case(b=2, h=4, g=2, n=n, m=m, d=3, **mask | {"key_lengths": lengths})

    def with_true_lse(q, k, v):  # ``torch`` returns no log-sum-exp; use the tiled one
        _, lse = flash_attention(q, k, v, **case.options(), backend="tiled", return_lse=True)
        return flash_attention(q, k, v, **case.options(), backend=backend), lse

    assert_right(errors(with_true_lse, case, torch.float64), torch.float64)


def test_options_equal_the_masks_of_the_library():
    q, k, v = heads(n=7, m=13)
    lengths = torch.tensor([13, 9])
    mask = masks.causal(7, 13) & masks.padding(lengths, 13)
    out = flash_attention(q, k, v, is_causal=True, key_lengths=lengths)
    assert_close(out, attention(q, k, v, mask))
    q, k, v = heads()
    for is_causal in (True, False):
        mask = masks.sliding_window(13, 4, causal=is_causal)
        assert_close(flash_attention(q, k, v, is_causal=is_causal, window=4), attention(q, k, v, mask))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", ["auto", "torch", "tiled"])
def test_output_has_the_dtype_of_the_inputs(dtype, backend):
    q, k, v = (x.to(dtype) for x in heads())
    assert flash_attention(q, k, v, backend=backend).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_lse_is_at_least_float32(dtype):
    q, k, v = (x.to(dtype) for x in heads())
    _, lse = flash_attention(q, k, v, return_lse=True)
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("backend", ["auto", "torch", "tiled"])
@pytest.mark.parametrize("names", [["alibi_slopes"], ["sinks"], ["alibi_slopes", "sinks"]], ids=" and ".join)
def test_slopes_and_sinks_equal_attention_on_every_backend(backend, names):
    q, k, v = heads(n=7)
    learnt = {name: torch.tensor([0.3, 1.0, 0.0, 2.0], requires_grad=True) for name in names}
    ours = flash_attention(q, k, v, is_causal=True, **learnt, backend=backend)
    exact = attention(q, k, v, Causal(), **learnt)
    assert_close(ours, exact)
    wanted = list(learnt.values())
    assert_close(*(torch.autograd.grad(out.square().sum(), wanted) for out in (ours, exact)))
    implementation = as_implementation(is_causal=True, backend=backend)
    assert_close(implementation(q, k, v, **learnt), exact)


@pytest.mark.parametrize("scale", [0.3, -0.3, 0.0])
@pytest.mark.parametrize("softcap", [0.5, 3.0])
def test_softcap_equals_attention_at_any_scale(scale, softcap):
    q, k, v = heads()
    exact = attention(q, k, v, scale=scale, softcap=softcap)
    assert_close(flash_attention(q, k, v, scale=scale, softcap=softcap), exact)
    assert_close(as_implementation()(q, k, v, scale=scale, softcap=softcap), exact)


@pytest.mark.parametrize("backend", ["auto", "torch", "tiled"])
@pytest.mark.parametrize("scale", [0.3, -0.3, 0.0])
def test_scale_equals_attention_on_every_backend(backend, scale):
    q, k, v = heads()
    assert_close(flash_attention(q, k, v, scale=scale, backend=backend), attention(q, k, v, scale=scale))


@pytest.mark.rejects
@pytest.mark.parametrize("backend", ["auto", "torch", "tiled"])
@pytest.mark.parametrize("n", [1, 13])
def test_autocast_chooses_the_dtype_as_in_pytorch(n, backend):
    q, k, v = (x.float().requires_grad_() for x in heads(n=n))
    v_half = v.detach().bfloat16()
    with pytest.raises(ValueError, match="q and v must have the same dtype"):
        flash_attention(q, k, v_half, backend=backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = flash_attention(q, k, v_half, is_causal=True, backend=backend)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v_half, masks.causal(n, 13), enable_gqa=True)
        wide = flash_attention(*(x.double() for x in (q, k, v)), backend=backend)
    assert out.dtype == theirs.dtype == torch.bfloat16
    assert wide.dtype == torch.float64
    assert_close(out.float(), theirs.float(), atol=0.03, rtol=0.03)
    assert all(grad.dtype == torch.float32 for grad in torch.autograd.grad(out.float().sum(), [q, k]))


def test_autocast_of_another_device_has_no_effect():
    q, k, v = (x.float() for x in heads())
    with torch.autocast("cpu", enabled=False):
        assert flash_attention(q, k, v, backend="tiled").dtype == torch.float32
    meta = [x.to("meta") for x in (q, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert validation.cast_for_autocast(*meta) == tuple(meta)


def test_inputs_are_not_modified():
    given = heads()
    before = [x.clone() for x in given]
    for backend in ("auto", "torch", "tiled"):
        flash_attention(*given, is_causal=True, scale=-1.0, backend=backend)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


# --- dispatch -------------------------------------------------------------------------------------------------------


@pytest.fixture
def ran(monkeypatch):
    """The names of the implementations that ran."""
    names = []

    def recording(name: str, original: Callable) -> Callable:
        return lambda *arguments: (names.append(name), original(*arguments))[1]

    for name in ("tiled_attention", "torch_attention_in_linear_memory", "torch_attention"):
        monkeypatch.setattr(flash, name, recording(name, getattr(flash, name)))
    return names


@pytest.mark.parametrize(
    ("n", "m", "options", "expected"),
    [
        (13, 13, {}, "torch_attention_in_linear_memory"),
        (13, 13, {"is_causal": True}, "torch_attention_in_linear_memory"),
        (1, 13, {"is_causal": True}, "torch_attention_in_linear_memory"),
        (7, 13, {"is_causal": True}, "tiled_attention"),
        (13, 13, {"window": 3}, "tiled_attention"),
        (13, 13, {"window": 13}, "torch_attention_in_linear_memory"),
        (13, 13, {"key_lengths": torch.tensor([13, 2])}, "tiled_attention"),
        (13, 13, {"return_lse": True}, "tiled_attention"),
        (13, 13, {"backend": "tiled"}, "tiled_attention"),
        (13, 13, {"backend": "torch", "window": 3}, "torch_attention"),
        (13, 13, {"softcap": 2.0}, "tiled_attention"),
        (13, 13, {"alibi_slopes": torch.ones(4)}, "tiled_attention"),
        (13, 13, {"sinks": torch.ones(4)}, "tiled_attention"),
        (13, 13, {"cache_lengths": torch.tensor([13, 2])}, "tiled_attention"),
    ],
)
def test_auto_chooses_the_expected_backend(n, m, options, expected, ran):
    flash_attention(*heads(n=n, m=m), **options)
    assert ran == [expected]


def test_auto_forces_a_fused_kernel(monkeypatch):
    q, k, v = (x.mT.contiguous().mT for x in heads())  # PyTorch's fused kernel refuses these strides and takes another
    used = []
    monkeypatch.setattr(sdpa, "sdpa_kernel", lambda kernels: used.append(kernels) or sdpa_kernel(kernels))
    sdpa_kernel = torch.nn.attention.sdpa_kernel
    assert_close(flash_attention(q, k, v), attention(q, k, v))
    assert used == [torch.nn.attention.SDPBackend.FLASH_ATTENTION]


@pytest.mark.another_process
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
def test_auto_memory_is_linear():
    code = """
import resource, torch
from lessons_lib.flash import flash_attention
torch.set_num_threads(1)
q = torch.randn(1, 4, 4096, 16)
flash_attention(q[:, :, :9], q[:, :, :9], q[:, :, :9])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for options in ({}, {"is_causal": True}, {"window": 5}, {"key_lengths": torch.tensor([4000])}, {"return_lse": True}):
    flash_attention(q, q, q, **options)
    flash_attention(q[:, :, :4095], q, q, is_causal=True)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    grown = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert grown < 32  # MiB; the scores would take 256, a Boolean mask 16


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="here triton can run")
@pytest.mark.skipif(torch.cuda.is_available(), reason="here triton can run")
def test_triton_without_gpu_raises_with_reason():
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match="backend='triton' cannot run here: the kernels need an NVIDIA GPU"):
        flash_attention(*(x.float() for x in heads()), backend="triton")


def test_triton_not_installed_raises(monkeypatch):
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"triton is not installed; on Linux, pip install 'lessons-lib\[gpu\]'"):
        flash_attention(*heads(), backend="triton")


@pytest.mark.parametrize(
    ("given", "message"),
    [(heads(), "got float64"), ([x.float() for x in heads(d=257)], "at most 256 wide, got 257")],
    ids=["float64", "too wide"],
)
def test_triton_unsupported_inputs_raise(given, message):
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match=message):
        flash_attention(*(x.double() if "float64" in message else x for x in given), backend="triton")


def test_torch_with_return_lse_raises():
    with pytest.raises(ValueError, match="does not return the log-sum-exp; use backend='tiled'"):
        flash_attention(*heads(), backend="torch", return_lse=True)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("options", "backend", "message"),
    [
        ({"softcap": 2.0}, "torch", "PyTorch's function does not support softcap; use backend='tiled'"),
        ({"cache_lengths": torch.tensor([3, 2])}, "torch", "one number of keys for all sequences; use backend='tiled'"),
    ],
)
def test_unsupported_options_raise(options, backend, message):
    if backend == "triton":
        pytest.importorskip("triton")
    with pytest.raises(ValueError, match=f"backend='{backend}' cannot run here: .*{message}"):
        flash_attention(*(x.float() for x in heads()), **options, backend=backend)


# --- chosen_backend -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "backend", "reason"),
    [
        ({}, "torch", "PyTorch's fused kernel for the CPU can do this"),
        ({"is_causal": True}, "torch", "can do this"),
        ({"window": 3}, "tiled", "would need a mask over n x m"),
        ({"mask": Prefix(3)}, "tiled", "would need a mask over n x m"),
        ({"return_lse": True}, "tiled", "does not return the log-sum-exp"),
        ({"softcap": 2.0, "alibi_slopes": torch.ones(4)}, "tiled", "does not support softcap and alibi_slopes"),
        ({"cache_lengths": torch.tensor([3, 2])}, "tiled", "does not support cache_lengths"),
    ],
)
def test_chosen_backend_returns_backend_and_reason(options, backend, reason, ran):
    choice = chosen_backend(*heads(), **options)
    assert choice.backend == backend
    assert reason in choice.reason
    flash_attention(*heads(), **options)
    assert ran == [{"torch": "torch_attention_in_linear_memory", "tiled": "tiled_attention"}[backend]]


@pytest.fixture
def pretend_gpu(monkeypatch):
    """Make fake queries, keys and values on a GPU of the given capability; nothing can run on them."""

    def pretend(capability: tuple[int, int], *, dtype=torch.float16, d: int = 64, g: int = 2, has_kernel: bool = True):
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {capability}")
        monkeypatch.setattr(backends, "memory_efficient_kernel_runs", lambda *qkv: has_kernel)
        with FakeTensorMode():
            return [torch.empty(2, heads, 13, d, dtype=dtype, device="cuda") for heads in (4, g, g)]

    return pretend


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="there the kernels are interpreted on the CPU")
@pytest.mark.parametrize(
    ("capability", "gpu", "options", "backend", "reason"),
    [
        ((9, 0), {}, {"is_causal": True, "window": 5}, "triton", "GPU (9, 0)"),
        ((8, 0), {}, {}, "triton", "GPU (8, 0)"),
        (
            (7, 5),
            {},
            {},
            "torch",
            "memory-efficient kernel can do this; not triton: the kernels need compute capability",
        ),
        ((7, 5), {}, {"is_causal": True}, "torch", "GPU (7, 5) has (7, 5)"),
        ((7, 5), {}, {"is_causal": True, "window": 5}, "tiled", "would need a mask over n x m; not triton"),
        ((7, 5), {}, {"return_lse": True}, "tiled", "does not return the log-sum-exp; not triton"),
        ((7, 5), {}, {"key_lengths": torch.tensor([3, 2])}, "tiled", "would need a mask"),
        ((7, 5), {"dtype": torch.bfloat16, "has_kernel": False}, {}, "tiled", "does not take torch.bfloat16"),
        (
            (9, 0),
            {"dtype": torch.float64, "has_kernel": False},
            {},
            "tiled",
            "not triton: the kernels add up in float32",
        ),
        ((9, 0), {"d": 320}, {}, "torch", "not triton: the kernels take heads at most 256 wide"),
        ((9, 0), {}, {"softcap": 2.0}, "triton", "the kernels can do this"),
        ((9, 0), {}, {"dropout_p": 0.1}, "tiled", "not triton: the kernels do not support dropout"),
        ((9, 0), {}, {"cache_starts": torch.tensor([3, 2])}, "tiled", "the kernels do not support cache_starts"),
        ((9, 0), {}, {"mask": Prefix(3) | Window(2)}, "triton", "the kernels can do this"),
    ],
)
def test_chosen_backend_on_a_gpu(capability, gpu, options, backend, reason, pretend_gpu):
    pytest.importorskip("triton")
    choice = chosen_backend(*pretend_gpu(capability, **gpu), **options)
    assert choice.backend == backend
    assert reason in choice.reason


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="there the kernels are interpreted on the CPU")
def test_auto_takes_no_kernel_inside_a_transform(pretend_gpu, monkeypatch):
    pytest.importorskip("triton")
    q, k, v = pretend_gpu((9, 0))
    monkeypatch.setattr(backends, "is_inside_transform", lambda: True)
    choice = chosen_backend(q, k, v, window=3)
    assert choice.backend == "tiled"
    assert "not triton: the kernels cannot be called inside a transform of torch.func" in choice.reason


def test_old_gpu_uses_the_memory_efficient_kernel(pretend_gpu, monkeypatch):
    """On a T4: PyTorch's function with one kernel allowed, repeated keys and no mask."""
    allowed, started = [], []
    monkeypatch.setattr(
        sdpa, "sdpa_kernel", lambda kernel: allowed.append(kernel) or torch.nn.attention.sdpa_kernel(kernel)
    )
    monkeypatch.setattr(
        sdpa, "torch_attention", lambda q, k, v, rule, scores: started.append([q.shape, k.shape, rule]) or q
    )
    q, k, v = pretend_gpu((7, 5))
    with FakeTensorMode(allow_non_fake_inputs=True):
        sdpa.torch_attention_in_linear_memory(q, k, v, Causal(), Scores(0.1))
    assert allowed == [torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION]
    assert started == [[(2, 4, 13, 64), (2, 4, 13, 64), Causal()]]


def test_memory_efficient_kernel_runs_asks_pytorch(monkeypatch):
    asked = []
    monkeypatch.setattr(sdpa, "can_use_efficient_attention", lambda given: asked.append(given) or True)
    q, k, v = heads()
    assert sdpa.memory_efficient_kernel_runs(q, k.mT.contiguous().mT, v)
    (given,) = asked
    assert given.key.shape == (2, 4, 13, 3)
    assert given.key.stride(-1) == 1
    assert (given.attn_mask, given.dropout, given.enable_gqa) == (None, 0.0, False)


@pytest.mark.another_process
def test_importing_flash_does_not_import_triton():
    code = "import sys, lessons_lib.flash; print('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("d", "itemsize", "capability", "tiles"),
    [
        (64, 2, (9, 0), HOPPER[64]),
        (65, 2, (9, 0), HOPPER[128]),
        (1, 2, (8, 0), AMPERE[64]),
        (256, 2, (8, 9), OTHER_DEVICES[256]),
        (128, 2, (13, 1), OTHER_DEVICES[128]),
        (128, 4, (9, 0), FLOAT32[128]),
    ],
)
def test_configuration_returns_the_tiles(d, itemsize, capability, tiles):
    assert configuration(d, itemsize, capability) == tiles


def test_configuration_wide_heads_raise():
    with pytest.raises(ValueError, match="at most 256 wide"):
        configuration(257, 2, (9, 0))


# --- errors ---------------------------------------------------------------------------------------------------------


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"q": zeros(2, 4, 13)},
            r"q must be \(batch, heads, sequence, width\), each at least 1, got \(2, 4, 13\)",
        ),
        ({"k": zeros(2, 2, 0, 3), "v": zeros(2, 2, 0, 3)}, r"k must be .* got \(2, 2, 0, 3\)"),
        ({"k": zeros(2, 2, 12, 3)}, "k and v must have one shape but for the width"),
        ({"q": zeros(3, 4, 13, 3)}, "and q their batch and k's width"),
        ({"q": zeros(2, 4, 13, 5)}, "and q their batch and k's width"),
        ({"q": zeros(2, 3, 13, 3)}, "the heads of k must divide those of q, got 2 and 3"),
        ({"q": zeros(2, 4, 13, 3).float()}, "q and k must have the same dtype"),
        ({"q": torch.ones(2, 4, 13, 3, dtype=torch.int64)}, "q must hold floating-point numbers"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"window": 2.0}, "window must be an integer"),
        ({"scale": float("inf")}, "scale must be finite, got inf"),
        ({"backend": "cuda"}, "backend must be one of auto, triton, tiled, torch, got 'cuda'"),
        ({"key_lengths": torch.tensor([13.0, 2.0])}, "key_lengths must be integers over .* got torch.float"),
        ({"key_lengths": torch.tensor([13])}, r"key_lengths must be integers over \(batch,\) = \(2,\)"),
        ({"key_lengths": torch.tensor([14, 2])}, r"key_lengths must be in 0 .. m = 13, got \[14, 2\]"),
        ({"key_lengths": torch.tensor([-1, 2])}, r"key_lengths must be in 0 .. m = 13, got \[-1, 2\]"),
        ({"softcap": -1.0}, "softcap must be finite and above 0, got -1.0"),
        ({"alibi_slopes": torch.ones(2)}, r"alibi_slopes must be one .* over \(h,\) = \(4,\), got .* over \(2,\)"),
        ({"sinks": torch.ones(4, 1)}, r"sinks must be one .* over \(h,\) = \(4,\), got .* over \(4, 1\)"),
        ({"cache_lengths": torch.tensor([13.0, 2.0])}, "cache_lengths must be integers over .* got torch.float"),
        ({"cache_lengths": torch.tensor([13])}, r"cache_lengths must be integers over \(batch,\) = \(2,\)"),
        ({"cache_lengths": torch.tensor([14, 2])}, r"cache_lengths must be in 0 .. m = 13, got \[14, 2\]"),
        (
            {"cache_lengths": torch.tensor([3, 2]), "key_lengths": torch.tensor([3, 2])},
            "key_lengths and cache_lengths must not both be given",
        ),
        (
            {"cache_lengths": torch.tensor([3, 2]), "mask": masks.causal(13)},
            "with cache_lengths the mask must be a rule about positions, .* got Table",
        ),
    ],
)
def test_invalid_arguments_raise(change, message):
    arguments = dict(zip("qkv", heads(), strict=True)) | change
    with pytest.raises(ValueError, match=message):
        flash_attention(**arguments)


@pytest.mark.rejects
def test_eight_bit_dtypes_raise():
    with pytest.raises(ValueError, match="q must be of 16, 32 or 64 bits, got torch"):
        flash_attention(*(x.to(torch.float8_e4m3fn) for x in heads()))


# --- inside a layer -------------------------------------------------------------------------------------------------


def test_multi_head_attention_with_flash_equals_attention():
    slow = MultiHeadAttention(12, 4, n_kv_heads=2)
    fast = MultiHeadAttention(12, 4, n_kv_heads=2, implementation=as_implementation(is_causal=True))
    fast.load_state_dict(slow.state_dict())
    x, upstream = torch.randn(3, 11, 12), torch.randn(3, 11, 12)
    results = []
    for layer, mask in ((slow, masks.causal(11)), (fast, None), (fast, masks.causal(11))):
        leaf = x.clone().requires_grad_()
        out = layer(leaf, mask=mask)
        results.append([out, *torch.autograd.grad(out, [leaf, *layer.parameters()], upstream)])
    for others in results[1:]:
        for a, b in zip(results[0], others, strict=True):
            assert_close(a, b)


def test_multi_head_attention_with_flash_decodes_with_a_cache():
    layer = MultiHeadAttention(12, 4, n_kv_heads=2, implementation=as_implementation(is_causal=True))
    x, cache = torch.randn(2, 9, 12), KVCache()
    parts = [layer(part, cache=cache) for part in x.split([4, 1, 3, 1], dim=1)]
    assert_close(torch.cat(parts, dim=1), layer(x))


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": 4}, {"is_causal": True, "window": 4}], ids=str)
@pytest.mark.parametrize("lengths", [None, (7, 7), (6, 0), (1, 7)], ids=str)
def test_implementation_applies_boolean_masks(n, m, options, lengths):
    q, k, v = heads(n=n, m=m)
    case = Case(b=2, n=n, m=m, key_lengths=lengths, **options)
    implementation = as_implementation(**options)
    assert_close(implementation(q, k, v, case.mask()), attention(q, k, v, case.mask()))


def test_implementation_accepts_masks_that_broadcast():
    q, k, v = heads()
    lengths = torch.tensor([13, 5])
    for mask in (masks.padding(lengths, 13), masks.padding(lengths, 13).expand(2, 1, 13, 13)):
        assert_close(as_implementation()(q, k, v, mask), attention(q, k, v, mask))
    for mask in (masks.causal(13), masks.causal(13)[None, None], masks.causal(13).expand(2, 1, 13, 13)):
        assert_close(as_implementation(is_causal=True)(q, k, v, mask), attention(q, k, v, mask))


@pytest.mark.parametrize(
    ("options", "mask"),
    [
        ({}, masks.causal(13)),
        ({"is_causal": True}, masks.bidirectional(13)),
        ({"is_causal": True}, masks.prefix(13, 3)),
        ({"is_causal": True, "window": 5}, masks.sliding_window(13, 4)),
        ({}, masks.padding(torch.tensor([13, 4]), 13).flip(-1)),
        ({}, masks.global_tokens(13, [0])),
        ({}, torch.rand(1, 4, 13, 13, generator=torch.Generator().manual_seed(1)) < 0.5),
        ({"is_causal": True}, Documents(torch.arange(13) // 5)),
        ({}, Causal() & Window(4)),
    ],
)
def test_implementation_combines_mask_and_options(options, mask):
    q, k, v = heads()
    table = mask.to_mask(13) if isinstance(mask, Rule) else mask
    order = masks.causal(13) if options.get("is_causal") else masks.bidirectional(13)
    near = masks.sliding_window(13, options.get("window", 13), causal=False)
    assert_close(as_implementation(**options)(q, k, v, mask), attention(q, k, v, table & order & near))


def test_rules_select_the_fastest_backend(ran):
    for rule in (Full(), Causal(), Window(13), Causal() & Window(20), Causal() & Window(3), Prefix(5)):
        flash_attention(*heads(), rule)
    assert ran == [*["torch_attention_in_linear_memory"] * 4, *["tiled_attention"] * 2]


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"bias": zeros(12, 13)}, r"bias must broadcast to the scores, \(2, 4, 13, 13\)"),
        ({"dropout_p": 1.0}, r"dropout_p must be in \[0, 1\), got 1.0"),
        ({"mask": torch.zeros(13, 13)}, "mask must be Boolean"),
        ({"mask": masks.bidirectional(12)}, "mask must broadcast to the scores"),
    ],
)
def test_implementation_invalid_arguments_raise(more, message):
    with pytest.raises(ValueError, match=message):
        as_implementation()(*heads(), **more)


def test_as_implementation_invalid_settings_raise():
    with pytest.raises(ValueError, match="window must be at least 1"):
        as_implementation(window=0)
    with pytest.raises(ValueError, match="backend must be one of"):
        as_implementation(backend="best")


def test_implementation_works_in_any_module():
    class Mixer(nn.Module):
        def forward(self, x):
            return as_implementation(is_causal=True)(x, x, x)

    x = torch.randn(1, 2, 5, 3)
    assert_close(Mixer()(x), attention(x, x, x, masks.causal(5)))


# --- PyTorch's function ---------------------------------------------------------------------------------------------


def test_torch_backend_aligns_queries_to_the_last_key():
    q, k, v = heads(n=4, m=9)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    ours = flash_attention(q, k, v, is_causal=True, backend="torch")
    assert (ours - theirs).abs().max() > 0.1


@pytest.mark.parametrize(
    ("n", "m", "options", "needed"),
    [
        (5, 5, {"is_causal": True, "window": None}, False),
        (4, 5, {"is_causal": True, "window": None}, True),
        (1, 5, {"is_causal": True, "window": None}, False),
        (5, 5, {"is_causal": False, "window": 2}, True),
        (5, 4, {"is_causal": False, "window": None}, False),
    ],
)
def test_needs_mask_for_bands_that_pytorch_cannot_express(n, m, options, needed):
    assert sdpa.needs_mask(KernelBand.of(n, m, **options), None) == needed
    assert sdpa.needs_mask(KernelBand.of(n, m, **options), torch.tensor([m]))
