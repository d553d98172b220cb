"""Tests of the language of the words that code writes."""

import json
import os
import re
import subprocess
import sys

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo

from lessons_lib.page import drawings, language, predict, predict_number, table
from lessons_lib.page.language import (
    Words,
    fields,
    filled,
    font,
    gettext,
    in_language,
    mark,
    message_of_check,
    split,
    worded,
)
from lessons_lib.page.sketch import Sketch

CATALOGS = {
    "lessons_lib": {
        "{n} of {total} keys": "{total} 个键中的 {n} 个",
        "query {i}": "查询 {i}",
        "yes": "是",
        "Guess first.": "请先猜测。",
        "{told}.": "{told}。",
        "length": "长度",
    },
    "explorers/walk": {"step": "步"},
    "code/book/attention/scaling": {"length": "序列长度", "spread": "离散程度"},
    "code/book/attention/masks": {"spread": "分散程度"},
    "checks/shared": {"{what} is wrong: {sentence} ({where})": "{what} 不对：{sentence}（{where}）"},
    "checks/masks": {"True is hidden": "True 是遮住", "row {i}": "第 {i} 行"},
    "checks/scaling": {"True is hidden": "True 是被遮住", "{n} keys": "{n} 个键"},
}


@pytest.fixture
def chinese(monkeypatch, tmp_path):
    """Compile the catalogs and name their language."""
    monkeypatch.setattr(language, "CATALOGS", tmp_path)
    monkeypatch.setenv(language.VARIABLE, "zh_CN")
    monkeypatch.delenv(language.PAGE, raising=False)
    for name, messages in CATALOGS.items():
        path = tmp_path / "zh_CN" / "LC_MESSAGES" / f"{name}.mo"
        path.parent.mkdir(parents=True, exist_ok=True)
        catalog = Catalog(locale="zh_CN")
        for message, words in messages.items():
            catalog.add(message, words)
        with path.open("wb") as file:
            write_mo(file, catalog)
    return tmp_path


def test_english_needs_no_catalog(monkeypatch, tmp_path):
    monkeypatch.setattr(language, "CATALOGS", tmp_path)
    monkeypatch.delenv(language.VARIABLE, raising=False)
    assert language.language() == "en"
    assert gettext("step") == mark("step") == "step"
    assert filled("{n} of {total} keys", n=3, total=8) == "3 of 8 keys"
    assert font() is None


def test_translations_come_from_every_catalog_of_the_library(chinese):
    assert language.language() == "zh_CN"
    assert gettext("step") == "步"
    assert filled("{n} of {total} keys", n=3, total=8) == gettext("3 of 8 keys") == "8 个键中的 3 个"
    assert gettext("{n} of {total} keys") == "{total} 个键中的 {n} 个"  # a script fills it


def test_words_of_a_page_count_on_that_page_and_before_those_of_the_library(chinese, monkeypatch):
    assert (gettext("length"), gettext("spread")) == ("长度", "spread")
    monkeypatch.setenv(language.PAGE, "book/attention/scaling")
    assert (gettext("length"), gettext("spread")) == ("序列长度", "离散程度")
    monkeypatch.setenv(language.PAGE, "book/attention/masks")
    assert (gettext("length"), gettext("spread")) == ("长度", "分散程度")


def test_text_without_a_translation_stays_and_is_noted(chinese, monkeypatch):
    missing = chinese / "missing.txt"
    monkeypatch.setenv(language.MISSING, str(missing))
    assert gettext("width") == "width"
    assert gettext("query width") == "查询 width"
    assert gettext("0.5") == "0.5"
    assert gettext("") == ""
    assert [json.loads(line) for line in missing.read_text(encoding="utf-8").splitlines()] == ["width", "width"]


def test_message_of_check_is_read_in_all_files_and_first_in_its_own(chinese, monkeypatch):
    message = "answer is wrong: True is hidden (3 keys, row 1)"
    assert message_of_check(message, "masks") == "answer 不对：True 是遮住（3 个键, 第 1 行）"
    assert message_of_check(message, "scaling") == "answer 不对：True 是被遮住（3 个键, 第 1 行）"
    assert message_of_check("row 1", "") == "第 1 行"
    assert message_of_check(message, "block") == message  # this file has no catalog
    assert gettext("True is hidden") == "True is hidden"  # no page shows it
    with in_language("en"):
        assert message_of_check(message, "masks") == message
    with in_language("fr"):
        assert message_of_check(message, "masks") == message


def test_in_language_ends_with_its_block(chinese):
    with in_language("en"):
        assert gettext("step") == "step"
    assert gettext("step") == "步"


def test_font_is_the_one_that_the_build_has_found(chinese):
    assert font() is None
    (chinese / "zh_CN" / "font.otf").touch()
    assert font() == chinese / "zh_CN" / "font.otf"


@pytest.mark.parametrize(
    ("messages", "text", "expected"),
    [
        ({"query {i}": "查询 {i}"}, "query 3", "查询 3"),
        ({"{n} of {m}": "{m} 中的 {n}"}, "2 of 4", "4 中的 2"),  # in another order
        ({"{name}, {n} steps": "{n} 步、{name}", "mean": "均值"}, "mean, 400 steps", "400 步、均值"),  # in turn
        ({"{n} keys": "{n} 个键", "all {n} keys": "全部 {n} 个键"}, "all 3 keys", "全部 3 个键"),  # the most specific
        ({"after {what} {a}": "在{what}之后 {a}", "block {i}": "块 {i}"}, "after block 1 11%", "在块 1之后 11%"),
        ({"row {i} sees {n}": "第 {i} 行见 {n}", "; ": "、"}, "row 1 sees 2; row 2 sees 3", "第 1 行见 2、第 2 行见 3"),
        ({"Post-LN": "后", "9 steps, slow": "慢 9 步"}, "Post-LN, 9 steps, slow", "后, 慢 9 步"),  # a part with a comma
        ({"rate {rate:.2g}": "率 {rate:.2g}"}, "rate 0.01", "率 0.01"),  # a text of ``filled``
        (
            {"{a} ({b})": "{a}（{b}）", "{a} in {b}": "{b} 中的 {a}"},
            "1 ((2, 3) in 4)",
            "1（4 中的 (2, 3)）",
        ),  # brackets
        ({"{{x}} is a set": "{{x}} 是集合"}, "{x} is a set", "{x} 是集合"),  # braces that are no field
        ({"width": "宽度"}, "height", None),
        ({"query {i}": "查询 {i}"}, "query", None),
    ],
)
def test_translated_finds_filled_texts(messages, text, expected):
    assert Words(messages).translated(text) == expected


def test_reading_names_what_stayed_english():
    words = Words({"value of {token}": "{token} 的值", "{a} and {b}": "{a} 与 {b}"})
    assert words.reading("value of horse and king") == ("horse 与 king 的值", ("horse", "king"))
    assert words.reading("value of 3") == ("3 的值", ())
    assert words.reading("another") == ("another", ("another",))


def test_split_and_fields_are_inverse():
    literals, names = split("a{{}} {x} to {y:.2f}{z}")
    assert (literals, names) == (["a{} ", " to ", "", ""], ["x", "y", "z"])
    assert [*fields(literals, "a{} 1 to 23")] == [["1", "", "23"]]  # of two fields side by side the second has all
    assert [*fields(literals, "a{} 1 to 2 to 3")] == [["1", "", "2 to 3"], ["1 to 2", "", "3"]]
    assert [*fields(literals, "a{} 1 or 23")] == []


def test_worded_looks_outside_of_formulas():
    assert not worded(r"$\sqrt d$, 3.5 q · k")
    assert worded("$d$ entries")


def test_tables_guesses_and_drawings_show_the_words_of_the_language(chinese, capsys):
    shown = table({f"query {i}": [i > 0, "step"] for i in range(2)}, ["length", "step"], of="query 7").to_html()
    for words in ("查询 0", "查询 1", "长度", "步", "查询 7", "是"):
        assert words in shown
    guess = predict("length", {"step": 1, "query 4": 2})
    assert (guess.card.question, guess.card.about["options"]) == ("长度", ["步", "查询 4"])
    guess.reveal(2)
    assert guess.card.answer["told"] == "查询 4"
    assert "请先猜测。" in guess.card.still()
    assert predict_number("length", 1, 2, unit="step").card.about["unit"] == "步"
    sketch = Sketch(10, 10, alt="3 of 8 keys")
    sketch.text((1, 1), "query 2")
    assert sketch.alt == "8 个键中的 3 个"
    assert ">查询 2<" in sketch.to_html()
    assert "查询 1" in drawings.masked_softmax(*masked(), query_labels=["query 0", "query 1"]).to_html()


def masked():
    import torch

    return torch.zeros(2, 2), torch.tensor([[True, False], [True, True]])


@pytest.mark.filterwarnings("ignore:Glyph")
def test_plots_show_the_words_of_the_language(chinese):
    plots, torch = pytest.importorskip("lessons_lib.page.plots"), pytest.importorskip("torch")
    axes = plots.lines(torch.arange(1, 4), {"query 1": torch.ones(3)}, xlabel="length", ylabel="step")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("长度", "步")
    assert [line.get_label() for line in axes.get_lines()] == ["查询 1"]
    bars = plots.bars(torch.ones(2), labels=["query 0", "query 1"], xlabel="step")
    assert [tick.get_text() for tick in bars.get_xticklabels()] == ["查询 0", "查询 1"]
    plots.plt.close("all")


WITHOUT_A_FONT = """
import io, sys, warnings
from pathlib import Path
from lessons_lib.page import language
language.CATALOGS = Path(sys.argv[1])
import torch
from lessons_lib.page import plots
written = io.StringIO()
plots.lines(torch.arange(1, 5), {"query 1": 10.0 ** -torch.arange(0, 8, 2)}, xlabel="length", ylabel="$d$", logy=True)
warnings.simplefilter("error", RuntimeWarning)
plots.plt.savefig(written, format="svg")
print(written.getvalue())
"""


def test_plots_without_a_font_leave_the_words_to_the_browser(chinese):
    run = [sys.executable, "-c", WITHOUT_A_FONT, str(chinese)]
    made = subprocess.run(
        run, capture_output=True, encoding="utf-8", check=True, env=os.environ | {"MPLBACKEND": "agg"}
    )
    assert made.stderr == ""
    texts = re.findall("<text[^>]*>(.*?)</text>", made.stdout, re.DOTALL)
    assert {"长度", "查询 1"} <= set(texts)
    assert "sans-serif" in made.stdout
    assert any("\u2212" in text for text in texts)  # of ten to the minus three: no sign of TeX's own fonts


@pytest.mark.rejects
def test_language_without_catalogs_is_an_error(chinese, monkeypatch):
    monkeypatch.setenv(language.VARIABLE, "fr")
    with pytest.raises(ValueError, match=r"BOOK_LANGUAGE=fr has no catalogs in .*; run make book LANGUAGE=fr"):
        gettext("step")


@pytest.mark.rejects
def test_missing_field_is_an_error():
    with pytest.raises(KeyError, match="total"):
        filled("{n} of {total} keys", n=3)
