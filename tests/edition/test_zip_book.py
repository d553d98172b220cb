"""The book in one file: the site with its index at the top, the notebooks beside it, and the same bytes every time."""

import zipfile

import pytest
from zip_book import pack


@pytest.fixture
def build(tmp_path):
    """What a build leaves: the site, the notebooks, and what belongs to neither."""
    files = ["html/index.html", "html/book/intro.html", "html/.buildinfo", "html/_static/a.js", "solutions/html/x.html"]
    files += ["notebooks/book/one.ipynb", "notebooks/book/.ipynb_checkpoints/one-checkpoint.ipynb"]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"this is {name}")
    return tmp_path


def test_it_holds_the_site_and_the_notebooks_in_one_folder(build):
    pack(build, build / "book.zip")
    with zipfile.ZipFile(build / "book.zip") as archive:
        held = {name: archive.read(name).decode() for name in archive.namelist()}
    assert held == {
        "attention-book/_static/a.js": "this is html/_static/a.js",
        "attention-book/book/intro.html": "this is html/book/intro.html",
        "attention-book/index.html": "this is html/index.html",
        "attention-book/notebooks/book/one.ipynb": "this is notebooks/book/one.ipynb",
    }


def test_the_same_book_makes_the_same_bytes(build):
    pack(build, build / "once.zip")
    (build / "html/index.html").touch()
    pack(build, build / "twice.zip")
    assert (build / "once.zip").read_bytes() == (build / "twice.zip").read_bytes()


@pytest.mark.parametrize("missing", ["html", "notebooks"])
def test_a_book_that_was_not_built_is_refused(build, missing):
    (build / missing).rename(build / "elsewhere")
    with pytest.raises(FileNotFoundError, match=f"found no .*{missing}: run make book"):
        pack(build, build / "book.zip")
