"""Checks of the exercises on training a GPT."""

from collections.abc import Callable
from itertools import combinations, pairwise

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from lessons_lib.checks import ask, check, compare, compare_mask, normal, number

Settings = list[Tensor | float]
MicroBatches = list[tuple[Tensor, Tensor]]


@check
def inputs_and_targets(
    answer: Callable[[Tensor, list[int], int], tuple[Tensor, Tensor]], *, seed: int = 0, cases: int = 5
) -> None:
    """Check the split of a long text into inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n = (torch.randperm(4, generator=generator)[:2] + 3).tolist()
        b, n = {2: (1, n), 3: (b, 1)}.get(case % 5, (b, n))
        length = int(torch.randint(30, 50, (), generator=generator))
        tokens = torch.randperm(length, generator=generator)
        starts = torch.randint(1, length - n - 1, (b,), generator=generator).tolist()
        starts[0] = 0 if case % 5 == 4 else starts[0]
        starts[-1] = length - n - 1  # the last target is the last token of the text
        where = f"a text of {length}, starts={starts}, n={n}"
        returns = "the pair (inputs, targets)"
        inputs, targets = ask("inputs_and_targets", answer, tokens, starts, n, where=where, returns=returns, parts=2)
        rows = torch.stack([tokens[start : start + n + 1] for start in starts]).double()
        right, later = rows[:, :-1], rows[:, 1:]
        before = torch.stack([tokens.roll(1)[start : start + n] for start in starts]).double()
        cut_off = isinstance(inputs, Tensor) and inputs.shape == (b - 1, n)
        assert not cut_off, (
            f"one row is missing: after the last start the text still has {n} inputs and one more token ({where})"
        )
        compare(
            "inputs",
            inputs,
            right,
            {
                "inputs and targets are exchanged: the inputs begin at the starts": later,
                "a row begins at its start, not one token earlier": before,
                "the rows are consecutive pieces of the text: each row must begin at its start": tokens[: b * n]
                .reshape(b, n)
                .double(),
            },
            where=where,
        )
        compare(
            "targets",
            targets,
            later,
            {
                "the targets equal the inputs: shift the targets by one, or the model learns to copy its input": right,
                "the shift has the wrong direction: the target is the next token, not the previous one": before,
                "the last target is the next token of the text, not the first token of the row": right.roll(-1, 1),
            },
            where=where,
        )


@check
def merge(answer: Callable[[list[int], list[tuple[int, int]]], list[int]], *, seed: int = 0, cases: int = 8) -> None:
    """Check the tokens of a word after byte-pair merges."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        tokens, merges = _merge_case(case, generator)
        where = f"tokens={tokens}, merges={merges}"
        got = ask("merge", answer, tokens, merges, where=where, returns="the list of tokens")
        got = got.tolist() if isinstance(got, Tensor) else got
        assert isinstance(got, (list, tuple)), f"merge must return a list, got {type(got).__name__} ({where})"
        found = [number("a token", token, where) for token in got]
        if found == (wanted := _merged(tokens, merges)):
            continue
        for sentence, wrong in _merge_mistakes(tokens, merges).items():
            assert found not in wrong, f"merge is wrong: {sentence} ({where})"
        raise AssertionError(f"merge is {list(got)}, wanted {wanted} ({where})")


def _merge_case(case: int, generator: torch.Generator) -> tuple[list[int], list[tuple[int, int]]]:
    """Draw a word and merges, most of which apply; all mistakes differ in the first two cases."""

    def draw(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    if case % 8 == 4:
        return [draw(256)], [(draw(256), draw(256)) for _ in range(3)]
    if case % 8 == 5:
        return [draw(256) for _ in range(3 + draw(4))], []
    if case % 8 == 6:  # the digits of a token stand at the end or at the start of those of another token
        first, second = 1 + draw(5), 6 + draw(4)
        longer = [10 + first, second, 10 * second + first, first, second, first, 10 * second]
        return longer, [(first, second), (second, first), (256, 10 * second)]
    while True:
        letters = [97 + draw(13), 110 + draw(13)]
        tokens = [letters[draw(2)] for _ in range(11 + draw(5))]
        merges: list[tuple[int, int]] = []
        for _ in range(4):
            pairs = sorted(set(pairwise(_merged(tokens, merges))))
            merges.append(pairs[draw(len(pairs))] if pairs else (256, 256))
        several = [tuple(wrong) for ways in _merge_mistakes(tokens, merges).values() for wrong in ways]
        if case % 8 > 1 or len({tuple(_merged(tokens, merges)), *several}) == 1 + len(several):
            return tokens, merges


def _merged(
    tokens: list[int], merges: list[tuple[int, int]], *, first: int = 256, once: bool = False, keep: bool = False
) -> list[int]:
    """Return the tokens after all merges, merge ``i`` making the token ``first + i``."""
    for i, pair in enumerate(merges):
        tokens = _joined(tokens, pair, first + i, once=once, keep=keep)
    return tokens


def _joined(
    tokens: list[int], pair: tuple[int, int], made: int, *, once: bool = False, keep: bool = False
) -> list[int]:
    """Join each occurrence of a pair, or ``once`` only the first; ``keep`` leaves the right token in its place."""
    joined: list[int] = []
    place = 0
    while place < len(tokens):
        if tuple(tokens[place : place + 2]) == pair and not (once and made in joined):
            joined.append(made)
            place += 1 if keep else 2
        else:
            joined.append(tokens[place])
            place += 1
    return joined


def _merge_mistakes(tokens: list[int], merges: list[tuple[int, int]]) -> dict[str, list[list[int]]]:
    """Return the results of each mistake."""
    swapped = [(right, left) for left, right in merges]
    from_the_last = tokens
    for i, pair in reversed([*enumerate(merges)]):
        from_the_last = _joined(from_the_last, pair, 256 + i)
    of_bytes = [pair if max(pair) < 256 else (-1, -1) for pair in merges]
    return {
        "no merge was applied": [tokens],
        "apply the merges in the order in which they were learned, the first one first": [from_the_last],
        "a merge joins every occurrence of its pair, not only the first": [_merged(tokens, merges, once=True)],
        "replace from left to right: of three equal tokens the first two are joined": [
            _merged(tokens[::-1], swapped)[::-1]
        ],
        "both tokens of a pair must be replaced by the new token": [_merged(tokens, merges, keep=True)],
        "merge i, counted from 0, makes the token 256 + i": [
            _merged(tokens, merges, first=first) for first in (0, 1, 255, 257)
        ],
        "a later merge can also join a token that an earlier merge made": [_merged(tokens, of_bytes)],
        "the order of a pair matters: its first token stands on the left": [_merged(tokens, swapped)],
        "apply one merge after the other, do not search for the longest token": [_longest(tokens, merges)],
    }


def _longest(tokens: list[int], merges: list[tuple[int, int]]) -> list[int]:
    """Return, from left to right, the longest tokens that the merges can make; of equal ones the first."""
    spelled = {256 + i: [256 + i] for i in range(len(merges))} | {token: [token] for token in tokens}
    spelled |= {token: [token] for pair in merges for token in pair}
    for i, (left, right) in enumerate(merges):
        spelled[256 + i] = spelled[left] + spelled[right]
    longest: list[int] = []
    while tokens:
        fits = [token for token, letters in spelled.items() if letters == tokens[: len(letters)]]
        longest.append(max(fits, key=lambda token: (len(spelled[token]), -token)))
        tokens = tokens[len(spelled[longest[-1]]) :]
    return longest


# --- leaks ------------------------------------------------------------------------------------------------------------


@check
def leaky_positions(answer: Callable[[Tensor, Settings], Tensor], *, seed: int = 0, cases: int = 6) -> None:
    """Check a test that finds the positions whose logits depend on a later token."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        tokens, settings, depends, where = _leak_case(case, generator)
        got = ask("leaky_positions", answer, tokens, settings, where=where)
        compare_mask("leaky_positions", got, depends.triu(1).any(1), _leak_mistakes(depends), where=where)


def _leak_case(case: int, generator: torch.Generator) -> tuple[Tensor, Settings, Tensor, str]:
    """Return a text, the settings of a model, the pairs (position, token it depends on), and a description.

    Every token on which a position depends changes its logits clearly. All mistakes differ in the first case.
    """

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    while True:
        n = 1 if case % 6 == 2 else draw(6, 9)
        vocab, d = n + draw(1, 4), draw(3, 6)
        masks = torch.ones(2, n, n, dtype=torch.bool).tril().triu(-draw(1, 3))  # honest: a causal window
        masks[1] = torch.eye(n, dtype=torch.bool) if case % 6 == 0 else masks[1]
        centre = 1.0 if case % 6 == 3 else 0.0
        if case % 6 in (0, 5):
            for layer in (0, 0, 1):
                query = draw(0, n - 2)
                masks[layer, query, draw(query + 1, n)] = True
        if case % 6 == 4:
            masks[1, n - 2, n - 1] = True
        tokens = torch.randperm(vocab, generator=generator)[:n]
        settings = [0.6 * normal(vocab, d, generator=generator), masks[0], masks[1], centre]
        one, two = (mask.double() for mask in masks)
        depends = ((two + torch.eye(n)) @ (one + torch.eye(n))) > 0
        depends = torch.ones_like(depends) if centre else depends
        made = [depends.triu(1).any(1), *_leak_mistakes(depends).values()]
        told_apart = case % 6 or not any(torch.equal(a, b) for a, b in combinations(made, 2))
        if told_apart and _changes_are_clear(tokens, settings, depends):
            kind = {1: "without leaks", 3: "centred over the positions"}.get(case % 6, "two attention layers")
            return tokens, settings, depends, f"n={n}, V={vocab}, {kind}"


def _changes_are_clear(tokens: Tensor, settings: Settings, depends: Tensor) -> bool:
    """Return whether each replacement of a token changes the logits by more than 1e-6 where they depend on it."""
    logits, least = _leaky_model(tokens, settings), torch.full(depends.shape, torch.inf, dtype=torch.float64)
    assert isinstance(settings[0], Tensor)
    for j in range(len(tokens)):
        for other in set(range(len(settings[0]))) - {int(tokens[j])}:
            changed = _leaky_model(tokens.index_put((torch.tensor(j),), torch.tensor(other)), settings)
            least[:, j] = torch.minimum(least[:, j], (changed - logits).abs().amax(-1))
    return bool((least[depends] > 1e-6).all())


def _leaky_model(tokens: Tensor, settings: Settings) -> Tensor:
    """Return the logits of the notebook's ``model``."""
    embedding, *masks, centre = settings
    assert isinstance(embedding, Tensor)
    x = embedding[tokens]
    x = x - centre * x.mean(0)
    for mask in masks:
        assert isinstance(mask, Tensor)
        x = x + scaled_dot_product_attention(x[None], x[None], x[None], mask)[0]
    return x @ embedding.T


def _leak_mistakes(depends: Tensor) -> dict[str, Tensor]:
    """Return the result with each mistake, from the pairs (position, token it depends on)."""
    later, n = depends.triu(1), len(depends)
    wanted = later.any(1)
    positions = torch.arange(n)
    farthest = int(later.any(0).nonzero().max()) if bool(later.any()) else 0
    first = torch.zeros_like(wanted)
    first[: int(wanted.nonzero()[0]) + 1 if bool(wanted.any()) else 0] = True
    return {
        "the logits at a position may depend on the token at this position: only later tokens are leaks": depends.any(
            1
        ),
        "a dependence on an earlier token is no leak": depends.tril(-1).any(1),
        "every later token may leak, not only the next one": torch.cat([depends.diagonal(1), torch.zeros(1).bool()]),
        "every later token may leak, not only the last one": later[:, -1],
        "mark the position whose logits change, not the token that was changed": later.any(0),
        "compare each position: a leak at one position is no leak at all positions before the token": (
            positions < farthest
        ),
        "mark every position that leaks, not only the first one": wanted & first,
        "True marks a leak": ~wanted,
        "this model leaks at some position, and the test finds nothing": torch.zeros_like(wanted),
    }


# --- gradient accumulation --------------------------------------------------------------------------------------------


@check
def training_step(
    answer: Callable[[list[Tensor], MicroBatches, float, float], list[Tensor]], *, seed: int = 0, cases: int = 4
) -> None:
    """Check one step of gradient descent with gradient accumulation and clipping."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        weights, micro_batches, lr, max_norm, where = _step_case(case, generator)
        returns = "the new weights, [embedding, head]"
        got = ask("training_step", answer, weights, micro_batches, lr, max_norm, where=where, returns=returns, parts=2)
        wanted, mistakes = _step_and_mistakes(weights, micro_batches, lr, max_norm)
        for i, name in enumerate(("embedding", "head")):
            known = {why: [way[i] for way in ways] for why, ways in mistakes.items()}
            compare(f"the new {name}", got[i], wanted[i], known, where=where)


def _step_case(case: int, generator: torch.Generator) -> tuple[list[Tensor], MicroBatches, float, float, str]:
    """Draw weights, micro-batches, a learning rate and a largest norm, and describe them.

    The gradient is shorter than the largest norm in the even cases, and longer in the others.
    """
    vocab, d, k = (torch.randperm(4, generator=generator)[:3] + 3).tolist()
    k = 1 if case % 4 == 3 else k
    weights = [normal(vocab, d, generator=generator), normal(d, vocab, generator=generator)]
    micro_batches = []
    for place in range(k):
        b, n = (torch.randperm(4, generator=generator)[:2] + 1).tolist()
        inputs, targets = torch.randint(vocab, (2, b, n + place), generator=generator)
        targets[torch.rand(targets.shape, generator=generator) < 0.4] = -100
        targets[0, 0] = 0
        if case % 4 == 2 and place == 1:
            targets[:] = -100
        micro_batches.append((inputs, targets))
    length = _length(_whole_gradient(weights, micro_batches))
    share, lr = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    n_targets = sum(int((targets != -100).sum()) for _, targets in micro_batches)
    factor = {0: n_targets + 1.5, 2: 1.5}.get(case % 4, 0.2) + 0.5 * share  # in the first case even a sum is shorter
    max_norm = factor * length
    sizes = [f"{tuple(targets.shape)} with {int((targets != -100).sum())} targets" for _, targets in micro_batches]
    where = f"micro-batches {', '.join(sizes)}; lr={lr + 0.3:.2g}, max_norm={max_norm:.2g}, gradient {length:.2g}"
    return weights, micro_batches, lr + 0.3, max_norm, where


def _gradient(weights: list[Tensor], inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """Return the gradient of the mean loss over the targets that are no padding; zero if there are none."""
    given = [w.clone().requires_grad_() for w in weights]
    logits = torch.tanh(given[0][inputs]) @ given[1]
    total = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    return list(torch.autograd.grad(total / max(1, int((targets != -100).sum())), given))


def _whole_gradient(weights: list[Tensor], micro_batches: MicroBatches) -> list[Tensor]:
    """Return the gradient of the mean loss over all targets, from one batch."""
    inputs, targets = (torch.cat([pair[i].flatten() for pair in micro_batches])[None] for i in (0, 1))
    return _gradient(weights, inputs, targets)


def _length(gradient: list[Tensor]) -> float:
    return float(torch.cat([g.flatten() for g in gradient]).norm())


def _clipped(gradient: list[Tensor], max_norm: float) -> list[Tensor]:
    """Scale the gradient down to a length of ``max_norm``, if it is longer."""
    return [g * min(1.0, max_norm / max(_length(gradient), 1e-30)) for g in gradient]


def _step_and_mistakes(
    weights: list[Tensor], micro_batches: MicroBatches, lr: float, max_norm: float
) -> tuple[list[Tensor], dict[str, list[list[Tensor]]]]:
    """Return the new weights, and the new weights with each mistake."""
    parts = [_gradient(weights, *pair) for pair in micro_batches]
    counts = [float((targets != -100).sum()) for _, targets in micro_batches]
    k, total = len(parts), sum(counts)
    rows = [float(len(targets)) for _, targets in micro_batches]
    sizes = [float(targets.numel()) for _, targets in micro_batches]

    def step(gradient: list[Tensor], start: list[Tensor] = weights) -> list[Tensor]:
        return [w - lr * g for w, g in zip(start, gradient, strict=True)]

    def weighted(factors: list[float], parts: list[list[Tensor]] = parts) -> list[Tensor]:
        return [
            sum((f * g for f, g in zip(factors, each, strict=True)), torch.zeros(()))
            for each in zip(*parts, strict=True)
        ]

    def new(factors: list[float]) -> list[Tensor]:
        return step(_clipped(weighted(factors), max_norm))

    def one_after_the_other(factors: list[float]) -> list[Tensor]:
        now = weights
        for factor, pair in zip(factors, micro_batches, strict=True):
            now = step(_clipped([factor * g for g in _gradient(now, *pair)], max_norm), now)
        return now

    shares, whole = [count / total for count in counts], _whole_gradient(weights, micro_batches)
    equal, ones = [1 / k] * k, [1.0] * k
    too_early = [_clipped(part, max_norm) for part in parts]
    shares_too_early = [_clipped([f * g for g in part], max_norm) for f, part in zip(shares, parts, strict=True)]
    last, first = [0.0] * (k - 1) + [1.0], [1.0] + [0.0] * (k - 1)
    return step(_clipped(whole, max_norm)), {
        "a mean of the micro-batches' means gives the targets of a small micro-batch more weight": [new(equal)],
        "the loss is a mean over the whole batch, not a sum of the micro-batches' means": [new(ones)],
        "the loss is a mean over all targets: divide by their number": [new(counts)],
        "weight a micro-batch by its number of targets, not of rows": [new([r / sum(rows) for r in rows])],
        "padding does not count: weight a micro-batch by its targets that are not -100": [
            new([size / sum(sizes) for size in sizes])
        ],
        "the gradients of the micro-batches must be added: this is one of them alone": [
            new(last),
            new(first),
            new([f * share for f, share in zip(last, shares, strict=True)]),
        ],
        "make one step after the last micro-batch, not one after each": [
            one_after_the_other(shares),
            one_after_the_other(ones),
            one_after_the_other(equal),
        ],
        "the gradient is not clipped": [step(whole)],
        "clip the accumulated gradient once, not the gradient of each micro-batch": [
            step(weighted(shares, too_early)),
            step(weighted(ones, shares_too_early)),
            step(_clipped(weighted(shares, too_early), max_norm)),
        ],
        "the length is that of all weights together, not of each matrix": [
            step([_clipped([g], max_norm)[0] for g in whole])
        ],
        "clipping scales the whole gradient, not each entry by itself": [
            step([g.clamp(-max_norm, max_norm) for g in whole])
        ],
        "a gradient shorter than max_norm is not changed": [step([g * max_norm / _length(whole) for g in whole])],
        "the step goes against the gradient: w - lr g": [
            [w + lr * g for w, g in zip(weights, _clipped(whole, max_norm), strict=True)]
        ],
        "the learning rate is missing": [[w - g for w, g in zip(weights, _clipped(whole, max_norm), strict=True)]],
        "these are the old weights": [list(weights)],
        "return the new weights, not the gradient": [whole, _clipped(whole, max_norm)],
    }


# --- sampling and baselines -------------------------------------------------------------------------------------------


@check
def interpolated_bigrams(answer: Callable[[Tensor, float, Tensor], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check bigram probabilities with a discount, interpolated with unigram probabilities."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(cases):
        words = int(torch.randint(5, 12, (), generator=generator))
        counts = torch.poisson(torch.full((words, words), 1.2), generator=generator).double()
        counts[0, :2] = torch.tensor([1.0, 4.0])
        unseen = int(torch.randint(1, words, (), generator=generator))
        counts[unseen] = 0.0
        unigram = normal(words, generator=generator).softmax(-1)
        discount = 0.2 + 0.7 * float(torch.rand((), generator=generator, dtype=torch.float64))
        where = f"V={words}, discount={discount:.3g}"
        got = ask("interpolated_bigrams", answer, counts, discount, unigram, where=where)
        total, seen = counts.sum(-1, keepdim=True), counts > 0
        kinds = seen.double().sum(-1, keepdim=True)
        total = total.where(total > 0, torch.ones_like(total))
        taken = (counts - discount).clamp_min(0) / total
        saved = discount * kinds / total

        def full(q: Tensor, empty: Tensor = unigram, which: Tensor = kinds == 0) -> Tensor:
            """Return the probabilities with a given treatment of unseen contexts."""
            return torch.where(which, empty, q)

        wanted = full(taken + saved * unigram)
        empty_rows = isinstance(got, Tensor) and got.shape == wanted.shape and bool(got[kinds[:, 0] == 0].isnan().any())
        alone = "after a word that was never seen, the unigram probabilities are needed"
        assert not empty_rows, f"interpolated_bigrams is wrong: {alone}, got NaN ({where})"
        even, backed = torch.full_like(unigram, 1 / words), taken + saved * unigram
        columns = counts.T
        total_of_columns = columns.sum(-1, keepdim=True).clamp_min(1.0)
        kinds_of_columns = (columns > 0).double().sum(-1, keepdim=True)
        turned = (columns - discount).clamp_min(0) / total_of_columns
        turned = turned + discount * kinds_of_columns / total_of_columns * unigram
        left, followed = (counts - discount).clamp_min(0), (columns > 0).double().sum(-1)
        if_followed = columns.sum(-1).clamp_min(1.0)
        of_followed = (left + discount * followed * unigram) / if_followed
        compare(
            "interpolated_bigrams",
            got,
            wanted,
            {
                alone: [backed, full(backed, even)],
                "the saved probability is missing: distribute it in proportion to the unigram probabilities": [
                    full(taken),
                    taken,
                ],
                "the saved probability is distributed by the unigram probabilities, not evenly": [
                    full(taken + saved * even),
                    full(taken + saved * even, even),
                ],
                "the discount is missing": [full(counts / total), counts / total],
                "the discount must not be subtracted from a count of zero": full(
                    (counts - discount) / total + saved * unigram
                ),
                "the saved probability depends on the number of different words seen after the context, not on V": (
                    full(taken + discount * words / total * unigram)
                ),
                "the saved count is the discount times the number of different words seen after the context": [
                    full(taken + discount / total * unigram),
                    full(taken + discount * unigram),
                ],
                "divide by the number of times the context was seen": full((taken + saved * unigram) * total),
                "rows and columns are exchanged: a row is a context, and a column is the word that followed": [
                    torch.where(kinds_of_columns == 0, unigram, turned),
                    full(of_followed),
                    torch.where(followed == 0, unigram, of_followed),
                ],
                "u is the number of different words seen after the context: count along the row": full(
                    (left + discount * followed * unigram) / total
                ),
                "the denominator is the number of times the context was seen: the sum of its row": [
                    full((left + discount * kinds * unigram) / if_followed),
                    torch.where(followed == 0, unigram, (left + discount * kinds * unigram) / if_followed),
                ],
            },
            where=where,
        )


@check
def min_p(answer: Callable[[Tensor, float, float], Tensor], *, seed: int = 0, cases: int = 6) -> None:
    """Check the token probabilities under min-p sampling at a temperature."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        logits, p, temperature = _min_p_case(case, generator)
        n, words = logits.shape
        where = f"n={n}, V={words}, p={p:.3g}, T={temperature}"
        got = ask("min_p", answer, logits, p, temperature, where=where)
        compare("min_p", got, *_min_p_and_mistakes(logits, p, temperature), where=where, scores=logits / temperature)


def _min_p_case(case: int, generator: torch.Generator) -> tuple[Tensor, float, float]:
    """Draw logits, p and a temperature without ties at the threshold; all mistakes differ in the first two cases."""
    while True:
        n, words = (torch.randperm(6, generator=generator)[:2] + 4).tolist()
        n = 1 if case % 6 == 4 else n
        logits = 2.5 * normal(n, words, generator=generator)
        logits[0] += 900.0 if case % 3 == 2 else 0.0  # large logits, whose exponentials overflow
        p = 0.05 + 0.4 * float(torch.rand((), generator=generator, dtype=torch.float64))
        temperature = 0.5 if case % 2 else 1.8
        limit = (logits / temperature).softmax(-1)
        limit = limit / limit.amax(-1, keepdim=True) / p
        wanted, mistakes = _min_p_and_mistakes(logits, p, temperature)
        all_of_it = [wanted, *mistakes.values()]
        alike = any(not float((one - other).abs().max()) > 1e-4 for one, other in combinations(all_of_it, 2))
        if float((limit - 1).abs().min()) > 1e-2 and (case > 1 or not alike):
            return logits, p, temperature


def _min_p_and_mistakes(logits: Tensor, p: float, temperature: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the correct result, and the result with each mistake."""
    bent, plain, twice = ((logits / t).softmax(-1) for t in (temperature, 1.0, temperature**2))
    best, best_plain = bent.amax(-1, keepdim=True), plain.amax(-1, keepdim=True)

    def drawn(kept: Tensor, q: Tensor = bent) -> Tensor:
        return torch.where(kept, q, 0.0) / torch.where(kept, q, 0.0).sum(-1, keepdim=True)

    order = bent.argsort(-1, descending=True)
    ordered = bent.gather(-1, order)
    nucleus = (ordered.cumsum(-1) - ordered < p).gather(-1, order.argsort(-1))
    other_way, down = (logits * temperature).softmax(-1), (logits / temperature).softmax(0)
    kept_down = torch.where(down >= p * down.amax(0), down, 0.0)
    return drawn(bent >= p * best), {
        "the probabilities of the kept words must sum to one": torch.where(bent >= p * best, bent, 0.0),
        "compare the probabilities at the temperature: divide the logits by the temperature first": drawn(
            plain >= p * best_plain
        ),
        "the temperature is missing": drawn(plain >= p * best_plain, plain),
        "the returned probabilities must also be at the temperature": drawn(bent >= p * best, plain),
        "the logits must be divided by the temperature once, not twice": drawn(
            twice >= p * twice.amax(-1, True), twice
        ),
        "the threshold is p times the largest probability of the row, not p itself": drawn(bent >= p),
        "the threshold is p times the largest probability of the row, not 1 - p times": drawn(bent >= (1 - p) * best),
        "this is top-p: min-p compares each word with the most probable one": drawn(nucleus),
        "the threshold uses the largest probability of the same row, not of all rows": drawn(bent >= p * best.max()),
        "the probabilities sum to one along the last axis": kept_down / kept_down.sum(0),
        "a logit of zero has a positive probability: a removed word needs the logit minus infinity": torch.where(
            bent >= p * best, logits / temperature, 0.0
        ).softmax(-1),
        "the temperature divides the logits": drawn(other_way >= p * other_way.amax(-1, keepdim=True), other_way),
        "the kept and the removed words are exchanged": drawn(bent < p * best).nan_to_num(),
        "no word was removed": bent,
    }
