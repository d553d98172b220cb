r"""A small language: English-like stories from a grammar with exact next-word probabilities.

The grammar also annotates the subject of each verb and the antecedent of each pronoun, so claims such as "this head
attends from the verb to its subject" can be measured. :func:`sample_stories` draws stories from a ``torch.Generator``,
as :mod:`lessons_lib.training.tasks` draws tasks: the same state gives the same stories, and no other random state is
read or changed. :func:`next_word_probs` returns the distribution that a perfect language model would predict after each
word, :func:`first_error` the position of the first word that the grammar does not allow.
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

from lessons_lib.foundations.validation import check_integers, check_size
from lessons_lib.training.tasks import Batch

# --- vocabulary -----------------------------------------------------------------------------------------------------
# The class of a noun is named after the pronoun that replaces it. "they" is the class of all plural nouns.

NOUN_CLASSES = ("she", "he", "it", "they")
_REFLEXIVES = {"she": "herself", "he": "himself", "it": "itself", "they": "themselves"}
_SINGULAR_NOUNS = {
    "she": ("girl", "queen", "woman"),
    "he": ("boy", "king", "man"),
    "it": ("bird", "cat", "dog", "horse"),
}
_IRREGULAR_PLURALS = {"woman": "women", "man": "men"}
_PLURAL_NOUNS = tuple(_IRREGULAR_PLURALS.get(noun, f"{noun}s") for nouns in _SINGULAR_NOUNS.values() for noun in nouns)
_NOUNS = {**_SINGULAR_NOUNS, "they": _PLURAL_NOUNS}
_DETERMINERS = {  # each with the classes of nouns that may follow it
    "the": NOUN_CLASSES,
    "a": ("she", "he", "it"),
    "this": ("she", "he", "it"),
    "these": ("they",),
    "two": ("they",),
}
_ADJECTIVES = ("brave", "happy", "quiet", "small", "tired", "young")
_PREPOSITIONS = ("behind", "beside", "near")
_INTRANSITIVE = ("dance", "laugh", "sing", "sleep", "smile", "wait")
_TRANSITIVE = ("chase", "follow", "hear", "know", "like", "love", "see")


def _conjugated(verbs: Sequence[str], noun_class: str) -> tuple[str, ...]:
    return tuple(verbs) if noun_class == "they" else tuple(f"{verb}s" for verb in verbs)


VERBS = frozenset(word for c in ("she", "they") for word in _conjugated(_INTRANSITIVE + _TRANSITIVE, c))
PRONOUNS = frozenset((*NOUN_CLASSES, *_REFLEXIVES.values()))
VOCABULARY = (
    *(".", "and", "that", "then"),
    *sorted((*_DETERMINERS, *_ADJECTIVES, *_PREPOSITIONS)),
    *sorted(noun for nouns in _NOUNS.values() for noun in nouns),
    *sorted(PRONOUNS),
    *sorted(VERBS),
)
_INDEX = {word: index for index, word in enumerate(VOCABULARY)}


def encode(text: str) -> Int[Tensor, "n"]:
    """Convert a text to the indices of its words in ``VOCABULARY``. The full stop is a word.

    >>> encode("The girl sings.").shape
    torch.Size([4])

    Raises:
        ValueError: if a word is not in the vocabulary.
    """
    words = text.lower().replace(".", " . ").split()
    unknown = [word for word in words if word not in _INDEX]
    if unknown:
        raise ValueError(f"text must be made of the {len(VOCABULARY)} words of VOCABULARY, got {unknown[0]!r}")
    return torch.tensor([_INDEX[word] for word in words], dtype=torch.int64)


def decode(tokens: Int[Tensor, "n"]) -> str:
    """Convert word indices to a text with capitals and full stops: the inverse of :func:`encode`.

    >>> decode(encode("the girl sings . she"))
    'The girl sings. She'

    Raises:
        ValueError: if ``tokens`` is not one sequence of integers in the range of ``VOCABULARY``.
    """
    check_integers("tokens", tokens, "n")
    sentences = " ".join(VOCABULARY[index] for index in _in_vocabulary(tokens.tolist())).split(" . ")
    return ". ".join(sentence[:1].upper() + sentence[1:] for sentence in sentences).replace(" .", ".")


# --- the grammar ----------------------------------------------------------------------------------------------------
# A context-free grammar in which every rule writes one word and then expands to a sequence of symbols. No two rules of
# a symbol write the same word. So the words determine which rules were used and which symbols remain on the stack, and
# the entropy of the next word is that of the choice among the rules of the next symbol.


class _Symbol(NamedTuple):
    """A symbol in the expansion of a rule, and the word that it is about: its subject or antecedent.

    That is either the word that the rule writes, or the word that the rule's own symbol is about.
    """

    name: str
    about_this_word: bool


class _Rule(NamedTuple):
    """A rule of a symbol: the word that it writes, its probability and the symbols that must be written next."""

    word: str
    probability: float
    expansion: tuple[_Symbol, ...]


def _about_this_word(name: str) -> _Symbol:
    return _Symbol(name, about_this_word=True)


def _about_the_same(name: str) -> _Symbol:
    return _Symbol(name, about_this_word=False)


def _uniform(words: Sequence[str], *expansion: _Symbol) -> list[_Rule]:
    return [_Rule(word, 1 / len(words), expansion) for word in words]


def _mixture(*alternatives: tuple[float, list[_Rule]]) -> list[_Rule]:
    return [rule._replace(probability=p * rule.probability) for p, rules in alternatives for rule in rules]


def _noun_phrase(role: str, expansion: Callable[[str], tuple[_Symbol, ...]]) -> dict[str, list[_Rule]]:
    """Return the rules of a determiner, an optional adjective and a noun, whose class determines its expansion."""
    grammar = {}
    for classes in _DETERMINERS.values():
        nouns = [_Rule(noun, 1.0, expansion(c)) for c in classes for noun in _NOUNS[c]]
        plain = f"{role}: noun ({'/'.join(classes)})"
        grammar[plain] = _mixture((1 / len(nouns), nouns))
        grammar[f"adjective or {plain}"] = _mixture(
            (0.3, _uniform(_ADJECTIVES, _about_the_same(plain))), (0.7, grammar[plain])
        )
    grammar[role] = [
        _Rule(determiner, 1 / len(_DETERMINERS), (_about_the_same(f"adjective or {role}: noun ({'/'.join(classes)})"),))
        for determiner, classes in _DETERMINERS.items()
    ]
    return grammar


def _build_grammar() -> dict[str, list[_Rule]]:
    grammar = (
        _noun_phrase(
            "subject",
            lambda c: (_about_this_word(f"modifier or predicate {c}"), _about_this_word(f"next sentence {c}")),
        )
        | _noun_phrase("other subject", lambda c: (_about_this_word(f"their verb {c}"),))
        | _noun_phrase("object", lambda c: ())
    )
    for c in NOUN_CLASSES:
        intransitive, transitive = _conjugated(_INTRANSITIVE, c), _conjugated(_TRANSITIVE, c)
        predicate, end = _about_the_same(f"predicate {c}"), _about_the_same(f"end {c}")
        grammar[predicate.name] = _mixture(
            (0.4, _uniform(intransitive, end)),
            (0.6, _uniform(transitive, _about_the_same(f"object or reflexive {c}"), end)),
        )
        grammar[f"modifier or predicate {c}"] = _mixture(
            (0.2, _uniform(_PREPOSITIONS, _about_the_same("object"), predicate)),
            (0.3, _uniform(["that"], _about_the_same(f"relative clause {c}"), predicate)),
            (0.5, grammar[predicate.name]),
        )
        grammar[f"relative clause {c}"] = _mixture(
            (0.5, _uniform(transitive, _about_the_same("object"))), (0.5, grammar["other subject"])
        )
        grammar[f"their verb {c}"] = _uniform(transitive)
        grammar[f"object or reflexive {c}"] = _mixture((0.25, _uniform([_REFLEXIVES[c]])), (0.75, grammar["object"]))
        grammar[end.name] = _mixture((0.2, _uniform(["and"], predicate)), (0.8, _uniform(["."])))
        grammar[f"pronoun {c}"] = _uniform([c], _about_this_word(f"predicate {c}"))
        grammar[f"next sentence {c}"] = _mixture(
            (0.4, _uniform([c], _about_this_word(f"predicate {c}"), _about_the_same(f"next sentence {c}"))),
            (0.2, _uniform(["then"], _about_the_same(f"pronoun {c}"), _about_the_same(f"next sentence {c}"))),
            (0.4, grammar["subject"]),
        )
    return grammar


_GRAMMAR = _build_grammar()
_THRESHOLDS = {symbol: list(accumulate(rule.probability for rule in rules)) for symbol, rules in _GRAMMAR.items()}
_RULES = {symbol: {rule.word: rule for rule in rules} for symbol, rules in _GRAMMAR.items()}
# The probability of each word if a symbol is next. The key None is for a text that the grammar does not allow.
_NEXT_WORD_PROBS: dict[str | None, list[float]] = {
    symbol: [rules[word].probability if word in rules else 0.0 for word in VOCABULARY]
    for symbol, rules in _RULES.items()
}
_NEXT_WORD_PROBS[None] = [nan] * len(VOCABULARY)


# --- sampling -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StoryBatch(Batch):
    """A batch of :func:`sample_stories`, with the grammar's annotations of each word.

    ``subjects[b, i]`` is the position of the subject of the verb ``inputs[b, i]``, or -1 if that word is not a verb.
    ``antecedents[b, i]`` is the position of the antecedent of the pronoun ``inputs[b, i]``, or -1 if that word is not a
    pronoun.
    ``surprisals`` are those of the targets, in nats: the loss at each position of a model that knows the grammar.
    ``loss_mask`` is True everywhere.
    """

    subjects: Int[Tensor, "b n"]
    antecedents: Int[Tensor, "b n"]
    surprisals: Float[Tensor, "b n"]


def sample_stories(generator: torch.Generator, *, batch_size: int, n: int) -> StoryBatch:
    r"""Sample English-like stories with annotated subjects and antecedents.

    *The young queen that these dogs follow sees herself and smiles. Then she waits.* A verb agrees in number with its
    subject, which may be many words earlier, with nouns of the other number in between (*queen … dogs follow … sees*).
    *She*, *he*, *it* or *they* at the beginning of a sentence stands for the subject of the story. A reflexive pronoun
    such as *herself* stands for the subject of its own verb.

    Each row begins a new story and is truncated after ``n`` inputs. The words are those of ``VOCABULARY``. The expected
    loss of a model cannot be below the mean of :func:`word_entropies`. On one batch it can only be below the mean of
    the ``surprisals`` by chance.

    >>> batch = sample_stories(torch.Generator().manual_seed(17), batch_size=2, n=8)
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
    device = generator.device
    # Always float64, so that the default dtype does not change the stories.
    uniform = torch.rand(batch_size, n + 1, generator=generator, device=device, dtype=torch.float64)
    sampled = torch.tensor([list(_sample_words(row)) for row in uniform.tolist()], device=device, dtype=torch.float64)
    words, subjects, antecedents = sampled[..., :3].long().unbind(-1)
    return StoryBatch(
        inputs=words[:, :-1],
        targets=words[:, 1:],
        loss_mask=torch.ones_like(words[:, 1:], dtype=torch.bool),
        subjects=subjects[:, :-1],
        antecedents=antecedents[:, :-1],
        surprisals=sampled[:, 1:, 3],
    )


# --- probabilities --------------------------------------------------------------------------------------------------


def first_word_probs() -> Float[Tensor, "words"]:
    """Return the probability of each word of ``VOCABULARY`` to begin a story, in float64.

    >>> [VOCABULARY[index] for index in first_word_probs().nonzero().flatten()]
    ['a', 'the', 'these', 'this', 'two']
    """
    return torch.tensor(_NEXT_WORD_PROBS["subject"], dtype=torch.float64)


def next_word_probs(tokens: Int[Tensor, "*batch n"]) -> Float[Tensor, "*batch n words"]:
    r"""Return the exact probability of each next word, after each word of a text that begins a story.

    .. math:: P_{i,w} = \Pr(x_{i+1} = w \mid x_1 \dots x_i)

    The result is in float64. Row :math:`i` is the prediction, after :math:`x_i`, of a model that knows the grammar.
    From the first word on that the grammar does not allow, the rows are ``NaN``, because no story begins with such a
    text (:func:`first_error` returns the position of that word). Use ``nansum`` to sum over the other rows.

    >>> probs = next_word_probs(encode("The queen that two dogs follow"))
    >>> probs.shape
    torch.Size([6, 72])
    >>> [VOCABULARY[index] for index in probs[1].nonzero().flatten()][:5]
    ['that', 'behind', 'beside', 'near', 'chases']

    Raises:
        ValueError: if the tokens are not integers in the range of ``VOCABULARY``.
    """
    check_integers("tokens", tokens, "*batch n")
    rows = tokens.reshape(prod(tokens.shape[:-1]), tokens.shape[-1]).tolist()
    probs = [[_NEXT_WORD_PROBS[symbol] for symbol in _next_symbols(row)] for row in rows]
    return torch.tensor(probs, dtype=torch.float64, device=tokens.device).reshape(*tokens.shape, len(VOCABULARY))


def first_error(tokens: Int[Tensor, "n"]) -> int | None:
    """Return the position of the first word that the grammar does not allow, or ``None`` if there is no such word.

    A truncated story is not an error. A pronoun that does not match the subject of the story is an error, even if its
    own sentence is correct.

    >>> first_error(encode("The queen sings. He sleeps."))
    4
    >>> first_error(encode("The queen sings. She")) is None
    True

    Raises:
        ValueError: as :func:`next_word_probs`, and if there is more than one text.
    """
    check_integers("tokens", tokens, "n")
    return next((i for i, symbol in enumerate(_next_symbols(tokens.tolist())) if symbol is None), None)


def word_entropies(n: int) -> Float[Tensor, "n"]:
    r"""Return the exact conditional entropy of each target of :func:`sample_stories` given its inputs, in nats.

    .. math:: H(x_{i+1} \mid x_1 \dots x_i) = \sum_s \Pr(\text{the stack is } s)\; H(\text{rule of the top of } s)

    Every rule of a symbol writes a different word, so the words so far determine the stack of symbols that remain to be
    written. There are a few hundred different stacks, and their probabilities are propagated from word to word, without
    sampling.

    The mean over ``n`` is the smallest possible expected loss on rows of ``n`` words; the last entries approach the
    entropy rate.

    >>> word_entropies(64).shape
    torch.Size([64])

    Raises:
        ValueError: if ``n`` is not a positive integer.
    """
    check_size("n", n, at_least=1)
    entropies = {
        symbol: -sum(rule.probability * log(rule.probability) for rule in rules) for symbol, rules in _GRAMMAR.items()
    }
    stacks, by_position = {("subject",): 1.0}, []
    for _ in range(n):
        stacks = _after_one_more_word(stacks)
        by_position.append(sum(p * entropies[symbol] for (symbol, *_), p in stacks.items()))
    return torch.tensor(by_position, dtype=torch.float64)


# --- parts ----------------------------------------------------------------------------------------------------------


def _sample_words(uniform: list[float]) -> Iterator[tuple[int, int, int, float]]:
    """Yield a word for each random number in [0, 1): its index, subject, antecedent and surprisal."""
    stack = [("subject", -1)]  # the next symbol last, each with the position of the word that it is about
    for position, u in enumerate(uniform):
        symbol, about = stack.pop()
        rules = _GRAMMAR[symbol]
        rule = rules[bisect(_THRESHOLDS[symbol], u, hi=len(rules) - 1)]
        stack += [(new.name, position if new.about_this_word else about) for new in reversed(rule.expansion)]
        subject = about if rule.word in VERBS else -1
        antecedent = about if rule.word in PRONOUNS else -1
        yield _INDEX[rule.word], subject, antecedent, -log(rule.probability)


def _in_vocabulary(tokens: list[int]) -> list[int]:
    """Check that each token is the index of a word, and return the tokens."""
    for token in tokens:
        check_size("tokens", token, at_least=0, at_most=len(VOCABULARY) - 1)
    return tokens


def _next_symbols(tokens: list[int]) -> Iterator[str | None]:
    """Yield the next symbol after each word; ``None`` from the first word on that the grammar does not allow."""
    stack: list[str] | None = ["subject"]  # the next symbol last
    for token in _in_vocabulary(tokens):
        rule = None if stack is None else _RULES[stack.pop()].get(VOCABULARY[token])
        if stack is None or rule is None:
            stack = None
            yield None
        else:
            stack += [symbol.name for symbol in reversed(rule.expansion)]
            yield stack[-1]


def _after_one_more_word(stacks: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Return the probability of each stack, here with the next symbol first, after one more word."""
    after = defaultdict(float)
    for (symbol, *rest), p in stacks.items():
        for rule in _GRAMMAR[symbol]:
            after[*(new.name for new in rule.expansion), *rest] += p * rule.probability
    return after
