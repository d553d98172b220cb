"""The length of sentences in the chapters."""

import re
from pathlib import Path

import pytest
from chapters import chapters, markdown_cells
from times import DISPLAYED

ROOT = Path(__file__).resolve().parents[2]
LONG, LONGEST, SHARE_OF_LONG = 28, 40, 0.1  # words; the longest is allowed in proofs
BLOCKS = re.compile(rf"```.*?```|{DISPLAYED.pattern}|<!--.*?-->", re.DOTALL)
LINES = re.compile(r"^\s*(?:\||#|:{3,}|:\w+:).*$", re.MULTILINE)  # tables, headings, directives
FORMULA = re.compile(r"\$[^$]*\$")
PROOF = re.compile(r"\*Proof\b.*?\$\\blacksquare\$", re.DOTALL)
END = re.compile(r"(?<=[.!?:])[)*_\"\u201d]*\s+(?=[A-Z*_\"\u201c{\[(])|\n\s*\n|^\s*(?:[*-]|\d+\.) ", re.MULTILINE)


CHAPTERS = {path.stem: path for path in chapters(ROOT).values()}


def sentences(text: str) -> list[str]:
    """Return the sentences of Markdown without tables, headings, code and proofs; a formula is one word."""
    prose = LINES.sub("", BLOCKS.sub(" X ", PROOF.sub("", text)))
    found = (" ".join(part.split()) for part in END.split(FORMULA.sub("X", prose)))
    return [sentence for sentence in found if len(sentence.split()) > 2]


def test_sentences_are_split_at_their_ends_and_at_items():
    text = "# A title\n\nOne two three. Four *five* six: Seven eight nine.\n\n* ten $a + b$ twelve\n"
    text += "\n*Proof.* All of this is left out. $\\blacksquare$"
    assert sentences(text) == ["One two three.", "Four *five* six:", "Seven eight nine.", "ten X twelve"]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_sentences_are_short(chapter):
    text = "\n\n".join(markdown_cells(CHAPTERS[chapter]))
    lengths = {sentence: len(sentence.split()) for sentence in sentences(text)}
    assert [sentence for sentence, words in lengths.items() if words > LONGEST] == []
    longer = [sentence for sentence, words in lengths.items() if words > LONG]
    assert len(longer) <= SHARE_OF_LONG * len(lengths), longer
