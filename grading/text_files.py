"""Read the text files of a course, which spreadsheets and editors save in several encodings."""

import codecs
from contextlib import suppress
from pathlib import Path


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, UTF-16 or Windows' cp1252, as spreadsheets and editors save it.

    Raises:
        ValueError: if it is not text in one of these encodings.
    """
    content = path.read_bytes()
    marks = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    marked = next((name for mark, name in marks.items() if content.startswith(mark)), None)
    for encoding in [marked] if marked else ["utf-8", "cp1252"]:
        with suppress(UnicodeDecodeError):
            text = content.decode(encoding)
            if "\0" not in text:
                return text
    raise ValueError(
        f"{path.name} is no text that can be read (UTF-8, UTF-16 or cp1252): save it as CSV UTF-8, or as plain text"
    )
