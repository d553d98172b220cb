"""Checks of the exercises on masks."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lessons_lib.attention.masks import causal, documents, reach, sliding_window
from lessons_lib.attention.softmax import softmax
from lessons_lib.checks import ask, check, compare, compare_mask, compare_number, is_finite, with_row_offsets
from lessons_lib.checks.scaling import subtraction_hint, with_one_outlier

ONE_SIDE = "the window is two-sided: it covers positions before and after the query"
BOTH_WAYS = "the mask has a direction: if i may attend to j, j need not attend to i"


@check
def global_window(answer: Callable[[int, int, int], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check the mask of a two-sided window and global positions at the start."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        a, b = torch.randperm(4, generator=generator)[:2].tolist()
        window, n_global = [(2 + min(a, b), 3 + max(a, b)), (1, 0), (2 + a, 1 + b)][min(case, 2)]
        n = window + n_global + int(torch.randint(3, 8, (), generator=generator))
        if case % 5 == 3:  # a window wider than the text
            n, n_global = window, 1
            window = n + 2
        if case % 5 == 4:  # all positions are global
            n_global = n
        i, j = torch.arange(n)[:, None], torch.arange(n)
        near, seen, seeing = (i - j).abs() < window, (j < n_global).expand(n, n), (i < n_global).expand(n, n)
        wanted = near | seen | seeing
        mistakes = {
            "the result is True where a pair is hidden; True means may attend": ~wanted,
            "the global positions also attend to all positions": near | seen,
            "all positions also attend to the global positions": near | seeing,
            "the global positions attend to all positions and the reverse, not only to one another": near
            | (seen & seeing),
            "the window is missing": seen | seeing,
            "the global positions are missing": near,
            "positions at distance `window` are outside the window; the distance must be less than `window`": seen
            | seeing
            | ((i - j).abs() <= window),
            "the window is one too small: distances up to window - 1 are visible": seen
            | seeing
            | ((i - j).abs() < window - 1),
            ONE_SIDE: [seen | seeing | (side & near) for side in (j <= i, j >= i)],
            "the first n_global positions are global, not one more": near | (j <= n_global) | (i <= n_global),
            "the first n_global positions are global, not the last": near | (j >= n - n_global) | (i >= n - n_global),
            "a pair is visible if the window or a global position allows it; both are required here": near
            & (seen | seeing),
            "this mask is not causal: later positions are visible too": wanted & (j <= i),
        }
        where = f"n={n}, window={window}, n_global={n_global}"
        compare_mask(
            "global_window",
            ask("global_window", answer, n, window, n_global, where=where),
            wanted,
            mistakes,
            where=where,
        )


@check
def masked_softmax(answer: Callable[[Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check a masked softmax for small scores, for hidden scores far above and far below, and for fully masked rows."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n, m = torch.randint(2, 7, (3,), generator=generator).tolist()
        n = 1 if case % 4 == 3 else n
        shape = (n, m + n) if case % 2 else (b, n, m + n)
        scores = torch.randn(shape, generator=generator, dtype=torch.float64)
        mask = torch.rand(shape, generator=generator) < 0.5
        mask[..., 0], mask[..., -1] = True, False  # every row has visible and hidden keys
        _check_softmax(answer, scores, mask, "scores near 0")
        _check_softmax(answer, scores.masked_fill(~mask, 5000.0), mask, "hidden scores of 5000")
        _check_softmax(answer, scores + 5000.0 * mask, mask, "visible scores near 5000")
        for apart, kind in with_one_outlier(scores, 1000.0, generator):
            _check_softmax(answer, apart, torch.ones_like(mask), f"{kind}, all visible")
        _check_softmax(answer, with_row_offsets(scores, 5000.0), mask, "rows from -5000 to 5000")
        _check_softmax(answer, scores, mask & (torch.arange(n)[:, None] > 0), "row 0 without keys")


def _check_softmax(answer: Callable[[Tensor, Tensor], Tensor], scores: Tensor, mask: Tensor, kind: str) -> None:
    where = f"{kind}, shape {tuple(scores.shape)}"
    got = ask("masked_softmax", answer, scores, mask, where=where)
    cause = (
        "0 / 0 in a row without keys: replace the sum before you divide"
        if kind.startswith("row 0")
        else f"subtract the maximum of each row{subtraction_hint(kind)}"
        if kind.startswith(("one score", "rows"))
        else "subtract the maximum of the visible scores, row by row, and leave the hidden ones out of the sum"
    )
    assert is_finite(got), f"masked_softmax is not finite: {cause} ({where})"
    late = softmax(scores) * mask
    mistakes = masking_mistakes(scores, mask) | {
        "a small constant in the denominator changes the weights": late / (late.sum(dim=-1, keepdim=True) + 1e-8),
        "the sum runs over the keys of each query, the last axis": softmax(scores.mT, mask.mT).mT,
    }
    compare("masked_softmax", got, softmax(scores, mask), mistakes, where=where, scores=scores)


def masking_mistakes(scores: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return the weights if the mask is inverted, applied after the softmax, or sets scores to 0 or -1e9."""
    return {
        "True means may attend, not hidden": softmax(scores, ~mask),
        "the mask comes after the softmax, so hidden scores are still in the sum": softmax(scores) * mask,
        "a score of zero is not a weight of zero: hidden scores must not take part": softmax(scores * mask),
        "a query that may attend nowhere attends to all that is hidden; it should get zeros": softmax(
            scores.masked_fill(~mask, -1e9)
        ),
    }


@check
def conversation_mask(answer: Callable[[list[int], list[int]], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check the mask of packed conversations, each with a prompt that attends to itself bidirectionally."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        number = 3 if case == 0 else int(torch.randint(1, 6, (), generator=generator))
        lengths = (torch.randint(0, 5, (number,), generator=generator) + 4).tolist()
        prompts = [int(torch.randint(2, length - 1, (), generator=generator)) for length in lengths]
        if case % 3 == 1:  # a conversation without a prompt, and one without an answer
            prompts[0], prompts[-1] = 0, lengths[-1]
        if case % 3 == 2:  # a single token, in the prompt or in the answer
            lengths[0], prompts[0] = 1, case % 2
        where = f"lengths={lengths}, prompts={prompts}"
        got = ask("conversation_mask", answer, lengths, prompts, where=where)
        compare_mask("conversation_mask", got, *_conversation_mistakes(lengths, prompts), where=where)


def _conversation_mistakes(lengths: Sequence[int], prompts: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mask, and the mask with each likely mistake."""
    own = documents(torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)))
    within = torch.cat([torch.arange(length) for length in lengths])
    prompt = within < torch.tensor(prompts).repeat_interleave(torch.tensor(lengths))
    longer = within <= torch.tensor(prompts).repeat_interleave(torch.tensor(lengths))
    past = causal(len(within))
    wanted = own & (past | prompt)
    return wanted, {
        "the result is True where a pair is hidden; True means may attend": ~wanted,
        "rows are queries and columns keys; yours are swapped": wanted.mT,
        "positions attend to other conversations": past | prompt,
        "positions attend to prompts of other conversations": own & past | prompt,
        "within a prompt every position attends to every position, also to later ones": own & past,
        "a position of an answer must not attend to later positions": own,
        "a prompt must not attend to its answer": own & (past | prompt[:, None]),
        "an answer attends to all earlier positions of its conversation, not only to its prompt and itself": own
        & (prompt | torch.eye(len(within), dtype=torch.bool)),
        "the first `prompts` positions are the prompt, not one more": own & (past | longer),
        "only the prompt of the first conversation is bidirectional; every prompt is": own
        & (past | (torch.arange(len(within)) < prompts[0])),
    }


@check
def layers_needed(answer: Callable[[Tensor], int | Tensor], *, seed: int = 0, cases: int = 8) -> None:
    """Check the number of layers after which the receptive field of a mask no longer grows."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        mask, where = _distinguishing_mask(case, generator)
        got = ask("layers_needed", answer, mask, where=where)
        compare_number("layers_needed", got, _layers_needed(mask), _layer_count_mistakes(mask), where=where)


def _distinguishing_mask(case: int, generator: torch.Generator) -> tuple[Tensor, str]:
    """Draw a mask of one of eight kinds and its description; the known mistakes differ in the first case."""
    while True:
        n = int(torch.randint(7, 14, (), generator=generator))
        window = int(torch.randint(2, 4, (), generator=generator))
        sparse = torch.rand(n, n, generator=generator) < 1.2 / n
        kind, mask = [
            ("two-sided window", sliding_window(n, window, causal=False)),
            ("random mask without a diagonal", sparse),
            ("causal window", sliding_window(n, window)),
            ("causal mask", causal(n)),
            ("strictly causal mask", causal(n) & ~torch.eye(n, dtype=torch.bool)),
            ("each position alone", torch.eye(n, dtype=torch.bool)),
            (
                "each position attends to the one before it",
                torch.ones(4 * n, 4 * n, dtype=torch.bool).tril(-1).triu(-1),
            ),
            ("no position attends to any", torch.zeros(n, n, dtype=torch.bool)),
        ][case % 8]
        where = f"{kind}, n={len(mask)}" + (f", window={window}" if "window" in kind else "")
        wanted, wrong = _layers_needed(mask), _layer_count_mistakes(mask)
        same = 2  # two mistakes have no effect: a two-sided window is symmetric and contains the diagonal
        differ = len({wanted, *wrong.values()}) == 1 + len(wrong) - same
        others = {wanted, *(number for sentence, number in wrong.items() if sentence != BOTH_WAYS)}
        if differ if case == 0 else case % 8 != 1 or wrong[BOTH_WAYS] not in others:
            return mask, where


def _layer_count_mistakes(mask: Tensor) -> dict[str, int]:
    wanted = _layers_needed(mask)
    return {
        "the last layer counted changes nothing": wanted + 1,
        "start from the identity: before any layer, each position reaches itself": wanted - 1,
        "the residual connection is missing: it keeps the positions reached before": _layers_needed(
            mask, residual=False
        ),
        "each squaring doubles the number of layers": (wanted - 1).bit_length() if wanted else 0,
        "this is the number of positions; most masks need fewer layers": len(mask),
        BOTH_WAYS: _layers_needed(mask | mask.mT),
    }


def _layers_needed(mask: Tensor, *, residual: bool = True) -> int:
    """Return the smallest number of layers after which another layer adds nothing; at most the number of positions."""
    n = len(mask)
    return next(
        (
            n_layers
            for n_layers in range(n)
            if torch.equal(*(reach(mask, more, residual=residual) for more in (n_layers, n_layers + 1)))
        ),
        n,
    )
