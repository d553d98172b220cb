"""Tests of grading.rpc: packing values, calls between a check and an answer, and faulty replies."""

import socket
from threading import Thread

import pytest
import torch

pytest.importorskip("nbgrader")
from grading import rpc
from grading.executor import ExecuteWithOutsideChecks
from grading.rpc import Answer, Answers, NoAnswerError, pack, serve, unpack


@pytest.fixture
def answers(tmp_path):
    """Connect the two sides; the functions defined here are the student's names."""

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


@pytest.mark.parametrize("value", [torch.tensor([[3, 4]])[:, 0], torch.rand(2, 5)[:1, 3], torch.rand(1, 4).T[:1, 0]])
def test_pack_one_entry_of_a_row(value):
    """One entry keeps its row's stride and counts as contiguous; it cannot be viewed as bytes."""
    assert value.is_contiguous()
    assert torch.equal(unpack(pack(value)), value)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_pack_plain_values_round_trip(value):
    back = unpack(pack(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0, 4)])
def test_pack_tensors_round_trip_exactly(dtype, shape):
    tensor = torch.randn(shape).to(dtype)
    back = unpack(pack(tensor))
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


def test_pack_transposed_tensor_round_trips():
    tensor = torch.arange(6.0).view(2, 3).mT
    assert torch.equal(unpack(pack(tensor)), tensor)


def test_answer_is_called_in_the_other_process(answers):
    twice = answers.named("twice")
    assert isinstance(twice, Answer)
    assert type(twice).__name__ == "function"
    assert torch.equal(twice(torch.ones(3), by=5), torch.full((3,), 5.0))


def test_named_returns_plain_values(answers):
    assert answers.named("seven") == 7


def test_named_returns_a_proxy_with_the_type_name(answers):
    assert type(answers.named("counter")).__name__ == "Counter"


def test_call_copies_in_place_changes_of_arguments(answers):
    given = torch.ones(3)
    answers.named("spoil")([given])
    assert given.sum() == 0


def test_iterator_items_changed_in_place_change_in_the_answer(answers):
    def erasing():
        for i in (1.0, 2.0, 3.0):
            item = torch.full((2,), i)
            yield item
            item.fill_(torch.nan)

    first, second, third = answers.named("add_up")(erasing())
    assert first.isnan().all()
    assert second.isnan().all()
    assert third.isnan().all()


def test_call_exception_raises_no_answer_error(answers):
    with pytest.raises(NoAnswerError, match="ZeroDivisionError: not today"):
        answers.named("complain")(1)
    assert answers.named("seven") == 7


def test_named_missing_name_raises(answers):
    with pytest.raises(NoAnswerError, match="NameError: nothing is not defined"):
        answers.named("nothing")


@pytest.mark.parametrize("on", [True, False])
def test_call_keeps_the_grad_mode(answers, on):
    with torch.set_grad_enabled(on):
        assert answers.named("grad_is_on")() is on


def test_call_with_a_function_argument_raises(answers):
    with pytest.raises(TypeError, match="cannot hand a function"):
        answers.named("twice")(lambda: None)


@pytest.mark.parametrize("reply", [b"", b"no JSON\n", b'{"value": 1}', b"[" * 50_000 + b"\n", b"{}\n"])
def test_invalid_replies_raise(reply):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(reply)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises((NoAnswerError, ValueError, KeyError, RecursionError)):
            Answers(ours).named("anything")


def test_too_long_message_raises(monkeypatch):
    monkeypatch.setattr(rpc, "LIMIT", 1000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"value": [' + b"[]," * 400 + b'1], "changed": []}\n')
        with pytest.raises(NoAnswerError, match="no answer"):
            Answers(ours).named("anything")


def test_connection_is_closed_even_if_the_checks_error_is_kept(tmp_path):
    """An error in a reference cycle keeps its frames alive, and with them the open files."""
    held: list[AssertionError] = []

    def complain():
        held.append(AssertionError("not so"))
        raise held[0]

    runner, verdict = ExecuteWithOutsideChecks(timeout=60), ["not run"]
    runner._imported = {"complain": complain}
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as kernel:
        listener.bind(f"{tmp_path}/s")
        listener.listen(1)
        kernel.connect(f"{tmp_path}/s")
        kernel.settimeout(600)
        runner._run_check(listener, "complain()", verdict, [])
        assert verdict == ["not so"]
        assert kernel.recv(1) == b""
