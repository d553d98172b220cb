"""Softmax, with the two details that attention needs: a stable shift and a mask.

Below them what follows from it: the logarithm of its denominator, its derivative, and how two softmaxes over
different keys become the softmax over all of them.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.shapes import at_least_single, check_floating, check_mask


def softmax(
    scores: Float[Tensor, "*rows m"],
    mask: Bool[Tensor, "*#rows #m"] | None = None,
    *,
    temperature: float = 1.0,
) -> Float[Tensor, "*rows m"]:
    r"""Turn each row of scores into weights that sum to one over the allowed entries.

    .. math:: p_j = \frac{e^{(s_j - s_{\max}) / T}}{\sum_k e^{(s_k - s_{\max}) / T}}

    Subtracting the row maximum changes nothing on paper and keeps ``exp`` from overflowing.
    A row with nothing allowed (all forbidden, or every score ``-inf``) has no distribution to return: its weights
    are zero, and so are its gradients. A row that holds ``NaN`` or ``+inf`` among its allowed scores is ``NaN``
    throughout, so that an overflow shows. Half precision is computed in float32 and returned in its own type.

    Args:
        scores: one row per choice to be made, over ``m >= 1`` alternatives.
        mask: True where an entry is allowed.
        temperature: :math:`T`. Towards 0 the weights choose the maximum, towards infinity they become uniform.

    Raises:
        ValueError: if the temperature is not positive and finite in the precision of the scores, if the mask is not
            Boolean or would enlarge the scores, or if there are no scores to choose from.
    """
    below_peak, _ = _below_peak(scores, mask)
    limits = torch.finfo(below_peak.dtype)
    if not limits.tiny <= temperature <= limits.max:
        raise ValueError(f"temperature must be positive and finite (in {limits.dtype}), got {temperature}")
    unnormalised = (below_peak / temperature).exp()
    total = unnormalised.sum(dim=-1, keepdim=True)
    return (unnormalised / total.masked_fill(total == 0, 1.0)).to(scores.dtype)


def log_sum_exp(
    scores: Float[Tensor, "*rows m"], mask: Bool[Tensor, "*#rows #m"] | None = None
) -> Float[Tensor, "*rows"]:
    r"""Return the logarithm of the softmax's denominator, row by row.

    .. math:: \ell = \log \sum_k e^{s_k} = s_{\max} + \log \sum_k e^{s_k - s_{\max}}

    Its gradient is the softmax. A row with nothing allowed gives ``-inf`` and gradient zero; ``NaN`` or ``+inf``
    among the allowed scores gives ``NaN``. Half precision gives float32: an error :math:`\epsilon` in
    :math:`\ell` is a *relative* error :math:`\epsilon` in every weight computed from it.

    Raises:
        ValueError: as :func:`softmax`.
    """
    below_peak, peak = _below_peak(scores, mask)
    total = below_peak.exp().sum(dim=-1)
    nothing_allowed = total == 0
    return (peak.squeeze(-1) + total.masked_fill(nothing_allowed, 1.0).log()).masked_fill(nothing_allowed, -torch.inf)


def softmax_jacobian(p: Float[Tensor, "*rows m"]) -> Float[Tensor, "*rows m m"]:
    r"""Return how each weight of a softmax moves with each score.

    .. math:: \frac{\partial p_i}{\partial s_j} = p_i (\delta_{ij} - p_j), \qquad J = \operatorname{diag}(p) - p\,p^\top

    ``p`` are the weights, already computed. :math:`J` is symmetric and positive semidefinite, and its rows sum to
    zero because a shift of all scores changes nothing. At temperature :math:`T` the derivative is :math:`J / T`.

    Raises:
        ValueError: if ``p`` does not hold floating-point numbers.
    """
    check_floating(p=p)
    return p.diag_embed() - p[..., :, None] * p[..., None, :]


def merge_attention(
    out_a: Float[Tensor, "*batch n d_v"],
    lse_a: Float[Tensor, "*batch n"],
    out_b: Float[Tensor, "*batch n d_v"],
    lse_b: Float[Tensor, "*batch n"],
) -> tuple[Float[Tensor, "*batch n d_v"], Float[Tensor, "*batch n"]]:
    r"""Merge attention over two disjoint sets of keys into attention over both, exactly.

    .. math::
        o = \frac{e^{\ell_a} o_a + e^{\ell_b} o_b}{e^{\ell_a} + e^{\ell_b}}, \qquad
        \ell = \log\left(e^{\ell_a} + e^{\ell_b}\right)

    which is attention over two "keys" whose scores are the parts' log-sum-exps (:func:`log_sum_exp`). The merge is
    commutative and associative, so keys may be visited in any order and any grouping: FlashAttention's tiles,
    the devices of ring attention [1]_ and split-KV decoding all rest on it. A part that saw no key is the pair
    ``(0, -inf)`` and changes nothing; two such parts give another one.

    Outputs in half precision are averaged in float32 and rounded once at the end; keep a running output in float32.

    Args:
        out_a, out_b: the parts' outputs, of one type.
        lse_a, lse_b: the parts' log-sum-exps of the scores, natural logarithm, of one type (float32 is wise).

    Returns:
        The pair ``(out, lse)`` over all keys. Half-precision ``lse`` comes back as float32.

    Raises:
        ValueError: if the parts differ in shape, type or device, or an ``lse`` does not have one entry per query.

    .. [1] Liu et al., *Ring Attention with Blockwise Transformers*, 2023. arXiv:2310.01889.
    """
    check_floating(out_a=out_a, out_b=out_b)
    check_floating(lse_a=lse_a, lse_b=lse_b)
    if out_a.shape != out_b.shape:
        raise ValueError(f"out_a and out_b must have the same shape, got {tuple(out_a.shape)} and {tuple(out_b.shape)}")
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        if lse.shape != out_a.shape[:-1]:
            raise ValueError(f"{name} must have one entry per query, {tuple(out_a.shape[:-1])}, got {tuple(lse.shape)}")
    scores = torch.stack([lse_a, lse_b], dim=-1)
    share_a, share_b = softmax(at_least_single(scores)).split(1, dim=-1)
    return (share_a * out_a + share_b * out_b).to(out_a.dtype), log_sum_exp(scores)


def _below_peak(scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The allowed scores minus their row maximum (forbidden ones: ``-inf``), and that maximum."""
    check_floating(scores=scores)
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(f"scores must hold at least one entry per row, got shape {tuple(scores.shape)}")
    scores = at_least_single(scores)
    if mask is not None:
        check_mask(mask, scores)
        scores = scores.masked_fill(~mask, -torch.inf)
    peak = scores.detach().amax(dim=-1, keepdim=True)  # the shift cancels, so no gradient flows through it
    peak = peak.masked_fill(peak == -torch.inf, 0.0)  # nothing allowed: avoid -inf - (-inf)
    return scores - peak, peak
