"""What crosses between a check and an answer, and what does not."""

import socket
from threading import Thread

import pytest
import torch

pytest.importorskip("nbgrader")
from grading import wire
from grading.outside import CheckedFromOutside
from grading.wire import Answer, Answers, NoAnswerError, pack, serve, unpack


@pytest.fixture
def answers(tmp_path):
    """Connect the two sides; the student's names are those of this function."""

    def twice(x, *, by=2):
        return by * x

    def spoil(tensors):
        tensors[0].zero_()

    def add_up(pieces):
        kept = list(pieces)
        return [piece.clone() for piece in kept]

    def complain(x):
        raise ZeroDivisionError("not today")

    def grad_is_on():
        return torch.is_grad_enabled()

    class Counter:
        pass

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen(1)
        names = {name: value for name, value in locals().items() if name not in ("listener", "tmp_path")}
        Thread(target=serve, args=(f"{tmp_path}/s", names | {"seven": 7, "counter": Counter()}), daemon=True).start()
        connection, _ = listener.accept()
        with connection:
            yield Answers(connection)


VALUES = [
    None,
    True,
    3,
    -0.5,
    float("inf"),
    "text",
    [1, [2.0, "three"]],
    (1, (2,)),
    {"a": [1], 2: (3, None)},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_travel_unchanged(value):
    back = unpack(pack(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0, 4)])
def test_tensors_travel_to_the_bit(dtype, shape):
    tensor = torch.randn(shape).to(dtype)
    back = unpack(pack(tensor))
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


def test_a_transposed_tensor_travels_by_its_values():
    tensor = torch.arange(6.0).view(2, 3).mT
    assert torch.equal(unpack(pack(tensor)), tensor)


def test_an_answer_is_called_over_there(answers):
    twice = answers.named("twice")
    assert isinstance(twice, Answer)
    assert type(twice).__name__ == "function"
    assert torch.equal(twice(torch.ones(3), by=5), torch.full((3,), 5.0))


def test_a_plain_value_comes_as_it_is(answers):
    assert answers.named("seven") == 7


def test_what_is_not_plain_stays_there_under_its_own_name(answers):
    assert type(answers.named("counter")).__name__ == "Counter"


def test_a_check_sees_that_its_argument_was_spoiled(answers):
    given = torch.ones(3)
    answers.named("spoil")([given])
    assert given.sum() == 0


def test_an_answer_sees_that_an_item_was_erased_when_the_next_came(answers):
    def erasing():
        for i in (1.0, 2.0, 3.0):
            item = torch.full((2,), i)
            yield item
            item.fill_(torch.nan)

    first, second, third = answers.named("add_up")(erasing())
    assert first.isnan().all()
    assert second.isnan().all()
    assert third.isnan().all()


def test_an_exception_comes_as_words(answers):
    with pytest.raises(NoAnswerError, match="ZeroDivisionError: not today"):
        answers.named("complain")(1)
    assert answers.named("seven") == 7


def test_a_name_that_is_missing_is_named(answers):
    with pytest.raises(NoAnswerError, match="NameError: nothing is not defined"):
        answers.named("nothing")


@pytest.mark.parametrize("on", [True, False])
def test_autograd_is_on_or_off_on_both_sides(answers, on):
    with torch.set_grad_enabled(on):
        assert answers.named("grad_is_on")() is on


def test_a_check_cannot_hand_its_own_function_to_an_answer(answers):
    with pytest.raises(TypeError, match="cannot hand a function"):
        answers.named("twice")(lambda: None)


@pytest.mark.parametrize("reply", [b"", b"no JSON\n", b'{"value": 1}', b"[" * 50_000 + b"\n", b"{}\n"])
def test_whatever_comes_instead_of_an_answer_is_no_answer(reply):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(reply)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises((NoAnswerError, ValueError, KeyError, RecursionError)):
            Answers(ours).named("anything")


def test_a_message_that_is_too_long_is_no_answer(monkeypatch):
    monkeypatch.setattr(wire, "LIMIT", 1000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"value": [' + b"[]," * 400 + b'1], "changed": []}\n')
        with pytest.raises(NoAnswerError, match="no answer"):
            Answers(ours).named("anything")


def test_a_kernel_hears_at_once_that_a_check_is_over_even_if_its_error_is_still_held(tmp_path):
    """An error that is part of a cycle keeps the frames that it went through, and with them their open files."""
    held: list[AssertionError] = []

    def complain():
        held.append(AssertionError("not so"))
        raise held[0]

    runner, verdict = CheckedFromOutside(timeout=60), ["not run"]
    runner._imported = {"complain": complain}
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as kernel:
        listener.bind(f"{tmp_path}/s")
        listener.listen(1)
        kernel.connect(f"{tmp_path}/s")
        kernel.settimeout(600)
        runner._judge(listener, "complain()", verdict, [])
        assert verdict == ["not so"]
        assert kernel.recv(1) == b""
