"""Tests of the checks with answers in another process, as in grading: they pass or fail with the same messages."""

import socket
from threading import Thread

import pytest
from test_asking import AUTOGRAD_ANSWERS, backward_answer, every_backward_check
from test_every_check import RIGHT, WRONG, every_check

from grading.rpc import Answers, NoAnswerError, serve


@pytest.fixture
def sent(tmp_path):
    """Serve answers over a socket, and return their proxies on the side of the check."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen(1)
        opened = []

        def serve_answers(answers: dict) -> list:
            Thread(target=serve, args=(f"{tmp_path}/s", answers), daemon=True).start()
            connection, _ = listener.accept()
            there = Answers(connection)
            opened.extend([there, connection])
            return [there.named(name) for name in answers]

        yield serve_answers
        for each in opened:
            each.close()


@pytest.mark.thorough
@every_check
def test_right_answers_pass_over_rpc(check, sent):
    for answer in sent({f"right{i}": answer for i, answer in enumerate(RIGHT[check])}):
        check(answer, seed=11)


@every_backward_check
def test_backward_checks_reject_autograd_over_rpc(check, forward, n_inputs, n_outputs, sent):
    ways = {way.__name__: backward_answer(way, forward, n_inputs, n_outputs) for way in AUTOGRAD_ANSWERS}
    for answer in sent(ways):
        with pytest.raises(NoAnswerError, match="write the backward pass by hand"):
            check(answer)


@every_check
def test_wrong_answers_get_the_same_message_over_rpc(check, sent):
    sample = [*WRONG[check][:2], WRONG[check][-1]]
    for (wrong, says, *cases), answer in zip(
        sample, sent({f"wrong{i}": wrong for i, (wrong, *_) in enumerate(sample)}), strict=True
    ):
        options = {"cases": cases[0]} if cases else {}
        errors = []
        for either in (wrong, answer):
            with pytest.raises(Exception, match=says) as caught:
                check(either, **options)
            errors.append(caught.value)
        if isinstance(errors[0], AssertionError):  # otherwise the answer raised by itself
            assert str(errors[0]) == str(errors[1])
