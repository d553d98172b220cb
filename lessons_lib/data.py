r"""Tasks whose answers are known, drawn from a ``torch.Generator``.

The same state of the generator gives the same batch; no other randomness is read or changed. Batches lie on the
generator's device. Symbols are numbered ``0 .. n_symbols - 1``, and where a task needs a mark that ends the question
it is the next number, so a model for it needs ``n_symbols + 1`` embeddings.

Every task returns ``inputs``, ``targets`` (the inputs one step later) and a ``loss_mask``: True where a target counts.
Among symbols that is where it can be known from the inputs up to there; the rest is chance, and no model, however
good, does better than guessing. In the stories every word counts.

:func:`stories` is language in small: sentences from a grammar that knows the subject of each verb, the antecedent of
each pronoun, and exactly how surprising each word is.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lessons_lib.shapes import check_size

AnyBatch = TypeVar("AnyBatch")


@dataclass(frozen=True, eq=False)
class Batch:
    """Predict ``targets[b, i]`` from ``inputs[b, :i + 1]`` wherever ``loss_mask[b, i]`` is True."""

    inputs: Int[Tensor, "b n"]
    targets: Int[Tensor, "b n"]
    loss_mask: Bool[Tensor, "b n"]


def stream(task: Callable[..., AnyBatch], generator: torch.Generator, **settings: int) -> Iterator[AnyBatch]:
    """Yield batches of a task without end, each drawn when it is asked for and not before.

    So the generator's state between two batches says where the stream stands: save it to go on from there later.

    Raises:
        ValueError: as the task, when the first batch is asked for.
    """
    while True:
        yield task(generator, **settings)


# --- symbols --------------------------------------------------------------------------------------------------------


def copy(generator: torch.Generator, *, batch_size: int, length: int, n_symbols: int) -> Batch:
    r"""Say it again: ``length`` random symbols, the mark, and the same symbols once more.

    .. math:: x_1 \dots x_\ell \;\#\; \to x_1 \dots x_\ell

    The inputs are the first ``2 * length`` tokens of ``x # x``; the mask marks the second copy among the targets.

    Raises:
        ValueError: if a size is not a positive integer, or there are fewer than two symbols to choose from.
    """
    return _answered(_symbols(generator, batch_size, length, n_symbols), lambda symbols: symbols, mark=n_symbols)


def sorting(generator: torch.Generator, *, batch_size: int, length: int, n_symbols: int) -> Batch:
    r"""Say it in order: ``length`` random symbols, the mark, and the same symbols sorted.

    .. math:: x_1 \dots x_\ell \;\#\; \to x_{(1)} \le \dots \le x_{(\ell)}

    Symbols may occur more than once. Shapes and mask as in :func:`copy`.

    Raises:
        ValueError: as :func:`copy`.
    """
    symbols = _symbols(generator, batch_size, length, n_symbols)
    return _answered(symbols, lambda symbols: symbols.sort(dim=-1).values, mark=n_symbols)


def modular_sums(generator: torch.Generator, *, batch_size: int, modulus: int, n_terms: int = 2) -> Batch:
    r"""Add on a clock: ``n_terms`` numbers below the modulus, the mark, and their sum.

    .. math:: x_1 \dots x_\ell \;\#\; \to \sum_i x_i \bmod p

    The inputs are ``n_terms + 1`` tokens and the mask marks the last position alone. With two terms and part of the
    :math:`p^2` sums held back this is the task on which models were seen to generalise long after they had fitted
    what they were shown [1]_.

    Raises:
        ValueError: if a size is not a positive integer, or the modulus is below 2.

    .. [1] Power et al., *Grokking*, 2022. arXiv:2201.02177.
    """
    check_size("modulus", modulus, at_least=2)
    check_size("n_terms", n_terms, at_least=1)
    terms = _symbols(generator, batch_size, n_terms, modulus)
    return _answered(terms, lambda terms: terms.sum(dim=-1, keepdim=True) % modulus, mark=modulus)


@dataclass(frozen=True, eq=False)
class InductionBatch(Batch):
    """A batch of :func:`induction`, with the period of each row."""

    periods: Int[Tensor, "b"]


def induction(
    generator: torch.Generator,
    *,
    batch_size: int,
    n: int = 48,
    n_symbols: int = 32,
    min_period: int = 8,
    max_period: int = 24,
) -> InductionBatch:
    r"""Notice the repetition: a passage of :math:`p` *different* symbols, again and again, :math:`p` new in each row.

    .. math:: x_{i+1} = x_{i+1-p} \quad\text{for } i \ge p

    What follows a symbol is what followed it before, and an induction head finds it: attend to the place after the
    last copy of the current symbol [2]_. Symbols do not recur within the passage, so that there is one such place for
    each period; and the period varies, so that looking back a fixed distance does not help.

    Args:
        batch_size: rows, each with its own passage.
        n: length of the inputs.
        n_symbols: to draw passages from; a model needs as many embeddings.
        min_period, max_period: both included, every period equally likely.

    Returns:
        A batch whose mask is True from position :math:`p` on: before that no symbol has been seen twice.

    Raises:
        ValueError: unless ``1 <= min_period <= max_period <= n_symbols``, and ``max_period < n`` so that every row
            has something to predict.

    .. [2] Olsson et al., *In-context Learning and Induction Heads*, 2022. arXiv:2209.11895.
    """
    check_size("n", n, at_least=2)
    check_size("max_period", max_period, at_least=1, at_most=n - 1)
    check_size("min_period", min_period, at_least=1, at_most=max_period)
    check_size("n_symbols", n_symbols, at_least=max_period)
    shuffled = _uniform(generator, batch_size, n_symbols).argsort(dim=-1)
    periods = torch.randint(
        min_period, max_period + 1, (batch_size,), generator=generator, device=generator.device, dtype=torch.int64
    )
    positions = torch.arange(n + 1, device=generator.device)
    tokens = shuffled.gather(-1, positions % periods[:, None])
    return InductionBatch(tokens[:, :-1], tokens[:, 1:], positions[:-1] >= periods[:, None], periods)


# --- stories: the words ---------------------------------------------------------------------------------------------
# A noun is of the kind of the pronoun that stands for it; the kind also says whether the noun is one or several.

KINDS = ("she", "he", "it", "they")
_REFLEXIVES = {"she": "herself", "he": "himself", "it": "itself", "they": "themselves"}
_SINGULAR_NOUNS = {
    "she": ("girl", "queen", "woman"),
    "he": ("boy", "king", "man"),
    "it": ("bird", "cat", "dog", "horse"),
}
_IRREGULAR_PLURALS = {"woman": "women", "man": "men"}
_PLURAL_NOUNS = tuple(_IRREGULAR_PLURALS.get(noun, f"{noun}s") for nouns in _SINGULAR_NOUNS.values() for noun in nouns)
_NOUNS = {**_SINGULAR_NOUNS, "they": _PLURAL_NOUNS}
_DETERMINERS = {  # and the kinds of noun that may follow
    "the": KINDS,
    "a": ("she", "he", "it"),
    "this": ("she", "he", "it"),
    "these": ("they",),
    "two": ("they",),
}
_ADJECTIVES = ("brave", "happy", "quiet", "small", "tired", "young")
_PREPOSITIONS = ("behind", "beside", "near")
_INTRANSITIVE = ("dance", "laugh", "sing", "sleep", "smile", "wait")
_TRANSITIVE = ("chase", "follow", "hear", "know", "like", "love", "see")


def _conjugated(verbs: Sequence[str], kind: str) -> tuple[str, ...]:
    return tuple(verbs) if kind == "they" else tuple(f"{verb}s" for verb in verbs)


VERBS = frozenset(word for kind in ("she", "they") for word in _conjugated(_INTRANSITIVE + _TRANSITIVE, kind))
PRONOUNS = frozenset((*KINDS, *_REFLEXIVES.values()))
VOCABULARY = (
    *(".", "and", "that", "then"),
    *sorted((*_DETERMINERS, *_ADJECTIVES, *_PREPOSITIONS)),
    *sorted(noun for nouns in _NOUNS.values() for noun in nouns),
    *sorted(PRONOUNS),
    *sorted(VERBS),
)


_NUMBERS = {word: number for number, word in enumerate(VOCABULARY)}


def encode(text: str) -> Int[Tensor, "n"]:
    """Turn a text of :func:`stories` into the numbers of its words in ``VOCABULARY``; the full stop is a word.

    Raises:
        ValueError: if a word is not in the vocabulary.
    """
    words = text.lower().replace(".", " . ").split()
    unknown = [word for word in words if word not in _NUMBERS]
    if unknown:
        raise ValueError(f"text must be made of the {len(VOCABULARY)} words of VOCABULARY, got {unknown[0]!r}")
    return torch.tensor([_NUMBERS[word] for word in words], dtype=torch.int64)


def decode(tokens: Int[Tensor, "n"]) -> str:
    """Turn numbers of words into English, with capitals and full stops: the inverse of :func:`encode`.

    Raises:
        ValueError: if ``tokens`` is not one sequence of integers in the range of ``VOCABULARY``.
    """
    if tokens.is_floating_point() or tokens.dtype == torch.bool or tokens.ndim != 1:
        raise ValueError(f"tokens must be integers over (n,), got {tokens.dtype} over {tuple(tokens.shape)}")
    for token in tokens.tolist():
        check_size("tokens", token, at_least=0, at_most=len(VOCABULARY) - 1)
    sentences = " ".join(VOCABULARY[token] for token in tokens.tolist()).split(" . ")
    return ". ".join(sentence[:1].upper() + sentence[1:] for sentence in sentences).replace(" .", ".")


# --- stories: the grammar -------------------------------------------------------------------------------------------
# Every rule writes one word, and no two rules of a symbol write the same. So the words tell which rules were used, what
# is left to say is known at every point, and the uncertainty about the next word is that of choosing the next rule.


class _Then(NamedTuple):
    """A symbol still to be written, and whether it is about the word just written or about the same as that word."""

    symbol: str
    about_this_word: bool


class _Rule(NamedTuple):
    word: str
    probability: float
    then: tuple[_Then, ...]


def _this(symbol: str) -> _Then:
    return _Then(symbol, about_this_word=True)


def _same(symbol: str) -> _Then:
    return _Then(symbol, about_this_word=False)


def _one_of(words: Sequence[str], *then: _Then) -> list[_Rule]:
    return [_Rule(word, 1 / len(words), then) for word in words]


def _either(*alternatives: tuple[float, list[_Rule]]) -> list[_Rule]:
    return [rule._replace(probability=share * rule.probability) for share, rules in alternatives for rule in rules]


def _noun_phrase(role: str, then: Callable[[str], tuple[_Then, ...]]) -> dict[str, list[_Rule]]:
    """A determiner, perhaps an adjective, a noun; and ``then`` what a noun of its kind asks for in this role."""
    grammar = {}
    for kinds in _DETERMINERS.values():
        nouns = [_Rule(noun, 1.0, then(kind)) for kind in kinds for noun in _NOUNS[kind]]
        plain = f"{role}: noun ({'/'.join(kinds)})"
        grammar[plain] = _either((1 / len(nouns), nouns))
        grammar[f"adjective or {plain}"] = _either((0.3, _one_of(_ADJECTIVES, _same(plain))), (0.7, grammar[plain]))
    grammar[role] = [
        _Rule(determiner, 1 / len(_DETERMINERS), (_same(f"adjective or {role}: noun ({'/'.join(kinds)})"),))
        for determiner, kinds in _DETERMINERS.items()
    ]
    return grammar


def _build_grammar() -> dict[str, list[_Rule]]:
    grammar = (
        _noun_phrase("subject", lambda kind: (_this(f"modifier or predicate {kind}"), _this(f"next sentence {kind}")))
        | _noun_phrase("other subject", lambda kind: (_this(f"their verb {kind}"),))
        | _noun_phrase("object", lambda kind: ())
    )
    for kind in KINDS:
        intransitive, transitive = _conjugated(_INTRANSITIVE, kind), _conjugated(_TRANSITIVE, kind)
        predicate, end = _same(f"predicate {kind}"), _same(f"end {kind}")
        grammar[predicate.symbol] = _either(
            (0.4, _one_of(intransitive, end)),
            (0.6, _one_of(transitive, _same(f"object or reflexive {kind}"), end)),
        )
        grammar[f"modifier or predicate {kind}"] = _either(
            (0.2, _one_of(_PREPOSITIONS, _same("object"), predicate)),
            (0.3, _one_of(["that"], _same(f"relative clause {kind}"), predicate)),
            (0.5, grammar[predicate.symbol]),
        )
        grammar[f"relative clause {kind}"] = _either(
            (0.5, _one_of(transitive, _same("object"))), (0.5, grammar["other subject"])
        )
        grammar[f"their verb {kind}"] = _one_of(transitive)
        grammar[f"object or reflexive {kind}"] = _either(
            (0.25, _one_of([_REFLEXIVES[kind]])), (0.75, grammar["object"])
        )
        grammar[end.symbol] = _either((0.2, _one_of(["and"], predicate)), (0.8, _one_of(["."])))
        grammar[f"pronoun {kind}"] = _one_of([kind], _this(f"predicate {kind}"))
        grammar[f"next sentence {kind}"] = _either(
            (0.4, _one_of([kind], _this(f"predicate {kind}"), _same(f"next sentence {kind}"))),
            (0.2, _one_of(["then"], _same(f"pronoun {kind}"), _same(f"next sentence {kind}"))),
            (0.4, grammar["subject"]),
        )
    return grammar


_GRAMMAR = _build_grammar()
_THRESHOLDS = {symbol: list(accumulate(rule.probability for rule in rules)) for symbol, rules in _GRAMMAR.items()}


# --- stories: telling them ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StoryBatch(Batch):
    """A batch of :func:`stories`, with what the grammar knows about each word.

    ``subjects[b, i]`` is the position of the subject of the verb ``inputs[b, i]``, ``antecedents[b, i]`` that of the
    word for which the pronoun ``inputs[b, i]`` stands; -1 where the word is no verb, no pronoun. ``surprisals`` are
    those of the targets, in nats: the loss, position by position, of a model that knows the grammar.
    """

    subjects: Int[Tensor, "b n"]
    antecedents: Int[Tensor, "b n"]
    surprisals: Float[Tensor, "b n"]


def stories(generator: torch.Generator, *, batch_size: int, n: int) -> StoryBatch:
    r"""Tell English-like stories in which it is known who does what.

    *The young queen that these dogs follow sees herself and smiles. Then she waits.* A verb agrees in number with its
    subject, which may lie far back, behind nouns of the other number (*queen … dogs follow … sees*). *She*, *he*,
    *it* or *they* at the head of a sentence stands for the subject that the story is about, *herself* and its like
    for the subject of their own verb.

    Each row begins with a new story and is cut off after ``n`` inputs. ``VOCABULARY`` has the words; the loss cannot
    fall below the mean of :func:`stories_entropy`, and on one batch not below the mean of its ``surprisals`` by more
    than luck.

    Raises:
        ValueError: if ``batch_size`` or ``n`` is not a positive integer.
    """
    check_size("n", n, at_least=1)
    told = torch.tensor(
        [list(_tell(chances)) for chances in _uniform(generator, batch_size, n + 1).tolist()],
        device=generator.device,
        dtype=torch.float64,
    )
    words, subjects, antecedents = told[..., :3].long().unbind(-1)
    return StoryBatch(
        inputs=words[:, :-1],
        targets=words[:, 1:],
        loss_mask=torch.ones_like(words[:, 1:], dtype=torch.bool),
        subjects=subjects[:, :-1],
        antecedents=antecedents[:, :-1],
        surprisals=told[:, 1:, 3],
    )


def stories_entropy(n: int) -> Float[Tensor, "n"]:
    r"""Return the exact entropy of each target of :func:`stories` given the inputs up to there, in nats.

    .. math:: H(x_{i+1} \mid x_1 \dots x_i) = \sum_s \Pr(\text{left to say is } s)\; H(\text{first rule of } s)

    Since every rule writes its own word, the words so far determine what is left to say: a stack of symbols. There
    are a few hundred different ones, and their probabilities are carried forward word by word, without sampling.

    The mean over ``n`` is the least expected loss on rows of ``n``; the last entries approach the entropy rate.

    Raises:
        ValueError: if ``n`` is not a positive integer.
    """
    check_size("n", n, at_least=1)
    entropies = {
        symbol: -sum(rule.probability * log(rule.probability) for rule in rules) for symbol, rules in _GRAMMAR.items()
    }
    left_to_say, by_position = {("subject",): 1.0}, []
    for _ in range(n):
        left_to_say = _one_word_later(left_to_say)
        by_position.append(sum(chance * entropies[symbol] for (symbol, *_), chance in left_to_say.items()))
    return torch.tensor(by_position, dtype=torch.float64)


# --- parts ----------------------------------------------------------------------------------------------------------


def _uniform(generator: torch.Generator, batch_size: int, n: int) -> Tensor:
    """Numbers in [0, 1), in float64 whatever the default type, so that it does not change the batch."""
    check_size("batch_size", batch_size, at_least=1)
    return torch.rand(batch_size, n, generator=generator, device=generator.device, dtype=torch.float64)


def _symbols(generator: torch.Generator, batch_size: int, length: int, n_symbols: int) -> Tensor:
    check_size("batch_size", batch_size, at_least=1)
    check_size("length", length, at_least=1)
    check_size("n_symbols", n_symbols, at_least=2)
    return torch.randint(
        n_symbols, (batch_size, length), generator=generator, device=generator.device, dtype=torch.int64
    )


def _answered(question: Tensor, answer: Callable[[Tensor], Tensor], *, mark: int) -> Batch:
    """Lay question, mark and answer in a row and ask for each token from those before it; the answer alone counts."""
    tokens = torch.cat([question, torch.full_like(question[:, :1], mark), answer(question)], dim=-1)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    is_answer = torch.arange(inputs.shape[-1], device=inputs.device) >= question.shape[-1]
    return Batch(inputs, targets, is_answer.expand_as(inputs))


def _tell(chances: list[float]) -> Iterator[tuple[int, int, int, float]]:
    """Write a word for each number in [0, 1): its number, its subject, its antecedent, its surprisal."""
    left_to_say = [("subject", -1)]  # the next symbol last, each with the position of the word that it is about
    for position, chance in enumerate(chances):
        symbol, about = left_to_say.pop()
        rules = _GRAMMAR[symbol]
        rule = rules[bisect(_THRESHOLDS[symbol], chance, hi=len(rules) - 1)]
        left_to_say += [(then.symbol, position if then.about_this_word else about) for then in reversed(rule.then)]
        subject = about if rule.word in VERBS else -1
        antecedent = about if rule.word in PRONOUNS else -1
        yield _NUMBERS[rule.word], subject, antecedent, -log(rule.probability)


def _one_word_later(left_to_say: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """How likely each stack is after one more word; the words themselves no longer matter."""
    later = defaultdict(float)
    for (symbol, *rest), chance in left_to_say.items():
        for rule in _GRAMMAR[symbol]:
            later[*(then.symbol for then in rule.then), *rest] += chance * rule.probability
    return later
