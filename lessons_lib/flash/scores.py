"""What becomes of a product ``q · k`` before the softmax."""

from typing import NamedTuple

from torch import Tensor

from lessons_lib.attention import check_changes


class Scores(NamedTuple):
    r"""The changes of a score, in the order and with the meaning of :mod:`lessons_lib.attention`.

    .. math:: s_{ij} = \operatorname{cap}\left(\tau\, q_i \cdot k_j\right) - \sigma_h\, |p_i - j|, \qquad
              A_{ij} = \frac{e^{s_{ij}}}{e^{z_h} + \sum_k e^{s_{ik}}}
    """

    scale: float
    softcap: float | None = None
    slopes: Tensor | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether a score is the product and the scale, and nothing else."""
        return not self.changes

    @property
    def changes(self) -> list[str]:
        """The names of what else was asked for."""
        return [name for name in ("softcap", "slopes", "sinks") if getattr(self, name) is not None]

    def check(self, q: Tensor, m: int) -> None:
        """Refuse changes that do not fit the heads of these queries over ``(b, h, n, d)``.

        Raises:
            ValueError: as :func:`lessons_lib.attention.attention`.
        """
        if self.plain:
            return
        check_changes(q, q.new_empty(()).expand(*q.shape[:3], m), self.softcap, self.slopes, self.sinks)
