"""Tests of the multi-head layer: parity with PyTorch, grouped heads, ``process_qk``, attention weights, errors."""

from copy import copy, deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention, attention_weights_and_mask, declare_weights
from lessons_lib.attention.cache import KVCache
from lessons_lib.attention.multihead import AddPositions, MultiHeadAttention, mask_for_layers
from lessons_lib.attention.positions import AlibiBias, LearnedPositions, RotaryEmbedding
from lessons_lib.attention.rope_scaling import YaRN
from lessons_lib.attention.rules import Causal, Padding
from lessons_lib.attention.sdpa import fused_attention

B, N, M, H, D = 2, 5, 7, 3, 12  # batch, queries, keys, heads, model


def as_ours(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert the names and shapes of the weights of PyTorch's layer, or of their gradients, to those of our layer."""
    ours = {}
    for kind in ("weight", "bias"):
        if f"in_proj_{kind}" in theirs:
            names = (f"w_q.{kind}", f"w_k.{kind}", f"w_v.{kind}")
            ours |= dict(zip(names, theirs[f"in_proj_{kind}"].chunk(3), strict=True))
            ours[f"w_o.{kind}"] = theirs[f"out_proj.{kind}"]
    return ours


def both(*, bias: bool = False) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    ours, theirs = MultiHeadAttention(D, H, bias=bias), nn.MultiheadAttention(D, H, bias=bias, batch_first=True)
    for parameter in theirs.parameters():  # PyTorch's biases start at zero, where an error would go unnoticed
        nn.init.normal_(parameter, std=0.5)
    ours.load_state_dict(as_ours(theirs.state_dict()))
    return ours, theirs


def gradients(output, inputs):
    """Return the gradients of a weighted sum of the output, by the names of the inputs."""
    loss = (output * torch.linspace(-1, 2, output.numel()).view_as(output)).sum()
    return dict(zip(inputs, torch.autograd.grad(loss, list(inputs.values()), retain_graph=True), strict=True))


@declare_weights(attention_weights_and_mask)
def flash(q, k, v, mask, *, bias, dropout_p):
    """PyTorch's own attention with the signature of our ``attention``."""
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    return scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout_p, enable_gqa=True)


# --- parity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("crosses", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("masking", ["nothing", "order", "padding", "both"])
def test_layer_matches_pytorch_in_output_weights_and_gradients(bias, crosses, masking):
    ours, theirs = both(bias=bias)
    x = torch.randn(B, N, D, requires_grad=True)
    context = torch.randn(B, M, D, requires_grad=True) if crosses else x
    m = M if crosses else N
    order = torch.ones(N, m).tril(m - N) > 0 if masking in ("order", "both") else None
    lengths = torch.tensor([m, m - 2])
    padding = masks.padding(lengths, m) if masking in ("padding", "both") else None
    mask = padding if order is None else order if padding is None else order & padding

    expected, expected_weights = theirs(
        x,
        context,
        context,
        attn_mask=None if order is None else ~order,
        key_padding_mask=None if padding is None else ~padding[:, 0, 0],
        average_attn_weights=False,
    )
    given = (x, context if crosses else None, mask)
    # Measured in float64: outputs and weights differ by at most 6e-15, gradients by 1e-13.
    assert_close(ours(*given), expected, rtol=0, atol=1e-13)
    assert_close(ours.weights(*given), expected_weights, rtol=0, atol=1e-13)

    inputs = {"x": x} | ({"context": context} if crosses else {})
    assert_close(gradients(ours(*given), inputs), gradients(expected, inputs), rtol=0, atol=1e-12)
    theirs_gradients = as_ours(gradients(expected, dict(theirs.named_parameters())))
    assert_close(gradients(ours(*given), dict(ours.named_parameters())), theirs_gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
def test_grouped_heads_equal_full_heads_with_repeated_projections(n_kv_heads):
    grouped, full = MultiHeadAttention(D, 6, n_kv_heads=n_kv_heads, d_head=5), MultiHeadAttention(D, 6, d_head=5)
    shared = {
        name: weight.unflatten(0, (n_kv_heads, 5)).repeat_interleave(6 // n_kv_heads, dim=0).flatten(0, 1)
        for name, weight in grouped.state_dict().items()
        if name in ("w_k.weight", "w_v.weight")
    }
    full.load_state_dict(grouped.state_dict() | shared)
    x = torch.randn(B, N, D)
    assert_close(grouped(x), full(x))
    assert_close(grouped.weights(x), full.weights(x))


def test_one_head_with_identity_projections_equals_attention():
    layer = MultiHeadAttention(D, 1)
    for parameter in layer.parameters():
        nn.init.eye_(parameter)
    x = torch.randn(B, N, D)
    assert_close(layer(x, mask=masks.causal(N)), attention(x, x, x, masks.causal(N)))


def test_output_equals_sum_over_heads():
    layer = MultiHeadAttention(D, H)
    x = torch.randn(B, N, D)
    by_hand = torch.zeros(B, N, D)
    for head, weights in zip(range(H), layer.weights(x).unbind(1), strict=True):
        rows = slice(4 * head, 4 * head + 4)
        by_hand += weights @ x @ layer.w_v.weight[rows].T @ layer.w_o.weight[:, rows].T
    assert_close(layer(x), by_hand)


# --- properties -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_kv_heads", "d_head", "bias"), [(None, None, False), (2, None, True), (1, 7, "qkv")])
def test_number_of_parameters_equals_formula(n_kv_heads, d_head, bias):
    h, g, d = 4, n_kv_heads or 4, d_head or 3
    expected = 2 * (h + g) * d * D + bool(bias) * (h + 2 * g) * d + (bias is True) * D
    layer = MultiHeadAttention(D, 4, n_kv_heads=n_kv_heads, d_head=d_head, bias=bias)
    assert sum(p.numel() for p in layer.parameters()) == expected


def test_number_of_parameters_is_independent_of_number_of_heads():
    counts = {sum(p.numel() for p in MultiHeadAttention(D, h).parameters()) for h in (1, 2, 3, 12)}
    assert counts == {4 * D * D}


def test_layer_without_positions_is_permutation_equivariant():
    layer, x, order = MultiHeadAttention(D, H), torch.randn(B, N, D), torch.randperm(N)
    assert_close(layer(x[:, order]), layer(x)[:, order])


def test_rotary_layer_depends_on_distances_only():
    layer = MultiHeadAttention(D, H, process_qk=RotaryEmbedding(4).process_qk)
    x, start = torch.randn(B, N, D), torch.tensor([[0], [31]])
    assert_close(layer(x, positions=torch.arange(N) + start), layer(x))
    assert not torch.allclose(layer(x, positions=2 * torch.arange(N)), layer(x))


def test_bias_is_added_to_scores_of_each_head():
    layer, x = MultiHeadAttention(D, H), torch.randn(B, N, D)
    bias = AlibiBias(H)(torch.arange(N), torch.arange(N))
    logits = layer.weights(x).log() + bias
    assert_close(layer.weights(x, bias=bias), logits.softmax(-1))


@pytest.mark.parametrize(
    "process_qk", [None, RotaryEmbedding(4, scaling=YaRN(4.0, 8)).process_qk], ids=["plain", "rotary"]
)
@pytest.mark.parametrize("cached", [0, 3])
def test_weights_times_values_equal_forward(process_qk, cached):
    layer = MultiHeadAttention(D, H, n_kv_heads=1, bias=True, dropout=0.5, process_qk=process_qk).eval()
    cache = KVCache() if cached else None
    if cache is not None:
        layer(torch.randn(B, cached, D), cache=cache)
    x, mask = torch.randn(B, N, D), masks.causal(N, N + cached)
    bias = torch.randn(H, N, N + cached)
    positions = None if process_qk is None else torch.arange(N) + 11
    weights = layer.weights(x, mask=mask, cache=cache, positions=positions, bias=bias)
    length = cached if cache is None else len(cache)
    assert length == cached, "weights must not append to the cache"

    kept = KVCache() if cache is None else copy(cache)
    out = layer(x, mask=mask, cache=kept, positions=positions, bias=bias)
    _, values = kept.append(torch.empty(B, 1, 0, 4), torch.empty(B, 1, 0, 4))
    assert_close(out, layer.w_o((weights @ values).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("n_kv_heads", [1, 3])
def test_pytorch_implementation_gives_same_output_and_weights(n_kv_heads):
    layer = MultiHeadAttention(D, H, n_kv_heads=n_kv_heads, process_qk=RotaryEmbedding(4).process_qk)
    other = deepcopy(layer)
    other.implementation = flash
    x, mask = torch.randn(B, N, D), masks.causal(N)
    bias = AlibiBias(H)(torch.arange(N), torch.arange(N))
    for given in ({}, {"mask": mask}, {"bias": bias[None]}, {"mask": mask, "bias": bias[None]}):
        assert_close(other(x, **given), layer(x, **given))
        assert_close(other.weights(x, **given), layer.weights(x, **given), rtol=0, atol=0)


def test_implementation_receives_grouped_heads_and_dropout_in_training_only():
    seen = []

    def spy(q, k, v, mask, *, bias, dropout_p):
        seen.append((q.shape, k.shape, v.shape, dropout_p))
        return attention(q, k, v, mask, bias=bias)

    layer = MultiHeadAttention(D, 6, n_kv_heads=2, dropout=0.3, implementation=spy)
    layer(torch.randn(B, N, D))
    layer.eval()(torch.randn(B, N, D))
    assert seen == [((B, 6, N, 2), (B, 2, N, 2), (B, 2, N, 2), p) for p in (0.3, 0.0)]


def test_dropout_acts_in_training_only_and_preserves_mean():
    layer, x = MultiHeadAttention(D, H, dropout=0.4), torch.randn(1, N, D)
    drawn = layer(x.expand(4000, N, D))
    assert not torch.equal(drawn[0], drawn[1])
    without = layer.eval()(x)
    assert_close(without, layer(x), rtol=0, atol=0)
    # Five standard errors of the mean, the largest of which is 0.0022, measured.
    assert_close(drawn.mean(0, keepdim=True), without, rtol=0, atol=0.011)


def test_fully_masked_query_gives_zero_output():
    layer = MultiHeadAttention(D, H)
    x = torch.randn(B, N, D, requires_grad=True)
    mask = masks.causal(N) & (torch.arange(N) > 0)
    out = layer(x, mask=mask)
    assert_close(out[:, 0], torch.zeros(B, D))
    assert all(gradient.isfinite().all() for gradient in gradients(out, {"x": x}).values())


# --- process_qk -----------------------------------------------------------------------------------------------------


def test_process_qk_receives_heads_and_positions():
    seen = []

    def spy(q, k, positions):
        seen.append((q.shape, k.shape, positions.tolist()))
        return 2 * q, k

    layer, plain = MultiHeadAttention(D, 6, n_kv_heads=2, process_qk=spy), MultiHeadAttention(D, 6, n_kv_heads=2)
    plain.load_state_dict(layer.state_dict())
    x, cache = torch.randn(B, N, D), KVCache()
    layer(x[:, :2], cache=cache)
    layer(x[:, 2:], cache=cache)
    layer(x[:, :1], positions=torch.tensor([[7], [9]]))
    heads = lambda n: ((B, 6, n, 2), (B, 2, n, 2))  # noqa: E731
    assert seen == [(*heads(2), [0, 1]), (*heads(3), [2, 3, 4]), (*heads(1), [[[7]], [[9]]])]
    with torch.no_grad():
        plain.w_q.weight *= 2
    assert_close(layer(x), plain(x))


def test_add_positions_changes_scores_but_not_values():
    to_queries, to_keys = LearnedPositions(11, 4), LearnedPositions(11, 4)
    for table in (to_queries, to_keys):
        nn.init.normal_(table.weight)
    layer = MultiHeadAttention(D, H, process_qk=AddPositions(to_queries, to_keys))
    x, positions = torch.randn(B, N, D), torch.stack([torch.randperm(11)[:N] for _ in range(B)])
    q, k, v = (w(x).unflatten(-1, (H, 4)).transpose(1, 2) for w in (layer.w_q, layer.w_k, layer.w_v))
    q, k = q + to_queries.weight[positions][:, None], k + to_keys.weight[positions][:, None]
    expected = attention(q, k, v, masks.causal(N))
    out = layer(x, mask=masks.causal(N), positions=positions)
    assert_close(out, layer.w_o(expected.transpose(1, 2).flatten(2)))
    out.sum().backward()
    assert all(table.weight.grad.any() for table in (to_queries, to_keys))


def test_add_positions_can_attend_to_previous_position():
    """The previous key scores higher than the query's own, which is impossible with equal vectors for both."""
    process_qk = AddPositions(
        lambda positions: 50 * torch.eye(M)[positions - 1], lambda positions: torch.eye(M)[positions]
    )
    layer = MultiHeadAttention(M, 1, process_qk=process_qk)
    weights = layer.weights(torch.zeros(1, M, M), mask=masks.causal(M))[0, 0]
    assert_close(weights[torch.arange(1, M), torch.arange(M - 1)], torch.ones(M - 1), rtol=0, atol=1e-6)


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_heads": 5}, r"n_heads must divide d_model, got n_heads=5, d_model=12; or give d_head"),
        ({"n_kv_heads": 2}, r"n_kv_heads must divide n_heads, got n_kv_heads=2, n_heads=3"),
        ({"d_model": 0}, r"d_model must be at least 1, got 0"),
        ({"n_heads": 2.0}, r"n_heads must be an integer, got 2.0"),
        ({"n_kv_heads": 0}, r"n_kv_heads must be at least 1"),
        ({"d_head": -4}, r"d_head must be at least 1, got -4"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        (
            {"process_qk": AlibiBias(H)},
            r"process_qk\(q, k, positions\), got AlibiBias.*for ALiBi pass the output of AlibiBias to forward as bias",
        ),
        (
            {"process_qk": RotaryEmbedding(4)},
            r"got RotaryEmbedding.*for a rotary embedding pass its method .process_qk",
        ),
        ({"process_qk": LearnedPositions(M, 4)}, r"process_qk must be callable as process_qk\(q, k, positions\)"),
    ],
)
def test_invalid_layer_arguments_raise(given, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{"d_model": D, "n_heads": H} | given)


x = torch.zeros(B, N, D, dtype=torch.float64)


@pytest.mark.rejects
@pytest.mark.parametrize("method", ["forward", "weights"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": x[0]}, r"x must be \(b, rows, d_model=12\)"),
        ({"x": x[..., 1:]}, r"x must be .* got \(2, 5, 11\)"),
        ({"x": x, "context": x[..., 1:]}, r"context must be .* got \(2, 5, 11\)"),
        ({"x": x, "context": x[:1]}, r"context must be .* with one b for all, got \(1, 5, 12\)"),
        ({"x": x, "context": x, "cache": KVCache()}, r"give context or cache, not both"),
        (
            {"x": x, "mask": masks.causal(N).expand(B, N, N)},
            r"mask must be \(n, m\) or \(b, h, n, m\).*mask\[:, None\]",
        ),
        ({"x": x, "mask": masks.causal(N).expand(H, N, N)}, r"mask\[None\] for one per head"),
        ({"x": x, "mask": masks.causal(M)}, r"mask must broadcast to the scores"),
        ({"x": x, "positions": torch.arange(N)}, r"positions were given to a layer without process_qk"),
    ],
)
def test_invalid_shapes_raise(method, given, message):
    with pytest.raises(ValueError, match=message):
        getattr(MultiHeadAttention(D, H), method)(**given)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"context": x}, r"context must be None for a layer with process_qk"),
        ({"positions": torch.arange(N + 1)}, r"positions must be \(n,\) or \(b, n\) for x over \(2, 5\), got \(6,\)"),
        ({"positions": torch.zeros(H, N)}, r"got \(3, 5\)"),
    ],
)
def test_invalid_positions_or_context_raise(given, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(D, H, process_qk=RotaryEmbedding(4).process_qk)(x, **given)


@pytest.mark.rejects
def test_process_qk_that_changes_a_shape_raises():
    for process_qk in (lambda q, k, positions: (q[..., 1:], k), lambda q, k, positions: (q, k[:, :1])):
        with pytest.raises(
            ValueError, match=r"process_qk must keep the shapes of queries and keys, \(\(2, 3, 5, 4\), .*, got"
        ):
            MultiHeadAttention(D, H, process_qk=process_qk)(x)


# --- wrong implementations, which the tests above must catch --------------------------------------------------------


class TransposedSplit(MultiHeadAttention):
    """A layer that splits the width as (d h) instead of (h d)."""

    def _heads(self, x, *_):
        return tuple(w(x).unflatten(-1, (-1, self.n_heads)).permute(0, 3, 1, 2) for w in (self.w_q, self.w_k, self.w_v))


class WrongScale(MultiHeadAttention):
    """A layer that divides the scores by the square root of d_model."""

    def _heads(self, *given):
        q, k, v = super()._heads(*given)
        return q * (self.d_head / self.d_model) ** 0.5, k, v


class InterleavedGroups(MultiHeadAttention):
    """A layer whose query head i uses key/value head i mod g instead of i // (h / g)."""

    def _heads(self, *given):
        q, k, v = super()._heads(*given)
        times = self.n_heads // self.n_kv_heads
        return q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)


@pytest.mark.parametrize("wrong", [TransposedSplit, WrongScale], ids=lambda wrong: wrong.__name__)
def test_parity_test_catches_wrong_layers(wrong):
    ours, theirs = both()
    ours.__class__ = wrong
    sample = torch.randn(B, N, D)
    with pytest.raises(AssertionError):
        assert_close(ours(sample), theirs(sample, sample, sample)[0])


def test_parity_test_catches_interleaved_groups():
    right = MultiHeadAttention(D, 6, n_kv_heads=2)
    wrong = deepcopy(right)
    wrong.__class__ = InterleavedGroups
    sample = torch.randn(B, N, D)
    with pytest.raises(AssertionError):
        assert_close(wrong(sample), right(sample))


# --- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", [attention, fused_attention], ids=["specification", "fused"])
def test_rule_gives_same_output_as_its_mask(implementation):
    layer = MultiHeadAttention(D, 6, n_kv_heads=3, implementation=implementation)
    x, rule = torch.randn(B, N, D), Causal() & Padding(torch.tensor([N, 2]))
    assert_close(layer(x, mask=rule), layer(x, mask=rule.to_mask(N)))
    assert_close(layer.weights(x, mask=rule), layer.weights(x, mask=rule.to_mask(N)), rtol=0, atol=0)
    cache = KVCache()
    parts = [layer(part, mask=Causal(), cache=cache) for part in x.split([2, 1, N - 3], dim=1)]
    assert_close(torch.cat(parts, dim=1), layer(x, mask=Causal()))


def test_implementation_without_rule_support_receives_boolean_mask():
    given = []

    def plain(q, k, v, mask, *, bias, dropout_p):
        given.append(mask)
        return attention(q, k, v, mask)

    layer, x = MultiHeadAttention(D, 6, implementation=plain), torch.randn(B, N, D)
    layer(x, mask=Causal())
    assert torch.equal(given[0], masks.causal(N))


def test_mask_for_layers_keeps_rule_only_if_all_layers_support_rules():
    without, with_rules = MultiHeadAttention(D, 6), MultiHeadAttention(D, 6, implementation=fused_attention)
    both, rule, device = nn.ModuleList([without, with_rules]), Causal(), torch.device("cpu")
    assert mask_for_layers(with_rules, rule, 3, 5, device) is rule
    assert torch.equal(mask_for_layers(both, rule, 3, 5, device), masks.causal(3, 5))
    assert mask_for_layers(both, None, 3, 5, device) is None
