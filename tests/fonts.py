"""Fonts for tests, so that measurements are the same on every machine."""

from base64 import b64encode
from functools import cache
from pathlib import Path

import matplotlib

TTF = Path(matplotlib.get_data_path()) / "fonts/ttf"
SERIF = {"normal": "DejaVuSerif", "italic": "DejaVuSerif-Italic"}
BOLD_SERIF = {"normal": "DejaVuSerif-Bold", "italic": "DejaVuSerif-BoldItalic"}


@cache
def wide_serif(family: str) -> str:
    """Return CSS that defines DejaVu Serif, the widest common serif font, as the font of this family."""
    return "".join(
        f'@font-face {{ font-family: "{family}"; font-weight: {weight}; font-style: {style}; '
        f'src: url("data:font/ttf;base64,{b64encode((TTF / f"{file}.ttf").read_bytes()).decode()}"); }}'
        for weight, files in ((400, SERIF), (700, BOLD_SERIF))
        for style, file in files.items()
    )
