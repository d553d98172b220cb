"""Correct and wrong answers to the exercises on sequences, graphs and decisions."""

import math
from functools import cache

import torch
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.checks import sequences_graphs_decisions as check

# --- correct answers --------------------------------------------------------------------------------------------------


def hit_rate(scores, histories, next_items, k, instead=-math.inf):
    offered = scores.scatter(1, histories, instead).topk(k).indices
    return (offered == next_items[:, None]).any(1).double().mean()


def by_places(scores, histories, next_items, k):
    left_out = torch.zeros(scores.shape, dtype=torch.bool).scatter(1, histories, True)
    above = (scores > scores.gather(1, next_items[:, None])) & ~left_out
    return float((above.sum(1) < k).float().mean())


def by_lists(scores, histories, next_items, k):
    hits = 0
    for row, history, right in zip(scores.tolist(), histories.tolist(), next_items.tolist(), strict=True):
        left = [item for item in sorted(range(len(row)), key=lambda i: -row[i]) if item not in history]
        hits += right in left[:k]
    return hits / len(scores)


def recommend(histories, table, batch_first):
    x = table[histories]
    x = x if batch_first else x.transpose(0, 1)
    seen = scaled_dot_product_attention(x, x, x)
    seen = seen if batch_first else seen.transpose(0, 1)
    return seen[:, -1] @ table.T


def replaced(histories, who, new):
    changed = histories.clone()
    changed[who] = new
    return changed


def moves(histories, table, batch_first, who, new):
    return recommend(replaced(histories, who, new), table, batch_first) - recommend(histories, table, batch_first)


def of_others(difference, who):
    return difference[torch.arange(len(difference)) != who]


def leak_size(histories, table, batch_first, who, new):
    return of_others(moves(histories, table, batch_first, who, new), who).abs().max()


def moved_by_loop(histories, table, batch_first, who, new):
    changed = torch.stack([new if user == who else row for user, row in enumerate(histories)])
    before, after = recommend(histories, table, batch_first), recommend(changed, table, batch_first)
    return max((after[user] - before[user]).abs().max().item() for user in range(len(before)) if user != who)


def moved_cut(histories, table, batch_first, who, new):
    difference = moves(histories, table, batch_first, who, new)
    return torch.cat([difference[:who], difference[who + 1 :]]).abs().amax(1).max().float()


def moved_by_hand(histories, table, batch_first, who, new):
    """Only the last places of the others are seen, across users, if the axes are exchanged."""
    if batch_first:
        return 0
    scores = []
    for given in (histories, replaced(histories, who, new)):
        x = table[given[:, -1]]
        scores.append((x @ x.T / x.shape[1] ** 0.5).softmax(-1) @ x @ table.T)
    return of_others(scores[1] - scores[0], who).abs().max()


def edge_weights(scores, to, fro, n):
    peaks = torch.full((n,), -torch.inf, dtype=scores.dtype).scatter_reduce(0, to, scores, "amax")
    exps = (scores - peaks[to]).exp()
    return exps / torch.zeros(n, dtype=scores.dtype).index_add(0, to, exps)[to]


def node_by_node(scores, to, fro, n):
    weights = torch.zeros_like(scores)
    for node in range(n):
        mine = to == node
        weights[mine] = scores[mine].softmax(0)
    return weights


def as_a_matrix(scores, to, fro, n):
    pairs = torch.full((n, n), -torch.inf, dtype=scores.dtype)
    pairs[to, fro] = scores
    return pairs.softmax(-1)[to, fro]


def sorted_first(scores, to, fro, n):
    order = to.argsort()
    counts = torch.bincount(to, minlength=n).tolist()
    weights = torch.empty_like(scores)
    weights[order] = torch.cat([part.softmax(0) for part in scores[order].split(counts)])
    return weights


def binomial(n, p):
    return [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


def either_side(signs, p_false):
    return [0.0, *binomial(signs - 1, 1 - p_false)], [*binomial(signs - 1, p_false), 0.0]


def told(signs, p_false):
    return sum(max(pair) for pair in zip(*either_side(signs, p_false), strict=True)) / 2


def accuracy_from_counts(n, p, p_false, told=told):
    return sum(chance * told(1 + more, p_false) for more, chance in enumerate(binomial(n - 2, p)))


def by_distributions(n, p, p_false):
    def chances(total, of):
        law = torch.distributions.Binomial(total, torch.tensor(of, dtype=torch.float64))
        return law.log_prob(torch.arange(total + 1.0, dtype=torch.float64)).exp()

    nought = torch.zeros(1, dtype=torch.float64)
    best = torch.zeros((), dtype=torch.float64)
    for more, chance in enumerate(chances(n - 2, p)):
        if_left = torch.cat([nought, chances(more, 1 - p_false)]) if more else torch.tensor([0.0, 1.0])
        if_right = torch.cat([chances(more, p_false), nought]) if more else torch.tensor([1.0, 0.0])
        best = best + chance * torch.maximum(if_left, if_right).sum() / 2
    return best


def sign_by_sign(n, p, p_false):
    """The law of the counts, one place after the other, for either side."""
    best, number = 0.0, {0: 1.0}
    for _ in range(n - 2):
        number = {k: number.get(k, 0) * (1 - p) + number.get(k - 1, 0) * p for k in range(len(number) + 1)}
    for more, chance in number.items():
        laws = []
        for first, up in ((1, 1 - p_false), (0, p_false)):
            law = {first: 1.0}
            for _ in range(more):
                law = {k: law.get(k, 0) * (1 - up) + law.get(k - 1, 0) * up for k in range(len(law) + 2)}
            laws.append(law)
        best += chance * sum(max(law.get(k, 0) for law in laws) for k in range(more + 2)) / 2
    return best


def by_odds(n, p, p_false):
    """Bayes: what the counts say of the side, as a ratio, and how likely the counts are."""

    @cache
    def one(signs):
        total = 0.0
        for left in range(signs + 1):
            if left in (0, signs):
                total += (1 - p_false) ** (signs - 1) / 2
                continue
            if_left = math.comb(signs - 1, left - 1) * (1 - p_false) ** (left - 1) * p_false ** (signs - left)
            odds = left / (signs - left) * ((1 - p_false) / p_false) ** (2 * left - signs)
            total += if_left * (1 + 1 / odds) / 2 * max(odds, 1) / (1 + odds)
        return total

    return accuracy_from_counts(n, p, p_false, told=lambda signs, _: one(signs))


RIGHT = {
    check.hit_rate: [
        hit_rate,
        by_places,
        by_lists,
        lambda scores, *rest: hit_rate(scores.float(), *rest),
        lambda scores, *rest: hit_rate(scores, *rest, instead=-1e9).numpy()[()],
    ],
    check.leak_size: [leak_size, moved_by_loop, moved_cut, moved_by_hand],
    check.edge_weights: [
        edge_weights,
        node_by_node,
        as_a_matrix,
        sorted_first,
        lambda scores, to, fro, n: edge_weights(scores.float(), to, fro, n),
    ],
    check.accuracy_from_counts: [
        accuracy_from_counts,
        by_distributions,
        sign_by_sign,
        by_odds,
        lambda *given: torch.tensor(accuracy_from_counts(*given)),
    ],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


def places(scores, next_items):
    return 1 + (scores > scores.gather(1, next_items[:, None])).sum(1)


def left_out(scores, histories):
    return scores.scatter(1, histories, -torch.inf)


def repeats_taken_away_afterwards(scores, histories, next_items, k):
    hits = 0
    for row, history, right in zip(scores, histories.tolist(), next_items.tolist(), strict=True):
        hits += right in [item for item in row.topk(k).indices.tolist() if item not in history]
    return hits / len(scores)


WRONG[check.hit_rate] = [
    (lambda s, h, x, k: hit_rate(s, h[:, :0], x, k), "items of the history are not recommended"),
    (repeats_taken_away_afterwards, "items of the history are not recommended"),
    (lambda s, h, x, k: hit_rate(s, h[:, -1:], x, k), "not only its last item"),
    (lambda s, h, x, k: hit_rate(s, h[:, :1], x, k), "not only its first item"),
    (lambda s, h, x, k: hit_rate(s, h, x, k + 1), "not one more"),
    (lambda s, h, x, k: (places(left_out(s, h), x) < k).double().mean(), "not one less"),
    (lambda s, h, x, k: (left_out(s, h).argmax(1) == x).double().mean(), "not only the first"),
    (lambda s, h, x, k: hit_rate(s, h, x, k, instead=0.0), "it does not remove the history"),
    (lambda s, h, x, k: hit_rate(s, h, x, k, instead=-1.0), "a score below all others, minus infinity"),
    (lambda s, h, x, k: hit_rate(s, h, x, k, instead=-10.0), "hit_rate is "),
    (lambda s, h, x, k: hit_rate(-s, h, x, k), "the highest scores come first"),
    (lambda s, h, x, k: hit_rate(s, h, x, k) * len(s), "not their share"),
    (lambda s, h, x, k: hit_rate(s, h, x, k) / k, "not by the number of recommended items"),
    (lambda s, h, x, k: (1 / places(left_out(s, h), x)).double().mean(), "counts as much as a hit at the first"),
    (
        lambda s, h, x, k: (1 / places(left_out(s, h), x).double() * (places(left_out(s, h), x) <= k)).mean(),
        "counts as much as a hit at the first",
    ),
    (lambda s, h, x, k: 1 - hit_rate(s, h, x, k), "users without a hit"),
    (lambda s, h, x, k: k / s.shape[1], "hit_rate is "),
    (lambda s, h, x, k: (left_out(s, h).topk(k).indices == x[:, None]).any(1).double(), "must be a number; a tensor"),
    (lambda s, h, x, k: hit_rate(s.scatter_(1, h, -torch.inf), h, x, k), "changed its arguments"),
    (lambda s, h, x, k: f"{hit_rate(s, h, x, k):.0%}", "must be a number, got str"),
    (lambda s, h, x, k: None, "did you forget to return"),
]


def both_runs_alike(histories, table, batch_first, who, new):
    changed = histories.clone()
    before = changed
    changed[who] = new
    return of_others(recommend(changed, table, batch_first) - recommend(before, table, batch_first), who).abs().max()


def across_rows(histories, table, batch_first, who, new, by=1):
    before, after = (
        recommend(histories, table, batch_first),
        recommend(replaced(histories, who, new), table, batch_first),
    )
    return (after - before.roll(by, 0)).abs().max()


def beside_the_changed_one(histories, table, batch_first, who, new):
    before, after = (
        recommend(histories, table, batch_first),
        recommend(replaced(histories, who, new), table, batch_first),
    )
    return of_others(after - before[who], who).abs().max()


def all_replaced(histories, table, batch_first, who, new):
    everyone = new.expand_as(histories)
    return (
        of_others(recommend(everyone, table, batch_first) - recommend(histories, table, batch_first), who).abs().max()
    )


def in_place(histories, table, batch_first, who, new):
    before = recommend(histories, table, batch_first)
    histories[who] = new
    return of_others(recommend(histories, table, batch_first) - before, who).abs().max()


def far(take):
    """Take something of how the others' scores move."""
    return lambda h, t, b, who, new: take(of_others(moves(h, t, b, who, new), who))


WRONG[check.leak_size] = [
    (both_runs_alike, "get the same histories"),
    (lambda *given: moves(*given).abs().max(), "leave out this row"),
    (lambda h, t, b, who, new: moves(h, t, b, who, new)[who].abs().max(), "leave out this row"),
    (lambda *given: moves(*given).abs().mean(), "leave out this row"),
    (far(lambda other: other.min()), "take the absolute value"),
    (far(lambda other: other.abs().mean()), "not the mean"),
    (far(lambda other: other.abs().amax(1).mean()), "not the mean"),
    (far(lambda other: other.square().mean().sqrt()), "not the mean"),
    (far(lambda other: other.norm()), "not the norm"),
    (far(lambda other: other.norm(dim=1).max()), "not the norm"),
    (far(lambda other: other[0].abs().max()), "not only the first user"),
    (lambda h, t, b, who, new: moves(h, t, b, who, new)[who + 1].abs().max(), "not only the next user"),
    (across_rows, "not with another user's"),
    (lambda *given: across_rows(*given, by=-1), "not with another user's"),
    (beside_the_changed_one, "not with another user's"),
    (all_replaced, "only one user gets the new history"),
    (
        lambda h, t, b, who, new: of_others(moves(h, t, b, who + 1, new), who).abs().max(),
        "the first user has number 0",
    ),
    (lambda h, t, b, who, new: leak_size(h, t, b, who + 1, new), "the first user has number 0"),
    (lambda h, t, b, who, new: leak_size(h, t, False, who, new), "pass batch_first on as it is"),
    (lambda h, t, b, who, new: leak_size(h, t, True, who, new), "is batch_first passed on"),
    (lambda h, t, b, who, new: leak_size(h, t, b, who, new) + 0.1, "leak_size is .*, wanted "),
    (lambda *given: bool(leak_size(*given) > 0), "leak_size is 1, wanted "),
    (far(lambda other: other.abs().amax(1)), "must be a number; a tensor"),
    (in_place, "changed its arguments"),
    (lambda *given: None, "did you forget to return"),
]


def from_a_peak(scores, to, fro, n, peak, least=0.0):
    exps = (scores - peak).exp()
    return exps / (torch.zeros(n, dtype=scores.dtype).index_add(0, to, exps)[to] + least)


def peaks(scores, to, n, start=-torch.inf):
    return torch.full((n,), start, dtype=scores.dtype).scatter_reduce(0, to, scores, "amax")[to]


def means(scores, to, n):
    return torch.zeros(n, dtype=scores.dtype).scatter_reduce(0, to, scores, "mean", include_self=False)[to]


def runs(scores, to, fro, n):
    lengths = torch.unique_consecutive(to, return_counts=True)[1].tolist()
    return torch.cat([part.softmax(0) for part in scores.split(lengths)])


def with_zeros(scores, to, fro, n):
    pairs = torch.zeros((n, n), dtype=scores.dtype)
    pairs[to, fro] = scores
    return pairs.softmax(-1)[to, fro]


def degrees(to):
    return (to[:, None] == to).sum(1)


def other_sum(scores, to, fro, n):
    exps = scores.exp()
    return exps / torch.zeros(n, dtype=scores.dtype).index_add(0, fro, exps)[fro]


def peak_of_the_other(scores, to, fro, n):
    exps = (scores - peaks(scores, to, n)).exp()
    return exps / torch.zeros(n, dtype=scores.dtype).index_add(0, fro, exps)[fro]


WRONG[check.edge_weights] = [
    (lambda s, to, fro, n: s.softmax(0), "not the weights of all edges"),
    (lambda s, to, fro, n: from_a_peak(s, to, fro, n, s.max()), "is not finite: subtract from each"),
    (lambda s, to, fro, n: from_a_peak(s, to, fro, n, 0.0), "is not finite: subtract from each"),
    (lambda s, to, fro, n: from_a_peak(s, to, fro, n, peaks(s, to, n, start=0.0)), "is not finite"),
    (lambda s, to, fro, n: from_a_peak(s, to, fro, n, means(s, to, n)), "is not finite: .*not the mean"),
    (lambda s, to, fro, n: from_a_peak(s, to, fro, n, -peaks(-s, to, n)), "is not finite: subtract from each"),
    (lambda s, to, fro, n: from_a_peak(s, to, fro, n, s.max(), least=1e-16), "subtract the largest score of each node"),
    (
        lambda s, to, fro, n: from_a_peak(s, to, fro, n, peaks(s, to, n, start=0.0), least=1e-16),
        "subtract the largest score of each node",
    ),
    (lambda s, to, fro, n: s.exp(), "divide by the sum over the node's neighbours"),
    (lambda s, to, fro, n: (s - peaks(s, to, n)).exp(), "divide by the sum over the node's neighbours"),
    (lambda s, to, fro, n: s.exp() / degrees(to), "not by their number"),
    (lambda s, to, fro, n: (s - peaks(s, to, n)).exp() / degrees(to), "not by their number"),
    (lambda s, to, fro, n: edge_weights(s, fro, to, n), "not of the key node"),
    (other_sum, "not of the key node"),
    (peak_of_the_other, "edge_weights has the right shape and wrong values"),
    (with_zeros, "a pair without an edge has weight 0"),
    (runs, "need not be consecutive"),
    (lambda s, to, fro, n: 1 / degrees(to), "these weights are uniform"),
    (lambda s, to, fro, n: edge_weights(-s, to, fro, n), "the highest score has the largest weight"),
    (lambda s, to, fro, n: edge_weights(s, to, fro, n)[to.argsort()], "wrong values"),
    (lambda s, to, fro, n: edge_weights(s.clamp(-100, 100), to, fro, n), "wrong values"),
    (lambda s, to, fro, n: edge_weights(s, to, fro, n)[:, None], "must have shape"),
    (
        lambda s, to, fro, n: torch.zeros(n, n, dtype=s.dtype).index_put((to, fro), edge_weights(s, to, fro, n)),
        "must have shape",
    ),
    (lambda s, to, fro, n: edge_weights(s, to, fro, n).tolist(), "must be a tensor, got list"),
    (lambda s, to, fro, n: edge_weights(s.sub_(peaks(s, to, n)), to, fro, n), "changed its arguments"),
    (lambda s, to, fro, n: None, "did you forget to return"),
]


def summed(chances, each, first=0):
    return sum(chance * each(first + k) for k, chance in enumerate(chances))


def by_majority(signs, p_false):
    """The side of which there are more; a coin where there are as many."""
    if_left = either_side(signs, p_false)[0]
    return sum(chance * (1 if 2 * k > signs else 0.5 if 2 * k == signs else 0) for k, chance in enumerate(if_left))


def drawn(signs, p_false):
    return sum((a * a + b * b) / (a + b) for a, b in zip(*either_side(signs, p_false), strict=True)) / 2


def none_true(signs, p_false):
    return sum(max(pair) for pair in zip(binomial(signs, p_false), binomial(signs, 1 - p_false), strict=True)) / 2


WRONG[check.accuracy_from_counts] = [
    (lambda n, p, p_false: accuracy_from_counts(max(n, 4), p, p_false), "accuracy_from_counts is "),
    (
        lambda n, p, p_false: accuracy_from_counts(n, p, p_false, told=by_majority),
        "the majority is not always the best choice",
    ),
    (lambda n, p, p_false: accuracy_from_counts(n, p, p_false, told=none_true), "and it is always true"),
    (lambda n, p, p_false: summed(binomial(n - 1, p), lambda k: none_true(k, p_false)), "and it is always true"),
    (lambda n, p, p_false: accuracy_from_counts(n + 1, p, p_false, told=none_true), "and it is always true"),
    (
        lambda n, p, p_false: summed(binomial(n - 1, p), lambda k: told(k, p_false) if k else 0.5),
        "one position certainly has a sign",
    ),
    (lambda n, p, p_false: accuracy_from_counts(n + 1, p, p_false), "only n - 2 are random"),
    (lambda n, p, p_false: accuracy_from_counts(n + 2, p, p_false), "there is no sign at the junction"),
    (lambda n, p, p_false: 2 * accuracy_from_counts(n, p, p_false), "with probability one half"),
    (lambda n, p, p_false: told(1 + int((n - 2) * p), p_false), "do not take its mean"),
    (lambda n, p, p_false: told(n - 1, p_false), "not every position has one"),
    (
        lambda n, p, p_false: accuracy_from_counts(n, p, 1 - p_false),
        "the probability that a later sign shows the wrong side",
    ),
    (lambda n, p, p_false: accuracy_from_counts(n, p, p_false, told=drawn), "do not sample the side"),
    (lambda n, p, p_false: 1.0, "which sign came first"),
    (lambda n, p, p_false: accuracy_from_counts(n, p, p_false) - 0.5, "not its difference from one half"),
    (lambda n, p, p_false: 1 - accuracy_from_counts(n, p, p_false), "not the error rate"),
    (lambda n, p, p_false: max(p_false, 1 - p_false), "accuracy_from_counts is "),
    (lambda n, p, p_false: accuracy_from_counts(n, p, max(p_false, 0.5)), ", wanted "),
    (lambda n, p, p_false: [accuracy_from_counts(n, p, p_false)], "must be a number, got list"),
    (lambda n, p, p_false: torch.tensor([accuracy_from_counts(n, p, p_false)]), "a tensor must have shape"),
    (lambda n, p, p_false: None, "did you forget to return"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def by_a_longer_list(scores, histories, next_items, k):
    """Takes as many items more as the history is long, which may be more than there are."""
    best = scores.topk(k + histories.shape[1]).indices
    hits = 0
    for items, history, right in zip(best.tolist(), histories.tolist(), next_items.tolist(), strict=True):
        hits += right in [item for item in items if item not in history][:k]
    return hits / len(scores)


WRONG[check.hit_rate] += [(by_a_longer_list, "selected index k out of range")]
WRONG[check.edge_weights] += [(lambda s, to, fro, n: edge_weights(s, to, fro, n).squeeze(), "must have shape")]
