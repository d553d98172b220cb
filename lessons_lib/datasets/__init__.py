"""Three small sets of real data that every reader has offline: :func:`load`.

Source, licence and format of each file stand in the folder's ``README.md``; ``tools/pack_datasets.py`` made them.
"""

import csv
import lzma
from importlib.resources import files
from typing import NamedTuple

import torch
from torch import Tensor

NAMES = ("digits", "sea_temperature", "sunspots")


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
