"""Tests of the merges explorer: tokens agree with the chapter's code and with the library *tokenizers*."""

import random
import re

import pytest
import write_merges
from frames import fill
from labels import collisions, smallest
from tokenizers import Regex as Pattern
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.records import defined
from lessons_lib.page.widgets import MergesExplorer
from lessons_lib.page.widgets.merges import N_MERGES, WORD, learned, spelled, to_bytes, word_tokens

TEXTS = [
    "The government counted 1997 strawberries",
    "strawberry Government goverment 10000",
    "café à Zürich, naïve  coöperation",
    "日本 and 😀: two scripts (at once)!",
    " ",
    "aaaaaaaa 11111 ---- a1b2",
    "tab\tand\u00a0no-break space",
]


@pytest.fixture(scope="module")
def chapters_encode():
    given = {"re": re, "cache": lambda f: f}
    return defined(write_merges.CHAPTER, ["bpe-merge", "bpe-words", "bpe-encode"], given)["encode"]


# --- the merges and the tokens --------------------------------------------------------------------------------------


def test_merges_are_those_that_the_chapter_learns():
    merges = write_merges.learned()
    assert write_merges.numbered(merges) == [list(pair) for pair in learned()]
    assert [to_bytes(256 + i) for i in range(N_MERGES)] == [left + right for left, right in merges]
    assert len({to_bytes(token) for token in range(256 + N_MERGES)}) == 256 + N_MERGES


@pytest.mark.parametrize("n_merges", [0, 1, 30, 1000])
def test_tokens_equal_those_of_the_chapters_code(chapters_encode, n_merges):
    pairs = [(to_bytes(left), to_bytes(right)) for left, right in learned()[:n_merges]]
    for text in TEXTS[:3]:
        assert [to_bytes(token) for token in MergesExplorer(text, n_merges).tokens()] == chapters_encode(text, pairs)


@pytest.mark.parametrize("n_merges", [0, 1, 30, 1000])
def test_tokens_equal_those_of_tokenizers(n_merges):
    character = pre_tokenizers.ByteLevel.alphabet()
    assert len(character) == 256
    names = [in_byte_level(to_bytes(token)) for token in range(256 + n_merges)]
    pairs = [(names[left], names[right]) for left, right in learned()[:n_merges]]
    theirs = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, pairs))
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Pattern(WORD.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    for text in TEXTS:
        assert MergesExplorer(text, n_merges).tokens() == theirs.encode(text).ids


def in_byte_level(some):
    """The bytes in the alphabet of GPT-2, in which each byte is one visible character."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return "".join(chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in some)


def test_nothing_of_the_text_is_lost():
    for text in TEXTS:
        assert b"".join(map(to_bytes, MergesExplorer(text).tokens())).decode() == text


def test_word_without_pairs_to_merge_keeps_its_bytes():
    assert word_tokens("Q", N_MERGES) == [81]
    assert [spelled(token) for token in word_tokens("é", N_MERGES)] == ["[C3]", "[A9]"]


@pytest.mark.browser
def test_stages_agree_with_python(javascript):
    chance = random.Random(0)
    letters = "the and of in 0123 éß日😀-.\t"
    texts = [*TEXTS, *("".join(chance.choices(letters, k=chance.randint(1, 80))) for _ in range(20))]
    for text, stages in zip(texts, javascript.each("merges.math", "stages", [[t] for t in texts]), strict=True):
        for stage, later in zip(stages, [*stages[1:], {"merges": N_MERGES + 1}], strict=True):
            assert stage["tokens"] == MergesExplorer(text, stage["merges"]).tokens()
            assert stage["tokens"] == MergesExplorer(text, later["merges"] - 1).tokens()
    assert javascript.each("merges.math", "spelled", [[token] for token in range(1256)]) == [
        spelled(token) for token in range(1256)
    ]


@pytest.mark.browser
def test_merges_in_the_wrong_order_are_noticed(altered):
    reverse = ("merges.math", "LEARNED.merges", "[...LEARNED.merges].reverse()")
    with altered(*reverse) as javascript, pytest.raises(AssertionError):
        test_stages_agree_with_python(javascript)


@pytest.mark.rejects
def test_invalid_arguments_raise():
    for text in ("", "a" * 81):
        with pytest.raises(ValueError, match=rf"text must have 1 to 80 characters, got {len(text)}"):
            MergesExplorer(text)
    with pytest.raises(ValueError, match=r"merges.*at least 0 and at most 1000"):
        MergesExplorer(merges=1001)


# --- the figure -----------------------------------------------------------------------------------------------------


def pieces(page):
    return page.locator(".m-text").all_inner_texts()


@pytest.mark.browser
def test_slider_goes_from_the_bytes_to_the_last_merge(show):
    explorer = MergesExplorer("in strawberries")
    with show(explorer) as page:
        assert pieces(page) == [spelled(token) for token in explorer.tokens()]
        slider = page.get_by_role("slider", name="Merges applied")
        slider.press("ArrowLeft")
        assert len(pieces(page)) > len(explorer.tokens())
        slider.press("Home")
        assert pieces(page) == list("in␣strawberries")
        assert page.get_by_text("No merge: the tokens").is_visible()
        slider.press("ArrowRight")
        assert pieces(page)[:2] == ["in", "␣"]
        assert page.get_by_text("merge 2 joins i and n").is_visible()


@pytest.mark.browser
def test_typing_changes_the_tokens_at_once(show):
    with show(MergesExplorer("a")) as page:
        fill(page.get_by_label("Text", exact=True), "the government")
        wanted = MergesExplorer("the government").tokens()
        assert page.locator(".m-token").count() == len(wanted)
        fill(page.get_by_label("Text", exact=True), "")  # the last text stays until something is typed
        assert page.locator(".m-token").count() == len(wanted)


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 760])
def test_labels_do_not_overlap(show, width):
    with show(MergesExplorer(TEXTS[3]), width=width) as page:
        assert not collisions(page)
        assert smallest(page) >= 10
