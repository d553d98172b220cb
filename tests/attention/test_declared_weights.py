"""The attention weights that each implementation declares, times the values and ``w_o``, equal the layer's output."""

import pickle
from copy import deepcopy
from functools import partial

import pytest
import torch
from einops import rearrange
from torch.testing import assert_close

from lessons_lib.analysis.diagnostics import attention_entropy, observe
from lessons_lib.attention import masks
from lessons_lib.attention.attention import (
    attention,
    attention_weights,
    attention_weights_and_mask,
    declare_weights,
    get_weights_function,
)
from lessons_lib.attention.cache import KVCache
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.rules import Causal, Padding
from lessons_lib.attention.sdpa import fused_attention
from lessons_lib.efficient.block_sparse import block_sparse_attention, expand_layout
from lessons_lib.efficient.linear import linear_attention
from lessons_lib.efficient.linformer import LinformerAttention
from lessons_lib.efficient.performer import orthogonal_projection, performer_attention
from lessons_lib.efficient.skipping import skipping_attention
from lessons_lib.efficient.sliding_window import sliding_window_attention
from lessons_lib.flash import as_implementation, flash_attention
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

B, N, H, G, D = 2, 7, 4, 2, 12  # batch, tokens, heads, key/value heads, model

CHANGES = {"alibi_slopes": torch.tensor([0.1, 0.4, 0.0, 1.0]), "sinks": torch.tensor([0.0, -1.0, 2.0, -torch.inf])}
LAYOUT = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1]], dtype=torch.bool)
PROJECTION = orthogonal_projection(9, D // H, torch.Generator().manual_seed(1))

# Each implementation with the mask that it applies on its own, without a mask from the layer.
EVERY, CAUSAL = masks.bidirectional(N), masks.causal(N)
IMPLEMENTATIONS = {
    "attention": (attention, EVERY),
    "attention, scaled": (partial(attention, scale=0.1), EVERY),
    "attention, capped": (partial(attention, softcap=0.5), EVERY),
    "attention, slopes and sinks": (partial(attention, **CHANGES), EVERY),
    "fused": (fused_attention, EVERY),
    "fused, slopes and sinks": (partial(partial(fused_attention, scale=2.0), **CHANGES), EVERY),
    "flash": (as_implementation(), EVERY),
    "flash, causal": (as_implementation(is_causal=True), CAUSAL),
    "flash, causal window": (as_implementation(is_causal=True, window=3), masks.sliding_window(N, 3)),
    "flash, all changes": (
        partial(as_implementation(is_causal=True, backend="tiled"), softcap=0.5, scale=1.5, **CHANGES),
        CAUSAL,
    ),
    "sliding window": (partial(sliding_window_attention, window=2), masks.sliding_window(N, 2)),
    "block-sparse": (
        partial(block_sparse_attention, layout=LAYOUT, block=3, causal=True),
        expand_layout(LAYOUT, 3, N, causal=True),
    ),
    "linear": (linear_attention, EVERY),
    "linear, causal": (partial(linear_attention, causal=True), CAUSAL),
    "performer, causal": (partial(performer_attention, projection=PROJECTION.double(), causal=True), CAUSAL),
}

every_implementation = pytest.mark.parametrize(
    ("implementation", "visible"), IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS
)


def layer_with(implementation):
    return MultiHeadAttention(D, H, n_kv_heads=G, implementation=implementation)


def averaged(layer, weights, x):
    """Return the output of the layer with these attention weights."""
    v = rearrange(layer.w_v(x), "b m (g d) -> b g m d", g=G).repeat_interleave(H // G, dim=1)
    return layer.w_o(rearrange(weights @ v, "b h n d -> b n (h d)"))


@every_implementation
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "padding"])
def test_weights_times_values_equal_forward(implementation, visible, masked):
    layer, x = layer_with(implementation), torch.randn(B, N, D)
    mask = Padding(torch.tensor([N, 3])) if masked else None
    out, weights = layer(x, mask=mask), layer.weights(x, mask=mask)
    assert_close(averaged(layer, weights, x), out)
    assert not weights.masked_select(~visible).any()


@every_implementation
def test_observe_records_weights_and_visible_keys_of_implementation(implementation, visible):
    layer, x = layer_with(implementation), torch.randn(B, N, D)
    rule = Padding(torch.tensor([N, 3]))
    with observe(layer) as seen:
        out = layer(x, mask=rule)
        again = layer.weights(x, mask=rule)
    assert_close(averaged(layer, seen.weights[""], x), out)
    assert_close(again, seen.weights[""], rtol=0, atol=0)
    assert torch.equal(seen.visible[""], (visible & rule.to_mask(N)).expand(B, H, N, N))
    assert layer.implementation is implementation


def test_weights_of_skipping_attention_use_the_rule_of_the_call():
    layer, x = layer_with(partial(skipping_attention, block=2)), torch.randn(B, N, D)
    assert_close(averaged(layer, layer.weights(x, mask=Causal()), x), layer(x, mask=Causal()))


def test_weights_of_decoding_step_use_window_of_implementation():
    layer = layer_with(as_implementation(is_causal=True, window=3))
    x, cache = torch.randn(B, N, D), KVCache()
    layer(x[:, :-1], cache=cache)
    assert_close(layer.weights(x[:, -1:], cache=cache), layer.weights(x)[:, :, -1:])


def test_entropy_of_causal_implementation_equals_entropy_under_causal_mask():
    fast, plain = layer_with(as_implementation(is_causal=True)), layer_with(attention)
    fast.load_state_dict(plain.state_dict())
    x = torch.randn(B, N, D)
    with observe(fast) as seen:
        fast(x)
    expected = attention_entropy(plain.weights(x, mask=Causal()), CAUSAL)
    assert_close(attention_entropy(seen.weights[""], seen.visible[""]), expected)


def test_observe_records_window_of_gpt():
    model = GPT(GPTConfig(11, 16, D, 2, H), implementation=as_implementation(window=2))
    with observe(model) as seen:
        model(torch.randint(11, (B, N)))
    for weights, visible in zip(seen.weights.values(), seen.visible.values(), strict=True):
        assert not weights.masked_select(~masks.sliding_window(N, 2)).any()
        assert torch.equal(visible, masks.sliding_window(N, 2).expand(B, H, N, N))


# --- declarations ---------------------------------------------------------------------------------------------------


def capped(q, k, v, mask=None, *, bias=None, dropout_p=0.0, cap=1.0):
    return attention(q, k, v, mask, bias=bias, softcap=cap)


def test_implementation_without_declared_weights_raises():
    for unknown in (capped, partial(capped, cap=2.0), LinformerAttention(N, 3), flash_attention):
        layer, x = layer_with(unknown), torch.randn(B, N, D)
        with pytest.raises(ValueError, match=r"must declare its attention weights, got .* without a weights_func"):
            layer.weights(x)
        with pytest.raises(ValueError, match="must declare its attention weights"), observe(layer):
            pass
        assert layer.implementation is unknown


def test_declared_weights_are_returned():
    def capped_weights(q, k, mask=None, *, bias=None, cap=1.0):
        return attention_weights_and_mask(q, k, mask, bias=bias, softcap=cap)

    @declare_weights(capped_weights)
    def declared(*qkv, **options):
        return capped(*qkv, **options)

    for implementation in (declared, partial(declared, cap=0.3)):
        layer, x = layer_with(implementation), torch.randn(B, N, D)
        assert_close(averaged(layer, layer.weights(x, mask=CAUSAL), x), layer(x, mask=CAUSAL))


def test_partial_with_option_that_weights_function_lacks_raises():
    @declare_weights(attention_weights_and_mask)
    def without_cap(*qkv, **options):
        return capped(*qkv, **options)

    with pytest.raises(ValueError, match=r"must take the options that the partial fixes, \['cap'\] \(.*'cap'\)"):
        get_weights_function(partial(without_cap, cap=0.3))
    with pytest.raises(ValueError, match=r"missing a required .*argument: 'window'"):
        get_weights_function(partial(sliding_window_attention, scale=1.0))


def test_dropout_fixed_by_partial_does_not_change_weights():
    q, k = torch.randn(2, B, H, N, 3).unbind()
    assert_close(get_weights_function(partial(attention, dropout_p=0.5))(q, k, None).weights, attention_weights(q, k))


def test_weights_of_flash_include_the_bias():
    layer, x, bias = layer_with(as_implementation()), torch.randn(B, N, D), torch.randn(H, N, N)
    exact = layer_with(attention)
    exact.load_state_dict(layer.state_dict())
    assert_close(layer.weights(x, bias=bias), exact.weights(x, bias=bias))
    assert_close(layer(x, bias=bias), exact(x, bias=bias))


# --- pickling and copying -------------------------------------------------------------------------------------------


def test_model_with_flash_implementation_can_be_pickled_and_copied():
    model = GPT(GPTConfig(11, 16, D, 2, H), implementation=partial(as_implementation(window=3), softcap=2.0))
    tokens = torch.randint(11, (B, N))
    for other in (pickle.loads(pickle.dumps(model)), deepcopy(model)):
        assert_close(other(tokens), model(tokens), rtol=0, atol=0)
    assert as_implementation(is_causal=True, window=3) == as_implementation(is_causal=True, window=3)
