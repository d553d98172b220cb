"""Pack the site and the runnable edition into one zip, whose index.html can be opened without a server."""

import sys
import zipfile
from pathlib import Path

from build_book import BUILD, ROOT

FOLDER = "attention-book"
LEFT_OUT = {".buildinfo", ".nojekyll", ".ipynb_checkpoints"}  # files of Sphinx, GitHub and Jupyter


def pack(build: Path, target: Path) -> None:
    """Write ``target`` from the folders ``html`` and ``notebooks`` of ``build``; the same files give the same bytes.

    Raises:
        FileNotFoundError: if the book has not been built.
    """
    files = {}
    for folder, inside in ((build / "html", FOLDER), (build / "notebooks", f"{FOLDER}/notebooks")):
        if not folder.is_dir():
            raise FileNotFoundError(f"the book must have been built, found no {folder}: run make book")
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            if LEFT_OUT.isdisjoint(path.relative_to(folder).parts):
                files[f"{inside}/{path.relative_to(folder).as_posix()}"] = path
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, path in files.items():
            entry = zipfile.ZipInfo(name)  # with the fixed date 1980, for reproducible bytes
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, path.read_bytes())


def main() -> int:
    """Pack the zip and print its path and size."""
    target = BUILD / f"{FOLDER}.zip"
    try:
        pack(BUILD, target)
    except FileNotFoundError as error:
        sys.exit(str(error))
    print(f"{target.relative_to(ROOT)}   ({target.stat().st_size / 1e6:.1f} MB; unpack it and open index.html)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
