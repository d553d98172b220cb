"""Tests of what the extensions and scripts write in another language: generated pages, controls, the theme's words."""

import re
from gettext import GNUTranslations, NullTranslations

import catalogs
import chapters
import claims
import colophon
import drawing_words
import guesses
import messages
import not_found
import pytest
import questions
import sources
import summaries
import theme_words
import translation
from language_runs import compile_catalogs
from sample_book import chapter, contents
from update_catalogs import ROOT

from lessons_lib.page import drawings, language

HAN = re.compile("[\u4e00-\u9fff]")
BOX = "# A title\n\n:::{admonition} In short\n:class: in-short\nSee [here](#one).\n\n$$x$$\n:::"
SECTION = "## What holds?\n\nOne reason.\n\n**So:** it holds [there](#one)."
TABLE = "## Claims you will meet\n\n| what is said | what holds |\n|---|---|\n| It grows | [no](#one): [1] |"
SOURCE = "## Sources\n\n[1] Doe, Roe, *On Examples*, 2017, [arXiv:1706.00001](https://arxiv.org/abs/1706.00001)."
WORDS = {
    "See [here](#one).": "见[这里](#one)。",
    "It grows": "它会增长",
    "[no](#one): [1]": "[不会](#one)：[1]",
    "**So:** it holds [there](#one).": "**小结：** 它在[那里](#one)成立。",
    "What holds?": "什么成立？",
}


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Return a book with one chapter, whose catalog and the site's are the Chinese ones of this test."""
    monkeypatch.setenv("BOOK_LANGUAGE", "zh_CN")
    real = catalogs.of_page
    known = {"book/one": WORDS, "_toc": {"One": "第一"}}
    monkeypatch.setattr(catalogs, "of_page", lambda name, page: known[page] if page in known else real(name, page))
    chapter(tmp_path / "book/one.ipynb", BOX, SECTION, TABLE, SOURCE)
    return contents(tmp_path, "one")


def test_messages_of_a_chapter_include_what_follows_the_reading_times():
    text = "<!-- times --> **You need:** the softmax.\n\nA paragraph.\n\n<!-- boxes -->\n\n<!-- a note -->\n\n<i>"
    assert [one.text for one in messages.messages(text)] == ["**You need:** the softmax.", "A paragraph."]
    words = messages.translated(text, {"**You need:** the softmax.": "**预备知识：** softmax。"}.get)
    assert words.startswith("<!-- times --> **预备知识：** softmax。\n\nA paragraph.")


def test_in_language_without_a_language_changes_nothing(book, monkeypatch):
    path = book / "book/one.ipynb"
    assert chapters.in_language(SECTION, path, book).startswith("## 什么成立？")
    monkeypatch.delenv("BOOK_LANGUAGE")
    assert chapters.in_language(SECTION, path, book) == SECTION


def test_boxes_and_claims_are_translated_before_their_links_change(book):
    assert "见[这里](/book/one.ipynb#one)。" in summaries.markdown_boxes(book)
    page = claims.tables(book)
    assert page.startswith(
        "## [One](/book/one.ipynb)\n\n| 常见说法 | 实际情况 |\n|---|---|\n| 它会增长 | [不会](/book/one.ipynb#one)："
    )
    assert "([Doe 等 2017](https://arxiv.org/abs/1706.00001))" in page
    # The heading is translated later, so that its anchor can be the English one.
    assert translation.lookup_in_all("[One](/book/one.ipynb)") == "[第一](/book/one.ipynb)"
    assert translation.lookup_in_all("[Two](/book/two.ipynb)") is None


def test_list_of_sources_names_translated_chapters(book):
    assert sources.markdown_list(book).endswith("(https://arxiv.org/abs/1706.00001)。见[第一](/book/one.ipynb)。")


def test_answer_of_a_question_takes_the_translated_conclusion_and_heading(book):
    address = "one#what-holds"
    assert questions.so_line(book, address) == "它在[那里](/book/one.ipynb#one)成立。"
    one = questions.Question("为什么？", "why", {"section": address, "formula": "x", "try": "masks&n=1 | 试试。"}, "")
    links = questions.links(one, book)
    assert "**延伸阅读：** 第一，[什么成立？](/book/one.ipynb#what-holds)" in links
    assert "**试一试：** <a " in links
    assert ">复制链接</a>" in links


def test_tables_of_the_colophon_have_translated_columns(monkeypatch):
    assert colophon.table(("for", "pinned"), ["| a | b |"]) == "| for | pinned |\n|---|---|\n| a | b |"
    monkeypatch.setenv("BOOK_LANGUAGE", "zh_CN")
    assert colophon.table(("for", "pinned"), []) == "| 用途 | 固定版本 |\n|---|---|"
    assert set(colophon.pins(ROOT)) <= {*colophon.PURPOSES, ""}


def test_devices_and_versions_of_the_colophon_need_no_other_words(monkeypatch):
    device = "x86_64, Linux, one thread"
    assert colophon.in_words(device) == device
    monkeypatch.setenv("BOOK_LANGUAGE", "zh_CN")
    assert colophon.in_words(device) == "x86_64、Linux、单线程"
    tables = colophon.tables(ROOT)
    known = set(catalogs.of_page("zh_CN", "site").values())
    texts = [one.text for table in tables.values() for one in messages.messages(table)]
    assert [text for text in texts if not HAN.search(text) and "、" not in text and text not in known] == [
        "[FlashAttention](/book/efficient/flash.ipynb)"
    ]


DRAWN = {
    "memory_passes": drawings.memory_passes,
    "head_interventions": drawings.head_interventions,
    "encoder_and_decoder": drawings.encoder_and_decoder,
    "block_changes": drawings.block_changes,
    "prefill_and_decoding": drawings.prefill_and_decoding,
    "byte_pair_steps": lambda: drawings.byte_pair_steps([["en", "d"], ["end"]]),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return a folder with the compiled catalogs."""
    target = tmp_path_factory.mktemp("catalogs")
    compile_catalogs("zh_CN", target=target)
    return target


@pytest.mark.parametrize("name", DRAWN)
def test_drawing_that_ran_in_english_becomes_the_one_that_a_run_in_the_language_draws(name, compiled, monkeypatch):
    ran = DRAWN[name]().to_html()
    assert drawing_words.in_language(ran, "book/one") == ran
    monkeypatch.setenv("BOOK_LANGUAGE", "zh_CN")
    monkeypatch.setattr(language, "CATALOGS", compiled)
    wanted = DRAWN[name]().to_html()
    assert HAN.search(wanted)
    assert drawing_words.in_language(ran, "book/one") == wanted
    assert drawing_words.in_language(wanted, "book/one") == wanted


def test_words_that_a_model_reads_stay_in_a_drawing(monkeypatch):
    text = '<text x="1">a &lt; smiles</text><text>keeps 2</text><text><tspan>$</tspan></text><svg aria-label="zxq">'
    pieces = drawings.byte_pair_steps([["en", "d"], ["end"]]).to_html()
    monkeypatch.setenv("BOOK_LANGUAGE", "zh_CN")
    assert drawing_words.in_language(text, "book/one") == text.replace("keeps 2", "保留 2")
    assert re.findall(">([^<>]+)</text>", drawing_words.in_language(pieces, "book/one")) == [
        *("en", "d", "2 个片段", "end", "1 个片段")
    ]


def test_controls_are_translated(monkeypatch):
    english = guesses.switch()
    assert "<span>Guess first</span>" in english
    monkeypatch.setenv("BOOK_LANGUAGE", "zh_CN")
    assert "<span>先猜后看</span>" in guesses.switch()


class Builder:
    """Stands for Sphinx's builder."""

    def get_relative_uri(self, start: str, to: str) -> str:
        return f"{to}.html"


class App:
    """Stands for Sphinx."""

    builder = Builder()
    config = type("Config", (), {"root_doc": "book/intro"})


def test_page_not_found_is_translated(monkeypatch):
    ((_, english, _),) = not_found.collect(App)
    monkeypatch.setenv("BOOK_LANGUAGE", "zh_CN")
    ((_, words, _),) = not_found.collect(App)
    assert re.findall(r'(?:href|action)="[^"]*"', words["body"]) == re.findall(
        r'(?:href|action)="[^"]*"', english["body"]
    )
    texts = re.findall(r">([^<>\n]+)<", words["body"])
    assert [text for text in texts if not HAN.search(text)] == []


def test_words_in_templates_of_the_theme_are_replaced_in_attributes_only(monkeypatch):
    page = (
        '<nav aria-label="Main"><a title="Page" data-x="Main">Main</a><input placeholder="Search this book..."></nav>'
    )
    assert theme_words.with_words(page) == page
    monkeypatch.setenv("BOOK_LANGUAGE", "zh_CN")
    words = theme_words.with_words(page)
    assert 'aria-label="全书目录"' in words
    assert 'data-x="Main">Main<' in words
    assert 'placeholder="搜索本书……"' in words


# Text in a script: at least one word, and a space or a full stop. Names of classes, events, keys and selectors have
# other characters, or belong to calls that take no text.
TEXT = re.compile(r"(?:[A-Z][a-z]+|, or|[a-z]+ [a-z]+)[\w ,.:;?]*")
NO_TEXT = re.compile(
    r"/\*.*?\*/|//[^\n]*|gettext\(\s*\"[^\"]*\",?\s*\)|new Error\([^)]*\)|createComment\([^)]*\)"
    r"|(?:querySelector(?:All)?|closest|matches|contains|find|addEventListener|getElementById|CSSStyle\w*)\([^)]*\)"
    r"|(?:className|key|event\.key|on\w+|kind|behavior|block)[:=( ]+[=]* ?\"[^\"]*\"",
    re.DOTALL,
)
KEYS = {"ArrowDown", "ArrowUp", "Enter", "DOMContentLoaded", "guess x", "read x"}  # the last two are keys of a store


@pytest.mark.parametrize("path", sorted((ROOT / "book/_static").glob("*.js")), ids=lambda path: path.name)
def test_scripts_write_no_english_that_has_no_translation(path):
    code = NO_TEXT.sub(" ", path.read_text(encoding="utf-8"))
    literals = re.findall(r'"([^"\n]*)"|`([^`]*)`', code)
    written = {re.sub(r"\$\{[^}]*\}", "x", one or other).strip() for one, other in literals}
    assert {text for text in written if TEXT.fullmatch(text)} - KEYS == set()


def test_scripts_with_english_words_are_caught():
    code = 'note.textContent = `You have read ${n} chapters.`; say("Copy link"); gettext("Copy link");'
    literals = re.findall(r'"([^"\n]*)"|`([^`]*)`', NO_TEXT.sub(" ", code))
    assert [one or other for one, other in literals] == ["You have read ${n} chapters.", "Copy link"]


def test_every_marked_text_of_the_extensions_is_in_the_catalog():
    marked = re.compile(r"\b(?:gettext|mark)\(\s*(?:\"([^\"\\]+)\"|'([^'\\]+)')\s*\)")
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "book/_ext").glob("*.py")))
    found = {one or other for one, other in marked.findall(code)}
    assert len(found) > 80
    assert found <= set(catalogs.words_of_extensions()), "no call stands inside of an f-string"


def test_words_that_the_catalogs_of_the_theme_lack_are_added(monkeypatch):
    loaded = GNUTranslations()
    loaded._catalog = {"Search": "old", "Kept": "kept"}
    none = NullTranslations()
    monkeypatch.setattr(theme_words, "get_translator", lambda name: loaded if name == "sphinx" else none)
    monkeypatch.setenv("BOOK_LANGUAGE", "zh_CN")
    theme_words.complete_catalogs(None)
    assert [loaded.gettext(text) for text in ("Search", "Kept", "Color mode")] == ["搜索", "kept", "颜色模式"]
    assert none.gettext("Search") == "Search"
