r"""What keeps scores from growing: two remedies for attention that collapses onto single keys.

A score is bounded by the lengths of query and key. :class:`QKNorm` sets both, :class:`SigmaReparam` bounds the matrices
that make them. Whether a model needs either is for :mod:`lessons_lib.diagnostics` to say.

.. [1] Zhai et al., *Stabilizing Transformer Training by Preventing Attention Entropy Collapse*, 2023.
   arXiv:2303.06296.
.. [2] Dehghani et al., *Scaling Vision Transformers to 22 Billion Parameters*, 2023. arXiv:2302.05442.
"""

from collections import Counter
from collections.abc import Callable

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils import parametrize

from lessons_lib.multihead import MultiHeadAttention
from lessons_lib.norms import RMSNorm
from lessons_lib.shapes import values_can_be_read

# --- queries and keys -----------------------------------------------------------------------------------------------

Prepare = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class QKNorm(nn.Module):
    r"""Bring queries and keys to one length before they meet, so that a score cannot outgrow two learned gains [2]_.

    .. math:: s_{ij} = \frac{\operatorname{norm}_q(q_i) \cdot \operatorname{norm}_k(k_j)}{\sqrt{d_k}}
              \quad\Rightarrow\quad |s_{ij}| \le \sqrt{d_k}\, \max_c |g_c|\, \max_c |g'_c|

    with RMS norms, whose gains :math:`g` of the queries and :math:`g'` of the keys all heads share. It is the
    ``prepare`` of a :class:`~lessons_lib.multihead.MultiHeadAttention`, or what comes before another one: rotations
    keep lengths, so the bound holds behind them too.

    Args:
        d_head: width of a head.
        then: the ``prepare`` that follows, for instance that of a rotary embedding.
        eps: the constant inside the root of both norms.
    """

    def __init__(self, d_head: int, then: Prepare | None = None, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.q_norm, self.k_norm, self.then = RMSNorm(d_head, eps=eps), RMSNorm(d_head, eps=eps), then
        self.register_load_state_dict_pre_hook(_take_one_gain_for_both)

    def forward(
        self,
        q: Float[Tensor, "*batch n d_head"],
        k: Float[Tensor, "*shared n d_head"],
        positions: Num[Tensor, "*#rows n"],
    ) -> tuple[Float[Tensor, "*batch n d_head"], Float[Tensor, "*shared n d_head"]]:
        """Normalise each query and each key; what follows tells them their places."""
        q, k = self.q_norm(q), self.k_norm(k)
        return (q, k) if self.then is None else self.then(q, k, positions)


def apply_qk_norm(module: nn.Module) -> None:
    """Put :class:`QKNorm` into every attention layer inside ``module``, in place; before the optimizer is made.

    It comes before what the layers have as ``prepare``. The config of a model does not know of it, so that
    :meth:`GPT.save <lessons_lib.gpt.GPT.save>` refuses: a GPT that is to be kept is built with
    ``GPTConfig(..., qk_norm=True)``.

    Raises:
        ValueError: if there is no such layer, or one has it already.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, MultiHeadAttention)]
    if not layers or any(isinstance(layer.prepare, QKNorm) for layer in layers):
        raise ValueError(f"module must contain attention layers without QKNorm, got {type(module).__name__}")
    for layer in layers:
        like = layer.w_q.weight
        layer.prepare = QKNorm(layer.d_head, layer.prepare).to(device=like.device, dtype=like.dtype)


def _take_one_gain_for_both(norm: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Load what was saved when queries and keys shared their gain."""
    shared = state.pop(f"{prefix}norm.weight", None)
    if shared is not None:
        state[f"{prefix}q_norm.weight"], state[f"{prefix}k_norm.weight"] = shared, shared.clone()


class SharedQKNorm(nn.Module):
    """:class:`QKNorm` with one gain for both, as the older ``position`` of a layer; deprecated."""

    def __init__(self, d_head: int, position: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.norm, self.position = RMSNorm(d_head), position

    def forward(
        self, x: Float[Tensor, "*batch n d_head"], positions: Num[Tensor, "*#rows n"]
    ) -> Float[Tensor, "*batch n d_head"]:
        """Normalise each query or key, then tell it its place."""
        x = self.norm(x)
        return x if self.position is None else self.position(x, positions)


# --- matrices -------------------------------------------------------------------------------------------------------


class SigmaReparam(nn.Module):
    r"""Let a matrix choose its largest singular value as a number of its own [1]_.

    .. math:: \hat W = \frac{\gamma}{\sigma(W)}\, W, \qquad \sigma(W) = \max_{u, v} \frac{u^\top W v}{|u|\,|v|}

    with :math:`\gamma` learned, starting at 1: spectral *normalisation* would fix it. Scores are bounded by the
    spectral norms of the query and key matrices, so their growth, which drives attention to one key, now has to pass
    through :math:`\gamma`. The singular vectors are exact at the start and followed by one step of power iteration in
    each forward pass of training.

    It is a parametrisation in the sense of ``torch.nn.utils.parametrize``: see :func:`apply_sigma_reparam`.

    Raises:
        ValueError: if the weight is not a matrix, or is zero.
    """

    u: Tensor
    v: Tensor

    def __init__(self, weight: Float[Tensor, "d_out d_in"]) -> None:
        super().__init__()
        if weight.ndim != 2 or (values_can_be_read(weight) and not weight.any()):
            raise ValueError(f"weight must be a matrix that is not zero, got shape {tuple(weight.shape)}")
        left, _, right = torch.linalg.svd(weight.detach(), full_matrices=False)
        self.register_buffer("u", left[:, 0].clone())
        self.register_buffer("v", right[0].clone())
        self.gamma = nn.Parameter(torch.ones_like(weight[0, 0]))

    def forward(self, weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
        """Return the matrix to use instead of ``weight``."""
        if self.training:
            self._follow(weight.detach())
        u, v = self.u.clone(), self.v.clone()  # a later step must not change what this one's gradient needs
        return self.gamma / (u @ weight @ v) * weight

    @torch.no_grad()
    def _follow(self, weight: Tensor) -> None:
        self.u.copy_(normalize(weight @ self.v, dim=0))
        self.v.copy_(normalize(weight.mT @ self.u, dim=0))


def apply_sigma_reparam(module: nn.Module) -> None:
    """Put every ``nn.Linear`` inside ``module`` under :class:`SigmaReparam`, in place; before the optimizer is made.

    Usually the blocks alone: ``apply_sigma_reparam(gpt.blocks)``. Each matrix starts with spectral norm 1, whatever it
    was initialised to. :func:`remove_sigma_reparam` makes ordinary matrices of them again, for saving.

    Raises:
        ValueError: if there is no such layer, one is under it already, or shares its weight with another part.
    """
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    if not layers:
        raise ValueError(f"module must contain an nn.Linear, got {type(module).__name__} without")
    uses = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    for name, layer in layers.items():
        if parametrize.is_parametrized(layer, "weight"):
            raise ValueError(f"the weight of every layer must be plain, but that of {name!r} is parametrised already")
        if uses[id(layer.weight)] > 1:
            raise ValueError(f"{name!r} shares its weight with another part; apply this to the blocks alone")
    for layer in layers.values():
        reparam = SigmaReparam(layer.weight).train(layer.training)
        parametrize.register_parametrization(layer, "weight", reparam)


def remove_sigma_reparam(module: nn.Module) -> None:
    """Turn every matrix that :func:`apply_sigma_reparam` changed into an ordinary one of the same value.

    Raises:
        ValueError: if there is none.
    """
    reparams = {
        layer: [part for part in layer.modules() if isinstance(part, SigmaReparam)]
        for layer in module.modules()
        if parametrize.is_parametrized(layer, "weight")
    }
    if not any(reparams.values()):
        raise ValueError(f"module must contain a layer under SigmaReparam, got {type(module).__name__} without")
    for layer, parts in reparams.items():
        for part in parts:
            part.eval()  # or it would take one more step, and the value would be another
            parametrize.remove_parametrizations(layer, "weight")
