"""Checks of the exercises on long context."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.checks import ask, check, compare, compare_number

Five = tuple[int, int, float, int, float]


@check
def count_new_angles(answer: Callable[[int, int, float, int, float], int], *, seed: int = 0, cases: int = 8) -> None:
    """Check how many RoPE pairs have new angles under position interpolation."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        while True:
            given = _head_and_lengths(generator, enough=case % 4 == 3)
            if case % 8 == 5:  # the factor equals the ratio of the lengths
                given = (given[0], 2 * given[0], *given[2:4], 2.0)
            right, mistakes = _new_angles(*given)
            made = [right, *(one for ways in mistakes.values() for one in (ways if isinstance(ways, list) else [ways]))]
            if case or len(set(made)) == len(made):
                break
        trained, n, base, width, factor = given
        where = f"n_trained={trained}, n={n}, base={base:g}, d_head={width}, factor={factor:g}"
        got = ask("count_new_angles", answer, trained, n, base, width, factor, where=where)
        compare_number("count_new_angles", got, right, mistakes, where=where)


@check
def ntk_factor(answer: Callable[[int, int, float, int], float], *, seed: int = 0, cases: int = 8) -> None:
    """Check the smallest factor of NTK-aware scaling with which no RoPE pair has new angles."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        trained, n, base, width, _ = _head_and_lengths(generator, enough=False)
        if case % 4 == 1:
            trained, n, base, width = _one_token_longer(generator)
        if case % 4 == 2:
            n = trained - 3
        if case % 4 == 3:
            base = 1.0 + trained / 50  # every RoPE pair completes a full turn in training
        speeds = [base ** (-2 * i / width) for i in range(width // 2)]
        fresh = [i for i, speed in enumerate(speeds) if trained * speed < 2 * math.pi]
        where = f"n_trained={trained}, n={n}, base={base:g}, d_head={width}"
        got = ask("ntk_factor", answer, trained, n, base, width, where=where)
        stretch = n / trained
        if stretch <= 1 or not fresh:
            why = (
                "the text is not longer than the texts of training"
                if stretch <= 1
                else "every pair completed a turn in training"
            )
            last = width // 2 - 1
            mistakes = {
                f"{why}: no frequency has to change, return 1": [
                    stretch,
                    0.0,
                    *(stretch ** ((width - 2) / (2 * i)) for i in {*fresh, last}),
                ]
            }
            compare_number("ntk_factor", got, 1.0, mistakes, where=where)
            continue
        first = fresh[0]

        def power(i: int, of: float = stretch, d: int = width) -> float:
            return of ** ((d - 2) / (2 * i)) if i else math.nan

        also_longer = [i for i in fresh if n * speeds[i] < 2 * math.pi]
        gone_round_later = [i for i in fresh if n * speeds[i] >= 2 * math.pi]
        mistakes = {
            "this factor is enough only for the slowest pair; the other pairs are slowed down less": stretch,
            "a pair without a full turn in training has new angles, even if it completes no turn in the "
            "longer text": power(gone_round_later[0]) if gone_round_later else 1.0,
            "count the full turns in training, not in the longer text": (power(also_longer[0]) if also_longer else 1.0),
            "the first pair without a full turn is one later: number the pairs from 0": power(first - 1),
            "the first pair with new angles determines the factor, not a later pair": power(first + 1),
            "the frequency of pair i is divided by f to the 2i/(d - 2), not 2i/d": stretch ** (width / (2 * first)),
            "the frequency of pair i is divided by f to the 2i/(d - 2): solve for f": stretch
            ** (2 * first / (width - 2)),
            "you return the new base; return the factor": [
                base * power(first) ** (width / (width - 2)),
                base * stretch ** (width / (width - 2)),
            ],
            "the exponent of pair i is 2i/(d - 2), not i/(d - 2)": stretch ** ((width - 2) / first),
            "the ratio of the lengths is n / n_trained, not n_trained / n": power(first, 1 / stretch),
        }
        compare_number("ntk_factor", got, power(first), mistakes, where=where)


@check
def same_targets(answer: Callable[[Tensor, int, int], tuple[Tensor, Tensor]], *, seed: int = 0, cases: int = 6) -> None:
    """Check the inputs and targets for an evaluation of the last tokens with different context lengths."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        rows, scored = (torch.randperm(4, generator=generator)[:2] + 2).tolist()
        rows, scored = {3: (rows, 1), 5: (1, scored)}.get(case % 6, (rows, scored))
        given = scored + (0 if case % 6 == 4 else int(torch.randint(2, 7, (), generator=generator)))
        total = given + 1 + (0 if case % 3 == 2 else int(torch.randint(3, 9, (), generator=generator)))
        tokens = torch.randint(50, (rows, total), generator=generator)
        where = f"{rows} rows of {total} tokens, n_scored={scored}, n_given={given}"
        returns = "the pair (inputs, targets)"
        inputs, targets = ask("same_targets", answer, tokens, scored, given, where=where, returns=returns, parts=2)
        t = tokens.double()
        compare(
            "inputs",
            inputs,
            t[:, -given - 1 : -1],
            {
                "the last token is a target and must not be an input": t[:, -given:],
                "you return the first tokens; the inputs end just before the last token": t[:, :given],
            },
            where=where,
        )
        compare(
            "targets",
            targets,
            t[:, -scored:],
            {
                "the targets are the next tokens, one position after the inputs": t[:, -scored - 1 : -1],
                "you return the first targets of the context; return the last ones, which do not depend on n_given": t[
                    :, -given : -given + scored
                ],
                "the targets are at the end of the row, not at its start": [
                    t[:, 1 : scored + 1],
                    t[:, :scored],
                ],
            },
            where=where,
        )


# --- parts ------------------------------------------------------------------------------------------------------------


def _head_and_lengths(generator: torch.Generator, *, enough: bool) -> Five:
    """Draw the RoPE settings of a head, two lengths and a factor, which covers the longer length if ``enough``."""
    width = 2 * int(torch.randint(6, 33, (), generator=generator))
    trained = int(torch.randint(40, 400, (), generator=generator))
    stretch = 1.5 + 6 * float(torch.rand((), generator=generator))
    base = float(int(torch.randint(500, 20_000, (), generator=generator)))
    n = int(trained * stretch)
    factor = stretch * (1.3 if enough else 0.6)
    return trained, n, base, width, round(max(factor, 1.0), 2)


def _one_token_longer(generator: torch.Generator) -> tuple[int, int, float, int]:
    """Draw a head and two lengths one token apart, in which the same RoPE pairs complete a turn and some do not."""
    while True:
        trained, _, base, width, _ = _head_and_lengths(generator, enough=False)
        turns = [trained * base ** (-2 * i / width) / (2 * math.pi) for i in range(width // 2)]
        below_one = max((turn for turn in turns if turn < 1), default=1.0)
        if below_one * (trained + 1) / trained < 1:
            return trained, trained + 1, base, width


def _new_angles(trained: int, n: int, base: float, width: int, factor: float) -> tuple[int, dict[str, int | list[int]]]:
    """Return the number of RoPE pairs with new angles, and the number with each likely mistake."""

    def count(
        power: float = 2.0,
        turn: float = 2 * math.pi,
        slowed: float = factor,
        at: float = float(trained),
        pairs: range = range(width // 2),
    ) -> int:
        speeds = [base ** (-power * i / width) for i in pairs]
        return sum(at * w < turn and n * w / slowed > trained * w for w in speeds)

    right = count()
    if not right:
        return 0, {"with this factor, no pair turns further than it did in training": count(slowed=1.0)}
    return right, {
        "a pair that completed a full turn in training has no new angles": width // 2,
        "you count the pairs without new angles": width // 2 - right,
        "pair i turns by base to the -2i/d": count(power=1.0),
        "a full turn is 2 pi": count(turn=math.pi),
        "a turn is 2 pi radians, not 1": count(turn=1.0),
        "a turn is 2 pi radians, not 360": count(turn=360.0) if count(turn=360.0) != width // 2 else -1,
        "count the full turns in training, not in the longer text": count(at=float(n)),
        "in training the frequencies were not divided by the factor": count(at=trained / factor),
        "a pair has two entries: count pairs, not entries": [2 * right, count(pairs=range(width))],
        "pairs are numbered from 0 to d/2 - 1": count(pairs=range(1, width // 2 + 1)),
    }
