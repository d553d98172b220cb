"""Tests of the messages of checks in other languages: what a notebook shows; the errors themselves stay English."""

import re
from collections import Counter
from pathlib import Path

import catalogs
import pytest
import torch
from babel.messages.mofile import write_mo
from test_every_check import CHECKS, WRONG
from thorough import all_but

from lessons_lib.checks import WrongAnswerError
from lessons_lib.page import language

NUMBER = re.compile(r"\d+(?:\.\d+)?")
IN_SERIES = re.compile(r"[A-Za-z]{2,} [a-z]{2,}")  # two words of an English sentence; names of code stand alone
BEGUN = {
    (name, path.stem) for name in catalogs.languages() for path in catalogs.folder(name).glob(f"{catalogs.CHECKS}/*.po")
}
ANSWERS = [
    (name, check, *answer)
    for name, file in sorted(BEGUN)
    for id, check in CHECKS.items()
    if id.partition(".")[0] == file
    for answer in enumerate(WRONG[check])
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """Compile the messages of all checks that are translated."""
    target = tmp_path_factory.mktemp("locale")
    for name, file in BEGUN:
        path = target / name / "LC_MESSAGES" / catalogs.CHECKS / f"{file}.mo"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as written:
            write_mo(written, catalogs.read_catalog(catalogs.folder(name) / catalogs.CHECKS / f"{file}.po"))
    return target


@pytest.fixture(autouse=True)
def single_precision_as_in_a_notebook(double_precision):
    torch.set_default_dtype(torch.float32)


def message_in(name: str, error: WrongAnswerError, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a notebook shows in a language, after a look at what it shows in English."""
    monkeypatch.delenv(language.VARIABLE, raising=False)
    assert error._render_traceback_() == [str(error)]
    monkeypatch.setattr(language, "CATALOGS", compiled)
    monkeypatch.setenv(language.VARIABLE, name)
    (shown,) = error._render_traceback_()
    return shown


@pytest.mark.parametrize(("name", "check", "number", "answer"), all_but(ANSWERS, lambda *given: given[2] % 4 == 0))
def test_message_to_a_wrong_answer_has_no_english_words(name, check, number, answer, compiled, monkeypatch):
    wrong, says, *cases = answer
    with pytest.raises(Exception, match=says) as caught:
        check(wrong, **({"cases": cases[0]} if cases else {}))
    if isinstance(caught.value, WrongAnswerError):  # at a limit of the text, a wrong answer may raise by itself
        english = str(caught.value)
        shown = message_in(name, caught.value, compiled, monkeypatch)
        assert IN_SERIES.search(english)
        assert not IN_SERIES.search(shown), shown
        assert Counter(NUMBER.findall(english)) <= Counter(NUMBER.findall(shown)), shown


@pytest.mark.parametrize("name", sorted({name for name, _ in BEGUN}))
def test_message_to_any_answer_has_no_english_words(name, compiled, monkeypatch, double_precision):
    """Mistakes that no wrong answer of the tables makes: no function, no result, an unreadable one, a NaN."""
    answers = (5, lambda *_: None, lambda *_: torch.zeros(3).to_sparse(), lambda *_: torch.zeros(2, 2), lambda *_: 1j)
    for id, check in CHECKS.items():
        if (name, id.partition(".")[0]) in BEGUN:
            for answer in answers:
                with pytest.raises(WrongAnswerError) as caught:
                    check(answer)
                shown = message_in(name, caught.value, compiled, monkeypatch)
                said = shown.partition("Error: ")[0]  # what PyTorch says stays English
                assert not IN_SERIES.search(said), shown


def test_message_of_a_file_without_translation_is_english(compiled, monkeypatch):
    for id, check in CHECKS.items():
        if ("zh_CN", id.partition(".")[0]) not in BEGUN:
            with pytest.raises(WrongAnswerError) as caught:
                check(5)
            assert message_in("zh_CN", caught.value, compiled, monkeypatch) == str(caught.value)
