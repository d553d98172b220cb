"""Test the translations: each finished page is translated completely, and every translation keeps what it must keep."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import build_language
import catalogs
import pytest
import script_words
import yaml
from babel.messages.catalog import Catalog
from build_language import (
    copy_missing_cards,
    link_pages,
    linked,
    list_sitemap,
    site_address,
    titles_translated,
    write_settings,
)
from messages import CODE, FORMULA, ROLE, TAG, TARGET, differences, has_words, messages, messages_of_page, translated
from update_catalogs import ROOT, domains, missing_and_fuzzy, titles, updated, write

from lessons_lib.page.language import split

HAN = "\u4e00-\u9fff"
# Half-width punctuation after a Chinese character, and a letter or a formula that touches one.
HALF_WIDTH = re.compile(rf"[{HAN}][,;:?!]|[{HAN}]\.(?!\w)|[{HAN}]\([{HAN}]")
NO_SPACE = re.compile(rf"[{HAN}][A-Za-z0-9$`]|[A-Za-z0-9$`][{HAN}]")
NOT_IN_GLOSSARY = re.compile("令牌|变换器|秩崩溃|熵崩溃|遮罩|丢弃法|数据增广机制|得分")
PAGES = [(language, page) for language in catalogs.languages() for page in catalogs.finished(language)]


@pytest.fixture(scope="module")
def sources() -> dict[str, list[str]]:
    """Return the present messages of every page."""
    return domains()


def entries(language: str) -> Iterator[tuple[str, str, str]]:
    """Yield every finished translation of a language: its catalog, the message and the translation."""
    for path in sorted(catalogs.folder(language).rglob("*.po")):
        for message, words in catalogs.translations(path).items():
            yield path.name, message, words


@pytest.mark.parametrize(("language", "page"), [*PAGES, *((one, "_toc") for one in catalogs.languages())])
def test_finished_page_has_every_message_translated(language, page, sources):
    known = catalogs.of_page(language, page)
    assert [message for message in sources[page] if message not in known] == [], "run make catalogs and translate"
    code = catalogs.code_catalog(page)
    known = catalogs.of_page(language, code)
    assert [text for text in sources.get(code, []) if text not in known] == [], "run make catalogs and translate"


@pytest.mark.parametrize("language", catalogs.languages())
def test_every_word_of_the_library_is_translated(language, sources):
    known = catalogs.of_page(language, catalogs.LIBRARY)
    assert [text for text in sources[catalogs.LIBRARY] if text not in known] == [], "run make catalogs and translate"


@pytest.mark.parametrize("language", catalogs.languages())
def test_begun_file_of_checks_has_every_message_translated(language, sources):
    begun = [f"{catalogs.CHECKS}/{path.stem}" for path in catalogs.folder(language).glob(f"{catalogs.CHECKS}/*.po")]
    known = {name: catalogs.of_page(language, name) for name in begun}
    assert {(name, text) for name in begun for text in sources[name] if text not in known[name]} == set()
    assert not begun or f"{catalogs.CHECKS}/shared" in begun


@pytest.mark.parametrize("language", catalogs.languages())
def test_words_of_code_keep_their_fields(language):
    root = catalogs.folder(language)
    wrong = []
    folders = (root / catalogs.CODE, root / catalogs.CHECKS)
    for path in [root / f"{catalogs.LIBRARY}.po", *sorted(path for one in folders for path in one.rglob("*.po"))]:
        for message, words in catalogs.translations(path).items():
            (_, fields), (_, kept) = split(message), split(words)
            if sorted(fields) != sorted(kept):
                wrong.append((path.name, message, words))
    assert wrong == []


@pytest.mark.parametrize("language", catalogs.languages())
def test_catalogs_belong_to_pages(language, sources):
    folder = catalogs.folder(language)
    names = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.po")}
    assert names <= sources.keys()
    assert set(catalogs.finished(language)) <= names


@pytest.mark.parametrize("language", catalogs.languages())
def test_translations_keep_formulas_code_roles_links_and_numbers(language):
    found = [
        (name, message, lost) for name, message, words in entries(language) if (lost := differences(message, words))
    ]
    assert found == []


@pytest.mark.parametrize("language", catalogs.languages())
def test_words_of_extensions_keep_their_placeholders(language, sources):
    known = catalogs.of_page(language, "site")
    assert sources["site"]
    for message in sources["site"]:
        fields = re.findall(r"\{+\w*\}+", message)
        assert sorted(re.findall(r"\{+\w*\}+", known[message])) == sorted(fields), message


@pytest.mark.parametrize("language", catalogs.languages())
def test_texts_of_explorers_have_one_translation_with_the_same_fields(language):
    """All explorers of a page share one table."""
    found: dict[str, str] = {}
    for path in sorted((catalogs.folder(language) / "explorers").glob("*.po")):
        for message, words in catalogs.translations(path).items():
            assert found.setdefault(message, words) == words, f"{path.name}: {message}"
            assert set(re.findall(r"\{\w+\}", words)) == set(re.findall(r"\{\w+\}", message)), f"{path.name}: {message}"


def test_chinese_typography():
    wrong = []
    for name, _, words in entries("zh_CN"):
        plain = words.replace("{{", "{").replace("}}", "}")
        for pattern, instead in ((ROLE, ""), (TAG, ""), (CODE, "``"), (FORMULA, "$$"), (TARGET, "]")):
            plain = pattern.sub(instead, plain)
        plain = re.sub(r"[*\[\]]", "", plain)
        if found := HALF_WIDTH.search(plain) or NO_SPACE.search(plain) or NOT_IN_GLOSSARY.search(plain):
            wrong.append((name, found[0], plain[max(0, found.start() - 15) : found.end() + 15]))
    assert wrong == []


def test_glossary_has_one_line_for_a_term():
    lines = (ROOT / "locale/zh_CN/glossary.md").read_text(encoding="utf-8").splitlines()
    terms = [line.split("|")[1].strip() for line in lines if line.startswith("| ") and not line.startswith("| English")]
    assert len(terms) > 200
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


@pytest.mark.parametrize("path", [*sorted((ROOT / "book").rglob("*.md"))], ids=lambda path: path.stem)
def test_translating_into_the_same_words_changes_nothing(path):
    text = path.read_text(encoding="utf-8")
    assert translated(text, lambda message: message) == text


def test_translating_a_chapter_into_the_same_words_changes_nothing():
    notebook = json.loads((ROOT / "book/attention/scaling.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = "".join(cell["source"])
            assert translated(text, lambda message: message) == text
            assert [text[one.start : one.end] for one in messages(text)] == [one.text for one in messages(text)]


PAGE = """# Title with $x$

(label)=
A paragraph
over two lines.

:::{admonition} Note
:class: wide
Inside, {eq}`one`.

$$
x = 1
$$ (one)
:::

* item
  1. nested item

| head | `code` |
|---|---|
| $P(a\\|b)$ words | $n$ |

<details>
<summary>A hint</summary>

Hidden text.

</details>

```python
code = "no message"
```
"""


def test_messages_are_the_texts_of_blocks():
    assert [message.text for message in messages(PAGE)] == [
        "Title with $x$",
        "A paragraph\nover two lines.",
        "Note",
        "Inside, {eq}`one`.",
        "item",
        "nested item",
        "head",
        "$P(a\\|b)$ words",
        "A hint",
        "Hidden text.",
    ]


def test_translated_replaces_only_messages():
    words = translated(PAGE, lambda message: message.upper() if "$" not in message else None)
    assert words.replace("A PARAGRAPH\nOVER TWO LINES.", "A paragraph\nover two lines.").lower() == PAGE.lower()
    assert "NESTED ITEM" in words
    assert "(label)=" in words
    assert ":class: wide" in words
    assert 'code = "no message"' in words
    headings: dict[str, str] = {}
    assert translated("# One\n\ntwo", {"One": "甲", "two": "乙"}.get, headings.__setitem__) == "# 甲\n\n乙"
    assert headings == {"甲": "One"}


@pytest.mark.parametrize(
    ("original", "words", "expected"),
    [
        ("Let $n = 2$.", "设 $n = 3$。", "$n = 2$ is missing"),
        ("See {eq}`eq-a`.", "见 {eq}`eq-b`。", "{eq}`eq-a` is missing"),
        ("{glue:text}`share` of all", "全部的一半", "{glue:text}`share` is missing"),
        ("[here](#a)", "[这里](#b)", "](#a) is missing"),
        ("call `f`", "调用 f", "`f` is missing"),
        ("12 heads, 64 keys", "12 个头", "the number 64 is missing"),
        ("as in [1]", "如前所述", "[1] is missing"),
        ("**Attention.** Each row", "**注意力。**每行", "bold text or emphasis is lost or new"),
        ("one", "一\n\n二", "it has more than one paragraph"),
    ],
)
def test_differences_names_what_a_translation_loses(original, words, expected):
    assert any(found.startswith(expected) for found in differences(original, words))


def test_differences_accepts_another_order_and_other_titles():
    assert differences("$a$ and {doc}`Masks <masks>`", "{doc}`掩码 <masks>`与 $a$") == []
    assert not has_words("$n$, `x`, {eq}`eq-a`")
    assert has_words("{eq}`eq-a` holds")


def test_updated_marks_a_changed_message_as_fuzzy(tmp_path):
    path = tmp_path / "page.po"
    catalog = Catalog()
    catalog.add("The width of a head is fixed.", "头的宽度固定。")
    write(catalog, path, "zh_CN")
    assert catalogs.translations(path) == {"The width of a head is fixed.": "头的宽度固定。"}
    merged = updated(path, ["The width of every head is fixed.", "New."], "page", "zh_CN")
    assert missing_and_fuzzy(merged) == (1, 1)
    write(merged, path, "zh_CN")
    assert catalogs.translations(path) == {}
    assert "POT-Creation-Date" not in path.read_text(encoding="utf-8")


def test_titles_of_contents_are_translated():
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    changed = titles_translated(contents, {title: f"<{title}>" for title in titles(ROOT)})
    assert changed["parts"][0]["caption"] == "<Attention>"
    assert changed["parts"][0]["chapters"][0]["title"] == "<Attention>"
    assert changed["parts"][0]["chapters"][0]["file"] == contents["parts"][0]["chapters"][0]["file"]
    own = titles_translated(contents, {"Foundations": "基础"}, catalogs.headings_of_reference(ROOT))
    assert own["parts"][-1]["chapters"][0] == {"file": "book/reference/foundations", "title": "基础"}
    assert "title" not in own["parts"][-1]["chapters"][1]


def test_linked_twice_gives_the_same_page():
    page = '<html><head></head><body><div class="article-header-buttons">\n</div></body></html>'
    found = {"en": "book/intro.html", "zh_CN": "zh_CN/book/intro.html"}
    once = linked(page, "en", found)
    assert once.count('hreflang="zh-CN"') == 2
    assert once.count('hreflang="en"') == 1
    assert once.count('href="../zh_CN/book/intro.html"') == 2
    assert "x-default" not in once
    assert linked(once, "en", found) == once


PAGE_OF = '<html><head></head><body><div class="article-header-buttons">\n</div></body></html>'


def test_alternates_are_complete_addresses_once_the_site_has_one(tmp_path):
    for name in (
        "book/intro.html",
        "zh_CN/book/intro.html",
        "fr/book/intro.html",
        "book/run.html",
        "zh_CN/book/run.html",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(PAGE_OF)
    for language in ("zh_CN", "fr"):
        (tmp_path / language / "translated.json").write_text('["book/intro"]')
    link_pages(["book/intro"], tmp_path, "https://a.org/b/")
    page = (tmp_path / "zh_CN/book/intro.html").read_text()
    assert re.findall(r'<link rel="alternate" hreflang="([^"]*)" href="([^"]*)"', page) == [
        ("zh-CN", "https://a.org/b/zh_CN/book/intro.html"),
        ("en", "https://a.org/b/book/intro.html"),
        ("fr", "https://a.org/b/fr/book/intro.html"),
        ("x-default", "https://a.org/b/book/intro.html"),
    ]
    assert re.findall(r'<a class="language-switch"[^>]* href="([^"]*)"', page) == [
        "../../book/intro.html",
        "../../fr/book/intro.html",
    ]
    assert (tmp_path / "book/run.html").read_text() == PAGE_OF


def test_address_of_the_site_is_that_of_its_settings(tmp_path):
    settings = "repository:\n  url: https://github.com/%s/book\nhtml: {%s}\n"
    for owner, html, wanted in (
        ("OWNER", "", ""),
        ("OWNER", "baseurl: 'https://a.org/b'", "https://a.org/b/"),
        ("Someone", "", "https://someone.github.io/book/"),
    ):
        (tmp_path / "_config.yml").write_text(settings % (owner, html))
        assert site_address(tmp_path) == wanted


def test_settings_of_a_language_have_its_own_address(tmp_path, monkeypatch):
    for base, wanted in (("https://a.org/b/", "https://a.org/b/zh_CN/"), ("", None)):
        monkeypatch.setattr(build_language, "site_address", lambda base=base: base)
        write_settings("zh_CN", tmp_path)
        settings = yaml.safe_load((tmp_path / "_config.yml").read_text(encoding="utf-8"))
        assert settings["html"].get("baseurl") == wanted
        assert (settings["title"], settings["author"]) == ("读懂注意力", "《读懂注意力》的作者")


def test_sitemap_of_a_language_is_listed_at_the_root(tmp_path):
    (tmp_path / "zh_CN").mkdir()
    list_sitemap(tmp_path, tmp_path / "zh_CN")  # nothing to do without an address
    rule = "User-agent: *\nAllow: /\n"
    for folder in ("", "zh_CN/", ""):  # the same twice
        if folder or not (tmp_path / "robots.txt").exists():
            (tmp_path / folder / "robots.txt").write_text(f"{rule}Sitemap: https://a.org/{folder}sitemap.xml\n")
        list_sitemap(tmp_path, tmp_path / "zh_CN")
    both = f"{rule}Sitemap: https://a.org/sitemap.xml\nSitemap: https://a.org/zh_CN/sitemap.xml\n"
    assert (tmp_path / "robots.txt").read_text() == both
    assert not (tmp_path / "zh_CN/robots.txt").exists()


def test_pictures_that_cannot_be_drawn_are_the_english_ones(tmp_path):
    for name, text in (
        ("en/_static/cards/a.png", "a"),
        ("en/_static/cards/q/b.png", "b"),
        ("zh/_static/cards/a.png", "甲"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    copy_missing_cards(tmp_path / "en", tmp_path / "zh")
    cards = tmp_path / "zh/_static/cards"
    assert ((cards / "a.png").read_text(), (cards / "q/b.png").read_text()) == ("甲", "b")


def test_english_needs_no_catalog(monkeypatch):
    monkeypatch.delenv("BOOK_LANGUAGE", raising=False)
    assert catalogs.language() == ""
    assert catalogs.gettext("So:") == "So:"
    assert catalogs.title("Masks") == "Masks"


def test_messages_of_page_include_captions():
    found = messages_of_page(Path(ROOT, "book/attention/scaling.ipynb"))
    assert any(text.startswith("Mean entropy of 64 weights.") for text in found)
    assert any(text.startswith("Entropy against width") for text in found)


def test_words_of_scripts_are_found_and_translated(monkeypatch):
    monkeypatch.setenv("BOOK_LANGUAGE", "zh_CN")
    scripts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "book/_static").glob("*.js"))
    calls = [call for call in re.findall(r"\bgettext\(\s*(.)", scripts) if call != "t"]  # besides gettext(text) itself
    assert len(calls) >= len(catalogs.words_of_scripts()) > 5
    assert set(calls) == {'"'}
    assert set(script_words.table()) == set(catalogs.words_of_scripts())
    monkeypatch.setattr(script_words, "table", lambda: {"Copy link": "</script>"})
    assert script_words.script.__wrapped__() == 'window.bookWords = {"Copy link":"\\u003c/script>"};'
