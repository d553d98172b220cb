"""Automatic checks of the exercises: random inputs from a seed, and messages that name the likely mistake.

There is one file for each chapter and one function for each exercise. The checks are public: they rely on random
inputs (with another seed when an assignment is graded), not on secrecy. Reference functions are imported with the
file, before any answer runs. An answer may run in another process, so its arguments and results are plain data, and
gradients are computed inside the answer.

A check draws inputs, calls the answer through :func:`ask`, and passes the correct result and the result of each likely
mistake to :func:`compare`. A student whose answer fails reads one message, or the traceback of the student's own code.
The check's own code, which contains the solution, is never shown, see :func:`check`. The files, in reading order,
which is the order of the chapters::

    why_attention               soft look-up, self-attention
    information                 entropy, temperature, mutual information
    geometry                    norms, angles, and which keys can have the largest score
    scaling                     the scaling factor, a softmax that does not overflow, the backward pass
    matrix                      attention as a random walk, stationary distribution, attention rollout
    masks                       attention masks
    multi_head                  several heads, grouped keys and values, the KV cache
    positions                   rotary positions, ALiBi, longer contexts
    dynamics                    token spread, learning-rate schedule, attention entropy
    block                       parameters of a GPT, a pre-norm block, contributions to the logits, backward of a norm
    train_gpt                   inputs and targets, byte-pair merges, leaks, accumulation, bigrams, min-p sampling
    patterns                    pattern scores, ablation and patching, the induction circuit, other weights
    modern                      the balance loss of a router, a gated layer, speculative decoding, latent keys
    complexity                  the cost of a block, the batch size for a device, a scan
    sparse_and_linear           linear attention, the delta rule, the pairs of a sparse pattern
    flash                       attention to keys that arrive in pieces
    long_context                rotary angles beyond training, NTK scaling, evaluation with the same targets
    vision_and_language         patches, the contrastive loss, occlusion
    sequences_graphs_decisions  hit rate, leakage between users, graph attention, decisions from counts
    build_attention             the assignment of Part I
    build_flash                 the assignment of Part III
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from numbers import Real
from types import TracebackType
from typing import Any, ParamSpec

import torch
from torch import Tensor
from torch.autograd import forward_ad

Wrong = Tensor | Sequence[Tensor]  # the result of a mistake: one tensor, or one for each way to make the mistake
Arguments = ParamSpec("Arguments")

ROUNDING, SINGLE_ROUNDING = 1e-6, 1e-5  # shares of the largest entry: a part, or all of an answer, in float32
ERROR_OF_A_SCORE = 3e-7  # relative error of a score in float32: five roundings of 6e-8; measured, at most 1.1e-7
SINGLE = (
    "nearly right; was a part computed in single precision? torch.sqrt(torch.tensor(d)) and "
    "torch.arange(n) / d are float32; math.sqrt(d) is not, nor is torch.arange(n, dtype=torch.float64) / d"
)


class WrongAnswerError(AssertionError):
    """A wrong answer, with the message for the student.

    A notebook shows the message without a traceback, in the language of the book; the error itself is in English.
    """

    def __init__(self, message: str = "", module: str = __name__) -> None:
        super().__init__(message)
        self.module = module  # that of the check

    def _render_traceback_(self, *_: object) -> list[str]:
        return [_in_language_of_book(str(self), self.module)]


def _in_language_of_book(message: str, module: str) -> str:
    if not os.environ.get("BOOK_LANGUAGE"):
        return message
    from lessons_lib.page.language import message_of_check  # with it come the packages of a notebook

    return message_of_check(message, module.removeprefix(__name__).removeprefix("."))


class AutogradUsedError(RuntimeError):
    """Raised if an answer uses autograd in an exercise whose gradients must be computed by hand."""


@contextmanager
def without_autograd() -> Iterator[None]:
    """Disable autograd and ``torch.func`` inside the ``with`` block, also for code that enables gradients again.

    The internal functions that every backward pass and every forward-mode derivative call are replaced by a function
    that raises.

    Raises:
        AutogradUsedError: inside the block, if code computes a derivative.
    """

    def refuse(*_: object, **__: object) -> None:
        raise AutogradUsedError("write the backward pass by hand, without autograd and without torch.func")

    entry_points = [(torch.autograd, "_engine_run_backward"), (forward_ad, "make_dual")]
    originals = [(module, name, getattr(module, name)) for module, name in entry_points if hasattr(module, name)]
    try:
        for module, name, _ in originals:
            setattr(module, name, refuse)
        with torch.inference_mode():
            yield
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


def check(run_check: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Decorate a check so that its errors do not show its own source, which contains the solution.

    Raises:
        WrongAnswerError: with the message of the check's assertion.
        Exception: if the answer itself raises, with the traceback of the answer only.
    """

    @wraps(run_check)
    def wrapped(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        __tracebackhide__ = True
        try:
            run_check(*arguments, **options)
        except Exception as error:
            raised, frames = _raised_by_answer(error)
            if raised and not isinstance(error, AutogradUsedError):
                error.__traceback__ = frames
                raise
            if isinstance(error, (AssertionError, AutogradUsedError)):
                raise WrongAnswerError(str(error), run_check.__module__) from None
            first = str(error).partition("\n")[0][:200]
            said = f"the result could not be read: {type(error).__name__}: {first}"
            raise WrongAnswerError(said, run_check.__module__) from None

    return wrapped


def _raised_by_answer(error: Exception) -> tuple[bool, TracebackType | None]:
    """Return whether the answer raised this error, and the part of its traceback that lies in the answer."""
    frame, call = error.__traceback__, None
    while frame is not None:
        call = frame if frame.tb_frame.f_code is _call_answer.__code__ else call
        frame = frame.tb_next
    return call is not None, call and call.tb_next


def _call_answer(answer: Callable[..., object], arguments: Sequence[object]) -> object:
    return answer(*arguments)


def ask(
    what: str, answer: Callable[..., object], *given: object, where: str, returns: str = "it", parts: int = 0
) -> Any:
    """Call the answer on copies of the arguments and return its result.

    Args:
        what: the name of the answer in the exercise.
        answer: the answer.
        given: its arguments. The answer must not modify tensors, nor lists and tuples of tensors.
        where: a description of the input for the message.
        returns: a description of the expected result for the message.
        parts: number of elements of the result, if it is a tuple.

    Raises:
        AssertionError: if the answer is not a function, returns None or another number of parts, or modifies an
            argument.
    """
    assert callable(answer), f"{what} must be a function, got {type(answer).__name__}"
    copies = [_copied(argument) for argument in given]
    got = _call_answer(answer, copies)
    _check_returned(what, got, returns)
    if parts:
        assert isinstance(got, (tuple, list)), f"return {returns}, got one {type(got).__name__} ({where})"
        assert len(got) == parts, f"return {returns}, got {len(got)} things ({where})"
    unchanged = all(_same(now, before) for now, before in zip(copies, given, strict=True))
    several = sum(isinstance(argument, (Tensor, list, tuple)) for argument in given) > 1
    spoilt = "arguments; work on copies" if several else "argument; work on a copy"
    assert unchanged, f"{what} changed its {spoilt} ({where})"
    return got


def compare(
    what: str,
    got: object,
    wanted: Tensor,
    mistakes: Mapping[str, Wrong],
    *,
    where: str,
    rounding: float = ROUNDING,
    of_numbers: bool = False,
    scores: Tensor | float = 0.0,
) -> None:
    """Accept ``got`` if it equals ``wanted`` up to rounding; otherwise name the known mistake that gives it.

    A result that is a hundred times nearer to a known mistake than to the correct result counts as that mistake,
    however small the difference. A result in single precision may have an error of 1e-5, and more if it contains
    exponentials of large scores or sines of large angles, see :func:`single_precision_tolerance`. The message suggests
    single precision as the cause only if it explains the error.

    Args:
        what: the name of the quantity in the exercise.
        got: the result of the answer.
        wanted: the correct result, in double precision.
        mistakes: the result of each likely mistake, by the sentence that names the mistake.
        where: a description of the input for the message.
        rounding: the permitted error of a result in double precision, as a share of the largest entry: a part of it
            may have been computed in single precision.
        of_numbers: whether the entries are separate results, so that the message names the first wrong one.
        scores: the arguments of exponentials or sines in the result, or the largest of them.

    Raises:
        AssertionError: if ``got`` is not a real tensor, or differs from ``wanted`` in shape or by more than rounding.
    """
    got = _real_tensor(what, got, wanted.shape, where)
    single, explained = got.dtype.itemsize < 8 and got.dtype.is_floating_point, single_precision_tolerance(scores)
    got, named = got.to(torch.float64), _flatten_mistakes(mistakes)
    off = _relative_error(got, wanted, least=1.0)

    def reject_mistakes(matches: Callable[[Tensor], bool]) -> None:
        for sentence, wrong in named:
            known = wrong.shape == wanted.shape and matches(wrong)
            assert not known, f"{what} is wrong: {sentence} ({where})"

    if off <= 1e-9:
        return
    if not single:
        reject_mistakes(lambda wrong: _relative_error(got, wrong, least=1.0) <= min(1e-9, off / 100))
    if (single and off <= explained) or _relative_error(got, wanted, least=1e-3) <= rounding:
        return
    reject_mistakes(
        lambda wrong: _relative_error(got, wrong, least=1e-3) <= min(explained if single else 1e-5, off / 10)
    )
    assert not bool(got.isnan().any()), f"{what} holds NaN ({where})"
    apart = _differences(got, wanted)
    if not of_numbers:
        _refuse_what_is_nearly_right(what, got, wanted, apart, off, where)
    by_rounding = off <= explained or (single and not of_numbers and off <= 1e-3)
    assert not by_rounding, f"{what} is off by {off:.1g} of its size: {SINGLE} ({where})"
    if of_numbers:
        first = int((apart > 1e-6).nonzero()[0])
        raise AssertionError(f"{what} is {_got_and_wanted(got[first], wanted[first])}, at {first} ({where})")
    most = f"{apart.max():.2g}"
    most = f"{most} at {_first_index(apart == apart.max())}" if apart.shape else most
    raise AssertionError(f"{what} has the right shape and wrong values, off by up to {most} ({where})")


def single_precision_tolerance(scores: Tensor | float) -> float:
    """Return the permitted error of a result in single precision, as a share of its largest entry.

    The relative error of the exponential of a score is the absolute error of the score. In single precision, each
    rounding of a score (of the query, of the sum, by the root) has a relative error of up to 6e-8. So scores in the
    thousands give weights with an error of 1e-3 in any correct answer. The same holds for the sine of an angle.
    """
    sizes = torch.as_tensor(scores, dtype=torch.float64).abs()
    finite = sizes[sizes.isfinite()]
    return max(SINGLE_ROUNDING, ERROR_OF_A_SCORE * float(finite.max())) if finite.numel() else SINGLE_ROUNDING


def _refuse_what_is_nearly_right(what: str, got: Tensor, wanted: Tensor, apart: Tensor, off: float, where: str) -> None:
    """Name two causes of small errors other than rounding: a nonzero entry that must be 0, an added epsilon."""
    spilt = (wanted == 0) & (apart > apart.max() / 100)
    if off <= 1e-2 and bool(spilt.any()):
        value = float(got[tuple(_first_index(spilt))])
        raise AssertionError(f"{what} is {value:.1g} at {_first_index(spilt)}, where it must be 0 ({where})")
    some = wanted != 0
    smaller = (got / wanted)[some] < 1
    assert off > 1e-3 or int(some.sum()) < 4 or not bool(smaller.all()), (
        f"{what} is too small everywhere, by up to {off:.1g} of its size: was a small number added to what is divided "
        f"by? Leave it out ({where})"
    )


def compare_mask(what: str, got: object, wanted: Tensor, mistakes: Mapping[str, Wrong], *, where: str) -> None:
    """Compare a Boolean mask with the correct one as :func:`compare` does, without tolerance."""
    _check_returned(what, got)
    received = got.dtype if isinstance(got, Tensor) else type(got).__name__
    boolean = f"{what} must be a Boolean tensor, got {received} ({where})"
    assert isinstance(got, Tensor), boolean
    assert got.dtype == torch.bool, boolean
    assert got.shape == wanted.shape, f"{what} must have shape {_shape(wanted)}, got {_shape(got)} ({where})"
    if torch.equal(got, wanted):
        return
    for sentence, wrong in _flatten_mistakes(mistakes):
        assert not torch.equal(got, wrong), f"{what} is wrong: {sentence} ({where})"
    entries = (got != wanted).nonzero().tolist()
    should = bool(wanted[tuple(entries[0])])
    count = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
    raise AssertionError(
        f"{what} has the right shape and wrong values, in {count}: {entries[0]} should be {should} ({where})"
    )


def compare_number(
    what: str,
    got: object,
    wanted: int | float,
    mistakes: Mapping[str, int | float | Sequence[int | float]],
    *,
    where: str,
    least: float = 0.0,
) -> None:
    """Compare a number with the correct one as :func:`compare` does; tensors without axes and NumPy numbers count.

    An integer must be equal. For other numbers, the permitted error is a share of the number's size, or of ``least`` if
    that is larger. If the number is a difference, ``least`` is the size of its terms. An infinity matches only itself,
    and NaN matches nothing.
    """
    value = number(what, got, where)
    exactly, rounding = (1e-15, 1e-15) if isinstance(wanted, int) else (1e-9, ROUNDING)

    def near(right: int | float, tolerance: float) -> bool:
        if not math.isfinite(right):
            return value == right
        return abs(value - right) <= max(tolerance * max(abs(right), least), 1e-12)

    if near(wanted, exactly):
        return
    for tolerance in (exactly, rounding):
        if tolerance > exactly and near(wanted, tolerance):
            return
        for sentence, made in mistakes.items():
            several = made if isinstance(made, Sequence) else (made,)
            assert not any(near(one, tolerance) for one in several), f"{what} is wrong: {sentence} ({where})"
    both = _got_and_wanted(value, wanted)
    assert exactly == rounding or not near(wanted, SINGLE_ROUNDING), f"{what} is {both}: {SINGLE} ({where})"
    raise AssertionError(f"{what} is {both} ({where})")


PaperValue = bool | int | float | tuple[int, ...]  # a value on paper: yes or no, a number, a shape
_VALUE_KINDS = {bool: "True or False", tuple: "a shape, a tuple of integers", float: "a number"}


@check
def check_value(
    answer: Callable[[], Mapping[str, PaperValue]],
    name: str,
    wanted: PaperValue | list[float] | None = None,
    *,
    unit: str = "",
    tolerance: float = 0.01,
    other_units: Mapping[str, float] | None = None,
    mistakes: Mapping[str, PaperValue | list[float]] | None = None,
) -> None:
    """Check one value of an exercise on paper: a number with a tolerance, a shape, or yes or no.

    The answer returns its values by name. A value that every student must find is the same for the whole class, so it
    stands in the hidden tests of the master only, and no message shows it. Without ``wanted``, the check says how it
    reads the value, and in which unit.

    Args:
        answer: a function without arguments that returns a dictionary.
        name: the value's name in that dictionary.
        wanted: the correct value; a tuple is a shape; a list holds several numbers of which any is accepted.
        unit: the unit in which the number is expected, empty for a number without a unit.
        tolerance: the permitted error of a number, as a share of the correct number.
        other_units: what the unit is in units that students may use instead, such as ``{"MiB": 1 / 2**20}``.
        mistakes: the results of likely mistakes, by the sentence that names the mistake.

    Raises:
        WrongAnswerError: if there is no such value, or it is not correct.

    >>> check_value(lambda: {"area": 12}, "area", unit="m²")
    area = 12 m²
    >>> check_value(lambda: {"area": 11.95}, "area", 12, unit="m²")
    """
    values = ask("the answer", answer, where="", returns="the values, by name")
    assert isinstance(values, Mapping), f"return the values by name, a dictionary, got {type(values).__name__}"
    assert values.get(name) is not None, f"{name} is missing: add its value to the dictionary that you return"
    value = _paper_value(name, values[name], unit)
    if wanted is None:
        print(f"{name} = {_plain(value)} {unit}".strip())
        return
    said, kind = f"{name} = {_plain(value)} {unit}".strip(), type(wanted) if type(wanted) in _VALUE_KINDS else float
    assert type(value) is kind, f"{said}: expected {_VALUE_KINDS[kind]}"
    if _same_value(value, wanted, tolerance):
        return
    for other, factor in (other_units or {}).items():
        assert not _same_value(value, wanted, tolerance, factor), f"{name} is given in {other}: expected it in {unit}"
    for sentence, made in (mistakes or {}).items():
        assert not _same_value(value, made, tolerance), f"{name} is wrong: {sentence}"
    raise AssertionError(f"{said} is not the correct value")


def _paper_value(name: str, given: object, unit: str) -> Any:
    """Return a value as a Boolean, a shape or a finite float."""
    if isinstance(given, bool):
        return given
    if isinstance(given, tuple | list):
        assert all(isinstance(size, int) for size in given), f"{name} must be a shape, a tuple of integers, got {given}"
        return tuple(given)
    assert not isinstance(given, str), (
        f"{name} must be a number, not text{f': leave out the unit, {unit}' * bool(unit)}"
    )
    try:
        value = float(number(name, given, unit or "no unit"))
    except OverflowError:
        value = math.inf
    assert math.isfinite(value), f"{name} must be finite, got {value}"
    return value


def _same_value(value: Any, wanted: Any, tolerance: float, factor: float = 1.0) -> bool:
    """Return whether a value is correct, or, if it is a number, correct in a unit that makes it ``factor`` as large."""
    if isinstance(wanted, list):
        return any(_same_value(value, one, tolerance, factor) for one in wanted)
    return value == wanted or (isinstance(value, float) and abs(value / factor - wanted) <= tolerance * abs(wanted))


def _plain(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def parts_to_compare(names: Sequence[str], only: str | None) -> list[tuple[int, str]]:
    """Return (index, name) of the parts to compare: all, or the part ``only``, which is graded separately."""
    assert only is None or only in names, f"only must be one of {', '.join(names)}, got {only!r}"
    return [(i, name) for i, name in enumerate(names) if only in (None, name)]


def is_finite(*parts: object) -> bool:
    """Return whether all tensors are finite. Other objects are ignored, because ``compare`` reports them."""
    return all(bool(part.isfinite().all()) for part in parts if isinstance(part, Tensor))


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers in double precision, independent of the default type."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def with_row_offsets(scores: Tensor, size: float) -> Tensor:
    """Add to each row of scores, of any leading axes, another number from ``-size`` to ``size``; a single row sinks."""
    offsets = torch.linspace(-size, size, max(1, scores[..., 0].numel()), dtype=scores.dtype)
    return scores + offsets.view(*scores.shape[:-1], 1)


def _check_returned(what: str, got: object, returns: str = "it") -> None:
    assert got is not None, f"{what} is None: did you forget to return {returns}?"


def _copied(argument: object) -> object:
    if isinstance(argument, Tensor):
        return argument.clone()
    return type(argument)(map(_copied, argument)) if isinstance(argument, (list, tuple)) else argument


def _same(now: object, before: object) -> bool:
    if type(now) is not type(before):
        return False
    if isinstance(now, Tensor) and isinstance(before, Tensor):
        return now.shape == before.shape and bool(((now == before) | (now.isnan() & before.isnan())).all())
    if isinstance(now, (list, tuple)) and isinstance(before, (list, tuple)):
        return len(now) == len(before) and all(map(_same, now, before))
    return now is before or now == before


def _real_tensor(what: str, got: object, shape: Sequence[int], where: str) -> Tensor:
    _check_returned(what, got)
    assert isinstance(got, Tensor), f"{what} must be a tensor, got {type(got).__name__}"
    assert not got.is_complex(), f"{what} must be real, got {got.dtype} ({where})"
    assert got.shape == shape, f"{what} must have shape {tuple(shape)}, got {_shape(got)} ({where})"
    return got.detach()


def number(what: str, got: object, where: str) -> int | float:
    """Convert a number, a NumPy number or a tensor without axes to a Python number."""
    _check_returned(what, got)
    if isinstance(got, Tensor):
        assert not got.shape, f"{what} must be a number; a tensor must have shape (), got {_shape(got)} ({where})"
        assert not got.is_complex(), f"{what} must be real, got {got.dtype} ({where})"
        return got.item()
    assert isinstance(got, Real), f"{what} must be a number, got {type(got).__name__} ({where})"
    return float(got)


def as_tensor(value: float) -> Tensor:
    """Return a number as a tensor: float32 if that represents it exactly, otherwise float64."""
    whole = torch.tensor(value, dtype=torch.float64)
    return whole.float() if bool(whole.float() == whole) else whole


def _got_and_wanted(value: int | float | Tensor, wanted: int | float | Tensor) -> str:
    """Format two numbers with enough digits to show their difference."""
    digits = 4 if abs(value - wanted) > 1e-2 * abs(wanted) and not isinstance(wanted, int) else 10
    return f"{float(value):.{digits}g}, wanted {float(wanted):.{digits}g}"


def _flatten_mistakes(mistakes: Mapping[str, Wrong]) -> list[tuple[str, Tensor]]:
    """Return a pair of sentence and wrong result for each way to make each mistake."""
    several = ((why, [made] if isinstance(made, Tensor) else made) for why, made in mistakes.items())
    return [(why, one) for why, ways in several for one in ways]


def _relative_error(got: Tensor, wanted: Tensor, *, least: float) -> float:
    """Return the largest difference relative to the largest finite entry, or to ``least`` if that is larger."""
    sizes = wanted.abs()
    size = float(sizes.masked_fill(~sizes.isfinite(), 0.0).max()) if sizes.numel() else 0.0
    return float(_differences(got, wanted).max()) / max(size, least) if got.numel() else 0.0


def _differences(got: Tensor, wanted: Tensor) -> Tensor:
    """Return the absolute differences: 0 for equal infinities, infinity where one entry is NaN."""
    return (got - wanted).abs().nan_to_num(nan=torch.inf, posinf=torch.inf).masked_fill(got == wanted, 0.0)


def _first_index(chosen: Tensor) -> list[int]:
    """Return the index of the first True entry."""
    return chosen.nonzero()[0].tolist()


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
