r"""Linear attention with a decaying state, and the delta rule, which overwrites values instead of adding them.

The state of linear attention is a matrix :math:`S` over ``(d_k, d_v)``, to which each token adds :math:`k_t v_t^\top`.
The value that the key :math:`k_t` retrieves, :math:`S^\top k_t`, is therefore a mixture of all values that were written
with similar keys.

.. math::
    \text{linear attention} && S_t &= S_{t-1} + k_t v_t^\top \\
    \text{decay [1]_ [2]_} && S_t &= a_t S_{t-1} + k_t v_t^\top \\
    \text{delta rule [3]_} && S_t &= S_{t-1} + \beta_t\, k_t \big(v_t - S_{t-1}^\top k_t\big)^\top \\
    \text{both [4]_} && S_t &= a_t S_{t-1} + \beta_t\, k_t \big(v_t - a_t S_{t-1}^\top k_t\big)^\top

The output is :math:`o_t = S_t^\top q_t` in all cases. The delta rule writes the difference between the new and the
retrieved value. It is one step of gradient descent with learning rate :math:`\beta_t` on
:math:`\tfrac12 \lVert S^\top k_t - v_t \rVert^2`. With a key of norm one and :math:`\beta_t = 1` the old value is
erased and the new value is retrieved exactly.

**Parallel form.** Let :math:`G_t = a_1 \cdots a_t`, and let :math:`u_t = \beta_t (v_t - a_t S_{t-1}^\top k_t)` be the
written value. Then :math:`S_t = G_t S_0 + \sum_{j \le t} (G_t / G_j)\, k_j u_j^\top`, and the :math:`u_t` solve a
triangular system:

.. math:: u_t + \beta_t \sum_{j < t} \frac{G_t}{G_j} (k_t \cdot k_j)\, u_j = \beta_t \big(v_t - G_t S_0^\top k_t\big)

A chunk of tokens takes a few matrix products and one such system [5]_. The state is passed from chunk to chunk.

.. [1] Sun et al., *Retentive Network*, 2023. arXiv:2307.08621.
.. [2] Yang et al., *Gated Linear Attention Transformers with Hardware-Efficient Training*, 2023. arXiv:2312.06635.
.. [3] Schlag, Irie, Schmidhuber, *Linear Transformers Are Secretly Fast Weight Programmers*, 2021. arXiv:2102.11174.
.. [4] Yang, Kautz, Hatamizadeh, *Gated Delta Networks*, 2024. arXiv:2412.06464.
.. [5] Yang et al., *Parallelizing Linear Transformers with the Delta Rule over Sequence Length*, 2024.
   arXiv:2406.06484.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.attention.attention import repeat_kv
from lessons_lib.efficient.validation import check_heads
from lessons_lib.foundations.validation import check_floating, promote_half, values_can_be_read

_CHUNK = 64


def decayed_attention(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv n d_k"],
    value: Float[Tensor, "*batch_kv n d_v"],
    *,
    log_decay: Float[Tensor, "*batch n"] | None = None,
    initial: Float[Tensor, "*batch d_k d_v"] | None = None,
) -> tuple[Float[Tensor, "*batch n d_v"], Float[Tensor, "*batch d_k d_v"]]:
    r"""Return the outputs :math:`o_1 \dots o_n` of linear attention with a decaying state, and the final state.

    .. math:: o_t = \sum_{j \le t} \frac{G_t}{G_j} (q_t \cdot k_j)\, v_j + G_t S_0^\top q_t

    There is no denominator; layers normalise the output instead. Without decay, this is causal linear attention
    without its denominator.

    ::

        >>> q, k, v = torch.randn(3, 2, 8, 100, 64)
        >>> out, state = decayed_attention(q, k, v, log_decay=-torch.rand(2, 8, 100))
        >>> out.shape, state.shape
        (torch.Size([2, 8, 100, 64]), torch.Size([2, 8, 64, 64]))

    Args:
        query: the queries. The caller applies any feature map and scale.
        key: the keys; over ``(b, h, n, d)`` they may have fewer heads, each shared by a group of query heads.
        value: the values, with as many heads as the keys.
        log_decay: :math:`\ln a_t`, at most 0, for each query head and token; 0, no decay, when omitted.
        initial: the initial state of each query head; zero when omitted. For a decoding step, pass one token and the
            previous state.

    Raises:
        ValueError: if shapes, types or devices do not match, or ``log_decay`` is above 0 or not finite.
    """
    return _run_in_chunks(query, key, value, None, log_decay, initial)


def delta_rule(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv n d_k"],
    value: Float[Tensor, "*batch_kv n d_v"],
    beta: Float[Tensor, "*batch n"],
    *,
    log_decay: Float[Tensor, "*batch n"] | None = None,
    initial: Float[Tensor, "*batch d_k d_v"] | None = None,
) -> tuple[Float[Tensor, "*batch n d_v"], Float[Tensor, "*batch d_k d_v"]]:
    r"""Return the outputs :math:`o_1 \dots o_n` of the delta rule, and the final state.

    Each token overwrites the value that its key retrieves.

    The state is multiplied by :math:`a_t (I - \beta_t k_t k_t^\top)`, whose eigenvalue along :math:`k_t` is
    :math:`a_t (1 - \beta_t \lVert k_t \rVert^2)`. Pass keys of norm one and :math:`\beta` from 0 to 1 (up to 2 if the
    state may retrieve the opposite value), or the state may grow without bound. This function does not normalise keys.

    ::

        >>> q, k, v = torch.randn(3, 2, 8, 100, 64)
        >>> out, state = delta_rule(q, k / k.norm(dim=-1, keepdim=True), v, torch.rand(2, 8, 100))
        >>> out.shape, state.shape
        (torch.Size([2, 8, 100, 64]), torch.Size([2, 8, 64, 64]))

    Args:
        query: the queries.
        key: the keys; over ``(b, h, n, d)`` they may have fewer heads, each shared by a group of query heads.
        value: the values, with as many heads as the keys.
        beta: :math:`\beta_t`, the share of the old value that is replaced, for each query head and token.
        log_decay, initial: as in :func:`decayed_attention`.

    Raises:
        ValueError: if shapes, types or devices do not match, or ``log_decay`` is above 0 or not finite.
    """
    return _run_in_chunks(query, key, value, beta, log_decay, initial)


# --- parts ----------------------------------------------------------------------------------------------------------


def _run_in_chunks(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor | None, log_decay: Tensor | None, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    _check_inputs(query, key, value, beta, log_decay, initial)
    q = promote_half(query)
    k, v = (promote_half(repeat_kv(rows, query)) for rows in (key, value))
    log_a = q.new_zeros(q.shape[:-1]) if log_decay is None else promote_half(log_decay)
    b = None if beta is None else promote_half(beta)
    state = q.new_zeros(*q.shape[:-2], k.shape[-1], v.shape[-1]) if initial is None else promote_half(initial)
    outs = []
    for start in range(0, q.shape[-2], _CHUNK):
        here = slice(start, start + _CHUNK)
        q_here, k_here, v_here = (rows[..., here, :] for rows in (q, k, v))
        b_here = None if b is None else b[..., here]
        out, state = _chunk(q_here, k_here, v_here, b_here, log_a[..., here], state)
        outs.append(out)
    return torch.cat(outs, dim=-2).to(query.dtype), state


def _chunk(q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, log_a: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of one chunk of tokens, and the state after it."""
    total = log_a.cumsum(dim=-1)  # ln G
    # G_t / G_j from a difference of logarithms, because both numbers may underflow.
    ratio = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    decay = total.exp()[..., None]
    if beta is None:
        written = v
    else:
        target = beta[..., None] * (v - decay * (k @ state))
        overlap = beta[..., None] * ratio * (k @ k.mT)
        written = torch.linalg.solve_triangular(overlap.tril(-1), target, upper=False, unitriangular=True)
    out = decay * (q @ state) + (ratio * (q @ k.mT)) @ written
    remaining = ratio[..., -1:, :].mT  # decay from each write to the end of the chunk
    return out, decay[..., -1:, :] * state + (remaining * k).mT @ written


def _check_inputs(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor | None, log_decay: Tensor | None, initial: Tensor | None
) -> None:
    check_heads(query, key, value)
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(f"query and key must have the same number of rows, got {query.shape[-2]} and {key.shape[-2]}")
    for name, given in {"beta": beta, "log_decay": log_decay}.items():
        if given is not None:
            check_floating(query=query, **{name: given})
            if given.shape != query.shape[:-1]:
                raise ValueError(
                    f"{name} must hold one number for each query, {tuple(query.shape[:-1])}, got {tuple(given.shape)}"
                )
    if log_decay is not None and values_can_be_read(log_decay) and not ((log_decay <= 0) & log_decay.isfinite()).all():
        raise ValueError(f"log_decay must be finite and at most 0, got up to {log_decay.max()}")
    if initial is not None:
        wanted = (*query.shape[:-2], key.shape[-1], value.shape[-1])
        if initial.shape != wanted:
            raise ValueError(f"initial must be {wanted}, a state for each query head, got {tuple(initial.shape)}")
        check_floating(initial=initial, query=promote_half(query))
