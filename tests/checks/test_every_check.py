"""What holds for every check: it passes what is right, in any style, and names the mistake in what is wrong.

The answers are in ``answers/``, a file for each file of checks: ``RIGHT`` holds for each check one answer or more,
``WRONG`` holds pairs of an answer and a pattern of what it must be told (and the number of cases, where the default
is too small to show the mistake).
"""

import inspect
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from pathlib import Path

import pytest
import torch
from thorough import all_but
from torch import Tensor

import lessons_lib.checks
from lessons_lib.checks import compare

FILES = sorted(path.stem for path in Path(lessons_lib.checks.__file__).parent.glob("[!_]*.py"))
ANSWERS = {name: import_module(f"answers.{name}") for name in FILES}
CHECKS = {
    f"{name}.{check.__name__}": check
    for name in FILES
    for check in vars(ANSWERS[name].check).values()
    if inspect.isfunction(check) and next(iter(inspect.signature(check).parameters), "") == "answer"
    if not check.__name__.startswith("_") and check.__module__ == ANSWERS[name].check.__name__
}


class Answers(dict):
    """The answers to each check; a check without any is an error that says where they belong."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(item for name in FILES for item in vars(ANSWERS[name])[kind.upper()].items())

    def __missing__(self, check: Callable) -> list:
        raise AssertionError(self.missing(check))

    def missing(self, check: Callable) -> str:
        file = check.__module__.rpartition(".")[2]
        return f"tests/checks/answers/{file}.py has no {self.kind} answers to {check.__name__}"


RIGHT, WRONG = Answers("right"), Answers("wrong")


@pytest.fixture(autouse=True)
def as_in_a_notebook(double_precision):
    """Single precision unless an answer says otherwise; ``double_precision`` sets it back."""
    torch.set_default_dtype(torch.float32)


every_check = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)


def each_of(table: dict) -> list:
    """Every answer of a table, under the name of its check."""
    names = {check: name for name, check in CHECKS.items()}
    return [pytest.param(check, answer, id=names[check]) for check, answers in table.items() for answer in answers]


def test_every_check_has_right_and_wrong_answers():
    assert len(CHECKS) > 40
    assert [table.missing(check) for table in (RIGHT, WRONG) for check in CHECKS.values() if check not in table] == []
    assert set(RIGHT) | set(WRONG) == set(CHECKS.values())
    assert {name: len(RIGHT[check]) for name, check in CHECKS.items() if len(RIGHT[check]) < 4} == {}
    assert {name: len(WRONG[check]) for name, check in CHECKS.items() if len(WRONG[check]) < 10} == {}


@pytest.mark.parametrize("table", [RIGHT, WRONG], ids=["right", "wrong"])
def test_a_check_without_answers_is_named_with_the_file_they_belong_into(table):
    def temperature_of(answer): ...

    temperature_of.__module__ = "lessons_lib.checks.scaling"
    said = f"tests/checks/answers/scaling.py has no {table.kind} answers to temperature_of"
    with pytest.raises(AssertionError, match=said):
        table[temperature_of]


# --- right answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", all_but(range(3), lambda seed: seed == 0))
@pytest.mark.parametrize(("check", "answer"), each_of(RIGHT))
def test_right_answers_pass(check, answer, seed):
    check(answer, seed=seed, cases=12)


@every_check
@pytest.mark.usefixtures("either_precision")
def test_the_default_precision_does_not_matter(check):
    check(RIGHT[check][0])


@every_check
def test_what_a_check_compares_with_is_in_double_precision(check, monkeypatch):
    """With another default precision it is the same to the last digit, and so is what each mistake gives."""
    assert str(compared_with(check, monkeypatch, torch.float32)) == str(
        compared_with(check, monkeypatch, torch.float64)
    )


@every_check
def test_another_seed_draws_other_inputs_and_the_same_seed_the_same(check):
    first, again, other = (lent_by(check, seed=seed) for seed in (5, 5, 6))
    assert str(first) == str(again)  # as text, since NaN is not equal to itself
    assert str(first) != str(other)


# --- wrong answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("check", "answer"), each_of(WRONG))
def test_the_mistake_in_a_wrong_answer_is_named(check, answer):
    wrong, says, *cases = answer
    with pytest.raises(AssertionError, match=says):
        check(wrong, **({"cases": cases[0]} if cases else {}))


@every_check
def test_every_mistake_that_a_check_knows_is_made_by_some_answer(check, monkeypatch):
    known, told = set(), []

    def noting(what, got, wanted, mistakes, **options):
        known.update(mistakes)
        compare(what, got, wanted, mistakes, **options)

    for module in (lessons_lib.checks, inspect.getmodule(check)):
        monkeypatch.setattr(module, "compare", noting, raising=False)
    check(RIGHT[check][0])
    for wrong, _, *cases in WRONG[check]:
        with pytest.raises(AssertionError) as caught:
            check(wrong, **({"cases": cases[0]} if cases else {}))
        told.append(str(caught.value))
    assert {sentence for sentence in known if not any(sentence in message for message in told)} == set()


@every_check
def test_what_an_answer_raises_is_not_hidden(check, stub):
    with pytest.raises(NotImplementedError):
        check(stub)


@every_check
def test_nothing_returned_is_told(check):
    with pytest.raises(AssertionError, match="did you forget to return"):
        check(lambda *_: None)


@every_check
def test_every_case_and_every_part_counts(check):
    """An answer that is right in all cases but one, and there wrong in one part of what it returns, does not pass."""
    right = RIGHT[check][0]
    first, calls = recorded(check, right, cases=1), recorded(check, right, cases=3)
    second = recorded(check, right, cases=2)[len(first) :]
    assert len(first) < len(first) + len(second) < len(calls)
    for part in range(n_parts(first[0])):
        for spoilt_calls in (range(len(first)), range(len(first), len(first) + len(second))):
            with pytest.raises(AssertionError):
                check(but_wrong(right, part, spoilt_calls), cases=3)


@every_check
def test_an_answer_that_changes_its_arguments_is_told(check):
    for number in range(len(lent_by(check, cases=1)[-1][0])):
        with pytest.raises(AssertionError, match="changed its argument"):
            check(spoiling(RIGHT[check][0], number))


# --- parts ----------------------------------------------------------------------------------------------------------


def recorded(check: Callable, right: Callable, **options) -> list:
    """What the right answer returns, call by call."""
    returned = []
    check(lambda *given: returned.append(right(*given)) or returned[-1], **options)
    return returned


def lent_by(check: Callable, **options) -> list[tuple[list, list]]:
    """What the answer is given, call by call: the tensors, as lists, and what can be compared besides."""
    lent = []

    def answer(*given):
        plain = [item for item in given if isinstance(item, (int, float, list))]
        lent.append(([tensor.tolist() for tensor in tensors(given)], plain))
        return RIGHT[check][0](*given)

    check(answer, **options)
    return lent


def compared_with(check: Callable, monkeypatch, default: torch.dtype) -> list:
    """What a check holds against the right answer, as numbers; what it draws at random is the same for any default."""
    used = []

    def in_double(draw):
        return lambda *sizes, **options: draw(*sizes, **{"dtype": torch.float64} | options)

    def plain(value):
        if isinstance(value, Tensor):
            assert value.dtype != torch.float32
            return value.tolist()
        return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value

    def noting(compare):
        def noted(what, got, wanted, mistakes, **options):
            used.append([plain(wanted), [(why, plain(made)) for why, made in mistakes.items()]])
            compare(what, got, wanted, mistakes, **options)

        return noted

    torch.set_default_dtype(default)
    with monkeypatch.context() as patched:
        for draw in ("rand", "randn", "full"):
            patched.setattr(torch, draw, in_double(getattr(torch, draw)))
        for name in ("compare", "compare_number"):
            original = getattr(lessons_lib.checks, name)
            patched.setattr(inspect.getmodule(check), name, noting(original), raising=False)
        check(RIGHT[check][0])
    return used


def n_parts(value: object) -> int:
    return len(value) if isinstance(value, tuple) else 1


def but_wrong(right: Callable, part: int, calls: range) -> Callable:
    """Make an answer that is wrong in one part in some of its calls."""
    count = iter(range(10**6))

    def answer(*given):
        value = right(*given)
        if next(count) not in calls:
            return value
        return (*value[:part], wrong(value[part]), *value[part + 1 :]) if isinstance(value, tuple) else wrong(value)

    return answer


def wrong(value):
    if isinstance(value, Tensor) and value.dtype == torch.bool:
        return ~value
    if isinstance(value, (Tensor, int, float)):
        return value + 1
    return type(value)(map(wrong, value)) if isinstance(value, tuple) else value[1:]


def tensors(given: object) -> list[Tensor]:
    if isinstance(given, (list, tuple)):
        return [tensor for item in given for tensor in tensors(item)]
    return [given] if isinstance(given, Tensor) else []


def deepcopied(given: tuple) -> tuple:
    """Copy what is lent; an iterator is lent as it is."""
    return tuple(deepcopy(item) if isinstance(item, (Tensor, list, tuple)) else item for item in given)


def spoiling(right: Callable, number: int) -> Callable:
    """Make an answer that returns what is right and leaves one of the tensors that it was given changed."""

    def answer(*given):
        value, lent = right(*deepcopied(given)), tensors(given)
        if number < len(lent):
            lent[number].copy_(wrong(lent[number]))
        return value

    return answer
