r"""QK-norm and sigmaReparam: two remedies for attention entropy collapse, which bound the attention scores.

A score is bounded by the lengths of query and key. :class:`QKNorm` normalises both; :class:`SigmaReparam` bounds the
matrices that project to them. :mod:`lessons_lib.analysis.diagnostics` shows whether a model needs either.

.. [1] Zhai et al., *Stabilizing Transformer Training by Preventing Attention Entropy Collapse*, 2023.
   arXiv:2303.06296.
.. [2] Dehghani et al., *Scaling Vision Transformers to 22 Billion Parameters*, 2023. arXiv:2302.05442.
.. [3] OLMo Team, *2 OLMo 2 Furious*, 2024. arXiv:2501.00656.
"""

from collections import Counter
from collections.abc import Callable

import torch
from einops import rearrange
from jaxtyping import Float, Num
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils import parametrize

from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.foundations.norms import RMSNorm
from lessons_lib.foundations.validation import values_can_be_read

# --- queries and keys -----------------------------------------------------------------------------------------------

ProcessQK = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class QKNorm(nn.Module):
    r"""RMS norms of queries and keys, which bound the attention scores by two learned gains [2]_.

    .. math:: s_{ij} = \frac{\operatorname{norm}_q(q_i) \cdot \operatorname{norm}_k(k_j)}{\sqrt{d_k}}
              \quad\Rightarrow\quad |s_{ij}| \le \sqrt{d_k}\, \max_c |g_c|\, \max_c |g'_c|

    The gains :math:`g` of the queries and :math:`g'` of the keys are shared by all heads. The module is the
    ``process_qk`` of a :class:`~lessons_lib.attention.multihead.MultiHeadAttention`. Another ``process_qk`` can follow:
    rotations keep lengths, so the bound also holds after them.

    >>> q, k = QKNorm(8)(torch.randn(2, 4, 5, 8), torch.randn(2, 1, 5, 8), torch.arange(5))
    >>> q.shape, k.shape
    (torch.Size([2, 4, 5, 8]), torch.Size([2, 1, 5, 8]))

    Args:
        d_head: width of a head.
        then: the ``process_qk`` to apply afterwards, for instance that of a rotary embedding.
        eps: epsilon of both norms.
    """

    def __init__(self, d_head: int, then: ProcessQK | None = None, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.q_norm, self.k_norm, self.then = RMSNorm(d_head, eps=eps), RMSNorm(d_head, eps=eps), then

    def forward(
        self,
        q: Float[Tensor, "*batch n d_head"],
        k: Float[Tensor, "*shared n d_head"],
        positions: Num[Tensor, "*#rows n"],
    ) -> tuple[Float[Tensor, "*batch n d_head"], Float[Tensor, "*shared n d_head"]]:
        """Normalise each query and each key, then apply ``then``, which alone uses the positions."""
        q, k = self.q_norm(q), self.k_norm(k)
        return (q, k) if self.then is None else self.then(q, k, positions)


class QKNormAcrossHeads(QKNorm):
    r"""RMS norms of the queries of all heads together, and of the keys of all heads together, as in OLMo 2 [3]_.

    .. math:: (q_1, \dots, q_h) \leftarrow \operatorname{norm}_q\big((q_1, \dots, q_h)\big)

    Each entry has a gain of its own. One head may have all the length, so the bound on the scores is
    :math:`\sqrt{h\, g}` times that of :class:`QKNorm`.

    >>> q, k = QKNormAcrossHeads(8, 4, 1)(torch.randn(2, 4, 5, 8), torch.randn(2, 1, 5, 8), torch.arange(5))
    >>> q.shape, k.shape
    (torch.Size([2, 4, 5, 8]), torch.Size([2, 1, 5, 8]))

    Args:
        d_head: width of a head.
        n_heads: number of query heads :math:`h`.
        n_kv_heads: number of key heads :math:`g`.
        then: the ``process_qk`` to apply afterwards.
        eps: epsilon of both norms.
    """

    def __init__(
        self, d_head: int, n_heads: int, n_kv_heads: int, then: ProcessQK | None = None, *, eps: float = 1e-6
    ) -> None:
        super().__init__(d_head, then, eps=eps)
        self.q_norm, self.k_norm = (RMSNorm(h * d_head, eps=eps) for h in (n_heads, n_kv_heads))

    def forward(
        self,
        q: Float[Tensor, "*batch n d_head"],
        k: Float[Tensor, "*shared n d_head"],
        positions: Num[Tensor, "*#rows n"],
    ) -> tuple[Float[Tensor, "*batch n d_head"], Float[Tensor, "*shared n d_head"]]:
        """Normalise the queries and the keys of each position, then apply ``then``, which alone uses the positions."""
        q, k = _normalise_heads_together(q, self.q_norm), _normalise_heads_together(k, self.k_norm)
        return (q, k) if self.then is None else self.then(q, k, positions)


def _normalise_heads_together(x: Tensor, norm: nn.Module) -> Tensor:
    together = norm(rearrange(x, "... h n d -> ... n (h d)"))
    return rearrange(together, "... n (h d) -> ... h n d", h=x.shape[-3])


def apply_qk_norm(module: nn.Module) -> None:
    """Add :class:`QKNorm` to every attention layer inside ``module``, in place.

    Call it before you create the optimizer. The norm is applied before the layer's previous ``process_qk``. The config
    of a GPT does not describe the change, so :meth:`GPT.save <lessons_lib.transformer.gpt.GPT.save>` raises an error;
    build a GPT that you want to save with ``GPTConfig(..., qk_norm=True)``.

    Raises:
        ValueError: if there is no attention layer, or one has QK-norm already.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, MultiHeadAttention)]
    if not layers or any(isinstance(layer.process_qk, QKNorm) for layer in layers):
        raise ValueError(f"module must contain attention layers without QKNorm, got {type(module).__name__}")
    for layer in layers:
        weight = layer.w_q.weight
        layer.process_qk = QKNorm(layer.d_head, layer.process_qk).to(device=weight.device, dtype=weight.dtype)


# --- matrices -------------------------------------------------------------------------------------------------------


class SigmaReparam(nn.Module):
    r"""Reparametrisation of a matrix whose spectral norm is a learned parameter [1]_.

    .. math:: \hat W = \frac{\gamma}{\sigma(W)}\, W, \qquad \sigma(W) = \max_{u, v} \frac{u^\top W v}{|u|\,|v|}

    The parameter :math:`\gamma` is learned and initially 1; spectral *normalisation* would keep it fixed. Attention
    scores are bounded by the spectral norms of the query and key matrices. Their growth, which concentrates attention
    on one key, is now only possible through :math:`\gamma`. The singular vectors are exact at first; each forward pass
    in training mode then updates them by one step of power iteration.

    It is a parametrisation in the sense of ``torch.nn.utils.parametrize``: see :func:`apply_sigma_reparam`.

    >>> torch.linalg.matrix_norm(SigmaReparam(torch.eye(2, 3))(5 * torch.eye(2, 3)), 2).item()
    1.0

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
            self._power_iteration(weight.detach())
        u, v = self.u.clone(), self.v.clone()  # the backward pass needs these values after a later update
        return self.gamma / (u @ weight @ v) * weight

    @torch.no_grad()
    def _power_iteration(self, weight: Tensor) -> None:
        self.u.copy_(normalize(weight @ self.v, dim=0))
        self.v.copy_(normalize(weight.mT @ self.u, dim=0))


def apply_sigma_reparam(module: nn.Module) -> None:
    """Apply :class:`SigmaReparam` to the weight of every ``nn.Linear`` inside ``module``, in place.

    Call it before you create the optimizer, usually for the blocks only: ``apply_sigma_reparam(gpt.blocks)``. Each
    matrix then has spectral norm 1, whatever its initial values. :func:`remove_sigma_reparam` restores ordinary
    matrices, for saving.

    >>> layer = nn.Linear(3, 5)
    >>> apply_sigma_reparam(layer)
    >>> sorted(name for name, _ in layer.named_parameters())
    ['bias', 'parametrizations.weight.0.gamma', 'parametrizations.weight.original']
    >>> remove_sigma_reparam(layer)
    >>> sorted(name for name, _ in layer.named_parameters())
    ['bias', 'weight']

    Raises:
        ValueError: if there is no such layer, or the weight of one is parametrised already or shared with another
            module.
    """
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    if not layers:
        raise ValueError(f"module must contain an nn.Linear, got {type(module).__name__} without")
    uses = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    for name, layer in layers.items():
        if parametrize.is_parametrized(layer, "weight"):
            raise ValueError(f"no weight may be parametrised yet, but that of {name!r} is parametrised already")
        if uses[id(layer.weight)] > 1:
            raise ValueError(f"{name!r} shares its weight with another module; apply this to the blocks alone")
    for layer in layers.values():
        reparam = SigmaReparam(layer.weight).train(layer.training)
        parametrize.register_parametrization(layer, "weight", reparam)


def remove_sigma_reparam(module: nn.Module) -> None:
    """Replace every matrix that :func:`apply_sigma_reparam` changed by an ordinary one of the same value.

    Raises:
        ValueError: if there is no such matrix.
    """
    reparams = {
        layer: [submodule for submodule in layer.modules() if isinstance(submodule, SigmaReparam)]
        for layer in module.modules()
        if parametrize.is_parametrized(layer, "weight")
    }
    if not any(reparams.values()):
        raise ValueError(f"module must contain a layer with SigmaReparam, got {type(module).__name__} without")
    for layer, layer_reparams in reparams.items():
        for reparam in layer_reparams:
            reparam.eval()  # in training mode one more power iteration would change the value
            parametrize.remove_parametrizations(layer, "weight")
