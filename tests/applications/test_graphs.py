"""Tests of graph attention scores and layers, graph convolution and label propagation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import leaky_relu
from torch.testing import assert_close

from lessons_lib.applications.graphs import (
    SCORE_KINDS,
    GraphAttention,
    GraphConvolution,
    add_self_loops,
    dot_scores,
    gat_scores,
    gatv2_scores,
    normalised_adjacency,
    propagate_labels,
)

B, H, N, M, D, WIDE = 2, 3, 5, 7, 4, 6  # batch, heads, queries (nodes), keys, width of a head, width of a node
seeds = st.integers(0, 2**31)


def graph(n=N, density=0.4):
    """A random directed graph without self-loops, in which every node has a neighbour."""
    drawn = torch.rand(n, n) < density
    ring = torch.eye(n, dtype=torch.bool).roll(1, 0)
    return (drawn | ring) & ~torch.eye(n, dtype=torch.bool)


def path(n=N):
    step = torch.ones(n - 1, dtype=torch.bool)
    return step.diag(1) | step.diag(-1)


def random_scores(kind, query, key):
    """Scores of one kind with a random vector ``a`` for each index of the leading axes."""
    if kind == "dot":
        return dot_scores(query, key)
    d = query.shape[-1] * (2 if kind == "gat" else 1)
    return (gat_scores if kind == "gat" else gatv2_scores)(query, key, torch.randn(*query.shape[:-2], d))


# --- scores ---------------------------------------------------------------------------------------------------------


def test_scores_equal_the_formulas_of_the_papers():
    query, key, slope = torch.randn(H, N, D), torch.randn(H, M, D), 0.3
    of_pair, of_sum = torch.randn(H, 2 * D), torch.randn(H, D)
    gat, gatv2 = gat_scores(query, key, of_pair, slope=slope), gatv2_scores(query, key, of_sum, slope=slope)
    for h in range(H):
        for i in range(N):
            for j in range(M):
                q, k = query[h, i], key[h, j]
                assert_close(gat[h, i, j], leaky_relu(of_pair[h] @ torch.cat([q, k]), slope))
                assert_close(gatv2[h, i, j], of_sum[h] @ leaky_relu(q + k, slope))
    assert_close(dot_scores(query, key)[1, 2, 3], query[1, 2] @ key[1, 3] / D**0.5)


def test_gatv2_scores_equal_one_matrix_on_concatenated_vectors():
    x, y, w, a = torch.randn(N, WIDE), torch.randn(M, WIDE), torch.randn(D, 2 * WIDE), torch.randn(D)
    ours = gatv2_scores(x @ w[:, :WIDE].T, y @ w[:, WIDE:].T, a)
    assert_close(ours[1, 4], a @ leaky_relu(w @ torch.cat([x[1], y[4]]), 0.2))


@given(seed=seeds, slope=st.floats(0.01, 3.0))
def test_gat_scores_rank_the_keys_alike_for_all_queries(seed, slope):
    """GAT is static attention: the order of the keys does not depend on the query."""
    torch.manual_seed(seed)
    query, key = torch.randn(N, D), torch.randn(M, D)
    ranks = gat_scores(query, key, torch.randn(2 * D), slope=slope).argsort(dim=-1)
    assert (ranks == ranks[0]).all()


@pytest.mark.parametrize("kind", ["gatv2", "dot"])
def test_gatv2_and_dot_scores_rank_the_keys_differently_for_each_query(kind):
    ranks = random_scores(kind, torch.randn(N, D), torch.randn(M, D)).argsort(dim=-1)
    assert not (ranks == ranks[0]).all()


@pytest.mark.parametrize("n", [2, 8])
def test_gatv2_and_dot_scores_can_select_a_different_key_for_each_query(n):
    """GATv2 scores can equal -|e_u - e_v|, a sum of two LeakyReLUs; dot scores can equal e_u . e_v."""
    own = torch.eye(n)
    both_signs, slope = torch.cat([own, -own], dim=-1), 0.2
    distance = gatv2_scores(both_signs, -both_signs, -torch.ones(2 * n) / (1 - slope), slope=slope)
    assert_close(distance, 2 * (own - 1))  # LeakyReLU(z) + LeakyReLU(-z) = (1 - slope) |z|
    assert distance.argmax(dim=-1).equal(torch.arange(n))
    assert dot_scores(own, own).argmax(dim=-1).equal(torch.arange(n))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k: gat_scores(q, k, torch.ones(D)), "a must be \\(8,\\)"),
        (lambda q, k: gatv2_scores(q, k, torch.ones(2 * D)), "a must be \\(4,\\)"),
        (lambda q, k: gatv2_scores(q, k, torch.ones(H, D)), "leading axes that broadcast to \\(\\)"),
        (lambda q, k: gat_scores(q, k, torch.ones(2 * D), slope=0.0), "slope must be finite and above 0"),
        (lambda q, k: gatv2_scores(q, k, torch.ones(D), slope=-0.2), "slope must be finite and above 0"),
        (lambda q, k: dot_scores(q, k[:, 1:]), "query and key must be"),
        (lambda q, k: dot_scores(q[None], k), "query and key must be"),
        (lambda q, k: dot_scores(q, k.long()), "key must hold floating-point"),
        (lambda q, k: gat_scores(q, k, torch.ones(2 * D).float()), "same dtype"),
    ],
)
def test_scores_invalid_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randn(N, D), torch.randn(M, D))


# --- the layer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SCORE_KINDS)
def test_graph_attention_equals_a_loop_over_edges(kind):
    layer, x, mask = GraphAttention(WIDE, D, H, scores=kind), torch.randn(N, WIDE), graph()
    ours = layer(x, mask)
    q, k, v = ((w(x)).view(N, H, D) for w in (layer.w_q, layer.w_k, layer.w_v))
    assert ours.shape == (N, H * D)
    a = layer.a if layer.a is not None else torch.zeros(H)
    for u in range(N):
        for h in range(H):
            pairs = [(q[u, h], k[j, h]) for j in mask[u].nonzero()[:, 0]]
            score = {
                "gat": lambda q, k, h=h: leaky_relu(a[h] @ torch.cat([q, k]), 0.2),
                "gatv2": lambda q, k, h=h: a[h] @ leaky_relu(q + k, 0.2),
                "dot": lambda q, k: q @ k / D**0.5,
            }[kind]
            weights = torch.stack([score(*pair) for pair in pairs]).softmax(0)
            assert_close(ours[u, h * D : (h + 1) * D], weights @ v[mask[u], h])


@pytest.mark.parametrize("kind", SCORE_KINDS)
def test_graph_attention_forward_uses_its_weights(kind):
    layer, x, mask = GraphAttention(WIDE, D, H, scores=kind), torch.randn(B, N, WIDE), graph()
    weights = layer.weights(x, mask)
    assert weights.shape == (B, H, N, N)
    assert_close(weights.sum(-1), torch.ones(B, H, N))
    values = layer.w_v(x).view(B, N, H, D).transpose(1, 2)
    assert_close(layer(x, mask), (weights @ values).transpose(1, 2).reshape(B, N, H * D))


@pytest.mark.parametrize("kind", SCORE_KINDS)
def test_graph_attention_has_no_gradient_without_an_edge(kind):
    layer, x, mask = GraphAttention(WIDE, D, H, scores=kind), torch.randn(N, WIDE, requires_grad=True), graph()
    assert (layer.weights(x, mask)[:, ~mask] == 0).all()
    for u in range(N):
        (reached,) = torch.autograd.grad(layer(x, mask)[u].sum(), x)
        seen = mask[u].clone()
        seen[u] = True  # the node's own query
        assert (reached[~seen] == 0).all()
        assert (reached[mask[u]].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("kind", SCORE_KINDS)
def test_graph_attention_isolated_node_returns_zeros_and_finite_gradients(kind):
    layer, x, mask = GraphAttention(WIDE, D, H, scores=kind), torch.randn(N, WIDE, requires_grad=True), graph()
    mask[2] = False
    out = layer(x, mask)
    assert (out[2] == 0).all()
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    assert gradient.isfinite().all()
    assert (layer(x, add_self_loops(mask))[2] != 0).any()


@pytest.mark.parametrize("kind", SCORE_KINDS)
def test_graph_attention_softmax_subtracts_the_maximum_of_each_row(kind):
    """With one maximum for the whole graph, rows with much smaller scores would be 0 / 0."""
    layer, mask = GraphAttention(1, 1, 1, scores=kind), torch.eye(4, dtype=torch.bool).roll(1, 0)
    for parameter in layer.parameters():
        nn.init.constant_(parameter, 1.0)
    x = torch.tensor([[1.0], [1e3], [-1e3], [1e4]])
    assert_close(layer.weights(x, mask), mask[None].double())


@pytest.mark.parametrize("kind", [*SCORE_KINDS, "convolution"])
def test_graph_layers_are_permutation_equivariant(kind):
    layer = GraphConvolution(WIDE, D) if kind == "convolution" else GraphAttention(WIDE, D, H, scores=kind)
    x, mask, order = torch.randn(N, WIDE), graph(), torch.randperm(N)
    mask = mask | mask.T
    assert_close(layer(x[order], mask[order][:, order]), layer(x, mask)[order])


def test_graph_attention_mask_for_each_graph_and_head():
    layer, x = GraphAttention(WIDE, D, H), torch.randn(B, N, WIDE)
    mask = torch.stack([torch.stack([graph() for _ in range(H)]) for _ in range(B)])
    weights = layer.weights(x, mask)
    for b in range(B):
        for h in range(H):
            assert_close(weights[b, h], layer.weights(x[b], mask[b, h])[h])
    with pytest.raises(ValueError, match="mask must be one graph"):
        layer(x, mask[:, 0])


def test_graph_attention_dropout_in_training_only():
    layer, x, mask = GraphAttention(WIDE, D, H, dropout=0.5), torch.randn(N, WIDE), graph()
    assert not layer(x, mask).equal(layer(x, mask))
    layer.eval()
    assert layer(x, mask).equal(layer(x, mask))
    assert layer.train().weights(x, mask).equal(layer.weights(x, mask))


def test_graph_attention_parameter_counts_differ_only_in_a():
    sizes = {kind: sum(p.numel() for p in GraphAttention(WIDE, D, H, scores=kind).parameters()) for kind in SCORE_KINDS}
    assert sizes == {kind: H * (3 * WIDE * D + extra * D) for kind, extra in zip(SCORE_KINDS, (2, 1, 0), strict=True)}


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, D, H), {}, "d_in must be at least 1"),
        ((WIDE, 2.0, H), {}, "d_head must be an integer"),
        ((WIDE, D, H), {"scores": "gat2"}, "scores must be one of gat, gatv2, dot"),
        ((WIDE, D, H), {"dropout": 1.0}, "dropout must be in"),
        ((WIDE, D, H), {"slope": 0.0}, "slope must be finite and above 0"),
    ],
)
def test_graph_attention_invalid_options_raise(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        GraphAttention(*arguments, **options)


@pytest.mark.rejects
@pytest.mark.parametrize("layer", [GraphAttention(WIDE, D, H), GraphConvolution(WIDE, D)], ids=["attention", "gcn"])
@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (torch.ones(N, WIDE + 1), path(), "x must end in an axis of size d_model=6"),
        (torch.ones(WIDE), path(), "a vector for each node"),
        (torch.ones(N, WIDE), path().double(), "mask must be"),
        (torch.ones(N, WIDE), path(N + 1), "mask must b"),
    ],
    ids=["width", "axes", "type", "nodes"],
)
def test_graph_layers_invalid_inputs_raise(layer, x, mask, message):
    with pytest.raises(ValueError, match=message):
        layer.double()(x.double(), mask)


# --- without attention ----------------------------------------------------------------------------------------------


def test_graph_convolution_equals_the_formula_of_the_paper():
    layer, x, mask = GraphConvolution(WIDE, D), torch.randn(B, N, WIDE), add_self_loops(path())
    shift = torch.randn(D)
    layer.b = nn.Parameter(shift)
    a = mask.double()
    root = a.sum(0).diag().inverse().sqrt()
    assert_close(layer(x, mask), root @ a @ root @ x @ layer.w.weight.T + shift)
    assert GraphConvolution(WIDE, D, bias=False).b is None


def test_normalised_adjacency_eigenvalues_lie_within_one():
    values = torch.linalg.eigvalsh(normalised_adjacency(path()))
    assert_close(values[[0, -1]], torch.tensor([-1.0, 1.0]))  # a path is bipartite, so -1 is an eigenvalue
    isolated = path()
    isolated[0] = isolated[:, 0] = False
    assert (normalised_adjacency(isolated)[0] == 0).all()
    assert normalised_adjacency(isolated).isfinite().all()
    assert normalised_adjacency(path(), dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.9])
def test_propagate_labels_equals_the_fixed_point_iteration(alpha):
    mask, labels = path(7) | path(7).roll((2, 2), (0, 1)), torch.zeros(7, 3)
    labels[0, 0] = labels[4, 1] = labels[6, 2] = 1
    found, step = propagate_labels(mask, labels, alpha=alpha), torch.zeros(7, 3)
    for _ in range(600):
        step = alpha * normalised_adjacency(mask) @ step + (1 - alpha) * labels
    assert_close(found, step)


def test_propagate_labels_prefers_near_labels_and_needs_a_path():
    mask, labels = path(8), torch.zeros(8, 2)
    mask[5, 6] = mask[6, 5] = False
    labels[0, 0] = labels[5, 1] = 1
    found = propagate_labels(mask, labels)
    assert found[:6].argmax(-1).tolist() == [0, 0, 0, 1, 1, 1]
    assert (found[6:] == 0).all()


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: normalised_adjacency(graph().triu()), "mask must be symmetric"),
        (lambda: normalised_adjacency(path()[1:]), "square table"),
        (lambda: add_self_loops(path().double()), "truth values"),
        (lambda: propagate_labels(path(), torch.zeros(N, 2), alpha=1.0), "alpha must be in"),
        (lambda: propagate_labels(path(), torch.zeros(N + 1, 2)), "labels \\(n, n_classes\\)"),
        (lambda: propagate_labels(path(), torch.zeros(N)), "labels \\(n, n_classes\\)"),
        (lambda: propagate_labels(path(), torch.zeros(N, 2).long()), "labels must hold floating-point"),
    ],
)
def test_graph_functions_invalid_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- a key for each query -------------------------------------------------------------------------------------------


def test_gat_head_learns_one_key_for_all_queries_and_others_one_for_each():
    """Six queries with the same six keys as neighbours; each query must select its own key."""
    k = 6
    mask = torch.zeros(2 * k, 2 * k, dtype=torch.bool)
    mask[:k, k:] = True
    x = torch.cat([torch.eye(k), torch.zeros(k, k)], -1)
    x = torch.cat([x, x.roll(k, -1)])
    choices = {}
    for kind in SCORE_KINDS:
        layer = GraphAttention(2 * k, k, 1, scores=kind)
        optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
        for _ in range(150):
            optimiser.zero_grad()
            (-layer.weights(x, mask)[0, :k, k:].diag().log().mean()).backward()
            optimiser.step()
        choices[kind] = len(set(layer.weights(x, mask)[0, :k, k:].argmax(-1).tolist()))
    assert choices == {"gat": 1, "gatv2": k, "dot": k}
