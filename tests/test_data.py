"""The tasks have the answers that they claim, from the inputs alone; the stories agree and surprise as they claim."""

import math
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from lessons_lib import data

TASKS = {
    data.copy: {"batch_size": 5, "length": 7, "n_symbols": 11},
    data.sorting: {"batch_size": 5, "length": 7, "n_symbols": 11},
    data.modular_sums: {"batch_size": 5, "modulus": 11, "n_terms": 3},
    data.induction: {"batch_size": 5, "n": 23, "n_symbols": 13, "min_period": 3, "max_period": 11},
    data.stories: {"batch_size": 5, "n": 23},
}
each_task = pytest.mark.parametrize(
    ("task", "settings"), TASKS.items(), ids=lambda value: getattr(value, "__name__", "")
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def equal(ours, theirs):
    return all(map(torch.equal, vars(ours).values(), vars(theirs).values()))


# --- every task -----------------------------------------------------------------------------------------------------


@each_task
def test_the_generator_alone_decides(task, settings):
    before = torch.get_rng_state()
    ours, again = task(generator(3), **settings), task(generator(3), **settings)
    torch.set_default_dtype(torch.float32)
    in_single = task(generator(3), **settings)
    assert equal(ours, again)
    assert equal(ours, in_single)
    assert not torch.equal(ours.inputs, task(generator(4), **settings).inputs)
    assert torch.equal(torch.get_rng_state(), before)


@each_task
def test_a_stream_draws_when_asked_and_goes_on_from_a_saved_state(task, settings):
    ours = generator(3)
    batches = data.stream(task, ours, **settings)
    next(batches)
    state = ours.get_state()
    second = next(batches)
    resumed = data.stream(task, generator().set_state(state), **settings)
    assert equal(second, next(resumed))


@each_task
def test_batches_have_one_shape_and_whole_numbers(task, settings):
    batch = task(generator(), **settings)
    assert batch.inputs.shape == batch.targets.shape == batch.loss_mask.shape
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.loss_mask.any(-1).all()


@each_task
def test_an_empty_batch_is_refused(task, settings):
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        task(generator(), **settings | {"batch_size": 0})


# --- symbols: an oracle that reads no further than it may answers every counted position --------------------------


def copies(seen, length):
    return seen[len(seen) - length - 1]


def sorts(seen, length):
    return sorted(seen[:length])[len(seen) - length - 1]


def adds(seen, length):
    return sum(seen[:length]) % seen[length]  # the mark is the number of symbols: here, the modulus


def follows_the_last_copy(seen, _):
    return next(seen[i + 1] for i in reversed(range(len(seen) - 1)) if seen[i] == seen[-1])


def answers(batch, oracle, length):
    return [
        oracle(row[: i + 1].tolist(), length) == batch.targets[b, i].item()
        for b, row in enumerate(batch.inputs)
        for i in batch.loss_mask[b].nonzero().flatten().tolist()
    ]


@pytest.mark.parametrize(
    ("task", "oracle", "length", "n_counted"),
    [
        (data.copy, copies, 7, 7),
        (data.sorting, sorts, 7, 7),
        (data.modular_sums, adds, 3, 1),
        (data.induction, follows_the_last_copy, None, None),
    ],
    ids=["copy", "sorting", "modular_sums", "induction"],
)
def test_the_inputs_determine_every_counted_target(task, oracle, length, n_counted):
    batch = task(generator(), **TASKS[task])
    assert all(answers(batch, oracle, length))
    if n_counted:
        assert batch.loss_mask.sum(-1).tolist() == [n_counted] * 5
    wrong = replace(batch, targets=batch.targets.roll(1, dims=-1))
    assert not all(answers(wrong, oracle, length))


def test_targets_are_the_inputs_one_step_later():
    for task, settings in TASKS.items():
        batch = task(generator(), **settings)
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])


def test_sorted_symbols_are_the_same_symbols():
    batch = data.sorting(generator(), batch_size=5, length=7, n_symbols=4)
    for question, answer in zip(batch.inputs[:, :7], batch.targets[:, 7:], strict=True):
        assert Counter(question.tolist()) == Counter(answer.tolist())
        assert answer.tolist() == sorted(answer.tolist())


def test_induction_repeats_different_symbols_at_the_rows_own_period():
    batch = data.induction(generator(), **TASKS[data.induction] | {"batch_size": 301})
    tokens = torch.cat([batch.inputs, batch.targets[:, -1:]], dim=-1)
    for row, mask, period in zip(tokens, batch.loss_mask, batch.periods.tolist(), strict=True):
        assert torch.equal(row[period:], row[:-period])
        assert len(set(row[:period].tolist())) == period
        assert mask.tolist() == [i >= period for i in range(23)]
    assert set(batch.periods.tolist()) == set(range(3, 12))


def test_one_position_more_could_not_be_known():
    batch = data.induction(generator(), **TASKS[data.induction])
    earlier = batch.loss_mask | batch.loss_mask.roll(-1, dims=-1)
    with pytest.raises(StopIteration):
        answers(replace(batch, loss_mask=earlier), follows_the_last_copy, None)


@pytest.mark.parametrize(
    ("task", "impossible", "message"),
    [
        (data.copy, {"length": 0}, "length must be at least 1, got 0"),
        (data.copy, {"n_symbols": 1}, "n_symbols must be at least 2, got 1"),
        (data.sorting, {"n_symbols": 1}, "n_symbols must be at least 2, got 1"),
        (data.modular_sums, {"modulus": 1}, "modulus must be at least 2, got 1"),
        (data.modular_sums, {"n_terms": 0}, "n_terms must be at least 1, got 0"),
        (data.induction, {"n": 1}, "n must be at least 2, got 1"),
        (data.induction, {"max_period": 23, "n_symbols": 31}, "max_period must be at most 22, got 23"),
        (data.induction, {"min_period": 12}, "min_period must be at most 11, got 12"),
        (data.induction, {"min_period": 0}, "min_period must be at least 1, got 0"),
        (data.induction, {"n_symbols": 10}, "n_symbols must be at least 11, got 10"),
        (data.stories, {"n": 0}, "n must be at least 1, got 0"),
    ],
)
def test_impossible_settings_are_refused(task, impossible, message):
    with pytest.raises(ValueError, match=message):
        task(generator(), **TASKS[task] | impossible)


# --- stories: who does what -----------------------------------------------------------------------------------------

NUMBER = dict.fromkeys((*data._PLURAL_NOUNS, "they", "themselves"), "several")
NUMBER |= dict.fromkeys(data._conjugated(data._INTRANSITIVE + data._TRANSITIVE, "they"), "several")
KIND = {noun: kind for kind, nouns in data._NOUNS.items() for noun in nouns}
KIND |= {reflexive: kind for kind, reflexive in data._REFLEXIVES.items()} | {kind: kind for kind in data.KINDS}


def number(word):
    return NUMBER.get(word, "one")


def words(tokens):
    return [data.VOCABULARY[token] for token in tokens.tolist()]


def pairs(batch, annotation):
    """Every (word, word that it belongs to, words between them) of a batch."""
    for row, partners in zip(batch.inputs, annotation, strict=True):
        told = words(row)
        for i, j in enumerate(partners.tolist()):
            if j >= 0:
                assert j < i
                yield told[i], told[j], told[j + 1 : i]


@pytest.fixture(scope="module")
def told():
    return data.stories(generator(), batch_size=211, n=61)


def test_a_story_is_annotated_as_a_reader_would():
    batch = data.stories(generator(), batch_size=32, n=64)
    row = batch.inputs[1, :31]
    assert data.decode(row) == (
        "The woman knows herself. This cat that this brave woman follows sings. "
        "It sleeps. It sings. Then it waits. It chases two dogs and knows itself"
    )
    subjects = {2: 1, 11: 10, 12: 6, 15: 14, 18: 17, 22: 21, 25: 24, 29: 24}
    antecedents = {3: 1, 14: 6, 17: 6, 21: 6, 24: 6, 30: 24}
    assert {i: j for i, j in enumerate(batch.subjects[1, :31].tolist()) if j >= 0} == subjects
    assert {i: j for i, j in enumerate(batch.antecedents[1, :31].tolist()) if j >= 0} == antecedents


def test_every_verb_has_a_subject_and_every_pronoun_an_antecedent(told):
    for row, subjects, antecedents in zip(told.inputs, told.subjects, told.antecedents, strict=True):
        for word, subject, antecedent in zip(words(row), subjects.tolist(), antecedents.tolist(), strict=True):
            assert (subject >= 0) == (word in data.VERBS)
            assert (antecedent >= 0) == (word in data.PRONOUNS)


def test_verbs_agree_with_their_subjects_across_distractors(told):
    agreements = [number(verb) == number(subject) for verb, subject, _ in pairs(told, told.subjects)]
    assert all(agreements)
    distracted = [
        any(word in KIND and number(word) != number(subject) for word in between)
        for _, subject, between in pairs(told, told.subjects)
    ]
    assert sum(distracted) > 0.1 * len(distracted)


def test_the_nearest_noun_would_be_caught(told):
    """The wrong rule that most verbs would forgive: agree with the noun or pronoun just before."""
    wrong = []
    for row, subjects in zip(told.inputs, told.subjects, strict=True):
        story = words(row)
        for i in (subjects >= 0).nonzero().flatten().tolist():
            nearest = next(word for word in reversed(story[:i]) if word in KIND)
            wrong.append(number(nearest) != number(story[i]))
    assert sum(wrong) > 0.1 * len(wrong)


def test_pronouns_agree_with_their_antecedents(told):
    assert all(KIND[pronoun] == KIND[antecedent] for pronoun, antecedent, _ in pairs(told, told.antecedents))
    distances = [len(between) for pronoun, _, between in pairs(told, told.antecedents) if pronoun in data.KINDS]
    assert max(distances) > 20


# --- stories: how surprising ----------------------------------------------------------------------------------------


def test_every_symbol_is_a_choice_among_different_words():
    for symbol, rules in data._GRAMMAR.items():
        assert len({rule.word for rule in rules}) == len(rules), symbol
        assert math.isclose(sum(rule.probability for rule in rules), 1.0), symbol
        assert {then.symbol for rule in rules for then in rule.then} <= data._GRAMMAR.keys()
    assert {rule.word for rules in data._GRAMMAR.values() for rule in rules} == set(data.VOCABULARY)


def test_entropies_are_those_of_the_listed_beginnings():
    """Chain rule: list every beginning of 1 to 4 words with its probability; the stack plays no part in it."""
    beginnings = {((), ("subject",)): 1.0}
    totals = []
    for _ in range(4):
        longer = defaultdict(float)
        for (said, (symbol, *rest)), chance in beginnings.items():
            for rule in data._GRAMMAR[symbol]:
                longer[(*said, rule.word), (*(then.symbol for then in rule.then), *rest)] += chance * rule.probability
        beginnings = longer
        by_words = defaultdict(float)
        for (said, _), chance in beginnings.items():
            by_words[said] += chance
        totals.append(-sum(chance * math.log(chance) for chance in by_words.values()))
    conditional = torch.tensor(totals).diff()
    assert_close(data.stories_entropy(3), conditional, rtol=0, atol=1e-12)


def test_surprisals_are_on_average_the_entropy():
    batch = data.stories(generator(), batch_size=2003, n=19)
    excess = (batch.surprisals - data.stories_entropy(19)).mean(0)
    standard_error = batch.surprisals.std(0) / math.sqrt(2003)
    assert (excess.abs() < 4 * standard_error).all()  # measured: at most 2.2


def test_the_entropy_settles_to_a_rate_below_that_of_single_words():
    entropies = data.stories_entropy(101)
    assert_close(entropies[-1], entropies[-2], rtol=0, atol=1e-6)
    counts = data.stories(generator(), batch_size=53, n=101).inputs.flatten().bincount(minlength=len(data.VOCABULARY))
    frequencies = counts / counts.sum()
    assert entropies.mean() < 0.6 * -(frequencies * frequencies.clamp_min(1e-9).log()).sum()


def test_the_entropy_must_have_a_position():
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        data.stories_entropy(0)


# --- stories: words and numbers -------------------------------------------------------------------------------------


def test_text_and_numbers_are_each_others_inverse(told):
    text = "The young queen that these dogs follow sees herself and smiles. Then she waits."
    assert data.decode(data.encode(text)) == text
    for row in told.inputs[:17]:
        assert torch.equal(data.encode(data.decode(row)), row)


def test_the_vocabulary_is_small_and_without_repetition():
    assert len(set(data.VOCABULARY)) == len(data.VOCABULARY) == 72


def test_a_word_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="72 words of VOCABULARY, got 'dragon'"):
        data.encode("The dragon sleeps.")


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.int64), r"integers over \(n,\), got torch.int64 over \(2, 3\)"),
        (torch.zeros(3, dtype=torch.float64), r"integers over \(n,\), got torch.float64 over \(3,\)"),
        (torch.tensor([72]), "tokens must be at most 71, got 72"),
        (torch.tensor([-1]), "tokens must be at least 0, got -1"),
    ],
)
def test_only_numbers_of_words_are_decoded(tokens, message):
    with pytest.raises(ValueError, match=message):
        data.decode(tokens)
