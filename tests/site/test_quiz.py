"""Tests of tools/build_quiz.py: every guess of the book is in the three files, with the answer of the run."""

import json
import re
import zipfile
from html import escape, unescape
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from build_quiz import MATCH_CORRECT, PEOPLE, QTI, TRUTH, allowed, bank, by_chapter, guesses, write_quiz
from built_site import ROOT

from lessons_lib.page.guess import GuessCard

RUNS = ROOT / "_build" / "runs.json"
SPACE = {"qti": QTI, "cp": "http://www.imsglobal.org/xsd/imscp_v1p1"}


@pytest.fixture(scope="module")
def items():
    return bank(RUNS)


@pytest.fixture(scope="module")
def quiz(items, tmp_path_factory):
    """The folder with the three files."""
    folder = tmp_path_factory.mktemp("quiz")
    write_quiz(items, folder)
    return folder


def outputs(kind: str, question: str, about: dict, answer: dict) -> list[dict]:
    """Return the outputs of a run that asks one question and reveals its answer, as cells."""
    state = json.dumps({"kind": kind, "question": question, "about": about})
    asked = {"text/html": {"made_from": {"class": "lessons_lib.page.guess:GuessCard", "state": state}}}
    key = GuessCard(kind, question, about).key
    truth = f'<p class="g-truth" data-guess="{key}" data-answer="{escape(json.dumps(answer))}">…</p>'
    return [{"outputs": [{"metadata": asked, "data": {}}]}, {"outputs": [{"data": {"text/html": [truth]}}]}]


def test_choice_has_the_answer_of_the_run():
    cells = outputs("choice", "How many?", {"options": ["1", "<4"]}, {"at": 1, "told": "<4", "note": "Nearest."})
    (one,) = guesses(cells, "Masks", "masks")
    assert (one.kind, one.options, one.right, one.chapter) == ("choice", ("1", "<4"), 1, "Masks")
    assert one.answer == "<p>&lt;4. Nearest.</p>"
    assert re.fullmatch(r"masks-[0-9a-f]{8}", one.identifier)


@pytest.mark.parametrize(("log", "expected"), [(False, (11.0, 21.0)), (True, (16 / 101**0.05, 16 * 101**0.05))])
def test_number_has_a_range_about_the_answer_of_the_run(log, expected):
    about = {"low": 1, "high": 101, "log": log, "unit": "ms"}
    (one,) = guesses(outputs("number", "How long?", about, {"at": 16.0, "told": "16 ms", "note": ""}), "A", "a")
    assert (one.low, one.high) == pytest.approx(expected)
    assert (one.value, one.unit, one.scale) == (16.0, "ms", "Between 1 and 101 ms.")


def test_guess_without_an_answer_on_its_scale_is_left_out():
    about = {"low": 1, "high": 10, "log": False, "unit": ""}
    beyond = {"at": 10, "told": "12", "note": "That lies beyond the scale."}
    assert not list(guesses(outputs("number", "How many?", about, beyond), "A", "a"))
    no_answer = {"at": None, "told": "not a number", "note": ""}
    assert not list(guesses(outputs("number", "How many?", about, no_answer), "A", "a"))
    assert not list(guesses(outputs("number", "How many?", about, no_answer)[:1], "A", "a"))


def test_allowed_range_holds_the_value():
    low, high = allowed(1e-19, 1e-30, 1, log=True)
    assert low < 1e-19 < high
    assert high / low == pytest.approx(1e30**0.1)


def test_bank_has_every_revealed_guess_and_every_question_that_people_ask(items):
    names = {one.identifier for one in items}
    assert len(names) == len(items)
    revealed = set()
    for name, run in json.loads(RUNS.read_text()).items():
        if run and "explorers" not in name and "exercises" not in name:
            for cell in json.loads(Path(run).read_text())["cells"]:
                for output in cell.get("outputs", []):
                    found = TRUTH.findall("".join(output.get("data", {}).get("text/html", "")))
                    revealed |= {key for key, truth in found if on_scale(json.loads(unescape(truth)))}
    assert {one.identifier.rpartition("-")[2] for one in items if one.chapter != PEOPLE} == revealed
    asked = re.findall(r"^:::\{question\} ([\w-]+)$", (ROOT / "book" / "questions.md").read_text(), re.MULTILINE)
    assert [one.identifier for one in items if one.chapter == PEOPLE] == [f"people-{anchor}" for anchor in asked]
    assert not [one for one in items if one.kind == "words" and "](" in one.answer]


def on_scale(truth: dict) -> bool:
    return truth["at"] is not None and not truth["note"].endswith("beyond the scale.")


def test_moodle_file_grades_each_question_right(items, quiz):
    root = ET.parse(quiz / "moodle.xml").getroot()
    assert root.tag == "quiz"
    categories = [one.findtext("category/text") for one in root if one.get("type") == "category"]
    assert categories == [f"$course$/top/{chapter}" for chapter in by_chapter(items)]
    asked = {one.findtext("idnumber"): one for one in root if one.get("type") != "category"}
    assert list(asked) == [one.identifier for one in items]
    for one in items:
        found = asked[one.identifier]
        assert found.findtext("name/text")
        assert escape(one.question) in found.findtext("questiontext/text")
        assert found.find("questiontext").get("format") == "html"
        answers = found.findall("answer")
        full = [answer.findtext("text") for answer in answers if answer.get("fraction") == "100"]
        if one.kind == "choice":
            assert found.get("type") == "multichoice"
            assert [answer.findtext("text") for answer in answers] == [escape(option) for option in one.options]
            assert full == [escape(one.options[one.right])]
        elif one.kind == "number":
            assert found.get("type") == "numerical"
            assert float(full[0]) == pytest.approx(one.value, rel=1e-5), "Moodle shows the first as the answer"
            span = one.high - one.low
            inside = [one.low + 1e-4 * span, one.value, one.value + (one.high - one.value) / 2, one.high - 1e-4 * span]
            for number in inside:
                assert accepted(answers, number)
            assert not accepted(answers, one.low - 1e-3 * span)
            assert not accepted(answers, one.high + 1e-3 * span)
        else:
            assert found.get("type") == "essay"
            assert found.findtext("graderinfo/text") == one.answer


def accepted(answers: list[ET.Element], number: float) -> bool:
    """Return whether Moodle gives the point for a number: it lies within the tolerance of an answer."""
    return any(
        abs(number - float(answer.findtext("text"))) <= float(answer.findtext("tolerance")) for answer in answers
    )


def test_qti_package_lists_its_files_and_items_are_complete(items, quiz):
    with zipfile.ZipFile(quiz / "qti.zip") as archive:
        files = {name: ET.fromstring(archive.read(name)) for name in archive.namelist()}
    manifest = files.pop("imsmanifest.xml")
    listed = manifest.findall("cp:resources/cp:resource", SPACE)
    assert [one.get("href") for one in listed] == [one.find("cp:file", SPACE).get("href") for one in listed]
    assert {one.get("href") for one in listed} == set(files)
    identifiers = {one.get("identifier") for one in listed}
    assert {one.get("identifierref") for one in manifest.findall(".//cp:dependency", SPACE)} <= identifiers
    for one in items:
        item = files[f"items/{one.identifier}.xml"]
        assert item.tag == f"{{{QTI}}}assessmentItem"
        children = [child.tag.removeprefix(f"{{{QTI}}}") for child in item]
        assert children[:3] == ["responseDeclaration", "outcomeDeclaration", "itemBody"]
        assert children[3:] == ([] if one.kind == "words" else ["responseProcessing"])
        right = item.findtext("qti:responseDeclaration/qti:correctResponse/qti:value", namespaces=SPACE)
        if one.kind == "choice":
            shown = {choice.get("identifier"): choice.text for choice in item.findall(".//qti:simpleChoice", SPACE)}
            assert shown[right] == one.options[one.right]
            assert item.find("qti:responseProcessing", SPACE).get("template") == MATCH_CORRECT
        elif one.kind == "number":
            low, high = (float(end.text) for end in item.findall(".//qti:and//qti:baseValue", SPACE))
            assert low <= float(right) <= high
        else:
            assert item.find(".//qti:rubricBlock", SPACE).get("view") == "scorer"
    tests = [one for name, one in files.items() if name.startswith("tests/")]
    assert sum(len(test.findall(".//qti:assessmentItemRef", SPACE)) for test in tests) == len(items)


def test_sheet_has_all_questions_before_the_key_and_needs_no_other_file(items, quiz):
    text = (quiz / "sheet.html").read_text()
    asked, key = text.split('<div class="key">')
    assert asked.count('<ol class="questions">') == len(by_chapter(items))
    assert asked.count("<li>") == len(items) + sum(len(one.options) for one in items)
    assert "Right: " not in asked
    assert key.count("Right: ") == sum(one.kind == "number" for one in items)
    assert r"\(" not in key or "<mjx-container" not in key, "formulas are typeset, where Node runs"
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"|url\("(?!data:)[^"]*"', text)
