"""The data that come with the library: read whole, described, and refused by any other name."""

from pathlib import Path

import pytest
import torch

import lessons_lib.datasets
from lessons_lib.datasets import NAMES, load

FOLDER = Path(lessons_lib.datasets.__file__).parent


def test_digits_are_images_and_what_they_show():
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


def test_a_copy_is_the_caller_s_own():
    load("sunspots").values.zero_()
    load("digits").values.zero_()
    assert load("sunspots").values.sum() > 0
    assert load("digits").values.sum() > 0


def test_every_file_has_its_source_and_its_licence():
    rows = [line.split("|") for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("| `")]
    data = {path.name for path in FOLDER.iterdir() if path.suffix in (".xz", ".csv")}
    assert {row[1].strip().strip("`") for row in rows} == data
    assert {Path(name).stem for name in data} == set(NAMES)
    assert all(row[3].strip() and row[4].strip() for row in rows)
    assert all(path.read_text().startswith("year,") for path in FOLDER.glob("*.csv"))


@pytest.mark.rejects
@pytest.mark.parametrize("name", ["mnist", "", "digits.xz", "../stories"])
def test_another_name_is_refused(name):
    with pytest.raises(ValueError, match="name must be one of digits, sea_temperature, sunspots, got"):
        load(name)
