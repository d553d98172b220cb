"""Tests of tools/zip_book.py: the zip has the site and the notebooks, and is reproducible."""

import zipfile

import pytest
from zip_book import pack


@pytest.fixture
def build(tmp_path):
    """A build folder with the site, the notebooks, and files that belong to neither."""
    files = ["html/index.html", "html/book/intro.html", "html/.buildinfo", "html/_static/a.js", "solutions/html/x.html"]
    files += ["notebooks/book/one.ipynb", "notebooks/book/.ipynb_checkpoints/one-checkpoint.ipynb"]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"this is {name}")
    return tmp_path


def test_pack_contains_site_and_notebooks(build):
    pack(build, build / "book.zip")
    with zipfile.ZipFile(build / "book.zip") as archive:
        held = {name: archive.read(name).decode() for name in archive.namelist()}
    assert held == {
        "attention-book/_static/a.js": "this is html/_static/a.js",
        "attention-book/book/intro.html": "this is html/book/intro.html",
        "attention-book/index.html": "this is html/index.html",
        "attention-book/notebooks/book/one.ipynb": "this is notebooks/book/one.ipynb",
    }


def test_pack_is_reproducible(build):
    pack(build, build / "once.zip")
    (build / "html/index.html").touch()
    pack(build, build / "twice.zip")
    assert (build / "once.zip").read_bytes() == (build / "twice.zip").read_bytes()


@pytest.mark.parametrize("missing", ["html", "notebooks"])
def test_pack_without_a_build_raises(build, missing):
    (build / missing).rename(build / "elsewhere")
    with pytest.raises(FileNotFoundError, match=f"found no .*{missing}: run make book"):
        pack(build, build / "book.zip")
