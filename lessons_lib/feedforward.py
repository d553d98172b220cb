r"""What happens to each token by itself, between two layers that mix tokens.

:class:`FeedForward` is the 2017 network, :class:`SwiGLU` the gated one of Llama and its kin, and
:class:`MixtureOfExperts` several of them, of which each token uses a few.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lessons_lib.shapes import (
    at_least_single,
    check_above,
    check_floating,
    check_integers,
    check_share,
    check_size,
    check_vectors,
    values_can_be_read,
)
from lessons_lib.softmax import softmax

# --- activations ----------------------------------------------------------------------------------------------------


def relu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Return :math:`\max(x, 0)`."""
    return x.relu()


def gelu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Return :math:`x\, \Phi(x)`, with the normal distribution function :math:`\Phi` (GELU [1]_).

    .. [1] Hendrycks & Gimpel, *Gaussian Error Linear Units*, 2016. arXiv:1606.08415.
    """
    return functional.gelu(x)


def gelu_tanh(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Return GPT-2's approximation of :func:`gelu`, off by less than 5e-4.

    .. math:: \tfrac12 x \left(1 + \tanh\left(\sqrt{2/\pi}\, (x + 0.044715\, x^3)\right)\right)
    """
    return functional.gelu(x, approximate="tanh")


# --- dense ----------------------------------------------------------------------------------------------------------


class FeedForward(nn.Module):
    r"""Widen each token's vector, bend it, and narrow it again [2]_.

    .. math:: \operatorname{FFN}(x) = W_{\text{down}}\, \phi(W_{\text{up}}\, x + b_{\text{up}}) + b_{\text{down}}

    Args:
        d_model: width of the residual stream.
        d_ff: width in between, commonly ``4 * d_model``.
        activation: :math:`\phi`, e.g. :func:`relu` (2017), :func:`gelu`, :func:`gelu_tanh` (GPT-2).
        bias: whether there are shifts :math:`b`.
        dropout: share of the hidden entries that are dropped in training. The output is not dropped here: a block
            does that once, for every branch alike.

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
        check_share("dropout", dropout)
        self.activation, self.dropout = activation, nn.Dropout(dropout)
        self.w_up = nn.Linear(d_model, d_ff, bias=bias)
        self.w_down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each vector."""
        check_vectors(x, self.w_up.in_features)
        return self.w_down(self.dropout(self.activation(self.w_up(x))))


class SwiGLU(nn.Module):
    r"""Widen each token's vector twice and let one copy gate the other [3]_.

    .. math:: \operatorname{SwiGLU}(x) = W_{\text{down}} \left( \operatorname{silu}(W_{\text{gate}}\, x) \odot
              W_{\text{up}}\, x \right), \qquad \operatorname{silu}(z) = \frac{z}{1 + e^{-z}}

    Three matrices instead of two: :func:`swiglu_width` gives the ``d_ff`` that costs as much as a
    :class:`FeedForward`. In the paper the three are :math:`W, V, W_2`.

    Args:
        d_model: width of the residual stream.
        d_ff: width in between.
        bias: whether each matrix has a shift.

    Raises:
        ValueError: as :class:`FeedForward`.

    .. [3] Shazeer, *GLU Variants Improve Transformer*, 2020. arXiv:2002.05202.
    """

    def __init__(self, d_model: int, d_ff: int, *, bias: bool = False) -> None:
        super().__init__()
        _check_widths(d_model, d_ff)
        self.w_gate = nn.Linear(d_model, d_ff, bias=bias)
        self.w_up = nn.Linear(d_model, d_ff, bias=bias)
        self.w_down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each vector."""
        check_vectors(x, self.w_gate.in_features)
        return self.w_down(functional.silu(self.w_gate(x)) * self.w_up(x))


def swiglu_width(d_model: int, *, multiple_of: int = 1) -> int:
    r"""Return the ``d_ff`` at which a :class:`SwiGLU` has as many weights as a feed-forward of ``4 * d_model``.

    .. math:: 3\, d\, d_{\text{ff}} = 2\, d \cdot 4 d \quad\Rightarrow\quad d_{\text{ff}} = \tfrac83\, d

    rounded down, then up to a multiple that suits the hardware: Llama 7B has 11008 for 4096, a multiple of 256.

    Raises:
        ValueError: if a number is not a positive integer.
    """
    check_size("d_model", d_model, at_least=1)
    check_size("multiple_of", multiple_of, at_least=1)
    return math.ceil(8 * d_model // 3 / multiple_of) * multiple_of


# --- sparse ---------------------------------------------------------------------------------------------------------


class Routing(NamedTuple):
    """Where a :class:`MixtureOfExperts` sends each token, and at what price in balance."""

    probabilities: Float[Tensor, "*batch n_experts"]  # over all experts, in at least float32
    experts: Int[Tensor, "*batch top_k"]  # the chosen ones, best first
    weights: Float[Tensor, "*batch top_k"]  # what their outputs are multiplied by, before anything is dropped
    dropped: Bool[Tensor, "*batch top_k"]  # True where the chosen expert was full: it adds nothing to that token
    load: Int[Tensor, " n_experts"]  # how many tokens each expert computes
    capacity: int | None  # how many it would take at most
    balance_loss: Float[Tensor, ""]  # 1 when balanced, up to n_experts / top_k


class Router(nn.Module):
    r"""Choose experts by their scores.

    It owns no weights (the scores come from :math:`W_{\text{router}}`) and is a module so that a forward hook on it
    sees each :class:`Routing` that a :class:`MixtureOfExperts` computes with.

    Args:
        n_experts: number of experts :math:`E`.
        top_k: number of experts for each token.
        capacity_factor: :math:`c` of :class:`MixtureOfExperts`; ``None`` for no limit.
        renormalise: whether the chosen weights are made to sum to one.
        biased: whether each expert has a bias in the choice, see :class:`MixtureOfExperts`: a buffer ``bias``, 0 at
            first, that :meth:`rebalance` moves.

    Raises:
        ValueError: if an argument is out of range, or ``top_k=1`` is to be renormalised; in ``forward``, if
            ``scores`` does not hold a floating-point score of at least one token for each expert.
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
        """Decide which experts compute which tokens."""
        check_floating(scores=scores)
        if scores.shape[-1:] != (self.n_experts,):
            raise ValueError(
                f"scores must end in an axis of size n_experts={self.n_experts}, got shape {tuple(scores.shape)}"
            )
        if not scores.numel():
            raise ValueError(f"scores must be of at least one token, got shape {tuple(scores.shape)}")
        probabilities = softmax(at_least_single(scores))
        if self.bias is None:
            weights, experts = probabilities.topk(self.top_k, dim=-1)
        else:  # who is chosen depends on it, what a choice weighs does not
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
    def rebalance(self, asked: Int[Tensor, " n_experts"], *, rate: float) -> None:
        r"""Move the biases towards balance: up where fewer tokens asked than on average, down where more did.

        .. math:: b_i \leftarrow b_i + \text{rate} \cdot \operatorname{sign}(\bar a - a_i)

        Called once after each step of training, with how often each expert was chosen in it:
        ``routing.experts.flatten().bincount(minlength=n_experts)``, summed over what counts as one step.

        Raises:
            ValueError: if there is no bias, ``asked`` is not a count for each expert, or the rate not positive.
        """
        if self.bias is None:
            raise ValueError("rebalance needs a router with biased=True")
        check_integers("asked", asked, "n_experts")
        if len(asked) != self.n_experts or (values_can_be_read(asked) and (asked < 0).any()):
            raise ValueError(f"asked must be {self.n_experts} counts, one for each expert, got {asked.tolist()}")
        check_above("rate", rate, 0)
        counts = asked.to(self.bias)
        self.bias += rate * (counts.mean() - counts).sign()

    def _drop(self, experts: Tensor) -> tuple[int | None, Tensor]:
        """The capacity, and which choices come too late for it."""
        if self.capacity_factor is None:
            return None, torch.zeros_like(experts, dtype=torch.bool)
        capacity = math.ceil(self.capacity_factor * experts.numel() / self.n_experts)
        queue = rearrange(experts.reshape(-1, self.top_k), "token choice -> (choice token)")
        asked = functional.one_hot(queue, self.n_experts)
        place = (asked.cumsum(dim=0) * asked).sum(dim=-1)  # 1 for the first that asks for this expert
        late = rearrange(place > capacity, "(choice token) -> token choice", choice=self.top_k)
        return capacity, late.reshape(experts.shape)


class MixtureOfExperts(nn.Module):
    r"""Send each token to the ``top_k`` experts that a router likes best, and average what they return.

    .. math:: y = \sum_{i \in \mathcal{T}} w_i\, E_i(x), \qquad p = \operatorname{softmax}(W_{\text{router}}\, x),
              \quad \mathcal{T} = \operatorname{top}_k(p), \quad w_i = \frac{p_i}{\sum_{j \in \mathcal{T}} p_j}

    which is the softmax over the chosen scores alone (GShard [4]_, Mixtral [5]_). ``renormalise=False`` keeps
    :math:`w_i = p_i`, as Switch [6]_ does with ``top_k=1``, where a renormalised weight would always be 1.

    Left alone a router sends everything to a few favourites. The balance loss, to be added to the training loss with
    a small factor (0.01 in Switch), pulls against that:

    .. math:: L = E \sum_{i=1}^{E} f_i\, P_i

    with :math:`f_i` the share of choices that fell on expert :math:`i` (no gradient) and :math:`P_i` the mean of
    :math:`p_i`; with all probabilities equal it is 1. Libraries that count :math:`f_i` per token rather than per
    choice get ``top_k`` times as much.

    **A bias** balances without a loss and so without its gradient (Wang et al. [7]_; used by DeepSeek-V3 [8]_): with
    ``biased=True`` the chosen experts are :math:`\operatorname{top}_k(p + b)`, while :math:`w_i` is made of :math:`p`
    alone; :meth:`Router.rebalance` lowers :math:`b_i` after a step in which expert :math:`i` was asked for more than
    the average, and raises it if for less. (DeepSeek-V3 makes :math:`p` by sigmoids; here it is the softmax above.)

    **Capacity.** By default no expert is ever full. With a ``capacity_factor`` :math:`c` each takes at most
    :math:`\lceil c\, T k / E \rceil` of the call's :math:`T` tokens; all first choices queue before all second ones,
    tokens in order. A choice that finds its expert full adds nothing (the residual stream carries the token on), and
    :class:`Routing` says which. *A token's fate then depends on the other tokens in the call, on later ones too, so a
    model that is to be causal, or the same alone as in a batch, has to do without.*

    Args:
        d_model: width of the residual stream.
        d_ff: width inside an expert.
        n_experts: number of experts :math:`E`.
        top_k: number of experts for each token.
        capacity_factor: :math:`c`; ``None`` for no limit.
        renormalise: whether the chosen weights are made to sum to one.
        biased: whether each expert has a bias in the choice.
        expert: builds an expert from ``(d_model, d_ff)``, e.g. :class:`SwiGLU`, :class:`FeedForward`.

    Raises:
        ValueError: if an argument is out of range, or ``top_k=1`` is to be renormalised; in ``forward``, if ``x``
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
        """Transform each vector; :meth:`forward_with_routing` and a hook on ``router`` see what was dropped."""
        return self.forward_with_routing(x)[0]

    def forward_with_routing(
        self, x: Float[Tensor, "*batch d_model"]
    ) -> tuple[Float[Tensor, "*batch d_model"], Routing]:
        """Return what ``forward`` returns, and the routing that it used."""
        routing = self.route(x)
        tokens = x.reshape(-1, x.shape[-1])
        weights = routing.weights.masked_fill(routing.dropped, 0.0).reshape(-1, self.top_k)
        asked = routing.experts.masked_fill(routing.dropped, -1).reshape(-1, self.top_k)
        out = torch.zeros_like(tokens, dtype=weights.dtype)
        for number, expert in enumerate(self.experts):
            token, choice = (asked == number).nonzero(as_tuple=True)
            out = out.index_add(0, token, weights[token, choice, None] * expert(tokens[token]))
        return out.to(x.dtype).reshape(x.shape), routing

    def route(self, x: Float[Tensor, "*batch d_model"]) -> Routing:
        """Decide which experts compute which tokens, without computing them."""
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
        """What bounds the tokens that an expert takes."""
        return self.router.capacity_factor

    @property
    def renormalise(self) -> bool:
        """Whether the chosen weights are made to sum to one."""
        return self.router.renormalise


# --- parts ----------------------------------------------------------------------------------------------------------


def _check_widths(d_model: int, d_ff: int) -> None:
    check_size("d_model", d_model, at_least=1)
    check_size("d_ff", d_ff, at_least=1)
