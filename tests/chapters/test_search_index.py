"""Tests of the entries of the search in another language: snippets, first words, synonyms and English words."""

import pytest
import yaml
from docutils import nodes
from update_catalogs import ROOT

search = pytest.importorskip("search")


def section(heading: str, text: str, *ids: str) -> nodes.section:
    """Return a section with one paragraph."""
    made = nodes.section(ids=list(ids))
    made += [nodes.title(heading, heading), nodes.paragraph(text, text)]
    return made


def test_snippet_of_a_chinese_section_is_short_and_without_spaces(monkeypatch):
    monkeypatch.setenv("BOOK_LANGUAGE", "zh_CN")
    text = "小结：缩放使分数的方差为一。每个头的宽度不同时也是如此。"
    assert search.snippet(section("缩放", text)) == text.removeprefix("小结：")
    long = search.snippet(section("缩放", "分数的方差随宽度增长。" * 8 + "再长的一句话也不会被放进这一段摘要里。"))
    assert len(long) <= search.OF_CHINESE * search.SNIPPET + 1


def test_snippet_of_an_english_section_keeps_its_spaces():
    text = "So: the scale keeps the variance of the scores at one. This holds for every width of a head."
    assert search.snippet(section("Scaling", text)) == text.removeprefix("So: ").capitalize().replace("this", "This")


def test_beginning_counts_characters_of_chinese_and_words_of_english():
    assert len(search.beginning("注意力权重" * 100)) == search.FIRST_CHARACTERS
    assert search.beginning("one two " * 100).split() == ["one", "two"] * (search.FIRST_WORDS // 2)


def test_entries_have_the_words_of_their_english_heading():
    document = nodes.document(None, None)
    document += section("为什么要除以根号？", "因为方差随宽度增长。", "why-divide-by-the-root")
    (entry,) = search.entries(document, "book/page", "缩放")
    assert entry["english"] == "why divide by the root"


def test_words_of_another_language_are_added_to_the_english_ones():
    english, further = search.read_words(ROOT)
    both, more = search.read_words(ROOT, "zh_CN")
    assert both[: len(english)] == english
    assert len(both) > len(english)
    assert more["book/attention/masks"].startswith(further["book/attention/masks"])
    assert "掩码" in more["book/attention/masks"].split(", ")
    assert "causal mask" in search.synonyms("因果掩码", both)
    assert search.read_words(ROOT, "no_language") == (english, further)


def test_words_of_another_language_name_sections_that_english_ones_may_name():
    content = yaml.safe_load((ROOT / "locale/zh_CN/search.yml").read_text(encoding="utf-8"))
    pages = {place.partition("#")[0] for place in content["further"]}
    assert [page for page in sorted(pages) if not list(ROOT.glob(f"{page}.*"))] == []


@pytest.mark.rejects
def test_group_of_one_word_raises(tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "book/search.yml").write_text("same: [[mask]]\nfurther: {}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="two words or more"):
        search.read_words(tmp_path)
