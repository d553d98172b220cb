"""Decoding with a KV cache equals one forward pass; copies, crops and selections of a cache can be continued."""

from copy import copy

import pytest
import torch
from test_multihead import gradients
from torch import nn
from torch.testing import assert_close

from lessons_lib.attention import masks
from lessons_lib.attention.cache import KVCache, StreamingCache
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.positions import RotaryEmbedding
from lessons_lib.attention.rules import Causal

B, N, H, D = 2, 5, 3, 12  # batch, positions, heads, model


def rows(n):
    return torch.randn(B, H, n, 4), torch.randn(B, H, n, 4)


def joined(parts):
    return tuple(torch.cat(tensors, dim=-2) for tensors in zip(*parts, strict=True))


# --- KVCache --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("process_qk", [None, RotaryEmbedding(4).process_qk], ids=["plain", "rotary"])
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 2, 1], [7]], ids=str)
def test_decoding_with_cache_equals_one_forward_pass(process_qk, steps):
    layer = MultiHeadAttention(D, H, n_kv_heads=1, bias=True, process_qk=process_qk)
    x = torch.randn(B, 7, D)
    cache, outs, weights = KVCache(), [], []
    for part in x.split(steps, dim=1):
        n, m = part.shape[1], len(cache) + part.shape[1]
        weights.append(layer.weights(part, mask=masks.causal(n, m), cache=cache))
        outs.append(layer(part, mask=masks.causal(n, m), cache=cache))
    assert_close(torch.cat(outs, dim=1), layer(x, mask=masks.causal(7)))
    whole = layer.weights(x, mask=masks.causal(7))
    assert_close(torch.cat([nn.functional.pad(w, (0, 7 - w.shape[-1])) for w in weights], dim=2), whole)


def test_cache_stores_each_key_value_head_once():
    layer, cache = MultiHeadAttention(D, 6, n_kv_heads=2, d_head=4).float(), KVCache()
    assert (len(cache), cache.n_bytes) == (0, 0)
    for n in (N, 1):
        layer(torch.randn(B, n, D, dtype=torch.float32), cache=cache)
    assert len(cache) == N + 1
    assert cache.n_bytes == 2 * B * 2 * (N + 1) * 4 * 4  # k and v, batch, heads, positions, width, bytes


# A step runs with gradients, without gradients, or in inference mode, outside of which its tensors are read-only.
MODES = {"grad": torch.enable_grad, "no grad": torch.no_grad, "inference": torch.inference_mode}


@pytest.mark.parametrize("modes", [["grad"], ["no grad"], ["inference"], ["no grad", "inference", "grad"]], ids=str)
def test_append_returns_all_positions_in_any_gradient_mode(modes):
    cache, parts = KVCache(), []
    for step, n in enumerate([2, 1, 1, 0, 1, 7, 1, 1, 1, 3]):
        with MODES[modes[step % len(modes)]]():
            parts.append(rows(n))
            kept = cache.append(*parts[-1])
            assert_close(kept, joined(parts), rtol=0, atol=0)
            assert len(cache) == sum(part[0].shape[-2] for part in parts)
            assert cache.n_bytes == 2 * len(cache) * B * H * 4 * 8


@torch.no_grad()
def test_append_reallocates_only_when_buffer_is_full():
    cache, addresses = KVCache(), []
    for _ in range(100):
        kept, _ = cache.append(*rows(1))
        addresses.append(kept.data_ptr())
    assert len(set(addresses)) == 8  # 1, 2, 4, ... 128


@torch.no_grad()
@pytest.mark.parametrize("free_rows", [0, 3], ids=["full buffer", "free rows"])
@pytest.mark.parametrize("copy_is_first", [True, False])
def test_copy_is_independent_of_original(free_rows, copy_is_first):
    cache, first = KVCache(), [rows(N), rows(3)] if free_rows else [rows(N)]
    for part in first:
        cache.append(*part)
    branch, ours, theirs = copy(cache), rows(2), rows(1)
    steps = [(cache, ours), (branch, theirs)]
    for kept, part in reversed(steps) if copy_is_first else steps:
        kept.append(*part)
    nothing = torch.empty(B, H, 0, 4)
    assert_close(cache.append(nothing, nothing), joined([*first, ours]), rtol=0, atol=0)
    assert_close(branch.append(nothing, nothing), joined([*first, theirs]), rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("n", [0, 2, N, N + 3])
def test_crop_removes_later_positions(n):
    cache, seen = KVCache(), [rows(N), rows(3)]
    for part in seen:
        cache.append(*part)
    branch, new = copy(cache), rows(2)
    branch.crop(n)
    assert len(branch) == n
    first = tuple(tensor[..., :n, :] for tensor in joined(seen))
    assert_close(branch.append(*new), joined([first, new]), rtol=0, atol=0)
    assert_close(cache.tensors, joined(seen), rtol=0, atol=0)  # the crop of the copy does not change the original


@torch.no_grad()
def test_select_keeps_selected_rows():
    cache, seen, selected = KVCache(), rows(N), torch.tensor([1, 0, 1, 1])
    cache.append(*seen)
    cache.select(selected)
    new = torch.randn(4, H, 1, 4), torch.randn(4, H, 1, 4)
    assert_close(cache.append(*new), joined([tuple(x[selected] for x in seen), new]), rtol=0, atol=0)


def test_copies_with_shared_buffer_are_caught(monkeypatch):
    monkeypatch.delattr(KVCache, "__copy__")
    with pytest.raises(AssertionError):
        test_copy_is_independent_of_original(3, False)


def test_gradients_flow_through_cache():
    layer = MultiHeadAttention(D, H)
    x = torch.randn(B, N, D, requires_grad=True)
    cache = KVCache()
    stepwise = torch.cat([layer(row, cache=cache) for row in x.split(1, dim=1)], dim=1)
    inputs = {"x": x, **dict(layer.named_parameters())}
    assert_close(gradients(stepwise, inputs), gradients(layer(x, mask=masks.causal(N)), inputs))


def test_steps_without_gradients_do_not_overwrite_keys_of_a_graph():
    """Keys that a graph needs are not overwritten, whether of a frozen projection or of a prefix without gradients."""
    layer, x = MultiHeadAttention(D, H), torch.randn(B, N, D)
    layer.w_k.requires_grad_(False)
    cache, alone = KVCache(), KVCache()
    with torch.no_grad():
        for kept in (cache, alone):
            for row in x[:, :3].split(1, dim=1):
                layer(row, cache=kept)
    out, expected = layer(x[:, 3:4], cache=cache), layer(x[:, 3:4], cache=alone)
    with torch.no_grad():
        layer(x[:, 4:], cache=cache)
        layer(x[:, 4:], cache=cache)
    inputs = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    assert_close(gradients(out, inputs), gradients(expected, inputs), rtol=0, atol=0)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("k", "v", "message"),
    [
        (torch.zeros(B, N, 4), torch.zeros(B, N, 4), r"must both be \(b, g, n, d_head\)"),
        (torch.zeros(B, H, N, 4), torch.zeros(B, H, N - 1, 4), r"must both be"),
        (torch.zeros(1, H, N, 4), torch.zeros(1, H, N, 4), r"must continue what the cache keeps.*a new cache"),
        (torch.zeros(B, 1, N, 4), torch.zeros(B, 1, N, 4), r"must continue what the cache keeps"),
        (torch.zeros(B, H, N, 4).half(), torch.zeros(B, H, N, 4).half(), r"got \(2, 3, 5, 4\) of torch.float16"),
    ],
)
def test_append_with_other_shape_or_dtype_raises(k, v, message):
    cache = KVCache()
    cache.append(torch.zeros(B, H, N, 4, dtype=torch.float32), torch.zeros(B, H, N, 4, dtype=torch.float32))
    with pytest.raises(ValueError, match=message):
        cache.append(k, v)
    assert len(cache) == N


@pytest.mark.rejects
def test_invalid_crop_and_select_raise():
    cache = KVCache()
    with pytest.raises(ValueError, match="rows can be selected only from a cache that holds positions, got an empty"):
        cache.select(torch.tensor([0]))
    cache.append(*rows(2))
    for n in (-1, 3):
        with pytest.raises(ValueError, match=r"n must be at (least 0|most 2)"):
            cache.crop(n)
    for selected in (torch.tensor([B]), torch.tensor([-1])):
        with pytest.raises(ValueError, match=rf"rows must be from 0 to {B - 1}"):
            cache.select(selected)
    for selected in (torch.tensor([True] * B), torch.tensor(0), torch.tensor([], dtype=torch.long), torch.ones(1)):
        with pytest.raises(ValueError, match="rows must be a vector of at least one integer index into the batch"):
            cache.select(selected)
    assert len(cache) == 2


# --- StreamingCache -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_first", "window"), [(0, 3), (2, 3), (1, 1), (0, 1)])
def test_streaming_cache_equals_forward_pass_over_first_and_recent_positions(n_first, window):
    """The output equals that of a forward pass over the visible positions alone, counted from 0."""
    torch.manual_seed(3)
    rotary = RotaryEmbedding(D // H)
    layer = MultiHeadAttention(D, H, process_qk=rotary.process_qk).requires_grad_(False)
    x, cache = torch.randn(B, 11, D), StreamingCache(n_first, window, turn=rotary)
    for t in range(11):
        assert len(cache) == min(t, n_first + window - 1)
        out = layer(x[:, t : t + 1], cache=cache)
        recent = max(n_first, t - window + 1)
        seen = torch.cat([x[:, : min(n_first, t + 1)], x[:, recent : t + 1]], dim=1)
        assert_close(out, layer(seen, mask=Causal())[:, -1:], rtol=1e-4, atol=1e-5)


def test_streaming_cache_without_turn_leaves_keys_unchanged():
    k, v = torch.randn(2, B, H, 6, D)
    cache = StreamingCache(1, 2)
    for t in range(6):
        seen, values = cache.append(k[:, :, t : t + 1], v[:, :, t : t + 1])
    torch.testing.assert_close(seen, k[:, :, [0, 4, 5]])
    torch.testing.assert_close(values, v[:, :, [0, 4, 5]])
    other = copy(cache)
    other.append(k[:, :, :1], v[:, :, :1])
    torch.testing.assert_close(cache.tensors[0], k[:, :, [0, 5]])


def test_streaming_cache_accepts_several_positions_only_if_they_fit():
    k = torch.randn(B, H, 4, D)
    cache = StreamingCache(1, 3)
    assert cache.append(k, k)[0].shape[-2] == 4
    with pytest.raises(ValueError, match="k and v must come one position at a time once 4 are full, got 2"):
        cache.append(k[:, :, :2], k[:, :, :2])
    with pytest.raises(ValueError, match="window must be"):
        StreamingCache(1, 0)
    with pytest.raises(ValueError, match="n_first must be"):
        StreamingCache(-1, 2)
