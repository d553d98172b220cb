"""Checks of the exercises on sequences, graphs and decisions."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.checks import Wrong, ask, check, compare, compare_number, is_finite, normal

# --- the next item ----------------------------------------------------------------------------------------------------


@check
def hit_rate(answer: Callable[[Tensor, Tensor, Tensor, int], float], *, seed: int = 0, cases: int = 5) -> None:
    """Check the hit rate: the share of users whose next item is among the k best items outside their history."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        wanted, mistakes = 0.0, {"not drawn yet": 0.0}
        while not _all_differ(wanted, mistakes):
            scores, histories, next_items, k = _hit_rate_case(generator)
            wanted, mistakes = _hit_rate_and_mistakes(scores, histories, next_items, k)
        if case % 5 == 4:  # one item of each history is repeated, and exactly k items remain
            histories[:, 0] = histories[:, 1]
            k = scores.shape[1] - histories.shape[1] + 1
            wanted, mistakes = _hit_rate_and_mistakes(scores, histories, next_items, k)
        where = f"{len(scores)} users, {scores.shape[1]} items, k={k}"
        got = ask("hit_rate", answer, scores, histories, next_items, k, where=where)
        compare_number("hit_rate", got, wanted, mistakes, where=where)


def _hit_rate_case(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, int]:
    """Draw scores that favour items of the history, histories with a repeated item, the next items, and k.

    Half of the users have scores far below those of the others. All scores are exact in single precision.
    """
    users, items, places, k = (
        int(torch.randint(low, high, (), generator=generator)) for low, high in ((50, 90), (14, 22), (3, 6), (2, 6))
    )
    order = torch.rand(users, items, generator=generator).argsort(1)
    histories, next_items = order[:, :places].clone(), order[:, places]
    histories[: users // 2, 0] = histories[: users // 2, 1]
    scores = normal(users, items, generator=generator) - 0.5
    scores.scatter_add_(1, order[:, :places], torch.full((users, places), 1.0, dtype=scores.dtype))
    scores.scatter_add_(1, next_items[:, None], torch.full((users, 1), 0.8, dtype=scores.dtype))
    scores[::2] -= 100.0
    scores = (65536 * scores).round() / 65536
    no_two_alike = min(len(row.unique()) for row in scores) == items
    return (scores, histories, next_items, k) if no_two_alike else _hit_rate_case(generator)


def _hit_rate_and_mistakes(
    scores: Tensor, histories: Tensor, next_items: Tensor, k: int
) -> tuple[float, dict[str, float | Sequence[float]]]:
    """Return the correct result, and the result with each mistake."""

    def places(left_out: Tensor, offered: Tensor = scores, instead: float = -math.inf) -> Tensor:
        offered = offered.scatter(1, left_out, instead)
        return 1 + (offered > offered.gather(1, next_items[:, None])).double().sum(1)

    def share(found: Tensor) -> float:
        return float(found.double().mean())

    place = places(histories)
    hits = share(place <= k)
    mistakes = {
        "items of the history are not recommended: remove them before you take the first k": share(
            places(histories[:, :0]) <= k
        ),
        "remove the whole history, not only its last item": share(places(histories[:, -1:]) <= k),
        "remove the whole history, not only its first item": share(places(histories[:, :1]) <= k),
        "count the first k items, not one more": share(place <= k + 1),
        "count the first k items, not one less": share(place < k),
        "count the first k items, not only the first": share(place <= 1),
        "a score of zero is above a negative score: it does not remove the history": share(
            places(histories, instead=0.0) <= k
        ),
        "a removed item needs a score below all others, minus infinity": share(places(histories, instead=-1.0) <= k),
        "the highest scores come first": share(places(histories, -scores) <= k),
        "this is the number of users, not their share": hits * len(scores),
        "divide by the number of users, not by the number of recommended items": hits / k,
        "a hit at the second rank counts as much as a hit at the first": [
            share(1 / place),
            share((place <= k) / place),
        ],
        "this is the share of users without a hit": 1 - hits,
    }
    return hits, mistakes


def _all_differ(wanted: float, mistakes: Mapping[str, float | Sequence[float]]) -> bool:
    """Return whether the correct result and the results of all mistakes differ."""
    made = [wanted, *(one for ways in mistakes.values() for one in (ways if isinstance(ways, Sequence) else [ways]))]
    made.sort()
    return all(after - before > 1e-4 for before, after in pairwise(made))


# --- a leak -----------------------------------------------------------------------------------------------------------


def _scores_of(histories: Tensor, table: Tensor, batch_first: bool) -> Tensor:
    """Return the scores of all items for each user, as the exercise's model computes them."""
    x = table[histories]
    x = x if batch_first else x.transpose(0, 1)
    seen = scaled_dot_product_attention(x, x, x)
    seen = seen if batch_first else seen.transpose(0, 1)
    return seen[:, -1] @ table.T


@check
def leak_size(
    answer: Callable[[Tensor, Tensor, bool, int, Tensor], float],
    *,
    seed: int = 0,
    cases: int = 4,
) -> None:
    """Check how much the scores of other users change when one user's history is replaced."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        batch_first, all_distinct = case % 2 == 1, False
        while not all_distinct:
            users, places, d = (torch.randperm(5, generator=generator)[:3] + 4).tolist()
            items = users * (places + 1)
            table = normal(items, d, generator=generator)
            drawn = torch.randperm(items, generator=generator).reshape(users, places + 1)
            histories = drawn[:, :-1].contiguous()
            who = int(torch.randint(1, users - 1, (), generator=generator))
            new = torch.cat([drawn[(who + 1) % users, :-2], drawn[who, -1:]])
            wanted, mistakes = _leak_and_mistakes(histories, table, batch_first, who, new)
            all_distinct = batch_first or _all_differ(wanted, mistakes)
        where = f"{users} users, histories of length {places}, batch_first={batch_first}, user={who}"
        got = ask("leak_size", answer, histories, table, batch_first, who, new, where=where)
        compare_number("leak_size", got, wanted, mistakes, where=where)


def _leak_and_mistakes(
    histories: Tensor, table: Tensor, batch_first: bool, who: int, new: Tensor
) -> tuple[float, dict[str, float | Sequence[float]]]:
    """Return the correct result, and the result with each mistake."""
    changed, all_changed, wrong_row = histories.clone(), new.expand_as(histories), histories.clone()
    changed[who], wrong_row[who + 1] = new, new
    before, after = (_scores_of(given, table, batch_first) for given in (histories, changed))
    others = torch.arange(len(histories)) != who
    moves = (after - before)[others]
    elsewhere = _scores_of(wrong_row, table, batch_first) - before
    otherwise = (_scores_of(changed, table, not batch_first) - _scores_of(histories, table, not batch_first))[others]
    mistakes = {
        "no score changed: did both runs get the same histories, and is batch_first passed on?": 0.0,
        "the scores of the user with the new history may change; leave out this row": [
            float((after - before).abs().max()),
            float((after - before).mean()),
            float((after - before).abs().mean()),
        ],
        "a lower score has changed too: take the absolute value of the difference": [
            float(moves.max()),
            float(moves.min()),
        ],
        "return the largest change of a score, not the mean": [
            float(moves.abs().mean()),
            float(moves.mean()),
            float(moves.square().mean()),
            float(moves.square().mean().sqrt()),
            float(moves.abs().amax(1).mean()),
        ],
        "return the largest change of one score, not the norm of the whole difference": [
            float(moves.norm()),
            float(moves.norm(dim=1).max()),
            float(moves.abs().sum()),
            float(moves.square().max()),
        ],
        "include all other users, not only the first user": float(moves[0].abs().max()),
        "include all other users, not only the next user": float((after - before)[who + 1].abs().max()),
        "compare a user's scores with the same user's scores before, not with another user's": [
            float((after - before.roll(1, 0)).abs().max()),
            float((after - before.roll(-1, 0)).abs().max()),
            float((after[others] - before[who]).abs().max()),
        ],
        "only one user gets the new history, not all users": float(
            (_scores_of(all_changed, table, batch_first) - before)[others].abs().max()
        ),
        "the user number `user` gets the new history; the first user has number 0": [
            float(elsewhere[others].abs().max()),
            float(elsewhere[torch.arange(len(histories)) != who + 1].abs().max()),
        ],
    }
    if batch_first:
        mistakes = {"pass batch_first on as it is": float(otherwise.abs().max())} | mistakes
    return float(moves.abs().max()), mistakes


# --- neighbours -------------------------------------------------------------------------------------------------------


@check
def edge_weights(answer: Callable[[Tensor, Tensor, Tensor, int], Tensor], *, seed: int = 0, cases: int = 6) -> None:
    """Check the softmax over each node's neighbours, computed on a list of edges."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n = int(torch.randint(6, 11, (), generator=generator))
        linked = torch.rand(n, n, generator=generator) < 0.5
        alone, with_one, far = torch.randperm(n, generator=generator)[:3].tolist()
        linked[alone] = linked[with_one] = False
        linked[with_one, far] = True
        linked[far, :3] = True
        if case % 6 == 5:  # a single edge
            linked = linked & False
            linked[with_one, far] = True
        edges = linked.nonzero()
        to, fro = edges[torch.randperm(len(edges), generator=generator)].T.contiguous()
        scores = (
            64 * normal(len(to), generator=generator)
        ).round() / 64  # exact in single precision, also after a large shift
        shift, of_one = ((0, False), (-2000, False), (2000, False), (2000, True), (-2000, True), (0, False))[case % 6]
        shifted = (to == far) & (fro == 1) if of_one else to == far
        scores = scores + shift * shifted
        which = f"one score of node {far} is" if of_one else f"the scores of node {far} are"
        where = f"n={n}, {len(to)} edges, " + (f"{which} near {shift}" if shift else "plain scores")
        got = ask("edge_weights", answer, scores, to, fro, n, where=where)
        assert is_finite(got), (
            "edge_weights is not finite: subtract from each score the largest score of its own node, not zero, not "
            f"the largest of all scores, not the mean, and not a maximum that starts at zero ({where})"
        )
        compare("edge_weights", got, *_edge_weights_and_mistakes(scores, to, fro, n), where=where, scores=scores)


def _edge_softmax(scores: Tensor, groups: Tensor) -> Tensor:
    """Return the softmax within each group of edges."""
    return torch.where(groups[:, None] == groups, scores, -torch.inf).softmax(-1).diagonal()


def _edge_weights_and_mistakes(scores: Tensor, to: Tensor, fro: Tensor, n: int) -> tuple[Tensor, dict[str, Wrong]]:
    """Return the correct result, and the result with each mistake."""
    same = to[:, None] == to
    own, degree = torch.where(same, scores, -torch.inf), same.sum(1)
    peak, log_total = own.amax(1), own.logsumexp(1)

    def less(start: Tensor) -> Tensor:
        """Return the weights if ``start`` is subtracted from the scores, with 0 / 0 replaced by zero."""
        exps = (scores - start).exp()
        return (exps / (same * exps).sum(1)).nan_to_num(0.0)

    return _edge_softmax(scores, to), {
        "the weights of each query node sum to one, not the weights of all edges": scores.softmax(0),
        "all weights of a node with very low scores are 0: subtract the largest score of each node": [
            less(scores.max()),
            less(peak.clamp(min=0)),
        ],
        "divide by the sum over the node's neighbours": [scores.exp(), (scores - peak).exp()],
        "divide by the sum over the node's neighbours, not by their number": [
            scores.exp() / degree,
            (scores - peak).exp() / degree,
        ],
        "sum over the edges of the query node, not of the key node": [
            _edge_softmax(scores, fro),
            scores.exp() / ((fro[:, None] == fro) * scores.exp()).sum(1),
        ],
        "a pair without an edge has weight 0; a score of zero gives it a positive weight": (
            scores - torch.logaddexp(log_total, (n - degree).double().log())
        ).exp(),
        "the edges of a node need not be consecutive in the list": _edge_softmax(
            scores, torch.unique_consecutive(to, return_inverse=True)[1]
        ),
        "these weights are uniform: the scores are not used": 1 / degree.double(),
        "the highest score has the largest weight": _edge_softmax(-scores, to),
    }


# --- a corridor -------------------------------------------------------------------------------------------------------


@check
def accuracy_from_counts(answer: Callable[[int, float, float], float], *, seed: int = 0, cases: int = 8) -> None:
    """Check the best accuracy of a decision from the counts of the signs alone."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n = 3 if case % 4 == 3 else int(torch.randint(6, 20, (), generator=generator))
        p, of_range = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        p = 0.15 + 0.5 * p
        p_false = (0.7 + 0.2 * of_range, 0.5, 0.1 + 0.3 * of_range)[case % 3]
        where = f"n={n}, p={p:.3f}, p_false={p_false:.3f}"
        got = ask("accuracy_from_counts", answer, n, p, p_false, where=where)
        compare_number("accuracy_from_counts", got, *_best_and_mistakes(n, p, p_false), where=where)


def _binomial(n: int, p: float) -> list[float]:
    """Return the probability of each number of successes in n trials."""
    return [math.comb(n, hits) * p**hits * (1 - p) ** (n - hits) for hits in range(n + 1)]


def _count_distributions(signs: int, p_false: float) -> tuple[list[float], list[float]]:
    """Return the distribution of the number of signs for the left, if the left is rewarded and if the right is."""
    return [0.0, *_binomial(signs - 1, 1 - p_false)], [*_binomial(signs - 1, p_false), 0.0]


def _p_correct(signs: int, p_false: float) -> float:
    return sum(map(max, *_count_distributions(signs, p_false))) / 2


def _best_and_mistakes(n: int, p: float, p_false: float) -> tuple[float, dict[str, float | Sequence[float]]]:
    """Return the correct result, and the result with each mistake."""

    def over(places: int, each: Callable[[int], float], sure: int = 1) -> float:
        return sum(probability * each(sure + more) for more, probability in enumerate(_binomial(places, p)))

    def correct(signs: int) -> float:
        return _p_correct(signs, p_false)

    def by_majority(signs: int) -> float:
        left = _count_distributions(signs, p_false)[0]
        return sum(
            probability * ((2 * count > signs) + (2 * count == signs) / 2) for count, probability in enumerate(left)
        )

    def in_proportion(signs: int) -> float:
        pairs = zip(*_count_distributions(signs, p_false), strict=True)
        return sum((left**2 + right**2) / (left + right) for left, right in pairs) / 2

    def none_true(signs: int) -> float:
        return sum(map(max, _binomial(signs, p_false), _binomial(signs, 1 - p_false))) / 2

    best, mean = over(n - 2, correct), 1 + (n - 2) * p
    return best, {
        "the majority is not always the best choice: compare the probabilities of the counts": (
            over(n - 2, by_majority)
        ),
        "the first sign is counted too, and it is always true": [
            over(n - 2, none_true),
            over(n - 1, none_true, 0),
            over(n - 1, none_true),
        ],
        "one position certainly has a sign": over(n - 1, lambda signs: correct(signs) if signs else 0.5, 0),
        "the certain sign has one of the n - 1 positions: only n - 2 are random": over(n - 1, correct),
        "there is no sign at the junction: there are n - 1 positions": [
            over(n, correct),
            over(n, lambda signs: correct(signs) if signs else 0.5, 0),
        ],
        "each side is rewarded with probability one half": 2 * best,
        "average over the number of signs; do not take its mean": [correct(math.floor(mean)), correct(math.ceil(mean))],
        "the number of signs varies: not every position has one": correct(n - 1),
        "p_false is the probability that a later sign shows the wrong side": over(
            n - 2, lambda signs: _p_correct(signs, 1 - p_false)
        ),
        "always choose the more probable side; do not sample the side": over(n - 2, in_proportion),
        "this is the accuracy of a policy that knows which sign came first": 1.0,
        "return the accuracy, not its difference from one half": best - 0.5,
        "return the accuracy, not the error rate": 1 - best,
    }
