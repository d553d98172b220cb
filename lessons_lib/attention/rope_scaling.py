r"""Rotary positions beyond the trained length: five ways to lower the frequencies.

At distances that did not occur in training, the pairs of low frequency rotate by angles that did not occur in training.
Each class is a change of frequencies, which :class:`~lessons_lib.attention.positions.RotaryEmbedding` takes as
``scaling``::

    >>> from lessons_lib.attention.positions import RotaryEmbedding
    >>> rotary = RotaryEmbedding(64, scaling=YaRN(4.0, n_trained=2048))
    >>> rotary(torch.randn(2, 8, 100, 64)).shape
    torch.Size([2, 8, 100, 64])

Here :math:`s` is the ``factor`` by which the length is extended, and :math:`\omega_i = \text{base}^{-2i/d}` are the
trained frequencies. The classes differ in which frequencies they lower: all of them alike, the low ones more, or only
the low ones.
"""

import math
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Num
from torch import Tensor

from lessons_lib.attention.positions import RotaryScaling, angle_type, rotary_frequencies
from lessons_lib.foundations.validation import check_above, check_size


@dataclass(frozen=True)
class PositionInterpolation(RotaryScaling):
    r"""Divide all frequencies by ``factor`` [1]_ (``linear`` in transformers).

    .. math:: \omega'_i = \omega_i / s

    This maps ``factor`` times as many positions into the trained range. All distances, the short ones too, then
    correspond to smaller angles than in training, so that some fine-tuning is needed.

    >>> PositionInterpolation(4.0).frequencies(10_000.0, 4, torch.arange(5)).tolist()
    [0.25, 0.0025]

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
    r"""Raise the base so that the lowest frequency is divided by ``factor`` and the highest is unchanged [2]_.

    .. math:: \text{base}' = \text{base} \cdot s^{d/(d-2)}, \qquad \omega'_0 = \omega_0, \quad
              \omega'_{d/2-1} = \omega_{d/2-1} / s

    >>> [round(frequency, 6) for frequency in NTKAware(4.0).frequencies(10_000.0, 4, torch.arange(5)).tolist()]
    [1.0, 0.0025]

    Raises:
        ValueError: if the factor :math:`s` is less than 1; in a rotary embedding, if ``d_head`` is 2.

    .. [2] Peng et al., *YaRN*, 2023; section 3.1 gives the history of the idea. arXiv:2309.00071.
    """

    factor: float

    def __post_init__(self) -> None:
        check_above("factor", self.factor, 1, or_equal=True)

    def frequencies(self, base: float, d_head: int, positions: Num[Tensor, "*batch n"]) -> Float[Tensor, "pairs"]:
        """Return the frequencies of the raised base."""
        return rotary_frequencies(base * self.factor ** _ntk_power(d_head), d_head, device=positions.device)


@dataclass(frozen=True)
class DynamicNTK(RotaryScaling):
    r"""Raise the base as far as the length of the current sequence requires (``dynamic`` in transformers).

    .. math:: \text{base}' = \text{base} \cdot \left(s\, \frac{\max(n, n_{\text{trained}})}{n_{\text{trained}}}
              - (s - 1)\right)^{d/(d-2)}

    Here :math:`n` is one more than the largest position in the call, over the whole batch. Up to the trained length
    nothing changes. Beyond it, the angle of *every* position changes as the sequence grows. Keys in a cache were
    rotated by earlier angles, so decoding with and without a cache gives different results (in transformers, too).

    >>> scaling = DynamicNTK(4.0, n_trained=100)
    >>> torch.allclose(scaling.frequencies(10_000.0, 4, torch.arange(100)), rotary_frequencies(10_000.0, 4))
    True

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
        """Return the frequencies for a sequence that ends at the largest position."""
        n = (positions.max() + 1).clamp_min(self.n_trained).to(angle_type(positions.device))
        stretch = self.factor * n / self.n_trained - (self.factor - 1)
        return rotary_frequencies(base * stretch ** _ntk_power(d_head), d_head, device=positions.device)


@dataclass(frozen=True)
class YaRN(RotaryScaling):
    r"""Divide the low frequencies by ``factor``, keep the high ones, and multiply the scores by a constant [3]_.

    .. math:: \omega'_i = (1 - \gamma_i)\, \omega_i / s + \gamma_i\, \omega_i, \qquad
              \gamma_i = 1 - \operatorname{clamp}\left(\frac{i - i_{\text{fast}}}{i_{\text{slow}} - i_{\text{fast}}},
              0, 1\right)

    Pair :math:`i_{\text{fast}}` completes ``beta_fast`` rotations within ``n_trained`` tokens, and pair
    :math:`i_{\text{slow}}` completes ``beta_slow``. The ramp :math:`\gamma_i` between them is linear in the index of
    the pair, as in the authors' code and in transformers; the ramp in the paper is linear in the number of rotations.

    >>> YaRN(4.0, n_trained=2048).frequencies(10_000.0, 64, torch.arange(5)).shape
    torch.Size([32])

    Args:
        factor: :math:`s`.
        n_trained: the length of the sequences in training.
        beta_fast: number of rotations within ``n_trained`` tokens from which on the frequency of a pair is kept.
        beta_slow: number of rotations up to which the frequency is divided by the factor.
        attention_factor: the factor of the rotated vectors; :func:`yarn_attention_factor` when omitted.
        truncate: whether the ends of the ramp are rounded outwards to integers, as checkpoints usually expect.

    Raises:
        ValueError: if ``factor`` is less than 1, ``attention_factor`` is not above 0, ``n_trained`` is not a positive
            integer, ``beta_slow`` is not above 0, or ``beta_fast`` is not above ``beta_slow``.

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
        """The attention factor: the argument, or :func:`yarn_attention_factor` if it was omitted."""
        return yarn_attention_factor(self.factor) if self.attention_factor is None else self.attention_factor

    def frequencies(self, base: float, d_head: int, positions: Num[Tensor, "*batch n"]) -> Float[Tensor, "pairs"]:
        """Return, for each pair, a weighted average of the trained and the interpolated frequency."""
        fast, slow = (self._pair_with_rotations(beta, base, d_head) for beta in (self.beta_fast, self.beta_slow))
        if self.truncate:
            fast, slow = math.floor(fast), math.ceil(slow)
        fast, slow = max(fast, 0), min(slow, d_head - 1)
        trained = rotary_frequencies(base, d_head, device=positions.device)
        pair = torch.arange(d_head // 2, dtype=trained.dtype, device=trained.device)
        interpolated = ((pair - fast) / (slow - fast if slow != fast else 0.001)).clamp(0, 1)
        return trained * (1 - interpolated) + trained / self.factor * interpolated

    def _pair_with_rotations(self, rotations: float, base: float, d_head: int) -> float:
        """Solve ``n_trained * omega_i = 2 pi * rotations`` for the pair ``i``, as a real number."""
        return d_head / 2 * math.log(self.n_trained / (2 * math.pi * rotations)) / math.log(base)


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    r"""Return the factor by which YaRN multiplies rotated queries and keys.

    .. math:: 0.1\, m \ln s + 1

    Scores are multiplied by its square, which acts like a temperature below one: otherwise the softmax over more keys
    would become more diffuse. Checkpoints with ``mscale`` and ``mscale_all_dim`` use the quotient of the two factors.
    Those of DeepSeek also multiply all scores by the square of the second one, see
    :class:`~lessons_lib.attention.latent.LatentAttention`.

    >>> round(yarn_attention_factor(4.0), 4)
    1.1386

    Raises:
        ValueError: if the factor :math:`s` is less than 1.
    """
    check_above("factor", factor, 1, or_equal=True)
    return 0.1 * mscale * math.log(factor) + 1.0


@dataclass(frozen=True)
class Llama3(RotaryScaling):
    r"""Divide low frequencies by ``factor``, keep high ones, interpolate in between (checkpoints of Llama 3.1 [4]_).

    .. math:: \omega'_i = (1 - \gamma_i)\, \omega_i / s + \gamma_i\, \omega_i, \qquad
              \gamma_i = \operatorname{clamp}\left(\frac{r_i - \beta_{\text{low}}}{\beta_{\text{high}} -
              \beta_{\text{low}}}, 0, 1\right), \quad r_i = \frac{n_{\text{trained}}\, \omega_i}{2\pi}

    Here :math:`r_i` is the number of rotations that a pair completes within the trained length.

    >>> Llama3(8.0, n_trained=8192).frequencies(500_000.0, 128, torch.arange(5)).shape
    torch.Size([64])

    Args:
        factor: :math:`s`; 8 in Llama 3.1.
        n_trained: the length of the sequences in training; 8192 in Llama 3.1.
        low_freq_factor, high_freq_factor: :math:`\beta_{\text{low}}` and :math:`\beta_{\text{high}}`; 1 and 4 in
            Llama 3.1.

    Raises:
        ValueError: if ``factor`` is less than 1, ``n_trained`` is not a positive integer, ``low_freq_factor`` is not
            above 0, or ``high_freq_factor`` is not above ``low_freq_factor``.

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
        """Return a weighted average of trained and interpolated frequencies, by the number of rotations."""
        trained = rotary_frequencies(base, d_head, device=positions.device)
        rotations = self.n_trained * trained / (2 * math.pi)
        kept = ((rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return trained * kept + trained / self.factor * (1 - kept)


# --- helpers --------------------------------------------------------------------------------------------------------


def _ntk_power(d_head: int) -> float:
    if d_head == 2:
        raise ValueError(
            "d_head must be at least 4 for an NTK scaling: with one pair none is slower than another, got 2"
        )
    return d_head / (d_head - 2)
