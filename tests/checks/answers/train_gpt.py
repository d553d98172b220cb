"""Correct and wrong answers to the exercises on training a GPT, the wrong ones with the message they must get."""

from itertools import pairwise

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, softmax

from lessons_lib.checks import train_gpt as check

# --- correct answers --------------------------------------------------------------------------------------------------


def inputs_and_targets(tokens, starts, n):
    rows = tokens[torch.tensor(starts)[:, None] + torch.arange(n + 1)]
    return rows[:, :-1], rows[:, 1:]


def by_slices(tokens, starts, n):
    inputs = torch.stack([tokens[s : s + n] for s in starts])
    return [inputs, torch.stack([tokens[s + 1 : s + 1 + n] for s in starts])]


def by_windows(tokens, starts, n):
    rows = tokens.unfold(0, n + 1, 1)[starts]
    return rows[..., :n], rows[..., 1:]


def merge(tokens, merges):
    for i, pair in enumerate(merges):
        joined = []
        for token in tokens:
            if joined and (joined[-1], token) == pair:
                joined[-1] = 256 + i
            else:
                joined.append(token)
        tokens = joined
    return tokens


def by_first_merge(tokens, merges):
    """The pair whose merge comes first is joined, as long as there is one, as other tokenisers do it."""
    rank = {pair: i for i, pair in reversed(list(enumerate(merges)))}
    tokens = list(tokens)
    while known := rank.keys() & pairwise(tokens):
        best = min(known, key=rank.get)
        place = [*pairwise(tokens)].index(best)
        tokens[place : place + 2] = [256 + rank[best]]
    return tokens


def by_letters(tokens, merges):
    word = "".join(map(chr, tokens))
    for i, pair in enumerate(merges):
        word = word.replace(chr(pair[0]) + chr(pair[1]), chr(256 + i))
    return [ord(letter) for letter in word]


def by_recursion(tokens, merges, made=256):
    if not merges:
        return tuple(tokens)
    left, right = merges[0]
    out, i = [], 0
    while i < len(tokens):
        both = i + 1 < len(tokens) and tokens[i] == left and tokens[i + 1] == right
        out.append(made if both else tokens[i])
        i += 1 + both
    return by_recursion(out, merges[1:], made + 1)


def interpolated_bigrams(counts, discount, unigram):
    total = counts.sum(-1, keepdim=True)
    q = (counts - discount).clamp_min(0) + discount * (counts > 0).sum(-1, keepdim=True) * unigram
    return torch.where(total > 0, q / total.clamp_min(1), unigram)


def in_a_loop(counts, discount, unigram):
    rows = []
    for row in counts:
        if row.sum() == 0:
            rows.append(unigram.clone())
            continue
        seen = (row > 0).sum()
        rows.append(
            torch.stack(
                [(max(c - discount, 0) + discount * seen * b) / row.sum() for c, b in zip(row, unigram, strict=True)]
            )
        )
    return torch.stack(rows)


def saved_first(counts, discount, unigram):
    kept = torch.relu(counts - discount)
    total = counts.sum(1)
    share = torch.where(total > 0, kept.sum(1) / total.clamp(min=1), 0.0)
    return kept / total.clamp(min=1)[:, None] + (1 - share)[:, None] * unigram


def min_p(logits, p, temperature):
    q = (logits / temperature).softmax(-1)
    q = q * (q >= p * q.max(-1, keepdim=True).values)
    return q / q.sum(-1, keepdim=True)


def by_logits(logits, p, temperature):
    z = logits / temperature
    low = z < z.amax(-1, keepdim=True) + torch.log(torch.tensor(p, dtype=torch.float64))
    return softmax(z.masked_fill(low, -torch.inf), -1)


def row_by_row(logits, p, temperature):
    out = torch.zeros_like(logits)
    for i, row in enumerate(logits):
        q = torch.softmax(row / temperature, 0)
        kept = [j for j in range(len(q)) if q[j] >= p * max(q)]
        out[i, kept] = q[kept] / q[kept].sum()
    return out


def model(tokens, settings):
    """The notebook's model."""
    embedding, first, second, centre = settings
    x = embedding[tokens]
    x = x - centre * x.mean(0)
    for mask in (first, second):
        mask = mask[: len(tokens), : len(tokens)]
        x = x + scaled_dot_product_attention(x[None], x[None], x[None], mask)[0]
    return x @ embedding.T


def changes(tokens, settings):
    """How far the logits at each position (row) move if each token (column) is replaced."""
    moved = []
    for j in range(len(tokens)):
        other = tokens.clone()
        other[j] = (tokens[j] + 1) % len(settings[0])
        moved.append((model(other, settings) - model(tokens, settings)).abs().amax(-1))
    return torch.stack(moved, 1)


def leaky_positions(tokens, settings):
    return (changes(tokens, settings) > 1e-9).triu(1).any(1)


def by_replacing_the_rest(tokens, settings):
    """All later tokens at once, once for each position."""
    leaky = []
    for i in range(len(tokens)):
        other = tokens.clone()
        other[i + 1 :] = (other[i + 1 :] + 1) % len(settings[0])
        difference = model(other, settings)[i] - model(tokens, settings)[i]
        leaky.append(bool(difference.abs().max() > 1e-9))
    return torch.tensor(leaky)


def by_prefixes(tokens, settings):
    """The text up to a position must give the same logits as the whole text."""
    whole = model(tokens, settings)
    short = torch.stack([model(tokens[: i + 1], settings)[-1] for i in range(len(tokens))])
    return ~torch.isclose(whole, short, rtol=0, atol=1e-9).all(-1)


def leaks_in_single_precision(tokens, settings):
    return leaky_positions(tokens, [settings[0].float(), *settings[1:]])


def mean_loss(weights, inputs, targets):
    """The notebook's loss."""
    logits = torch.tanh(weights[0][inputs]) @ weights[1]
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def n_targets(batch):
    return int((batch[1] != -100).sum())


def gradients(weights, batch):
    copies = [w.clone().requires_grad_() for w in weights]
    return torch.autograd.grad(mean_loss(copies, *batch), copies)


def clipped(gradient, max_norm):
    length = sum(float(g.square().sum()) for g in gradient) ** 0.5
    return [g * min(1.0, max_norm / length) for g in gradient]


def descend(weights, gradient, lr):
    return [w - lr * g for w, g in zip(weights, gradient, strict=True)]


def training_step(weights, micro_batches, lr, max_norm):
    """With clip_grad_norm_ of PyTorch."""
    weights = [w.clone().requires_grad_() for w in weights]
    total = sum(map(n_targets, micro_batches))
    for batch in micro_batches:
        if n_targets(batch):
            (n_targets(batch) / total * mean_loss(weights, *batch)).backward()
    torch.nn.utils.clip_grad_norm_(weights, max_norm)
    return [(w - lr * w.grad).detach() for w in weights]


def accumulated(weights, micro_batches, factor=lambda batch: n_targets(batch)):
    total = [torch.zeros_like(w) for w in weights]
    for batch in micro_batches:
        if n_targets(batch):
            total = [t + factor(batch) * g for t, g in zip(total, gradients(weights, batch), strict=True)]
    return total


def step_by_hand(weights, micro_batches, lr, max_norm):
    """A sum over all targets, divided at the end."""
    total = sum(map(n_targets, micro_batches))
    mean = [g / total for g in accumulated(weights, micro_batches)]
    return tuple(descend(weights, clipped(mean, max_norm), lr))


def step_with_an_optimiser(weights, micro_batches, lr, max_norm):
    weights = [torch.nn.Parameter(w.clone()) for w in weights]
    sgd = torch.optim.SGD(weights, lr=lr)
    kept = [batch for batch in micro_batches if n_targets(batch)]
    for batch in kept:
        (mean_loss(weights, *batch) * n_targets(batch)).backward()
    for w in weights:
        w.grad /= sum(map(n_targets, kept))
    torch.nn.utils.clip_grad_norm_(weights, max_norm)
    sgd.step()
    return [w.data for w in weights]


def step_of_the_whole_batch(weights, micro_batches, lr, max_norm):
    """Every token as a text of its own, in one batch."""
    inputs, targets = (torch.cat([batch[i].flatten() for batch in micro_batches])[:, None] for i in (0, 1))
    return descend(weights, clipped(gradients(weights, (inputs, targets)), max_norm), lr)


def step_with_padding_alone(weights, micro_batches, lr, max_norm):
    """The gradient of a mean over no target is zero."""
    shares = [n_targets(batch) / sum(map(n_targets, micro_batches)) for batch in micro_batches]
    parts = [gradients(weights, batch) for batch in micro_batches]
    mean = [sum(f * g for f, g in zip(shares, each, strict=True)) for each in zip(*parts, strict=True)]
    length = sum(float(g.square().sum()) for g in mean) ** 0.5
    return descend(weights, [g * min(1.0, max_norm / length) for g in mean], lr)


def step_in_single_precision(weights, *rest):
    return training_step([w.float() for w in weights], *rest)


RIGHT = {
    check.leaky_positions: [
        leaky_positions,
        by_replacing_the_rest,
        by_prefixes,
        leaks_in_single_precision,
    ],
    check.training_step: [
        training_step,
        step_by_hand,
        step_with_an_optimiser,
        step_of_the_whole_batch,
        step_with_padding_alone,
        step_in_single_precision,
    ],
    check.inputs_and_targets: [
        inputs_and_targets,
        by_slices,
        by_windows,
        lambda *given: tuple(part.int() for part in inputs_and_targets(*given)),
    ],
    check.merge: [
        merge,
        by_first_merge,
        by_letters,
        by_recursion,
        lambda *given: torch.tensor(merge(*given)),
    ],
    check.interpolated_bigrams: [
        interpolated_bigrams,
        in_a_loop,
        saved_first,
        lambda *given: interpolated_bigrams(*given).float(),
    ],
    check.min_p: [
        min_p,
        by_logits,
        row_by_row,
        lambda *given: min_p(*given).float(),
        lambda z, *rest: min_p(z.float(), *rest),
    ],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------


def from_changes(way):
    """Another reading of the table of changes: rows are positions, columns are the replaced tokens."""
    return lambda tokens, settings: way(changes(tokens, settings) > 1e-9)


def all_before_a_leak(moved):
    leaking = moved.triu(1).any(0)
    return torch.tensor([bool(leaking[i + 1 :].any()) for i in range(len(moved))])


def first_leak(moved):
    leaky = moved.triu(1).any(1)
    return leaky & (leaky.cumsum(0) == 1)


def last_token_replaced(moved):
    leaky = moved[:, -1].clone()
    leaky[-1] = False
    return leaky


WRONG = {}

WRONG[check.leaky_positions] = [
    (from_changes(lambda moved: moved.any(1)), "only later tokens are leaks"),
    (from_changes(lambda moved: moved.triu().any(1)), "only later tokens are leaks"),
    (from_changes(lambda moved: moved.tril(-1).any(1)), "an earlier token is no leak"),
    (from_changes(lambda moved: torch.cat([moved.diagonal(1), torch.tensor([False])])), "not only the next one"),
    (from_changes(last_token_replaced), "not only the last one"),
    (from_changes(lambda moved: moved.triu(1).any(0)), "not the token that was changed"),
    (from_changes(all_before_a_leak), "compare each position"),
    (from_changes(first_leak), "not only the first one"),
    (lambda *given: ~leaky_positions(*given), "True marks a leak"),
    (lambda tokens, settings: torch.zeros(len(tokens)).bool(), "the test finds nothing"),
    (lambda tokens, settings: torch.ones(len(tokens)).bool(), "only later tokens are leaks"),
    (lambda *given: leaky_positions(*given).roll(1), "wrong values"),
    (lambda *given: leaky_positions(*given).any(), "must have shape"),
    (lambda *given: leaky_positions(*given).double(), "must be a Boolean tensor"),
    (lambda *given: leaky_positions(*given).nonzero(), "must be a Boolean tensor"),
    (lambda *given: None, "did you forget to return"),
]


def weighting(factor):
    """Another weight of each micro-batch; ``factor`` gets the batch and all batches."""

    def answer(weights, micro_batches, lr, max_norm):
        gradient = accumulated(weights, micro_batches, lambda batch: factor(batch, micro_batches))
        return descend(weights, clipped(gradient, max_norm), lr)

    return answer


def share_of(size):
    return weighting(lambda batch, batches: size(batch) / sum(map(size, batches)))


def true_share(batch, batches):
    return n_targets(batch) / sum(map(n_targets, batches))


def clipping(way):
    """Another treatment of the right gradient."""

    def answer(weights, micro_batches, lr, max_norm):
        gradient = accumulated(weights, micro_batches, lambda batch: true_share(batch, micro_batches))
        return descend(weights, way(gradient, max_norm), lr)

    return answer


def clip_each_batch(weights, micro_batches, lr, max_norm):
    new = weights
    for batch in micro_batches:
        if n_targets(batch):
            part = clipped(gradients(weights, batch), max_norm)
            new = descend(new, part, lr * true_share(batch, micro_batches))
    return new


def step_after_each(weights, micro_batches, lr, max_norm):
    for batch in micro_batches:
        if n_targets(batch):
            part = [true_share(batch, micro_batches) * g for g in gradients(weights, batch)]
            weights = descend(weights, clipped(part, max_norm), lr)
    return weights


def in_place(weights, micro_batches, lr, max_norm):
    new = training_step(weights, micro_batches, lr, max_norm)
    for w, after in zip(weights, new, strict=True):
        w.copy_(after)
    return weights


def uphill(weights, micro_batches, lr, max_norm):
    return training_step(weights, micro_batches, -lr, max_norm)


WRONG[check.training_step] = [
    (weighting(lambda batch, batches: 1 / len(batches)), "more weight"),
    (weighting(lambda batch, batches: 1.0), "not a sum of the micro-batches' means"),
    (weighting(lambda batch, batches: n_targets(batch)), "divide by their number"),
    (share_of(lambda batch: len(batch[1])), "not of rows"),
    (share_of(lambda batch: batch[1].numel()), "padding does not count"),
    (weighting(lambda batch, batches: float(batch is batches[-1])), "one of them alone"),
    (weighting(lambda batch, batches: float(batch is batches[0])), "one of them alone"),
    (step_after_each, "not one after each"),
    (clipping(lambda gradient, max_norm: gradient), "the gradient is not clipped"),
    (clip_each_batch, "not the gradient of each micro-batch"),
    (clipping(lambda gradient, max_norm: [clipped([g], max_norm)[0] for g in gradient]), "not of each matrix"),
    (clipping(lambda gradient, max_norm: [g.clamp(-max_norm, max_norm) for g in gradient]), "not each entry"),
    (clipping(lambda gradient, max_norm: clipped([1e6 * g for g in gradient], max_norm)), "shorter than max_norm"),
    (uphill, "against the gradient"),
    (lambda w, b, lr, m: training_step(w, b, 1.0, m), "the learning rate is missing"),
    (lambda w, b, lr, m: [x.clone() for x in w], "these are the old weights"),
    (lambda w, b, lr, m: [(x - y) / lr for x, y in zip(w, training_step(w, b, lr, m), strict=True)], "not the grad"),
    (in_place, "changed its arguments"),
    (lambda *given: [1.001 * w for w in training_step(*given)], "the new embedding"),
    (lambda *given: training_step(*given)[0], "return the new weights"),
    (lambda *given: [w.T for w in training_step(*given)], "must have shape"),
    (lambda *given: None, "did you forget to return"),
]


def cut(tokens, starts, n, first=0, second=1):
    return tuple(torch.stack([tokens[s + shift : s + shift + n] for s in starts]) for shift in (first, second))


WRONG[check.inputs_and_targets] = [
    (lambda t, s, n: cut(t, s, n, 0, 0), "the targets equal the inputs"),
    (lambda t, s, n: cut(t, s, n, 0, -1), "the shift has the wrong direction"),
    (lambda t, s, n: cut(t, s, n, 1, 0), "inputs and targets are exchanged"),
    (lambda t, s, n: cut(t, s, n, -1, 0), "a row begins at its start"),
    (lambda t, s, n: (cut(t, s, n)[0], cut(t, s, n)[0].roll(-1, 1)), "not the first token of the row"),
    (lambda t, s, n: (t[: len(s) * n].reshape(-1, n), cut(t, s, n)[1]), "each row must begin at its start"),
    (lambda t, s, n: cut(t, [begin for begin in s if begin + n + 1 < len(t)] or s, n), "one row is missing"),
    (lambda t, s, n: cut(t, [min(begin, len(t) - n - 2) for begin in s], n), "right shape and wrong values"),
    (lambda t, s, n: cut(t, [max(1, begin) for begin in s], n), "right shape and wrong values"),
    (lambda t, s, n: tuple(part.squeeze() for part in cut(t, s, n)), "inputs must have shape"),
    (lambda t, s, n: cut(t, s, n - 1), "inputs must have shape"),
    (lambda t, s, n: (cut(t, s, n)[0], cut(t, s, n - 1)[1]), "targets must have shape"),
    (lambda t, s, n: (cut(t, s, n)[0], cut(t, s, n)[1][:, -1]), "targets must have shape"),
    (lambda t, s, n: (cut(t, s, n)[0], cut(t, s, n)[1].flip(1)), "right shape and wrong values"),
    (lambda t, s, n: cut(t, s, n)[0], "got one Tensor"),
    (lambda t, s, n: (*cut(t, s, n), n), "got 3 things"),
    (lambda t, s, n: [part.tolist() for part in cut(t, s, n)], "inputs must be a tensor, got list"),
    (lambda t, s, n: None, "did you forget to return"),
    (lambda t, s, n: (t.zero_(), t), "changed its arguments"),
]


def joined(tokens, merges, *, made=lambda i: 256 + i, step=2, order=lambda merges: enumerate(merges), once=False):
    tokens = list(tokens)
    for i, pair in order(merges):
        out, place, found = [], 0, False
        while place < len(tokens):
            here = tuple(tokens[place : place + 2]) == pair and not (once and found)
            out.append(made(i) if here else tokens[place])
            place, found = place + (step if here else 1), found or here
        tokens = out
    return tokens


def by_longest(tokens, merges):
    """From left to right the longest token that the merges can make: another algorithm."""
    spelled = {i: [i] for i in range(256)}
    for i, (left, right) in enumerate(merges):
        spelled[256 + i] = spelled[left] + spelled[right]
    out, place = [], 0
    while place < len(tokens):
        fits = [t for t, s in spelled.items() if s == tokens[place : place + len(s)]]
        out.append(max(fits, key=lambda t: (len(spelled[t]), -t)))
        place += len(spelled[out[-1]])
    return out


def swapped(merges):
    return [pair[::-1] for pair in merges]


WRONG[check.merge] = [
    (lambda t, m: list(t), "no merge was applied"),
    (lambda t, m: joined(t, m, order=lambda m: reversed(list(enumerate(m)))), "in the order in which they were"),
    (lambda t, m: joined(t, m, once=True), "not only the first"),
    (lambda t, m: joined(t[::-1], swapped(m))[::-1], "from left to right"),
    (lambda t, m: joined(t, m, step=1), "both tokens of a pair must be replaced"),
    (lambda t, m: joined(t, m, made=lambda i: 257 + i), "makes the token 256"),
    (lambda t, m: joined(t, m, made=lambda i: i), "makes the token 256"),
    (lambda t, m: joined(t, [pair if max(pair) < 256 else None for pair in m]), "a later merge can also join"),
    (lambda t, m: joined(t, swapped(m)), "the order of a pair matters"),
    (by_longest, "do not search for the longest"),
    (lambda t, m: merge(t, m[:-1]), "wanted"),
    (lambda t, m: merge(t, m)[1:], "wanted"),
    (lambda t, m: [float("nan") for _ in merge(t, m)], "wanted"),
    (lambda t, m: " ".join(map(str, merge(t, m))), "must return a list, got str"),
    (lambda t, m: [(token,) for token in merge(t, m)], "must be a number, got tuple"),
    (lambda t, m: len(merge(t, m)), "must return a list, got int"),
    (lambda t, m: t.clear() or t, "changed its arguments"),
    (lambda t, m: None, "did you forget to return"),
]


def parts(counts, discount):
    total = counts.sum(-1, keepdim=True)
    whole = total.clamp_min(1)
    kinds = (counts > 0).sum(-1, keepdim=True)
    return total, (counts - discount).clamp_min(0) / whole, discount * kinds / whole


def with_rows(way):
    """A wrong interpolation; contexts that were never seen are right."""

    def answer(counts, discount, unigram):
        total, taken, saved = parts(counts, discount)
        return torch.where(total > 0, way(counts, taken, saved, unigram, total.clamp_min(1), discount), unigram)

    return answer


def unseen_as(row):
    """A correct answer except for contexts that were never seen."""

    def answer(counts, discount, unigram):
        return torch.where(
            counts.sum(-1, keepdim=True) > 0, interpolated_bigrams(counts, discount, unigram), row(unigram)
        )

    return answer


def by_columns(counts, discount, unigram, *, kinds=1, totals=1):
    """A correct answer except for the axis of the different words, or of the total."""
    total = counts.sum(totals, keepdim=True)
    q = (counts - discount).clamp_min(0) + discount * (counts > 0).sum(kinds, keepdim=True) * unigram
    return torch.where(total > 0, q / total.clamp_min(1), unigram)


WRONG[check.interpolated_bigrams] = [
    (unseen_as(torch.zeros_like), "after a word that was never seen"),
    (unseen_as(lambda unigram: torch.full_like(unigram, 1 / len(unigram))), "after a word that was never seen"),
    (
        lambda c, d, b: ((c - d).clamp_min(0) + d * (c > 0).sum(-1, keepdim=True) * b) / c.sum(-1, keepdim=True),
        "after a word that was never seen",
    ),
    (with_rows(lambda c, t, s, b, n, d: t), "the saved probability is missing"),
    (with_rows(lambda c, t, s, b, n, d: t + s / len(b)), "by the unigram probabilities, not evenly"),
    (with_rows(lambda c, t, s, b, n, d: c / n), "the discount is missing"),
    (with_rows(lambda c, t, s, b, n, d: (c - d) / n + s * b), "must not be subtracted from a count of zero"),
    (with_rows(lambda c, t, s, b, n, d: t + d * len(b) / n * b), "not on V"),
    (with_rows(lambda c, t, s, b, n, d: t + d / n * b), "the discount times the number of different words"),
    (with_rows(lambda c, t, s, b, n, d: t + d * b), "the discount times the number of different words"),
    (with_rows(lambda c, t, s, b, n, d: (t + s * b) * n), "divide by the number of times"),
    (lambda c, d, b: interpolated_bigrams(c.T, d, b), "rows and columns are exchanged"),
    (lambda c, d, b: by_columns(c, d, b, kinds=0), "u is the number of different words seen after"),
    (lambda c, d, b: by_columns(c, d, b, totals=0), "the number of times the context was seen: the sum of its row"),
    (lambda c, d, b: by_columns(c, d, b, kinds=0, totals=0), "rows and columns are exchanged"),
    (lambda c, d, b: interpolated_bigrams(c, d, b).T, "right shape and wrong values"),
    (lambda c, d, b: interpolated_bigrams(c, d, b)[0], "must have shape"),
    (lambda c, d, b: interpolated_bigrams(c, d, b).tolist(), "must be a tensor, got list"),
    (lambda c, d, b: interpolated_bigrams(c.sub_(d), d, b), "changed its arguments"),
    (lambda c, d, b: None, "did you forget to return"),
]


def kept(logits, p, temperature, stays=None, shown=None):
    q = (logits / temperature).softmax(-1)
    stays = q >= p * q.amax(-1, keepdim=True) if stays is None else stays
    shown = torch.where(stays, q if shown is None else shown, 0.0)
    return shown / shown.sum(-1, keepdim=True)


def nucleus(z, p, temperature):
    q, order = (z / temperature).softmax(-1).sort(-1, descending=True)
    inside = (q.cumsum(-1) - q < p).gather(-1, order.argsort(-1))
    return kept(z, p, temperature, inside)


def filled_with(low, z, p, temperature):
    q = (z / temperature).softmax(-1)
    return (z / temperature).masked_fill(q < p * q.amax(-1, keepdim=True), low).softmax(-1)


WRONG[check.min_p] = [
    (
        lambda z, p, t: (lambda q: q * (q >= p * q.amax(-1, keepdim=True)))((z / t).softmax(-1)),
        "must sum to one",
    ),
    (
        lambda z, p, t: kept(z, p, t, z.softmax(-1) >= p * z.softmax(-1).amax(-1, keepdim=True)),
        "compare the probabilities at the temperature",
    ),
    (lambda z, p, t: min_p(z, p, 1.0), "the temperature is missing"),
    (lambda z, p, t: kept(z, p, t, shown=z.softmax(-1)), "must also be at the temperature"),
    (lambda z, p, t: kept(z, p, t, (z / t).softmax(-1) >= p), "not p itself"),
    (nucleus, "this is top-p"),
    (lambda z, p, t: kept(z, p, t, (z / t).softmax(-1) >= p * (z / t).softmax(-1).max()), "of the same row"),
    (lambda z, p, t: min_p(z, p, 1 / t), "the temperature divides the logits"),
    (
        lambda z, p, t: kept(
            z, p, t, (z / t).softmax(-1) < p * (z / t).softmax(-1).amax(-1, keepdim=True)
        ).nan_to_num(),
        "the kept and the removed words are exchanged",
    ),
    (lambda z, p, t: (z / t).softmax(-1), "no word was removed"),
    (lambda z, p, t: min_p(z, p, t * t), "once, not twice"),
    (lambda z, p, t: min_p(z.T, p, t).T, "along the last axis"),
    (lambda z, p, t: filled_with(0.0, z, p, t), "needs the logit minus infinity"),
    (lambda z, p, t: filled_with(-10.0, z - z.amax(-1, keepdim=True), p, t), "where it must be 0"),
    (
        lambda z, p, t: kept(z, p, t, (z / t).softmax(-1) >= (1 - p) * (z / t).softmax(-1).amax(-1, True)),
        "not 1 - p times",
    ),
    (lambda z, p, t: min_p(z, p, t).roll(1, -1), "wrong values"),
    (lambda z, p, t: min_p(z, p, t)[0], "must have shape"),
    (lambda z, p, t: z.exp() / z.exp().sum(-1, keepdim=True) * torch.nan, "holds NaN"),
    (lambda z, p, t: None, "did you forget to return"),
    (lambda z, p, t: min_p(z.div_(t), p, 1.0), "changed its argument"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def by_text(tokens, merges):
    """Replaces in a text of numbers, where 1, 17 also stands in 21, 17."""
    word = ",".join(map(str, tokens))
    for i, (left, right) in enumerate(merges):
        word = word.replace(f"{left},{right}", str(256 + i))
    return [int(token) for token in word.split(",")]


WRONG[check.merge] += [(by_text, "merge is ")]
