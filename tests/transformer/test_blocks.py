"""Tests of the transformer blocks: parity with PyTorch's encoder and decoder layers, and the norm wrappers."""

import pytest
import torch
from test_multihead import as_ours, gradients
from torch import nn
from torch.testing import assert_close

from lessons_lib.attention import masks
from lessons_lib.attention.cache import KVCache
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.positions import RotaryEmbedding
from lessons_lib.foundations.norms import LayerNorm, RMSNorm
from lessons_lib.transformer.blocks import (
    CrossAttentionBlock,
    OutputNorm,
    ParallelBlock,
    PostNorm,
    PreNorm,
    SandwichNorm,
    TransformerBlock,
)
from lessons_lib.transformer.feedforward import FeedForward, MixtureOfExperts, SwiGLU, gelu, relu

B, N, M, H, D, FF = 2, 5, 7, 3, 12, 19  # batch, positions, context, heads, model, feed-forward

WRAPPERS = {"pre": PreNorm, "post": PostNorm}
ACTIVATIONS = {"relu": relu, "gelu": gelu}
NAMES = {  # our name of a sublayer, and PyTorch's names of the sublayer and of its norm
    TransformerBlock: [("attention", "self_attn", "norm1"), ("feedforward", "linear", "norm2")],
    CrossAttentionBlock: [
        ("attention", "self_attn", "norm1"),
        ("cross_attention", "multihead_attn", "norm2"),
        ("feedforward", "linear", "norm3"),
    ],
}


def block_as_ours(theirs: dict[str, torch.Tensor], block: type) -> dict[str, torch.Tensor]:
    """Rename the tensors of PyTorch's encoder or decoder layer (weights or gradients) to our names."""
    ours = {}
    for our_sublayer, sublayer, norm in NAMES[block]:
        if sublayer == "linear":
            parts = {
                f"{ours_name}.{kind}": theirs[f"{name}.{kind}"]
                for ours_name, name in (("w_up", "linear1"), ("w_down", "linear2"))
                for kind in ("weight", "bias")
            }
        else:
            inside = {name.removeprefix(f"{sublayer}."): tensor for name, tensor in theirs.items() if sublayer in name}
            parts = as_ours(inside)
        ours |= {f"{our_sublayer}.sublayer.{name}": tensor for name, tensor in parts.items()}
        ours |= {f"{our_sublayer}.norm.{kind}": theirs[f"{norm}.{kind}"] for kind in ("weight", "bias")}
    return ours


def sublayers(wrap, n_attentions: int, activation=relu) -> list[nn.Module]:
    parts = [wrap(MultiHeadAttention(D, H, bias=True), LayerNorm(D)) for _ in range(n_attentions)]
    return [*parts, wrap(FeedForward(D, FF, activation=activation), LayerNorm(D))]


def copied(block: nn.Module, theirs: nn.Module) -> nn.Module:
    for parameter in theirs.parameters():  # initial biases of 0 and gains of 1 would hide mistakes
        nn.init.normal_(parameter, std=0.5)
    block.load_state_dict(block_as_ours(theirs.state_dict(), type(block)))
    return block


def assert_parity(ours, theirs, given, expected_given, inputs):
    """Check that outputs are equal, and gradients with respect to the inputs and every parameter."""
    out, expected = ours(**given), theirs(**expected_given)
    # Measured in float64 over 40 seeds: outputs differ by at most 8e-15, gradients by 1.2e-13.
    assert_close(out, expected, rtol=0, atol=1e-13)
    assert_close(gradients(out, inputs), gradients(expected, inputs), rtol=0, atol=1e-12)
    assert_close(
        gradients(out, dict(ours.named_parameters())),
        block_as_ours(gradients(expected, dict(theirs.named_parameters())), type(ours)),
        rtol=0,
        atol=1e-12,
    )


# --- parity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("masking", ["nothing", "order and padding"])
def test_transformer_block_matches_pytorch_encoder_layer(order, activation, masking):
    theirs = nn.TransformerEncoderLayer(
        D, H, FF, dropout=0.0, activation=activation, batch_first=True, norm_first=order == "pre"
    )
    ours = copied(TransformerBlock(*sublayers(WRAPPERS[order], 1, ACTIVATIONS[activation])), theirs)
    x = torch.randn(B, N, D, requires_grad=True)
    given, expected_given = {"x": x}, {"src": x}
    if masking != "nothing":
        order_mask, padding = masks.causal(N), masks.padding(torch.tensor([N, N - 2]), N)
        given["mask"] = order_mask & padding
        expected_given |= {"src_mask": ~order_mask, "src_key_padding_mask": ~padding[:, 0, 0]}
    assert_parity(ours, theirs, given, expected_given, {"x": x})


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("masking", ["nothing", "order and padding"])
def test_cross_attention_block_matches_pytorch_decoder_layer(order, masking):
    theirs = nn.TransformerDecoderLayer(D, H, FF, dropout=0.0, batch_first=True, norm_first=order == "pre")
    ours = copied(CrossAttentionBlock(*sublayers(WRAPPERS[order], 2)), theirs)
    x, context = torch.randn(B, N, D, requires_grad=True), torch.randn(B, M, D, requires_grad=True)
    given, expected_given = {"x": x, "context": context}, {"tgt": x, "memory": context}
    if masking != "nothing":
        order_mask, padding = masks.causal(N), masks.padding(torch.tensor([M - 3, M]), M)
        given |= {"mask": order_mask, "context_mask": padding}
        expected_given |= {"tgt_mask": ~order_mask, "memory_key_padding_mask": ~padding[:, 0, 0]}
    assert_parity(ours, theirs, given, expected_given, {"x": x, "context": context})


# --- properties -----------------------------------------------------------------------------------------------------


def test_pre_norm_and_post_norm_match_formulas():
    x, sublayer, norm = torch.randn(B, N, D), nn.Linear(D, D), LayerNorm(D)
    assert_close(PreNorm(sublayer, norm)(x), x + sublayer(norm(x)), rtol=0, atol=0)
    assert_close(PostNorm(sublayer, norm)(x), norm(x + sublayer(x)), rtol=0, atol=0)


def test_zero_sublayer_is_identity_in_pre_norm_and_norm_in_post_norm():
    x, sublayer, norm = 3 * torch.randn(B, N, D), nn.Linear(D, D), LayerNorm(D)
    nn.init.zeros_(sublayer.weight)
    nn.init.zeros_(sublayer.bias)
    assert_close(PreNorm(sublayer, norm)(x), x, rtol=0, atol=0)
    assert_close(PostNorm(sublayer, norm)(x), norm(x), rtol=0, atol=0)


def test_block_without_feedforward_equals_its_attention():
    attention = PreNorm(MultiHeadAttention(D, H), RMSNorm(D))
    x = torch.randn(B, N, D)
    assert_close(TransformerBlock(attention, nn.Identity())(x), attention(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "network", [FeedForward(D, FF), SwiGLU(D, FF), MixtureOfExperts(D, FF, 3, 2)], ids=lambda n: type(n).__name__
)
def test_block_with_cache_matches_full_pass_for_each_feedforward(network):
    attention = MultiHeadAttention(D, H, n_kv_heads=1, process_qk=RotaryEmbedding(4).process_qk)
    block = TransformerBlock(PreNorm(attention, RMSNorm(D)), PreNorm(network.double(), RMSNorm(D)))
    x, cache = torch.randn(B, N, D), KVCache()
    rows = [block(row, mask=masks.causal(1, i + 1), cache=cache) for i, row in enumerate(x.split(1, dim=1))]
    assert_close(torch.cat(rows, dim=1), block(x, mask=masks.causal(N)))


def test_block_passes_positions_and_bias_to_attention():
    attention = PreNorm(MultiHeadAttention(D, H, process_qk=RotaryEmbedding(4).process_qk), LayerNorm(D))
    block = TransformerBlock(attention, nn.Identity())
    x, extra = torch.randn(B, N, D), {"positions": torch.arange(N) * 3, "bias": torch.randn(H, N, N)}
    assert_close(block(x, **extra), attention(x, **extra), rtol=0, atol=0)


@pytest.mark.parametrize("wrap", [PreNorm, PostNorm])
def test_dropout_applies_once_to_the_branch_and_only_in_training(wrap):
    share = 0.25
    block = wrap(nn.Identity(), nn.Identity(), dropout=share)
    x = torch.ones(1, 200, 100)
    branch = block(x) - x
    assert branch.unique().tolist() == pytest.approx([0.0, 1 / (1 - share)])
    assert (branch == 0).double().mean().item() == pytest.approx(share, abs=0.02)  # six standard errors of 0.0031
    assert_close(block.eval()(x), 2 * x)


# --- wrong implementations that the tests catch ---------------------------------------------------------------------


class NormAfterTheSum(PreNorm):
    def forward(self, x, *args, **kwargs):
        x = self.norm(x)
        return x + self.sublayer(x, *args, **kwargs)


class NormOfTheBranch(PostNorm):
    def forward(self, x, *args, **kwargs):
        return x + self.norm(self.sublayer(x, *args, **kwargs))


@pytest.mark.parametrize("wrong", [NormAfterTheSum, NormOfTheBranch], ids=lambda wrong: wrong.__name__)
def test_parity_test_catches_misplaced_norm(wrong):
    first = issubclass(wrong, PreNorm)
    theirs = nn.TransformerEncoderLayer(D, H, FF, dropout=0.0, batch_first=True, norm_first=first)
    ours = copied(TransformerBlock(*sublayers(wrong, 1)), theirs)
    x = torch.randn(B, N, D)
    with pytest.raises(AssertionError):
        assert_parity(ours, theirs, {"x": x}, {"src": x}, {})


def test_parity_test_catches_normalised_context():
    theirs = nn.TransformerDecoderLayer(D, H, FF, dropout=0.0, batch_first=True, norm_first=True)
    ours = copied(CrossAttentionBlock(*sublayers(PreNorm, 2)), theirs)
    x, context = torch.randn(B, N, D), torch.randn(B, M, D)
    given = {"x": x, "context": ours.cross_attention.norm(context)}
    with pytest.raises(AssertionError):
        assert_parity(ours, theirs, given, {"tgt": x, "memory": context}, {})


# --- norms of outputs -----------------------------------------------------------------------------------------------


def test_output_norm_equals_its_formula():
    layer, norm, x = FeedForward(D, FF), RMSNorm(D), torch.randn(B, N, D)
    nn.init.normal_(norm.weight)
    assert_close(OutputNorm(layer, norm)(x), x + norm(layer(x)))
    assert_close(OutputNorm(layer, norm, dropout=1 - 1e-12).train()(x), x)


def test_sandwich_norm_equals_its_formula():
    layer, norms, x = FeedForward(D, FF), [RMSNorm(D), RMSNorm(D)], torch.randn(B, N, D)
    for norm in norms:
        nn.init.normal_(norm.weight)
    assert_close(SandwichNorm(layer, *norms)(x), x + norms[1](layer(norms[0](x))))
    assert_close(SandwichNorm(layer, *norms, dropout=1 - 1e-12).train()(x), x)


# --- parallel -------------------------------------------------------------------------------------------------------


def test_parallel_block_equals_its_formula():
    attention, feedforward = sublayers(PreNorm, 1)
    x, cache, again = torch.randn(B, N, D), KVCache(), KVCache()
    out = ParallelBlock(attention, feedforward)(x, masks.causal(N), cache)
    expected = attention(x, mask=masks.causal(N), cache=again) + feedforward(x) - x
    assert_close(out, expected)
    assert len(cache) == N
    in_sequence = TransformerBlock(attention, feedforward)(x, masks.causal(N))
    assert (out - in_sequence).abs().max() > 1e-3


def test_parallel_block_drops_the_output_of_both_sublayers():
    branches = (
        PreNorm(MultiHeadAttention(D, H), LayerNorm(D), dropout=1 - 1e-12),
        PreNorm(FeedForward(D, FF), LayerNorm(D), dropout=1 - 1e-12),
    )
    block, x = ParallelBlock(*branches), torch.randn(B, N, D)
    torch.manual_seed(1)
    assert_close(block.train()(x), x)
    assert not block.eval()(x).equal(x)
