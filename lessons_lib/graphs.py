r"""Attention over the edges of a graph, and two things that need none: averaging neighbours, and passing labels on.

A graph of ``n`` nodes is a Boolean table over ``(n, n)`` that reads as any mask does: ``mask[u, v]`` is True where
node ``u`` may attend to node ``v``, the edges from ``u``. Row ``u`` is the *neighbourhood* of ``u``, and the softmax
runs over it alone. A node counts itself among its neighbours only if the table says so: :func:`with_loops`.

Three scores of a pair, made from a query :math:`q_u = W^Q x_u` and a key :math:`k_v = W^K x_v`:

.. math::
    s^{\text{GAT}}_{uv} = \operatorname{LeakyReLU}\!\left(a^\top [q_u \,\|\, k_v]\right), \qquad
    s^{\text{GATv2}}_{uv} = a^\top \operatorname{LeakyReLU}(q_u + k_v), \qquad
    s^{\text{dot}}_{uv} = \frac{q_u \cdot k_v}{\sqrt{d}}

The first is *static* [2]_: it rises with :math:`a_k \cdot k_v`, the half of :math:`a^\top [q_u \,\|\, k_v]` that
belongs to :math:`v`, so all queries rank the nodes alike. The other two let each query rank them in its own way.

.. [1] Veličković et al., *Graph Attention Networks*, 2018. arXiv:1710.10903.
.. [2] Brody et al., *How Attentive are Graph Attention Networks?*, 2022. arXiv:2105.14491.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from lessons_lib.shapes import (
    broadcasts_to,
    check_above,
    check_floating,
    check_mask,
    check_share,
    check_size,
    check_vectors,
)
from lessons_lib.softmax import softmax

SCORES = ("gat", "gatv2", "dot")

# --- scores ---------------------------------------------------------------------------------------------------------


def gat_scores(
    query: Float[Tensor, "*batch n d"],
    key: Float[Tensor, "*batch m d"],
    a: Float[Tensor, "*#batch 2*d"],
    *,
    slope: float = 0.2,
) -> Float[Tensor, "*batch n m"]:
    r"""Score each query with each key as GAT does [1]_.

    .. math:: s_{uv} = \operatorname{LeakyReLU}\!\left(a^\top [q_u \,\|\, k_v]\right)
                     = \operatorname{LeakyReLU}\!\left(a_q \cdot q_u + a_k \cdot k_v\right)

    Args:
        query, key: :math:`q_u = W^Q x_u` and :math:`k_v = W^K x_v`. The paper has one matrix for both.
        a: :math:`[a_q \,\|\, a_k]`, one vector, or one for each of the leading axes (heads).
        slope: of the LeakyReLU below zero; positive, so that it never falls.

    Raises:
        ValueError: if shapes, types or devices do not fit, or the slope is not positive and finite.
    """
    _check_scored(query, key, slope, a=a, halves=2)
    a_query, a_key = a.chunk(2, dim=-1)
    of_query, of_key = (query * a_query[..., None, :]).sum(dim=-1), (key * a_key[..., None, :]).sum(dim=-1)
    return leaky_relu(of_query[..., :, None] + of_key[..., None, :], slope)


def gatv2_scores(
    query: Float[Tensor, "*batch n d"],
    key: Float[Tensor, "*batch m d"],
    a: Float[Tensor, "*#batch d"],
    *,
    slope: float = 0.2,
) -> Float[Tensor, "*batch n m"]:
    r"""Score each query with each key as GATv2 does [2]_: bend first, then weigh.

    .. math:: s_{uv} = a^\top \operatorname{LeakyReLU}\!\left(W [x_u \,\|\, x_v]\right)
                     = a^\top \operatorname{LeakyReLU}(q_u + k_v)

    since :math:`W = [W^Q \,\|\, W^K]`. It needs :math:`n\, m\, d` numbers in between, where :func:`gat_scores` needs
    :math:`n\, m`.

    Args:
        query, key: :math:`q_u = W^Q x_u` and :math:`k_v = W^K x_v`.
        a: one vector, or one for each of the leading axes (heads).
        slope: of the LeakyReLU below zero; positive.

    Raises:
        ValueError: as :func:`gat_scores`.
    """
    _check_scored(query, key, slope, a=a, halves=1)
    bent = leaky_relu(query[..., :, None, :] + key[..., None, :, :], slope)
    return (bent * a[..., None, None, :]).sum(dim=-1)


def dot_scores(query: Float[Tensor, "*batch n d"], key: Float[Tensor, "*batch m d"]) -> Float[Tensor, "*batch n m"]:
    r"""Score each query with each key as the rest of the book does.

    .. math:: s_{uv} = \frac{q_u \cdot k_v}{\sqrt{d}}

    Raises:
        ValueError: if shapes, types or devices do not fit.
    """
    _check_scored(query, key)
    return query @ key.mT / math.sqrt(query.shape[-1])


# --- layers ---------------------------------------------------------------------------------------------------------


class GraphAttention(nn.Module):
    r"""Let each node average what its neighbours have to tell, by weights that it computes itself.

    .. math:: y_u = \sum_{v \in N(u)} p_{uv}\, W^V x_v, \qquad p_{u} = \operatorname{softmax}_{v \in N(u)}(s_{uv})

    in each of ``n_heads`` heads, which are concatenated. The three kinds have the same three matrices and differ in
    the score alone; in the papers matrices are shared (GAT [1]_ has one for all three, GATv2 [2]_ one for keys and
    values). There is no nonlinearity at the end. A node without a neighbour gets zeros.

    Args:
        d_in: width of a node's vector.
        d_head: width of a head; ``n_heads * d_head`` come out.
        n_heads: how many weights each edge has.
        scores: ``"gat"``, ``"gatv2"`` or ``"dot"``.
        dropout: share of the weights that are dropped in training.
        slope: of the LeakyReLU, which dot products have none of.

    Raises:
        ValueError: if a size is not a positive integer, the kind of scores is unknown, ``dropout`` is not in
            ``[0, 1)`` or the slope not positive; in ``forward`` and ``weights``, if ``x`` does not hold floating-point
            vectors of width ``d_in`` or the mask does not fit.
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
        if scores not in SCORES:
            raise ValueError(f"scores must be one of {', '.join(SCORES)}, got {scores!r}")
        check_share("dropout", dropout)
        check_above("slope", slope, 0)
        self.scores, self.slope, self.n_heads, self.dropout = scores, slope, n_heads, nn.Dropout(dropout)
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_in, n_heads * d_head, bias=False) for _ in range(3))
        width = {"gat": 2 * d_head, "gatv2": d_head, "dot": 0}[scores]
        self.register_parameter("a", nn.Parameter(torch.randn(n_heads, width) / math.sqrt(d_head)) if width else None)

    def forward(
        self, x: Float[Tensor, "*batch n d_in"], mask: Bool[Tensor, "*#graphs n n"]
    ) -> Float[Tensor, "*batch n d_out"]:
        """Let each node gather from the nodes that its row of the mask allows.

        ``mask`` is one graph, ``(n, n)``, or has an axis for each of ``x``'s before the last two and one for the
        heads, ``(*batch, h, n, n)``, where 1 may stand for any.
        """
        weights = self.dropout(self.weights(x, mask))
        return rearrange(weights @ self._heads(self.w_v(x)), "... h n d -> ... n (h d)")

    def weights(
        self, x: Float[Tensor, "*batch n d_in"], mask: Bool[Tensor, "*#graphs n n"]
    ) -> Float[Tensor, "*batch h n n"]:
        """Return the weights that ``forward`` averages with, before dropout: in row ``u`` those of node ``u``."""
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
    r"""Let each node average its neighbours by weights that the graph alone decides [3]_.

    .. math:: Y = \hat A X W + b

    where :math:`\hat A` is the :func:`normalised` graph :math:`A`. In the paper's :math:`A` each node is among its own
    neighbours (:func:`with_loops`). There is no nonlinearity at the end.

    Args:
        d_in: width of a node's vector.
        d_out: width of what comes out.
        bias: whether there is a shift :math:`b`.

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
        """Average the neighbours of each node, and transform."""
        _check_nodes(x, self.w.in_features)
        if mask.shape != (x.shape[-2], x.shape[-2]):
            raise ValueError(f"mask must be over the {x.shape[-2]} nodes of x, (n, n), got {tuple(mask.shape)}")
        out = normalised(mask, dtype=x.dtype) @ self.w(x)
        return out if self.b is None else out + self.b


# --- graphs ---------------------------------------------------------------------------------------------------------


def with_loops(mask: Bool[Tensor, "*batch n n"]) -> Bool[Tensor, "*batch n n"]:
    """Return the graph in which each node is its own neighbour too.

    >>> with_loops(torch.zeros(2, 2, dtype=torch.bool))
    tensor([[ True, False],
            [False,  True]])

    Raises:
        ValueError: if the mask is not a square Boolean table.
    """
    _check_graph(mask)
    return mask | torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)


def normalised(mask: Bool[Tensor, "*batch n n"], *, dtype: torch.dtype | None = None) -> Float[Tensor, "*batch n n"]:
    r"""Return the table with each edge divided by the roots of its two ends' numbers of neighbours.

    .. math:: \hat A_{uv} = \frac{A_{uv}}{\sqrt{d_u d_v}}, \qquad d_u = \sum_v A_{uv}

    It is symmetric, with eigenvalues from -1 to 1. Its rows do not sum to one: a node of few neighbours among nodes of
    many gets less than an average. The row of an isolated node is zero. In ``dtype``, or PyTorch's default precision.

    Raises:
        ValueError: if the mask is not a symmetric Boolean table: the degrees of both ends would be of two kinds.
    """
    _check_graph(mask)
    if not mask.equal(mask.mT):
        raise ValueError("mask must be symmetric, every edge in both directions; write mask | mask.mT")
    root = mask.sum(dim=-1).clamp_min(1).to(dtype or torch.get_default_dtype()).rsqrt()
    return mask * root[..., :, None] * root[..., None, :]


def propagate_labels(
    mask: Bool[Tensor, "n n"], labels: Float[Tensor, "n n_classes"], *, alpha: float = 0.9
) -> Float[Tensor, "n n_classes"]:
    r"""Let the labels of a few nodes spread along the edges until nothing changes [4]_; there is nothing to train.

    .. math:: F = (1 - \alpha) \left(I - \alpha \hat A\right)^{-1} Y = (1 - \alpha) \sum_{t \ge 0} \alpha^t \hat A^t Y

    the fixed point of :math:`F \leftarrow \alpha \hat A F + (1 - \alpha) Y`: at each step a node takes a share
    :math:`\alpha` from its neighbours and the rest from its own label, if it has one. The class of node ``u`` is the
    largest entry of row ``u``. A node that no labelled node can reach stays zero, which favours no class.

    Args:
        mask: the graph; the paper's has no loops.
        labels: :math:`Y`, a row for each node: one-hot where the class is known, zero elsewhere.
        alpha: :math:`\alpha`, from 0 (labels stay where they are) to below 1 (they travel far).

    Raises:
        ValueError: if the mask is not a symmetric Boolean table, ``labels`` does not have a floating-point row for each
            node, or ``alpha`` is not in ``[0, 1)``.

    .. [4] Zhou et al., *Learning with Local and Global Consistency*, NIPS 16, 2003.
    """
    check_share("alpha", alpha)
    check_floating(labels=labels)
    spread = normalised(mask, dtype=labels.dtype)
    if labels.ndim != 2 or spread.shape != (len(labels), len(labels)):
        raise ValueError(
            f"mask must be (n, n) and labels (n, n_classes), got {tuple(mask.shape)} and {tuple(labels.shape)}"
        )
    return (1 - alpha) * torch.linalg.solve(torch.eye(len(labels)).to(labels) - alpha * spread, labels)


# --- parts ----------------------------------------------------------------------------------------------------------


def _check_scored(query: Tensor, key: Tensor, slope: float = 1.0, *, a: Tensor | None = None, halves: int = 1) -> None:
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
