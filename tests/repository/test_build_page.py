"""Tests of tools/build_page.py: find a page by its name, and build it into an existing site."""

import json
from pathlib import Path

import pytest

build_page = pytest.importorskip("build_page")
ROOT = Path(__file__).resolve().parents[2]
KNOWN = build_page.pages()


@pytest.mark.parametrize(
    "name", ["attention/scaling", "book/attention/scaling", "book/attention/scaling.ipynb", "scaling"]
)
def test_page_finds_a_chapter_by_the_end_of_its_name(name):
    assert build_page.page(name, KNOWN) == ROOT / "book/attention/scaling.ipynb"


@pytest.mark.parametrize("name", ["intro", "instructors", "explorers", "exercises/scaling/scaling", "back/colophon"])
def test_page_finds_every_kind_of_page(name):
    found = build_page.page(name, KNOWN)
    assert found.exists()
    assert found.relative_to(ROOT / "book").with_suffix("").as_posix() == name


def test_pages_lists_every_page_in_the_contents():
    listed = [
        line.split("file:")[1].strip() for line in (ROOT / "_toc.yml").read_text().splitlines() if "file:" in line
    ]
    assert {f"book/{name}" for name in KNOWN} >= set(listed)


@pytest.mark.parametrize("name", ["", "attention/scalling", "ing"])
def test_page_unknown_name_raises_with_known_names(name):
    with pytest.raises(ValueError, match=r"CHAPTER must name one of these pages: intro, .*attention/scaling.*; got"):
        build_page.page(name, KNOWN)


def test_page_ambiguous_name_raises():
    known = {"one/flash": Path("a"), "two/flash": Path("b")}
    with pytest.raises(ValueError, match="CHAPTER must name one of these pages: one/flash, two/flash; got 'flash'"):
        build_page.page("flash", known)


def test_main_without_a_site_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(build_page, "STATE", tmp_path / "environment.pickle")
    assert build_page.main(["scaling"]) == 2
    assert "run make book first" in capsys.readouterr().err


def test_build_page_failing_notebook_builds_nothing(monkeypatch):
    asked = []
    monkeypatch.setattr(build_page, "run_notebooks", lambda root, only: asked.append((root, only)))
    assert build_page.build_page(ROOT / "book/attention/scaling.ipynb") == 1
    assert asked == [(ROOT, [Path("book/attention/scaling.ipynb")])]


def test_build_page_restores_the_state_after_an_error(monkeypatch, tmp_path):
    sphinx = pytest.importorskip("jupyter_book.sphinx")
    state = tmp_path / "environment.pickle"
    state.write_bytes(b"all pages")

    def forget(*_, **__):
        state.unlink()
        return ValueError("a wrong page")

    monkeypatch.setattr(build_page, "STATE", state)
    monkeypatch.setattr(build_page, "run_notebooks", lambda root, only: True)
    monkeypatch.setattr(sphinx, "build_sphinx", forget)
    assert build_page.build_page(ROOT / "book/attention/scaling.ipynb") == 1
    assert state.read_bytes() == b"all pages"


def test_one_page_restricts_the_pages_to_read(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    import one_page

    class App:
        class config:
            one_page = "book/intro"

    docnames = ["book/attention/scaling", "book/references"]
    one_page.read_only_that_page(App, None, docnames)
    assert docnames == ["book/intro"]
    App.config.one_page = ""
    one_page.read_only_that_page(App, None, docnames)
    assert docnames == ["book/intro"]


def test_run_notebooks_only_keeps_other_runs(tmp_path, monkeypatch):
    """Building a single page must keep the runs of the other notebooks in ``runs.json``."""
    import runs

    (tmp_path / "_config.yml").write_text("execute: {timeout: 10, exclude_patterns: []}")
    (tmp_path / "_build").mkdir()
    for name in ("one", "two"):
        (tmp_path / "book").mkdir(exist_ok=True)
        (tmp_path / f"book/{name}.ipynb").write_text(
            '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
        )
    (tmp_path / "_build/runs.json").write_text(json.dumps({"book/one.ipynb": "old one", "book/two.ipynb": "old two"}))
    monkeypatch.setattr(runs, "_run_all", lambda *_: [])
    assert runs.run_notebooks(tmp_path, only=[Path("book/two.ipynb")])
    listed = json.loads((tmp_path / "_build/runs.json").read_text())
    assert listed["book/one.ipynb"] == "old one"
    assert listed["book/two.ipynb"] not in (None, "old two")
