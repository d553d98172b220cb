"""Checks that the exercises call: random inputs from a seed, and messages that name the likely mistake.

One file per chapter, one function per exercise. They are public: their strength is the random inputs (another seed
when an assignment is graded), not their secrecy. References are bound when a file is imported, before any answer runs.
An answer may run in another process, and what it gets and returns is plain data: gradients are taken inside the answer.

A check draws inputs, has :func:`ask` call the answer, and hands :func:`compare` what is right and what each likely
mistake would have given. Who fails reads its sentence and the lines of the own answer, never the check's, which hold
what is right: :func:`check`.
The files, in reading order, which is the book's::

    why_attention      a look-up, and a sentence that looks itself up
    information        entropy, temperature, mutual information
    geometry           lengths, angles, and which keys can win
    scaling            the root, a softmax that does not overflow, the way back
    matrix             the walk of attention
    masks              who may look at whom
    multi_head         several heads, shared keys, the cache
    positions          rotations, biases, longer contexts
    dynamics           what goes wrong in training
    block              the weights of a GPT, what writes its logits, the way back through a norm
    train_gpt          a text in pairs, counts that lean on fewer words, a cut by min-p
    patterns           what a head looks at, the circuit that continues a passage, other maps with the same output
    modern             the balance of a router, drafts, latent keys
    complexity         what a block costs, enough to do for a device, steps joined
    sparse_and_linear  keys before queries, what a step writes into a state, pairs of a pattern
    flash              exact attention to keys that come in pieces
    long_context       clocks that are caught out, how far a scaling reaches, the same targets
    vision_and_language  patches, pairs of pictures and words, what a map proves
    sequences_graphs_decisions  the first k offered, a leak between users, neighbours, what counts can say
    build_attention    the assignment of Part I
    build_flash        the assignment of Part III
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from numbers import Real
from types import TracebackType
from typing import Any, ParamSpec

import torch
from torch import Tensor
from torch.autograd import forward_ad

Wrong = Tensor | Sequence[Tensor]  # what a mistake gives: one tensor, or one for each way to make it
Given = ParamSpec("Given")

ROUNDING, SINGLE_ROUNDING = 1e-6, 1e-5  # of the largest entry: a part in single precision, and a whole answer in it
OF_A_SCORE = 3e-7  # what single precision makes of a score: five roundings, each of up to 6e-8 of its size
SINGLE = (
    "nearly right; was a part computed in single precision? torch.sqrt(torch.tensor(d)) and "
    "torch.arange(n) / d are float32; math.sqrt(d) is not, nor is torch.arange(n, dtype=torch.float64) / d"
)


class WrongAnswerError(AssertionError):
    """What a check has to say about an answer. A notebook shows the sentence alone."""

    def _render_traceback_(self, *_: object) -> list[str]:
        return [str(self)]


class ByHandError(RuntimeError):
    """What an answer raises that has a gradient computed where it is asked to compute it."""


@contextmanager
def by_hand() -> Iterator[None]:
    """Switch autograd off for whoever switches it on again too, and for ``torch.func``.

    What all of them end in raises, so it does not matter how an answer came by them.

    Raises:
        ByHandError: in the answer.
    """

    def refuse(*_: object, **__: object) -> None:
        raise ByHandError("the way back is computed by hand here, without autograd and without torch.func")

    ends = [(torch.autograd, "_engine_run_backward"), (forward_ad, "make_dual")]
    kept = [(module, name, getattr(module, name)) for module, name in ends if hasattr(module, name)]
    try:
        for module, name, _ in kept:
            setattr(module, name, refuse)
        with torch.inference_mode():
            yield
    finally:
        for module, name, function in kept:
            setattr(module, name, function)


def check(judge: Callable[Given, None]) -> Callable[Given, None]:
    """Let a check tell what it found without its own source, which computes what is right.

    Raises:
        WrongAnswerError: with what the check asserts.
        Exception: what the answer itself raises, with the frames of the answer alone.
    """

    @wraps(judge)
    def judged(*arguments: Given.args, **options: Given.kwargs) -> None:
        __tracebackhide__ = True
        try:
            judge(*arguments, **options)
        except Exception as error:
            raised, frames = _in_the_answer(error)
            if raised and not isinstance(error, ByHandError):
                error.__traceback__ = frames
                raise
            if isinstance(error, (AssertionError, ByHandError)):
                raise WrongAnswerError(str(error)) from None
            first = str(error).partition("\n")[0][:200]
            raise WrongAnswerError(f"what came back could not be read: {type(error).__name__}: {first}") from None

    return judged


def _in_the_answer(error: Exception) -> tuple[bool, TracebackType | None]:
    """Whether an answer raised this, and from where on its frames are the answer's."""
    frame, call = error.__traceback__, None
    while frame is not None:
        call = frame if frame.tb_frame.f_code is _called.__code__ else call
        frame = frame.tb_next
    return call is not None, call and call.tb_next


def _called(answer: Callable[..., object], lent: Sequence[object]) -> object:
    return answer(*lent)


def ask(
    what: str, answer: Callable[..., object], *given: object, where: str, returns: str = "it", parts: int = 0
) -> Any:
    """Call the answer on copies of what is given and return what it returns.

    Args:
        what: the name of the answer, as the exercise calls it.
        answer: the answer.
        given: its arguments. Tensors, and lists and tuples of them, must be as before when it returns.
        where: the input, in words.
        returns: what has to be returned, in words.
        parts: of how many parts that is, if it is a tuple.

    Raises:
        AssertionError: if the answer is no function, nothing is returned, or not that many parts, or an argument is
            changed.
    """
    assert callable(answer), f"{what} must be a function, got {type(answer).__name__}"
    lent = [_copied(argument) for argument in given]
    got = _called(answer, lent)
    _check_returned(what, got, returns)
    if parts:
        assert isinstance(got, (tuple, list)), f"return {returns}, got one {type(got).__name__} ({where})"
        assert len(got) == parts, f"return {returns}, got {len(got)} things ({where})"
    unchanged = all(_same(now, before) for now, before in zip(lent, given, strict=True))
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
    """Accept ``got`` if it equals ``wanted`` to rounding; else say which of the known mistakes gives it.

    What is a hundred times nearer to a known mistake than to what is right is that mistake, however small the
    difference. A result in single precision may be off by 1e-5, and by more where exponentials of large scores are
    taken, or sines of large angles: see :func:`of_single_precision`. Only what that explains is asked whether it was
    computed so.

    Args:
        what: the name of the quantity, as the exercise calls it.
        got: what the answer returned.
        wanted: what is right, in double precision.
        mistakes: what each likely mistake would have returned, by the sentence that names it.
        where: the input, in words.
        rounding: how far off a result in double precision may be, as a share of the largest entry: a part of it may
            have been computed in single precision.
        of_numbers: whether the entries are separate results, so that the first wrong one is told.
        scores: what exponentials, or sines, are taken of, or the largest of it.

    Raises:
        AssertionError: if ``got`` is not a real tensor, or differs from ``wanted`` in shape or by more than rounding.
    """
    got = _real_tensor(what, got, wanted.shape, where)
    single, explained = got.dtype.itemsize < 8 and got.dtype.is_floating_point, of_single_precision(scores)
    got, named = got.to(torch.float64), _by_sentence(mistakes)
    off = _off(got, wanted, least=1.0)

    def refuse_what_is(alike: Callable[[Tensor], bool]) -> None:
        for sentence, wrong in named:
            known = wrong.shape == wanted.shape and alike(wrong)
            assert not known, f"{what} is wrong: {sentence} ({where})"

    if off <= 1e-9:
        return
    if not single:
        refuse_what_is(lambda wrong: _off(got, wrong, least=1.0) <= min(1e-9, off / 100))
    if (single and off <= explained) or _off(got, wanted, least=1e-3) <= rounding:
        return
    refuse_what_is(lambda wrong: _off(got, wrong, least=1e-3) <= min(explained if single else 1e-5, off / 10))
    assert not bool(got.isnan().any()), f"{what} holds NaN ({where})"
    apart = _apart(got, wanted)
    if not of_numbers:
        _refuse_what_is_nearly_right(what, got, wanted, apart, off, where)
    by_rounding = off <= explained or (single and not of_numbers and off <= 1e-3)
    assert not by_rounding, f"{what} is off by {off:.1g} of its size: {SINGLE} ({where})"
    if of_numbers:
        first = int((apart > 1e-6).nonzero()[0])
        raise AssertionError(f"{what} is {_as_told(got[first], wanted[first])}, at {first} ({where})")
    at = f" at {_place(apart == apart.max())}" if apart.shape else ""
    raise AssertionError(f"{what} has the right shape and wrong values, off by up to {apart.max():.2g}{at} ({where})")


def of_single_precision(scores: Tensor | float) -> float:
    """How far off a result in single precision may be, as a share of its largest entry.

    The exponential of a score is off by as large a share as the score is off, and single precision keeps a score only
    to a share of its size: 6e-8 each time it is rounded, in the queries, in the sum, by the root. So of scores in the
    thousands it makes weights that are off by 1e-3, whoever computes them. With the sine of an angle it is the same.
    """
    sizes = torch.as_tensor(scores, dtype=torch.float64).abs()
    finite = sizes[sizes.isfinite()]
    return max(SINGLE_ROUNDING, OF_A_SCORE * float(finite.max())) if finite.numel() else SINGLE_ROUNDING


def _refuse_what_is_nearly_right(what: str, got: Tensor, wanted: Tensor, apart: Tensor, off: float, where: str) -> None:
    """Name what makes small differences and is no rounding: a zero that is none, a small number in a denominator."""
    spilt = (wanted == 0) & (apart > apart.max() / 100)
    if off <= 1e-2 and bool(spilt.any()):
        value = float(got[tuple(_place(spilt))])
        raise AssertionError(f"{what} is {value:.1g} at {_place(spilt)}, where it must be 0 ({where})")
    some = wanted != 0
    smaller = (got / wanted)[some] < 1
    assert off > 1e-3 or int(some.sum()) < 4 or not bool(smaller.all()), (
        f"{what} is too small everywhere, by up to {off:.1g} of its size: was a small number added to what is divided "
        f"by? Leave it out ({where})"
    )


def compare_mask(what: str, got: object, wanted: Tensor, mistakes: Mapping[str, Wrong], *, where: str) -> None:
    """Do the same for a mask, which must be Boolean."""
    _check_returned(what, got)
    received = got.dtype if isinstance(got, Tensor) else type(got).__name__
    boolean = f"{what} must be a Boolean tensor, got {received} ({where})"
    assert isinstance(got, Tensor), boolean
    assert got.dtype == torch.bool, boolean
    assert got.shape == wanted.shape, f"{what} must have shape {_shape(wanted)}, got {_shape(got)} ({where})"
    if torch.equal(got, wanted):
        return
    for sentence, wrong in _by_sentence(mistakes):
        assert not torch.equal(got, wrong), f"{what} is wrong: {sentence} ({where})"
    places = (got != wanted).nonzero().tolist()
    should = bool(wanted[tuple(places[0])])
    count = "1 place" if len(places) == 1 else f"{len(places)} places"
    raise AssertionError(
        f"{what} has the right shape and wrong values, in {count}: {places[0]} should be {should} ({where})"
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
    """Do the same for an answer that is one number; a tensor without axes counts as one, and NumPy's do.

    A whole number must be met exactly. Of others rounding is a share of ``least`` at least, which is the size of what
    they are differences of. What is no finite number is near itself alone.
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
    because = f": {SINGLE}" if rounding > exactly and near(wanted, SINGLE_ROUNDING) else ""
    raise AssertionError(f"{what} is {_as_told(value, wanted)}{because} ({where})")


def parts_in(names: Sequence[str], only: str | None) -> list[tuple[int, str]]:
    """Number the parts of an answer that a check compares: all of them, or one that has points of its own."""
    assert only is None or only in names, f"only must be one of {', '.join(names)}, got {only!r}"
    return [(i, name) for i, name in enumerate(names) if only in (None, name)]


def is_finite(*parts: object) -> bool:
    """Say whether no tensor among these holds an infinity or NaN; what is no tensor is for ``compare`` to refuse."""
    return all(bool(part.isfinite().all()) for part in parts if isinstance(part, Tensor))


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers in double precision, whatever the default is."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


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
    """Read one number; a tensor without axes is one, and NumPy's are."""
    _check_returned(what, got)
    if isinstance(got, Tensor):
        assert not got.shape, f"{what} must be a number; a tensor must have shape (), got {_shape(got)} ({where})"
        assert not got.is_complex(), f"{what} must be real, got {got.dtype} ({where})"
        return got.item()
    assert isinstance(got, Real), f"{what} must be a number, got {type(got).__name__} ({where})"
    return float(got)


def as_tensor(value: float) -> Tensor:
    """Make a tensor of a number, in single precision if it has no more digits than that holds."""
    whole = torch.tensor(value, dtype=torch.float64)
    return whole.float() if bool(whole.float() == whole) else whole


def _as_told(value: int | float | Tensor, wanted: int | float | Tensor) -> str:
    """Two numbers, with as many digits as tell them apart."""
    digits = 4 if abs(value - wanted) > 1e-2 * abs(wanted) and not isinstance(wanted, int) else 10
    return f"{float(value):.{digits}g}, wanted {float(wanted):.{digits}g}"


def _by_sentence(mistakes: Mapping[str, Wrong]) -> list[tuple[str, Tensor]]:
    """Each way to make a mistake, with the sentence that names it."""
    several = ((why, [made] if isinstance(made, Tensor) else made) for why, made in mistakes.items())
    return [(why, one) for why, ways in several for one in ways]


def _off(got: Tensor, wanted: Tensor, *, least: float) -> float:
    """The largest difference, as a share of the largest finite entry, which counts as ``least`` if it is smaller."""
    sizes = wanted.abs()
    size = float(sizes.masked_fill(~sizes.isfinite(), 0.0).max()) if sizes.numel() else 0.0
    return float(_apart(got, wanted).max()) / max(size, least) if got.numel() else 0.0


def _apart(got: Tensor, wanted: Tensor) -> Tensor:
    """How far entries are apart; equal infinities not at all, and what is not a number from anything."""
    return (got - wanted).abs().nan_to_num(nan=torch.inf, posinf=torch.inf).masked_fill(got == wanted, 0.0)


def _place(chosen: Tensor) -> list[int]:
    """The first place that is chosen."""
    return chosen.nonzero()[0].tolist()


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
