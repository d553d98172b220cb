"""One page is named as the contents name it, or by the end of its name, and is put into a site that is there."""

import json
from pathlib import Path

import pytest

build_page = pytest.importorskip("build_page")
ROOT = Path(__file__).resolve().parents[1]
KNOWN = build_page.pages()


@pytest.mark.parametrize(
    "name", ["attention/scaling", "book/attention/scaling", "book/attention/scaling.ipynb", "scaling"]
)
def test_a_chapter_is_known_by_its_name_or_the_end_of_it(name):
    assert build_page.page(name, KNOWN) == ROOT / "book/attention/scaling.ipynb"


@pytest.mark.parametrize("name", ["intro", "instructors", "explorers", "exercises/scaling/scaling", "back/colophon"])
def test_every_kind_of_page_is_known(name):
    found = build_page.page(name, KNOWN)
    assert found.exists()
    assert found.relative_to(ROOT / "book").with_suffix("").as_posix() == name


def test_every_page_of_the_contents_is_known():
    listed = [
        line.split("file:")[1].strip() for line in (ROOT / "_toc.yml").read_text().splitlines() if "file:" in line
    ]
    assert {f"book/{name}" for name in KNOWN} >= set(listed)


@pytest.mark.parametrize("name", ["", "attention/scalling", "ing"])
def test_an_unknown_name_is_refused_and_the_known_ones_are_named(name):
    with pytest.raises(ValueError, match=r"CHAPTER must name a page of: intro, .*attention/scaling.*; got"):
        build_page.page(name, KNOWN)


def test_a_name_of_several_pages_is_refused():
    known = {"one/flash": Path("a"), "two/flash": Path("b")}
    with pytest.raises(ValueError, match="CHAPTER must name of these pages one: one/flash, two/flash; got 'flash'"):
        build_page.page("flash", known)


def test_without_a_site_it_says_what_to_do_first(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(build_page, "STATE", tmp_path / "environment.pickle")
    assert build_page.main(["scaling"]) == 2
    assert "run make book first" in capsys.readouterr().err


def test_a_notebook_that_fails_builds_no_page(monkeypatch):
    asked = []
    monkeypatch.setattr(build_page, "run_notebooks", lambda root, only: asked.append((root, only)))
    assert build_page.build_page(ROOT / "book/attention/scaling.ipynb") == 1
    assert asked == [(ROOT, [Path("book/attention/scaling.ipynb")])]


def test_after_an_error_the_next_try_needs_no_new_site(monkeypatch, tmp_path):
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


def test_only_the_page_that_is_asked_for_is_read(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    import one_page

    class App:
        class config:
            one_page = "book/intro"

    docnames = ["book/attention/scaling", "book/references"]
    one_page.read_it_alone(App, None, docnames)
    assert docnames == ["book/intro"]
    App.config.one_page = ""
    one_page.read_it_alone(App, None, docnames)
    assert docnames == ["book/intro"]


def test_another_notebook_s_run_stays_listed(tmp_path, monkeypatch):
    """A page that is made alone must not take their runs from the others."""
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
