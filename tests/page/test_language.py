"""Tests of the language of the words that code writes."""

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo

from lessons_lib.page import language
from lessons_lib.page.language import filled, gettext, mark


@pytest.fixture
def chinese(monkeypatch, tmp_path):
    """Compile two catalogs and name their language."""
    monkeypatch.setattr(language, "CATALOGS", tmp_path)
    monkeypatch.setenv(language.VARIABLE, "zh_CN")
    folder = tmp_path / "zh_CN" / "LC_MESSAGES" / "explorers"
    folder.mkdir(parents=True)
    for name, messages in (("masks", {"{n} of {total} keys": "{total} 个键中的 {n} 个"}), ("walk", {"step": "步"})):
        catalog = Catalog(locale="zh_CN")
        for message, words in messages.items():
            catalog.add(message, words)
        with (folder / f"{name}.mo").open("wb") as file:
            write_mo(file, catalog)


def test_english_needs_no_catalog(monkeypatch, tmp_path):
    monkeypatch.setattr(language, "CATALOGS", tmp_path)
    monkeypatch.delenv(language.VARIABLE, raising=False)
    assert language.language() == "en"
    assert gettext("step") == mark("step") == "step"
    assert filled("{n} of {total} keys", n=3, total=8) == "3 of 8 keys"


def test_translations_come_from_every_catalog(chinese):
    assert language.language() == "zh_CN"
    assert gettext("step") == "步"
    assert filled("{n} of {total} keys", n=3, total=8) == "8 个键中的 3 个"


def test_text_without_a_translation_stays_as_it_is(chinese):
    assert gettext("width") == "width"
    assert gettext("") == ""


@pytest.mark.rejects
def test_language_without_catalogs_is_an_error(chinese, monkeypatch):
    monkeypatch.setenv(language.VARIABLE, "fr")
    with pytest.raises(ValueError, match=r"BOOK_LANGUAGE=fr has no catalogs in .*; run make book LANGUAGE=fr"):
        gettext("step")


@pytest.mark.rejects
def test_missing_field_is_an_error():
    with pytest.raises(KeyError, match="total"):
        filled("{n} of {total} keys", n=3)
