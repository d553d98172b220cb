r"""Linear attention that forgets and corrects: a state that decays, and a rule that overwrites instead of adding.

The state of linear attention is a matrix :math:`S` over ``(d_k, d_v)`` to which each token adds :math:`k_t v_t^\top`.
What :math:`k_t` recalls, :math:`S^\top k_t`, is then a mixture of all that was ever written under similar keys.

.. math::
    \text{linear attention} && S_t &= S_{t-1} + k_t v_t^\top \\
    \text{decay [1]_ [2]_} && S_t &= a_t S_{t-1} + k_t v_t^\top \\
    \text{delta rule [3]_} && S_t &= S_{t-1} + \beta_t\, k_t \big(v_t - S_{t-1}^\top k_t\big)^\top \\
    \text{both [4]_} && S_t &= a_t S_{t-1} + \beta_t\, k_t \big(v_t - a_t S_{t-1}^\top k_t\big)^\top

and all are read by :math:`o_t = S_t^\top q_t`. The delta rule writes only what is missing: it is one step of gradient
descent, of size :math:`\beta_t`, on :math:`\tfrac12 \lVert S^\top k_t - v_t \rVert^2`. With a key of length one and
:math:`\beta_t = 1` the old value is gone and the new one is recalled exactly.

**In parallel.** With :math:`G_t = a_1 \cdots a_t`, and :math:`u_t = \beta_t (v_t - a_t S_{t-1}^\top k_t)` for what is
written, :math:`S_t = G_t S_0 + \sum_{j \le t} (G_t / G_j)\, k_j u_j^\top`. So the :math:`u` solve a triangular system

.. math:: u_t + \beta_t \sum_{j < t} \frac{G_t}{G_j} (k_t \cdot k_j)\, u_j = \beta_t \big(v_t - G_t S_0^\top k_t\big)

and a chunk of tokens is a few matrix products and one such system [5]_; what goes from chunk to chunk is the state.

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

from lessons_lib.attention import for_each_query_head
from lessons_lib.efficient.call_shape import check_heads
from lessons_lib.shapes import at_least_single, check_floating, values_can_be_read

CHUNK = 64


def decayed_attention(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv n d_k"],
    value: Float[Tensor, "*batch_kv n d_v"],
    *,
    log_decay: Float[Tensor, "*batch n"] | None = None,
    initial: Float[Tensor, "*batch d_k d_v"] | None = None,
) -> tuple[Float[Tensor, "*batch n d_v"], Float[Tensor, "*batch d_k d_v"]]:
    r"""Return :math:`o_1 \dots o_n` of linear attention whose state decays, and the state after them.

    .. math:: o_t = \sum_{j \le t} \frac{G_t}{G_j} (q_t \cdot k_j)\, v_j + G_t S_0^\top q_t

    No denominator: a layer norms its output instead. Without decay this is causal linear attention but for that.

    Args:
        query: read with. Features and scales are the caller's.
        key: written under; with fewer heads over ``(b, h, n, d)``, each is shared by a group of queries' heads.
        value: what is written.
        log_decay: :math:`\ln a_t`, at most 0, for each query head and token; 0 when omitted: nothing is forgotten.
        initial: the state to go on from, for each query head; zero when omitted. A step of decoding is a call with
            one token.

    Raises:
        ValueError: if shapes, types or devices do not fit, or a decay is above 0 or not finite.
    """
    return _in_chunks(query, key, value, None, log_decay, initial)


def delta_rule(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv n d_k"],
    value: Float[Tensor, "*batch_kv n d_v"],
    beta: Float[Tensor, "*batch n"],
    *,
    log_decay: Float[Tensor, "*batch n"] | None = None,
    initial: Float[Tensor, "*batch d_k d_v"] | None = None,
) -> tuple[Float[Tensor, "*batch n d_v"], Float[Tensor, "*batch d_k d_v"]]:
    r"""Return :math:`o_1 \dots o_n` where each token overwrites what its key recalls, and the state after them.

    The state is multiplied by :math:`a_t (I - \beta_t k_t k_t^\top)`, whose eigenvalue along :math:`k_t` is
    :math:`a_t (1 - \beta_t \lVert k_t \rVert^2)`: give keys of length one and :math:`\beta` from 0 to 1 (to 2, if
    recalling the opposite is wanted), or the state may grow without bound. Nothing is normalised here.

    Args:
        query: read with.
        key: written under; with fewer heads over ``(b, h, n, d)``, each is shared by a group of queries' heads.
        value: what is to be recalled by the key.
        beta: :math:`\beta_t`, how much of the old value is replaced, for each query head and token.
        log_decay: :math:`\ln a_t` as in :func:`decayed_attention`.
        initial: likewise.

    Raises:
        ValueError: if shapes, types or devices do not fit, or a decay is above 0 or not finite.
    """
    return _in_chunks(query, key, value, beta, log_decay, initial)


# --- parts ----------------------------------------------------------------------------------------------------------


def _in_chunks(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor | None, log_decay: Tensor | None, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    _check(query, key, value, beta, log_decay, initial)
    q = at_least_single(query)
    k, v = (at_least_single(for_each_query_head(rows, query)) for rows in (key, value))
    log_a = q.new_zeros(q.shape[:-1]) if log_decay is None else at_least_single(log_decay)
    b = None if beta is None else at_least_single(beta)
    state = q.new_zeros(*q.shape[:-2], k.shape[-1], v.shape[-1]) if initial is None else at_least_single(initial)
    outs = []
    for start in range(0, q.shape[-2], CHUNK):
        here = slice(start, start + CHUNK)
        q_here, k_here, v_here = (rows[..., here, :] for rows in (q, k, v))
        b_here = None if b is None else b[..., here]
        out, state = _chunk(q_here, k_here, v_here, b_here, log_a[..., here], state)
        outs.append(out)
    return torch.cat(outs, dim=-2).to(query.dtype), state


def _chunk(q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, log_a: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of some tokens, and the state after them."""
    total = log_a.cumsum(dim=-1)  # ln G
    # G_t / G_j by a difference of logarithms: the quotient of two small numbers would be lost.
    ratio = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    grown = total.exp()[..., None]
    if beta is None:
        written = v
    else:
        missing = beta[..., None] * (v - grown * (k @ state))
        met = beta[..., None] * ratio * (k @ k.mT)
        written = torch.linalg.solve_triangular(met.tril(-1), missing, upper=False, unitriangular=True)
    out = grown * (q @ state) + (ratio * (q @ k.mT)) @ written
    left = ratio[..., -1:, :].mT  # what each write has left at the end
    return out, grown[..., -1:, :] * state + (left * k).mT @ written


def _check(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor | None, log_decay: Tensor | None, initial: Tensor | None
) -> None:
    check_heads(query, key, value)
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(f"each query comes with a key, got {query.shape[-2]} queries and {key.shape[-2]} keys")
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
        check_floating(initial=initial, query=at_least_single(query))
