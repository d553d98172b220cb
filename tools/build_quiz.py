r"""Write the book's guesses and *Questions people ask* as a question bank: _build/quiz, for a course system or paper.

    moodle.xml    Moodle: import in the question bank as *Moodle XML*; one category for each chapter
    qti.zip       QTI 2.1: items, and a test for each chapter
    sheet.html    to print: the questions, and the key on pages of its own

The value of an answer is the one that the chapter's run computed. A choice stays a choice. A number is right if
it is no farther from that value than a twentieth of the scale, which may be logarithmic. A curve, and a question that
people ask, are answered in words, with the answer for whoever grades them. Formulas are TeX, ``\(x\)``,
which Moodle shows by MathJax.
"""

import hashlib
import json
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from runs import BUILD, ROOT, run_notebooks
from typeset_page import self_contained, to_html

from chapters import chapters  # isort: skip  # of book/_ext, which typeset_page puts on the path
from questions import Runs, answer, formula, questions  # isort: skip

PEOPLE = "Questions people ask"
SHARE_OF_SCALE = 0.05  # by which a number may differ from the value
TRUTH = re.compile(r'class="g-truth" data-guess="(\w+)" data-answer="([^"]*)"')
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
LONGEST_NAME = 80

QTI = "http://www.imsglobal.org/xsd/imsqti_v2p1"
CONTENT = "http://www.imsglobal.org/xsd/imscp_v1p1"
XSI = "http://www.w3.org/2001/XMLSchema-instance"
MATCH_CORRECT = "http://www.imsglobal.org/question/qti_v2p1/rptemplates/match_correct"
LOCATIONS = {QTI: f"{QTI} {QTI}.xsd", CONTENT: f"{CONTENT} http://www.imsglobal.org/xsd/imscp_v1p2.xsd"}


@dataclass(frozen=True)
class Item:
    """One question of the bank; its identifier stays the same while its question does."""

    identifier: str
    chapter: str
    kind: str  # "choice", "number" or "words"
    question: str  # plain text
    answer: str  # HTML
    options: tuple[str, ...] = ()
    right: int = 0  # the option
    value: float = 0.0
    low: float = 0.0  # the smallest number that is right
    high: float = 0.0
    unit: str = ""
    scale: str = ""  # between which values, or which curve

    @property
    def name(self) -> str:
        """A short name for lists."""
        return self.question if len(self.question) <= LONGEST_NAME else f"{self.question[: LONGEST_NAME - 1]}…"


# --- what the book asks ---------------------------------------------------------------------------------------------


def guesses(cells: list[dict], chapter: str, name: str) -> Iterator[Item]:
    """Yield the guesses of a chapter's run that have an answer among those that a reader can give."""
    asked, found = {}, {}
    for output in (output for cell in cells for output in cell.get("outputs", [])):
        made = output.get("metadata", {}).get("text/html", {}).get("made_from", {})
        if made.get("class", "").endswith(":GuessCard"):
            state = json.loads(made["state"])
            key = hashlib.sha256(json.dumps([state["kind"], state["question"], state["about"]]).encode()).hexdigest()
            asked[key[:8]] = state
        for key, truth in TRUTH.findall("".join(output.get("data", {}).get("text/html", ""))):
            found[key] = json.loads(unescape(truth))
    for key, state in asked.items():
        truth = found.get(key, {"at": None, "note": ""})
        if truth["at"] is not None and not truth["note"].endswith("beyond the scale."):
            yield item(f"{name}-{key}", chapter, state, truth)


def item(identifier: str, chapter: str, state: dict[str, Any], truth: dict[str, Any]) -> Item:
    """Return a guess as a question of the bank; ``truth`` is what ``reveal`` stored."""
    about, question = state["about"], state["question"]
    said = f"<p>{escape(truth['told'])}. {escape(truth['note'])}</p>".replace(" </p>", "</p>")
    if state["kind"] == "choice":
        options = tuple(about["options"])
        return Item(identifier, chapter, "choice", question, said, options=options, right=truth["at"])
    if state["kind"] == "number":
        scale = f"Between {about['low']:g} and {about['high']:g} {about['unit']}".strip() + "."
        low, high = allowed(truth["at"], about["low"], about["high"], log=about["log"])
        unit = about["unit"]
        return Item(identifier, chapter, "number", question, said, (), 0, truth["at"], low, high, unit, scale)
    return Item(identifier, chapter, "words", question, said, scale=f"Draw {about['ylabel']} over {about['xlabel']}.")


def allowed(value: float, low: float, high: float, *, log: bool) -> tuple[float, float]:
    """Return the smallest and the largest number that are right, given the value and the ends of the scale.

    >>> allowed(30.0, 0, 100, log=False)
    (25.0, 35.0)
    """
    if log:
        factor = (high / low) ** SHARE_OF_SCALE
        return value / factor, value * factor
    return value - SHARE_OF_SCALE * (high - low), value + SHARE_OF_SCALE * (high - low)


def asked_by_people(runs: Runs) -> Iterator[Item]:
    """Yield the entries of the page *Questions people ask*, with their formulas and without links."""
    for one in questions((ROOT / "book" / "questions.md").read_text(encoding="utf-8")):
        text = LINK.sub(r"\1", answer(one, ROOT, runs))
        if "formula" in one.options:
            text += f"\n\n$$\n{formula(one, ROOT)}\n$$\n\n{one.options.get('where', '')}"
        yield Item(f"people-{one.anchor}", PEOPLE, "words", one.title, to_html(text).strip())


def bank(runs_file: Path) -> list[Item]:
    """Return all questions, in the order of the book."""
    runs = json.loads(runs_file.read_text(encoding="utf-8"))
    found: list[Item] = []
    for title, path in chapters(ROOT).items():
        run = json.loads(Path(runs[str(path.relative_to(ROOT))]).read_text(encoding="utf-8"))
        found += guesses(run["cells"], title, path.stem)
    return [*found, *asked_by_people(Runs(runs_file))]


def by_chapter(items: list[Item]) -> dict[str, list[Item]]:
    """Return the questions by chapter, in order."""
    found: dict[str, list[Item]] = {}
    for one in items:
        found.setdefault(one.chapter, []).append(one)
    return found


# --- Moodle XML -----------------------------------------------------------------------------------------------------


def moodle(items: list[Item]) -> str:
    """Return the bank as Moodle XML."""
    quiz = ET.Element("quiz")
    for chapter, own in by_chapter(items).items():
        category = ET.SubElement(quiz, "question", type="category")
        _text(ET.SubElement(category, "category"), f"$course$/top/{chapter.replace('/', '//')}")
        for one in own:
            quiz.append(moodle_question(one))
    ET.indent(quiz)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(quiz, encoding="unicode") + "\n"


def moodle_question(one: Item) -> ET.Element:
    """Return one question as Moodle XML."""
    kind = {"choice": "multichoice", "number": "numerical", "words": "essay"}[one.kind]
    question = ET.Element("question", type=kind)
    _text(ET.SubElement(question, "name"), one.name)
    scale = f"<p>{escape(one.scale)}</p>" if one.scale else ""
    _text(ET.SubElement(question, "questiontext", format="html"), f"<p>{escape(one.question)}</p>{scale}")
    _text(ET.SubElement(question, "generalfeedback", format="html"), one.answer)
    ET.SubElement(question, "defaultgrade").text = "1"
    ET.SubElement(question, "idnumber").text = one.identifier
    if one.kind == "choice":
        for name, value in (("single", "true"), ("shuffleanswers", "false"), ("answernumbering", "abc")):
            ET.SubElement(question, name).text = value
        for i, option in enumerate(one.options):
            chosen = ET.SubElement(question, "answer", fraction="100" if i == one.right else "0", format="html")
            _text(chosen, escape(option))
    elif one.kind == "number":
        for value, tolerance in moodle_ranges(one):
            right = ET.SubElement(question, "answer", fraction="100", format="moodle_auto_format")
            _text(right, f"{value:.6g}")
            ET.SubElement(right, "tolerance").text = f"{tolerance:.6g}"
        for name, value in (("unitgradingtype", "0"), ("unitpenalty", "0"), ("showunits", "3"), ("unitsleft", "0")):
            ET.SubElement(question, name).text = value
    else:
        for name, value in (("responseformat", "editor"), ("responserequired", "1"), ("responsefieldlines", "10")):
            ET.SubElement(question, name).text = value
        ET.SubElement(question, "attachments").text = "1"
        _text(ET.SubElement(question, "graderinfo", format="html"), one.answer)
        _text(ET.SubElement(question, "responsetemplate", format="html"), "")
    return question


def moodle_ranges(one: Item) -> list[tuple[float, float]]:
    """Return the numbers that are right as values with tolerances; Moodle shows the first value as the answer.

    A range on a logarithmic scale is not symmetric about the value. A second range then adds its upper end.
    """
    below, above = one.value - one.low, one.high - one.value
    if above - below <= 1e-6 * above:
        return [(one.value, below)]
    return [(one.value, below), (one.value + (below + above) / 2, (above - below) / 2)]


def _text(parent: ET.Element, text: str) -> None:
    ET.SubElement(parent, "text").text = text


# --- QTI 2.1 --------------------------------------------------------------------------------------------------------


def qti_item(one: Item) -> str:
    """Return one question as an ``assessmentItem``."""
    root = _root(QTI, "assessmentItem", identifier=one.identifier, title=one.name, adaptive="false")
    root.set("timeDependent", "false")
    if one.kind == "choice":
        _response(root, "identifier", f"choice-{one.right}")
    elif one.kind == "number":
        _response(root, "float", f"{one.value:.6g}")
    else:
        ET.SubElement(root, "responseDeclaration", identifier="RESPONSE", cardinality="single", baseType="string")
    score = ET.SubElement(root, "outcomeDeclaration", identifier="SCORE", cardinality="single", baseType="float")
    ET.SubElement(ET.SubElement(score, "defaultValue"), "value").text = "0"
    body = ET.SubElement(root, "itemBody")
    if one.kind == "words":
        scheme = ET.SubElement(body, "rubricBlock", view="scorer")
        scheme.extend(ET.fromstring(f"<div>{one.answer}</div>"))
    if one.kind != "choice":
        ET.SubElement(body, "p").text = one.question
    if one.scale:
        ET.SubElement(body, "p").text = one.scale
    if one.kind == "choice":
        asked = ET.SubElement(body, "choiceInteraction", responseIdentifier="RESPONSE", shuffle="false", maxChoices="1")
        ET.SubElement(asked, "prompt").text = one.question
        for i, option in enumerate(one.options):
            ET.SubElement(asked, "simpleChoice", identifier=f"choice-{i}").text = option
        ET.SubElement(root, "responseProcessing", template=MATCH_CORRECT)
    elif one.kind == "number":
        line = ET.SubElement(body, "p")
        ET.SubElement(line, "textEntryInteraction", responseIdentifier="RESPONSE", expectedLength="15").tail = one.unit
        _between(ET.SubElement(root, "responseProcessing"), one.low, one.high)
    else:
        ET.SubElement(body, "extendedTextInteraction", responseIdentifier="RESPONSE", expectedLines="10")
    return _written(root)


def _response(root: ET.Element, kind: str, right: str) -> None:
    declared = ET.SubElement(root, "responseDeclaration", identifier="RESPONSE", cardinality="single", baseType=kind)
    ET.SubElement(ET.SubElement(declared, "correctResponse"), "value").text = right


def _between(processing: ET.Element, low: float, high: float) -> None:
    """Give the point if the response lies between two numbers, ends included."""
    case = ET.SubElement(ET.SubElement(processing, "responseCondition"), "responseIf")
    both = ET.SubElement(case, "and")
    for comparison, end in (("gte", low), ("lte", high)):
        compared = ET.SubElement(both, comparison)
        ET.SubElement(compared, "variable", identifier="RESPONSE")
        ET.SubElement(compared, "baseValue", baseType="float").text = f"{end:.6g}"
    points = ET.SubElement(case, "setOutcomeValue", identifier="SCORE")
    ET.SubElement(points, "baseValue", baseType="float").text = "1"


def qti_test(identifier: str, chapter: str, items: list[Item]) -> str:
    """Return the test of a chapter, an ``assessmentTest`` with all its questions."""
    root = _root(QTI, "assessmentTest", identifier=identifier, title=chapter)
    part = ET.SubElement(root, "testPart", identifier="part", navigationMode="nonlinear", submissionMode="simultaneous")
    section = ET.SubElement(part, "assessmentSection", identifier="section", title=chapter, visible="true")
    for one in items:
        href = f"../items/{one.identifier}.xml"
        ET.SubElement(section, "assessmentItemRef", identifier=one.identifier, href=href)
    return _written(root)


def qti_files(items: list[Item]) -> dict[str, str]:
    """Return the files of the QTI package by their paths in the zip."""
    files = {f"items/{one.identifier}.xml": qti_item(one) for one in items}
    root = _root(CONTENT, "manifest", identifier="attention-book-quiz")
    about = ET.SubElement(root, "metadata")
    ET.SubElement(about, "schema").text = "QTIv2.1 Package"
    ET.SubElement(about, "schemaversion").text = "1.0.0"
    ET.SubElement(root, "organizations")
    resources = ET.SubElement(root, "resources")
    for one in items:
        _resource(resources, one.identifier, "imsqti_item_xmlv2p1", f"items/{one.identifier}.xml")
    for chapter, own in by_chapter(items).items():
        identifier = f"test-{own[0].identifier.rpartition('-')[0] if chapter != PEOPLE else 'people'}"
        path = f"tests/{identifier}.xml"
        files[path] = qti_test(identifier, chapter, own)
        resource = _resource(resources, identifier, "imsqti_test_xmlv2p1", path)
        for one in own:
            ET.SubElement(resource, "dependency", identifierref=one.identifier)
    return {"imsmanifest.xml": _written(root), **files}


def _resource(resources: ET.Element, identifier: str, kind: str, href: str) -> ET.Element:
    resource = ET.SubElement(resources, "resource", identifier=identifier, type=kind, href=href)
    ET.SubElement(resource, "file", href=href)
    return resource


def _root(namespace: str, tag: str, **attributes: str) -> ET.Element:
    """Return a root element; its namespace is the default one of the file, so that no tag has a prefix."""
    names = {"xmlns": namespace, "xmlns:xsi": XSI, "xsi:schemaLocation": LOCATIONS[namespace]}
    return ET.Element(tag, {**names, **attributes})


def _written(root: ET.Element) -> str:
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


# --- the sheet ------------------------------------------------------------------------------------------------------

SHEET = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Questions: {title}</title>
<style>
  body {{ max-width: 48rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.45 Georgia, "DejaVu Serif", serif; }}
  h1, h2 {{ font-family: system-ui, sans-serif; line-height: 1.2; }}
  .questions > li {{ margin-bottom: 1rem; break-inside: avoid; }}
  .choices {{ list-style: none; padding-left: 0; }}
  .choices li::before {{ content: "\\2610\\00a0"; }}
  .line {{ border-bottom: 1px solid; height: 1.6rem; max-width: 24rem; }}
  .key {{ break-before: page; }}
  .key li > p {{ margin: 0 0 0.4rem; }}
</style>
</head>
<body>
<h1>Questions: {title}</h1>
{questions}
<div class="key">
<h1>Key</h1>
<p>The values were computed by the runs of the book's chapters.</p>
{key}
</div>
</body>
</html>
"""


def sheet(items: list[Item], title: str) -> str:
    """Return the printable sheet, with the key at the end; formulas are TeX."""
    asked, key = [], []
    for chapter, own in by_chapter(items).items():
        asked.append(f'<h2>{escape(chapter)}</h2>\n<ol class="questions">\n{"".join(map(_on_paper, own))}</ol>')
        key.append(f"<h2>{escape(chapter)}</h2>\n<ol>\n{''.join(map(_in_key, own))}</ol>")
    return SHEET.format(title=escape(title), questions="\n".join(asked), key="\n".join(key))


def _on_paper(one: Item) -> str:
    choices = "".join(f"<li>{escape(option)}</li>" for option in one.options)
    below = f'<ul class="choices">{choices}</ul>' if choices else f'{escape(one.scale)}<div class="line"></div>'
    return f"<li>{escape(one.question)} {below}</li>\n"


def _in_key(one: Item) -> str:
    ends = f"<p>Right: {one.low:.3g} to {one.high:.3g} {escape(one.unit)}".strip() + "</p>"
    return f"<li>{one.answer}{ends if one.kind == 'number' else ''}</li>\n"


# --- files ----------------------------------------------------------------------------------------------------------


def write_quiz(items: list[Item], target: Path) -> None:
    """Write the three files into the folder ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    (target / "moodle.xml").write_text(moodle(items), encoding="utf-8")
    with zipfile.ZipFile(target / "qti.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in qti_files(items).items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)  # dated 1980: reproducible
    (target / "sheet.html").write_text(self_contained(sheet(items, "Attention, understood")), encoding="utf-8")


def main() -> int:
    """Run the notebooks that have changed, write the bank and print its folder."""
    if not run_notebooks(ROOT):
        return 1
    items = bank(BUILD / "runs.json")
    shutil.rmtree(BUILD / "quiz", ignore_errors=True)
    write_quiz(items, BUILD / "quiz")
    counts = {kind: sum(one.kind == kind for one in items) for kind in ("choice", "number", "words")}
    print(f"{(BUILD / 'quiz').relative_to(ROOT)}: {', '.join(f'{n} {kind}' for kind, n in counts.items())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
