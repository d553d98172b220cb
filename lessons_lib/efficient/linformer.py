r"""Linformer [1]_: mix the ``m`` keys and values down to ``r`` of each, by learned matrices, then attend to those.

.. math:: O = \operatorname{softmax}\!\left(\tau\, Q\, (E K)^\top\right) F V, \qquad E, F \in \mathbb{R}^{r \times m}

The matrices act on the *sequence*, not on the width: there are :math:`n r` scores instead of :math:`n m`, and the
length is fixed when the layer is made. It rests on attention matrices being of low rank, approximately; no features,
no kernel. (The paper writes :math:`n \times k` for the shape of :math:`E`, and :math:`E K` for the product.)

.. [1] Wang et al., *Linformer*, 2020. arXiv:2006.04768.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lessons_lib.attention import attention
from lessons_lib.efficient.call_shape import check_heads, refuse_bias
from lessons_lib.shapes import check_size


class LinformerAttention(nn.Module):
    r"""Attend to ``r`` mixtures of the keys instead of the keys; exact where ``r = m`` and :math:`E = F = I`.

    Not causal, and it cannot be made so: each mixture holds all positions, the future among them. For the same reason
    padding cannot be hidden afterwards. Any mask is refused.

    As ``implementation`` of a layer, its :math:`2 r m` weights are the layer's and are shared by its heads (the
    paper's *headwise sharing*). They start as normal numbers of variance :math:`1/m`, so that mixtures of independent
    keys have the variance of one key and the default scale stays right.

    Args:
        m: number of keys and values it is made for. The queries may be any number.
        r: number of mixtures.

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
        """Attend in the call shape of :func:`lessons_lib.attention.attention`; dropout drops weights of mixtures.

        Raises:
            ValueError: as :func:`lessons_lib.attention.attention`, if the leading axes differ by more than grouped
                heads, if there are not ``m`` keys, and for any mask or bias.
        """
        check_heads(query, key, value)
        if key.shape[-2] != self.e.shape[1]:
            raise ValueError(f"this layer was made for m={self.e.shape[1]} keys, got {key.shape[-2]}")
        if mask is not None:
            raise ValueError(
                "mask must be None, Linformer mixes all positions before any could be hidden, so it is neither causal "
                "nor blind to padding; use another attention"
            )
        refuse_bias("Linformer", bias)
        return attention(query, self.e @ key, self.f @ value, scale=scale, dropout_p=dropout_p)
