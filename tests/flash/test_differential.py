"""Four implementations on the same random problems: attention, tiled, the interpreted kernels, and PyTorch's.

Needs a process of its own, as ``test_triton_interpreted``. The tiles are of unequal sizes drawn with the problem, and
sizes are small, so that every kind of edge meets every kind of mask.
"""

import os

import pytest
import torch
from flash_cases import Case, assert_right, inputs, reference, relative_errors, run
from hypothesis import event, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed (Linux, the extra 'gpu')")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a process of its own: TRITON_INTERPRET=1 pytest ...", allow_module_level=True)

from lessons_lib.flash import autograd, flash_attention
from lessons_lib.flash.band import KernelBand
from lessons_lib.flash.configurations import Configuration, Tile

BLOCKS = st.sampled_from([16, 32, 64])


@st.composite
def cases(draw) -> Case:
    """Draw a problem of up to 60 queries and keys."""
    b, g, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    n, m = draw(st.integers(1, 60)), draw(st.integers(1, 60))
    return Case(
        b=b,
        h=g * group,
        g=g,
        n=n,
        m=m,
        d=draw(st.integers(1, 36)),
        is_causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, 70)),
        key_lengths=draw(st.none() | st.tuples(*[st.integers(0, m)] * b)),
    )


@st.composite
def tiles(draw) -> Configuration:
    """Draw tiles that are small enough for the interpreter."""
    return Configuration(
        *(Tile(draw(BLOCKS), draw(BLOCKS), 4, 1, host=draw(st.booleans())) for _ in Configuration._fields)
    )


@settings(max_examples=45)
@given(
    case=cases(),
    tiles=tiles(),
    layout=st.sampled_from(["padded", "interleaved", "odd", "transposed"]),
    sharpness=st.floats(0.1, 2.0),
    seed=st.integers(0, 2**31),
)
def test_all_implementations_agree(case, tiles, layout, sharpness, seed):
    torch.manual_seed(seed)
    scale = sharpness * case.d**-0.5
    band = KernelBand.of(case.n, case.m, is_causal=case.is_causal, window=case.window)
    lengths = case.options()["key_lengths"]
    event(f"causal {case.is_causal}, window {case.window is not None}, lengths {lengths is not None}")
    qkv = inputs(case, torch.float32, layout)
    upstream = [torch.randn(case.b, case.h, case.n, case.d), torch.randn(case.b, case.h, case.n)]
    wanted = run(reference(case, scale), [x.double() for x in qkv], upstream)

    triton = run(lambda q, k, v: autograd.triton_attention(q, k, v, band, scale, lengths, tiles), qkv, upstream)
    assert_right(relative_errors(triton, wanted), torch.float32)

    by_tiles = {**case.options(), "backend": "tiled", "return_lse": True}
    ours = run(lambda q, k, v: flash_attention(q, k, v, **by_tiles, scale=scale), qkv, upstream)
    assert_right(relative_errors(ours, wanted), torch.float32)

    def torch_with_lse(q, k, v):  # PyTorch returns no log-sum-exp; use the specification's
        return flash_attention(q, k, v, **case.options(), scale=scale, backend="torch"), reference(case, scale)(
            q, k, v
        )[1]

    clean = [x.contiguous() for x in qkv]  # its kernels for the CPU may read hidden memory
    assert_right(relative_errors(run(torch_with_lse, clean, upstream), wanted), torch.float32)


@settings(max_examples=30)
@given(
    case=cases(),
    n_parts=st.sampled_from([1, 2, 4, 8]),
    block_k=BLOCKS,
    seed=st.integers(0, 2**31),
)
def test_decoding_in_parts_equals_tiled(case, n_parts, block_k, seed):
    torch.manual_seed(seed)
    case = case._replace(n=1)
    band = KernelBand.of(1, case.m, is_causal=case.is_causal, window=case.window)
    lengths = case.options()["key_lengths"]
    qkv = inputs(case, torch.float32)
    out, lse = autograd.decode_attention(
        *qkv, band, 0.3, None if lengths is None else lengths.int(), Tile(16, block_k, 4, 1), n_parts
    )
    by_tiles = {**case.options(), "backend": "tiled", "return_lse": True}
    wanted = flash_attention(*(x.double() for x in qkv), **by_tiles, scale=0.3)
    torch.testing.assert_close((out.double(), lse.double()), wanted, atol=3e-6, rtol=3e-6)
