"""When a class is graded the answers are in another process: the same ones pass there, and are told the same."""

import socket
from threading import Thread

import pytest
from test_asking import WAYS_BACK, every_backward_check, going_back
from test_every_check import RIGHT, WRONG, every_check

from grading.wire import Answers, NoAnswerError, serve


@pytest.fixture
def sent(tmp_path):
    """Send answers over a socket, and get back what stands in for them on the side of the check."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen(1)
        opened = []

        def to_the_other_side(answers: dict) -> list:
            Thread(target=serve, args=(f"{tmp_path}/s", answers), daemon=True).start()
            connection, _ = listener.accept()
            there = Answers(connection)
            opened.extend([there, connection])
            return [there.named(name) for name in answers]

        yield to_the_other_side
        for each in opened:
            each.close()


@every_check
def test_right_answers_pass_over_the_wire(check, sent):
    for answer in sent({f"right{i}": answer for i, answer in enumerate(RIGHT[check])}):
        check(answer, seed=11)


@every_backward_check
def test_autograd_is_no_answer_over_the_wire_either(check, forward, n_inputs, n_outputs, sent):
    ways = {way.__name__: going_back(way, forward, n_inputs, n_outputs) for way in WAYS_BACK}
    for answer in sent(ways):
        with pytest.raises(NoAnswerError, match="the way back is computed by hand here"):
            check(answer)


@every_check
def test_a_wrong_answer_is_told_the_same_over_the_wire(check, sent):
    sample = [*WRONG[check][:2], WRONG[check][-1]]
    for (wrong, says, *cases), answer in zip(
        sample, sent({f"wrong{i}": wrong for i, (wrong, *_) in enumerate(sample)}), strict=True
    ):
        options = {"cases": cases[0]} if cases else {}
        told = []
        for either in (wrong, answer):
            with pytest.raises(AssertionError, match=says) as caught:
                check(either, **options)
            told.append(str(caught.value))
        assert told[0] == told[1]
