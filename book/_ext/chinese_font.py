"""Find a font for the Chinese text of pictures, and break that text into lines.

The font is one of the system, such as that of Debian's package ``fonts-noto-cjk``: fonts with all characters are too
large to be pinned. A machine without one draws no picture with Chinese text.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from matplotlib import font_manager

FAMILIES = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "PingFang SC", "Microsoft YaHei")
FILES = re.compile("NotoSansCJK|NotoSansSC|SourceHanSans|PingFang|msyh", re.IGNORECASE)
HAN = "\u3400-\u4dbf\u4e00-\u9fff"
CHINESE = re.compile(f"[{HAN}\u3000-\u303f\uff00-\uffef]")
WIDE = re.compile(f"{CHINESE.pattern}|[\u2018\u2019\u201c\u201d\u2026]")
CLOSING = "\u3001\u3002\u300b\u2019\u201d\uff01\uff09\uff0c\uff1a\uff1b\uff1f"
OPENING = "\u300a\u2018\u201c\uff08"
# What no line may divide: a Chinese character or a word, with the punctuation around it.
PIECE = re.compile(f"[{OPENING}]*(?:[{HAN}]|[^\\s{HAN}{OPENING}{CLOSING}]+)[{CLOSING}]*\\s?|\\S\\s?")
WIDTH = 1.5  # of a Chinese character, in those of the Latin letters for which the pictures are designed


@cache
def font() -> str:
    """Return the name of an installed font for Chinese, or an empty string.

    Matplotlib's own list of fonts may be older than the font.
    """
    known = {one.fname for one in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if FILES.search(Path(path).name) and path not in known:
            font_manager.fontManager.addfont(path)
    names = set(font_manager.get_font_names())
    return next((name for name in FAMILIES if name in names), "")


def is_chinese(text: str) -> bool:
    """Return whether a text has Chinese characters."""
    return bool(CHINESE.search(text))


def lines(text: str, broad: int) -> list[str]:
    """Return a Chinese text in lines as long as ``broad`` Latin letters; a line never begins with closing punctuation.

    >>> lines("注意力权重", 5)
    ['注意力', '权重']
    """
    return [line.strip() for line in _lines(text, broad)]


def _lines(text: str, broad: int) -> Iterator[str]:
    line = ""
    for piece in PIECE.findall(text):
        if line and width(line + piece.rstrip()) > broad:
            yield line
            line = ""
        line += piece
    yield line


def width(text: str) -> float:
    """Return the width of a text in Latin letters."""
    return sum(WIDTH if WIDE.match(one) else 1 for one in text)
