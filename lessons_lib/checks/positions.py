"""Checks of the exercises on positions."""

import math
from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor

from lessons_lib.attention.positions import AlibiBias, RotaryEmbedding
from lessons_lib.checks import ask, check, compare, compare_number


@check
def wavelengths(answer: Callable[[int, float], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check the wavelength of each rotary pair: the number of tokens for a full turn."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        d = 2 if case % 5 == 4 else 2 * int(torch.randint(3, 9, (), generator=generator))
        base = 10.0 ** float(1 + 2 * torch.rand((), generator=generator))
        pair = torch.arange(d // 2, dtype=torch.float64)
        slower = base ** (2 * pair / d)
        mistakes = {
            "this is the angle per token: return the number of tokens for a full turn": 1 / slower,
            "this is the number of turns per token, not of tokens per turn": 1 / (2 * math.pi * slower),
            "this is the number of tokens for an angle of 1: a full turn is 2 pi": slower,
            "a full turn is 2 pi radians, not pi": math.pi * slower,
            "the angle is in radians, not in degrees": 360 * slower,
            "the frequencies decrease with i: the exponent is -2i/d, with a minus": 2 * math.pi / slower,
            "the exponent is -2i/d, not -i/d": 2 * math.pi * base ** (pair / d),
            "pairs are counted from 0, so the first has frequency 1": 2 * math.pi * base ** (2 * (pair + 1) / d),
            "the exponent is -2i/d: divide by d, not by d - 2": 2 * math.pi * base ** (2 * pair / (d - 2)),
            "pair 0, the fastest, comes first": 2 * math.pi * slower.flip(0),
            "the base is ignored": 2 * math.pi * 10_000.0 ** (2 * pair / d),
            "do not round the numbers of tokens": [(2 * math.pi * slower).round(decimals=n) for n in range(3)]
            + [(2 * math.pi * slower).floor(), (2 * math.pi * slower).ceil()],
        }
        where = f"d={d}, base={base:.4g}"
        got = ask("wavelengths", answer, d, base, where=where)
        each_entry = isinstance(got, Tensor) and got.shape == (d,)
        assert not each_entry, f"there are d/2 pairs, so return {d // 2} numbers, not d ({where})"
        compare("wavelengths", got, 2 * math.pi * slower, mistakes, where=where)


@check
def rotate(answer: Callable[[Tensor, Tensor, float], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check RoPE with neighbouring entries paired."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n, pairs = (torch.randperm(5, generator=generator)[:3] + 2).tolist()
        b, n, pairs = {3: (1, 1, pairs), 4: (b, n, 1)}.get(case % 5, (b, n, pairs))
        shape = [(n, 2 * pairs), (b, n, 2 * pairs), (b, 2, n, 2 * pairs), (1, 1, 2 * pairs), (n, 2)][case % 5]
        base = 10.0 ** float(1 + 4 * torch.rand((), generator=generator))
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        positions = (
            torch.randperm(5000, generator=generator)[:n] + 1
        )  # so large that angles in single precision are wrong
        where = f"shape {shape}, base {base:.3g}, positions {positions.tolist()}"
        single = ask("rotate", answer, x.float(), positions, base, where=where)
        got = ask("rotate", answer, x, positions, base, where=where)
        for turned, of in ((single, torch.float32), (got, torch.float64)):
            alike = not isinstance(turned, Tensor) or turned.dtype == of
            assert alike, f"rotate must return the type of x, {of}, got {turned.dtype} ({where})"
        right = RotaryEmbedding(2 * pairs, base=base, pairing="interleaved")
        other_pairs = "the pairs here are i and i + d/2: pair the neighbours 2i and 2i + 1"
        apart = rearrange(right(x, positions), "... (i two) -> ... (two i)", two=2)
        mistakes = rotation_mistakes(x, positions, right, other_pairs) | {
            "the two entries of each pair must be neighbours in the result": apart
        }
        compare("rotate", got, right(x, positions), mistakes, where=where, scores=positions)


def rotation_mistakes(x: Tensor, positions: Tensor, right: RotaryEmbedding, other_pairs: str) -> dict[str, Tensor]:
    """Return the rotation with each likely mistake; ``other_pairs`` is the message for the other pairing convention."""
    d, base, pairing = right.d_head, right.base, right.pairing
    neighbours = pairing == "interleaved"
    pair = torch.arange(d // 2, dtype=torch.float64)
    first, second = (x[..., 0::2], x[..., 1::2]) if neighbours else x.chunk(2, dim=-1)

    def by_frequencies(frequencies: Tensor, *, in_turn: bool = False) -> Tensor:
        angles = positions[:, None] * frequencies
        turned = first * angles.cos() - second * angles.sin()
        both = turned, (turned if in_turn else first) * angles.sin() + second * angles.cos()
        return torch.stack(both, dim=-1).flatten(-2) if neighbours else torch.cat(both, dim=-1)

    return {
        other_pairs: RotaryEmbedding(d, base=base, pairing="half" if neighbours else "interleaved")(x, positions),
        "it turns backwards: the first entry of a pair becomes x1 cos - x2 sin": right(x, -positions),
        "the positions are ignored: the position of a row is its entry in `positions`": right(
            x, torch.arange(x.shape[-2])
        ),
        "the exponent is -2i/d, where i is the number of the pair": by_frequencies(base ** (-pair / d)),
        "the frequencies decrease with i: the exponent is -2i/d, with a minus": by_frequencies(base ** (2 * pair / d)),
        "the base is ignored": RotaryEmbedding(d, pairing=pairing)(x, positions),
        "the second entry needs the first entry before the rotation, not as it is after turning": by_frequencies(
            base ** (-2 * pair / d), in_turn=True
        ),
    }


@check
def alibi(answer: Callable[[int, int, int], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check the ALiBi bias for the last ``n`` of ``m`` positions."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n_heads = 1 if case % 5 == 4 else 2 ** int(torch.randint(1, 5, (), generator=generator))
        n = 1 if case % 5 == 3 else int(torch.randint(2, 7, (), generator=generator))
        m = n + (int(torch.randint(1, 6, (), generator=generator)) if case else 0)
        queries, keys = torch.arange(m - n, m), torch.arange(m)
        bias = AlibiBias(n_heads)
        wanted = bias(queries, keys, dtype=torch.float64)
        head = torch.arange(1, n_heads + 1, dtype=torch.float64)
        distance = (queries[:, None] - keys).double()

        def with_slopes(slopes: Tensor, steps: Tensor) -> Tensor:
            return -slopes[:, None, None] * steps

        slopes = 2 ** (-8 * head / n_heads)
        mistakes = {
            "ALiBi penalises distance: the bias is not positive": -wanted,
            "the queries are the last n of the m positions, not the first": bias(
                torch.arange(n), keys, dtype=torch.float64
            ),
            "the slope of head r is 2^(-8r/h): the number of heads h is missing": with_slopes(2**-head, distance.abs()),
            "heads are counted from 1, so the first slope is 2^(-8/h)": with_slopes(
                2 ** (-8 * (head - 1) / n_heads), distance.abs()
            ),
            "the distance is an absolute value: the bias of keys after the query is negative too": with_slopes(
                slopes, distance
            ),
            "the heads are in reverse order: the first head has the largest slope": wanted.flip(0),
            "each head has its own slope": with_slopes(torch.ones_like(head), distance.abs()),
        }
        where = f"n_heads={n_heads}, n={n}, m={m}"
        compare("alibi", ask("alibi", answer, n_heads, n, m, where=where), wanted, mistakes, where=where)


@check
def stretched_base(answer: Callable[[float, int, float], float | Tensor], *, seed: int = 0, cases: int = 6) -> None:
    """Check the base that slows the slowest rotary pair by a factor and does not change the fastest pair."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(cases):
        d = 2 * int(torch.randint(2, 65, (), generator=generator))
        base = 10.0 ** float(2 + 3 * torch.rand((), generator=generator))
        factor = float(1.5 + 10 * torch.rand((), generator=generator))
        mistakes = {
            "the slowest pair slows by less than the factor: its exponent is (d-2)/d, not 1": base * factor,
            "solve base'^((d-2)/d) = factor * base^((d-2)/d) for base': the power of factor must be the inverse": base
            * factor ** ((d - 2) / d),
            "the slowest pair is i = d/2 - 1, with exponent -(d-2)/d": base * factor ** (d / (d - 1)),
            "there are d/2 pairs, and the exponent of the last is -2(d/2 - 1)/d": base
            * factor ** ((d / 2) / (d / 2 - 2))
            if d > 4
            else math.nan,
            "a larger base makes the pairs slower, a smaller base faster": base / factor ** (d / (d - 2)),
            "return the new base, not its quotient with the old base": factor ** (d / (d - 2)),
        }
        where = f"base={base:.4g}, d_head={d}, factor={factor:.3g}"
        got = ask("stretched_base", answer, base, d, factor, where=where)
        compare_number("stretched_base", got, base * factor ** (d / (d - 2)), mistakes, where=where)
