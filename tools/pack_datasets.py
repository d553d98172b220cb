"""Write lessons_lib/training/datasets/ from the wheels that contain the data; the result is the same, byte for byte.

pip download --no-deps --dest DOWNLOADS scikit-learn==1.9.1 statsmodels==0.15.0
python tools/pack_datasets.py DOWNLOADS
"""

import csv
import gzip
import io
import lzma
import sys
import zipfile
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "lessons_lib" / "training" / "datasets"


def member(downloads: Path, package: str, name: str) -> bytes:
    """Return the bytes of one file in a package's only wheel in ``downloads``."""
    (wheel,) = downloads.glob(f"{package}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)


def digits(downloads: Path) -> bytes:
    """Return 1797 images of 64 pixels, one byte each, and then their 1797 labels, one byte each."""
    table = gzip.decompress(member(downloads, "scikit_learn", "sklearn/datasets/data/digits.csv.gz")).decode()
    rows = [[int(float(field)) for field in row] for row in csv.reader(io.StringIO(table))]
    images = bytes(pixel for row in rows for pixel in row[:64])
    return lzma.compress(images + bytes(row[64] for row in rows), preset=9 | lzma.PRESET_EXTREME)


def sea_temperature(downloads: Path) -> bytes:
    """Return a table with a line for each month: the time in years (the middle of the month), degrees Celsius."""
    text = member(downloads, "statsmodels", "statsmodels/datasets/elnino/elnino.csv").decode()
    years = list(csv.reader(io.StringIO(text)))[1:]
    lines = (f"{int(year) + (i + 0.5) / 12:.3f},{float(v):g}" for year, *months in years for i, v in enumerate(months))
    return ("\n".join(["year,degrees_celsius", *lines]) + "\n").encode()


def sunspots(downloads: Path) -> bytes:
    """Return a table with a line for each year: the year, the mean number of sunspots."""
    text = member(downloads, "statsmodels", "statsmodels/datasets/sunspots/sunspots.csv").decode()
    rows = list(csv.reader(io.StringIO(text)))[1:]
    return ("\n".join(["year,sunspots", *(f"{float(year):g},{float(v):g}" for year, v in rows)]) + "\n").encode()


def main() -> int:
    """Write the three files."""
    downloads = Path(sys.argv[1])
    made = {"digits.xz": digits, "sea_temperature.csv": sea_temperature, "sunspots.csv": sunspots}
    for name, make in made.items():
        (TARGET / name).write_bytes(make(downloads))
        print(f"{name}: {(TARGET / name).stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
