"""Tests of the page of questions: its anchors, the length of the answers, and what they take from the chapters."""

import json
import re
from pathlib import Path

import pytest
import questions
import torch
import traitlets
from chapters import markdown_cells
from sample_book import chapter, contents, sphinx_app
from test_reading_ease import LONGEST, sentences
from times import count_words

from lessons_lib.page import widgets

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / f"{questions.PAGE}.md").read_text(encoding="utf-8")
ASKED = {one.anchor: one for one in questions.questions(PAGE)}
MOST_SENTENCES, MOST_WORDS = 5, 110
# Links to these anchors are in other people's texts: an anchor may be added, but not changed or removed.
ANCHORS = """
alibi attention-as-explanation attention-or-rnn attention-sink bert-or-gpt beyond-the-trained-length bf16-or-fp16
changes-since-2017 encoder-or-decoder feed-forward-layer flashattention gpt-training induction-head kv-cache
linear-attention mha-mqa-gqa-mla mixture-of-experts padding-and-causal-mask pre-ln-or-post-ln quadratic-cost
queries-keys-values rope self-or-cross-attention several-heads slow-generation sparse-attention speculative-decoding
swiglu temperature tokens-and-bpe top-k-top-p-min-p vision-transformer warm-up weight-tying what-a-head-does
why-causal-mask why-softmax why-sqrt-d-k word-order yarn
"""
GROUPS = ["Basics", "Training", "Positions and length", "Speed and memory", "Models since 2017", "Reading attention"]


class NoRuns:
    """Stands for the runs of the chapters, which the tests of the text do not need."""

    def number(self, chapter: str, name: str) -> str:
        return "1.0"

    def drawing(self, name: str) -> questions.Drawing:
        return questions.Drawing("<svg></svg>", "A caption.", "")


def text_of(one: questions.Question) -> str:
    return questions.answer(one, ROOT, NoRuns())


def plain(text: str) -> str:
    """Return a text in lower case, without links, emphasis, punctuation at the end, and line breaks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[*_]", "", text).lower().split()).rstrip(".:; ")


# --- the book's own -------------------------------------------------------------------------------------------------


def test_anchors_do_not_change():
    assert [anchor for anchor in ANCHORS.split() if anchor not in ASKED] == []
    assert sorted(ASKED) == sorted(ANCHORS.split()), "add the anchor of a new question to ANCHORS"


def test_every_block_is_a_question_of_a_group():
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == GROUPS
    assert len(ASKED) == PAGE.count(":::{question}") == PAGE.count("\n### ")
    assert len({one.title for one in ASKED.values()}) == len(ASKED)
    assert all(one.title.endswith("?") for one in ASKED.values())


@pytest.mark.parametrize("anchor", ASKED)
def test_answer_is_short(anchor):
    text = text_of(ASKED[anchor])
    found = sentences(text)
    assert len(found) <= MOST_SENTENCES, found
    assert count_words(text) <= MOST_WORDS
    assert max(len(sentence.split()) for sentence in found) <= LONGEST


@pytest.mark.parametrize("anchor", ASKED)
def test_answer_shares_a_sentence_with_the_chapter(anchor):
    """If the sentence changes in the chapter, the answer must be read again."""
    one = ASKED[anchor]
    path = ROOT / "book" / f"{one.options['section'].partition('#')[0]}.ipynb"
    written = plain("\n".join(markdown_cells(path)))
    text = re.sub(r"(?<=[.?!]) (?=[A-Z*(\[])", "\n", text_of(one))
    shared = [line for line in text.splitlines() if plain(line) in written]
    assert shared, text


@pytest.mark.parametrize("anchor", ASKED)
def test_answer_links_to_a_section_and_has_a_formula_or_drawing(anchor):
    one = ASKED[anchor]
    assert questions.section(ROOT, one.options["section"])
    shown = questions.picture(one, ROOT, NoRuns())
    assert "$$\n" in shown or "<svg>" in shown
    if "figure" in one.options:
        assert any(f'"{one.options["figure"]}"' in path.read_text() for path in ROOT.glob("book/[a-z]*/*.ipynb"))


@pytest.mark.parametrize("anchor", [anchor for anchor, one in ASKED.items() if "try" in one.options])
def test_explorer_has_the_settings_of_the_link(anchor):
    state, _, words = ASKED[anchor].options["try"].partition(" | ")
    assert words.endswith(".")
    name, *settings = state.split("&")
    explorers = [getattr(widgets, kind) for kind in widgets.__all__ if kind.endswith("Explorer")]
    traits = next(kind for kind in explorers if kind.script == name).class_traits(sync=True)
    for setting in settings:
        trait, _, text = setting.partition("=")
        value = text if isinstance(traits[trait].default(), str) else json.loads(text)
        traits[trait].validate(traitlets.HasTraits(), value)


def test_size_of_a_cache_is_that_of_the_shape_in_the_text():
    text = ASKED["kv-cache"].answer
    layers, heads, width = map(int, re.search(r"(\d+) layers and (\d+) key/value heads of width (\d+)", text).groups())
    assert f"{4 * layers * heads * width:,} bytes" in text


def test_formula_of_the_formats_is_what_torch_computes():
    assert torch.tensor(1 + 2**-8).bfloat16() == 1
    assert torch.tensor([2.0**-25, 2.0**16]).half().tolist() == [0, torch.inf]


# --- how it is made -------------------------------------------------------------------------------------------------

CHAPTER = """# One: a title

:::{admonition} In short
:class: in-short
A box.

$$
x = 1 .
$$
:::

## What is x?

Text with a formula.

$$
x = 2 ,
$$ (eq-one)

**So:** it is [two](#what-is-y).

## What is y?

Nothing."""
ENTRY = """# Questions

<!-- questions -->

## Basics

### What is x?

:::{question} what-is-x
:section: part/one#what-is-x
:formula: box
:where: $x$ is a number.
:try: masks&parts=["causal"] | Set it.
{so}`part/one#what-is-x` Its spread is {number}`part/one spread`.
:::
"""


@pytest.fixture
def book(tmp_path):
    """Create a book of one chapter, with a run that glues a number and has a drawing."""
    chapter(tmp_path / "book/part/one.ipynb", CHAPTER)
    contents(tmp_path, "part/one")
    glued = {
        "metadata": {"scrapbook": {"name": "spread"}},
        "data": {"application/papermill.record/text/plain": "'1.50'"},
    }
    drawn = {"data": {"text/html": ['<div class="drawing">', "<svg></svg></div>"]}}
    figure = {"mystnb": {"figure": {"name": "fig-one", "caption": "One."}}}
    cells = [{"metadata": {}, "outputs": [glued]}, {"metadata": figure, "outputs": [drawn]}]
    (tmp_path / "run.ipynb").write_text(json.dumps({"cells": cells}))
    runs = {"book/part/one.ipynb": str(tmp_path / "run.ipynb"), "book/exercises/one.ipynb": None}
    (tmp_path / "runs.json").write_text(json.dumps(runs))  # beside the folder of the site
    return tmp_path, questions.Runs(tmp_path / "runs.json")


def test_filled_page_has_answer_formula_and_links(book):
    page = questions.filled(ENTRY, *book)
    assert "**Basics**\n\n* [What is x?](#what-is-x)" in page
    assert "{#what-is-x}\n### What is x?\n\nIt is [two](/book/part/one.ipynb#what-is-y). Its spread is 1.50." in page
    assert "$$\nx = 1\n$$\n\n$x$ is a number." in page
    assert "**Read more:** One, [What is x?](/book/part/one.ipynb#what-is-x)" in page
    assert '<a href="../explorers/masks.html#explore=masks&amp;parts=%5B%22causal%22%5D">Set it.</a>' in page
    assert '<a class="question-link" href="questions/what-is-x.html">Copy link</a>' in page


def test_filled_page_copies_drawings_and_labelled_formulas(book):
    drawn = questions.filled(ENTRY.replace(":formula: box", ":figure: fig-one"), *book)
    assert '```{raw} html\n<div class="drawing"><svg></svg></div>\n```\n\nOne.\n:::' in drawn
    assert "$$\nx = 2\n$$" in questions.filled(ENTRY.replace("box", "eq-one"), *book)


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        (":section: part/one", ":section: part/two", "names the chapter part/two, which the book does not have"),
        (":section: part/one#what-is-x", ":section: part/one#why", "names the section part/one#why, which the chapter"),
        (
            "{so}`part/one#what-is-x`",
            "{so}`part/one#what-is-y`",
            "part/one#what-is-y has no paragraph that begins with",
        ),
        ("box", "eq-two", "what-is-x names the formula eq-two, which no chapter has"),
        (":formula: box", ":figure: fig-two", "no chapter has a drawing fig-two"),
        ("one spread", "one width", "part/one glues no number width"),
        (":formula: box\n", "", "must have a section, and either a formula or a figure"),
        (":where:", ":whence:", "what-is-x has unknown options: whence"),
    ],
)
def test_invalid_question_raises(book, before, after, rule):
    with pytest.raises(ValueError, match=rule):
        questions.filled(ENTRY.replace(before, after), *book)


def test_number_without_a_run_raises(tmp_path):
    with pytest.raises(ValueError, match="there is no run of part/one: build with make book"):
        questions.Runs(tmp_path / "runs.json").number("part/one", "spread")


# --- the pages to share ---------------------------------------------------------------------------------------------


@pytest.fixture
def site(book):
    """Build the sample page into a site, with the address of the book."""
    pytest.importorskip("jupyter_book")
    root, _ = book

    def built(address: str) -> Path:
        (root / "index.md").write_text("# A book\n\n```{toctree}\nbook/questions\n```\n")
        (root / "book/questions.md").write_text(ENTRY)
        (root / "icon.svg").write_text("<svg/>")
        settings = {
            "extensions": ["myst_nb", "questions"],
            "myst_enable_extensions": ["attrs_block", "colon_fence", "dollarmath"],
            "exclude_patterns": ["run.ipynb", "**/*.ipynb"],
            "html_theme": "sphinx_book_theme",
            "html_title": "A book",
            "html_favicon": "icon.svg",
            "html_baseurl": address,
        }
        target = root / "html"
        sphinx_app(root, target, settings).build()
        return target

    return built


def described(page: Path) -> dict[str, str]:
    return dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)">', page.read_text(encoding="utf-8")))


@pytest.mark.filterwarnings("ignore")
def test_shared_page_has_title_description_and_picture_and_redirects(site):
    html = site("https://someone.github.io/a-fork/")
    page = html / "book/questions/what-is-x.html"
    said = described(page)
    assert said["og:title"] == "What is x?"
    assert said["og:description"] == said["description"] == "It is two. Its spread is 1.50."
    assert said["og:url"] == "https://someone.github.io/a-fork/book/questions/what-is-x.html"
    assert said["og:image"] == "https://someone.github.io/a-fork/_static/cards/questions/what-is-x.png"
    assert (html / "_static/cards/questions/what-is-x.png").is_file()
    text = page.read_text(encoding="utf-8")
    assert '<meta http-equiv="refresh" content="0; url=../questions.html#what-is-x">' in text
    assert '<link rel="canonical" href="https://someone.github.io/a-fork/book/questions.html">' in text
    assert 'id="what-is-x"' in (html / "book/questions.html").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
def test_shared_page_without_an_address_has_no_absolute_links(site):
    page = site("") / "book/questions/what-is-x.html"
    assert not {"og:url", "og:image"} & set(described(page))
    assert "canonical" not in page.read_text(encoding="utf-8")
