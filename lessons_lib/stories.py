r"""Language in small: stories from a grammar that knows exactly how likely each next word is.

It knows the subject of each verb and the antecedent of each pronoun too, so that "the verb attends to its subject" can
be scored. :func:`tell` draws stories from a ``torch.Generator`` as :mod:`lessons_lib.tasks` draws tasks: the same state
gives the same stories, and no other randomness is read or changed. :func:`next_word` is what a model of them ought to
say after each word, :func:`first_error` the place where a text leaves the grammar.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log, nan, prod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lessons_lib.shapes import check_integers, check_size
from lessons_lib.tasks import Batch

# --- the words ------------------------------------------------------------------------------------------------------
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
    """Turn a text into the numbers of its words in ``VOCABULARY``; the full stop is a word.

    ::

        >>> encode("The girl sings.").shape
        torch.Size([4])

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

    ::

        >>> decode(encode("the girl sings . she"))
        'The girl sings. She'

    Raises:
        ValueError: if ``tokens`` is not one sequence of integers in the range of ``VOCABULARY``.
    """
    check_integers("tokens", tokens, "n")
    sentences = " ".join(VOCABULARY[number] for number in _known(tokens.tolist())).split(" . ")
    return ". ".join(sentence[:1].upper() + sentence[1:] for sentence in sentences).replace(" .", ".")


# --- the grammar ----------------------------------------------------------------------------------------------------
# Every rule writes one word, and no two rules of a symbol write the same. So the words tell which rules were used, what
# is left to say is known at every point, and the uncertainty about the next word is that of choosing the next rule.


class _Then(NamedTuple):
    """A symbol still to be written, and whether it is about the word just written or about the same as that word."""

    symbol: str
    about_this_word: bool


class _Rule(NamedTuple):
    """A word that may be written for a symbol, how likely it is, and what has to follow before all else."""

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
_RULES = {symbol: {rule.word: rule for rule in rules} for symbol, rules in _GRAMMAR.items()}
# Of each word, where the symbol is to be written next; None is where the grammar has been left.
_CHANCES: dict[str | None, list[float]] = {
    symbol: [rules[word].probability if word in rules else 0.0 for word in VOCABULARY]
    for symbol, rules in _RULES.items()
}
_CHANCES[None] = [nan] * len(VOCABULARY)


# --- telling --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StoryBatch(Batch):
    """A batch of :func:`tell`, with what the grammar knows about each word.

    ``subjects[b, i]`` is the position of the subject of the verb ``inputs[b, i]``, ``antecedents[b, i]`` that of the
    word for which the pronoun ``inputs[b, i]`` stands; -1 where the word is no verb, no pronoun. ``surprisals`` are
    those of the targets, in nats: the loss, position by position, of a model that knows the grammar. Every target
    counts, so ``loss_mask`` is True throughout.
    """

    subjects: Int[Tensor, "b n"]
    antecedents: Int[Tensor, "b n"]
    surprisals: Float[Tensor, "b n"]


def tell(generator: torch.Generator, *, batch_size: int, n: int) -> StoryBatch:
    r"""Tell English-like stories in which it is known who does what.

    *The young queen that these dogs follow sees herself and smiles. Then she waits.* A verb agrees in number with its
    subject, which may lie far back, behind nouns of the other number (*queen … dogs follow … sees*). *She*, *he*,
    *it* or *they* at the head of a sentence stands for the subject that the story is about, *herself* and its like
    for the subject of their own verb.

    Each row begins with a new story and is cut off after ``n`` inputs. ``VOCABULARY`` has the words; the loss cannot
    fall below the mean of :func:`word_entropies`, and on one batch not below the mean of its ``surprisals`` by more
    than luck.

    ::

        >>> batch = tell(torch.Generator().manual_seed(17), batch_size=2, n=8)
        >>> batch.inputs.shape, batch.surprisals.shape
        (torch.Size([2, 8]), torch.Size([2, 8]))
        >>> decode(batch.inputs[0])
        'This king that chases these small birds loves'
        >>> batch.subjects[0]
        tensor([-1, -1, -1,  1, -1, -1, -1,  1])

    Raises:
        ValueError: if ``batch_size`` or ``n`` is not a positive integer.
    """
    check_size("n", n, at_least=1)
    check_size("batch_size", batch_size, at_least=1)
    device = generator.device  # and float64 whatever the default type, so that it does not change the stories
    chances = torch.rand(batch_size, n + 1, generator=generator, device=device, dtype=torch.float64)
    told = torch.tensor([list(_tell(row)) for row in chances.tolist()], device=device, dtype=torch.float64)
    words, subjects, antecedents = told[..., :3].long().unbind(-1)
    return StoryBatch(
        inputs=words[:, :-1],
        targets=words[:, 1:],
        loss_mask=torch.ones_like(words[:, 1:], dtype=torch.bool),
        subjects=subjects[:, :-1],
        antecedents=antecedents[:, :-1],
        surprisals=told[:, 1:, 3],
    )


# --- how likely -----------------------------------------------------------------------------------------------------


def first_word() -> Float[Tensor, "words"]:
    """Return how likely each word of ``VOCABULARY`` is to begin a story, in float64.

    ::

        >>> [VOCABULARY[number] for number in first_word().nonzero().flatten()]
        ['a', 'the', 'these', 'this', 'two']
    """
    return torch.tensor(_CHANCES["subject"], dtype=torch.float64)


def next_word(tokens: Int[Tensor, "*batch n"]) -> Float[Tensor, "*batch n words"]:
    r"""Return how likely each word of ``VOCABULARY`` is to come next, after each word of a text that begins a story.

    .. math:: P_{i,w} = \Pr(x_{i+1} = w \mid x_1 \dots x_i)

    Exactly, and in float64: row :math:`i` is what a model that knew the grammar would answer where it is given
    :math:`x_i`. The rows after a word that the grammar could not have written are ``NaN``: there is no such story,
    so no word of it is next (:func:`first_error` says where that begins). Sums over the rest are ``nansum``.

    ::

        >>> chances = next_word(encode("The queen that two dogs follow"))
        >>> chances.shape
        torch.Size([6, 72])
        >>> [VOCABULARY[number] for number in chances[1].nonzero().flatten()][:5]
        ['that', 'behind', 'beside', 'near', 'chases']

    Raises:
        ValueError: if the tokens are not integers in the range of ``VOCABULARY``.
    """
    check_integers("tokens", tokens, "*batch n")
    rows = tokens.reshape(prod(tokens.shape[:-1]), tokens.shape[-1]).tolist()
    chances = [[_CHANCES[symbol] for symbol in _follow(row)] for row in rows]
    return torch.tensor(chances, dtype=torch.float64, device=tokens.device).reshape(*tokens.shape, len(VOCABULARY))


def first_error(tokens: Int[Tensor, "n"]) -> int | None:
    """Return the place of the first word that the grammar could not have written, ``None`` if it could write them all.

    A story that is cut off is no error. A pronoun is one if it does not fit the subject of the story, however good its
    sentence.

    ::

        >>> first_error(encode("The queen sings. He sleeps."))
        4
        >>> first_error(encode("The queen sings. She")) is None
        True

    Raises:
        ValueError: as :func:`next_word`, and if there is more than one text.
    """
    check_integers("tokens", tokens, "n")
    return next((place for place, symbol in enumerate(_follow(tokens.tolist())) if symbol is None), None)


def word_entropies(n: int) -> Float[Tensor, "n"]:
    r"""Return the exact entropy of each target of :func:`tell` given the inputs up to there, in nats.

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


def _known(numbers: list[int]) -> list[int]:
    """The same numbers, once each is known to be a word's."""
    for number in numbers:
        check_size("tokens", number, at_least=0, at_most=len(VOCABULARY) - 1)
    return numbers


def _follow(numbers: list[int]) -> Iterator[str | None]:
    """Read words, and say after each what is to be written next; ``None`` once a word was none of the possible ones."""
    left_to_say: list[str] | None = ["subject"]  # the next symbol last
    for number in _known(numbers):
        rule = None if left_to_say is None else _RULES[left_to_say.pop()].get(VOCABULARY[number])
        if left_to_say is None or rule is None:
            left_to_say = None
            yield None
        else:
            left_to_say += [then.symbol for then in reversed(rule.then)]
            yield left_to_say[-1]


def _one_word_later(left_to_say: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """How likely each stack is after one more word; the words themselves no longer matter."""
    later = defaultdict(float)
    for (symbol, *rest), chance in left_to_say.items():
        for rule in _GRAMMAR[symbol]:
            later[*(then.symbol for then in rule.then), *rest] += chance * rule.probability
    return later
