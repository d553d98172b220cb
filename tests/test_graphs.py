"""GAT ranks alike for every query, the others need not; nothing flows without an edge; nodes have no order."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import leaky_relu
from torch.testing import assert_close

from lessons_lib.graphs import (
    SCORES,
    GraphAttention,
    GraphConvolution,
    dot_scores,
    gat_scores,
    gatv2_scores,
    normalised,
    propagate_labels,
    with_loops,
)

B, H, N, M, D, WIDE = 2, 3, 5, 7, 4, 6  # batch, heads, queries (nodes), keys, width of a head, width of a node
seeds = st.integers(0, 2**31)


def graph(n=N, density=0.4):
    """Edges in one direction or both, no loop, and nobody alone."""
    drawn = torch.rand(n, n) < density
    ring = torch.eye(n, dtype=torch.bool).roll(1, 0)
    return (drawn | ring) & ~torch.eye(n, dtype=torch.bool)


def path(n=N):
    step = torch.ones(n - 1, dtype=torch.bool)
    return step.diag(1) | step.diag(-1)


def scored(kind, query, key):
    """Scores of one kind with a vector ``a`` of its own for each of the leading axes."""
    if kind == "dot":
        return dot_scores(query, key)
    d = query.shape[-1] * (2 if kind == "gat" else 1)
    return (gat_scores if kind == "gat" else gatv2_scores)(query, key, torch.randn(*query.shape[:-2], d))


# --- scores ---------------------------------------------------------------------------------------------------------


def test_the_scores_are_the_papers_pair_by_pair():
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


def test_gatv2_is_one_matrix_on_the_two_vectors_end_to_end():
    x, y, w, a = torch.randn(N, WIDE), torch.randn(M, WIDE), torch.randn(D, 2 * WIDE), torch.randn(D)
    ours = gatv2_scores(x @ w[:, :WIDE].T, y @ w[:, WIDE:].T, a)
    assert_close(ours[1, 4], a @ leaky_relu(w @ torch.cat([x[1], y[4]]), 0.2))


@given(seed=seeds, slope=st.floats(0.01, 3.0))
def test_gat_is_static_all_queries_rank_the_keys_alike(seed, slope):
    """And GATv2 and dot products of the same vectors do not: there the law would not be one."""
    torch.manual_seed(seed)
    query, key = torch.randn(N, D), torch.randn(M, D)
    ranks = gat_scores(query, key, torch.randn(2 * D), slope=slope).argsort(dim=-1)
    assert (ranks == ranks[0]).all()


@pytest.mark.parametrize("kind", ["gatv2", "dot"])
def test_the_others_rank_for_each_query_in_its_own_way(kind):
    ranks = scored(kind, torch.randn(N, D), torch.randn(M, D)).argsort(dim=-1)
    assert not (ranks == ranks[0]).all()


@pytest.mark.parametrize("n", [2, 8])
def test_gatv2_and_dot_products_can_give_each_query_a_key_of_its_own(n):
    """By construction: -|e_u - e_v| is a sum of two bent differences; e_u . e_v is a dot product."""
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
def test_scores_refuse_what_does_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randn(N, D), torch.randn(M, D))


# --- the layer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SCORES)
def test_it_equals_a_loop_over_the_edges(kind):
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


@pytest.mark.parametrize("kind", SCORES)
def test_forward_averages_with_the_weights_it_shows(kind):
    layer, x, mask = GraphAttention(WIDE, D, H, scores=kind), torch.randn(B, N, WIDE), graph()
    weights = layer.weights(x, mask)
    assert weights.shape == (B, H, N, N)
    assert_close(weights.sum(-1), torch.ones(B, H, N))
    values = layer.w_v(x).view(B, N, H, D).transpose(1, 2)
    assert_close(layer(x, mask), (weights @ values).transpose(1, 2).reshape(B, N, H * D))


@pytest.mark.parametrize("kind", SCORES)
def test_nothing_flows_where_there_is_no_edge(kind):
    layer, x, mask = GraphAttention(WIDE, D, H, scores=kind), torch.randn(N, WIDE, requires_grad=True), graph()
    assert (layer.weights(x, mask)[:, ~mask] == 0).all()
    for u in range(N):
        (reached,) = torch.autograd.grad(layer(x, mask)[u].sum(), x)
        seen = mask[u].clone()
        seen[u] = True  # its own query
        assert (reached[~seen] == 0).all()
        assert (reached[mask[u]].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("kind", SCORES)
def test_a_lonely_node_gets_zeros_and_no_gradient_of_it_is_lost(kind):
    layer, x, mask = GraphAttention(WIDE, D, H, scores=kind), torch.randn(N, WIDE, requires_grad=True), graph()
    mask[2] = False
    out = layer(x, mask)
    assert (out[2] == 0).all()
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    assert gradient.isfinite().all()
    assert (layer(x, with_loops(mask))[2] != 0).any()


@pytest.mark.parametrize("kind", SCORES)
def test_each_neighbourhood_is_weighed_from_its_own_maximum(kind):
    """With one maximum for the whole graph, rows far below it would be 0 / 0."""
    layer, mask = GraphAttention(1, 1, 1, scores=kind), torch.eye(4, dtype=torch.bool).roll(1, 0)
    for parameter in layer.parameters():
        nn.init.constant_(parameter, 1.0)
    x = torch.tensor([[1.0], [1e3], [-1e3], [1e4]])
    assert_close(layer.weights(x, mask), mask[None].double())


@pytest.mark.parametrize("kind", [*SCORES, "convolution"])
def test_new_names_for_the_nodes_rename_the_output(kind):
    layer = GraphConvolution(WIDE, D) if kind == "convolution" else GraphAttention(WIDE, D, H, scores=kind)
    x, mask, order = torch.randn(N, WIDE), graph(), torch.randperm(N)
    mask = mask | mask.T
    assert_close(layer(x[order], mask[order][:, order]), layer(x, mask)[order])


def test_a_mask_for_each_graph_and_head():
    layer, x = GraphAttention(WIDE, D, H), torch.randn(B, N, WIDE)
    mask = torch.stack([torch.stack([graph() for _ in range(H)]) for _ in range(B)])
    weights = layer.weights(x, mask)
    for b in range(B):
        for h in range(H):
            assert_close(weights[b, h], layer.weights(x[b], mask[b, h])[h])
    with pytest.raises(ValueError, match="mask must be one graph"):
        layer(x, mask[:, 0])


def test_dropout_drops_weights_in_training_alone():
    layer, x, mask = GraphAttention(WIDE, D, H, dropout=0.5), torch.randn(N, WIDE), graph()
    assert not layer(x, mask).equal(layer(x, mask))
    layer.eval()
    assert layer(x, mask).equal(layer(x, mask))
    assert layer.train().weights(x, mask).equal(layer.weights(x, mask))


def test_kinds_differ_in_the_vector_of_the_score_alone():
    sizes = {kind: sum(p.numel() for p in GraphAttention(WIDE, D, H, scores=kind).parameters()) for kind in SCORES}
    assert sizes == {kind: H * (3 * WIDE * D + extra * D) for kind, extra in zip(SCORES, (2, 1, 0), strict=True)}


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
def test_the_layer_refuses(arguments, options, message):
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
def test_layers_refuse_what_does_not_fit(layer, x, mask, message):
    with pytest.raises(ValueError, match=message):
        layer.double()(x.double(), mask)


# --- without attention ----------------------------------------------------------------------------------------------


def test_convolution_is_the_formula_of_the_paper():
    layer, x, mask = GraphConvolution(WIDE, D), torch.randn(B, N, WIDE), with_loops(path())
    shift = torch.randn(D)
    layer.b = nn.Parameter(shift)
    a = mask.double()
    root = a.sum(0).diag().inverse().sqrt()
    assert_close(layer(x, mask), root @ a @ root @ x @ layer.w.weight.T + shift)
    assert GraphConvolution(WIDE, D, bias=False).b is None


def test_a_normalised_graph_keeps_its_spectrum_within_one():
    values = torch.linalg.eigvalsh(normalised(path()))
    assert_close(values[[0, -1]], torch.tensor([-1.0, 1.0]))  # a path has two colours: -1 is reached
    lonely = path()
    lonely[0] = lonely[:, 0] = False
    assert (normalised(lonely)[0] == 0).all()
    assert normalised(lonely).isfinite().all()
    assert normalised(path(), dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.9])
def test_labels_spread_to_the_fixed_point_which_is_the_sum_of_the_series(alpha):
    mask, labels = path(7) | path(7).roll((2, 2), (0, 1)), torch.zeros(7, 3)
    labels[0, 0] = labels[4, 1] = labels[6, 2] = 1
    found, step = propagate_labels(mask, labels, alpha=alpha), torch.zeros(7, 3)
    for _ in range(600):
        step = alpha * normalised(mask) @ step + (1 - alpha) * labels
    assert_close(found, step)


def test_labels_go_to_the_nearer_source_and_nowhere_without_a_way():
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
        (lambda: normalised(graph().triu()), "mask must be symmetric"),
        (lambda: normalised(path()[1:]), "square table"),
        (lambda: with_loops(path().double()), "truth values"),
        (lambda: propagate_labels(path(), torch.zeros(N, 2), alpha=1.0), "alpha must be in"),
        (lambda: propagate_labels(path(), torch.zeros(N + 1, 2)), "labels \\(n, n_classes\\)"),
        (lambda: propagate_labels(path(), torch.zeros(N)), "labels \\(n, n_classes\\)"),
        (lambda: propagate_labels(path(), torch.zeros(N, 2).long()), "labels must hold floating-point"),
    ],
)
def test_graphs_and_labels_refuse_what_does_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- a dictionary to look up ----------------------------------------------------------------------------------------


def test_a_head_of_gat_has_one_first_choice_where_dot_products_learn_one_for_each():
    """Six askers linked to the same six entries; each must find the entry that has its own word."""
    k = 6
    mask = torch.zeros(2 * k, 2 * k, dtype=torch.bool)
    mask[:k, k:] = True
    x = torch.cat([torch.eye(k), torch.zeros(k, k)], -1)
    x = torch.cat([x, x.roll(k, -1)])
    choices = {}
    for kind in SCORES:
        layer = GraphAttention(2 * k, k, 1, scores=kind)
        optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
        for _ in range(150):
            optimiser.zero_grad()
            (-layer.weights(x, mask)[0, :k, k:].diag().log().mean()).backward()
            optimiser.step()
        choices[kind] = len(set(layer.weights(x, mask)[0, :k, k:].argmax(-1).tolist()))
    assert choices == {"gat": 1, "gatv2": k, "dot": k}
