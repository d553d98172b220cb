"""Softmax, with the two details that attention needs: a numerically stable shift and a mask.

The other functions follow from softmax: the logarithm of its denominator (:func:`log_sum_exp`), its derivative
(:func:`softmax_jacobian`), and the merge of attention over two sets of keys (:func:`merge_attention`).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.foundations.validation import check_floating, check_mask, promote_half


def softmax(
    scores: Float[Tensor, "*rows m"],
    mask: Bool[Tensor, "*#rows #m"] | None = None,
    *,
    temperature: float = 1.0,
) -> Float[Tensor, "*rows m"]:
    r"""Return the softmax of each row of scores: weights that sum to one over the allowed entries.

    .. math:: p_j = \frac{e^{(s_j - s_{\max}) / T}}{\sum_k e^{(s_k - s_{\max}) / T}}

    Subtracting the row maximum :math:`s_{\max}` does not change the exact result, and prevents overflow in ``exp``.

    A row without an allowed entry (fully masked, or every score ``-inf``) has no softmax: its weights are zero, and so
    are its gradients. A row with ``NaN`` or ``+inf`` among its allowed scores is ``NaN`` throughout, so that an
    overflow does not go unnoticed. Half precision is computed in float32 and returned in its own dtype.

    >>> softmax(torch.tensor([[0.0, 0.0, 5.0]]), mask=torch.tensor([True, True, False]))
    tensor([[0.5000, 0.5000, 0.0000]])

    Args:
        scores: one row per query, over ``m >= 1`` keys.
        mask: True where an entry is allowed.
        temperature: :math:`T`. As it goes to 0, all weight goes to the maximum; as it goes to infinity, the weights
            become uniform.

    Raises:
        ValueError: if the temperature is not positive and finite in the precision of the scores, if the mask is not
            Boolean or would enlarge the scores, or if there are no scores to choose from.
    """
    shifted, _ = _subtract_row_maximum(scores, mask)
    limits = torch.finfo(shifted.dtype)
    if not limits.tiny <= temperature <= limits.max:
        raise ValueError(f"temperature must be positive and finite (in {limits.dtype}), got {temperature}")
    unnormalised = (shifted / temperature).exp()
    total = unnormalised.sum(dim=-1, keepdim=True)
    return (unnormalised / total.masked_fill(total == 0, 1.0)).to(scores.dtype)


def log_sum_exp(
    scores: Float[Tensor, "*rows m"], mask: Bool[Tensor, "*#rows #m"] | None = None
) -> Float[Tensor, "*rows"]:
    r"""Return the logarithm of the softmax's denominator for each row.

    .. math:: \ell = \log \sum_k e^{s_k} = s_{\max} + \log \sum_k e^{s_k - s_{\max}}

    Its gradient is the softmax. A row without an allowed entry gives ``-inf`` and gradient zero; ``NaN`` or ``+inf``
    among the allowed scores gives ``NaN``. Half-precision scores give a float32 result: an error :math:`\epsilon` in
    :math:`\ell` is a *relative* error :math:`\epsilon` in every weight computed from it.

    >>> log_sum_exp(torch.zeros(2, 5))  # the logarithm of 5
    tensor([1.6094, 1.6094])

    Raises:
        ValueError: as :func:`softmax`.
    """
    shifted, peak = _subtract_row_maximum(scores, mask)
    total = shifted.exp().sum(dim=-1)
    fully_masked = total == 0
    return (peak.squeeze(-1) + total.masked_fill(fully_masked, 1.0).log()).masked_fill(fully_masked, -torch.inf)


def softmax_jacobian(p: Float[Tensor, "*rows m"]) -> Float[Tensor, "*rows m m"]:
    r"""Return the derivative of each weight of a softmax with respect to each score.

    .. math:: \frac{\partial p_i}{\partial s_j} = p_i (\delta_{ij} - p_j), \qquad J = \operatorname{diag}(p) - p\,p^\top

    ``p`` holds the weights, the output of the softmax. :math:`J` is symmetric and positive semidefinite. Its rows sum
    to zero, because adding a constant to all scores changes no weight. At temperature :math:`T` the derivative is
    :math:`J / T`.

    >>> softmax_jacobian(torch.tensor([0.5, 0.5]))
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])

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

    This is attention over two "keys" whose scores are the log-sum-exps of the two parts (:func:`log_sum_exp`). The
    merge is commutative and associative, so the keys may be processed in any order and in any grouping.
    FlashAttention, ring attention [1]_ and split-KV decoding merge their tiles, devices and splits in this way. A part
    without a visible key is the pair ``(0, -inf)`` and leaves the other part unchanged; two such parts give
    ``(0, -inf)``.

    Outputs in half precision are averaged in float32 and rounded once, at the end. A running output over many merges
    should be kept in float32.

    >>> scores, values = torch.randn(5, 7), torch.randn(7, 3)  # five queries, seven keys
    >>> parts = [(softmax(s) @ v, log_sum_exp(s)) for s, v in zip(scores.split(4, dim=-1), values.split(4))]
    >>> out, lse = merge_attention(*parts[0], *parts[1])
    >>> torch.allclose(out, softmax(scores) @ values, atol=1e-5)
    True

    Args:
        out_a, out_b: the outputs of the two parts, of one dtype.
        lse_a, lse_b: the log-sum-exps of their scores (natural logarithm), of one dtype, preferably float32.

    Returns:
        The pair ``(out, lse)`` over all keys. A half-precision ``lse`` is returned as float32.

    Raises:
        ValueError: if the parts differ in shape, dtype or device, or an ``lse`` does not have one entry per query.

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
    share_a, share_b = softmax(promote_half(scores)).split(1, dim=-1)
    return (share_a * out_a + share_b * out_b).to(out_a.dtype), log_sum_exp(scores)


def _subtract_row_maximum(scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the scores minus the maximum allowed score of their row (``-inf`` if forbidden), and that maximum."""
    check_floating(scores=scores)
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(f"scores must hold at least one entry per row, got shape {tuple(scores.shape)}")
    scores = promote_half(scores)
    if mask is not None:
        check_mask(mask, scores)
        scores = scores.masked_fill(~mask, -torch.inf)
    peak = scores.detach().amax(dim=-1, keepdim=True)  # the shift cancels, so no gradient flows through it
    peak = peak.masked_fill(peak == -torch.inf, 0.0)  # no entry allowed: avoid -inf - (-inf)
    return scores - peak, peak
