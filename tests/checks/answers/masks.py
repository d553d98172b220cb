"""Answers to the exercises on masks: correct answers in any style, wrong answers with their messages."""

from itertools import pairwise

import numpy as np
import torch

from lessons_lib.attention import masks
from lessons_lib.attention.softmax import softmax
from lessons_lib.checks import masks as check

# --- right answers ----------------------------------------------------------------------------------------------------


def masked_softmax(scores, mask):
    visible = torch.where(mask, scores, -torch.inf)
    peak = visible.amax(-1, keepdim=True)
    e = torch.where(mask, (visible - torch.where(peak.isfinite(), peak, 0.0)).exp(), 0.0)
    return e / e.sum(-1, keepdim=True).clamp_min(1e-300)


def conversation_mask(lengths, prompts):
    blocks = [masks.prefix(length, prompt) for length, prompt in zip(lengths, prompts, strict=True)]
    return torch.block_diag(*(block.int() for block in blocks)).bool()


def layers_needed(mask):
    reached = [masks.reach(mask, n_layers) for n_layers in range(len(mask) + 1)]
    return next(i for i, now in enumerate(reached) if torch.equal(now, reached[-1]))


RIGHT = {
    check.masked_softmax: [masked_softmax, softmax, lambda scores, mask: masked_softmax(scores, mask).float()],
    check.conversation_mask: [conversation_mask],
    check.layers_needed: [layers_needed, lambda mask: torch.tensor(layers_needed(mask), dtype=torch.float64)],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


def renormalised(scores, mask):
    late = scores.softmax(-1) * mask
    return late / late.sum(-1, keepdim=True)


def renormalised_with_a_constant(scores, mask):
    late = scores.softmax(-1) * mask
    return late / (late.sum(-1, keepdim=True) + 1e-8)


def without_shift(scores, mask):
    e = scores.exp() * mask
    return e / e.sum(-1, keepdim=True)


def hidden_without_shift(scores, mask):
    e = torch.where(mask, scores, -torch.inf).exp()
    return e / e.sum(-1, keepdim=True).clamp_min(1e-300)


def in_place(scores, mask):
    scores[~mask] = -torch.inf
    return softmax(scores)


WRONG[check.masked_softmax] = [
    (lambda s, mask: s.masked_fill(~mask, -torch.inf).softmax(-1), "0 / 0 in a row without keys"),
    (lambda s, mask: s.masked_fill(~mask, -1e9).softmax(-1), "attends to all that is hidden"),
    (lambda s, mask: s.masked_fill(mask, -torch.inf).softmax(-1), "True means may attend"),
    (lambda s, mask: s.softmax(-1) * mask, "the mask comes after the softmax"),
    (lambda s, mask: (s * mask).softmax(-1), "a score of zero is not a weight of zero"),
    (renormalised, "maximum of the visible scores"),
    (renormalised_with_a_constant, "small constant in the denominator"),
    (without_shift, "maximum of the visible scores"),
    (hidden_without_shift, "maximum of the visible scores"),
    (in_place, "changed its arguments"),
    (lambda s, mask: softmax(s.mT, mask.mT).mT, "the last axis"),
    (lambda s, mask: softmax(s, mask) ** 2, "wrong values"),
    (lambda s, mask: softmax(s, mask)[..., :1], "must have shape"),
    (lambda s, mask: softmax(s, mask).tolist(), "must be a tensor, got list"),
]


def ids_of(lengths):
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))


def is_prompt(lengths, prompts):
    return torch.cat([torch.arange(length) < prompt for length, prompt in zip(lengths, prompts, strict=True)])


WRONG[check.conversation_mask] = [
    (lambda a, p: ~conversation_mask(a, p), "True means may attend"),
    (lambda a, p: conversation_mask(a, p).mT, "yours are swapped"),
    (lambda a, p: masks.causal(sum(a)) | is_prompt(a, p), "positions attend to other conversations"),
    (
        lambda a, p: masks.documents(ids_of(a)) & masks.causal(sum(a)) | is_prompt(a, p),
        "prompts of other conversations",
    ),
    (lambda a, p: masks.documents(ids_of(a)) & masks.causal(sum(a)), "within a prompt every position attends"),
    (lambda a, p: masks.documents(ids_of(a)), "must not attend to later positions"),
    (
        lambda a, p: masks.documents(ids_of(a)) & (masks.causal(sum(a)) | is_prompt(a, p)[:, None]),
        "a prompt must not attend to its answer",
    ),
    (
        lambda a, p: masks.documents(ids_of(a)) & (is_prompt(a, p) | torch.eye(sum(a), dtype=torch.bool)),
        "not only to its prompt and itself",
    ),
    (lambda a, p: masks.documents(ids_of(a)) & masks.prefix(sum(a), p[0]), "only the prompt of the first conversation"),
    (lambda a, p: masks.bidirectional(sum(a)), "wrong values"),
    (lambda a, p: conversation_mask(a, p).float(), "must be a Boolean tensor, got torch.float32"),
    (lambda a, p: conversation_mask(a, p).tolist(), "must be a Boolean tensor, got list"),
    (lambda a, p: conversation_mask(a, p)[1:], "must have shape"),
]


def without_residual(mask):
    reached = [masks.reach(mask, n_layers, residual=False) for n_layers in range(len(mask) + 2)]
    pairs = enumerate(pairwise(reached))
    return next((i for i, (now, more) in pairs if torch.equal(now, more)), len(mask))


def by_squaring(mask):
    reached, n_squarings = mask | torch.eye(len(mask), dtype=torch.bool), 0
    while not torch.equal(wider := reached.float() @ reached.float() > 0, reached):
        reached, n_squarings = wider, n_squarings + 1
    return n_squarings


def eaten(mask):
    needed = layers_needed(mask)
    mask |= True
    return needed


WRONG[check.layers_needed] = [
    (lambda mask: layers_needed(mask) + 1, "the last layer counted changes nothing"),
    (lambda mask: max(1, layers_needed(mask)), "the last layer counted changes nothing"),
    (lambda mask: layers_needed(mask) - 1, "start from the identity"),
    (without_residual, "the residual connection is missing"),
    (by_squaring, "each squaring doubles the number of layers"),
    (eaten, "changed its argument"),
    (lambda mask: 100, "is 100, wanted [0-9] "),
    (lambda mask: str(layers_needed(mask)), "must be a number, got str"),
]


# --- further ones -----------------------------------------------------------------------------------------------------


def in_logarithms(scores, mask):
    hidden = scores.masked_fill(~mask, -torch.inf)
    total = hidden.logsumexp(-1, keepdim=True)
    return (hidden - total.masked_fill(total.isneginf(), 0.0)).exp()


def pair_by_pair(lengths, prompts):
    allowed = torch.zeros(sum(lengths), sum(lengths), dtype=torch.bool)
    begin = 0
    for length, prompt in zip(lengths, prompts, strict=True):
        for i in range(length):
            for j in range(length):
                allowed[begin + i, begin + j] = j <= i or (i < prompt and j < prompt)
        begin += length
    return allowed


def by_slices(lengths, prompts, *, one_more=0):
    allowed = torch.zeros(sum(lengths), sum(lengths)).bool()
    for end, length, prompt in zip(torch.tensor(lengths).cumsum(0).tolist(), lengths, prompts, strict=True):
        begin = end - length
        allowed[begin:end, begin:end] = torch.ones(length, length).tril() > 0
        known = slice(begin, min(end, begin + prompt + one_more))
        allowed[known, known] = True
    return allowed


def by_broadcasting(lengths, prompts):
    sizes = torch.tensor(lengths)
    number = torch.arange(len(lengths)).repeat_interleave(sizes)
    place = torch.arange(len(number))
    in_prompt = place < (sizes.cumsum(0) - sizes + torch.tensor(prompts))[number]
    return (number[:, None] == number) & ((place <= place[:, None]) | in_prompt)


def by_walks(mask):
    """A breadth-first walk from each position: the longest of the shortest ways."""
    farthest = 0
    for start in range(len(mask)):
        seen, edge, steps = {start}, {start}, 0
        while edge := {j for i in edge for j in mask[i].nonzero().flatten().tolist()} - seen:
            seen, steps = seen | edge, steps + 1
        farthest = max(farthest, steps)
    return farthest


def by_powers(mask):
    layer = (mask | torch.eye(len(mask), dtype=torch.bool)).double()
    powers = [torch.linalg.matrix_power(layer, p) > 0 for p in range(len(mask) + 1)]
    return np.int64(sum(not torch.equal(power, powers[-1]) for power in powers))


def shifted_by(shift):
    """Subtracts something else than the largest of the visible scores."""

    def answer(scores, mask):
        e = torch.where(mask, (scores - shift(scores, mask)).exp(), 0.0)
        total = e.sum(-1, keepdim=True)
        return e / total.masked_fill(total == 0, 1.0)

    return answer


def visible_mean(scores, mask):
    return (scores * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp_min(1)


RIGHT[check.masked_softmax] += [in_logarithms]
RIGHT[check.conversation_mask] += [pair_by_pair, by_slices, by_broadcasting]
RIGHT[check.layers_needed] += [by_walks, by_powers]
WRONG[check.masked_softmax] += [
    (shifted_by(visible_mean), "each row, not its mean"),
    (
        shifted_by(lambda s, mask: s.masked_fill(~mask, torch.inf).amin(-1, keepdim=True).nan_to_num(posinf=0.0)),
        "minimum",
    ),
]
WRONG[check.conversation_mask] += [
    (lambda a, p: by_slices(a, p, one_more=1), "not one more"),
    (lambda a, p: by_slices(a, [max(1, one - 1) for one in p]), "wrong values"),
    (lambda a, p: by_slices(a, a), "must not attend to later positions"),
]
WRONG[check.layers_needed] += [
    (len, "this is the number of positions"),
    (lambda mask: int(mask.sum(-1).max()), "layers_needed is "),
    (lambda mask: torch.tensor([layers_needed(mask)]), "must have shape"),
    (lambda mask: layers_needed(mask | mask.mT), "the mask has a direction"),
]


# --- a window and some that see all -----------------------------------------------------------------------------------


def global_window(n, window, n_global, *, low=None, all_of=(True, True)):
    """By comparisons of positions; with one thing to be wrong."""
    i, j = torch.arange(n)[:, None], torch.arange(n)
    near = (i - j < window) & (j - i < (window if low is None else low(window)))
    return near | ((j < n_global) & all_of[0]) | ((i < n_global) & all_of[1])


def written_into(n, window, n_global):
    allowed = torch.zeros(n, n, dtype=torch.bool)
    allowed[:n_global] = True
    allowed[:, :n_global] = True
    for i in range(n):
        allowed[i, max(0, i - window + 1) : i + window] = True
    return allowed


def by_triangles(n, window, n_global):
    near = torch.ones(n, n).triu(1 - window).tril(window - 1).bool()
    first = torch.arange(n) < n_global
    return torch.logical_or(near, torch.logical_or(first[:, None], first))


def one_by_one(n, window, n_global):
    rows = [[abs(i - j) < window or min(i, j) < n_global for j in range(n)] for i in range(n)]
    return torch.tensor(rows)


def last_by_slices(n, window, n_global):
    allowed = masks.sliding_window(n, window, causal=False)
    allowed[-n_global:] = True
    allowed[:, -n_global:] = True
    return allowed


RIGHT[check.global_window] = [
    global_window,
    written_into,
    by_triangles,
    one_by_one,
    lambda n, w, g: masks.longformer(n, window=w, global_positions=range(g)),
]
WRONG[check.global_window] = [
    (lambda *sizes: ~global_window(*sizes), "True means may attend"),
    (lambda *sizes: global_window(*sizes, all_of=(True, False)), "the global positions also attend"),
    (lambda *sizes: global_window(*sizes, all_of=(False, True)), "all positions also attend"),
    (
        lambda n, w, g: global_window(n, w, 0) | ((torch.arange(n)[:, None] < g) & (torch.arange(n) < g)),
        "not only to one another",
    ),
    (lambda n, w, g: global_window(n, 0, g), "the window is missing"),
    (lambda n, w, g: global_window(n, w, 0), "the global positions are missing"),
    (lambda n, w, g: global_window(n, w + 1, g), "must be less than `window`"),
    (lambda n, w, g: global_window(n, w - 1, g), "the window is one too small"),
    (lambda *sizes: global_window(*sizes, low=lambda window: 1), "the window is two-sided"),
    (lambda *sizes: global_window(*sizes, low=lambda window: 1).mT, "the window is two-sided"),
    (lambda n, w, g: global_window(n, w, g + 1), "not one more"),
    (lambda *sizes: global_window(*sizes).flip(0, 1), "not the last"),
    (last_by_slices, "not the last"),
    (lambda n, w, g: global_window(n, w, 0) & global_window(n, 0, g), "both are required here"),
    (lambda *sizes: global_window(*sizes).tril(), "this mask is not causal"),
    (lambda n, w, g: global_window(n, w, -1 % n if g == 0 else g), "in [0-9]+ entries"),
    (lambda n, w, g: global_window(n, g, w), "global_window"),
    (lambda *sizes: global_window(*sizes).float(), "must be a Boolean tensor, got torch.float32"),
    (lambda *sizes: global_window(*sizes).tolist(), "must be a Boolean tensor, got list"),
    (lambda n, w, g: global_window(n, w, g)[None], "must have shape"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def diagonal_by_diagonal(n, window, n_global):
    """Assumes that the window is shorter than the text."""
    ones = torch.ones(n, n, dtype=torch.bool)
    mask = global_window(n, 0, n_global)
    for offset in range(window):
        mask |= torch.diag(torch.ones(n - offset, dtype=torch.bool), offset)
        mask |= torch.diag(torch.ones(n - offset, dtype=torch.bool), -offset)
    return mask & ones


WRONG[check.global_window] += [(diagonal_by_diagonal, "negative dimension")]
WRONG[check.masked_softmax] += [
    (
        shifted_by(
            lambda s, mask: s.masked_fill(~mask, -torch.inf).amax((-2, -1), keepdim=True).nan_to_num(neginf=0.0)
        ),
        "masked_softmax",
    ),
    (shifted_by(lambda s, mask: s.masked_fill(~mask, -torch.inf).amax().nan_to_num(neginf=0.0)), "masked_softmax"),
]
WRONG[check.layers_needed] += [
    (lambda mask: min(20, layers_needed(mask)), "layers_needed is 20, wanted"),
    (lambda mask: max(1, layers_needed(mask)), "layers_needed is 1, wanted 0|the last layer counted"),
    (lambda mask: layers_needed(mask) if mask.any() else 1, "layers_needed is 1, wanted 0|the last layer counted"),
]
