r"""Rotary positions beyond the lengths that a model was trained on: five ways to slow the pairs down.

A distance never seen in training turns the slow pairs by angles never seen in training. Each class is a change of
frequencies, given to :class:`~lessons_lib.positions.RotaryEmbedding` as ``scaling``::

    >>> from lessons_lib.positions import RotaryEmbedding
    >>> rotary = RotaryEmbedding(64, scaling=YaRN(4.0, n_trained=2048))
    >>> rotary(torch.randn(2, 8, 100, 64)).shape
    torch.Size([2, 8, 100, 64])

With :math:`s` the ``factor`` by which the range is stretched and :math:`\omega_i = \text{base}^{-2i/d}` the trained
frequencies, they differ in which pairs are slowed down: all alike, the slow ones more, or the slow ones alone.
"""

import math
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Num
from torch import Tensor

from lessons_lib.positions import RotaryScaling, angle_type, rotary_frequencies
from lessons_lib.shapes import check_above, check_size


@dataclass(frozen=True)
class PositionInterpolation(RotaryScaling):
    r"""Squeeze ``factor`` times as many positions into the trained range [1]_ (``linear`` in transformers).

    .. math:: \omega'_i = \omega_i / s

    All distances, the short ones too, come closer together than they were in training: it wants some fine-tuning.

    Raises:
        ValueError: if the factor :math:`s` is less than 1.

    .. [1] Chen et al., *Extending Context Window of Large Language Models via Positional Interpolation*, 2023.
        arXiv:2306.15595.
    """

    factor: float

    def __post_init__(self) -> None:
        check_above("factor", self.factor, 1, or_equal=True)

    def frequencies(self, base: float, d_head: int, positions: Num[Tensor, "*batch n"]) -> Float[Tensor, "pairs"]:
        """Return every frequency divided by the factor."""
        return rotary_frequencies(base, d_head, device=positions.device) / self.factor


@dataclass(frozen=True)
class NTKAware(RotaryScaling):
    r"""Raise the base so that the slowest pair is interpolated by ``factor`` and the fastest not at all [2]_.

    .. math:: \text{base}' = \text{base} \cdot s^{d/(d-2)}, \qquad \omega'_0 = \omega_0, \quad
              \omega'_{d/2-1} = \omega_{d/2-1} / s

    Raises:
        ValueError: if the factor :math:`s` is less than 1; in a rotary embedding, if ``d_head`` is 2.

    .. [2] Peng et al., *YaRN*, 2023, section 3.1, where the history of the idea is told. arXiv:2309.00071.
    """

    factor: float

    def __post_init__(self) -> None:
        check_above("factor", self.factor, 1, or_equal=True)

    def frequencies(self, base: float, d_head: int, positions: Num[Tensor, "*batch n"]) -> Float[Tensor, "pairs"]:
        """Return the frequencies of the raised base."""
        return rotary_frequencies(base * self.factor ** _ntk_power(d_head), d_head, device=positions.device)


@dataclass(frozen=True)
class DynamicNTK(RotaryScaling):
    r"""Raise the base only as far as the sequence at hand needs (``dynamic`` in transformers).

    .. math:: \text{base}' = \text{base} \cdot \left(s\, \frac{\max(n, n_{\text{trained}})}{n_{\text{trained}}}
              - (s - 1)\right)^{d/(d-2)}

    with :math:`n` one more than the largest position in the call, over the whole batch. Up to the trained length
    nothing changes. Beyond it the angle of *every* position changes as the sequence grows: keys kept in a cache were
    rotated by older angles, so decoding with a cache and without then differ (in transformers too).

    Raises:
        ValueError: if the factor :math:`s` is less than 1 or ``n_trained`` is not a positive integer; in a rotary
            embedding, if ``d_head`` is 2.
    """

    factor: float
    n_trained: int

    def __post_init__(self) -> None:
        check_above("factor", self.factor, 1, or_equal=True)
        check_size("n_trained", self.n_trained, at_least=1)

    def frequencies(self, base: float, d_head: int, positions: Num[Tensor, "*batch n"]) -> Float[Tensor, "pairs"]:
        """Return the frequencies for a sequence that reaches to the largest position."""
        n = (positions.max() + 1).clamp_min(self.n_trained).to(angle_type(positions.device))
        stretch = self.factor * n / self.n_trained - (self.factor - 1)
        return rotary_frequencies(base * stretch ** _ntk_power(d_head), d_head, device=positions.device)


@dataclass(frozen=True)
class YaRN(RotaryScaling):
    r"""Interpolate the pairs that never completed a turn in training, keep the fast ones, and sharpen the scores [3]_.

    .. math:: \omega'_i = (1 - \gamma_i)\, \omega_i / s + \gamma_i\, \omega_i, \qquad
              \gamma_i = 1 - \operatorname{clamp}\left(\frac{i - i_{\text{fast}}}{i_{\text{slow}} - i_{\text{fast}}},
              0, 1\right)

    where pair :math:`i_{\text{fast}}` completes ``beta_fast`` turns within ``n_trained`` tokens and pair
    :math:`i_{\text{slow}}` completes ``beta_slow``. The ramp is linear in the pair's number, as in the authors' code
    and in transformers; the paper writes one that is linear in the number of turns.

    Args:
        factor: :math:`s`.
        n_trained: the length of the sequences in training.
        beta_fast, beta_slow: turns within that length from which a pair is kept, up to which it is interpolated.
        attention_factor: what rotated vectors are multiplied by; :func:`yarn_attention_factor` when omitted.
        truncate: whether the ramp's ends are rounded outwards to whole pairs, as checkpoints usually expect.

    Raises:
        ValueError: if a factor is less than 1 or not positive, ``n_trained`` is not a positive integer, or
            ``beta_fast`` is not above ``beta_slow`` and this above 0.

    .. [3] Peng et al., *YaRN: Efficient Context Window Extension of Large Language Models*, 2023. arXiv:2309.00071.
    """

    factor: float
    n_trained: int
    _: KW_ONLY
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        check_above("factor", self.factor, 1, or_equal=True)
        check_size("n_trained", self.n_trained, at_least=1)
        check_above("beta_slow", self.beta_slow, 0)
        check_above("beta_fast", self.beta_fast, self.beta_slow)
        if self.attention_factor is not None:
            check_above("attention_factor", self.attention_factor, 0)

    @property
    def magnitude(self) -> float:
        """The attention factor, given or computed."""
        return yarn_attention_factor(self.factor) if self.attention_factor is None else self.attention_factor

    def frequencies(self, base: float, d_head: int, positions: Num[Tensor, "*batch n"]) -> Float[Tensor, "pairs"]:
        """Return a mixture of the trained and the interpolated frequencies, pair by pair."""
        fast, slow = (self._pair_that_turns(beta, base, d_head) for beta in (self.beta_fast, self.beta_slow))
        if self.truncate:
            fast, slow = math.floor(fast), math.ceil(slow)
        fast, slow = max(fast, 0), min(slow, d_head - 1)
        trained = rotary_frequencies(base, d_head, device=positions.device)
        pair = torch.arange(d_head // 2, dtype=trained.dtype, device=trained.device)
        interpolated = ((pair - fast) / (slow - fast if slow != fast else 0.001)).clamp(0, 1)
        return trained * (1 - interpolated) + trained / self.factor * interpolated

    def _pair_that_turns(self, times: float, base: float, d_head: int) -> float:
        """Solve ``n_trained * omega_i = 2 pi * times`` for the pair ``i``, as a real number."""
        return d_head / 2 * math.log(self.n_trained / (2 * math.pi * times)) / math.log(base)


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    r"""Return by how much YaRN lengthens rotated queries and keys.

    .. math:: 0.1\, m \ln s + 1

    Scores grow by its square, like a temperature below one: over more keys the softmax would get more diffuse.
    Checkpoints that carry ``mscale`` and ``mscale_all_dim`` use the quotient of the two factors.

    Raises:
        ValueError: if the factor :math:`s` is less than 1.
    """
    check_above("factor", factor, 1, or_equal=True)
    return 0.1 * mscale * math.log(factor) + 1.0


@dataclass(frozen=True)
class Llama3(RotaryScaling):
    r"""Interpolate slow pairs, keep fast ones, blend between: the scaling of Llama 3.1's checkpoints [4]_.

    .. math:: \omega'_i = (1 - \gamma_i)\, \omega_i / s + \gamma_i\, \omega_i, \qquad
              \gamma_i = \operatorname{clamp}\left(\frac{r_i - \beta_{\text{low}}}{\beta_{\text{high}} -
              \beta_{\text{low}}}, 0, 1\right), \quad r_i = \frac{n_{\text{trained}}\, \omega_i}{2\pi}

    where :math:`r_i` is the number of turns that a pair completes within the trained length.

    Args:
        factor: :math:`s`; 8 in Llama 3.1.
        n_trained: the length of the sequences in training; 8192 there.
        low_freq_factor, high_freq_factor: the two :math:`\beta`; 1 and 4 there.

    Raises:
        ValueError: if ``factor`` is less than 1, ``n_trained`` is not a positive integer, or ``high_freq_factor`` is
            not above ``low_freq_factor`` and this above 0.

    .. [4] Llama team, *The Llama 3 Herd of Models*, 2024. arXiv:2407.21783. The formula is in the released code.
    """

    factor: float
    n_trained: int
    _: KW_ONLY
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        check_above("factor", self.factor, 1, or_equal=True)
        check_size("n_trained", self.n_trained, at_least=1)
        check_above("low_freq_factor", self.low_freq_factor, 0)
        check_above("high_freq_factor", self.high_freq_factor, self.low_freq_factor)

    def frequencies(self, base: float, d_head: int, positions: Num[Tensor, "*batch n"]) -> Float[Tensor, "pairs"]:
        """Return a mixture of the trained and the interpolated frequencies, by the number of turns."""
        trained = rotary_frequencies(base, d_head, device=positions.device)
        turns = self.n_trained * trained / (2 * math.pi)
        kept = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return trained * kept + trained / self.factor * (1 - kept)


# --- parts ----------------------------------------------------------------------------------------------------------


def _ntk_power(d_head: int) -> float:
    if d_head == 2:
        raise ValueError(
            "d_head must be at least 4 for an NTK scaling: with one pair none is slower than another, got 2"
        )
    return d_head / (d_head - 2)
