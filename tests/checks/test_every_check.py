"""Tests of all checks: right answers in any style pass, and wrong answers get a message that names the mistake.

The answers are in ``answers/``, with a file for each file of checks. ``RIGHT`` holds one or more answers to each check.
``WRONG`` holds pairs of an answer and a pattern of its message, and the number of cases if the default is too small to
show the mistake.
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
    """The answers to each check; a missing check raises an error that names the file of its answers."""

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
def single_precision_as_in_a_notebook(double_precision):
    """Set the default type to float32, as in a notebook; the fixture ``double_precision`` restores it."""
    torch.set_default_dtype(torch.float32)


every_check = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)


def each_of(table: dict) -> list:
    """Return a test parameter for every answer of a table, with the name of its check as id."""
    names = {check: name for name, check in CHECKS.items()}
    return [pytest.param(check, answer, id=names[check]) for check, answers in table.items() for answer in answers]


def test_every_check_has_right_and_wrong_answers():
    assert len(CHECKS) > 40
    assert [table.missing(check) for table in (RIGHT, WRONG) for check in CHECKS.values() if check not in table] == []
    assert set(RIGHT) | set(WRONG) == set(CHECKS.values())
    assert {name: len(RIGHT[check]) for name, check in CHECKS.items() if len(RIGHT[check]) < 4} == {}
    assert {name: len(WRONG[check]) for name, check in CHECKS.items() if len(WRONG[check]) < 10} == {}


@pytest.mark.parametrize("table", [RIGHT, WRONG], ids=["right", "wrong"])
def test_missing_answers_error_names_the_file(table):
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
def test_right_answer_passes_with_either_default_precision(check):
    check(RIGHT[check][0])


@every_check
def test_references_are_in_double_precision(check, monkeypatch):
    """The references and the results of the mistakes do not depend on the default precision."""
    assert str(references_of(check, monkeypatch, torch.float32)) == str(
        references_of(check, monkeypatch, torch.float64)
    )


@every_check
def test_inputs_depend_on_the_seed_only(check):
    first, again, other = (inputs_of(check, seed=seed) for seed in (5, 5, 6))
    assert str(first) == str(again)  # as text, since NaN is not equal to itself
    assert str(first) != str(other)


# --- wrong answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("check", "answer"), each_of(WRONG))
def test_wrong_answers_are_rejected_with_their_message(check, answer):
    wrong, says, *cases = answer
    with pytest.raises(Exception, match=says):  # at a limit of the text, a wrong answer may raise by itself
        check(wrong, **({"cases": cases[0]} if cases else {}))


@every_check
def test_every_known_mistake_is_made_by_a_wrong_answer(check, monkeypatch):
    known, messages = set(), []

    def noting(what, got, wanted, mistakes, **options):
        known.update(mistakes)
        compare(what, got, wanted, mistakes, **options)

    for module in (lessons_lib.checks, inspect.getmodule(check)):
        monkeypatch.setattr(module, "compare", noting, raising=False)
    check(RIGHT[check][0])
    for wrong, _, *cases in WRONG[check]:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            check(wrong, **({"cases": cases[0]} if cases else {}))
        messages.append(str(caught.value))
    assert {sentence for sentence in known if not any(sentence in message for message in messages)} == set()


@every_check
def test_exceptions_of_the_answer_are_raised(check, stub):
    with pytest.raises(NotImplementedError):
        check(stub)


@every_check
def test_answer_without_return_is_rejected(check):
    with pytest.raises(AssertionError, match="did you forget to return"):
        check(lambda *_: None)


@every_check
def test_one_wrong_part_in_one_case_is_rejected(check):
    """An answer that is wrong in a single part of its result, in a single case, does not pass."""
    right = RIGHT[check][0]
    first, calls = results_of(check, right, cases=1), results_of(check, right, cases=3)
    second = results_of(check, right, cases=2)[len(first) :]
    assert len(first) < len(first) + len(second) < len(calls)
    for part in range(n_parts(first[0])):
        for spoilt_calls in (range(len(first)), range(len(first), len(first) + len(second))):
            with pytest.raises(AssertionError):
                check(with_wrong_part(right, part, spoilt_calls), cases=3)


@every_check
def test_answer_that_modifies_its_arguments_is_rejected(check):
    for number in range(len(inputs_of(check, cases=1)[-1][0])):
        with pytest.raises(AssertionError, match="changed its argument"):
            check(modifying_argument(RIGHT[check][0], number))


# --- parts ----------------------------------------------------------------------------------------------------------


def results_of(check: Callable, right: Callable, **options) -> list:
    """Return the results of the right answer for each call."""
    returned = []
    check(lambda *given: returned.append(right(*given)) or returned[-1], **options)
    return returned


def inputs_of(check: Callable, **options) -> list[tuple[list, list]]:
    """Return the arguments of each call: the tensors as lists, and the numbers and lists."""
    lent = []

    def answer(*given):
        plain = [item for item in given if isinstance(item, (int, float, list))]
        lent.append(([tensor.tolist() for tensor in tensors(given)], plain))
        return RIGHT[check][0](*given)

    check(answer, **options)
    return lent


def references_of(check: Callable, monkeypatch, default: torch.dtype) -> list:
    """Return the references and mistakes of a check as numbers, with random inputs drawn in double precision."""
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


def with_wrong_part(right: Callable, part: int, calls: range) -> Callable:
    """Return an answer that is wrong in one part of its result in the given calls."""
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
    """Copy the tensors, lists and tuples; other arguments, such as iterators, are passed on."""
    return tuple(deepcopy(item) if isinstance(item, (Tensor, list, tuple)) else item for item in given)


def modifying_argument(right: Callable, number: int) -> Callable:
    """Return an answer with the right result that modifies one of its tensor arguments."""

    def answer(*given):
        value, lent = right(*deepcopied(given)), tensors(given)
        if number < len(lent):
            lent[number].copy_(wrong(lent[number]))
        return value

    return answer
