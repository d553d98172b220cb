r"""Position encodings: without them, attention does not depend on the order of the tokens.

There are four kinds. :func:`sinusoidal` and :class:`LearnedPositions` are added to the token embeddings.
:class:`RotaryEmbedding` rotates queries and keys inside a layer; :mod:`lessons_lib.attention.rope_scaling` extends it
beyond the trained length. :class:`AlibiBias` is added to the scores.

Positions are integers from 0, one for each token: ``(n,)`` for all sequences alike, ``(batch, n)`` for each its own, or
``(batch, 1, n)`` where there is a head axis. Angles are computed in float64 and rounded once. In bfloat16, which
represents integers exactly only up to 256, a position of 1000 would give a wrong angle.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float, Integer, Num, Shaped
from torch import Tensor, nn

from lessons_lib.foundations.validation import (
    broadcast_together,
    broadcasts_to,
    check_above,
    check_floating,
    check_integers,
    check_same_device,
    check_size,
    promote_half,
    values_can_be_read,
)

# The pair with the lowest frequency rotates once in about 2 pi * ROPE_BASE tokens.
ROPE_BASE = 10_000.0

# --- added to the embedding -----------------------------------------------------------------------------------------


def sinusoidal(
    n: int, d_model: int, *, base: float = ROPE_BASE, device: torch.device | str | None = None
) -> Float[Tensor, "{n} {d_model}"]:
    r"""Return one vector for each position: sines and cosines of ``d_model / 2`` decreasing frequencies [1]_.

    .. math::
        P_{t,2i} = \sin(t\, \omega_i), \quad P_{t,2i+1} = \cos(t\, \omega_i), \qquad
        \omega_i = \text{base}^{-2i/d}, \quad i = 0 \dots d/2 - 1

    A shift by :math:`k` is the same rotation for all positions, and
    :math:`P_t \cdot P_{t+k} = \sum_i \cos(k \omega_i)` depends on the distance alone (not on its sign, and not
    monotonically). The vectors are in the default floating-point dtype.

    ::

        >>> sinusoidal(100, 64).shape
        torch.Size([100, 64])

    Raises:
        ValueError: if ``n`` is not a positive integer, ``d_model`` is not a positive even integer, or ``base`` is not
            above 1.

    .. [1] Vaswani et al., *Attention Is All You Need*, 2017, section 3.5. arXiv:1706.03762.
    """
    check_size("n", n, at_least=1)
    _check_even("d_model", d_model)
    check_above("base", base, 1)
    return _sines_and_cosines(torch.arange(n, device=device), d_model, base)


class SinusoidalPositions(nn.Module):
    """A layer that returns the :func:`sinusoidal` vectors of any positions, without a largest position.

    It has the interface of :class:`LearnedPositions`.

    >>> SinusoidalPositions(64)(torch.arange(100)).shape
    torch.Size([100, 64])

    Args:
        d_model: width of the vectors.
        base: as in :func:`sinusoidal`.

    Raises:
        ValueError: if ``d_model`` is not a positive even integer or ``base`` is not above 1; in ``forward``, if a
            position is not an integer from 0. Negative positions are not detected where values cannot be read, see
            :func:`lessons_lib.foundations.validation.values_can_be_read`.
    """

    def __init__(self, d_model: int, *, base: float = ROPE_BASE) -> None:
        super().__init__()
        _check_even("d_model", d_model)
        check_above("base", base, 1)
        self.d_model, self.base = d_model, base

    def forward(self, positions: Integer[Tensor, "*batch n"]) -> Float[Tensor, "*batch n d_model"]:
        """Return the vectors of the positions, in the default floating-point dtype."""
        integers = not (positions.is_floating_point() or positions.dtype == torch.bool)
        if not integers or (values_can_be_read(positions) and (positions < 0).any()):
            raise ValueError(f"positions must be integers from 0, got {positions.dtype} from {positions.min().item()}")
        return _sines_and_cosines(positions, self.d_model, self.base)


class LearnedPositions(nn.Module):
    """A layer with one trained vector for each of ``n_max`` positions, as in GPT-2.

    The vectors are initialised with a standard deviation of 0.02, like GPT-2's token embedding: large position vectors
    would dominate the token embeddings to which they are added.

    ::

        >>> LearnedPositions(1024, 64)(torch.arange(100)).shape
        torch.Size([100, 64])

    Args:
        n_max: number of positions.
        d_model: width of the vectors.

    Raises:
        ValueError: if a size is not a positive integer; in ``forward``, if a position is not in ``0 .. n_max - 1``.
            Where values cannot be read (:func:`lessons_lib.foundations.validation.values_can_be_read`), indexing raises
            its own error instead.
    """

    def __init__(self, n_max: int, d_model: int) -> None:
        super().__init__()
        check_size("n_max", n_max, at_least=1)
        check_size("d_model", d_model, at_least=1)
        self.weight = nn.Parameter(0.02 * torch.randn(n_max, d_model))

    def forward(self, positions: Integer[Tensor, "*batch n"]) -> Float[Tensor, "*batch n d_model"]:
        """Return the vectors of the positions."""
        check_integers("positions", positions)
        positions, n_max = positions.long(), len(self.weight)  # PyTorch would use uint8 as a mask
        if values_can_be_read(positions) and ((positions < 0) | (positions >= n_max)).any():
            raise ValueError(
                f"positions must be in 0 .. {n_max - 1}: there is no trained vector for others, "
                f"got {positions.min().item()} .. {positions.max().item()}; build with a larger n_max, or cut the input"
            )
        return self.weight[positions]


# --- rotating queries and keys --------------------------------------------------------------------------------------


def angle_type(device: torch.device | str | None) -> torch.dtype:
    """Return the dtype that angles are computed in: float64, or float32 on Apple's GPUs, which lack float64."""
    return torch.float32 if torch.device(device or "cpu").type == "mps" else torch.float64


def rotary_frequencies(
    base: float | Float[Tensor, ""], d_head: int, *, device: torch.device | str | None = None
) -> Float[Tensor, "pairs"]:
    r"""Return the angle in radians by which each pair rotates per token, :math:`\omega_i = \text{base}^{-2i/d}`.

    >>> rotary_frequencies(10_000.0, 4).tolist()
    [1.0, 0.01]
    """
    return base ** (-torch.arange(0, d_head, 2, dtype=angle_type(device), device=device) / d_head)


class RotaryScaling(ABC):
    """Base class of the ``scaling`` of a :class:`RotaryEmbedding`: it changes the frequencies for longer sequences."""

    @property
    def magnitude(self) -> float:
        """The factor of every rotated vector; scores are multiplied by its square. 1 except in YaRN."""
        return 1.0

    @abstractmethod
    def frequencies(self, base: float, d_head: int, positions: Num[Tensor, "*batch n"]) -> Float[Tensor, "pairs"]:
        """Return the ``d_head / 2`` frequencies in radians per token, on the device of the positions."""


Pairing = Literal["half", "interleaved"]
_ORDER = {"half": "pair i", "interleaved": "i pair"}


@dataclass(frozen=True)
class RotaryEmbedding:
    r"""Rotate each pair of coordinates of a query or key by an angle proportional to its position (RoPE [2]_).

    .. math::
        \begin{pmatrix} y_1 \\ y_2 \end{pmatrix} = R_t \begin{pmatrix} x_1 \\ x_2 \end{pmatrix}, \quad
        R_t = \begin{pmatrix} \cos t\omega_i & -\sin t\omega_i \\ \sin t\omega_i & \cos t\omega_i \end{pmatrix},
        \qquad \omega_i = \text{base}^{-2i/d}

    Scores depend on the distance alone, because the angles of two rotations add up and the transpose of a rotation is
    its inverse: :math:`(R_s q) \cdot (R_t k) = q^\top R_s^\top R_t k = q \cdot R_{t-s} k`. The length of a vector does
    not change (except in YaRN, by a constant factor). Values are not rotated. Scores are defined at distances that did
    not occur in training, but the model is not trained for them.

    Call ``rotary(x, positions=None)`` on queries and on keys, after the split into heads, or pass
    ``rotary.process_qk``, which rotates both, to a layer.

    ::

        >>> rotary, queries = RotaryEmbedding(64), torch.randn(2, 8, 100, 64)  # two sequences, eight heads
        >>> rotary(queries).shape
        torch.Size([2, 8, 100, 64])
        >>> starts = torch.tensor([0, 300])  # the second sequence continues a cache of 300 positions
        >>> rotary(queries, (starts[:, None] + torch.arange(100))[:, None, :]).shape
        torch.Size([2, 8, 100, 64])

    Args:
        d_head: width of a query or key; even.
        base: determines the lowest frequency: its wavelength approaches :math:`2\pi \cdot` ``base`` tokens.
        scaling: a change of the frequencies for longer sequences, for instance
            :class:`~lessons_lib.attention.rope_scaling.YaRN`; ``None`` for no change.
        pairing: which coordinates form a pair: ``"half"``, :math:`i` with :math:`i + d/2` (Llama on Hugging Face,
            GPT-NeoX), or ``"interleaved"``, :math:`2i` with :math:`2i + 1` (the paper, Meta's Llama, GPT-J).
            :func:`change_pairing` converts the weights of one into those of the other.
        d_rotary: how many coordinates are rotated, the first ones (partial rotary, GPT-NeoX [3]_); even. The others
            keep their values, and the frequencies are those of a head of width ``d_rotary``. All when omitted.

    Raises:
        ValueError: if an argument is out of range; when called, if ``x`` does not hold floating-point vectors of width
            ``d_head``, or if the positions do not fit ``x``.

    .. [2] Su et al., *RoFormer*, 2021. arXiv:2104.09864.
    .. [3] Black et al., *GPT-NeoX-20B*, 2022. arXiv:2204.06745.
    """

    d_head: int
    _: KW_ONLY
    base: float = ROPE_BASE
    scaling: RotaryScaling | None = None
    pairing: Pairing = "half"
    d_rotary: int | None = None

    def __post_init__(self) -> None:
        if self.d_rotary is None:
            _check_even("d_head", self.d_head)
        else:
            check_size("d_head", self.d_head, at_least=1)
            check_size("d_rotary", self.d_rotary, at_least=1, at_most=self.d_head)
            _check_even("d_rotary", self.d_rotary)
        check_above("base", self.base, 1)
        _check_pairing("pairing", self.pairing)
        self.frequencies(
            torch.arange(1)
        )  # raises here, not in the first forward pass, if the scaling does not support d_head

    def __call__(
        self, x: Float[Tensor, "*batch n d_head"], positions: Num[Tensor, "*#batch n"] | None = None
    ) -> Float[Tensor, "*batch n d_head"]:
        """Return ``x`` rotated by the angles of ``positions`` (0 .. n - 1 when omitted; fractions are allowed)."""
        self._check_vectors(x)
        if positions is None:
            positions = torch.arange(x.shape[-2], device=x.device)
        _check_positions(positions, x)
        return self._rotate(x, self._cosines_and_sines(positions))

    @property
    def rotated_width(self) -> int:
        """Number of coordinates that are rotated: ``d_rotary`` or its default."""
        return self.d_head if self.d_rotary is None else self.d_rotary

    def process_qk(
        self,
        q: Float[Tensor, "*batch n d_head"],
        k: Float[Tensor, "*shared n d_head"],
        positions: Num[Tensor, "*#rows n"],
    ) -> tuple[Float[Tensor, "*batch n d_head"], Float[Tensor, "*shared n d_head"]]:
        """Return queries and keys of the same positions, both rotated; for use as the ``process_qk`` of a layer."""
        for x in (q, k):
            self._check_vectors(x)
            _check_positions(positions, x)
        cosines_and_sines = self._cosines_and_sines(positions)
        return self._rotate(q, cosines_and_sines), self._rotate(k, cosines_and_sines)

    def _cosines_and_sines(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosine and sine of every angle, times the magnitude of the scaling."""
        angles = _angles(positions, self.frequencies(positions))
        magnitude = 1.0 if self.scaling is None else self.scaling.magnitude
        return magnitude * angles.cos(), magnitude * angles.sin()

    def _rotate(self, x: Tensor, cosines_and_sines: tuple[Tensor, Tensor]) -> Tensor:
        if self.rotated_width < self.d_head:
            first, others = x.split([self.rotated_width, self.d_head - self.rotated_width], dim=-1)
            return torch.cat([self._rotate_all(first, cosines_and_sines), others], dim=-1)
        return self._rotate_all(x, cosines_and_sines)

    def _rotate_all(self, x: Tensor, cosines_and_sines: tuple[Tensor, Tensor]) -> Tensor:
        wide = promote_half(x)
        cosines, sines = (wave.to(wide.dtype) for wave in cosines_and_sines)
        order = _ORDER[self.pairing]
        first, second = rearrange(wide, f"... ({order}) -> pair ... i", pair=2)
        rotated = [first * cosines - second * sines, first * sines + second * cosines]
        return rearrange(rotated, f"pair ... i -> ... ({order})").to(x.dtype)

    def frequencies(self, positions: Num[Tensor, "*batch n"]) -> Float[Tensor, "{self.rotated_width//2}"]:
        """Return the angle in radians by which each pair rotates per token; only dynamic NTK depends on positions."""
        if self.scaling is None:
            return rotary_frequencies(self.base, self.rotated_width, device=positions.device)
        return self.scaling.frequencies(self.base, self.rotated_width, positions)

    def _check_vectors(self, x: Tensor) -> None:
        check_floating(x=x)
        if x.ndim < 2 or x.shape[-1] != self.d_head:
            raise ValueError(f"x must be (*batch, n, d_head) with d_head={self.d_head}, got {tuple(x.shape)}")


def change_pairing(
    weight: Shaped[Tensor, "rows *rest"], n_heads: int, *, source: Pairing, target: Pairing
) -> Shaped[Tensor, "rows *rest"]:
    """Reorder the rows of a query or key projection trained with one pairing for use with the other.

    The model then computes the same scores, because the rows inside each head are permuted in the same way for queries
    and keys, which does not change a dot product. Convert ``w_q`` with the number of query heads and ``w_k`` with the
    number of key/value heads, and their biases in the same way; ``w_v`` and ``w_o`` stay unchanged. For a single
    vector, use ``n_heads=1``.

    ::

        >>> change_pairing(torch.arange(6), 1, source="interleaved", target="half")
        tensor([0, 2, 4, 1, 3, 5])

    Raises:
        ValueError: if the rows do not divide into heads of even width, or if the name of a pairing is unknown.
    """
    _check_pairing("source", source)
    _check_pairing("target", target)
    check_size("n_heads", n_heads, at_least=1)
    if not weight.ndim or weight.shape[0] % (2 * n_heads):
        raise ValueError(
            "weight must have n_heads * d_head rows with d_head even, "
            f"got n_heads={n_heads} and shape {tuple(weight.shape)}"
        )
    return rearrange(weight, f"(h {_ORDER[source]}) ... -> (h {_ORDER[target]}) ...", h=n_heads, pair=2)


# --- added to the scores --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AlibiBias:
    r"""A bias that lowers each score in proportion to the distance, with one slope for each head (ALiBi [4]_).

    .. math:: B_{h,ij} = -m_h\, |t_i - t_j|, \qquad m_h = 2^{-8h/H}, \quad h = 1 \dots H

    These slopes are for :math:`H` a power of two. For other :math:`H`, they are the slopes of the next smaller power of
    two, followed by every other slope of the next larger one.

    Under a causal mask the distance is :math:`t_i - t_j`, as in the paper. Without a causal mask, keys on both sides
    get the same bias, which does not contain the sign of the distance. Code that adds :math:`m_h t_j` instead (Bloom,
    MPT) differs by a constant in each row under a causal mask, which does not change the softmax. Without a causal
    mask, such code favours later keys.

    Call ``alibi(query_positions, key_positions)`` and pass the result as the ``bias`` of
    :func:`~lessons_lib.attention.attention.attention`.

    ::

        >>> AlibiBias(8)(torch.arange(5), torch.arange(7)).shape
        torch.Size([8, 5, 7])
        >>> AlibiBias(2, slopes=[1.0, 0.0])(torch.arange(3), torch.arange(3)).tolist()[0]
        [[-0.0, -1.0, -2.0], [-1.0, -0.0, -1.0], [-2.0, -1.0, -0.0]]

    Args:
        n_heads: number of heads :math:`H`.
        slopes: the slopes :math:`m_h`, one for each head; those of the formula when omitted. The scores of a head with
            slope 0 do not depend on distance.

    Raises:
        ValueError: if ``n_heads`` is not a positive integer, or if the slopes are not ``n_heads`` finite numbers of at
            least 0 (a negative slope would favour distant keys); when called, if the positions are not numbers on one
            device with leading axes that broadcast, or if ``dtype`` is not a floating-point dtype.

    .. [4] Press et al., *Train Short, Test Long*, 2021. arXiv:2108.12409.
    """

    n_heads: int
    _: KW_ONLY
    slopes: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_size("n_heads", self.n_heads, at_least=1)
        slopes = _standard_slopes(self.n_heads) if self.slopes is None else self.slopes
        object.__setattr__(self, "slopes", _validated_slopes(self.n_heads, slopes))

    def __call__(
        self,
        query_positions: Num[Tensor, "*#batch n"],
        key_positions: Num[Tensor, "*#batch m"],
        *,
        dtype: torch.dtype | None = None,
    ) -> Float[Tensor, "*batch {self.n_heads} n m"]:
        """Return the bias in ``dtype``, which must be the dtype of the scores; the default dtype when omitted."""
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point type, got {dtype}")
        for name, positions in (("query_positions", query_positions), ("key_positions", key_positions)):
            _check_position_type(name, positions)
        check_same_device(query_positions=query_positions, key_positions=key_positions)
        if not broadcast_together(query_positions.shape[:-1], key_positions.shape[:-1]):
            raise ValueError(
                "leading axes of query_positions and key_positions must broadcast, "
                f"got {tuple(query_positions.shape)} and {tuple(key_positions.shape)}"
            )
        distances = (query_positions[..., :, None] - key_positions[..., None, :]).abs()
        slopes = torch.tensor(self.slopes, dtype=dtype, device=distances.device)
        return -slopes[:, None, None] * distances[..., None, :, :].to(dtype)


# --- helpers --------------------------------------------------------------------------------------------------------


def _angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    return positions[..., None].to(frequencies.dtype) * frequencies


def _sines_and_cosines(positions: Tensor, d_model: int, base: float) -> Tensor:
    angles = _angles(positions, rotary_frequencies(base, d_model, device=positions.device))
    return rearrange([angles.sin(), angles.cos()], "pair ... i -> ... (i pair)").to(torch.get_default_dtype())


def _standard_slopes(n_heads: int) -> tuple[float, ...]:
    power_of_two = 1 << (n_heads.bit_length() - 1)  # the largest one of at most n_heads
    first = [2 ** (-8 * head / power_of_two) for head in range(1, power_of_two + 1)]
    between = [2 ** (-8 * head / (2 * power_of_two)) for head in range(1, 2 * power_of_two, 2)]
    return tuple((first + between)[:n_heads])


def _validated_slopes(n_heads: int, given: Sequence[float]) -> tuple[float, ...]:
    try:
        slopes = tuple(map(float, given))
    except (TypeError, ValueError):
        slopes = ()
    if len(slopes) != n_heads or not all(math.isfinite(slope) and slope >= 0 for slope in slopes):
        raise ValueError(f"slopes must be {n_heads} finite numbers, one for each head, none negative, got {given!r}")
    return slopes


def _check_even(name: str, width: int) -> None:
    check_size(name, width, at_least=2)
    if width % 2:
        raise ValueError(f"{name} must be even: coordinates come in pairs, got {width}")


def _check_pairing(name: str, pairing: str) -> None:
    if pairing not in _ORDER:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, _ORDER))}, got {pairing!r}")


def _check_position_type(name: str, positions: Tensor) -> None:
    if positions.dtype in (torch.bool, torch.float16, torch.bfloat16) or positions.is_complex():
        raise ValueError(f"{name} must be integers, or fractions in at least float32, got {positions.dtype}")
    if not positions.ndim:
        raise ValueError(f"{name} must have one entry for each token, got a single number")


def _check_positions(positions: Tensor, x: Tensor) -> None:
    _check_position_type("positions", positions)
    check_same_device(x=x, positions=positions)
    if positions.shape[-1] != x.shape[-2] or not broadcasts_to(positions.shape, x.shape[:-1]):
        raise ValueError(
            f"positions must have one entry for each row of x and broadcast to {tuple(x.shape[:-1])}, got "
            f"{tuple(positions.shape)}; beside a head axis (batch, n) becomes (batch, 1, n)"
        )
