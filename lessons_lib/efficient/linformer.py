r"""Linformer [1]_: project the ``m`` keys and values to ``r`` of each with learned matrices, then attend to these.

.. math:: O = \operatorname{softmax}\!\left(\tau\, Q\, (E K)^\top\right) F V, \qquad E, F \in \mathbb{R}^{r \times m}

The projections act on the *sequence* axis, not on the width: there are :math:`n r` scores instead of :math:`n m`, and
the layer has a fixed sequence length. The method assumes that attention matrices are approximately of low rank. It
uses no features and no kernel. (The paper writes :math:`n \times k` for the shape of :math:`E`, and :math:`E K` for the
product.)

.. [1] Wang et al., *Linformer*, 2020. arXiv:2006.04768.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lessons_lib.attention.attention import attention
from lessons_lib.efficient.validation import check_heads, check_no_bias
from lessons_lib.foundations.validation import check_size


class LinformerAttention(nn.Module):
    r"""Attention to ``r`` linear combinations of the keys; exact if ``r = m`` and :math:`E = F = I`.

    It cannot be causal, because each projected key combines all positions, including future ones. For the same reason
    padding cannot be hidden after the projection. Any mask raises ``ValueError``.

    As ``implementation`` of a layer, its :math:`2 r m` parameters belong to the layer and are shared by the layer's
    heads (the paper's *headwise sharing*). They are initialised from a normal distribution with variance :math:`1/m`,
    so that a projection of independent keys has the variance of one key and the default scale of the scores fits.

    ::

        >>> attend = LinformerAttention(500, 32)
        >>> q, k, v = torch.randn(3, 2, 8, 500, 64)
        >>> attend(q, k, v).shape
        torch.Size([2, 8, 500, 64])

    Args:
        m: number of keys and values in every call. The number of queries is free.
        r: number of projected keys and values.

    Raises:
        ValueError: if ``r`` or ``m`` is not a positive integer, or ``r`` is larger than ``m``.
    """

    def __init__(self, m: int, r: int) -> None:
        super().__init__()
        check_size("m", m, at_least=1)
        check_size("r", r, at_least=1, at_most=m)
        self.e = nn.Parameter(torch.randn(r, m) / m**0.5)
        self.f = nn.Parameter(torch.randn(r, m) / m**0.5)

    def forward(
        self,
        query: Float[Tensor, "*batch n d_k"],
        key: Float[Tensor, "*batch_kv m d_k"],
        value: Float[Tensor, "*batch_kv m d_v"],
        mask: Tensor | None = None,
        *,
        scale: float | None = None,
        bias: Tensor | None = None,
        dropout_p: float = 0.0,
    ) -> Float[Tensor, "*batch n d_v"]:
        """Attend with the arguments of :func:`lessons_lib.attention.attention.attention`.

        Dropout acts on the weights of the projected keys.

        Raises:
            ValueError: as :func:`lessons_lib.attention.attention.attention`, if the leading axes differ by more than
                grouped heads, if there are not ``m`` keys, and for any mask or bias.
        """
        check_heads(query, key, value)
        if key.shape[-2] != self.e.shape[1]:
            raise ValueError(f"this layer was made for m={self.e.shape[1]} keys, got {key.shape[-2]}")
        if mask is not None:
            raise ValueError(
                "mask must be None, Linformer projects all positions before any can be hidden, so it supports neither "
                "causal masks nor padding masks; use another attention"
            )
        check_no_bias("Linformer", bias)
        return attention(query, self.e @ key, self.f @ value, scale=scale, dropout_p=dropout_p)
