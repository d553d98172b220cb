r"""Feed-forward layers, which transform each token separately, between attention layers, which mix tokens.

:class:`FeedForward` is the layer of 2017; :class:`SwiGLU` is the gated one of Llama, :class:`GEGLU` that of Gemma. A
:class:`MixtureOfExperts` has several such layers, and each token uses a few of them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lessons_lib.attention.softmax import softmax
from lessons_lib.foundations.validation import (
    check_above,
    check_floating,
    check_fraction,
    check_integers,
    check_size,
    check_vectors,
    promote_half,
    values_can_be_read,
)

# --- activations ----------------------------------------------------------------------------------------------------


def relu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Return :math:`\max(x, 0)`."""
    return x.relu()


def gelu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Return :math:`x\, \Phi(x)`, where :math:`\Phi` is the standard normal distribution function (GELU [1]_).

    .. [1] Hendrycks & Gimpel, *Gaussian Error Linear Units*, 2016. arXiv:1606.08415.
    """
    return functional.gelu(x)


def gelu_tanh(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Return GPT-2's approximation of :func:`gelu`, whose error is below 5e-4.

    .. math:: \tfrac12 x \left(1 + \tanh\left(\sqrt{2/\pi}\, (x + 0.044715\, x^3)\right)\right)
    """
    return functional.gelu(x, approximate="tanh")


# --- dense ----------------------------------------------------------------------------------------------------------


class FeedForward(nn.Module):
    r"""Two linear layers with an activation between them, applied to each token's vector [2]_.

    .. math:: \operatorname{FFN}(x) = W_{\text{down}}\, \phi(W_{\text{up}}\, x + b_{\text{up}}) + b_{\text{down}}

    >>> FeedForward(8, 32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    Args:
        d_model: width of the residual stream.
        d_ff: hidden width, commonly ``4 * d_model``.
        activation: :math:`\phi`, e.g. :func:`relu` (2017), :func:`gelu`, :func:`gelu_tanh` (GPT-2).
        bias: whether the linear layers have biases :math:`b`.
        dropout: dropout probability of the hidden entries in training. Dropout on the output belongs to the block,
            which applies it to every sublayer.

    Raises:
        ValueError: if a width is not a positive integer or ``dropout`` is not in [0, 1); in ``forward``, if ``x``
            does not hold floating-point vectors of width ``d_model``.

    .. [2] Vaswani et al., *Attention Is All You Need*, 2017, section 3.3. arXiv:1706.03762.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Callable[[Tensor], Tensor] = gelu,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_widths(d_model, d_ff)
        check_fraction("dropout", dropout)
        self.activation, self.dropout = activation, nn.Dropout(dropout)
        self.w_up = nn.Linear(d_model, d_ff, bias=bias)
        self.w_down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each vector separately."""
        check_vectors(x, self.w_up.in_features)
        return self.w_down(self.dropout(self.activation(self.w_up(x))))


class _Gated(nn.Module):
    """Feed-forward layer in which a branch with an activation multiplies a linear one."""

    def __init__(self, d_model: int, d_ff: int, *, activation: Callable[[Tensor], Tensor], bias: bool) -> None:
        super().__init__()
        _check_widths(d_model, d_ff)
        self.activation = activation
        self.w_gate = nn.Linear(d_model, d_ff, bias=bias)
        self.w_up = nn.Linear(d_model, d_ff, bias=bias)
        self.w_down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each vector separately."""
        check_vectors(x, self.w_gate.in_features)
        return self.w_down(self.activation(self.w_gate(x)) * self.w_up(x))


class SwiGLU(_Gated):
    r"""Gated feed-forward layer: a SiLU branch multiplies a linear one [3]_.

    .. math:: \operatorname{SwiGLU}(x) = W_{\text{down}} \left( \operatorname{silu}(W_{\text{gate}}\, x) \odot
              W_{\text{up}}\, x \right), \qquad \operatorname{silu}(z) = \frac{z}{1 + e^{-z}}

    It has three matrices instead of two: :func:`swiglu_width` gives the ``d_ff`` with the cost of a
    :class:`FeedForward`. The paper names the three :math:`W, V, W_2`.

    >>> SwiGLU(8, 21)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    Args:
        d_model: width of the residual stream.
        d_ff: hidden width.
        bias: whether the linear layers have biases.

    Raises:
        ValueError: as :class:`FeedForward`.

    .. [3] Shazeer, *GLU Variants Improve Transformer*, 2020. arXiv:2002.05202.
    """

    def __init__(self, d_model: int, d_ff: int, *, bias: bool = False) -> None:
        super().__init__(d_model, d_ff, activation=functional.silu, bias=bias)


class GEGLU(_Gated):
    r"""Gated feed-forward layer: a :func:`gelu` branch multiplies a linear one, as in the paper of :class:`SwiGLU`.

    Gemma has :func:`gelu_tanh`.

    .. math:: \operatorname{GEGLU}(x) = W_{\text{down}} \left( \operatorname{gelu}(W_{\text{gate}}\, x) \odot
              W_{\text{up}}\, x \right)

    >>> GEGLU(8, 21, activation=gelu_tanh)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    Args:
        d_model: width of the residual stream.
        d_ff: hidden width.
        activation: :func:`gelu` or :func:`gelu_tanh`.
        bias: whether the linear layers have biases.

    Raises:
        ValueError: as :class:`FeedForward`.
    """

    def __init__(
        self, d_model: int, d_ff: int, *, activation: Callable[[Tensor], Tensor] = gelu, bias: bool = False
    ) -> None:
        super().__init__(d_model, d_ff, activation=activation, bias=bias)


def swiglu_width(d_model: int, *, multiple_of: int = 1) -> int:
    r"""Return the ``d_ff`` at which :class:`SwiGLU` has as many weights as a feed-forward layer of ``4 * d_model``.

    .. math:: 3\, d\, d_{\text{ff}} = 2\, d \cdot 4 d \quad\Rightarrow\quad d_{\text{ff}} = \tfrac83\, d

    The result is rounded down, then up to a multiple of ``multiple_of``, which suits the hardware. Llama 7B:

    >>> swiglu_width(4096, multiple_of=256)
    11008

    Raises:
        ValueError: if a number is not a positive integer.
    """
    check_size("d_model", d_model, at_least=1)
    check_size("multiple_of", multiple_of, at_least=1)
    return math.ceil(8 * d_model // 3 / multiple_of) * multiple_of


# --- sparse ---------------------------------------------------------------------------------------------------------


class Routing(NamedTuple):
    """The experts and weights of each token in a :class:`MixtureOfExperts`, and the load-balancing loss."""

    probabilities: Float[Tensor, "*batch n_experts"]  # over all experts, in at least float32
    experts: Int[Tensor, "*batch top_k"]  # indices of the chosen experts, most probable first
    weights: Float[Tensor, "*batch top_k"]  # factors of the experts' outputs, before any choice is dropped
    dropped: Bool[Tensor, "*batch top_k"]  # True where the chosen expert was full, so it adds nothing to the token
    load: Int[Tensor, " n_experts"]  # number of tokens that each expert computes
    capacity: int | None  # largest number of tokens that an expert may compute; None for no limit
    balance_loss: Float[Tensor, ""]  # 1 when balanced, at most n_experts / top_k


class Router(nn.Module):
    r"""Top-k router: selects the experts of each token from their scores.

    The router has no weights; :math:`W_{\text{router}}` of the mixture computes the scores. It is a module so that a
    forward hook on it receives each :class:`Routing` that a :class:`MixtureOfExperts` uses.

    >>> routing = Router(4, 2, capacity_factor=None, renormalise=True)(torch.randn(3, 5, 4))
    >>> routing.experts.shape, routing.weights.shape, routing.load.shape
    (torch.Size([3, 5, 2]), torch.Size([3, 5, 2]), torch.Size([4]))

    Args:
        n_experts: number of experts :math:`E`.
        top_k: number of experts for each token.
        capacity_factor: :math:`c` of :class:`MixtureOfExperts`; ``None`` for no limit.
        renormalise: whether the weights of the chosen experts are normalised to sum to 1.
        biased: whether the selection adds a bias for each expert, see :class:`MixtureOfExperts`. The biases are the
            buffer ``bias``, initially 0, which :meth:`rebalance` updates.

    Raises:
        ValueError: if an argument is out of range, or ``renormalise`` is set with ``top_k=1``; in ``forward``, if
            ``scores`` does not hold floating-point scores of at least one token, one score for each expert.
    """

    bias: Tensor | None

    def __init__(
        self,
        n_experts: int,
        top_k: int,
        *,
        capacity_factor: float | None,
        renormalise: bool,
        biased: bool = False,
    ) -> None:
        super().__init__()
        check_size("n_experts", n_experts, at_least=1)
        check_size("top_k", top_k, at_least=1, at_most=n_experts)
        if capacity_factor is not None and not (math.isfinite(capacity_factor) and capacity_factor > 0):
            raise ValueError(
                f"capacity_factor must be positive and finite, or None for no limit, got {capacity_factor}"
            )
        if renormalise and top_k == 1 < n_experts:
            raise ValueError(
                "renormalise must be False with top_k=1: a single weight is always 1 once normalised, "
                "and the router would learn nothing from the output"
            )
        self.n_experts, self.top_k = n_experts, top_k
        self.capacity_factor, self.renormalise = capacity_factor, renormalise
        self.register_buffer("bias", torch.zeros(n_experts) if biased else None)

    def forward(self, scores: Float[Tensor, "*batch n_experts"]) -> Routing:
        """Return the routing of each token, from its scores."""
        check_floating(scores=scores)
        if scores.shape[-1:] != (self.n_experts,):
            raise ValueError(
                f"scores must end in an axis of size n_experts={self.n_experts}, got shape {tuple(scores.shape)}"
            )
        if not scores.numel():
            raise ValueError(f"scores must hold at least one token, got shape {tuple(scores.shape)}")
        probabilities = softmax(promote_half(scores))
        if self.bias is None:
            weights, experts = probabilities.topk(self.top_k, dim=-1)
        else:  # the bias changes which experts are chosen, but not their weights
            experts = (probabilities + self.bias).topk(self.top_k, dim=-1).indices
            weights = probabilities.gather(-1, experts)
        if self.renormalise:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        capacity, dropped = self._drop(experts)
        share_of_choices = experts.flatten().bincount(minlength=self.n_experts) / experts.numel()
        mean_probability = probabilities.reshape(-1, self.n_experts).mean(dim=0)
        return Routing(
            probabilities=probabilities,
            experts=experts,
            weights=weights,
            dropped=dropped,
            load=experts[~dropped].bincount(minlength=self.n_experts),
            capacity=capacity,
            balance_loss=self.n_experts * (share_of_choices.to(mean_probability) * mean_probability).sum(),
        )

    @torch.no_grad()
    def rebalance(self, counts: Int[Tensor, " n_experts"], *, rate: float) -> None:
        r"""Raise the bias of experts chosen less often than average, lower that of experts chosen more often.

        .. math:: b_i \leftarrow b_i + \text{rate} \cdot \operatorname{sign}(\bar a - a_i)

        Call it once after each training step, where the counts :math:`a_i` say how often each expert was chosen:
        ``routing.experts.flatten().bincount(minlength=n_experts)``, summed over all batches of the step.

        >>> router = Router(3, 1, capacity_factor=None, renormalise=False, biased=True)
        >>> router.rebalance(torch.tensor([5, 1, 3]), rate=0.5)
        >>> router.bias.tolist()
        [-0.5, 0.5, 0.0]

        Raises:
            ValueError: if there is no bias, ``counts`` is not one count for each expert, or ``rate`` is not positive.
        """
        if self.bias is None:
            raise ValueError("rebalance needs a router with biased=True")
        check_integers("counts", counts, "n_experts")
        if len(counts) != self.n_experts or (values_can_be_read(counts) and (counts < 0).any()):
            raise ValueError(f"counts must be {self.n_experts} counts, one for each expert, got {counts.tolist()}")
        check_above("rate", rate, 0)
        a = counts.to(self.bias)
        self.bias += rate * (a.mean() - a).sign()

    def _drop(self, experts: Tensor) -> tuple[int | None, Tensor]:
        """Return the capacity of an expert, and which choices exceed it."""
        if self.capacity_factor is None:
            return None, torch.zeros_like(experts, dtype=torch.bool)
        capacity = math.ceil(self.capacity_factor * experts.numel() / self.n_experts)
        queue = rearrange(experts.reshape(-1, self.top_k), "token choice -> (choice token)")
        one_hot = functional.one_hot(queue, self.n_experts)
        rank = (one_hot.cumsum(dim=0) * one_hot).sum(dim=-1)  # 1 for the first choice of this expert
        dropped = rearrange(rank > capacity, "(choice token) -> token choice", choice=self.top_k)
        return capacity, dropped.reshape(experts.shape)


class MixtureOfExperts(nn.Module):
    r"""Sparse mixture of experts: a weighted sum of the outputs of the ``top_k`` experts that a router chooses.

    .. math:: y = \sum_{i \in \mathcal{T}} w_i\, E_i(x), \qquad p = \operatorname{softmax}(W_{\text{router}}\, x),
              \quad \mathcal{T} = \operatorname{top}_k(p), \quad w_i = \frac{p_i}{\sum_{j \in \mathcal{T}} p_j}

    The weights :math:`w_i` are the softmax over the chosen scores alone (GShard [4]_, Mixtral [5]_). With
    ``renormalise=False`` they are :math:`w_i = p_i`, as in Switch [6]_ with ``top_k=1``, where a renormalised weight
    would always be 1.

    **Balance loss.** Without balancing, a router sends most tokens to a few experts. The balance loss, to be added to
    the training loss with a small factor (0.01 in Switch), counteracts that:

    .. math:: L = E \sum_{i=1}^{E} f_i\, P_i

    Here :math:`f_i` is the fraction of choices that fell on expert :math:`i` (no gradient), and :math:`P_i` is the mean
    of :math:`p_i`. If all probabilities are equal, the loss is 1. Libraries that count :math:`f_i` per token rather
    than per choice return ``top_k`` times this value.

    **Bias.** A bias balances without a loss and so without its gradient (Wang et al. [7]_; used by DeepSeek-V3 [8]_).
    With ``biased=True`` the chosen experts are :math:`\operatorname{top}_k(p + b)`, while :math:`w_i` depends on
    :math:`p` alone. :meth:`Router.rebalance` lowers :math:`b_i` after a step in which expert :math:`i` was chosen more
    often than the average, and raises it if less often. (DeepSeek-V3 computes :math:`p` with sigmoids; here it is the
    softmax above.)

    **Capacity.** By default an expert takes any number of tokens. With a ``capacity_factor`` :math:`c` each takes at
    most :math:`\lceil c\, T k / E \rceil` of the call's :math:`T` tokens. All first choices come before all second
    ones, and tokens in order. A choice whose expert is full is dropped and adds nothing; the token then has only its
    residual stream. :class:`Routing` reports the dropped choices. *With a capacity the output for a token depends on
    the other tokens in the call, later ones included. A model that must be causal, or must give the same output alone
    as in a batch, cannot use one.*

    >>> moe = MixtureOfExperts(8, 16, n_experts=4, top_k=2)
    >>> out, routing = moe.forward_with_routing(torch.randn(2, 5, 8))
    >>> out.shape, routing.experts.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 5, 2]))

    Args:
        d_model: width of the residual stream.
        d_ff: hidden width of an expert.
        n_experts: number of experts :math:`E`.
        top_k: number of experts for each token.
        capacity_factor: :math:`c`; ``None`` for no limit.
        renormalise: whether the weights of the chosen experts are normalised to sum to 1.
        biased: whether the selection adds a bias for each expert.
        expert: builds an expert from ``(d_model, d_ff)``, e.g. :class:`SwiGLU`, :class:`FeedForward`.

    Raises:
        ValueError: if an argument is out of range, or ``renormalise`` is set with ``top_k=1``; in ``forward``, if ``x``
            does not hold at least one floating-point vector of width ``d_model``.

    .. [4] Lepikhin et al., *GShard*, 2020. arXiv:2006.16668.
    .. [5] Jiang et al., *Mixtral of Experts*, 2024. arXiv:2401.04088.
    .. [6] Fedus et al., *Switch Transformers*, 2021. arXiv:2101.03961.
    .. [7] Wang et al., *Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts*, 2024. arXiv:2408.15664.
    .. [8] DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024. arXiv:2412.19437.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        n_experts: int,
        top_k: int,
        *,
        capacity_factor: float | None = None,
        renormalise: bool = True,
        biased: bool = False,
        expert: Callable[[int, int], nn.Module] = SwiGLU,
    ) -> None:
        super().__init__()
        _check_widths(d_model, d_ff)
        self.router = Router(n_experts, top_k, capacity_factor=capacity_factor, renormalise=renormalise, biased=biased)
        self.w_router = nn.Linear(d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(expert(d_model, d_ff) for _ in range(n_experts))

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each vector; use :meth:`forward_with_routing` or a hook on ``router`` to see what was dropped."""
        return self.forward_with_routing(x)[0]

    def forward_with_routing(
        self, x: Float[Tensor, "*batch d_model"]
    ) -> tuple[Float[Tensor, "*batch d_model"], Routing]:
        """Return the output of ``forward`` and the routing that it used."""
        routing = self.route(x)
        tokens = x.reshape(-1, x.shape[-1])
        weights = routing.weights.masked_fill(routing.dropped, 0.0).reshape(-1, self.top_k)
        choices = routing.experts.masked_fill(routing.dropped, -1).reshape(-1, self.top_k)
        out = torch.zeros_like(tokens, dtype=weights.dtype)
        for index, expert in enumerate(self.experts):
            token, choice = (choices == index).nonzero(as_tuple=True)
            out = out.index_add(0, token, weights[token, choice, None] * expert(tokens[token]))
        return out.to(x.dtype).reshape(x.shape), routing

    def route(self, x: Float[Tensor, "*batch d_model"]) -> Routing:
        """Return the routing of each token, without computing the experts."""
        check_vectors(x, self.w_router.in_features)
        if not x.numel():
            raise ValueError(f"x must hold at least one token, got shape {tuple(x.shape)}")
        return self.router(self.w_router(x))

    @property
    def top_k(self) -> int:
        """Number of experts for each token."""
        return self.router.top_k

    @property
    def capacity_factor(self) -> float | None:
        """Factor :math:`c` of the capacity of an expert; ``None`` for no limit."""
        return self.router.capacity_factor

    @property
    def renormalise(self) -> bool:
        """Whether the weights of the chosen experts are normalised to sum to 1."""
        return self.router.renormalise


# --- parts ----------------------------------------------------------------------------------------------------------


def _check_widths(d_model: int, d_ff: int) -> None:
    check_size("d_model", d_model, at_least=1)
    check_size("d_ff", d_ff, at_least=1)
