"""Every implementation declares its attention weights: these times the values, through ``w_o``, is ``forward``."""

import pickle
from copy import deepcopy
from functools import partial

import pytest
import torch
from einops import rearrange
from torch.testing import assert_close

from lessons_lib import masks
from lessons_lib.attention import attention, attention_pattern, attention_weights, declares_pattern, pattern_of
from lessons_lib.diagnostics import attention_entropy, observe
from lessons_lib.efficient.block_sparse import block_sparse_attention, expand_layout
from lessons_lib.efficient.linear import linear_attention
from lessons_lib.efficient.linformer import LinformerAttention
from lessons_lib.efficient.performer import orthogonal_projection, performer_attention
from lessons_lib.efficient.skipping import skipping_attention
from lessons_lib.efficient.sliding_window import sliding_window_attention
from lessons_lib.flash import as_implementation, flash_attention
from lessons_lib.fused import fused_attention
from lessons_lib.gpt import GPT, GPTConfig
from lessons_lib.multihead import KVCache, MultiHeadAttention
from lessons_lib.rules import Causal, Padding

B, N, H, G, D = 2, 7, 4, 2, 12  # batch, tokens, heads, key/value heads, model

CHANGES = {"slopes": torch.tensor([0.1, 0.4, 0.0, 1.0]), "sinks": torch.tensor([0.0, -1.0, 2.0, -torch.inf])}
LAYOUT = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1]], dtype=torch.bool)
PROJECTION = orthogonal_projection(9, D // H, torch.Generator().manual_seed(1))

# Each with the keys that the implementation leaves visible when the layer gets no mask.
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
    """Return what the layer's output would be with these weights."""
    v = rearrange(layer.w_v(x), "b m (g d) -> b g m d", g=G).repeat_interleave(H // G, dim=1)
    return layer.w_o(rearrange(weights @ v, "b h n d -> b n (h d)"))


@every_implementation
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "padding"])
def test_weights_times_values_is_forward(implementation, visible, masked):
    layer, x = layer_with(implementation), torch.randn(B, N, D)
    mask = Padding(torch.tensor([N, 3])) if masked else None
    out, weights = layer(x, mask=mask), layer.weights(x, mask=mask)
    assert_close(averaged(layer, weights, x), out)
    assert not weights.masked_select(~visible).any()


@every_implementation
def test_observe_shows_the_weights_and_the_visible_keys_of_the_implementation(implementation, visible):
    layer, x = layer_with(implementation), torch.randn(B, N, D)
    rule = Padding(torch.tensor([N, 3]))
    with observe(layer) as seen:
        out = layer(x, mask=rule)
        again = layer.weights(x, mask=rule)
    assert_close(averaged(layer, seen.weights[""], x), out)
    assert_close(again, seen.weights[""], rtol=0, atol=0)
    assert torch.equal(seen.visible[""], (visible & rule.tensor(N)).expand(B, H, N, N))
    assert layer.implementation is implementation


def test_skipping_attention_shows_its_weights_under_the_rule_it_was_called_with():
    layer, x = layer_with(partial(skipping_attention, block=2)), torch.randn(B, N, D)
    assert_close(averaged(layer, layer.weights(x, mask=Causal()), x), layer(x, mask=Causal()))


def test_weights_of_a_decoding_step_keep_the_window_of_the_implementation():
    layer = layer_with(as_implementation(is_causal=True, window=3))
    x, cache = torch.randn(B, N, D), KVCache()
    layer(x[:, :-1], cache=cache)
    assert_close(layer.weights(x[:, -1:], cache=cache), layer.weights(x)[:, :, -1:])


def test_entropy_of_a_causal_implementation_is_that_of_a_causal_mask():
    fast, plain = layer_with(as_implementation(is_causal=True)), layer_with(attention)
    fast.load_state_dict(plain.state_dict())
    x = torch.randn(B, N, D)
    with observe(fast) as seen:
        fast(x)
    expected = attention_entropy(plain.weights(x, mask=Causal()), CAUSAL)
    assert_close(attention_entropy(seen.weights[""], seen.visible[""]), expected)


def test_observe_shows_the_window_of_a_gpt():
    model = GPT(GPTConfig(11, 16, D, 2, H), implementation=as_implementation(window=2))
    with observe(model) as seen:
        model(torch.randint(11, (B, N)))
    for weights, visible in zip(seen.weights.values(), seen.visible.values(), strict=True):
        assert not weights.masked_select(~masks.sliding_window(N, 2)).any()
        assert torch.equal(visible, masks.sliding_window(N, 2).expand(B, H, N, N))


# --- what is not known is refused -----------------------------------------------------------------------------------


def capped(q, k, v, mask=None, *, bias=None, dropout_p=0.0, cap=1.0):
    return attention(q, k, v, mask, bias=bias, softcap=cap)


def test_an_implementation_that_declares_no_weights_is_refused():
    for unknown in (capped, partial(capped, cap=2.0), LinformerAttention(N, 3), flash_attention):
        layer, x = layer_with(unknown), torch.randn(B, N, D)
        with pytest.raises(ValueError, match=r"must declare the weights .*, got .* without; set its attr"):
            layer.weights(x)
        with pytest.raises(ValueError, match="must declare the weights"), observe(layer):
            pass
        assert layer.implementation is unknown


def test_an_implementation_that_declares_its_weights_is_shown():
    def pattern(q, k, mask=None, *, bias=None, cap=1.0):
        return attention_pattern(q, k, mask, bias=bias, softcap=cap)

    @declares_pattern(pattern)
    def declared(*qkv, **options):
        return capped(*qkv, **options)

    for implementation in (declared, partial(declared, cap=0.3)):
        layer, x = layer_with(implementation), torch.randn(B, N, D)
        assert_close(averaged(layer, layer.weights(x, mask=CAUSAL), x), layer(x, mask=CAUSAL))


def test_a_partial_that_fixes_an_option_which_the_pattern_lacks_is_refused():
    @declares_pattern(attention_pattern)
    def claims_too_much(*qkv, **options):
        return capped(*qkv, **options)

    with pytest.raises(ValueError, match=r"must take the options that the partial fixes, \['cap'\] \(.*'cap'\)"):
        pattern_of(partial(claims_too_much, cap=0.3))
    with pytest.raises(ValueError, match=r"missing a required .*argument: 'window'"):
        pattern_of(partial(sliding_window_attention, scale=1.0))


def test_dropout_fixed_by_a_partial_is_no_part_of_the_weights():
    q, k = torch.randn(2, B, H, N, 3).unbind()
    assert_close(pattern_of(partial(attention, dropout_p=0.5))(q, k, None).weights, attention_weights(q, k))


def test_flash_shows_no_weights_for_a_bias_that_it_refuses():
    layer, x = layer_with(as_implementation()), torch.randn(B, N, D)
    for method in (layer, layer.weights):
        with pytest.raises(ValueError, match="bias must be None"):
            method(x, bias=torch.zeros(N, N))


# --- implementations are values -------------------------------------------------------------------------------------


def test_a_model_with_a_flash_implementation_can_be_pickled_and_copied():
    model = GPT(GPTConfig(11, 16, D, 2, H), implementation=partial(as_implementation(window=3), softcap=2.0))
    tokens = torch.randint(11, (B, N))
    for other in (pickle.loads(pickle.dumps(model)), deepcopy(model)):
        assert_close(other(tokens), model(tokens), rtol=0, atol=0)
    assert as_implementation(is_causal=True, window=3) == as_implementation(is_causal=True, window=3)
