"""The options that change the scores, as one value: scale, soft cap, ALiBi slopes and sinks.

Their meaning is described in :func:`lessons_lib.attention.attention.attention_weights`, and they are checked by
:func:`lessons_lib.attention.attention.check_score_mods`.
"""

import math
from typing import NamedTuple

from torch import Tensor

from lessons_lib.attention.attention import check_score_mods


class Scores(NamedTuple):
    r"""The score modifications of a call, in the order of :mod:`lessons_lib.attention.attention`.

    .. math:: s_{ij} = \operatorname{cap}\left(\tau\, q_i \cdot k_j\right) - \sigma_h\, |p_i - j|, \qquad
              A_{ij} = \frac{e^{s_{ij}}}{e^{z_h} + \sum_k e^{s_{ik}}}
    """

    scale: float  # tau
    softcap: float | None = None  # the bound c of cap(s) = c tanh(s / c)
    alibi_slopes: Tensor | None = None  # sigma, one for each head
    sinks: Tensor | None = None  # z, one for each head

    @property
    def plain(self) -> bool:
        """Whether a score is the scaled product and nothing else."""
        return not self.score_mods

    @property
    def score_mods(self) -> list[str]:
        """The names of the options other than the scale that are set."""
        return [name for name in ("softcap", "alibi_slopes", "sinks") if getattr(self, name) is not None]

    @classmethod
    def checked(
        cls,
        q: Tensor,
        k: Tensor,
        scale: float | None,
        softcap: float | None,
        alibi_slopes: Tensor | None,
        sinks: Tensor | None,
    ) -> "Scores":
        """Return the score modifications for these queries and keys, with the default for a scale of None.

        Raises:
            ValueError: as :func:`lessons_lib.attention.attention.attention`.
        """
        scores = cls(1 / math.sqrt(q.shape[-1]) if scale is None else scale, softcap, alibi_slopes, sinks)
        if not scores.plain:
            shape_of_scores = q.new_empty(()).expand(*q.shape[:3], k.shape[2])
            check_score_mods(q, shape_of_scores, softcap, alibi_slopes, sinks)
        return scores
