"""Multi-head attention equals PyTorch's, groups share heads, a cache changes nothing, weights are what forward uses."""

from copy import copy, deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

from lessons_lib import masks
from lessons_lib.attention import attention, attention_pattern, declares_pattern
from lessons_lib.fused import fused_attention
from lessons_lib.multihead import AddPositions, KVCache, MultiHeadAttention, StreamingCache, as_layers_take
from lessons_lib.positions import AlibiBias, LearnedPositions, RotaryEmbedding
from lessons_lib.rope_scaling import YaRN
from lessons_lib.rules import Causal, Padding

B, N, M, H, D = 2, 5, 7, 3, 12  # batch, queries, keys, heads, model


def as_ours(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Name and cut the tensors of PyTorch's layer (its weights, or their gradients) as ours."""
    ours = {}
    for kind in ("weight", "bias"):
        if f"in_proj_{kind}" in theirs:
            names = (f"w_q.{kind}", f"w_k.{kind}", f"w_v.{kind}")
            ours |= dict(zip(names, theirs[f"in_proj_{kind}"].chunk(3), strict=True))
            ours[f"w_o.{kind}"] = theirs[f"out_proj.{kind}"]
    return ours


def both(*, bias: bool = False) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    ours, theirs = MultiHeadAttention(D, H, bias=bias), nn.MultiheadAttention(D, H, bias=bias, batch_first=True)
    for parameter in theirs.parameters():  # PyTorch's biases start at zero, and a zero proves nothing
        nn.init.normal_(parameter, std=0.5)
    ours.load_state_dict(as_ours(theirs.state_dict()))
    return ours, theirs


def gradients(output, inputs):
    """The gradients of a weighted sum of the output, by the names of the inputs."""
    loss = (output * torch.linspace(-1, 2, output.numel()).view_as(output)).sum()
    return dict(zip(inputs, torch.autograd.grad(loss, list(inputs.values()), retain_graph=True), strict=True))


@declares_pattern(attention_pattern)
def flash(q, k, v, mask, *, bias, dropout_p):
    """PyTorch's own attention in the call shape of ours."""
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    return scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout_p, enable_gqa=True)


# --- parity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("crosses", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("masking", ["nothing", "order", "padding", "both"])
def test_equals_pytorch_in_output_weights_and_gradients(bias, crosses, masking):
    ours, theirs = both(bias=bias)
    x = torch.randn(B, N, D, requires_grad=True)
    context = torch.randn(B, M, D, requires_grad=True) if crosses else x
    m = M if crosses else N
    order = torch.ones(N, m).tril(m - N) > 0 if masking in ("order", "both") else None
    lengths = torch.tensor([m, m - 2])
    padding = masks.padding(lengths, m) if masking in ("padding", "both") else None
    mask = padding if order is None else order if padding is None else order & padding

    expected, pattern = theirs(
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
    assert_close(ours.weights(*given), pattern, rtol=0, atol=1e-13)

    inputs = {"x": x} | ({"context": context} if crosses else {})
    assert_close(gradients(ours(*given), inputs), gradients(expected, inputs), rtol=0, atol=1e-12)
    theirs_gradients = as_ours(gradients(expected, dict(theirs.named_parameters())))
    assert_close(gradients(ours(*given), dict(ours.named_parameters())), theirs_gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
def test_grouped_heads_are_full_heads_with_repeated_projections(n_kv_heads):
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


def test_one_head_of_identity_projections_is_plain_attention():
    layer = MultiHeadAttention(D, 1)
    for parameter in layer.parameters():
        nn.init.eye_(parameter)
    x = torch.randn(B, N, D)
    assert_close(layer(x, mask=masks.causal(N)), attention(x, x, x, masks.causal(N)))


def test_the_sum_over_heads_is_the_formula():
    layer = MultiHeadAttention(D, H)
    x = torch.randn(B, N, D)
    by_hand = torch.zeros(B, N, D)
    for head, pattern in zip(range(H), layer.weights(x).unbind(1), strict=True):
        rows = slice(4 * head, 4 * head + 4)
        by_hand += pattern @ x @ layer.w_v.weight[rows].T @ layer.w_o.weight[:, rows].T
    assert_close(layer(x), by_hand)


# --- laws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_kv_heads", "d_head", "bias"), [(None, None, False), (2, None, True), (1, 7, True)])
def test_parameters_are_counted_by_the_formula(n_kv_heads, d_head, bias):
    h, g, d = 4, n_kv_heads or 4, d_head or 3
    expected = 2 * (h + g) * d * D + bias * ((h + 2 * g) * d + D)
    layer = MultiHeadAttention(D, 4, n_kv_heads=n_kv_heads, d_head=d_head, bias=bias)
    assert sum(p.numel() for p in layer.parameters()) == expected


def test_the_number_of_heads_costs_nothing():
    counts = {sum(p.numel() for p in MultiHeadAttention(D, h).parameters()) for h in (1, 2, 3, 12)}
    assert counts == {4 * D * D}


def test_without_positions_rows_are_permuted_with_the_input():
    layer, x, order = MultiHeadAttention(D, H), torch.randn(B, N, D), torch.randperm(N)
    assert_close(layer(x[:, order]), layer(x)[:, order])


def test_only_distances_count_with_rotary_positions():
    layer = MultiHeadAttention(D, H, prepare=RotaryEmbedding(4).prepare)
    x, start = torch.randn(B, N, D), torch.tensor([[0], [31]])
    assert_close(layer(x, positions=torch.arange(N) + start), layer(x))
    assert not torch.allclose(layer(x, positions=2 * torch.arange(N)), layer(x))


def test_the_bias_is_added_to_the_scores_of_each_head():
    layer, x = MultiHeadAttention(D, H), torch.randn(B, N, D)
    bias = AlibiBias(H)(torch.arange(N), torch.arange(N))
    logits = layer.weights(x).log() + bias
    assert_close(layer.weights(x, bias=bias), logits.softmax(-1))


@pytest.mark.parametrize("prepare", [None, RotaryEmbedding(4, scaling=YaRN(4.0, 8)).prepare], ids=["plain", "rotary"])
@pytest.mark.parametrize("cached", [0, 3])
def test_weights_are_what_forward_averages_with(prepare, cached):
    layer = MultiHeadAttention(D, H, n_kv_heads=1, bias=True, dropout=0.5, prepare=prepare).eval()
    cache = KVCache() if cached else None
    if cache is not None:
        layer(torch.randn(B, cached, D), cache=cache)
    x, mask = torch.randn(B, N, D), masks.causal(N, N + cached)
    bias = torch.randn(H, N, N + cached)
    positions = None if prepare is None else torch.arange(N) + 11
    pattern = layer.weights(x, mask=mask, cache=cache, positions=positions, bias=bias)
    seen = cached if cache is None else len(cache)
    assert seen == cached, "looking at the weights must not add to the cache"

    kept = KVCache() if cache is None else copy(cache)
    out = layer(x, mask=mask, cache=kept, positions=positions, bias=bias)
    _, values = kept.append(torch.empty(B, 1, 0, 4), torch.empty(B, 1, 0, 4))
    assert_close(out, layer.w_o((pattern @ values).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("n_kv_heads", [1, 3])
def test_another_implementation_gives_the_same(n_kv_heads):
    layer = MultiHeadAttention(D, H, n_kv_heads=n_kv_heads, prepare=RotaryEmbedding(4).prepare)
    other = deepcopy(layer)
    other.implementation = flash
    x, mask = torch.randn(B, N, D), masks.causal(N)
    bias = AlibiBias(H)(torch.arange(N), torch.arange(N))
    for given in ({}, {"mask": mask}, {"bias": bias[None]}, {"mask": mask, "bias": bias[None]}):
        assert_close(other(x, **given), layer(x, **given))
        assert_close(other.weights(x, **given), layer.weights(x, **given), rtol=0, atol=0)


def test_implementations_receive_grouped_heads_and_the_dropout_of_training():
    seen = []

    def spy(q, k, v, mask, *, bias, dropout_p):
        seen.append((q.shape, k.shape, v.shape, dropout_p))
        return attention(q, k, v, mask, bias=bias)

    layer = MultiHeadAttention(D, 6, n_kv_heads=2, dropout=0.3, implementation=spy)
    layer(torch.randn(B, N, D))
    layer.eval()(torch.randn(B, N, D))
    assert seen == [((B, 6, N, 2), (B, 2, N, 2), (B, 2, N, 2), p) for p in (0.3, 0.0)]


def test_dropout_acts_in_training_only_and_keeps_the_mean():
    layer, x = MultiHeadAttention(D, H, dropout=0.4), torch.randn(1, N, D)
    drawn = layer(x.expand(4000, N, D))
    assert not torch.equal(drawn[0], drawn[1])
    without = layer.eval()(x)
    assert_close(without, layer(x), rtol=0, atol=0)
    # Five standard errors of the mean, the largest of which is 0.0022, measured.
    assert_close(drawn.mean(0, keepdim=True), without, rtol=0, atol=0.011)


def test_a_query_that_may_attend_nowhere_brings_back_nothing():
    layer = MultiHeadAttention(D, H)
    x = torch.randn(B, N, D, requires_grad=True)
    mask = masks.causal(N) & (torch.arange(N) > 0)
    out = layer(x, mask=mask)
    assert_close(out[:, 0], torch.zeros(B, D))
    assert all(gradient.isfinite().all() for gradient in gradients(out, {"x": x}).values())


# --- cache ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prepare", [None, RotaryEmbedding(4).prepare], ids=["plain", "rotary"])
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 2, 1], [7]], ids=str)
def test_step_by_step_equals_all_at_once(prepare, steps):
    layer = MultiHeadAttention(D, H, n_kv_heads=1, bias=True, prepare=prepare)
    x = torch.randn(B, 7, D)
    cache, outs, patterns = KVCache(), [], []
    for part in x.split(steps, dim=1):
        n, m = part.shape[1], len(cache) + part.shape[1]
        patterns.append(layer.weights(part, mask=masks.causal(n, m), cache=cache))
        outs.append(layer(part, mask=masks.causal(n, m), cache=cache))
    assert_close(torch.cat(outs, dim=1), layer(x, mask=masks.causal(7)))
    whole = layer.weights(x, mask=masks.causal(7))
    assert_close(torch.cat([nn.functional.pad(p, (0, 7 - p.shape[-1])) for p in patterns], dim=2), whole)


def test_the_cache_holds_grouped_heads_once():
    layer, cache = MultiHeadAttention(D, 6, n_kv_heads=2, d_head=4).float(), KVCache()
    assert (len(cache), cache.n_bytes) == (0, 0)
    for n in (N, 1):
        layer(torch.randn(B, n, D, dtype=torch.float32), cache=cache)
    assert len(cache) == N + 1
    assert cache.n_bytes == 2 * B * 2 * (N + 1) * 4 * 4  # k and v, batch, heads, positions, width, bytes


def rows(n):
    return torch.randn(B, H, n, 4), torch.randn(B, H, n, 4)


def joined(parts):
    return tuple(torch.cat(tensors, dim=-2) for tensors in zip(*parts, strict=True))


# How a step is taken: with gradients recorded, without, or in inference mode, whose tensors nobody else may write to.
MODES = {"grad": torch.enable_grad, "no grad": torch.no_grad, "inference": torch.inference_mode}


@pytest.mark.parametrize("modes", [["grad"], ["no grad"], ["inference"], ["no grad", "inference", "grad"]], ids=str)
def test_a_cache_returns_all_that_was_appended_whatever_the_mode(modes):
    cache, parts = KVCache(), []
    for step, n in enumerate([2, 1, 1, 0, 1, 7, 1, 1, 1, 3]):
        with MODES[modes[step % len(modes)]]():
            parts.append(rows(n))
            kept = cache.append(*parts[-1])
            assert_close(kept, joined(parts), rtol=0, atol=0)
            assert len(cache) == sum(part[0].shape[-2] for part in parts)
            assert cache.n_bytes == 2 * len(cache) * B * H * 4 * 8


@torch.no_grad()
def test_a_step_moves_no_row_but_its_own_until_the_buffer_is_full():
    cache, places = KVCache(), []
    for _ in range(100):
        kept, _ = cache.append(*rows(1))
        places.append(kept.data_ptr())
    assert len(set(places)) == 8  # 1, 2, 4, ... 128


@torch.no_grad()
@pytest.mark.parametrize("room", [0, 3], ids=["a full buffer", "with room"])
@pytest.mark.parametrize("copy_is_first", [True, False])
def test_a_copied_cache_goes_its_own_way(room, copy_is_first):
    cache, first = KVCache(), [rows(N), rows(3)] if room else [rows(N)]
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
def test_a_cache_that_was_cut_goes_on_as_if_the_rest_had_never_been(n):
    cache, seen = KVCache(), [rows(N), rows(3)]
    for part in seen:
        cache.append(*part)
    branch, new = copy(cache), rows(2)
    branch.cut(n)
    assert len(branch) == n
    first = tuple(tensor[..., :n, :] for tensor in joined(seen))
    assert_close(branch.append(*new), joined([first, new]), rtol=0, atol=0)
    assert_close(cache.kept, joined(seen), rtol=0, atol=0)  # the copy has its own way


@torch.no_grad()
def test_a_cache_goes_on_with_the_rows_that_were_picked():
    cache, seen, picked = KVCache(), rows(N), torch.tensor([1, 0, 1, 1])
    cache.append(*seen)
    cache.pick(picked)
    new = torch.randn(4, H, 1, 4), torch.randn(4, H, 1, 4)
    assert_close(cache.append(*new), joined([tuple(x[picked] for x in seen), new]), rtol=0, atol=0)


def test_copies_that_share_their_room_are_caught(monkeypatch):
    monkeypatch.delattr(KVCache, "__copy__")
    with pytest.raises(AssertionError):
        test_a_copied_cache_goes_its_own_way(3, False)


@pytest.mark.parametrize(("n_first", "window"), [(0, 3), (2, 3), (1, 1), (0, 1)])
def test_a_streaming_cache_shows_the_first_and_the_last_places_counted_in_it(n_first, window):
    """As if what is in sight were read by itself, from place 0."""
    torch.manual_seed(3)
    rotary = RotaryEmbedding(D // H)
    layer = MultiHeadAttention(D, H, prepare=rotary.prepare).requires_grad_(False)
    x, cache = torch.randn(B, 11, D), StreamingCache(n_first, window, turn=rotary)
    for t in range(11):
        assert len(cache) == min(t, n_first + window - 1)
        out = layer(x[:, t : t + 1], cache=cache)
        recent = max(n_first, t - window + 1)
        seen = torch.cat([x[:, : min(n_first, t + 1)], x[:, recent : t + 1]], dim=1)
        assert_close(out, layer(seen, mask=Causal())[:, -1:], rtol=1e-4, atol=1e-5)


def test_a_streaming_cache_without_rotation_keeps_keys_as_they_are():
    k, v = torch.randn(2, B, H, 6, D)
    cache = StreamingCache(1, 2)
    for t in range(6):
        seen, values = cache.append(k[:, :, t : t + 1], v[:, :, t : t + 1])
    torch.testing.assert_close(seen, k[:, :, [0, 4, 5]])
    torch.testing.assert_close(values, v[:, :, [0, 4, 5]])
    other = copy(cache)
    other.append(k[:, :, :1], v[:, :, :1])
    torch.testing.assert_close(cache.kept[0], k[:, :, [0, 5]])


def test_a_streaming_cache_takes_a_beginning_at_once_if_it_fits():
    k = torch.randn(B, H, 4, D)
    cache = StreamingCache(1, 3)
    assert cache.append(k, k)[0].shape[-2] == 4
    with pytest.raises(ValueError, match="k and v must come one position at a time once 4 are full, got 2"):
        cache.append(k[:, :, :2], k[:, :, :2])
    with pytest.raises(ValueError, match="window must be"):
        StreamingCache(1, 0)
    with pytest.raises(ValueError, match="n_first must be"):
        StreamingCache(-1, 2)


def test_gradients_pass_through_the_cache():
    layer = MultiHeadAttention(D, H)
    x = torch.randn(B, N, D, requires_grad=True)
    cache = KVCache()
    stepwise = torch.cat([layer(row, cache=cache) for row in x.split(1, dim=1)], dim=1)
    inputs = {"x": x, **dict(layer.named_parameters())}
    assert_close(gradients(stepwise, inputs), gradients(layer(x, mask=masks.causal(N)), inputs))


def test_gradients_survive_steps_without_them():
    """Keys that a graph needs are not written over, be they of a frozen projection or of a prefix without gradients."""
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


# --- what queries and keys go through -------------------------------------------------------------------------------


def test_prepare_receives_the_heads_and_where_they_stand():
    seen = []

    def spy(q, k, positions):
        seen.append((q.shape, k.shape, positions.tolist()))
        return 2 * q, k

    layer, plain = MultiHeadAttention(D, 6, n_kv_heads=2, prepare=spy), MultiHeadAttention(D, 6, n_kv_heads=2)
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


def test_added_positions_are_in_the_scores_and_not_in_the_values():
    to_queries, to_keys = LearnedPositions(11, 4), LearnedPositions(11, 4)
    for table in (to_queries, to_keys):
        nn.init.normal_(table.weight)
    layer = MultiHeadAttention(D, H, prepare=AddPositions(to_queries, to_keys))
    x, positions = torch.randn(B, N, D), torch.stack([torch.randperm(11)[:N] for _ in range(B)])
    q, k, v = (w(x).unflatten(-1, (H, 4)).transpose(1, 2) for w in (layer.w_q, layer.w_k, layer.w_v))
    q, k = q + to_queries.weight[positions][:, None], k + to_keys.weight[positions][:, None]
    expected = attention(q, k, v, masks.causal(N))
    out = layer(x, mask=masks.causal(N), positions=positions)
    assert_close(out, layer.w_o(expected.transpose(1, 2).flatten(2)))
    out.sum().backward()
    assert all(table.weight.grad.any() for table in (to_queries, to_keys))


def test_added_positions_can_look_one_back():
    """What no pair of equal vectors could: the score of the key before is above that of the query's own place."""
    prepare = AddPositions(
        lambda positions: 50 * torch.eye(M)[positions - 1], lambda positions: torch.eye(M)[positions]
    )
    layer = MultiHeadAttention(M, 1, prepare=prepare)
    weights = layer.weights(torch.zeros(1, M, M), mask=masks.causal(M))[0, 0]
    assert_close(weights[torch.arange(1, M), torch.arange(M - 1)], torch.ones(M - 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["rotary", "a function", "a module"])
def test_the_older_position_is_the_same_with_a_warning(kind):
    rotary, table = RotaryEmbedding(4), LearnedPositions(11, 4)

    class Added(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = table

        def forward(self, x, positions):
            return x + self.table(positions)

    position = {"rotary": rotary, "a function": lambda x, p: rotary(x, p), "a module": Added()}[kind]
    prepare = AddPositions(table, table) if kind == "a module" else rotary.prepare
    with pytest.warns(DeprecationWarning, match=r"give prepare=g with g\(q, k, positions\) -> \(q, k\)"):
        older = MultiHeadAttention(D, H, position=position)
    layer, x = MultiHeadAttention(D, H, prepare=prepare), torch.randn(B, N, D)
    layer.load_state_dict({name: t for name, t in older.state_dict().items() if "w_" in name}, strict=False)
    assert_close(older(x), layer(x))
    saved = {name.replace("prepare.position.", "position."): t for name, t in older.state_dict().items()}
    assert ("position.table.weight" in saved) == (kind == "a module")
    older.load_state_dict(saved)  # as files of that time have it


# --- bad input ------------------------------------------------------------------------------------------------------


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
        ({"position": AlibiBias(H)}, r"goes to forward as bias"),
        (
            {"prepare": AlibiBias(H)},
            r"prepare\(q, k, positions\), got AlibiBias.*AlibiBias returns goes to forward as bias",
        ),
        ({"prepare": RotaryEmbedding(4)}, r"got RotaryEmbedding.*of a rotary embedding give the method .prepare"),
        ({"prepare": LearnedPositions(M, 4)}, r"prepare must be callable as prepare\(q, k, positions\)"),
        ({"prepare": RotaryEmbedding(4).prepare, "position": RotaryEmbedding(4)}, r"the older name of prepare"),
    ],
)
def test_a_layer_that_makes_no_sense_is_refused(given, message):
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
        ({"x": x, "positions": torch.arange(N)}, r"positions were given to a layer without prepare"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(method, given, message):
    with pytest.raises(ValueError, match=message):
        getattr(MultiHeadAttention(D, H), method)(**given)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"context": x}, r"prepare relates places of one sequence"),
        ({"positions": torch.arange(N + 1)}, r"positions must be \(n,\) or \(b, n\) for x over \(2, 5\), got \(6,\)"),
        ({"positions": torch.zeros(H, N)}, r"got \(3, 5\)"),
    ],
)
def test_positions_that_do_not_fit_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(D, H, prepare=RotaryEmbedding(4).prepare)(x, **given)


@pytest.mark.rejects
def test_what_changes_a_shape_is_refused():
    for prepare in (lambda q, k, positions: (q[..., 1:], k), lambda q, k, positions: (q, k[:, :1])):
        with pytest.raises(
            ValueError, match=r"prepare must keep the shapes of queries and keys, \(\(2, 3, 5, 4\), .*, got"
        ):
            MultiHeadAttention(D, H, prepare=prepare)(x)


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
def test_a_cache_takes_only_what_continues_it(k, v, message):
    cache = KVCache()
    cache.append(torch.zeros(B, H, N, 4, dtype=torch.float32), torch.zeros(B, H, N, 4, dtype=torch.float32))
    with pytest.raises(ValueError, match=message):
        cache.append(k, v)
    assert len(cache) == N


@pytest.mark.rejects
def test_a_cache_cuts_and_picks_what_it_has():
    cache = KVCache()
    with pytest.raises(ValueError, match="rows can be picked from what is kept; nothing is kept yet"):
        cache.pick(torch.tensor([0]))
    cache.append(*rows(2))
    for n in (-1, 3):
        with pytest.raises(ValueError, match=r"n must be at (least 0|most 2)"):
            cache.cut(n)
    for picked in (torch.tensor([B]), torch.tensor([-1])):
        with pytest.raises(ValueError, match=rf"rows must be from 0 to {B - 1}"):
            cache.pick(picked)
    for picked in (torch.tensor([True] * B), torch.tensor(0), torch.tensor([], dtype=torch.long), torch.ones(1)):
        with pytest.raises(ValueError, match=r"rows must be the numbers of some rows"):
            cache.pick(picked)
    assert len(cache) == 2


# --- tests that must fail -------------------------------------------------------------------------------------------


class WidthSplitTheOtherWay(MultiHeadAttention):
    """Splits the width as (d h) instead of (h d)."""

    def _heads(self, x, *_):
        return tuple(w(x).unflatten(-1, (-1, self.n_heads)).permute(0, 3, 1, 2) for w in (self.w_q, self.w_k, self.w_v))


class WrongScale(MultiHeadAttention):
    """Divides by the root of d_model."""

    def _heads(self, *given):
        q, k, v = super()._heads(*given)
        return q * (self.d_head / self.d_model) ** 0.5, k, v


class GroupsTaken(MultiHeadAttention):
    """Lets query head i use key/value head i mod g instead of i // (h / g)."""

    def _heads(self, *given):
        q, k, v = super()._heads(*given)
        times = self.n_heads // self.n_kv_heads
        return q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)


@pytest.mark.parametrize("wrong", [WidthSplitTheOtherWay, WrongScale], ids=lambda wrong: wrong.__name__)
def test_parity_catches(wrong):
    ours, theirs = both()
    ours.__class__ = wrong
    sample = torch.randn(B, N, D)
    with pytest.raises(AssertionError):
        assert_close(ours(sample), theirs(sample, sample, sample)[0])


def test_the_groups_test_catches_heads_dealt_in_turn():
    right = MultiHeadAttention(D, 6, n_kv_heads=2)
    wrong = deepcopy(right)
    wrong.__class__ = GroupsTaken
    sample = torch.randn(B, N, D)
    with pytest.raises(AssertionError):
        assert_close(wrong(sample), right(sample))


# --- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", [attention, fused_attention], ids=["specification", "fused"])
def test_a_layer_takes_a_rule(implementation):
    layer = MultiHeadAttention(D, 6, n_kv_heads=3, implementation=implementation)
    x, rule = torch.randn(B, N, D), Causal() & Padding(torch.tensor([N, 2]))
    assert_close(layer(x, mask=rule), layer(x, mask=rule.tensor(N)))
    assert_close(layer.weights(x, mask=rule), layer.weights(x, mask=rule.tensor(N)), rtol=0, atol=0)
    cache = KVCache()
    parts = [layer(part, mask=Causal(), cache=cache) for part in x.split([2, 1, N - 3], dim=1)]
    assert_close(torch.cat(parts, dim=1), layer(x, mask=Causal()))


def test_who_asks_no_rules_is_handed_the_table():
    given = []

    def plain(q, k, v, mask, *, bias, dropout_p):
        given.append(mask)
        return attention(q, k, v, mask)

    layer, x = MultiHeadAttention(D, 6, implementation=plain), torch.randn(B, N, D)
    layer(x, mask=Causal())
    assert torch.equal(given[0], masks.causal(N))


def test_the_layers_inside_a_module_are_asked_what_they_take():
    plain, asking = MultiHeadAttention(D, 6), MultiHeadAttention(D, 6, implementation=fused_attention)
    both, rule, here = nn.ModuleList([plain, asking]), Causal(), torch.device("cpu")
    assert as_layers_take(asking, rule, 3, 5, here) is rule
    assert torch.equal(as_layers_take(both, rule, 3, 5, here), masks.causal(3, 5))
    assert as_layers_take(both, None, 3, 5, here) is None
