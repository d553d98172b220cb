r"""Graph attention, graph convolution and label propagation.

A graph of ``n`` nodes is a Boolean adjacency matrix over ``(n, n)``, used as an attention mask: ``mask[u, v]`` is True
if node ``u`` may attend to node ``v``. Row ``u`` is the *neighbourhood* of ``u``, and the softmax is over this row. A
node is its own neighbour only if the matrix has a self-loop, see :func:`add_self_loops`.

There are three score functions of a query :math:`q_u = W^Q x_u` and a key :math:`k_v = W^K x_v`:

.. math::
    s^{\text{GAT}}_{uv} = \operatorname{LeakyReLU}\!\left(a^\top [q_u \,\|\, k_v]\right), \qquad
    s^{\text{GATv2}}_{uv} = a^\top \operatorname{LeakyReLU}(q_u + k_v), \qquad
    s^{\text{dot}}_{uv} = \frac{q_u \cdot k_v}{\sqrt{d}}

The first is *static* attention [2]_: it increases with :math:`a_k \cdot k_v`, the part of
:math:`a^\top [q_u \,\|\, k_v]` that depends on :math:`v`, so all queries rank the keys in the same order. With the
other two, different queries may rank the keys differently.

.. [1] Veličković et al., *Graph Attention Networks*, 2018. arXiv:1710.10903.
.. [2] Brody et al., *How Attentive are Graph Attention Networks?*, 2022. arXiv:2105.14491.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from lessons_lib.attention.softmax import softmax
from lessons_lib.foundations.validation import (
    broadcasts_to,
    check_above,
    check_floating,
    check_fraction,
    check_mask,
    check_size,
    check_vectors,
)

SCORE_KINDS = ("gat", "gatv2", "dot")

# --- scores ---------------------------------------------------------------------------------------------------------


def gat_scores(
    query: Float[Tensor, "*batch n d"],
    key: Float[Tensor, "*batch m d"],
    a: Float[Tensor, "*#batch 2*d"],
    *,
    slope: float = 0.2,
) -> Float[Tensor, "*batch n m"]:
    r"""Return the GAT scores of every query and key [1]_.

    .. math:: s_{uv} = \operatorname{LeakyReLU}\!\left(a^\top [q_u \,\|\, k_v]\right)
                     = \operatorname{LeakyReLU}\!\left(a_q \cdot q_u + a_k \cdot k_v\right)

    ::

        >>> gat_scores(torch.randn(3, 5, 4), torch.randn(3, 7, 4), torch.randn(3, 8)).shape
        torch.Size([3, 5, 7])

    Args:
        query, key: :math:`q_u = W^Q x_u` and :math:`k_v = W^K x_v`. The paper has one matrix for both.
        a: :math:`[a_q \,\|\, a_k]`, one vector, or one for each index of the leading axes (heads).
        slope: slope of the LeakyReLU below zero; positive, so that the LeakyReLU is increasing.

    Raises:
        ValueError: if shapes, types or devices do not match, or the slope is not positive and finite.
    """
    _check_scoring(query, key, slope, a=a, halves=2)
    a_query, a_key = a.chunk(2, dim=-1)
    query_part, key_part = (query * a_query[..., None, :]).sum(dim=-1), (key * a_key[..., None, :]).sum(dim=-1)
    return leaky_relu(query_part[..., :, None] + key_part[..., None, :], slope)


def gatv2_scores(
    query: Float[Tensor, "*batch n d"],
    key: Float[Tensor, "*batch m d"],
    a: Float[Tensor, "*#batch d"],
    *,
    slope: float = 0.2,
) -> Float[Tensor, "*batch n m"]:
    r"""Return the GATv2 scores of every query and key [2]_: the LeakyReLU is applied before the vector ``a``.

    .. math:: s_{uv} = a^\top \operatorname{LeakyReLU}\!\left(W [x_u \,\|\, x_v]\right)
                     = a^\top \operatorname{LeakyReLU}(q_u + k_v)

    because :math:`W = [W^Q \,\|\, W^K]`. It computes :math:`n\, m\, d` intermediate numbers, :func:`gat_scores` only
    :math:`n\, m`.

    ::

        >>> gatv2_scores(torch.randn(3, 5, 4), torch.randn(3, 7, 4), torch.randn(3, 4)).shape
        torch.Size([3, 5, 7])

    Args:
        query, key: :math:`q_u = W^Q x_u` and :math:`k_v = W^K x_v`.
        a: one vector, or one for each index of the leading axes (heads).
        slope: slope of the LeakyReLU below zero; positive.

    Raises:
        ValueError: as :func:`gat_scores`.
    """
    _check_scoring(query, key, slope, a=a, halves=1)
    activations = leaky_relu(query[..., :, None, :] + key[..., None, :, :], slope)
    return (activations * a[..., None, None, :]).sum(dim=-1)


def dot_scores(query: Float[Tensor, "*batch n d"], key: Float[Tensor, "*batch m d"]) -> Float[Tensor, "*batch n m"]:
    r"""Return the scaled dot-product scores of every query and key.

    .. math:: s_{uv} = \frac{q_u \cdot k_v}{\sqrt{d}}

    ::

        >>> dot_scores(torch.randn(3, 5, 4), torch.randn(3, 7, 4)).shape
        torch.Size([3, 5, 7])

    Raises:
        ValueError: if shapes, types or devices do not match.
    """
    _check_scoring(query, key)
    return query @ key.mT / math.sqrt(query.shape[-1])


# --- layers ---------------------------------------------------------------------------------------------------------


class GraphAttention(nn.Module):
    r"""A graph attention layer: each node averages its neighbours' values with attention weights.

    .. math:: y_u = \sum_{v \in N(u)} p_{uv}\, W^V x_v, \qquad p_{u} = \operatorname{softmax}_{v \in N(u)}(s_{uv})

    in each of ``n_heads`` heads, whose outputs are concatenated. The three kinds have separate query, key and value
    matrices and differ only in the score function. In the papers matrices are shared: GAT [1]_ has one for all three,
    GATv2 [2]_ one for keys and values. There is no final nonlinearity. The output of a node without neighbours is
    zero.

    ::

        >>> layer = GraphAttention(6, 4, 3)  # d_in, d_head, n_heads
        >>> layer(torch.randn(2, 5, 6), torch.ones(5, 5, dtype=torch.bool)).shape
        torch.Size([2, 5, 12])

    Args:
        d_in: width of the node features.
        d_head: width of a head; the output has width ``n_heads * d_head``.
        n_heads: number of heads.
        scores: the score function, ``"gat"``, ``"gatv2"`` or ``"dot"``.
        dropout: dropout probability of the attention weights in training.
        slope: slope of the LeakyReLU below zero; unused with ``"dot"``.

    Raises:
        ValueError: if a size is not a positive integer, the kind of scores is unknown, ``dropout`` is not in
            ``[0, 1)`` or the slope not positive; in ``forward`` and ``weights``, if ``x`` does not hold floating-point
            vectors of width ``d_in`` or the mask does not have a valid shape.
    """

    a: Tensor | None

    def __init__(
        self,
        d_in: int,
        d_head: int,
        n_heads: int,
        *,
        scores: str = "gatv2",
        dropout: float = 0.0,
        slope: float = 0.2,
    ) -> None:
        super().__init__()
        for name, size in {"d_in": d_in, "d_head": d_head, "n_heads": n_heads}.items():
            check_size(name, size, at_least=1)
        if scores not in SCORE_KINDS:
            raise ValueError(f"scores must be one of {', '.join(SCORE_KINDS)}, got {scores!r}")
        check_fraction("dropout", dropout)
        check_above("slope", slope, 0)
        self.scores, self.slope, self.n_heads, self.dropout = scores, slope, n_heads, nn.Dropout(dropout)
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_in, n_heads * d_head, bias=False) for _ in range(3))
        width = {"gat": 2 * d_head, "gatv2": d_head, "dot": 0}[scores]
        self.register_parameter("a", nn.Parameter(torch.randn(n_heads, width) / math.sqrt(d_head)) if width else None)

    def forward(
        self, x: Float[Tensor, "*batch n d_in"], mask: Bool[Tensor, "*#graphs n n"]
    ) -> Float[Tensor, "*batch n d_out"]:
        """Average the values of each node's neighbours with the attention weights.

        ``mask`` is one graph, ``(n, n)``, or has the axes ``(*batch, h, n, n)``: the batch axes of ``x`` and an axis
        for the heads, each of which may have size 1.
        """
        weights = self.dropout(self.weights(x, mask))
        return rearrange(weights @ self._heads(self.w_v(x)), "... h n d -> ... n (h d)")

    def weights(
        self, x: Float[Tensor, "*batch n d_in"], mask: Bool[Tensor, "*#graphs n n"]
    ) -> Float[Tensor, "*batch h n n"]:
        """Return the attention weights of ``forward``, before dropout; row ``u`` has the weights of node ``u``."""
        _check_nodes(x, self.w_q.in_features)
        query, key = self._heads(self.w_q(x)), self._heads(self.w_k(x))
        if self.scores == "dot":
            scores = dot_scores(query, key)
        else:
            assert self.a is not None
            scores = (gat_scores if self.scores == "gat" else gatv2_scores)(query, key, self.a, slope=self.slope)
        if mask.ndim not in (2, scores.ndim):
            raise ValueError(
                f"mask must be one graph, (n, n), or have as many axes as the scores, {tuple(scores.shape)}, "
                f"got {tuple(mask.shape)}"
            )
        check_mask(mask, scores)
        return softmax(scores, mask)

    def _heads(self, rows: Tensor) -> Tensor:
        return rearrange(rows, "... n (h d) -> ... h n d", h=self.n_heads)


class GraphConvolution(nn.Module):
    r"""A graph convolution layer: each node averages its neighbours with fixed weights given by the graph [3]_.

    .. math:: Y = \hat A X W + b

    where :math:`\hat A` is the :func:`normalised_adjacency` matrix of the graph :math:`A`. In the paper, :math:`A` has
    self-loops (:func:`add_self_loops`). There is no final nonlinearity.

    ::

        >>> layer = GraphConvolution(6, 4)  # d_in, d_out
        >>> layer(torch.randn(2, 5, 6), torch.ones(5, 5, dtype=torch.bool)).shape
        torch.Size([2, 5, 4])

    Args:
        d_in: width of the node features.
        d_out: width of the output.
        bias: whether the layer has a bias :math:`b`.

    Raises:
        ValueError: if a size is not a positive integer; in ``forward``, if ``x`` does not hold floating-point vectors
            of width ``d_in``, one for each node, or the mask is not a symmetric Boolean table.

    .. [3] Kipf & Welling, *Semi-Supervised Classification with Graph Convolutional Networks*, 2017. arXiv:1609.02907.
    """

    def __init__(self, d_in: int, d_out: int, *, bias: bool = True) -> None:
        super().__init__()
        check_size("d_in", d_in, at_least=1)
        check_size("d_out", d_out, at_least=1)
        self.w = nn.Linear(d_in, d_out, bias=False)
        self.b = nn.Parameter(torch.zeros(d_out)) if bias else None

    def forward(self, x: Float[Tensor, "*batch n d_in"], mask: Bool[Tensor, "n n"]) -> Float[Tensor, "*batch n d_out"]:
        """Return the weighted average of each node's neighbours after the linear map, plus the bias."""
        _check_nodes(x, self.w.in_features)
        if mask.shape != (x.shape[-2], x.shape[-2]):
            raise ValueError(f"mask must be over the {x.shape[-2]} nodes of x, (n, n), got {tuple(mask.shape)}")
        out = normalised_adjacency(mask, dtype=x.dtype) @ self.w(x)
        return out if self.b is None else out + self.b


# --- graphs ---------------------------------------------------------------------------------------------------------


def add_self_loops(mask: Bool[Tensor, "*batch n n"]) -> Bool[Tensor, "*batch n n"]:
    """Return the graph with a self-loop at every node.

    >>> add_self_loops(torch.zeros(2, 2, dtype=torch.bool))
    tensor([[ True, False],
            [False,  True]])

    Raises:
        ValueError: if the mask is not a square Boolean table.
    """
    _check_graph(mask)
    return mask | torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)


def normalised_adjacency(
    mask: Bool[Tensor, "*batch n n"], *, dtype: torch.dtype | None = None
) -> Float[Tensor, "*batch n n"]:
    r"""Return the symmetrically normalised adjacency matrix of a graph.

    .. math:: \hat A_{uv} = \frac{A_{uv}}{\sqrt{d_u d_v}}, \qquad d_u = \sum_v A_{uv}

    The matrix is symmetric, with eigenvalues from -1 to 1. Its rows do not sum to one: the row of a node with few
    neighbours that have many neighbours themselves sums to less than one. The row of an isolated node is zero. The
    result has the type ``dtype``, or PyTorch's default type.

    ::

        >>> normalised_adjacency(torch.ones(2, 2, dtype=torch.bool))
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])

    Raises:
        ValueError: if the mask is not a symmetric Boolean matrix; in a directed graph the row and column degrees
            differ.
    """
    _check_graph(mask)
    if not mask.equal(mask.mT):
        raise ValueError("mask must be symmetric, every edge in both directions; write mask | mask.mT")
    root = mask.sum(dim=-1).clamp_min(1).to(dtype or torch.get_default_dtype()).rsqrt()
    return mask * root[..., :, None] * root[..., None, :]


def propagate_labels(
    mask: Bool[Tensor, "n n"], labels: Float[Tensor, "n n_classes"], *, alpha: float = 0.9
) -> Float[Tensor, "n n_classes"]:
    r"""Propagate the labels of a few nodes along the edges to a fixed point [4]_; there are no parameters.

    .. math:: F = (1 - \alpha) \left(I - \alpha \hat A\right)^{-1} Y = (1 - \alpha) \sum_{t \ge 0} \alpha^t \hat A^t Y

    the fixed point of :math:`F \leftarrow \alpha \hat A F + (1 - \alpha) Y`. In each step a node takes the share
    :math:`\alpha` from its neighbours and the share :math:`1 - \alpha` from its own label, if it has one. The predicted
    class of node ``u`` is the largest entry of row ``u``. The row of a node without a path from a labelled node is
    zero.

    ::

        >>> mask, labels = torch.ones(5, 5, dtype=torch.bool), torch.zeros(5, 2)
        >>> labels[0, 1] = 1  # node 0 has class 1
        >>> propagate_labels(mask, labels).argmax(dim=-1)
        tensor([1, 1, 1, 1, 1])

    Args:
        mask: the graph; in the paper it has no self-loops.
        labels: :math:`Y`, a row for each node: one-hot if the class is known, otherwise zero.
        alpha: :math:`\alpha`, from 0 (labels do not propagate) to below 1 (labels propagate far).

    Raises:
        ValueError: if the mask is not a symmetric Boolean matrix, ``labels`` does not have a floating-point row for
            each node, or ``alpha`` is not in ``[0, 1)``.

    .. [4] Zhou et al., *Learning with Local and Global Consistency*, NIPS 16, 2003.
    """
    check_fraction("alpha", alpha)
    check_floating(labels=labels)
    normalised = normalised_adjacency(mask, dtype=labels.dtype)
    if labels.ndim != 2 or normalised.shape != (len(labels), len(labels)):
        raise ValueError(
            f"mask must be (n, n) and labels (n, n_classes), got {tuple(mask.shape)} and {tuple(labels.shape)}"
        )
    return (1 - alpha) * torch.linalg.solve(torch.eye(len(labels)).to(labels) - alpha * normalised, labels)


# --- parts ----------------------------------------------------------------------------------------------------------


def _check_scoring(query: Tensor, key: Tensor, slope: float = 1.0, *, a: Tensor | None = None, halves: int = 1) -> None:
    check_floating(query=query, key=key, **({} if a is None else {"a": a}))
    if (
        query.ndim < 2
        or query.ndim != key.ndim
        or (query.shape[:-2], query.shape[-1]) != (key.shape[:-2], key.shape[-1])
    ):
        raise ValueError(
            f"query and key must be (*batch, n, d) and (*batch, m, d), got {tuple(query.shape)} and {tuple(key.shape)}"
        )
    if a is not None:
        *batch, _, d = query.shape
        if a.shape[-1:] != (halves * d,) or not broadcasts_to(a.shape[:-1], batch):
            raise ValueError(
                f"a must be ({halves * d},), or have leading axes that broadcast to {tuple(batch)}, "
                f"got {tuple(a.shape)}"
            )
    check_above("slope", slope, 0)


def _check_nodes(x: Tensor, d_in: int) -> None:
    check_vectors(x, d_in)
    if x.ndim < 2:
        raise ValueError(f"x must be (*batch, n, d_in), a vector for each node, got {tuple(x.shape)}")


def _check_graph(mask: Tensor) -> None:
    if mask.dtype != torch.bool or mask.ndim < 2 or mask.shape[-2] != mask.shape[-1]:
        raise ValueError(f"mask must be a square table of truth values, (n, n), got {mask.dtype} {tuple(mask.shape)}")
