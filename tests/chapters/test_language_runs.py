"""Test tools/language_runs.py: it compiles catalogs and takes the numbers of a page from the English run."""

import json
import re
from pathlib import Path
from typing import get_args

import catalogs
import language_runs
import nbformat
import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import read_mo
from language_runs import compile_catalogs, find_font, key_of, take_numbers, untranslated, with_translated_words
from nbformat.v4 import new_code_cell, new_notebook, new_output
from runs import BUILD, ROOT
from update_catalogs import write

from lessons_lib.page import language
from lessons_lib.training import stories
from lessons_lib.transformer import configuration


def catalog_with(messages: dict[str, str]) -> Catalog:
    catalog = Catalog(locale="zh_CN")
    for message, words in messages.items():
        catalog.add(message, words)
    return catalog


def test_compile_catalogs_takes_the_words_of_code_alone(tmp_path):
    source, target = tmp_path / "locale" / "zh_CN" / "LC_MESSAGES", tmp_path / "compiled"
    for name in ("lessons_lib", "explorers/walk", "code/book/attention/masks", "book/attention/masks", "site"):
        write(catalog_with({"width": "宽度"}), source / f"{name}.po", "zh_CN")
    old = target / "zh_CN" / "LC_MESSAGES" / "code" / "gone.mo"
    old.parent.mkdir(parents=True)
    old.touch()
    compile_catalogs("zh_CN", tmp_path, target)
    found = {path.relative_to(target / "zh_CN" / "LC_MESSAGES").as_posix() for path in target.rglob("*.mo")}
    assert found == {"lessons_lib.mo", "explorers/walk.mo", "code/book/attention/masks.mo"}
    with (target / "zh_CN" / "LC_MESSAGES" / "lessons_lib.mo").open("rb") as file:
        assert read_mo(file)["width"].string == "宽度"


def test_a_language_without_a_font_of_its_own_needs_none(tmp_path, capsys):
    assert find_font("fr", tmp_path) == ""
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.rglob("font.*"))


def run_with(value: str, cells: list[str], row: str) -> nbformat.NotebookNode:
    """Return a run that glues one text and ends with a table of one row."""
    mime = "application/papermill.record/text/plain"
    scrap = {"scrapbook": {"name": "slower", "mime_prefix": "application/papermill.record/"}}
    body = "".join(f"<td>{cell}</td>" for cell in cells)
    html = f'<table class="numbers"><tbody><tr><th scope="row">{row}</th>{body}</tr></tbody></table>'
    outputs = [
        new_output("display_data", {mime: repr(value)}, metadata=scrap),
        new_output("display_data", {"text/html": "<p>no table</p>"}),
        new_output("execute_result", {"text/html": html}, execution_count=1),
    ]
    return new_notebook(cells=[new_code_cell("table(rows)", outputs=outputs)])


def test_take_numbers_takes_those_of_the_english_run(monkeypatch):
    monkeypatch.setenv(language.VARIABLE, "en")
    english = run_with("239", ["0.7", "&lt;1%"], "speed")
    ran = run_with("370", ["0.8", "&lt;1%"], "速度")
    assert take_numbers(ran, english) == ["slower", "0.7"]
    assert ran == run_with("239", ["0.7", "&lt;1%"], "速度") | {"cells": ran.cells}
    assert "速度" in ran.cells[0].outputs[2].data["text/html"]
    assert "<td>0.7</td><td>&lt;1%</td>" in ran.cells[0].outputs[2].data["text/html"]
    assert ran.cells[0].outputs[0].data == english.cells[0].outputs[0].data
    assert take_numbers(ran, english) == []


def test_take_numbers_translates_words(monkeypatch):
    monkeypatch.setattr("language_runs.gettext", {"yes": "是", "up to 2048 words": "直到 2048 个词"}.get)
    ran = run_with("直到 1024 个词", ["是"], "速度")
    assert take_numbers(ran, run_with("up to 2048 words", ["yes"], "speed")) == ["slower"]
    assert "直到 2048 个词" in ran.cells[0].outputs[0].data["application/papermill.record/text/plain"]
    assert "<td>是</td>" in ran.cells[0].outputs[2].data["text/html"]


@pytest.mark.rejects
def test_take_numbers_of_another_notebook_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        take_numbers(run_with("1", ["2"], "a"), new_notebook(cells=[]))


def test_pages_run_when_all_words_are_translated():
    (name, *_) = [page for page in with_translated_words("zh_CN") if page.stem == "scaling"]
    assert untranslated("zh_CN", name) == []
    assert key_of("zh_CN", name, "Noto", "a") != key_of("zh_CN", name, "Noto", "b")
    assert key_of("zh_CN", name, "Noto", "a") != key_of("zh_CN", name, "", "a")


@pytest.mark.parametrize("catalog", ["lessons_lib", "explorers/walk", "code/book/attention/masks"])
def test_key_depends_on_every_catalog_that_the_run_reads(catalog, tmp_path, monkeypatch):
    monkeypatch.setattr(language_runs, "folder", lambda _: tmp_path)
    keys = []
    for words in ("宽度", "宽"):
        write(catalog_with({"width": words}), tmp_path / f"{catalog}.po", "zh_CN")
        keys.append(key_of("zh_CN", Path("book/attention/masks.ipynb"), "Noto", "a"))
    assert keys[0] != keys[1]


@pytest.mark.thorough
def test_runs_in_the_language_asked_for_no_other_texts_and_had_the_same_numbers():
    """Read what the last ``make book LANGUAGE=zh_CN`` noted, which the tests of the site build.

    Example words, which stay English, may be asked for in any order. So do the values of a model's settings.
    """
    kinds = (configuration.FeedForwardKind, configuration.NormKind, configuration.NormOrder, configuration.PositionKind)
    settings = {value for kind in kinds for value in get_args(kind)}
    ran = sorted((BUILD / "zh_CN" / "outputs").rglob("*.ipynb"))
    if not ran:
        pytest.skip("no page has run in Chinese: make book LANGUAGE=zh_CN")
    for path in ran:
        name = path.relative_to(BUILD / "zh_CN" / "outputs").with_suffix("")
        texts = (BUILD / "zh_CN" / "missing" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        known = catalogs.of_page("zh_CN", catalogs.LIBRARY) | catalogs.of_page(
            "zh_CN", catalogs.code_catalog(str(name))
        )
        examples = {message for message, words in known.items() if message == words} | set(stories.VOCABULARY)
        words = {word for message in examples for word in re.findall("[A-Za-z]{2,}", message)}
        texts = [text for text in map(json.loads, texts) if text not in settings]
        missing = [text for text in texts if not words.issuperset(re.findall("[A-Za-z]{2,}", text))]
        assert missing == [], name
        if "perf_counter" not in (ROOT / name).with_suffix(".ipynb").read_text(encoding="utf-8"):  # measured times
            assert json.loads(path.read_text(encoding="utf-8"))["metadata"]["differing"] == [], name
